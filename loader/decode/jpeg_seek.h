/*
 * Seek points of a JPEG: places between two MCUs of its only scan from which it can be decoded.
 *
 * Huffman codes can only be decoded from the start, one after another. Who has decoded an image
 * once, however, knows where in the file each row of MCUs begins, and the DC predictions there.
 * With these, the next decoding of the same bytes begins at the rows that a crop needs, and reads
 * several rows at once (jpeg_intervals.h), as if the file had restart markers.
 *
 * Each row of MCUs is divided into intervals of interval_mcus MCUs, of which the last one may be
 * shorter. Seek points are the ends of the image's first n intervals. They hold for the bytes that
 * they were found in, whose checksum is kept with them: a file that was replaced is decoded anew.
 */
#ifndef FM_DECODE_JPEG_SEEK_H
#define FM_DECODE_JPEG_SEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decode/jpeg_huffman.h"

#define FM_JPEG_SEEK_COMPONENTS 3
/* Most intervals of an image. */
#define FM_JPEG_SEEK_MAX 16384

/* The end of an interval. */
typedef struct fm_jpeg_seek_end {
    uint16_t n_bits;                     /* of the interval, stuffed zeros included */
    int16_t dc[FM_JPEG_SEEK_COMPONENTS]; /* the predictions behind it */
} fm_jpeg_seek_end;

/* What is kept of an image between two decodings, with its ends. */
typedef struct fm_jpeg_seek_head {
    uint64_t checksum; /* of the file's first n_bytes: the header and the first n intervals */
    uint32_t n_bytes;
    uint32_t n, n_all;                     /* intervals whose ends are known, and all */
    uint32_t interval_mcus, row_intervals; /* of an interval and of a row; 0: not chosen */
} fm_jpeg_seek_head;

/* The seek points of the image that a thread decodes. Functions are for that thread. */
typedef struct fm_jpeg_seek {
    fm_jpeg_seek_head head;
    uint32_t max_bytes; /* what the ends of one image should take; set by the owner */
    uint32_t n_used;    /* head.n when decoding began; 0: it did not, or made no use of them */
    bool is_changed;    /* ends were added, or dropped, since then */
    fm_jpeg_seek_end ends[FM_JPEG_SEEK_MAX];   /* [head.n] */
    uint64_t begin_bits[FM_JPEG_SEEK_MAX + 1]; /* [head.n + 1], from the scan's first byte on */
} fm_jpeg_seek;

/* An image whose seek points are wanted. */
typedef struct fm_jpeg_seek_image {
    uint32_t row_mcus, n_rows; /* MCUs in a row, and rows of them */
    uint32_t mcu_blocks;
    size_t n_bytes; /* of the file */
} fm_jpeg_seek_image;

/*
 * Takes over the head and ends of an earlier decoding, unless the file's bytes are others; head.n
 * is 0 if there was none. `data` is where the scan's data begins. Costs the checksum of the bytes
 * down to the last end.
 */
void fm_jpeg_seek_check(fm_jpeg_seek *seek, const uint8_t *bytes, size_t n_bytes,
                        const uint8_t *data);

/* Prepares for the image; chooses its intervals unless some are known, which must be its own.
 * false: it is too large. */
bool fm_jpeg_seek_begin(fm_jpeg_seek *seek, const fm_jpeg_seek_image *image);

/* Adds the end of interval head.n, which must be the next one. false: it is out of range, and no
 * other one may be added. */
bool fm_jpeg_seek_add(fm_jpeg_seek *seek, const fm_huffman_point *end);

/* The number of the last interval that begins at or before an MCU, and whose begin is known. */
uint32_t fm_jpeg_seek_last(const fm_jpeg_seek *seek, uint32_t mcu, uint32_t row_mcus);

/* Where an interval begins, 0 to head.n. */
void fm_jpeg_seek_get(const fm_jpeg_seek *seek, uint32_t interval, fm_huffman_point *point);

/* After decoding, if is_changed: sets the checksum. `data` as in fm_jpeg_seek_check(). */
void fm_jpeg_seek_set_checksum(fm_jpeg_seek *seek, const uint8_t *bytes, const uint8_t *data);

/* The first MCU of an interval, counted in the whole image; 0 to head.n_all. */
static inline uint32_t fm_jpeg_seek_mcu(const fm_jpeg_seek *seek, uint32_t interval,
                                        uint32_t row_mcus) {
    return interval / seek->head.row_intervals * row_mcus +
           interval % seek->head.row_intervals * seek->head.interval_mcus;
}

#endif
