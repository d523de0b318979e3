/*
 * The decoder of a worker: says what an image is, and has the decoder of that format decode it.
 *
 * The format is told from the image's first bytes, never from its name. What a decoder delivers is
 * the same for all: the rows of a box, 8 bits a channel, R G B, with the pixels that Pillow's
 * Image.open(file).convert("RGB") gives. A decoder that can't be sure of that refuses the image,
 * and the caller asks Pillow, who gives the whole image or an error: a box decides who decodes,
 * never what comes out.
 *
 * JPEG (jpeg.h) is always there; PNG (png.h) and WebP (webp.h) where the library was built with
 * libspng and libwebp. All else is refused with FM_ERR_FORMAT.
 *
 * One fm_decoder per thread, kept for life; the calls are those of fm_jpeg, with its duties and
 * statuses. An image's bytes must stay until fm_decoder_end().
 */
#ifndef FM_DECODE_DECODER_H
#define FM_DECODE_DECODER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/types.h"

typedef struct fm_decoder fm_decoder;

/* FM_ERR_NOMEM. */
int fm_decoder_open(fm_decoder **out, const fm_limits *limits, fm_mem_counter *counter,
                    fm_error *error);

/*
 * From now on decoding ends with FM_ERR_CANCELLED, within some milliseconds, when *cancelled is
 * true. The flag must live as long as the object. NULL: never (the default).
 */
void fm_decoder_watch(fm_decoder *decoder, const _Atomic bool *cancelled);

/* See fm_jpeg_set_leaps(). Images of other formats are decoded as ever. */
void fm_decoder_set_leaps(fm_decoder *decoder, bool leaps, bool is_cut);

/*
 * Tells the format and reads the header; FM_ERR_KIND where the limits reject the format. Afterwards
 * fm_decoder_end() is due, also on failure.
 */
int fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                     fm_error *error);

/* The format of the image that was begun last. */
fm_format fm_decoder_format(const fm_decoder *decoder);

/*
 * Starts decoding the rows box->top to box->top + box->height - 1; box lies within the image, else
 * FM_ERR_ARGUMENT. Each delivered row has *row_px pixels, of which those from *skip_px on are
 * box->left and following.
 */
int fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                     fm_error *error);

/*
 * Decodes up to n_rows next rows of the box into rows[], each with room for 3 * *row_px + 64 bytes.
 * Returns the number of rows written (all n_rows, or what is left of the box), or a negative
 * status; the caller then drops the rows that he has. FM_ERR_STATE if no rows are left.
 */
int fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows, fm_error *error);

/* Ends the image, finished or not. The object is ready for the next one, of any format. */
void fm_decoder_end(fm_decoder *decoder);

/*
 * Between images, for a thread that is about to wait: whether more than a few MiB are kept, and
 * giving them back to the kernel, which may take milliseconds.
 */
bool fm_decoder_is_large(const fm_decoder *decoder);
void fm_decoder_trim(fm_decoder *decoder);

/* Accepts NULL and a pointer to NULL. */
void fm_decoder_close(fm_decoder **decoder);

#endif
