/*
 * Decodes a single image on the calling thread, without a loader: open, ask for the size, decode
 * into the caller's memory, close. Threads may use different images at the same time. An image that
 * a loader does not decode fails with the same status here; the caller then uses another decoder.
 */
#ifndef FEEDMILL_IMREAD_H
#define FEEDMILL_IMREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "feedmill/configuration.h"
#include "feedmill/source.h"
#include "feedmill/status.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_imread fm_imread;

typedef enum fm_channels { FM_RGB = 0, FM_BGR = 1 } fm_channels;

/*
 * Reads sample->path, or takes sample->data, which must stay until close, and reads the header;
 * the rest of *sample is ignored. max_image_pixels 0: the default of fm_config, whose default also
 * limits the file's bytes. Blocks while it reads the file.
 * On failure *out is NULL. FM_ERR_READ, FORMAT, KIND, DAMAGED, LIMIT, NOMEM, ARGUMENT.
 */
FM_API FM_CHECK_RESULT int fm_imread_open(fm_imread **out, const fm_sample *sample,
                                          uint64_t max_image_pixels, fm_error *error);

/* The image's format, detected from its first bytes. */
FM_API fm_format fm_imread_format(const fm_imread *image);

/* Rows and columns; with upright, after the rotation that the EXIF data asks for. */
FM_API void fm_imread_size(const fm_imread *image, bool upright, int32_t *height, int32_t *width);

/*
 * Decodes into contiguous out[height][width][3] of the size above. Can be called once. The pixels
 * equal those of Pillow's convert("RGB") or, with FM_BGR and upright, those of OpenCV's imread().
 * FM_BGR and upright support JPEGs of one or three components only; other images are FM_ERR_KIND.
 * After a failure (FM_ERR_KIND, DAMAGED, LIMIT, NOMEM, STATE) the contents of out are undefined.
 */
FM_API FM_CHECK_RESULT int fm_imread_pixels(fm_imread *image, fm_channels channels, bool upright,
                                            uint8_t *out, fm_error *error);

/* Accepts NULL and a pointer to NULL; sets *image to NULL. */
FM_API void fm_imread_close(fm_imread **image);

#ifdef __cplusplus
}
#endif
#endif
