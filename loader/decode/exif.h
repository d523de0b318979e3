/* The orientation that a JPEG's EXIF data asks for, as OpenCV's imread() finds it. */
#ifndef FM_DECODE_EXIF_H
#define FM_DECODE_EXIF_H

#include <stddef.h>
#include <stdint.h>

/*
 * 1 to 8 as EXIF numbers them; 1, upright, where there is none. `bytes` is a whole JPEG whose
 * markers are sane (fm_jpeg_begin() took it). Nothing behind n_bytes is read.
 *
 * OpenCV looks at the first APP1 segment only, takes the first orientation in its first directory,
 * and gives up at a tag that it knows whose value does not lie in the segment: an orientation
 * behind such a tag does not count.
 */
int fm_exif_orientation(const uint8_t *bytes, size_t n_bytes);

#endif
