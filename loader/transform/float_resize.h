/*
 * torch's resize of float32 images, interpolate(mode="bilinear", antialias=True): its weights and
 * the two passes, bit for bit. Source: UpSampleKernel.cpp of torch, HelperInterpBase's
 * _compute_indices_min_size_weights_aa() and interpolate_aa_single_dim().
 *
 * An output is the sum of weight * input over its taps, added in order in float32. How the products
 * are rounded depends on how torch was compiled for the CPU. The tap after the first and the
 * following ones are added in runs of run_taps: within whole runs each product is rounded, then
 * added; the fewer than run_taps taps behind them are added by fused multiply-add. With run_taps 1
 * nothing is fused, with 0 every tap but the first.
 *
 * Pixels have four floats, R G B and one that is not used. Kernels may read and write up to 16
 * bytes past a row's end. Pure functions, for any thread.
 */
#ifndef FM_TRANSFORM_FLOAT_RESIZE_H
#define FM_TRANSFORM_FLOAT_RESIZE_H

#include "base/cpu.h"
#include "transform/coeffs.h"

/* As fm_coeffs_compute(), for coeffs->floats. */
int fm_float_weights_compute(fm_coeffs *coeffs, int32_t in_size, int32_t out_size,
                             int32_t out_first, int32_t n_out, fm_mem_counter *counter,
                             fm_error *error);

/* How many of an output's taps, from the first one on, are not fused. */
static inline int32_t fm_float_unfused(int32_t n_taps, int32_t run_taps) {
    return run_taps ? 1 + (n_taps - 1) / run_taps * run_taps : 1;
}

typedef struct fm_float_kernels {
    /* Resizes a row to coeffs->n pixels. */
    void (*columns)(float *out, const float *in, const fm_coeffs *coeffs, int32_t run_taps);
    /* Computes output row i of n_floats, a multiple of 4; `in` begins with its first tap's row. */
    void (*rows)(float *out, const float *const *in, const fm_coeffs *coeffs, int32_t i,
                 int32_t run_taps, size_t n_floats);
} fm_float_kernels;

/* Fills the table with the fastest versions of a tier that the CPU has. */
void fm_float_kernels_init(fm_float_kernels *kernels, fm_cpu_tier tier);

#endif
