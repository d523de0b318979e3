/*
 * The horizontal kernel in SSE4.1 and AVX2 (width.h).
 *
 * Up to eight taps: each half of a register (16 bytes) computes four pixels per step ("turn"),
 * whose twelve values are spread over the double words of three registers, so that all lanes are
 * used:
 *
 *     register 0   r0 g0 b0 r1      register 1   g1 b1 r2 g2      register 2   b2 r3 g3 b3
 *
 * A register holds values of two pixels. One load of 16 bytes covers a pair of taps of both, and
 * pshufb moves the pairs into place as words. A table, which is made once for all rows, holds the
 * places of each value's taps and the weights in the same order. Each turn has 32 bytes of starts
 * and
 *
 *     3 registers       places of a pair of taps
 *     3 registers       the same for an odd last tap, if there is one
 *     for each pair     3 registers of the weights' high halves, 3 of their low ones
 *     3 registers       an odd last tap's weights, not split
 *
 * If inputs of adjacent pixels are farther apart than one load, or for more taps, the slower
 * fm_horizontal_long() computes one output of several rows at a time.
 */
#include "transform/kernels.h"
#include "transform/x86/vector_avx2.h"
#include "transform/x86/vector_sse41.h"
#include "transform/x86/width.h"

#ifndef FM_MAX_TURN_TAPS
#define FM_MAX_TURN_TAPS 8
#define FM_STARTS_BYTES 32

/* Shuffles that interleave pixels 0 and 1 (or 2 and 3) of four: words r r g g b b 0 0. */
#define FM_PAIR_01 0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1
#define FM_PAIR_23 6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1

/* Whether a load of 16 bytes covers a pair of taps of any two adjacent pixels; all, if there are
 * three. */
static inline bool fm_adjacent_fit(const fm_coeffs *coeffs) {
    const int32_t most = coeffs->max_taps == 3 ? 2 : 3;
    for (int32_t i = 0; i + 1 < coeffs->n; i++) {
        const int32_t apart = coeffs->first[i + 1] - coeffs->first[i];
        if (apart < -most || apart > most) return false;
    }
    return true;
}

/* Four weights: high halves in words 0 to 3, low ones in words 4 to 7. */
FM_SSE41_INLINE __m128i fm_split4(const int32_t *weights) {
    const __m128i four = fm_load_sse41(weights);
    return _mm_packs_epi32(_mm_srai_epi32(four, FM_SPLIT_SHIFT),
                           _mm_and_si128(four, _mm_set1_epi32(FM_SPLIT_LOW)));
}

/* Spreads numbers of pixels 0 to 3, each repeated in all double words, over the lanes of the
 * pixels' values. */
FM_SSE41_INLINE void fm_spread_px(uint8_t *registers, size_t width, const __m128i *px) {
    fm_store_sse41(registers, _mm_blend_epi16(px[0], px[1], 0xc0));
    fm_store_sse41(registers + width, _mm_blend_epi16(px[1], px[2], 0xf0));
    fm_store_sse41(registers + 2 * width, _mm_blend_epi16(px[2], px[3], 0xfc));
}

/* Computes pshufb's indexes for three registers: a value's place times `times`, which repeats it in
 * the lane's bytes, plus `empty`, which clears bytes. */
FM_SSE41_INLINE void fm_place_px(uint8_t *registers, size_t width, const int32_t *first,
                                 const int32_t *base, int32_t times, uint32_t empty) {
    const __m128i channels[3] = {_mm_setr_epi32(0, 1, 2, 0), _mm_setr_epi32(1, 2, 0, 1),
                                 _mm_setr_epi32(2, 0, 1, 2)};
    for (int32_t k = 0; k < 3; k++) {
        const __m128i left = _mm_set1_epi32(3 * (first[k] - base[k]));
        const __m128i right = _mm_set1_epi32(3 * (first[k + 1] - base[k]));
        const __m128i start = k == 0   ? _mm_blend_epi16(left, right, 0xc0)
                              : k == 1 ? _mm_blend_epi16(left, right, 0xf0)
                                       : _mm_blend_epi16(left, right, 0xfc);
        const __m128i place =
            _mm_mullo_epi32(_mm_add_epi32(start, channels[k]), _mm_set1_epi32(times));
        fm_store_sse41(registers + (size_t)k * width,
                       _mm_add_epi32(place, _mm_set1_epi32((int32_t)empty)));
    }
}

