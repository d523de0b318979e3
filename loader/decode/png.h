/*
 * Decodes a PNG row by row with libspng, with the same pixels as Pillow's convert("RGB").
 *
 * The functions have the contracts of fm_jpeg's (jpeg.h). All color types and depths are supported
 * except grayscale with 16 bits, interlaced or not. As in Pillow, alpha, transparency, gamma and
 * color profiles are ignored, and only the upper 8 of 16 bits are used. Animations are refused with
 * FM_ERR_KIND.
 *
 * Rows are decoded in full width, from the image's top to its end: the last rows of the box are
 * only delivered once all checksums of the file are verified. So damage anywhere refuses the file,
 * whatever the box, and the caller falls back to Pillow.
 *
 * Memory (scratch.h): libspng and its zlib allocate there, two rows and some 50 KiB, and up to 1
 * MiB for a color profile. An interlaced image is decoded as a whole, into at most 80 MiB; larger
 * ones give FM_ERR_LIMIT.
 */
#ifndef FM_DECODE_PNG_H
#define FM_DECODE_PNG_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/types.h"
#include "decode/png_scan.h"

typedef struct fm_png fm_png;

int fm_png_open(fm_png **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error);
void fm_png_watch(fm_png *png, const _Atomic bool *cancelled);
int fm_png_begin(fm_png *png, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                 fm_error *error);
int fm_png_start(fm_png *png, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                 fm_error *error);
int fm_png_read(fm_png *png, uint8_t *const *rows, int32_t n_rows, fm_error *error);
void fm_png_end(fm_png *png);
/* Whether the image that was begun last has a palette. */
bool fm_png_has_palette(const fm_png *png);
bool fm_png_is_large(const fm_png *png);
void fm_png_trim(fm_png *png);
void fm_png_close(fm_png **png);

#endif
