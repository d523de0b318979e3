/*
 * Arrays in memory as a source: rows gathered into a batch, and rows that are images as pixels.
 * Pure; any number of threads may read one array.
 */
#ifndef FM_SOURCE_SOURCE_ARRAY_H
#define FM_SOURCE_SOURCE_ARRAY_H

#include "base/error.h"
#include "base/types.h"

/* Row `row` of an array with a stride. */
static inline const uint8_t *fm_array_row(const fm_array *array, int64_t row) {
    return (const uint8_t *)array->data + (size_t)row * array->stride_bytes;
}

/* Checks an array and sets the stride that was left open. FM_ERR_ARGUMENT names its number. */
int fm_array_resolve(fm_array *array, size_t number, fm_error *error);

/* Whether the array lies in a mapped file, so that a row may have to be read from storage. */
bool fm_array_is_mapped(const fm_array *array);

/*
 * Copies rows[n] to `out`, one after the other; those that lie so in the array as well at once.
 * `stream` is how long pieces are copied past the cache; NULL: all go through it.
 */
void fm_array_gather(const fm_array *array, const int64_t *rows, size_t n, void *out,
                     void (*stream)(void *out, const void *in, size_t n));

/* How a row holds an image of height x width pixels of 1 or 3 channels, a byte each: from a
 * channel, a line, a pixel to the next are so many bytes. */
typedef struct fm_array_image {
    int32_t height, width, channels;
    size_t channel_stride, line_stride, pixel_stride;
} fm_array_image;

/*
 * The image that the arrays' rows hold, of the transform's size, with the strides that were left
 * open. FM_ERR_ARGUMENT where it does not lie within a row of the first array.
 */
int fm_array_image_init(fm_array_image *image, const fm_arrays *arrays,
                        const fm_transform *transform, fm_error *error);

/* Whether the pixels lie in the row one after the other, R G B. */
bool fm_array_image_is_packed(const fm_array_image *image);
/* Whether the values of each channel lie so. */
bool fm_array_image_is_planar(const fm_array_image *image);

/* The pixels of `box`, which lies within the image, to `out`, dense, as R G B; a grey one's byte
 * three times. */
void fm_array_pixels(const fm_array_image *image, const uint8_t *row, fm_box box, uint8_t *out);

#endif
