/*
 * Names for the templates, which are compiled once per register width: FM_WIDTH is 16 bytes for
 * SSE4.1 or 32 for AVX2. Without include guard, as each inclusion redefines the names.
 *
 *     fm_vector       a register
 *     FM_W(name)      the name with the suffix of the instruction set
 *     FM_OP(name)     an intrinsic, without its prefix
 *     FM_FN(_INLINE)  the declaration of a function (a helper)
 */
#include "transform/x86/target.h"

#ifndef FM_WIDTH
#define FM_WIDTH 16
#endif
#undef fm_vector
#undef FM_W
#undef FM_OP
#undef FM_FN
#undef FM_FN_INLINE

#if FM_WIDTH == 16
#define fm_vector __m128i
#define FM_W(name) name##_sse41
#define FM_OP(name) _mm_##name
#define FM_FN FM_SSE41
#define FM_FN_INLINE FM_SSE41_INLINE
#else
#define fm_vector __m256i
#define FM_W(name) name##_avx2
#define FM_OP(name) _mm256_##name
#define FM_FN FM_AVX2
#define FM_FN_INLINE FM_AVX2_INLINE
#endif
