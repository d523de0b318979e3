/*
 * Walks over a JPEG file's markers, without decoding: is it of a kind that jpeg.c takes, and are
 * its markers sane from SOI to EOI?
 *
 * Pillow walks over the header with a parser of its own before libjpeg sees a byte, and libjpeg
 * forgives much that Pillow does not, and the other way round. Only files on which the two can't
 * disagree pass here: no byte between two segments, no marker that has no place there, no segment
 * that either of them reads in its own way, no Huffman or quantization table that is used without
 * having been defined (libjpeg keeps the tables of the image before). All else is refused.
 *
 * Pure function: any thread, no allocation, well under 1 % of a decode.
 */
#ifndef FM_DECODE_JPEG_SCAN_H
#define FM_DECODE_JPEG_SCAN_H

#include <stddef.h>

#include "base/error.h"
#include "base/types.h"

typedef struct fm_jpeg_scan {
    fm_image_info info;
    int32_t max_h_factor; /* largest horizontal sampling factor of a component, 1 to 4 */
    bool single_pass;     /* one scan with all components: rows can be decoded one by one */
    uint32_t n_restarts;  /* restart markers in all scans */
    bool in_order;        /* ... of which each has the number that is due, if there is one scan */
    size_t n_bytes;       /* up to and with the EOI marker */
} fm_jpeg_scan;

/*
 * FM_ERR_FORMAT: no JPEG at all. FM_ERR_KIND: a JPEG that we do not decode. FM_ERR_LIMIT: too many
 * pixels, more than 65,500 a side or too many scans. FM_ERR_DAMAGED: all else. The message names
 * what was found. *out is valid after FM_OK only.
 */
int fm_jpeg_scan_file(fm_jpeg_scan *out, const uint8_t *bytes, size_t n_bytes,
                      const fm_limits *limits, fm_error *error);

#endif
