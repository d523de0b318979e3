/*
 * Decodes a PNG, row by row, with the pixels that Pillow gives for convert("RGB"), by libspng.
 *
 * The calls and their duties are those of fm_jpeg (jpeg.h). All color types and depths but grey of
 * 16 bits, interlaced or not; alpha, transparency, gamma and color profiles are left out, as Pillow
 * leaves them out, and of 16 bits the upper 8 are taken. Animations are refused with FM_ERR_KIND.
 *
 * Rows are decoded over the whole width, from the image's top on, and after the box's last row to
 * the image's end: the file's checksums must all be right before the last rows of the box are
 * delivered. So damage anywhere refuses a file, whatever the box, and Pillow decides.
 *
 * Memory (scratch.h): libspng and its zlib take all of theirs there, which is two rows and some 50
 * KiB, and a color profile's bytes where there is one, 1 MiB at most. An interlaced image is
 * decoded whole, into 80 MiB at most; larger ones get FM_ERR_LIMIT.
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
bool fm_png_is_large(const fm_png *png);
void fm_png_trim(fm_png *png);
void fm_png_close(fm_png **png);

#endif
