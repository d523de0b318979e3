/*
 * Partial reads of a JPEG by its restart index (fm_restart_index): from the first byte down to the
 * bottom of the rows that are needed, in one read.
 *
 * The rows above are read as well: leaving them out would take a second request for each image.
 */
#ifndef FM_DECODE_JPEG_RESTART_H
#define FM_DECODE_JPEG_RESTART_H

#include "base/error.h"

/* Whether the numbers of an index are within their ranges, so that they are safe to compute with.
 * An index of another image passes: decoding then fails or costs time, and no pixel changes. */
bool fm_jpeg_restart_is_sane(const fm_restart_index *index);

/* How many of an image's image_bytes bytes to read for the rows up to and including `bottom`: up to
 * and including a restart marker, or image_bytes if all are needed. The index must be sane. */
uint64_t fm_jpeg_restart_bytes(const fm_restart_index *index, int64_t bottom, uint64_t image_bytes);

/* Replaces the restart marker at the end of a partial read by EOI, so that it decodes like a file.
 * Returns false if there is no marker, or if the bytes are no JPEG: the index is of another image.
 */
bool fm_jpeg_restart_end(uint8_t *bytes, uint64_t n_bytes);

#endif
