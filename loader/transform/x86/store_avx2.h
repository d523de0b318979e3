/* The float32 store in AVX2 and FMA: arithmetic in place of the table. */
#ifndef FM_TRANSFORM_X86_STORE_AVX2_H
#define FM_TRANSFORM_X86_STORE_AVX2_H

#include "transform/kernels.h"
#include "transform/x86/target.h"

/*
 * Eight values of one channel. 1/255 and 1/std are sums of two floats, the second the first one's
 * rounding error, so that a product has its right rounding but for rare cases; fm_steps_find() has
 * compared all results with the table.
 */
FM_AVX2_INLINE __m256 fm_steps_value_avx2(__m256i bytes, const fm_steps *steps, size_t channel) {
    const __m256 x = _mm256_cvtepi32_ps(bytes);
    const __m256 part = _mm256_mul_ps(x, _mm256_set1_ps(FM_STEPS_255TH_LOW));
    const __m256 share = _mm256_fmadd_ps(x, _mm256_set1_ps(FM_STEPS_255TH_HIGH), part);
    const __m256 from_mean = _mm256_sub_ps(share, _mm256_set1_ps(steps->mean[channel]));
    const __m256 rest = _mm256_mul_ps(from_mean, _mm256_set1_ps(steps->scale_low[channel]));
    return _mm256_fmadd_ps(from_mean, _mm256_set1_ps(steps->scale_high[channel]), rest);
}

/* Eight pixels from 28 bytes: those behind the 24 are in the slack. */
FM_AVX2_INLINE void fm_steps_px_avx2(float *const *to, const uint8_t *in, const fm_steps *steps) {
    const __m256i px =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)in)),
                                _mm_loadu_si128((const __m128i *)(in + 12)), 1);
    const __m256i red = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, -1, -1, 3, -1, -1, -1, 6, -1, -1, -1, 9, -1, -1, -1));
    const __m256i green = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, -1, -1, -1, 4, -1, -1, -1, 7, -1, -1, -1, 10, -1, -1, -1));
    const __m256i blue = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, -1, -1, -1, 5, -1, -1, -1, 8, -1, -1, -1, 11, -1, -1, -1));
    _mm256_storeu_ps(to[0], fm_steps_value_avx2(_mm256_shuffle_epi8(px, red), steps, 0));
    _mm256_storeu_ps(to[1], fm_steps_value_avx2(_mm256_shuffle_epi8(px, green), steps, 1));
    _mm256_storeu_ps(to[2], fm_steps_value_avx2(_mm256_shuffle_epi8(px, blue), steps, 2));
}

/* The last eight pixels may overlap those before them; fewer go through a buffer. */
FM_AVX2 void fm_store_steps_avx2(float *out, size_t plane, const uint8_t *in, int32_t n_px,
                                 const fm_steps *steps) {
    const fm_steps kept = *steps; /* which the stores to `out` can't change */
    const size_t n = (size_t)n_px;
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        float *const to[3] = {out + at, out + plane + at, out + 2 * plane + at};
        fm_steps_px_avx2(to, in + 3 * at, &kept);
    }
    if (n >= 8) return;
    float values[3][8];
    float *const to[3] = {values[0], values[1], values[2]};
    fm_steps_px_avx2(to, in, &kept);
    for (size_t channel = 0; channel < 3; channel++)
        for (size_t i = 0; i < n; i++) out[channel * plane + i] = values[channel][i];
}

#endif
