/*
 * Rows of pixels before and after float_resize.h: bytes to floats, and floats to bytes or to the
 * batch's values. Pixels of floats have four, R G B and one that is not used. Pure functions, for
 * any thread.
 */
#ifndef FM_TRANSFORM_FLOAT_PIXELS_H
#define FM_TRANSFORM_FLOAT_PIXELS_H

#include "transform/plan.h"

/* The values of plan->resized_values of n_px pixels of three bytes; with `mirror` from the last
 * pixel to the first. */
void fm_float_pixels(float *out, const uint8_t *in, int32_t n_px, const fm_plan *plan, bool mirror);

/* Rounds to bytes, ties to even. The values round to 0 to 255. */
void fm_float_round(uint8_t *out, const float *in, int32_t n_px);

/* Stores (value - mean) / std of n_px pixels at a row and column of the batch's image `out`; with
 * `mirror` from the last pixel to the first. */
void fm_float_store(const fm_plan *plan, float *out, size_t row, size_t column, const float *in,
                    int32_t n_px, bool mirror);

#endif
