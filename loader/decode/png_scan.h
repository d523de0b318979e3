/*
 * Parses a PNG file's chunks, without decoding: checks that png.c supports the file and that Pillow
 * accepts each chunk.
 *
 * Pillow reads all chunks before and after the image data, and refuses files for some of them;
 * libspng refuses others. Only files on which they can't disagree are accepted: chunks have the
 * standard's length, known chunks appear once and in their place, texts can't exceed Pillow's
 * limits, and there is no animation. All others are refused. Checksums are left to libspng.
 *
 * Pure function, for any thread; no allocation; reads little more than the chunks' headers.
 */
#ifndef FM_DECODE_PNG_SCAN_H
#define FM_DECODE_PNG_SCAN_H

#include <stddef.h>

#include "base/error.h"
#include "base/types.h"

/* The standard's color types. */
typedef enum fm_png_color {
    FM_PNG_GRAY = 0,
    FM_PNG_RGB = 2,
    FM_PNG_PALETTE = 3,
    FM_PNG_GRAY_ALPHA = 4,
    FM_PNG_RGB_ALPHA = 6
} fm_png_color;

typedef struct fm_png_scan {
    fm_image_info info; /* progressive: interlaced */
    fm_png_color color;
    int32_t bits;           /* per sample, or per palette index */
    bool has_large_profile; /* the color profile may exceed Pillow's limit */
    const uint8_t *palette; /* R G B, or NULL */
    int32_t n_palette;      /* its colors */
} fm_png_scan;

/* Whether the bytes begin with PNG's signature. */
bool fm_png_is_one(const uint8_t *bytes, size_t n_bytes);

/*
 * FM_ERR_FORMAT: not a PNG. FM_ERR_KIND: an unsupported kind of PNG. FM_ERR_LIMIT: too many pixels.
 * FM_ERR_DAMAGED: anything else. The message names what was found. *out is only valid after FM_OK.
 */
int fm_png_scan_file(fm_png_scan *out, const uint8_t *bytes, size_t n_bytes,
                     const fm_limits *limits, fm_error *error);

#endif
