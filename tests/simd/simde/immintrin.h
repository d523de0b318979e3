/*
 * In place of the compiler's header, for a build whose kernels run on any CPU: SIMDe's portable
 * versions of the intrinsics, and functions without a target. Found first on the include path.
 */
#ifndef FM_TESTS_SIMD_SIMDE_IMMINTRIN_H
#define FM_TESTS_SIMD_SIMDE_IMMINTRIN_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wshadow"
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#pragma GCC diagnostic pop

#define FM_TARGET(set) __attribute__((unused))

/* Intrinsics that SIMDe 0.7 lacks. */
#ifndef _mm512_srai_epi32
static inline __attribute__((unused)) __m512i fm_srai_epi32(__m512i value, unsigned n_bits) {
    simde__m512i_private lanes = simde__m512i_to_private(value);
    for (int i = 0; i < 16; i++) lanes.i32[i] >>= n_bits;
    return simde__m512i_from_private(lanes);
}
#define _mm512_srai_epi32 fm_srai_epi32
#endif

#ifndef _mm512_cvtusepi32_epi8
static inline __attribute__((unused)) __m128i fm_cvtusepi32_epi8(__m512i value) {
    const simde__m512i_private lanes = simde__m512i_to_private(value);
    simde__m128i_private bytes;
    for (int i = 0; i < 16; i++) bytes.u8[i] = (uint8_t)(lanes.u32[i] > 255 ? 255 : lanes.u32[i]);
    return simde__m128i_from_private(bytes);
}
#define _mm512_cvtusepi32_epi8 fm_cvtusepi32_epi8
#endif

#endif
