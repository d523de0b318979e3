/*
 * Arrays in memory as a source: gathers rows into a batch, and reads rows that are images. The
 * caller owns the arrays. Any number of threads may read one array at the same time.
 */
#ifndef FM_SOURCE_SOURCE_ARRAY_H
#define FM_SOURCE_SOURCE_ARRAY_H

#include "base/error.h"
#include "base/types.h"

/* A row of an array; stride_bytes must be set. */
static inline const uint8_t *fm_array_row(const fm_array *array, int64_t row) {
    return (const uint8_t *)array->data + (size_t)row * array->stride_bytes;
}

/* Checks an array, and sets stride_bytes if it is 0. FM_ERR_ARGUMENT names the array's number. */
int fm_array_resolve(fm_array *array, size_t number, fm_error *error);

/* Whether the array is in a memory-mapped file, so that rows may have to be read from storage. */
bool fm_array_is_mapped(const fm_array *array);

/*
 * Copies rows[n] to `out`, one after another. Runs of adjacent rows are one copy. Long copies use
 * `stream`, which bypasses the cache, unless it is NULL.
 */
void fm_array_gather(const fm_array *array, const int64_t *rows, size_t n, void *out,
                     void (*stream)(void *out, const void *in, size_t n));

/* The layout of an image within a row: height x width pixels with 1 or 3 channels of a byte each.
 * The strides are in bytes, from one channel, line or pixel to the next. */
typedef struct fm_array_image {
    int32_t height, width, channels;
    size_t channel_stride, line_stride, pixel_stride;
} fm_array_image;

/*
 * Works out the layout of the images in the first array's rows, of the transform's size; if the
 * caller gave no strides, rows are contiguous H x W x C. FM_ERR_ARGUMENT if the image exceeds the
 * row.
 */
int fm_array_image_init(fm_array_image *image, const fm_arrays *arrays,
                        const fm_transform *transform, fm_error *error);

/* Whether the row is contiguous R G B pixels. */
bool fm_array_image_is_packed(const fm_array_image *image);
/* Whether each channel is contiguous. */
bool fm_array_image_is_planar(const fm_array_image *image);

/* Copies the pixels of `box`, which must be within the image, to `out` as contiguous R G B. A
 * grayscale value is repeated three times. */
void fm_array_pixels(const fm_array_image *image, const uint8_t *row, fm_box box, uint8_t *out);

#endif
