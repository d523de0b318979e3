/*
 * Partial reads of a JPEG by its restart index (fm_restart_index): from the first byte down to the
 * bottom of the rows that are needed, in one read.
 *
 * What lies above these rows is read as well: to leave it out would be a second request for each
 * image, and saves as many bytes at most.
 */
#ifndef FM_DECODE_JPEG_RESTART_H
#define FM_DECODE_JPEG_RESTART_H

#include "base/error.h"

/* Whether the numbers of an index are within their ranges, so that they are safe to compute with.
 * An index of another image passes: decoding then fails or costs time, and no pixel changes. */
bool fm_jpeg_restart_is_sane(const fm_restart_index *index);

/* How many of an image's image_bytes bytes to read for the rows up to and with `bottom`: up to and
 * with a restart marker; image_bytes where all are needed. The index is sane. */
uint64_t fm_jpeg_restart_bytes(const fm_restart_index *index, int64_t bottom, uint64_t image_bytes);

/* Turns the restart marker at the end of a partial read into an EOI, which ends it as a file ends.
 * false: there is no marker, or these bytes are no JPEG: the index is another image's. */
bool fm_jpeg_restart_end(uint8_t *bytes, uint64_t n_bytes);

#endif
