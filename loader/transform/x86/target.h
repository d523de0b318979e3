/* How the x86 kernels are declared, and the shape that their weights take. */
#ifndef FM_TRANSFORM_X86_TARGET_H
#define FM_TRANSFORM_X86_TARGET_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Functions carry their instruction set themselves: a flag for the whole file would let the
 * compiler use it in code that runs everywhere. A helper of the same set is inlined.
 */
#define FM_SSE41 static inline __attribute__((target("sse4.1"), unused))
#define FM_AVX2 static inline __attribute__((target("avx2,fma"), unused))
#define FM_SSE41_INLINE FM_SSE41 __attribute__((always_inline))
#define FM_AVX2_INLINE FM_AVX2 __attribute__((always_inline))

/*
 * Products of a byte and a weight in 16-bit multiplications: a weight w, 0 to 2^22, is taken four
 * times, so that the result stands in a sum's highest byte, and split,
 *
 *     4 * w = high * 2^12 + low,   high = w >> 10 (at most 4,096),   low = (w & 1023) * 4.
 *
 * pmaddwd multiplies two taps at a time. Both sums stay below 2^31 where no
 * clip is due, and 2^12 * (sum of high) + (sum of low) + half is exact modulo 2^32.
 */
#define FM_SPLIT_SHIFT 12
#define FM_SPLIT_HALF (1 << 23)
#define FM_SPLIT_LOW 1023

/* Two taps' halves as pmaddwd wants them. */
static inline int32_t fm_split_high(int32_t first, int32_t second) {
    return first >> 10 | (second >> 10) << 16;
}

static inline int32_t fm_split_low(int32_t first, int32_t second) {
    return (first & FM_SPLIT_LOW) << 2 | (second & FM_SPLIT_LOW) << 18;
}

/* Four weights: high halves in words 0 to 3, low ones in words 4 to 7. */
FM_SSE41_INLINE __m128i fm_split4_sse41(const int32_t *weights) {
    const __m128i four = _mm_loadu_si128((const __m128i *)weights);
    const __m128i low = _mm_slli_epi32(_mm_and_si128(four, _mm_set1_epi32(FM_SPLIT_LOW)), 2);
    return _mm_packus_epi32(_mm_srli_epi32(four, 10), low);
}

#endif
