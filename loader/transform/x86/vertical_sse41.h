/* The vertical kernel in SSE4.1: 16 columns a turn, bytes of two rows side by side. */
#ifndef FM_TRANSFORM_X86_VERTICAL_SSE41_H
#define FM_TRANSFORM_X86_VERTICAL_SSE41_H

#include "transform/kernels.h"
#include "transform/x86/target.h"

/* Bytes of two rows for 16 columns, as pairs of words in four registers of four. */
FM_SSE41_INLINE void fm_pair_rows_sse41(__m128i *pairs, __m128i first, __m128i second) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i left = _mm_unpacklo_epi8(first, second);
    const __m128i right = _mm_unpackhi_epi8(first, second);
    pairs[0] = _mm_unpacklo_epi8(left, zero);
    pairs[1] = _mm_unpackhi_epi8(left, zero);
    pairs[2] = _mm_unpacklo_epi8(right, zero);
    pairs[3] = _mm_unpackhi_epi8(right, zero);
}

/* Inlined with a constant n_taps, the weights stay in registers. An odd last row takes one full
 * multiplication in place of two halves. */
FM_SSE41_INLINE void fm_vertical_taps_sse41(uint8_t *restrict out, const uint8_t *const *in,
                                            const int32_t *weights, const int32_t n_taps,
                                            size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 16) {
        __m128i high[4], low[4];
        for (int k = 0; k < 4; k++) {
            high[k] = _mm_setzero_si128();
            low[k] = _mm_set1_epi32(FM_SPLIT_HALF);
        }
        __m128i pairs[4];
        for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
            const __m128i weight_high = _mm_set1_epi32(fm_split_high(weights[t], weights[t + 1]));
            const __m128i weight_low = _mm_set1_epi32(fm_split_low(weights[t], weights[t + 1]));
            fm_pair_rows_sse41(pairs, _mm_loadu_si128((const __m128i *)(in[t] + i)),
                               _mm_loadu_si128((const __m128i *)(in[t + 1] + i)));
            for (int k = 0; k < 4; k++) {
                high[k] = _mm_add_epi32(high[k], _mm_madd_epi16(pairs[k], weight_high));
                low[k] = _mm_add_epi32(low[k], _mm_madd_epi16(pairs[k], weight_low));
            }
        }
        if (n_taps % 2) {
            const __m128i weight = _mm_set1_epi32(weights[n_taps - 1] << 2);
            fm_pair_rows_sse41(pairs, _mm_loadu_si128((const __m128i *)(in[n_taps - 1] + i)),
                               _mm_setzero_si128());
            for (int k = 0; k < 4; k++)
                low[k] = _mm_add_epi32(low[k], _mm_mullo_epi32(pairs[k], weight));
        }
        for (int k = 0; k < 4; k++) {
            high[k] = _mm_slli_epi32(high[k], FM_SPLIT_SHIFT);
            high[k] = _mm_srli_epi32(_mm_add_epi32(high[k], low[k]), 24);
        }
        const __m128i bytes = _mm_packus_epi16(_mm_packus_epi32(high[0], high[1]),
                                               _mm_packus_epi32(high[2], high[3]));
        _mm_storeu_si128((__m128i *)(out + i), bytes);
    }
}

FM_SSE41 void fm_vertical_sse41(uint8_t *out, const uint8_t *const *in, const int32_t *weights,
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
        fm_vertical_taps_sse41(out, rows, kept, 1, n_bytes);
        break;
    case 2:
        fm_vertical_taps_sse41(out, rows, kept, 2, n_bytes);
        break;
    case 3:
        fm_vertical_taps_sse41(out, rows, kept, 3, n_bytes);
        break;
    case 4:
        fm_vertical_taps_sse41(out, rows, kept, 4, n_bytes);
        break;
    case 5:
        fm_vertical_taps_sse41(out, rows, kept, 5, n_bytes);
        break;
    case 6:
        fm_vertical_taps_sse41(out, rows, kept, 6, n_bytes);
        break;
    default:
        fm_vertical_taps_sse41(out, in, weights, n_taps, n_bytes);
    }
}

#endif
