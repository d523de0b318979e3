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
 * Products of a byte and a weight in 16-bit multiplications: a weight is split,
 *
 *     weight = high * 2^10 + low,   low = weight & 1023,
 *
 * where high fits 16 bits, with its sign, for weights from -2^25 to 2^25 - 1; filters with negative
 * weights have -2^22 to 1.5 * 2^22. pmaddwd multiplies two taps at a time and never saturates here.
 * Sums are taken modulo 2^32, as the scalar kernels take them, so that 2^10 * (sum of high) + (sum
 * of low) + half equals theirs, whatever the parts do. What an arithmetic shift by 22 leaves lies
 * between -512 and 511; the saturating packs to 16 bits and to bytes are the clip at 0 and 255.
 */
#define FM_SPLIT_SHIFT 10
#define FM_SPLIT_LOW ((1 << FM_SPLIT_SHIFT) - 1)
#define FM_SPLIT_HALF (1 << (FM_COEFFS_BITS - 1))

/* Two taps' halves as pmaddwd wants them. */
static inline int32_t fm_split_high(int32_t first, int32_t second) {
    return (int32_t)((uint32_t)(first >> FM_SPLIT_SHIFT) & 0xffff) |
           (int32_t)((uint32_t)(second >> FM_SPLIT_SHIFT) << 16);
}

static inline int32_t fm_split_low(int32_t first, int32_t second) {
    return (first & FM_SPLIT_LOW) | (second & FM_SPLIT_LOW) << 16;
}

#endif
