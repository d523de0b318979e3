/*
 * Decodes a WebP, lossy or lossless, with the pixels that Pillow gives for convert("RGB"), by
 * libwebp.
 *
 * The calls and their duties are those of fm_jpeg (jpeg.h). Alpha is left out, as Pillow leaves it
 * out. Animations are refused with FM_ERR_KIND, and files whose chunks are not those that the
 * format's standard has, in its order, with FM_ERR_DAMAGED: Pillow decides about them.
 *
 * The image is decoded whole, when its rows are asked for, since Pillow would refuse it for damage
 * anywhere; the rows of the box are copied. It takes 3 bytes a pixel (scratch.h), 80 MiB at most;
 * larger ones get FM_ERR_LIMIT. Beside it libwebp takes memory of its own from the C library for
 * each image, which nobody counts: some rows of a lossy one, 4 bytes a pixel of a lossless one.
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
