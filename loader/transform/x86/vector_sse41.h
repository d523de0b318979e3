/* Operations for the templates whose intrinsics differ by width: SSE4.1. */
#ifndef FM_TRANSFORM_X86_VECTOR_SSE41_H
#define FM_TRANSFORM_X86_VECTOR_SSE41_H

#include "transform/x86/target.h"

FM_SSE41_INLINE __m128i fm_load_sse41(const void *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

FM_SSE41_INLINE void fm_store_sse41(void *at, __m128i value) {
    _mm_storeu_si128((__m128i *)at, value);
}

FM_SSE41_INLINE __m128i fm_zero_sse41(void) { return _mm_setzero_si128(); }

FM_SSE41_INLINE __m128i fm_xor_sse41(__m128i a, __m128i b) { return _mm_xor_si128(a, b); }

/* Loads 16 bytes into each half of a register. An SSE register only has the first half. */
FM_SSE41_INLINE __m128i fm_load_halves_sse41(const void *first, const void *second) {
    (void)second;
    return fm_load_sse41(first);
}

FM_SSE41_INLINE void fm_store_halves_sse41(void *first, void *second, __m128i value) {
    (void)second;
    fm_store_sse41(first, value);
}

/* Stores the lowest 4 bytes of each half. */
FM_SSE41_INLINE void fm_store_dwords_sse41(void *first, void *second, __m128i value) {
    (void)second;
    _mm_storeu_si32(first, value);
}

/* Repeats 16 bytes in each half. */
FM_SSE41_INLINE __m128i fm_both_halves_sse41(__m128i half) { return half; }

#endif
