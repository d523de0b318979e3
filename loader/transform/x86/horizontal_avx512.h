/*
 * The horizontal kernel in AVX-512 with VBMI and VNNI: 16 values per register, 16 pixels per turn.
 * vpermb gathers four taps of each value from 64 bytes of a row, and vpdpbusd multiplies them by
 * the three digits of their weights (target.h). A table as in horizontal_template.h holds for each
 * turn 64 bytes of starts and
 *
 *     3 registers            places of four taps
 *     for each four taps     3 registers of each digit, the highest first
 *
 * If 64 bytes do not cover the taps, or for more than 16 taps, AVX2's fm_horizontal_long() is used.
 */
#ifndef FM_TRANSFORM_X86_HORIZONTAL_AVX512_H
#define FM_TRANSFORM_X86_HORIZONTAL_AVX512_H

#include "transform/kernels.h"
#include "transform/x86/horizontal.h"
#include "transform/x86/target.h"

enum { FM_MAX_TAPS_AVX512 = 16, FM_TURN_PX_AVX512 = 16 };

static inline size_t fm_turn_bytes_avx512(int32_t n_taps) {
    return 64 * (size_t)(1 + 3 + 9 * ((n_taps + 3) / 4));
}

/* vpermb's indexes of four taps of a value, the first of which is `at`. */
#define FM_PLACE_FOUR(at) ((int32_t)(0x09060300u + 0x01010101u * (uint32_t)(at)))

/* Prepares the turn from output i on, whose end repeats the last output. false if 64 bytes do not
 * cover all taps of a register. */
FM_AVX512_INLINE bool fm_prepare_turn_avx512(uint8_t *turn, const fm_coeffs *coeffs, int32_t i) {
    enum { PX = FM_TURN_PX_AVX512, LANES = 16 };
    const int32_t n_fours = (coeffs->max_taps + 3) / 4;
    int32_t *const starts = (int32_t *)(void *)turn;
    int32_t *const lanes = starts + LANES;
    int32_t first[PX], base[3];
    int32_t digits[FM_MAX_TAPS_AVX512 / 4][PX][4];
    for (int32_t px = 0; px < PX; px++) {
        const int32_t output = i + px < coeffs->n ? i + px : coeffs->n - 1;
        const int32_t *const weights = coeffs->weights + (size_t)output * (size_t)coeffs->stride;
        first[px] = coeffs->first[output];
        for (int32_t four = 0; four < n_fours; four++)
            _mm_storeu_si128((__m128i *)digits[four][px],
                             fm_digits4(fm_load_sse41(weights + 4 * four)));
    }
    /* Starts are monotonic, so a register's first or last pixel has the lowest. */
    for (int32_t k = 0; k < 3; k++) {
        const int32_t left = first[LANES * k / 3], right = first[(LANES * k + LANES - 1) / 3];
        base[k] = left < right ? left : right;
        starts[k] = 3 * base[k];
    }
    for (int32_t value = 0; value < 3 * PX; value++) {
        const int32_t px = value / 3, place = 3 * (first[px] - base[value / LANES]) + value % 3;
        if (place < 0 || place + 9 > 63) return false;
        int32_t *const lane = lanes + value; /* registers follow one another */
        lane[0] = FM_PLACE_FOUR(place);
        for (int32_t four = 0; four < n_fours; four++)
            for (int32_t digit = 0; digit < 3; digit++)
                lane[3 * LANES * (1 + 3 * four + digit)] = digits[four][px][digit];
    }
    return true;
}

FM_AVX512 int fm_prepare_columns_avx512(fm_coeffs *coeffs, fm_mem_counter *counter,
                                        fm_error *error) {
    const int32_t n_taps = coeffs->max_taps;
    const size_t n_turns = ((size_t)coeffs->n + FM_TURN_PX_AVX512 - 1) / FM_TURN_PX_AVX512;
    const int status = fm_coeffs_reserve_table(
        coeffs, n_turns * fm_turn_bytes_avx512(FM_MAX_TAPS_AVX512), counter, error);
    coeffs->has_table = false;
    if (status) return status;
    if (n_taps > FM_MAX_TAPS_AVX512) return FM_OK;
    uint8_t *turn = coeffs->table;
    for (int32_t i = 0; i < coeffs->n; i += FM_TURN_PX_AVX512) {
        if (!fm_prepare_turn_avx512(turn, coeffs, i)) return FM_OK;
        turn += fm_turn_bytes_avx512(n_taps);
    }
    coeffs->has_table = true;
    return FM_OK;
}

/* Computes a turn of all rows, then the next turn. n_fours is the number of taps divided by four.
 */
FM_AVX512_INLINE void fm_horizontal_turns_avx512(uint8_t *const *out, const uint8_t *const *in,
                                                 int32_t n_rows, const fm_coeffs *coeffs,
                                                 const int32_t n_fours) {
    const uint8_t *turn = coeffs->table;
    for (int32_t i = 0; i < coeffs->n;
         i += FM_TURN_PX_AVX512, turn += fm_turn_bytes_avx512(4 * n_fours)) {
        /* Local copies, which can't alias `out`. */
        size_t starts[3];
        __m512i places[3], digits[FM_MAX_TAPS_AVX512 / 4 * 9];
        for (int k = 0; k < 3; k++) {
            starts[k] = (size_t)((const int32_t *)(const void *)turn)[k];
            places[k] = _mm512_loadu_si512(turn + 64 * (1 + k));
        }
        for (int32_t k = 0; k < 9 * n_fours; k++)
            digits[k] = _mm512_loadu_si512(turn + 64 * (4 + k));
        for (int32_t row = 0; row < n_rows; row++) {
            for (int32_t k = 0; k < 3; k++) {
                const uint8_t *const px = in[row] + starts[k];
                __m512i sums[3];
                for (int digit = 0; digit < 3; digit++)
                    sums[digit] = _mm512_set1_epi32(digit ? 0 : FM_DIGIT_HALF);
                for (int32_t four = 0; four < n_fours; four++) {
                    const __m512i taps =
                        _mm512_permutexvar_epi8(places[k], _mm512_loadu_si512(px + 12 * four));
                    for (int digit = 0; digit < 3; digit++)
                        sums[digit] = _mm512_dpbusd_epi32(sums[digit], taps,
                                                          digits[9 * four + 3 * digit + k]);
                }
                const __m512i values =
                    _mm512_max_epi32(fm_join_digits(sums), _mm512_setzero_si512());
                _mm_storeu_si128((__m128i *)(out[row] + 3 * (size_t)i + 16 * k),
                                 _mm512_cvtusepi32_epi8(values));
            }
        }
    }
}

FM_AVX512 void fm_horizontal_avx512(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                                    const fm_coeffs *coeffs) {
    switch (coeffs->has_table ? (coeffs->max_taps + 3) / 4 : 0) {
    case 1:
        fm_horizontal_turns_avx512(out, in, n_rows, coeffs, 1);
        break;
    case 2:
        fm_horizontal_turns_avx512(out, in, n_rows, coeffs, 2);
        break;
    case 3:
        fm_horizontal_turns_avx512(out, in, n_rows, coeffs, 3);
        break;
    case 4:
        fm_horizontal_turns_avx512(out, in, n_rows, coeffs, 4);
        break;
    default:
        fm_horizontal_long_avx2(out, in, n_rows, coeffs);
    }
}

#endif
