/*
 * The pixel loops, one row or a few rows a call, behind a table of functions. The scalar C versions
 * define the results; any other version must give the same bytes.
 *
 * Rows are pixels of three bytes, R G B. Kernels may read up to FM_ROW_SLACK bytes past an input
 * row's end. The horizontal, vertical, pick and mirror kernels may write as far past an output
 * row's end; store kernels write exactly their pixels.
 */
#ifndef FM_TRANSFORM_KERNELS_H
#define FM_TRANSFORM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "transform/coeffs.h"

#define FM_ROW_SLACK 64

/* 1/255 as a sum of two floats. A byte's product with the first is exact. */
#define FM_STEPS_255TH_HIGH 0x1.01p-8f
#define FM_STEPS_255TH_LOW 0x1.010102p-24f

/*
 * Arithmetic that gives a table's values, by channel: (value / 255 - mean) * (scale_high +
 * scale_low), where the scale is 1/std in two floats.
 */
typedef struct fm_steps {
    float mean[3], scale_high[3], scale_low[3];
} fm_steps;

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
    /* One row's channels to out, out + plane and out + 2 * plane. */
    void (*store_u8)(uint8_t *out, size_t plane, const uint8_t *in, int32_t n_px);
    /* The same through a table of values by channel and byte. */
    void (*store_f32)(float *out, size_t plane, const uint8_t *in, int32_t n_px,
                      const float (*table)[256]);
    /* The same by arithmetic that fm_steps_find() has found; NULL where the table is as fast. */
    void (*store_steps)(float *out, size_t plane, const uint8_t *in, int32_t n_px,
                        const fm_steps *steps);
} fm_kernels;

/* Fills the table with the fastest versions of a tier that the CPU has. */
void fm_kernels_init(fm_kernels *kernels, fm_cpu_tier tier);

/*
 * Looks for steps with which store_steps() gives all 768 values of the table, bit for bit: there
 * are such for the mean and std of ToTensor and Normalize. false if it finds none. Takes some 10
 * us.
 */
bool fm_steps_find(const fm_kernels *kernels, const float (*table)[256], fm_steps *steps);

#endif
