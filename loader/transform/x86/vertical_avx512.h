/* The vertical kernel in AVX-512 with VNNI: 64 columns per step, with the bytes of four rows
 * interleaved. */
#ifndef FM_TRANSFORM_X86_VERTICAL_AVX512_H
#define FM_TRANSFORM_X86_VERTICAL_AVX512_H

#include "transform/kernels.h"
#include "transform/x86/target.h"
#include "transform/x86/vertical.h"

/* Interleaves the bytes of four rows as double words, in four registers. */
FM_AVX512_INLINE void fm_join_rows_avx512(__m512i *joined, const uint8_t *const *rows, size_t i) {
    __m512i row[4];
    for (int k = 0; k < 4; k++) row[k] = _mm512_loadu_si512(rows[k] + i);
    const __m512i left_01 = _mm512_unpacklo_epi8(row[0], row[1]);
    const __m512i left_23 = _mm512_unpacklo_epi8(row[2], row[3]);
    const __m512i right_01 = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i right_23 = _mm512_unpackhi_epi8(row[2], row[3]);
    joined[0] = _mm512_unpacklo_epi16(left_01, left_23);
    joined[1] = _mm512_unpackhi_epi16(left_01, left_23);
    joined[2] = _mm512_unpacklo_epi16(right_01, right_23);
    joined[3] = _mm512_unpackhi_epi16(right_01, right_23);
}

/* Sums groups of four rows; `digits` are those of fm_digits4(). */
FM_AVX512_INLINE void fm_vertical_fours_avx512(uint8_t *restrict out, const uint8_t *const *rows,
                                               const int32_t (*digits)[4], const int32_t n_fours,
                                               size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        __m512i sums[4][3], joined[4];
        for (int k = 0; k < 4; k++)
            for (int digit = 0; digit < 3; digit++)
                sums[k][digit] = _mm512_set1_epi32(digit ? 0 : FM_DIGIT_HALF);
        for (int32_t four = 0; four < n_fours; four++) {
            fm_join_rows_avx512(joined, rows + 4 * four, i);
            for (int k = 0; k < 4; k++)
                for (int digit = 0; digit < 3; digit++)
                    sums[k][digit] = _mm512_dpbusd_epi32(sums[k][digit], joined[k],
                                                         _mm512_set1_epi32(digits[four][digit]));
        }
        for (int k = 0; k < 4; k++) joined[k] = fm_join_digits(sums[k]);
        _mm512_storeu_si512(out + i, _mm512_packus_epi16(_mm512_packs_epi32(joined[0], joined[1]),
                                                         _mm512_packs_epi32(joined[2], joined[3])));
    }
}

FM_AVX512 void fm_vertical_avx512(uint8_t *out, const uint8_t *const *in, const fm_coeffs *coeffs,
                                  int32_t i, size_t n_bytes) {
    enum { MOST = 16 };
    const int32_t n_taps = coeffs->n_taps[i];
    if (n_taps > MOST) {
        fm_vertical_avx2(out, in, coeffs, i, n_bytes);
        return;
    }
    /* Local copies, which can't alias `out`, in whole groups of four: the last row is repeated,
     * with weights of 0. */
    const uint8_t *rows[MOST];
    int32_t digits[MOST / 4][4];
    const int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
    const int32_t n_fours = (n_taps + 3) / 4;
    for (int32_t t = 0; t < 4 * n_fours; t++) rows[t] = in[t < n_taps ? t : n_taps - 1];
    for (int32_t four = 0; four < n_fours; four++) {
        const __m128i used =
            _mm_cmpgt_epi32(_mm_set1_epi32(n_taps - 4 * four), _mm_setr_epi32(0, 1, 2, 3));
        const __m128i kept =
            _mm_and_si128(_mm_loadu_si128((const __m128i *)(weights + 4 * four)), used);
        _mm_storeu_si128((__m128i *)digits[four], fm_digits4(kept));
    }
    switch (n_fours) {
    case 1:
        fm_vertical_fours_avx512(out, rows, digits, 1, n_bytes);
        break;
    case 2:
        fm_vertical_fours_avx512(out, rows, digits, 2, n_bytes);
        break;
    default:
        fm_vertical_fours_avx512(out, rows, digits, n_fours, n_bytes);
    }
}

#endif
