/*
 * Applies an fm_transform to one image at a time, on the calling thread: what a loader does with
 * each sample, for callers that have the image and a place for the result.
 *
 *     fm_transformer *transformer = NULL;
 *     if (fm_transformer_open(&transformer, &transform, 0, &error)) die(error.message);
 *     void *const out = malloc(fm_transformer_shape(transformer).sample_bytes);
 *     const fm_source_image image = {.data = data, .data_bytes = n_bytes};
 *     if (fm_transformer_run(transformer, &image, &streams, out, &error)) die(error.message);
 *     // Or, for an image that another decoder makes, only what the generators draw for it:
 *     if (fm_transformer_draw(transformer, width, height, &streams, &error)) die(error.message);
 *     fm_transformer_close(&transformer);
 *
 * One thread at a time may use a transformer; it keeps its memory for the next image.
 */
#ifndef FEEDMILL_TRANSFORMER_H
#define FEEDMILL_TRANSFORMER_H

#include "feedmill/feedmill.h"
#include "feedmill/streams.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_transformer fm_transformer;

/* What fm_transformer_run() writes: values[channels][height][width], or [height][width][channels]
 * with FM_NHWC, of the transform's dtype, contiguous. */
typedef struct fm_sample_shape {
    int32_t channels, height, width;
    size_t sample_bytes;
} fm_sample_shape;

/* An image: encoded, or its pixels. The memory is the caller's, and only read. */
typedef struct fm_source_image {
    const void *data; /* the encoded image, or NULL: */
    size_t data_bytes;
    const uint8_t *pixels; /* R G B bytes in contiguous rows */
    int32_t pixels_width, pixels_height;
} fm_source_image;

/*
 * Opens a transformer. *transform and what it points to may be freed afterwards. max_image_pixels:
 * larger images are refused with FM_ERR_LIMIT; 0: fm_config's default. FM_ERR_ARGUMENT names what
 * is wrong with the transform, or that FEEDMILL_CPU is invalid; FM_ERR_NOMEM.
 */
FM_API FM_CHECK_RESULT int fm_transformer_open(fm_transformer **out, const fm_transform *transform,
                                               uint64_t max_image_pixels, fm_error *error);

FM_API fm_sample_shape fm_transformer_shape(const fm_transformer *transformer);

/*
 * Draws the random parameters for an image of width x height, so that *streams then are as they are
 * behind that image. FM_ERR_ARGUMENT; FM_ERR_LIMIT if the transform can't be applied natively to an
 * image of that size. After a failure the streams are as before.
 */
FM_API FM_CHECK_RESULT int fm_transformer_draw(fm_transformer *transformer, int32_t width,
                                               int32_t height, fm_streams *streams,
                                               fm_error *error);

/*
 * Transforms an image into `out`, with the random parameters that fm_transformer_draw() draws from
 * these streams, which stay as they are. After a failure (FM_ERR_DAMAGED, FORMAT, KIND, LIMIT,
 * NOMEM, ARGUMENT) `out` holds anything.
 */
FM_API FM_CHECK_RESULT int fm_transformer_run(fm_transformer *transformer,
                                              const fm_source_image *image,
                                              const fm_streams *streams, void *out,
                                              fm_error *error);

/* Accepts NULL and a pointer to NULL; sets *transformer to NULL. */
FM_API void fm_transformer_close(fm_transformer **transformer);

#ifdef __cplusplus
}
#endif
#endif
