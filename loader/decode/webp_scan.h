/*
 * Walks over a WebP file's chunks, without decoding: one picture, and nothing that is not where the
 * standard has it?
 *
 * Pure function: any thread, no allocation.
 */
#ifndef FM_DECODE_WEBP_SCAN_H
#define FM_DECODE_WEBP_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Where the picture is: its chunk, with its padding and, where it has one, its alpha's before it.
 */
typedef struct fm_webp_picture {
    const uint8_t *bytes;
    size_t n_bytes;
} fm_webp_picture;

bool fm_webp_is_one(const uint8_t *bytes, size_t n_bytes);

/*
 * FM_ERR_FORMAT: no WebP at all. FM_ERR_KIND: an animation. FM_ERR_DAMAGED: all else. *out is valid
 * after FM_OK only.
 */
int fm_webp_scan_file(fm_webp_picture *out, const uint8_t *bytes, size_t n_bytes, fm_error *error);

#endif
