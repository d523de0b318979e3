/*
 * The instruction sets of the x86 kernels of decode/, as in transform/x86/target.h: a compiler flag
 * for the whole file would let the compiler use the set in code that runs on every CPU.
 *
 * The kernels of both sets are compiled from templates, which see a set through these macros:
 *
 *     V            a register            FM_NAME(name)   the name of a function of this set
 *     MM(name)     an intrinsic          FM_SET          declares a function
 *     VBYTES       bytes of a register   FM_SET_INLINE   declares one that is inlined
 */
#ifndef FM_DECODE_X86_TARGET_H
#define FM_DECODE_X86_TARGET_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decode/jpeg_kernels.h"

#ifndef FM_TARGET
#define FM_TARGET(set) __attribute__((target(set), unused))
#endif
#define FM_DECODE_SSE41 static inline FM_TARGET("sse4.1")
#define FM_DECODE_AVX2 static inline FM_TARGET("avx2")
#define FM_DECODE_SSE41_COLD static FM_TARGET("sse4.1") __attribute__((noinline, cold))
#define FM_DECODE_AVX2_COLD static FM_TARGET("avx2") __attribute__((noinline, cold))
#define FM_DECODE_SSE41_INLINE FM_DECODE_SSE41 __attribute__((always_inline))
#define FM_DECODE_AVX2_INLINE FM_DECODE_AVX2 __attribute__((always_inline))

#endif
