#define _GNU_SOURCE
#include "augment/mix.h"

#include <string.h>

#if defined(__x86_64__)
#include "augment/x86/target.h"
#endif

#define BODY static inline __attribute__((always_inline))

/* From this number on, float32 has the integers only: to add it rounds, halves to the even integer,
 * whose last byte is then the last one of the sum's bits. */
#define INTEGERS 8388608.0f

BODY void mix_body(uint8_t *out, const uint8_t *one, const uint8_t *other, size_t n, float weight,
                   float other_weight) {
    for (size_t i = 0; i < n; i++) {
        const float sum = (float)one[i] * weight + (float)other[i] * other_weight + INTEGERS;
        uint32_t bits;
        memcpy(&bits, &sum, sizeof(bits));
        out[i] = (uint8_t)bits;
    }
}

#define KERNEL(tier, attribute)                                                              \
    attribute static void mix_##tier(uint8_t *out, const uint8_t *one, const uint8_t *other, \
                                     size_t n, float weight, float other_weight) {           \
        mix_body(out, one, other, n, weight, other_weight);                                  \
    }

/* Compilers vectorize the loop, with NEON as well. */
KERNEL(scalar, )
#if defined(__x86_64__)
KERNEL(sse41, FM_FOR_SSE41)
KERNEL(avx2, FM_FOR_AVX2)
#endif

fm_mix_kernel fm_mix_kernel_of(fm_cpu_tier tier) {
#if defined(__x86_64__)
    if (tier >= FM_CPU_AVX2) return mix_avx2;
    if (tier >= FM_CPU_SSE41) return mix_sse41;
#else
    (void)tier;
#endif
    return mix_scalar;
}
