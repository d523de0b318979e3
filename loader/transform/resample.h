/*
 * Resamples the decoded rows of one sample into the batch: resize, crop, flip, value table and
 * layout, row by row as they are decoded. The crop is never stored as a whole.
 *
 * The resize equals Pillow's (src/libImaging/Resample.c) bit for bit: 22-bit integer weights, two
 * passes with rounding to 8 bits after each, in the order of plan->resize_order. With
 * FM_RESIZE_TORCH it equals torch's of uint8 tensors, whose weights have 16 bits, and with
 * FM_RESIZE_TORCH_FLOAT that of float32 tensors (float_resize.h).
 * FM_FILTER_NEAREST copies pixels.
 *
 * Sequence per sample: fm_resample_begin(), fm_resample_start(), then fm_resample_rows() and
 * fm_resample_push() until fm_resample_rows() returns 0. One fm_resample per thread, kept for all
 * samples. Its scratch memory is allocated at open for images of 4,096 pixels per side, at most 1
 * MiB per set of rows, and grows for larger ones.
 */
#ifndef FM_TRANSFORM_RESAMPLE_H
#define FM_TRANSFORM_RESAMPLE_H

#include "base/cpu.h"
#include "transform/plan.h"

/* Most rows per fm_resample_rows(), and rows per step of the vertical-first order. */
#define FM_RESAMPLE_ROWS 16

typedef struct fm_resample fm_resample;

/* Uses the kernels of fm_cpu_tier_get(). The plan belongs to the caller and must outlive *out.
 * FM_ERR_NOMEM, or FM_ERR_ARGUMENT if FEEDMILL_CPU is invalid. */
int fm_resample_open(fm_resample **out, const fm_plan *plan, fm_mem_counter *counter,
                     fm_error *error);

/*
 * Begins a sample: computes the weights, unless they are cached from a recent sample, and sets
 * *needed to the part of the image that must be decoded, 0 x 0 if the output shows none of it.
 * FM_ERR_NOMEM, or FM_ERR_ARGUMENT if the window does not have the plan's size.
 */
int fm_resample_begin(fm_resample *resample, const fm_geometry *geometry, fm_box *needed,
                      fm_error *error);

/*
 * Starts receiving rows. The decoder's rows have row_px pixels, of which skip_px are left of the
 * needed box. `out` is the sample's place in the batch, with the plan's dtype and layout.
 * FM_ERR_NOMEM, or FM_ERR_ARGUMENT if rows are too narrow.
 */
int fm_resample_start(fm_resample *resample, int32_t skip_px, int32_t row_px, void *out,
                      fm_error *error);

/*
 * Sets rows[0 .. n-1] to where the decoder must write the next rows, and returns n: at least 1, at
 * most max_rows, FM_RESAMPLE_ROWS and the rows still needed; 0 when the sample is complete, or if
 * no rows are needed.
 */
int32_t fm_resample_rows(fm_resample *resample, uint8_t **rows, int32_t max_rows);

/* After the first n_rows of these rows were written: computes and stores the outputs that they
 * complete. */
void fm_resample_push(fm_resample *resample, int32_t n_rows);

/* The tier of the kernels in use. */
fm_cpu_tier fm_resample_tier(const fm_resample *resample);

/* Accepts NULL and a pointer to NULL. */
void fm_resample_close(fm_resample **resample);

#endif
