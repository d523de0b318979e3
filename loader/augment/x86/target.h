/* The declarations of the x86 kernels of augment/. */
#ifndef FM_AUGMENT_X86_TARGET_H
#define FM_AUGMENT_X86_TARGET_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* A target attribute, as in transform/x86/target.h: a compiler flag for the whole file would let
 * the compiler use the instruction set in code that runs on every CPU. */
#define FM_FOR_SSE41 __attribute__((target("sse4.1")))
#define FM_FOR_AVX2 __attribute__((target("avx2")))
#define FM_FOR_AVX2_FMA __attribute__((target("avx2,fma")))
#define FM_FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))

#define FM_AUGMENT_AVX2 static inline FM_FOR_AVX2 __attribute__((always_inline))
#define FM_AUGMENT_AVX512 static inline FM_FOR_AVX512 __attribute__((always_inline))

#endif
