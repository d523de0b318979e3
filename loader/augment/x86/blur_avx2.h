/* The blur's kernel by AVX2, 32 bytes at a time, for blur.c, whose row_scalar() defines the result.
 */
#ifndef FM_AUGMENT_X86_BLUR_AVX2_H
#define FM_AUGMENT_X86_BLUR_AVX2_H

#include "augment/x86/target.h"

/* Adds 32 bytes to 16-bit sums. As in all of this file, `low` and `high` hold the lower and the
 * upper eight bytes of each half. */
FM_AUGMENT_AVX2 void fm_blur_add_avx2(__m256i *low, __m256i *high, const uint8_t *in) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)in);
    *low = _mm256_add_epi16(*low, _mm256_unpacklo_epi8(bytes, zero));
    *high = _mm256_add_epi16(*high, _mm256_unpackhi_epi8(bytes, zero));
}

/*
 * The weighted sums of eight pairs (sum, far), rounded. A weight is up to 2^24, and is split into
 * two numbers of at most 2^12, as the instruction multiplies signed 16-bit numbers: weights[0]
 * has the upper bits, weights[1] the lower ones. Sums are below 2^15.
 */
FM_AUGMENT_AVX2 __m256i fm_blur_weigh_avx2(__m256i pairs, const __m256i weights[2]) {
    const __m256i upper = _mm256_slli_epi32(_mm256_madd_epi16(pairs, weights[0]), 12);
    const __m256i lower = _mm256_madd_epi16(pairs, weights[1]);
    const __m256i half = _mm256_set1_epi32(1 << 23);
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(upper, lower), half), 24);
}

FM_AUGMENT_AVX2 __m256i fm_blur_mix_avx2(__m256i sum, __m256i far, const __m256i weights[2]) {
    return _mm256_packus_epi32(fm_blur_weigh_avx2(_mm256_unpacklo_epi16(sum, far), weights),
                               fm_blur_weigh_avx2(_mm256_unpackhi_epi16(sum, far), weights));
}

FM_AUGMENT_AVX2 void fm_blur_32_avx2(uint8_t *out, const uint8_t *const *taps, int n_taps,
                                     size_t at, const __m256i weights[2]) {
    __m256i low = _mm256_setzero_si256(), high = low, far_low = low, far_high = low;
    for (int tap = 1; tap < n_taps - 1; tap++) fm_blur_add_avx2(&low, &high, taps[tap] + at);
    fm_blur_add_avx2(&far_low, &far_high, taps[0] + at);
    fm_blur_add_avx2(&far_low, &far_high, taps[n_taps - 1] + at);
    const __m256i mixed = _mm256_packus_epi16(fm_blur_mix_avx2(low, far_low, weights),
                                              fm_blur_mix_avx2(high, far_high, weights));
    _mm256_storeu_si256((__m256i *)(out + at), mixed);
}

/* A row of n bytes, at least 32. */
FM_AUGMENT_AVX2 void fm_blur_row_avx2(uint8_t *out, const uint8_t *const *taps, int n_taps,
                                      size_t n, uint32_t weight, uint32_t far_weight) {
    const __m256i weights[2] = {
        _mm256_set1_epi32((int)(weight >> 12 | far_weight >> 12 << 16)),
        _mm256_set1_epi32((int)((weight & 0xFFF) | (far_weight & 0xFFF) << 16))};
    size_t at = 0;
    for (; at + 32 <= n; at += 32) fm_blur_32_avx2(out, taps, n_taps, at, weights);
    if (at < n) fm_blur_32_avx2(out, taps, n_taps, n - 32, weights);
}

#endif
