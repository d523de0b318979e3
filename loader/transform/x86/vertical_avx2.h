/* The vertical kernel in AVX2: 32 columns a turn, bytes of two rows side by side. */
#ifndef FM_TRANSFORM_X86_VERTICAL_AVX2_H
#define FM_TRANSFORM_X86_VERTICAL_AVX2_H

#include "transform/kernels.h"
#include "transform/x86/target.h"

/* Bytes of two rows for 32 columns, as pairs of words in four registers of eight. */
FM_AVX2_INLINE void fm_pair_rows_avx2(__m256i *pairs, __m256i first, __m256i second) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i left = _mm256_unpacklo_epi8(first, second);
    const __m256i right = _mm256_unpackhi_epi8(first, second);
    pairs[0] = _mm256_unpacklo_epi8(left, zero);
    pairs[1] = _mm256_unpackhi_epi8(left, zero);
    pairs[2] = _mm256_unpacklo_epi8(right, zero);
    pairs[3] = _mm256_unpackhi_epi8(right, zero);
}

/* Inlined with a constant n_taps, the weights stay in registers. An odd last row takes one full
 * multiplication in place of two halves. */
FM_AVX2_INLINE void fm_vertical_taps_avx2(uint8_t *restrict out, const uint8_t *const *in,
                                          const int32_t *weights, const int32_t n_taps,
                                          size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 32) {
        __m256i high[4], low[4];
        for (int k = 0; k < 4; k++) {
            high[k] = _mm256_setzero_si256();
            low[k] = _mm256_set1_epi32(FM_SPLIT_HALF);
        }
        __m256i pairs[4];
        for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
            const __m256i weight_high =
                _mm256_set1_epi32(fm_split_high(weights[t], weights[t + 1]));
            const __m256i weight_low = _mm256_set1_epi32(fm_split_low(weights[t], weights[t + 1]));
            fm_pair_rows_avx2(pairs, _mm256_loadu_si256((const __m256i *)(in[t] + i)),
                              _mm256_loadu_si256((const __m256i *)(in[t + 1] + i)));
            for (int k = 0; k < 4; k++) {
                high[k] = _mm256_add_epi32(high[k], _mm256_madd_epi16(pairs[k], weight_high));
                low[k] = _mm256_add_epi32(low[k], _mm256_madd_epi16(pairs[k], weight_low));
            }
        }
        if (n_taps % 2) {
            const __m256i weight = _mm256_set1_epi32(weights[n_taps - 1] << 2);
            fm_pair_rows_avx2(pairs, _mm256_loadu_si256((const __m256i *)(in[n_taps - 1] + i)),
                              _mm256_setzero_si256());
            for (int k = 0; k < 4; k++)
                low[k] = _mm256_add_epi32(low[k], _mm256_mullo_epi32(pairs[k], weight));
        }
        for (int k = 0; k < 4; k++) {
            high[k] = _mm256_slli_epi32(high[k], FM_SPLIT_SHIFT);
            high[k] = _mm256_srli_epi32(_mm256_add_epi32(high[k], low[k]), 24);
        }
        const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(high[0], high[1]),
                                                  _mm256_packus_epi32(high[2], high[3]));
        _mm256_storeu_si256((__m256i *)(out + i), bytes);
    }
}

FM_AVX2 void fm_vertical_avx2(uint8_t *out, const uint8_t *const *in, const int32_t *weights,
                              int32_t n_taps, size_t n_bytes, bool clips) {
    if (clips) {
        fm_vertical_scalar(out, in, weights, n_taps, n_bytes, clips);
        return;
    }
    /* Copies of a known number, which the stores to `out` can't change. */
    const uint8_t *rows[6];
    int32_t kept[6];
    for (int32_t t = 0; t < n_taps && t < 6; t++) {
        rows[t] = in[t];
        kept[t] = weights[t];
    }
    switch (n_taps) {
    case 1:
        fm_vertical_taps_avx2(out, rows, kept, 1, n_bytes);
        break;
    case 2:
        fm_vertical_taps_avx2(out, rows, kept, 2, n_bytes);
        break;
    case 3:
        fm_vertical_taps_avx2(out, rows, kept, 3, n_bytes);
        break;
    case 4:
        fm_vertical_taps_avx2(out, rows, kept, 4, n_bytes);
        break;
    case 5:
        fm_vertical_taps_avx2(out, rows, kept, 5, n_bytes);
        break;
    case 6:
        fm_vertical_taps_avx2(out, rows, kept, 6, n_bytes);
        break;
    default:
        fm_vertical_taps_avx2(out, in, weights, n_taps, n_bytes);
    }
}

#endif