/* Four pixels from output i on, into half `half` of a turn's registers of `width` bytes. At the end
 * the last output is repeated. */
FM_SSE41_INLINE void fm_prepare_half(uint8_t *turn, const size_t width, const fm_coeffs *coeffs,
                                     int32_t i, int32_t half) {
    const int32_t n_taps = coeffs->max_taps;
    int32_t *const starts = (int32_t *)(void *)turn;
    uint8_t *registers = turn + FM_STARTS_BYTES + 16 * half;
    int32_t first[4], base[3];
    const int32_t *weights[4];
    for (int32_t px = 0; px < 4; px++) {
        const int32_t output = i + px < coeffs->n ? i + px : coeffs->n - 1;
        first[px] = coeffs->first[output];
        weights[px] = coeffs->weights + (size_t)output * (size_t)coeffs->stride;
    }
    for (int32_t k = 0; k < 3; k++) {
        base[k] = first[k] < first[k + 1] ? first[k] : first[k + 1];
        starts[2 * k + half] = 3 * base[k];
    }
    fm_place_px(registers, width, first, base, 0x00010001, 0x80038000);
    registers += 3 * width;
    if (n_taps % 2) {
        /* One load serves all of three taps; else the last is loaded by itself. */
        fm_place_px(registers, width, first, base, 1, 0x80808000 + (n_taps == 3 ? 6 : 0));
        registers += 3 * width;
    }
    for (int32_t t = 0; t + 2 <= n_taps; t += 2, registers += 6 * width) {
        __m128i high[4], low[4];
        for (int32_t px = 0; px < 4; px++) {
            __m128i split = fm_split4(weights[px] + t / 4 * 4);
            if (t % 4) split = _mm_srli_epi64(split, 32);
            high[px] = _mm_shuffle_epi32(split, 0x00);
            low[px] = _mm_shuffle_epi32(split, 0xaa);
        }
        fm_spread_px(registers, width, high);
        fm_spread_px(registers + 3 * width, width, low);
    }
    if (n_taps % 2) {
        __m128i last[4];
        for (int32_t px = 0; px < 4; px++) last[px] = _mm_set1_epi32(weights[px][n_taps - 1]);
        fm_spread_px(registers, width, last);
    }
}
#endif

/* ---- the table ------------------------------------------------------------------------------- */

static inline size_t FM_W(fm_turn_bytes)(int32_t n_taps) {
    return FM_STARTS_BYTES + FM_WIDTH * (size_t)(3 + 3 * (n_taps % 2) + 3 * n_taps);
}

FM_FN int FM_W(fm_prepare_columns)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error) {
    enum { TURN_PX = FM_WIDTH / 4 };
    const int32_t n_taps = coeffs->max_taps;
    const size_t n_turns = ((size_t)coeffs->n + TURN_PX - 1) / TURN_PX;
    /* Always for the most taps, so that the table rarely has to grow. */
    const int status = fm_coeffs_reserve_table(
        coeffs, n_turns * FM_W(fm_turn_bytes)(FM_MAX_TURN_TAPS), counter, error);
    coeffs->has_table = false;
    if (status) return status;
    if (n_taps < 2 || n_taps > FM_MAX_TURN_TAPS || !fm_adjacent_fit(coeffs)) return FM_OK;
    const size_t turn_bytes = FM_W(fm_turn_bytes)(n_taps);
    uint8_t *turn = coeffs->table;
    for (int32_t i = 0; i < coeffs->n; i += TURN_PX, turn += turn_bytes)
        for (int32_t half = 0; half < FM_WIDTH / 16; half++)
            fm_prepare_half(turn, FM_WIDTH, coeffs, i + 4 * half, half);
    coeffs->has_table = true;
    return FM_OK;
}

