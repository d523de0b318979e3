/* Operations for the templates whose intrinsics differ by width: AVX2. */
#ifndef FM_TRANSFORM_X86_VECTOR_AVX2_H
#define FM_TRANSFORM_X86_VECTOR_AVX2_H

#include "transform/x86/target.h"

FM_AVX2_INLINE __m256i fm_load_avx2(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

FM_AVX2_INLINE void fm_store_avx2(void *at, __m256i value) {
    _mm256_storeu_si256((__m256i *)at, value);
}

FM_AVX2_INLINE __m256i fm_zero_avx2(void) { return _mm256_setzero_si256(); }

FM_AVX2_INLINE __m256i fm_xor_avx2(__m256i a, __m256i b) { return _mm256_xor_si256(a, b); }

/* Loads 16 bytes into each half of a register. */
FM_AVX2_INLINE __m256i fm_load_halves_avx2(const void *first, const void *second) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first)),
                                   _mm_loadu_si128((const __m128i *)second), 1);
}

/* Stores the first half first, as the second may overlap its end. */
FM_AVX2_INLINE void fm_store_halves_avx2(void *first, void *second, __m256i value) {
    _mm_storeu_si128((__m128i *)first, _mm256_castsi256_si128(value));
    _mm_storeu_si128((__m128i *)second, _mm256_extracti128_si256(value, 1));
}

/* Stores the lowest 4 bytes of each half. */
FM_AVX2_INLINE void fm_store_dwords_avx2(void *first, void *second, __m256i value) {
    _mm_storeu_si32(first, _mm256_castsi256_si128(value));
    _mm_storeu_si32(second, _mm256_extracti128_si256(value, 1));
}

/* Repeats 16 bytes in each half. */
FM_AVX2_INLINE __m256i fm_both_halves_avx2(__m128i half) {
    return _mm256_broadcastsi128_si256(half);
}

#endif
