/* The declarations of the x86 kernels, and how they split weights. */
#ifndef FM_TRANSFORM_X86_TARGET_H
#define FM_TRANSFORM_X86_TARGET_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transform/coeffs.h"

/*
 * Each function has a target attribute: a compiler flag for the whole file would let the compiler
 * use the instruction set in code that runs on every CPU. Helpers of the same set are inlined. A
 * test that emulates the intrinsics defines FM_TARGET itself.
 */
#ifndef FM_TARGET
#define FM_TARGET(set) __attribute__((target(set), unused))
#endif
#define FM_SSE41 static inline FM_TARGET("sse4.1")
#define FM_AVX2 static inline FM_TARGET("avx2,fma,f16c")
#define FM_AVX512            \
    static inline FM_TARGET( \
        "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")
#define FM_SSE41_INLINE FM_SSE41 __attribute__((always_inline))
#define FM_AVX2_INLINE FM_AVX2 __attribute__((always_inline))
#define FM_AVX512_INLINE FM_AVX512 __attribute__((always_inline))

/*
 * Multiplying a byte and a weight with 16-bit multiplications: a weight is split,
 *
 *     weight = high * 2^10 + low,   low = weight & 1023,
 *
 * where `high` fits 16 signed bits for weights from -2^25 to 2^25 - 1; filters with negative
 * weights have -2^22 to 1.5 * 2^22. pmaddwd multiplies two taps at a time and never saturates here.
 * Sums are modulo 2^32, as in the scalar kernels, so that 2^10 * (sum of high) + (sum of low) +
 * half equals theirs even if partial sums overflow. After an arithmetic shift by 22 the value lies
 * between -512 and 511; the saturating packs to 16 bits and to bytes clip it to 0 to 255.
 */
#define FM_SPLIT_SHIFT 10
#define FM_SPLIT_LOW ((1 << FM_SPLIT_SHIFT) - 1)
#define FM_SPLIT_HALF (1 << (FM_COEFFS_BITS - 1))

/* The halves of two taps' weights, as pmaddwd needs them. */
static inline int32_t fm_split_high(int32_t first, int32_t second) {
    return (int32_t)((uint32_t)(first >> FM_SPLIT_SHIFT) & 0xffff) |
           (int32_t)((uint32_t)(second >> FM_SPLIT_SHIFT) << 16);
}

static inline int32_t fm_split_low(int32_t first, int32_t second) {
    return (first & FM_SPLIT_LOW) | (second & FM_SPLIT_LOW) << 16;
}

/*
 * AVX-512's vpdpbusd adds up the products of four bytes and four signed bytes in each double word.
 * A weight is split into three signed digits in base 256,
 *
 *     weight = d2 * 2^16 + d1 * 2^8 + d0,   each from -128 to 127,
 *
 * for weights from -2^23 to 2^23 - 2^16. Adding 0x8080 carries into the next digit if one is 128 or
 * more; the exclusive or restores the digits' signs. Sums are modulo 2^32 again, and half a unit,
 * 2^21, is 32 in the highest digit's sum.
 */
#define FM_DIGIT_HALF (FM_SPLIT_HALF >> 16)

/* Four weights' highest digits in double word 0, middle ones in 1, lowest ones in 2. */
FM_AVX512_INLINE __m128i fm_digits4(__m128i weights) {
    const __m128i carry = _mm_set1_epi32(0x8080);
    return _mm_shuffle_epi8(_mm_xor_si128(_mm_add_epi32(weights, carry), carry),
                            _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1));
}

/* Joins the digits' sums, highest first, to values that are not clipped yet. */
FM_AVX512_INLINE __m512i fm_join_digits(const __m512i *sums) {
    const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(sums[0], 8), sums[1]);
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(upper, 8), sums[2]);
    return _mm512_srai_epi32(sum, FM_COEFFS_BITS);
}

#endif
