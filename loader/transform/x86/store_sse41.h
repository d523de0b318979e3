/* Stores in SSE4.1: uint8 planes, values from the table, and copies that bypass the cache. */
#ifndef FM_TRANSFORM_X86_STORE_SSE41_H
#define FM_TRANSFORM_X86_STORE_SSE41_H

#include <string.h>

#include "transform/store.h"
#include "transform/x86/target.h"

/* Splits 16 pixels into three registers, one per channel. */
FM_SSE41_INLINE void fm_split_px_sse41(__m128i *channels, const uint8_t *in) {
    /* Shuffles by channel and third of the 48 bytes. */
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

/* The last 16 pixels may overlap the ones before, as stores must not write further. */
FM_SSE41 void fm_planar_u8_sse41(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    const size_t n = (size_t)n_px, plane = store->plane;
    uint8_t *const to = out;
    for (size_t i = 0; n >= 16 && i < n; i += 16) {
        const size_t at = i + 16 <= n ? i : n - 16;
        __m128i channels[3];
        fm_split_px_sse41(channels, in + 3 * at);
        for (size_t channel = 0; channel < 3; channel++)
            _mm_storeu_si128((__m128i *)(to + channel * plane + at), channels[channel]);
    }
    for (size_t i = 0; n < 16 && i < n; i++)
        for (size_t channel = 0; channel < 3; channel++)
            to[channel * plane + i] = in[3 * i + channel];
}

/* ---- values from the table ------------------------------------------------------------------- */

/* Joins four entries. */
FM_SSE41_INLINE __m128i fm_four_sse41(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const __m128i low = _mm_unpacklo_epi32(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b));
    const __m128i high = _mm_unpacklo_epi32(_mm_cvtsi32_si128((int)c), _mm_cvtsi32_si128((int)d));
    return _mm_unpacklo_epi64(low, high);
}

/* Four pixels' entries of one channel; `px` points to its first byte. */
FM_SSE41_INLINE __m128i fm_four_px_sse41(const uint32_t *bits, const uint8_t *px) {
    return fm_four_sse41(bits[px[0]], bits[px[3]], bits[px[6]], bits[px[9]]);
}

FM_SSE41 void fm_planar_f32_sse41(const fm_store *store, void *out, const uint8_t *in,
                                  int32_t n_px) {
    const uint32_t(*const bits)[256] = store->plan->bits;
    const size_t n = (size_t)n_px, plane = store->plane;
    float *const to = out;
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (size_t channel = 0; channel < 3; channel++)
            _mm_storeu_si128((__m128i *)(to + channel * plane + i),
                             fm_four_px_sse41(bits[channel], in + 3 * i + channel));
    for (; i < n; i++)
        for (size_t channel = 0; channel < 3; channel++)
            to[channel * plane + i] = store->plan->table[channel][in[3 * i + channel]];
}

FM_SSE41 void fm_planar_16_sse41(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    const uint32_t(*const bits)[256] = store->plan->bits;
    const size_t n = (size_t)n_px, plane = store->plane;
    uint16_t *const to = out;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (size_t channel = 0; channel < 3; channel++) {
            const uint8_t *const px = in + 3 * i + channel;
            _mm_storeu_si128((__m128i *)(to + channel * plane + i),
                             _mm_packus_epi32(fm_four_px_sse41(bits[channel], px),
                                              fm_four_px_sse41(bits[channel], px + 12)));
        }
    }
    for (; i < n; i++)
        for (size_t channel = 0; channel < 3; channel++)
            to[channel * plane + i] = (uint16_t)bits[channel][in[3 * i + channel]];
}

/* The twelve values of four pixels. */
FM_SSE41_INLINE void fm_twelve_sse41(__m128i *values, const uint32_t (*bits)[256],
                                     const uint8_t *px) {
    const uint32_t *const red = bits[0], *const green = bits[1], *const blue = bits[2];
    values[0] = fm_four_sse41(red[px[0]], green[px[1]], blue[px[2]], red[px[3]]);
    values[1] = fm_four_sse41(green[px[4]], blue[px[5]], red[px[6]], green[px[7]]);
    values[2] = fm_four_sse41(blue[px[8]], red[px[9]], green[px[10]], blue[px[11]]);
}

FM_SSE41 void fm_packed_f32_sse41(const fm_store *store, void *out, const uint8_t *in,
                                  int32_t n_px) {
    const size_t n = 3 * (size_t)n_px;
    float *const to = out;
    size_t i = 0;
    for (; i + 12 <= n; i += 12) {
        __m128i values[3];
        fm_twelve_sse41(values, store->plan->bits, in + i);
        for (size_t k = 0; k < 3; k++) _mm_storeu_si128((__m128i *)(to + i + 4 * k), values[k]);
    }
    for (; i < n; i += 3)
        for (size_t channel = 0; channel < 3; channel++)
            to[i + channel] = store->plan->table[channel][in[i + channel]];
}

FM_SSE41 void fm_packed_16_sse41(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    const uint32_t(*const bits)[256] = store->plan->bits;
    const size_t n = 3 * (size_t)n_px;
    uint16_t *const to = out;
    size_t i = 0;
    for (; i + 24 <= n; i += 24) {
        __m128i values[6];
        fm_twelve_sse41(values, bits, in + i);
        fm_twelve_sse41(values + 3, bits, in + i + 12);
        for (size_t k = 0; k < 3; k++)
            _mm_storeu_si128((__m128i *)(to + i + 8 * k),
                             _mm_packus_epi32(values[2 * k], values[2 * k + 1]));
    }
    for (; i < n; i += 3)
        for (size_t channel = 0; channel < 3; channel++)
            to[i + channel] = (uint16_t)bits[channel][in[i + channel]];
}

/* ---- copies that bypass the cache ------------------------------------------------------------ */

/* Whole cache lines are written with streaming stores: a line that need not be read before it is
 * written costs a third less memory traffic. The bytes before and after them are copied as usual.
 */
FM_SSE41 void fm_copy_sse41(void *out, const void *in, size_t n) {
    uint8_t *to = out;
    const uint8_t *from = in;
    const size_t before = (64 - (uintptr_t)to % 64) % 64;
    if (n < before + 64) {
        memcpy(to, from, n);
        return;
    }
    memcpy(to, from, before);
    size_t i = before;
    for (; i + 64 <= n; i += 64) {
        __m128i line[4];
        for (int k = 0; k < 4; k++) line[k] = _mm_loadu_si128((const __m128i *)(from + i) + k);
        for (int k = 0; k < 4; k++) _mm_stream_si128((__m128i *)(to + i) + k, line[k]);
    }
    memcpy(to + i, from + i, n - i);
    _mm_sfence();
}

#endif
