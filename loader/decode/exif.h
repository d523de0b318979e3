/* The orientation in a JPEG's EXIF data, as OpenCV's imread() reads it. */
#ifndef FM_DECODE_EXIF_H
#define FM_DECODE_EXIF_H

#include <stddef.h>
#include <stdint.h>

/*
 * Returns EXIF's orientation, 1 to 8; 1, upright, if there is none. `bytes` is a whole JPEG that
 * fm_jpeg_begin() has accepted. Any thread; no allocation.
 *
 * As OpenCV: only the first APP1 segment counts, and the first orientation in its first directory.
 * Reading stops at a tag that OpenCV knows whose value is not within the segment.
 */
int fm_exif_orientation(const uint8_t *bytes, size_t n_bytes);

#endif
