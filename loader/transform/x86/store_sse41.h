/* Mirror and planar stores in SSE4.1. */
#ifndef FM_TRANSFORM_X86_STORE_SSE41_H
#define FM_TRANSFORM_X86_STORE_SSE41_H

#include "transform/x86/target.h"

/* Five pixels a turn; the sixteenth byte of load and store falls into the slack or is written
 * again. */
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

/* 16 pixels' channels, each in a register. */
FM_SSE41_INLINE void fm_split_px_sse41(__m128i *channels, const uint8_t *in) {
    /* By channel and third of the 48 bytes: which of its bytes go where. */
    const __m128i from[3][3] = {
        {_mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
         _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1),
         _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13)},
        {_mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
         _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1),
         _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14)},
        {_mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
         _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1),
         _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15)}};
    const __m128i *const thirds = (const __m128i *)in;
    const __m128i a = _mm_loadu_si128(thirds), b = _mm_loadu_si128(thirds + 1);
    const __m128i c = _mm_loadu_si128(thirds + 2);
    for (int channel = 0; channel < 3; channel++)
        channels[channel] = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, from[channel][0]),
                                                      _mm_shuffle_epi8(b, from[channel][1])),
                                         _mm_shuffle_epi8(c, from[channel][2]));
}

/* The last 16 pixels may overlap those before them: a store writes exactly its pixels. */
FM_SSE41 void fm_store_u8_sse41(uint8_t *out, size_t plane, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px;
    for (size_t i = 0; n >= 16 && i < n; i += 16) {
        const size_t at = i + 16 <= n ? i : n - 16;
        __m128i channels[3];
        fm_split_px_sse41(channels, in + 3 * at);
        for (size_t channel = 0; channel < 3; channel++)
            _mm_storeu_si128((__m128i *)(out + channel * plane + at), channels[channel]);
    }
    for (size_t i = 0; n < 16 && i < n; i++)
        for (size_t channel = 0; channel < 3; channel++)
            out[channel * plane + i] = in[3 * i + channel];
}

/* Four values of the table a store. */
FM_SSE41 void fm_store_f32_sse41(float *out, size_t plane, const uint8_t *in, int32_t n_px,
                                 const float (*table)[256]) {
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (size_t channel = 0; channel < 3; channel++) {
            const float *const values = table[channel];
            const uint8_t *const px = in + 3 * i + channel;
            const __m128 low =
                _mm_unpacklo_ps(_mm_load_ss(&values[px[0]]), _mm_load_ss(&values[px[3]]));
            const __m128 high =
                _mm_unpacklo_ps(_mm_load_ss(&values[px[6]]), _mm_load_ss(&values[px[9]]));
            _mm_storeu_ps(out + channel * plane + i, _mm_movelh_ps(low, high));
        }
    }
    for (; i < n; i++)
        for (size_t channel = 0; channel < 3; channel++)
            out[channel * plane + i] = table[channel][in[3 * i + channel]];
}

#endif
