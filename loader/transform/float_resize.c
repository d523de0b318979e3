#define _GNU_SOURCE
#include "transform/float_resize.h"

#include <math.h>

#include "base/number.h"

#if defined(__x86_64__)
#include "transform/x86/float_resize_avx2.h"
#endif

/* ---- weights --------------------------------------------------------------------------------- */

/* The mixture of float and double is torch's, as each conversion rounds. */
static int32_t compute_output(float *weights, int32_t *first, int32_t i, int32_t in_size,
                              float scale) {
    const float support = scale >= 1.0f ? scale : 1.0f;
    const double inverse_scale = scale >= 1.0f ? (double)(float)(1.0 / (double)scale) : 1.0;
    const float center = (float)((double)scale * (i + 0.5));
    int32_t end = (int32_t)((double)(center + support) + 0.5);
    *first = (int32_t)((double)(center - support) + 0.5);
    if (*first < 0) *first = 0;
    if (end > in_size) end = in_size;
    const int32_t n_taps = end - *first;
    float sum = 0.0f;
    for (int32_t t = 0; t < n_taps; t++) {
        const float distance =
            fabsf((float)(((double)((float)(t + *first) - center) + 0.5) * inverse_scale));
        weights[t] = distance < 1.0f ? (float)(1.0 - (double)distance) : 0.0f;
        sum += weights[t];
    }
    for (int32_t t = 0; sum != 0.0f && t < n_taps; t++) weights[t] /= sum;
    return n_taps;
}

int fm_float_weights_compute(fm_coeffs *coeffs, int32_t in_size, int32_t out_size,
                             int32_t out_first, int32_t n_out, fm_mem_counter *counter,
                             fm_error *error) {
    const float scale = (float)in_size / (float)out_size;
    const int32_t widest = (int32_t)ceilf(scale >= 1.0f ? scale : 1.0f) * 2 + 1;
    const int status =
        fm_coeffs_reserve(coeffs, n_out, (fm_min_i32(widest, in_size) + 3) / 4 * 4, counter, error);
    if (status) return status;
    for (int32_t i = 0; i < n_out; i++) {
        coeffs->n_taps[i] = compute_output(coeffs->floats + (size_t)i * (size_t)coeffs->stride,
                                           &coeffs->first[i], out_first + i, in_size, scale);
        coeffs->max_taps = fm_max_i32(coeffs->max_taps, coeffs->n_taps[i]);
    }
    return FM_OK;
}

/* ---- scalar kernels -------------------------------------------------------------------------- */

static void columns(float *out, const float *in, const fm_coeffs *coeffs, int32_t run_taps) {
    for (int32_t i = 0; i < coeffs->n; i++, out += 4) {
        const float *px = in + 4 * (size_t)coeffs->first[i];
        const float *const weights = coeffs->floats + (size_t)i * (size_t)coeffs->stride;
        const int32_t n_taps = coeffs->n_taps[i], n_unfused = fm_float_unfused(n_taps, run_taps);
        float sum[4];
        for (int c = 0; c < 4; c++) sum[c] = px[c] * weights[0];
        int32_t t = 1;
        for (px += 4; t < n_unfused; t++, px += 4)
            for (int c = 0; c < 4; c++) sum[c] += px[c] * weights[t];
        for (; t < n_taps; t++, px += 4)
            for (int c = 0; c < 4; c++) sum[c] = fmaf(px[c], weights[t], sum[c]);
        for (int c = 0; c < 4; c++) out[c] = sum[c];
    }
}

static void rows(float *out, const float *const *in, const fm_coeffs *coeffs, int32_t i,
                 int32_t run_taps, size_t n_floats) {
    const float *const weights = coeffs->floats + (size_t)i * (size_t)coeffs->stride;
    const int32_t n_taps = coeffs->n_taps[i], n_unfused = fm_float_unfused(n_taps, run_taps);
    for (size_t j = 0; j < n_floats; j += 4) {
        float sum[4];
        for (size_t c = 0; c < 4; c++) sum[c] = in[0][j + c] * weights[0];
        int32_t t = 1;
        for (; t < n_unfused; t++)
            for (size_t c = 0; c < 4; c++) sum[c] += in[t][j + c] * weights[t];
        for (; t < n_taps; t++)
            for (size_t c = 0; c < 4; c++) sum[c] = fmaf(in[t][j + c], weights[t], sum[c]);
        for (size_t c = 0; c < 4; c++) out[j + c] = sum[c];
    }
}

void fm_float_kernels_init(fm_float_kernels *kernels, fm_cpu_tier tier) {
    *kernels = (fm_float_kernels){.columns = columns, .rows = rows};
#if defined(__x86_64__)
    if (tier >= FM_CPU_AVX2)
        *kernels = (fm_float_kernels){.columns = fm_float_columns_avx2, .rows = fm_float_rows_avx2};
#else
    (void)tier;
#endif
}
