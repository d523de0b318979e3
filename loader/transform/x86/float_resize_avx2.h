/* The resize of float32 images in AVX2. Only float_resize.c includes it. */
#ifndef FM_TRANSFORM_X86_FLOAT_RESIZE_AVX2_H
#define FM_TRANSFORM_X86_FLOAT_RESIZE_AVX2_H

#include "transform/float_resize.h"
#include "transform/x86/target.h"

FM_AVX2 void fm_float_columns_avx2(float *out, const float *in, const fm_coeffs *coeffs,
                                   int32_t run_taps) {
    for (int32_t i = 0; i < coeffs->n; i++) {
        const float *const px = in + 4 * (size_t)coeffs->first[i];
        const float *const weights = coeffs->floats + (size_t)i * (size_t)coeffs->stride;
        const size_t n_taps = (size_t)coeffs->n_taps[i];
        const size_t n_unfused = (size_t)fm_float_unfused(coeffs->n_taps[i], run_taps);
        __m128 sum = _mm_mul_ps(_mm_loadu_ps(px), _mm_set1_ps(weights[0]));
        size_t t = 1;
        for (; t < n_unfused; t++)
            sum = _mm_add_ps(sum, _mm_mul_ps(_mm_loadu_ps(px + 4 * t), _mm_set1_ps(weights[t])));
        for (; t < n_taps; t++)
            sum = _mm_fmadd_ps(_mm_loadu_ps(px + 4 * t), _mm_set1_ps(weights[t]), sum);
        _mm_storeu_ps(out + 4 * (size_t)i, sum);
    }
}

FM_AVX2 void fm_float_rows_avx2(float *out, const float *const *in, const fm_coeffs *coeffs,
                                int32_t i, int32_t run_taps, size_t n_floats) {
    const float *const weights = coeffs->floats + (size_t)i * (size_t)coeffs->stride;
    const int32_t n_taps = coeffs->n_taps[i], n_unfused = fm_float_unfused(n_taps, run_taps);
    for (size_t j = 0; j < n_floats; j += 8) {
        __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(in[0] + j), _mm256_set1_ps(weights[0]));
        int32_t t = 1;
        for (; t < n_unfused; t++)
            sum = _mm256_add_ps(
                sum, _mm256_mul_ps(_mm256_loadu_ps(in[t] + j), _mm256_set1_ps(weights[t])));
        for (; t < n_taps; t++)
            sum = _mm256_fmadd_ps(_mm256_loadu_ps(in[t] + j), _mm256_set1_ps(weights[t]), sum);
        _mm256_storeu_ps(out + j, sum);
    }
}

#endif
