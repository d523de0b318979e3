/*
 * Finds the segments of a JPEG's entropy-coded data, between restart markers, and copies them
 * without stuffed zeros. Private to the Huffman decoders.
 */
#ifndef FM_DECODE_JPEG_SEGMENTS_H
#define FM_DECODE_JPEG_SEGMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* How far fm_jpeg_unstuff() may write beyond its limit. */
#define FM_JPEG_UNSTUFF_SLACK 16

/*
 * Copies about `capacity` bytes from *source to `out`, up to a marker or `source_end`, without the
 * zero that is stuffed after each FF. Returns the end of the copy; writes at most capacity +
 * FM_JPEG_UNSTUFF_SLACK bytes. Moves *source, and sets *is_whole if it has reached a marker or the
 * end.
 */
static inline uint8_t *fm_jpeg_unstuff(const uint8_t **source, const uint8_t *source_end,
                                       uint8_t *out, size_t capacity, bool *is_whole) {
    const uint8_t *from = *source;
    uint8_t *const out_end = out + capacity;
    while (out < out_end) {
#if defined(__SSE2__)
        const __m128i ones = _mm_set1_epi8(-1);
        while (out < out_end && source_end - from >= 16) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)from);
            _mm_storeu_si128((__m128i *)out, bytes);
            const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, ones));
            const int n = found ? __builtin_ctz((unsigned)found) : 16;
            from += n;
            out += n;
            if (found) break;
        }
        if (out >= out_end) break;
#endif
        if (from == source_end) {
            *is_whole = true;
            break;
        }
        if (*from == 0xFF) {
            if (source_end - from < 2 || from[1] != 0) {
                *is_whole = true;
                break;
            }
            *out++ = 0xFF;
            from += 2;
            continue;
        }
        *out++ = *from++;
    }
    *source = from;
    return out;
}

/* How many bytes from p to `end` are FF. Sums of 8 bits, which compilers vectorize. */
static inline size_t fm_jpeg_count_ff(const uint8_t *p, const uint8_t *end) {
    enum { BLOCK = 64 };
    size_t n = 0;
    for (; end - p >= BLOCK; p += BLOCK) {
        uint8_t n_of_block = 0;
        for (int i = 0; i < BLOCK; i++) n_of_block = (uint8_t)(n_of_block + (p[i] == 0xFF));
        n += n_of_block;
    }
    for (; p < end; p++) n += *p == 0xFF;
    return n;
}

/* The n-th restart marker from p on, n at least 1; NULL if there are fewer. */
static inline const uint8_t *fm_jpeg_find_restart(const uint8_t *p, const uint8_t *end,
                                                  uint32_t n) {
#if defined(__SSE2__)
    const __m128i ones = _mm_set1_epi8(-1), kind = _mm_set1_epi8((char)0xF8);
    const __m128i restarts = _mm_set1_epi8((char)0xD0);
    for (; end - p > 16; p += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        const __m128i behind = _mm_loadu_si128((const __m128i *)(p + 1));
        const __m128i found = _mm_and_si128(_mm_cmpeq_epi8(bytes, ones),
                                            _mm_cmpeq_epi8(_mm_and_si128(behind, kind), restarts));
        for (int mask = _mm_movemask_epi8(found); mask; mask &= mask - 1)
            if (--n == 0) return p + __builtin_ctz((unsigned)mask);
    }
#endif
    for (; end - p >= 2; p++)
        if (p[0] == 0xFF && (p[1] & 0xF8) == 0xD0 && --n == 0) return p;
    return NULL;
}

#endif
