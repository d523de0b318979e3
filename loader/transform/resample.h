/*
 * Turns the decoded rows of one sample into its place in the batch: resize, window, flip, lookup
 * table and layout in one pass over the rows as they come; the crop is never stored whole.
 *
 * The resize is Pillow's (src/libImaging/Resample.c) with the plan's filter, bit for bit: 22-bit
 * integer weights, two passes with rounding to 8 bits after each, in the order that
 * plan->resize_order says. FM_FILTER_NEAREST copies pixels.
 *
 * One fm_resample per thread, kept for life. Its scratch is ready at open for images of 4,096
 * pixels a side, as far as that takes no more than 1 MiB for a set of rows; larger ones make it
 * grow.
 */
#ifndef FM_TRANSFORM_RESAMPLE_H
#define FM_TRANSFORM_RESAMPLE_H

#include "base/cpu.h"
#include "transform/plan.h"

/* Most rows handed out at a time, and rows that pass two of the vertical-first order's stages. */
#define FM_RESAMPLE_ROWS 16

typedef struct fm_resample fm_resample;

/* The kernels are those of fm_cpu_tier_get(). FM_ERR_NOMEM, or FM_ERR_ARGUMENT for its variable. */
int fm_resample_open(fm_resample **out, const fm_plan *plan, fm_mem_counter *counter,
                     fm_error *error);

/*
 * Prepares for a sample: computes the weights, unless one of the latest samples had the same sizes,
 * and tells which part of the image must be decoded (within the image; empty, 0 x 0, if none of it
 * shows). FM_ERR_NOMEM, FM_ERR_ARGUMENT (a window of another size than the plan's).
 */
int fm_resample_begin(fm_resample *resample, const fm_geometry *geometry, fm_box *needed,
                      fm_error *error);

/*
 * The decoder's rows will have row_px pixels, of which skip_px lie left of the needed box.
 * `out` is the sample's place, of the plan's dtype and layout.
 */
int fm_resample_start(fm_resample *resample, int32_t skip_px, int32_t row_px, void *out,
                      fm_error *error);

/*
 * Where the next rows go: sets rows[0 .. n-1] and returns n, at least 1, never more than max_rows,
 * FM_RESAMPLE_ROWS or what is still needed; 0 when the sample is complete (also at once, when no
 * rows are needed).
 */
int32_t fm_resample_rows(fm_resample *resample, uint8_t **rows, int32_t max_rows);

/* The first n_rows of those rows have been written: computes and stores what they complete. */
void fm_resample_push(fm_resample *resample, int32_t n_rows);

/* The tier of the kernels in use. */
fm_cpu_tier fm_resample_tier(const fm_resample *resample);

/* Accepts NULL and a pointer to NULL. */
void fm_resample_close(fm_resample **resample);

#endif
