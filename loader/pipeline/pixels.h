/*
 * A sample's pixels, from rows that a decoder writes or from an array in memory to their place in
 * the batch: the plan's resample, its operations on the image, its values, and what is erased.
 *
 * One fm_pixels per thread, kept for life. A decoded sample:
 *
 *     fm_pixels_begin(pixels, &key, width, height, &needed, error);
 *     the decoder starts with `needed`
 *     fm_pixels_start(pixels, skip_px, row_px, out, error);
 *     rows through fm_pixels_resample(), as transform/resample.h says
 *     fm_pixels_finish(pixels, error);
 */
#ifndef FM_PIPELINE_PIXELS_H
#define FM_PIPELINE_PIXELS_H

#include "transform/resample.h"

typedef struct fm_pixels fm_pixels;

/* The plan stays the caller's and must outlive it. FM_ERR_NOMEM, FM_ERR_ARGUMENT. */
int fm_pixels_open(fm_pixels **out, const fm_plan *plan, fm_mem_counter *counter, fm_error *error);

/* Scratch of one fm_pixels beyond that of its resample. */
uint64_t fm_pixels_scratch_bytes(const fm_plan *plan);

fm_resample *fm_pixels_resample(fm_pixels *pixels);

/* Draws, and says which part of an image of width x height pixels must be decoded. FM_ERR_LIMIT
 * where the plan has no native form for such an image; FM_ERR_NOMEM. */
int fm_pixels_begin(fm_pixels *pixels, const fm_draw_key *key, int32_t width, int32_t height,
                    fm_box *needed, fm_error *error);

/* `out` is the sample's place in the batch; see fm_resample_start(). */
int fm_pixels_start(fm_pixels *pixels, int32_t skip_px, int32_t row_px, void *out, fm_error *error);

/* All rows have come. FM_ERR_LIMIT where an operation has no native form for this image. */
int fm_pixels_finish(fm_pixels *pixels, fm_error *error);

/*
 * A sample from an array: height rows of width pixels of `channels` bytes (3: red, green, blue; or
 * 1: grey), dense. Grey ones may come as three equal bytes. FM_ERR_LIMIT, FM_ERR_NOMEM.
 */
int fm_pixels_array(fm_pixels *pixels, const fm_draw_key *key, const uint8_t *px, int32_t width,
                    int32_t height, int32_t channels, void *out, fm_error *error);

/* Accepts NULL and a pointer to NULL. */
void fm_pixels_close(fm_pixels **pixels);

#endif