/* ---- up to eight taps ------------------------------------------------------------------------ */

/* One of a turn's registers: its values, not yet clipped. */
FM_FN_INLINE fm_vector FM_W(fm_sum_taps)(const uint8_t *first, const uint8_t *second,
                                         const fm_vector *registers, const int32_t n_taps) {
    const fm_vector *weights = registers + 3 * (1 + n_taps % 2);
    fm_vector four = FM_W(fm_zero)(), high = FM_W(fm_zero)();
    fm_vector low = FM_OP(set1_epi32)(FM_SPLIT_HALF);
    for (int32_t t = 0; t + 2 <= n_taps; t += 2, weights += 6) {
        four = FM_W(fm_load_halves)(first + 3 * t, second + 3 * t);
        const fm_vector two = FM_OP(shuffle_epi8)(four, registers[0]);
        const fm_vector products = FM_OP(madd_epi16)(two, weights[0]);
        high = t ? FM_OP(add_epi32)(high, products) : products;
        low = FM_OP(add_epi32)(low, FM_OP(madd_epi16)(two, weights[3]));
    }
    if (n_taps % 2) {
        if (n_taps > 3)
            four = FM_W(fm_load_halves)(first + 3 * (n_taps - 1), second + 3 * (n_taps - 1));
        const fm_vector one = FM_OP(shuffle_epi8)(four, registers[3]);
        low = FM_OP(add_epi32)(low, FM_OP(mullo_epi32)(one, weights[0]));
    }
    const fm_vector sum = FM_OP(add_epi32)(FM_OP(slli_epi32)(high, FM_SPLIT_SHIFT), low);
    return FM_OP(srai_epi32)(sum, FM_COEFFS_BITS);
}

/* Computes a turn of all rows, then the next turn, so that the turn's table stays in registers and
 * in the cache. Stores may exceed the turn's pixels, into the next turn's or the slack. */
FM_FN_INLINE void FM_W(fm_horizontal_turns)(uint8_t *const *out, const uint8_t *const *in,
                                            int32_t n_rows, const fm_coeffs *coeffs,
                                            const int32_t n_taps) {
    const uint8_t *turn = coeffs->table;
    for (int32_t i = 0; i < coeffs->n; i += FM_WIDTH / 4, turn += FM_W(fm_turn_bytes)(n_taps)) {
        /* Local copies, which can't alias `out`. */
        size_t starts[6];
        for (int k = 0; k < 6; k++) starts[k] = (size_t)((const int32_t *)(const void *)turn)[k];
        fm_vector registers[3 * (1 + 1 + FM_MAX_TURN_TAPS)];
        for (int32_t k = 0; k < 3 * (1 + n_taps % 2 + n_taps); k++)
            registers[k] = FM_W(fm_load)(turn + FM_STARTS_BYTES + FM_WIDTH * k);
        for (int32_t row = 0; row < n_rows; row++) {
            const uint8_t *const px = in[row];
            fm_vector sums[3];
            for (int k = 0; k < 3; k++)
                sums[k] = FM_W(fm_sum_taps)(px + starts[2 * k], px + starts[2 * k + 1],
                                            registers + k, n_taps);
            const fm_vector bytes = FM_OP(packus_epi16)(FM_OP(packs_epi32)(sums[0], sums[1]),
                                                        FM_OP(packs_epi32)(sums[2], sums[2]));
            uint8_t *const to = out[row] + 3 * (size_t)i;
            FM_W(fm_store_halves)(to, to + 12, bytes);
        }
    }
}

/* ---- any number of taps ---------------------------------------------------------------------- */

/* Computes a row in each half of two registers; the rows share the splitting of weights. The last
 * rows may be computed twice. */
