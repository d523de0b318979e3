/*
 * Parses a JPEG file's markers from SOI to EOI, without decoding: checks that jpeg.c supports the
 * file and that its markers are valid.
 *
 * Pillow parses the header itself before libjpeg does, and each of them accepts files that the
 * other refuses. Only files on which they can't disagree are accepted: no bytes between two
 * segments, no marker out of place, no segment that both interpret differently, and no Huffman or
 * quantization table that is used without being defined (libjpeg would use the previous image's).
 * All others are refused.
 *
 * Pure function, for any thread; no allocation.
 */
#ifndef FM_DECODE_JPEG_SCAN_H
#define FM_DECODE_JPEG_SCAN_H

#include <stddef.h>

#include "base/error.h"
#include "base/types.h"

typedef struct fm_jpeg_scan {
    fm_image_info info;
    int32_t max_h_factor; /* largest horizontal sampling factor of a component, 1 to 4 */
    bool single_pass;     /* one scan with all components, so that rows can be decoded one by one */
    uint32_t n_restarts;  /* restart markers in all scans */
    bool in_order;        /* their numbers are in order, if there is one scan */
    size_t n_bytes;       /* including the EOI marker */
} fm_jpeg_scan;

/*
 * FM_ERR_FORMAT: not a JPEG. FM_ERR_KIND: an unsupported kind of JPEG. FM_ERR_LIMIT: too many
 * pixels, a side above 65,500 or too many scans. FM_ERR_DAMAGED: anything else. The message names
 * what was found. *out is only valid after FM_OK.
 */
int fm_jpeg_scan_file(fm_jpeg_scan *out, const uint8_t *bytes, size_t n_bytes,
                      const fm_limits *limits, fm_error *error);

/*
 * The same up to the first scan's header, for its size: sets info->width, height, n_components and
 * progressive. What follows is neither read nor checked. Refuses nothing that fm_jpeg_scan_file()
 * accepts.
 */
int fm_jpeg_scan_header(fm_image_info *info, const uint8_t *bytes, size_t n_bytes,
                        const fm_limits *limits, fm_error *error);

#endif
