/* Mirroring a row in SSE4.1. */
#ifndef FM_TRANSFORM_X86_MIRROR_SSE41_H
#define FM_TRANSFORM_X86_MIRROR_SSE41_H

#include "transform/x86/target.h"

/* Five pixels per step. The sixteenth byte of a load or store is in the slack, or is overwritten.
 */
FM_SSE41 void fm_mirror_sse41(uint8_t *out, const uint8_t *in, int32_t n_px) {
    const __m128i reverse = _mm_setr_epi8(12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, -1);
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 5 <= n; i += 5) {
        const __m128i five = _mm_loadu_si128((const __m128i *)(in + 3 * (n - 5 - i)));
        _mm_storeu_si128((__m128i *)(out + 3 * i), _mm_shuffle_epi8(five, reverse));
    }
    for (; i < n; i++) {
        const uint8_t *const px = in + 3 * (n - 1 - i);
        out[3 * i + 0] = px[0];
        out[3 * i + 1] = px[1];
        out[3 * i + 2] = px[2];
    }
}

#endif
