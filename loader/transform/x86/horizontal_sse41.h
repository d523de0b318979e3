/* The horizontal kernel in SSE4.1: a register holds one output's three sums. */
#ifndef FM_TRANSFORM_X86_HORIZONTAL_SSE41_H
#define FM_TRANSFORM_X86_HORIZONTAL_SSE41_H

#include "transform/kernels.h"
#include "transform/x86/target.h"

/* Takes the pixels 0 and 1 (or 2 and 3) of four apart: words r r g g b b 0 0. */
#define FM_PAIR_01 0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1
#define FM_PAIR_23 6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1

/* The pixel 0 (or 2) of four as double words r g b 0. */
#define FM_SINGLE_0 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, -1, -1, -1, -1
#define FM_SINGLE_2 6, -1, -1, -1, 7, -1, -1, -1, 8, -1, -1, -1, -1, -1, -1, -1

/* Weights of up to eight taps, the same in each double word. */
typedef struct fm_taps_sse41 {
    __m128i high[4], low[4]; /* of pairs */
    __m128i last;            /* of an odd last tap, not split but times four */
} fm_taps_sse41;

FM_SSE41_INLINE void fm_load_taps_sse41(fm_taps_sse41 *taps, const int32_t *weights,
                                        const int32_t n_taps) {
    for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
        const __m128i split = fm_split4_sse41(weights + t / 4 * 4);
        taps->high[t / 2] = t % 4 ? _mm_shuffle_epi32(split, 0x55) : _mm_shuffle_epi32(split, 0x00);
        taps->low[t / 2] = t % 4 ? _mm_shuffle_epi32(split, 0xff) : _mm_shuffle_epi32(split, 0xaa);
    }
    if (n_taps % 2) taps->last = _mm_set1_epi32(weights[n_taps - 1] << 2);
}

/* One output's sums; its bytes are the highest of each double word. An odd last tap takes one full
 * multiplication in place of two halves. */
FM_SSE41_INLINE __m128i fm_sum_taps_sse41(const uint8_t *px, const fm_taps_sse41 *taps,
                                          const int32_t n_taps) {
    const __m128i pair_01 = _mm_setr_epi8(FM_PAIR_01), pair_23 = _mm_setr_epi8(FM_PAIR_23);
    __m128i high = _mm_setzero_si128(), low = _mm_set1_epi32(FM_SPLIT_HALF);
    for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
        const __m128i four = _mm_loadu_si128((const __m128i *)(px + 12 * (t / 4)));
        const __m128i two = _mm_shuffle_epi8(four, t % 4 ? pair_23 : pair_01);
        high = _mm_add_epi32(high, _mm_madd_epi16(two, taps->high[t / 2]));
        low = _mm_add_epi32(low, _mm_madd_epi16(two, taps->low[t / 2]));
    }
    if (n_taps % 2) {
        const __m128i four = _mm_loadu_si128((const __m128i *)(px + 12 * (n_taps / 4)));
        const __m128i one = _mm_shuffle_epi8(four, n_taps % 4 == 3 ? _mm_setr_epi8(FM_SINGLE_2)
                                                                   : _mm_setr_epi8(FM_SINGLE_0));
        low = _mm_add_epi32(low, _mm_mullo_epi32(one, taps->last));
    }
    return _mm_add_epi32(_mm_slli_epi32(high, FM_SPLIT_SHIFT), low);
}

/* Two outputs a turn, all rows: the weights stay in registers. The last output is done twice where
 * the number is odd; that and the two bytes too many of a store fall into the slack. */
