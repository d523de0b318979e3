/*
 * Applies the plan to one sample's pixels and writes the result to its place in the batch:
 * resample, augmentations, conversion to the batch's values, and RandomErasing. The pixels are rows
 * that a decoder writes, or an array in memory.
 *
 * One fm_pixels per thread, kept for all samples. The calls for a decoded sample:
 *
 *     fm_pixels_begin(pixels, &key, width, height, NULL, &needed, error);
 *     the decoder starts with `needed`
 *     fm_pixels_start(pixels, skip_px, row_px, out, error);
 *     rows through fm_pixels_resample(), as transform/resample.h says
 *     fm_pixels_finish(pixels, error);
 */
#ifndef FM_PIPELINE_PIXELS_H
#define FM_PIPELINE_PIXELS_H

#include "augment/image.h"
#include "transform/resample.h"

typedef struct fm_pixels fm_pixels;

/* The plan belongs to the caller and must outlive *out. FM_ERR_NOMEM, FM_ERR_ARGUMENT. */
int fm_pixels_open(fm_pixels **out, const fm_plan *plan, fm_mem_counter *counter, fm_error *error);

/* Bytes of scratch that one fm_pixels takes in addition to its fm_resample's. */
uint64_t fm_pixels_scratch_bytes(const fm_plan *plan);

fm_resample *fm_pixels_resample(fm_pixels *pixels);

/*
 * Draws the sample's random parameters and sets *needed to the part of the width x height image
 * that must be decoded. FM_ERR_LIMIT if the plan can't be applied natively to an image of that
 * size; FM_ERR_NOMEM.
 *
 * divisor: in, the largest divisor of the image's size that the decoder may use: 1, 2, 4 or 8; out,
 * the one that it must use (transform/scaled.h). *needed is a part of the image of 1 / *divisor of
 * the size. NULL: 1.
 */
int fm_pixels_begin(fm_pixels *pixels, const fm_draw_key *key, int32_t width, int32_t height,
                    int32_t *divisor, fm_box *needed, fm_error *error);

/* `out` is the sample's place in the batch; see fm_resample_start(). */
int fm_pixels_start(fm_pixels *pixels, int32_t skip_px, int32_t row_px, void *out, fm_error *error);

/* Called after the last row: applies what follows the resample. FM_ERR_LIMIT if an operation can't
 * be applied natively to this image. */
int fm_pixels_finish(fm_pixels *pixels, fm_error *error);

/*
 * Makes a sample from a part of a width x height image: `part` holds at least the box that
 * fm_pixels_begin() gives for this key, size and divisor, and begins at pixel (left, top) of the
 * reduced image. FM_ERR_LIMIT, FM_ERR_NOMEM.
 */
int fm_pixels_part(fm_pixels *pixels, const fm_draw_key *key, int32_t width, int32_t height,
                   int32_t divisor, const fm_image *part, int32_t left, int32_t top, void *out,
                   fm_error *error);

/*
 * Makes a sample from an array: height rows of width pixels of `channels` bytes (3: R G B; 1:
 * grayscale), contiguous. Grayscale pixels may also have three equal bytes. FM_ERR_LIMIT,
 * FM_ERR_NOMEM.
 */
int fm_pixels_array(fm_pixels *pixels, const fm_draw_key *key, const uint8_t *px, int32_t width,
                    int32_t height, int32_t channels, void *out, fm_error *error);

/* Accepts NULL and a pointer to NULL. */
void fm_pixels_close(fm_pixels **pixels);

#endif
