/*
 * The pixel loops, one row or a few rows a call, behind a table of functions. The scalar C versions
 * define the results; any other version must give the same bytes.
 *
 * Rows are pixels of three bytes, R G B. Kernels may read up to FM_ROW_SLACK bytes past an input
 * row's end, and write as far past an output row's end. How rows leave for the batch is in store.h.
 */
#ifndef FM_TRANSFORM_KERNELS_H
#define FM_TRANSFORM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "transform/coeffs.h"

#define FM_ROW_SLACK 64

typedef struct fm_kernels {
    fm_cpu_tier tier; /* the highest with a kernel here */
    /* Put weights into the shape that this tier's horizontal (vertical) kernel reads; those of
     * columns went through fm_coeffs_even_taps(). FM_OK or FM_ERR_NOMEM. */
    int (*prepare_columns)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error);
    int (*prepare_rows)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error);
    /* Resizes n_rows rows of pixels; coeffs went through prepare_columns(). */
    void (*horizontal)(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                       const fm_coeffs *coeffs);
    /* Output i, a row of n_bytes bytes, from its rows; coeffs went through prepare_rows(). */
    void (*vertical)(uint8_t *out, const uint8_t *const *in, const fm_coeffs *coeffs, int32_t i,
                     size_t n_bytes);
    /* One row of n pixels: those at index[0 .. n-1] of the input row. */
    void (*pick)(uint8_t *out, const uint8_t *in, const int32_t *index, int32_t n);
    /* One row of n_px pixels in mirrored order. */
    void (*mirror)(uint8_t *out, const uint8_t *in, int32_t n_px);
} fm_kernels;

/* Fills the table with the fastest versions of a tier that the CPU has. */
void fm_kernels_init(fm_kernels *kernels, fm_cpu_tier tier);

#endif