FM_SSE41_INLINE void fm_horizontal_taps_sse41(uint8_t *const *out, const uint8_t *const *in,
                                              int32_t n_rows, const fm_coeffs *coeffs,
                                              const int32_t n_taps) {
    const __m128i gather = _mm_setr_epi8(1, 5, 9, 3, 7, 11, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int32_t i = 0; i < coeffs->n; i += 2) {
        const int32_t j = i + 1 < coeffs->n ? i + 1 : i;
        const size_t px_i = 3 * (size_t)coeffs->first[i], px_j = 3 * (size_t)coeffs->first[j];
        fm_taps_sse41 taps_i, taps_j;
        fm_load_taps_sse41(&taps_i, coeffs->weights + (size_t)i * (size_t)coeffs->stride, n_taps);
        fm_load_taps_sse41(&taps_j, coeffs->weights + (size_t)j * (size_t)coeffs->stride, n_taps);
        for (int32_t row = 0; row < n_rows; row++) {
            const __m128i sum_i = fm_sum_taps_sse41(in[row] + px_i, &taps_i, n_taps);
            const __m128i sum_j = fm_sum_taps_sse41(in[row] + px_j, &taps_j, n_taps);
            const __m128i both = _mm_blend_epi16(_mm_srli_epi32(sum_i, 16), sum_j, 0xaa);
            _mm_storel_epi64((__m128i *)(out[row] + 3 * (size_t)i), _mm_shuffle_epi8(both, gather));
        }
    }
}

/* Stores one output from its sums, and a byte behind it. */
FM_SSE41_INLINE void fm_store_px_sse41(uint8_t *out, __m128i sums) {
    const __m128i gather =
        _mm_setr_epi8(3, 7, 11, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm_storeu_si32(out, _mm_shuffle_epi8(sums, gather));
}

/* Any number of taps; two rows share the work on the weights, the last one with itself. */
FM_SSE41_INLINE void fm_horizontal_long_sse41(uint8_t *const *out, const uint8_t *const *in,
                                              int32_t n_rows, const fm_coeffs *coeffs) {
    const size_t n_bytes = 3 * (size_t)coeffs->max_taps;
    const __m128i half = _mm_set1_epi32(FM_SPLIT_HALF);
    const __m128i pair_01 = _mm_setr_epi8(FM_PAIR_01), pair_23 = _mm_setr_epi8(FM_PAIR_23);
    for (int32_t i = 0; i < coeffs->n; i++) {
        const size_t start = 3 * (size_t)coeffs->first[i];
        for (int32_t row = 0; row < n_rows; row += 2) {
            const int32_t rows[2] = {row, row + 1 < n_rows ? row + 1 : row};
            const int32_t *weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
            __m128i high[2] = {_mm_setzero_si128(), _mm_setzero_si128()}, low[2] = {half, half};
            for (size_t at = 0; at < n_bytes; at += 12, weights += 4) {
                const __m128i split = fm_split4_sse41(weights);
                const __m128i high_01 = _mm_shuffle_epi32(split, 0x00);
                const __m128i high_23 = _mm_shuffle_epi32(split, 0x55);
                const __m128i low_01 = _mm_shuffle_epi32(split, 0xaa);
                const __m128i low_23 = _mm_shuffle_epi32(split, 0xff);
                for (int k = 0; k < 2; k++) {
                    const uint8_t *const px = in[rows[k]] + start + at;
                    const __m128i four = _mm_loadu_si128((const __m128i *)px);
                    const __m128i two = _mm_shuffle_epi8(four, pair_01);
                    const __m128i next = _mm_shuffle_epi8(four, pair_23);
                    high[k] = _mm_add_epi32(high[k], _mm_add_epi32(_mm_madd_epi16(two, high_01),
                                                                   _mm_madd_epi16(next, high_23)));
                    low[k] = _mm_add_epi32(low[k], _mm_add_epi32(_mm_madd_epi16(two, low_01),
                                                                 _mm_madd_epi16(next, low_23)));
                }
            }
            for (int k = 0; k < 2; k++)
                fm_store_px_sse41(out[rows[k]] + 3 * (size_t)i,
                                  _mm_add_epi32(_mm_slli_epi32(high[k], FM_SPLIT_SHIFT), low[k]));
        }
    }
}

FM_SSE41 void fm_horizontal_sse41(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                                  const fm_coeffs *coeffs) {
    if (coeffs->clips) {
        fm_horizontal_scalar(out, in, n_rows, coeffs);
        return;
    }
    switch (coeffs->max_taps) {
    case 2:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 2);
        break;
    case 3:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 3);
        break;
    case 4:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 4);
        break;
    case 5:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 5);
        break;
    case 6:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 6);
        break;
    case 7:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 7);
        break;
    case 8:
        fm_horizontal_taps_sse41(out, in, n_rows, coeffs, 8);
        break;
    default:
        fm_horizontal_long_sse41(out, in, n_rows, coeffs);
    }
}

#endif
