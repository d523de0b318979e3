/* Three bytes per pixel to four and back, in SSE4.1. */
#ifndef FM_TRANSFORM_X86_WIDEN_SSE41_H
#define FM_TRANSFORM_X86_WIDEN_SSE41_H

#include "transform/x86/target.h"

/* Four pixels per step. A load reads four bytes too many, which are in the slack or in the row. */
FM_SSE41 void fm_widen_sse41(uint8_t *out, const uint8_t *in, int32_t n_px, uint8_t fourth) {
    const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i fourths = _mm_set1_epi32((int32_t)((uint32_t)fourth << 24));
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m128i four = _mm_loadu_si128((const __m128i *)(in + 3 * i));
        _mm_storeu_si128((__m128i *)(out + 4 * i),
                         _mm_or_si128(_mm_shuffle_epi8(four, spread), fourths));
    }
    for (; i < n; i++) {
        out[4 * i + 0] = in[3 * i + 0];
        out[4 * i + 1] = in[3 * i + 1];
        out[4 * i + 2] = in[3 * i + 2];
        out[4 * i + 3] = fourth;
    }
}

/* Four pixels per step. A store writes four bytes too many, which the next one overwrites. */
FM_SSE41 void fm_narrow_sse41(uint8_t *out, const uint8_t *in, int32_t n_px) {
    const __m128i join = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 6 <= n; i += 4) {
        const __m128i four = _mm_loadu_si128((const __m128i *)(in + 4 * i));
        _mm_storeu_si128((__m128i *)(out + 3 * i), _mm_shuffle_epi8(four, join));
    }
    for (; i < n; i++) {
        out[3 * i + 0] = in[4 * i + 0];
        out[3 * i + 1] = in[4 * i + 1];
        out[3 * i + 2] = in[4 * i + 2];
    }
}

#endif
