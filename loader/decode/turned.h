/* Whether an image's metadata may ask programs to turn or mirror it. */
#ifndef FM_DECODE_TURNED_H
#define FM_DECODE_TURNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/feedmill.h"

/*
 * False only if no program that follows EXIF or XMP turns the image: it has no orientation there,
 * or EXIF's first directory says 1, upright. True in doubt: for metadata that is malformed, in an
 * unusual form, or compressed, for XMP without an orientation in EXIF, and in PNG and WebP files
 * for any of the two. `bytes` is a whole file. Any thread; no allocation.
 */
bool fm_may_be_turned(fm_format format, const uint8_t *bytes, size_t n_bytes);

#endif
