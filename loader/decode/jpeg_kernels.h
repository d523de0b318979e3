/*
 * The kernels that turn a JPEG's coefficients into pixels: inverse DCT, upsampling and conversion
 * to RGB, as a table of functions. The scalar C versions define the results; all others give the
 * same bytes. They are libjpeg-turbo's results for JDCT_ISLOW and fancy upsampling.
 *
 * Kernels may read up to FM_JPEG_SLACK bytes past an input row's end, and write as many past an
 * output row's end. Pure functions, for any thread.
 */
#ifndef FM_DECODE_JPEG_KERNELS_H
#define FM_DECODE_JPEG_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

#define FM_JPEG_SLACK 64
/* Largest step of a quantization table that the kernels support: that of 8-bit tables. */
#define FM_JPEG_MAX_STEP 255

/* A quantization table, in natural order. */
typedef struct fm_jpeg_quant {
    _Alignas(32) int16_t step[64];
    /* See FM_JPEG_SAFE_SUM. */
    _Alignas(32) int16_t weight[64];
} fm_jpeg_quant;

/*
 * Versions of libjpeg-turbo differ in what they make of coefficients beyond what an encoder can
 * write: with SIMD, numbers of 16 bits overflow, and without, samples far out of range wrap around.
 * A block is in range if neither happens, so that all versions agree.
 *
 * A sufficient condition: no sample exceeds the sum of its coefficients' absolute values, weighted
 * by 1/8 for the DC, 3/16 for the other coefficients of the first row and column (rounded up from
 * sqrt(2)/8) and 1/4 for the rest. With weight[i] = 16 * weight * step[i], a block whose weighted
 * sum is at most FM_JPEG_SAFE_SUM has samples between -511 and 511. No intermediate value exceeds
 * twice the sum but for rounding, so that up to FM_JPEG_EXACT_SUM only the samples can be out of
 * range. Sums of any coefficients fit 32 bits.
 */
#define FM_JPEG_SAFE_SUM (16 * 510)
#define FM_JPEG_EXACT_SUM 16000

/* Sets a table from its steps, all at most FM_JPEG_MAX_STEP. */
void fm_jpeg_quant_set(fm_jpeg_quant *quant, const uint16_t steps[64]);

/* Whether a block of 64 coefficients is in range: the exact condition. */
bool fm_jpeg_block_in_range(const int16_t *block, const fm_jpeg_quant *quant);

typedef struct fm_jpeg_kernels {
    fm_cpu_tier tier; /* the highest tier of a kernel in this table */
    /*
     * Computes the samples of n adjacent blocks, n at least 1: 8 rows of 8 * n bytes. `blocks` has
     * the quantized coefficients of one block after another, in natural order, of which only the DC
     * may be -32768. false if a block is out of range; then the samples are undefined.
     */
    bool (*idct)(uint8_t *out, size_t stride, const int16_t *blocks, const fm_jpeg_quant *quant,
                 int32_t n);
    /* Fancy upsampling of n samples to 2 * n; needs in[-1] and in[n], which at the image's edges
     * repeat the first and last sample. */
    void (*upsample_h2)(uint8_t *out, const uint8_t *in, int32_t n);
    /* The same from two rows: `near` is the row that contains the output row, `far` its next
     * neighbor. */
    void (*upsample_h2v2)(uint8_t *out, const uint8_t *near, const uint8_t *far, int32_t n);
    /* Fancy upsampling of columns: n samples from two rows. `is_lower`: `far` is below `near`. */
    void (*upsample_v2)(uint8_t *out, const uint8_t *near, const uint8_t *far, int32_t n,
                        bool is_lower);
    /* Converts n pixels; B G R if `bgr`, else R G B. */
    void (*ycc_to_rgb)(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr,
                       int32_t n, bool bgr);
    void (*gray_to_rgb)(uint8_t *out, const uint8_t *y, int32_t n);
} fm_jpeg_kernels;

/* Fills the table with the fastest versions of a tier that the CPU has. */
void fm_jpeg_kernels_init(fm_jpeg_kernels *kernels, fm_cpu_tier tier);

#endif
