/*
 * Parses a WebP file's chunks, without decoding: checks that the file has one picture and that its
 * chunks follow the standard. Pure function, for any thread; no allocation.
 */
#ifndef FM_DECODE_WEBP_SCAN_H
#define FM_DECODE_WEBP_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* The bytes of the picture: its chunk with padding, and the alpha chunk before it, if any. */
typedef struct fm_webp_picture {
    const uint8_t *bytes;
    size_t n_bytes;
} fm_webp_picture;

/* Whether the bytes begin with WebP's signature. */
bool fm_webp_is_one(const uint8_t *bytes, size_t n_bytes);

/*
 * FM_ERR_FORMAT: not a WebP. FM_ERR_KIND: an animation. FM_ERR_DAMAGED: anything else. *out is only
 * valid after FM_OK.
 */
int fm_webp_scan_file(fm_webp_picture *out, const uint8_t *bytes, size_t n_bytes, fm_error *error);

#endif
