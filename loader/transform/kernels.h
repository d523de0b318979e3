/*
 * The resize kernels: a table of functions for one row or a few rows per call. The scalar C
 * versions define the results; all others must give the same bytes. store.h writes rows to the
 * batch.
 *
 * Rows are pixels of three bytes, R G B. Kernels may read up to FM_ROW_SLACK bytes past an input
 * row's end, and write as many past an output row's end. Pure functions, for any thread.
 */
#ifndef FM_TRANSFORM_KERNELS_H
#define FM_TRANSFORM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "transform/coeffs.h"

#define FM_ROW_SLACK 64

typedef struct fm_kernels {
    fm_cpu_tier tier; /* the highest tier of a kernel in this table */
    /* Fill coeffs->table for this tier's horizontal (columns) or vertical (rows) kernel. Weights of
     * columns must have gone through fm_coeffs_even_taps(). FM_OK or FM_ERR_NOMEM. */
    int (*prepare_columns)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error);
    int (*prepare_rows)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error);
    /* Resizes n_rows rows; after prepare_columns(). */
    void (*horizontal)(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                       const fm_coeffs *coeffs);
    /* Computes output row i of n_bytes bytes; `in` begins with its first tap's row. After
     * prepare_rows(). */
    void (*vertical)(uint8_t *out, const uint8_t *const *in, const fm_coeffs *coeffs, int32_t i,
                     size_t n_bytes);
    /* Copies the n pixels at index[0 .. n-1] of the input row. */
    void (*gather)(uint8_t *out, const uint8_t *in, const int32_t *index, int32_t n);
    /* Mirrors a row of n_px pixels. */
    void (*mirror)(uint8_t *out, const uint8_t *in, int32_t n_px);
    /* Copies n_px pixels to pixels of four bytes, the fourth of which is `fourth`, and back. Both
     * write exactly these pixels; narrow() reads exactly these, too. */
    void (*widen)(uint8_t *out, const uint8_t *in, int32_t n_px, uint8_t fourth);
    void (*narrow)(uint8_t *out, const uint8_t *in, int32_t n_px);
} fm_kernels;

/* Fills the table with the fastest versions of a tier that the CPU has. */
void fm_kernels_init(fm_kernels *kernels, fm_cpu_tier tier);

#endif
