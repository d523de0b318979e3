/*
 * Decodes a WebP, lossy or lossless, with libwebp, with the same pixels as Pillow's convert("RGB").
 *
 * The functions have the contracts of fm_jpeg's (jpeg.h). Alpha is ignored, as in Pillow.
 * Animations are refused with FM_ERR_KIND, and files whose chunks do not follow the standard with
 * FM_ERR_DAMAGED.
 *
 * fm_webp_start() decodes the whole image, as Pillow refuses damage anywhere; fm_webp_read() copies
 * the rows of the box. The image takes 3 bytes per pixel (scratch.h), at most 80 MiB; larger ones
 * give FM_ERR_LIMIT. libwebp also allocates for each image from the C library, which is not
 * counted: some rows of a lossy image, 4 bytes per pixel of a lossless one.
 */
#ifndef FM_DECODE_WEBP_H
#define FM_DECODE_WEBP_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/types.h"
#include "decode/webp_scan.h"

typedef struct fm_webp fm_webp;

int fm_webp_open(fm_webp **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error);
void fm_webp_watch(fm_webp *webp, const _Atomic bool *cancelled);
int fm_webp_begin(fm_webp *webp, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                  fm_error *error);
int fm_webp_start(fm_webp *webp, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                  fm_error *error);
int fm_webp_read(fm_webp *webp, uint8_t *const *rows, int32_t n_rows, fm_error *error);
void fm_webp_end(fm_webp *webp);
bool fm_webp_is_large(const fm_webp *webp);
void fm_webp_trim(fm_webp *webp);
void fm_webp_close(fm_webp **webp);

#endif
