/*
 * Huffman decoding of several intervals of an image at once, in one thread: of restart intervals,
 * or of those between seek points (jpeg_seek.h).
 *
 * Where a symbol begins is known only once the one before it is looked up, so that decoding a
 * single interval mostly waits for the cache. Intervals do not depend on each other: while the CPU
 * waits for one, it works on the others.
 *
 * Only for intact data: whatever is unusual is left to the decoder of jpeg_huffman.h, which finds
 * out what it is.
 */
#ifndef FM_DECODE_JPEG_INTERVALS_H
#define FM_DECODE_JPEG_INTERVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "decode/jpeg_huffman.h"
#include "decode/jpeg_seek.h"

typedef struct fm_jpeg_intervals fm_jpeg_intervals;

/* A part of each row of MCUs whose coefficients are needed. */
typedef struct fm_jpeg_interval_part {
    int32_t row_mcus;           /* of a whole row */
    int32_t first_mcu, end_mcu; /* the part; `end` is the one after its last MCU */
    int32_t n_blocks;           /* of an MCU */
    const fm_jpeg_seek *seek;   /* NULL: restart intervals. Must stay until the last row is read */
    /* Where the coefficients of a block go, within the (end_mcu - first_mcu) * n_blocks blocks of a
     * row: for the part's first MCU, and how much further for each one after that. */
    struct {
        uint16_t first, step;
        uint8_t component;
    } blocks[FM_HUFFMAN_MAX_BLOCKS];
} fm_jpeg_interval_part;

/* Allocates about 650 KiB. NULL when out of memory. Each tier gives the same results. */
fm_jpeg_intervals *fm_jpeg_intervals_open(fm_mem_counter *counter, fm_cpu_tier tier);

/* Prepares for reading that part of rows of the scan which `huffman` has begun. false if restart
 * intervals do not divide a row, or the part is too large. */
bool fm_jpeg_intervals_begin(fm_jpeg_intervals *intervals, fm_huffman *huffman,
                             const fm_jpeg_interval_part *part);

/*
 * Reads the part of one or more rows, of at most max_rows. `huffman` must be where an interval
 * begins: the one that holds the part's first MCU. Afterwards it is at the end of the interval that
 * holds the part's last MCU, in the last row read.
 *
 * Returns the number of rows; 0 if the data is not intact, with `huffman` where it was.
 */
int32_t fm_jpeg_intervals_read(fm_jpeg_intervals *intervals, int32_t max_rows);

/*
 * The same for intervals between seek points, from a row of MCUs on. Neither uses nor moves
 * `huffman`. Returns the number of rows; 0 also if the ends of their intervals are not known.
 */
int32_t fm_jpeg_intervals_read_known(fm_jpeg_intervals *intervals, int32_t row, int32_t max_rows);

/* The coefficients of one of the rows that were read last, in natural order. */
const int16_t *fm_jpeg_intervals_row(const fm_jpeg_intervals *intervals, int32_t row);

/* Accepts NULL and a pointer to NULL. */
void fm_jpeg_intervals_close(fm_jpeg_intervals **intervals);

#endif