FM_FN_INLINE void FM_W(fm_horizontal_long)(uint8_t *const *out, const uint8_t *const *in,
                                           int32_t n_rows, const fm_coeffs *coeffs) {
    enum { HALVES = FM_WIDTH / 16 };
    const size_t n_bytes = 3 * (size_t)coeffs->max_taps;
    const fm_vector half = FM_OP(set1_epi32)(FM_SPLIT_HALF);
    const fm_vector pair_01 = FM_W(fm_both_halves)(_mm_setr_epi8(FM_PAIR_01));
    const fm_vector pair_23 = FM_W(fm_both_halves)(_mm_setr_epi8(FM_PAIR_23));
    for (int32_t i = 0; i < coeffs->n; i++) {
        const size_t start = 3 * (size_t)coeffs->first[i];
        for (int32_t row = 0; row < n_rows; row += 2 * HALVES) {
            int32_t rows[4]; /* in the halves of register 0, of register 1 */
            for (int32_t k = 0; k < 4; k++) {
                rows[k] = row + k / 2 * HALVES + k % 2 * (HALVES - 1);
                if (rows[k] >= n_rows) rows[k] = n_rows - 1;
            }
            const int32_t *weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
            fm_vector high[2] = {FM_W(fm_zero)(), FM_W(fm_zero)()}, low[2] = {half, half};
            for (size_t at = start; at < start + n_bytes; at += 12, weights += 4) {
                const fm_vector split = FM_W(fm_both_halves)(fm_split4(weights));
                const fm_vector high_01 = FM_OP(shuffle_epi32)(split, 0x00);
                const fm_vector high_23 = FM_OP(shuffle_epi32)(split, 0x55);
                const fm_vector low_01 = FM_OP(shuffle_epi32)(split, 0xaa);
                const fm_vector low_23 = FM_OP(shuffle_epi32)(split, 0xff);
                for (int k = 0; k < 2; k++) {
                    const fm_vector four =
                        FM_W(fm_load_halves)(in[rows[2 * k]] + at, in[rows[2 * k + 1]] + at);
                    const fm_vector two = FM_OP(shuffle_epi8)(four, pair_01);
                    const fm_vector next = FM_OP(shuffle_epi8)(four, pair_23);
                    high[k] = FM_OP(add_epi32)(high[k], FM_OP(madd_epi16)(two, high_01));
                    high[k] = FM_OP(add_epi32)(high[k], FM_OP(madd_epi16)(next, high_23));
                    low[k] = FM_OP(add_epi32)(low[k], FM_OP(madd_epi16)(two, low_01));
                    low[k] = FM_OP(add_epi32)(low[k], FM_OP(madd_epi16)(next, low_23));
                }
            }
            for (int k = 0; k < 2; k++) {
                fm_vector sum =
                    FM_OP(add_epi32)(FM_OP(slli_epi32)(high[k], FM_SPLIT_SHIFT), low[k]);
                sum = FM_OP(srai_epi32)(sum, FM_COEFFS_BITS);
                sum = FM_OP(packs_epi32)(sum, sum);
                FM_W(fm_store_dwords)
                (out[rows[2 * k]] + 3 * (size_t)i, out[rows[2 * k + 1]] + 3 * (size_t)i,
                 FM_OP(packus_epi16)(sum, sum));
            }
        }
    }
}

FM_FN void FM_W(fm_horizontal)(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                               const fm_coeffs *coeffs) {
    switch (coeffs->has_table ? coeffs->max_taps : 0) {
    case 2:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 2);
        break;
    case 3:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 3);
        break;
    case 4:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 4);
        break;
    case 5:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 5);
        break;
    case 6:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 6);
        break;
    case 7:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 7);
        break;
    case 8:
        FM_W(fm_horizontal_turns)(out, in, n_rows, coeffs, 8);
        break;
    default:
        FM_W(fm_horizontal_long)(out, in, n_rows, coeffs);
    }
}
