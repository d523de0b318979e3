/* Blends by AVX2, for color.c, whose bodies define the results. Float operations are in the same
 * order as there, and none is fused. */
#ifndef FM_AUGMENT_X86_COLOR_AVX2_H
#define FM_AUGMENT_X86_COLOR_AVX2_H

#include "augment/x86/target.h"

/* The next eight bytes as floats. */
FM_AUGMENT_AVX2 __m256 fm_color_floats_avx2(const uint8_t *bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
}

/* mix() of eight values, clipped and truncated to 32-bit numbers. */
FM_AUGMENT_AVX2 __m256i fm_color_mix_avx2(__m256 base, __m256 value, __m256 factor) {
    const __m256 mixed = _mm256_add_ps(base, _mm256_mul_ps(factor, _mm256_sub_ps(value, base)));
    const __m256 most = _mm256_set1_ps(255.0f);
    return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(mixed, _mm256_setzero_ps()), most));
}

/* 32 values as bytes. The packs work on halves of registers, so that four bytes each have to be put
 * in order at the end. */
FM_AUGMENT_AVX2 __m256i fm_color_bytes_avx2(const __m256i values[4]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(values[0], values[1]),
                                              _mm256_packus_epi32(values[2], values[3]));
    return _mm256_permutevar8x32_epi32(bytes, order);
}

FM_AUGMENT_AVX2 void fm_color_store_avx2(uint8_t *out, const __m256i values[4]) {
    _mm256_storeu_si256((__m256i *)out, fm_color_bytes_avx2(values));
}

/* Blends 32 bytes at a time. Returns how many of the n bytes it did; fewer than 32 are left. */
FM_AUGMENT_AVX2 size_t fm_color_blend_avx2(uint8_t *px, const uint8_t *base, size_t n,
                                           float factor) {
    const __m256 factors = _mm256_set1_ps(factor);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i values[4];
        for (size_t k = 0; k < 4; k++)
            values[k] = fm_color_mix_avx2(fm_color_floats_avx2(base + i + 8 * k),
                                          fm_color_floats_avx2(px + i + 8 * k), factors);
        fm_color_store_avx2(px + i, values);
    }
    return i;
}

/* The same with one base for all bytes. */
FM_AUGMENT_AVX2 size_t fm_color_fade_avx2(uint8_t *px, size_t n, float base, float factor) {
    const __m256 factors = _mm256_set1_ps(factor), bases = _mm256_set1_ps(base);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i values[4];
        for (size_t k = 0; k < 4; k++)
            values[k] = fm_color_mix_avx2(bases, fm_color_floats_avx2(px + i + 8 * k), factors);
        fm_color_store_avx2(px + i, values);
    }
    return i;
}

#endif
