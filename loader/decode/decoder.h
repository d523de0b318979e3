/*
 * Decodes images of any supported format: detects the format and calls the decoder for it.
 *
 * The format is detected from the image's first bytes, never from its name. All decoders deliver
 * the same: the rows of a box, R G B with 8 bits per channel, with the same pixels as Pillow's
 * Image.open(file).convert("RGB"). A decoder that can't guarantee that refuses the image, and the
 * caller falls back to Pillow.
 *
 * JPEG (jpeg.h) is always supported; PNG (png.h) and WebP (webp.h) if feedmill was built with
 * libspng and libwebp. Other formats are refused with FM_ERR_FORMAT.
 *
 * One fm_decoder per thread, which is kept for all images. The functions have the contracts and
 * statuses of fm_jpeg's. The image's bytes belong to the caller and must stay until
 * fm_decoder_end().
 */
#ifndef FM_DECODE_DECODER_H
#define FM_DECODE_DECODER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/types.h"
#include "decode/jpeg_seek.h"

typedef struct fm_decoder fm_decoder;

/* FM_ERR_NOMEM. */
int fm_decoder_open(fm_decoder **out, const fm_limits *limits, fm_mem_counter *counter,
                    fm_error *error);

/*
 * Makes decoding stop with FM_ERR_CANCELLED, within some milliseconds, once *cancelled is true. The
 * flag must live as long as the object. NULL, the default: never.
 */
void fm_decoder_watch(fm_decoder *decoder, const _Atomic bool *cancelled);

/* See fm_jpeg_set_interval_skipping(). Has no effect on other formats. */
void fm_decoder_set_interval_skipping(fm_decoder *decoder, bool skip_intervals, bool is_partial);

/* See fm_jpeg_set_seek(). Has no effect on other formats. */
void fm_decoder_set_seek(fm_decoder *decoder, fm_jpeg_seek *seek);

/*
 * Detects the format and reads the header. FM_ERR_KIND if limits->rejected_formats has the format,
 * or one of FM_REJECT_* that applies to the image.
 * The caller must call fm_decoder_end() afterwards, also on failure.
 */
int fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                     fm_error *error);

/*
 * Reads the size only, of a JPEG without a look at what follows its header: info->width and height.
 * Refuses nothing that fm_decoder_begin() accepts, and as that does what limits->rejected_formats
 * has. Between images; nothing is begun.
 */
int fm_decoder_measure(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                       fm_image_info *info, fm_error *error);

/* The format of the image that was begun last; FM_FORMAT_JPEG if it is unknown. */
fm_format fm_decoder_format(const fm_decoder *decoder);

/* Whether the image that was begun can be decoded at a reduced size. */
bool fm_decoder_can_reduce(const fm_decoder *decoder);

/* See fm_jpeg_set_divisor(). Only if fm_decoder_can_reduce(). */
void fm_decoder_set_divisor(fm_decoder *decoder, int32_t divisor);

/*
 * Starts decoding the rows box->top to box->top + box->height - 1. FM_ERR_ARGUMENT if the box is
 * not within the image. Each row has *row_px pixels; the box begins at pixel *skip_px of the row.
 */
int fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                     fm_error *error);

/*
 * Decodes the next n_rows rows of the box, or as many as are left, into rows[], each of which has a
 * capacity of 3 * *row_px + 64 bytes. Returns the number of rows, or a negative status, after which
 * the caller must drop the rows it has. FM_ERR_STATE if no rows are left.
 */
int fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows, fm_error *error);

/* Ends the image, finished or not. The object is ready for the next one, of any format. */
void fm_decoder_end(fm_decoder *decoder);

/*
 * Called between images, by a thread that is about to wait: is_large() tells whether more than a
 * few MiB are kept; trim() returns them to the kernel, which may take milliseconds.
 */
bool fm_decoder_is_large(const fm_decoder *decoder);
void fm_decoder_trim(fm_decoder *decoder);

/* Accepts NULL and a pointer to NULL. */
void fm_decoder_close(fm_decoder **decoder);

#endif
