/*
 * Walks over a PNG file's chunks, without decoding: is it of a kind that png.c takes, and is each
 * chunk one that Pillow passes without a word?
 *
 * Pillow reads all chunks before the image data and behind it, and refuses a file for some of them;
 * libspng forgives others. Only files on which the two can't disagree pass here: chunks of the
 * length that the standard gives them, each of the known ones once and in its place, texts that
 * can't outgrow Pillow's limits, no animation. All else is refused. Checksums are libspng's to
 * check.
 *
 * Pure function: any thread, no allocation, one look at each chunk's header.
 */
#ifndef FM_DECODE_PNG_SCAN_H
#define FM_DECODE_PNG_SCAN_H

#include <stddef.h>

#include "base/error.h"
#include "base/types.h"

/* The standard's color types. */
typedef enum fm_png_color {
    FM_PNG_GREY = 0,
    FM_PNG_RGB = 2,
    FM_PNG_PALETTE = 3,
    FM_PNG_GREY_ALPHA = 4,
    FM_PNG_RGB_ALPHA = 6
} fm_png_color;

typedef struct fm_png_scan {
    fm_image_info info; /* progressive: interlaced */
    fm_png_color color;
    int32_t bits;           /* a sample, or a palette's index */
    bool has_large_profile; /* a color profile so large that it may outgrow Pillow's limit */
    const uint8_t *palette; /* R G B, or NULL */
    int32_t n_palette;      /* colors in it */
} fm_png_scan;

bool fm_png_is_one(const uint8_t *bytes, size_t n_bytes);

/*
 * FM_ERR_KIND: a PNG that we do not decode. FM_ERR_LIMIT: too many pixels. FM_ERR_DAMAGED: all
 * else. The message names what was found. *out is valid after FM_OK only.
 */
int fm_png_scan_file(fm_png_scan *out, const uint8_t *bytes, size_t n_bytes,
                     const fm_limits *limits, fm_error *error);

#endif
