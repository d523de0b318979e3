/*
 * Huffman decoding of a baseline JPEG's single scan, MCU by MCU, in place of libjpeg-turbo's: the
 * larger part of a JPEG's cost, and a crop needs no more than the lengths of most of it.
 *
 * Three ways through an MCU. Reading stores its coefficients: one look-up gives the run, the value
 * and the length of all usual symbols at once. Skipping keeps nothing but the DC predictions: one
 * look-up passes as many symbols as it has bits for. Both read from a window in which the stuffed
 * zeros are gone already, so that bits are refilled without a test (F. Giesen, "Reading bits in far
 * too many ways", variant 4). Leaping goes from one restart marker to another.
 *
 * Stricter than libjpeg, which goes on with made-up data behind a warning: whatever it would warn
 * about up to the last MCU is refused. So is what it lets pass without a word there: a run past a
 * block's end; whole bytes left over before a restart marker; FF FF 00, in which the standard has
 * no FF to spare, and of which libjpeg-turbo may leave coefficients that stand for nothing. What is
 * taken has libjpeg's coefficients. What follows the last MCU is not looked at.
 *
 * Knows nothing of libjpeg. One fm_huffman per thread, kept for life; tables are kept from image to
 * image and built anew only where they differ.
 */
#ifndef FM_DECODE_JPEG_HUFFMAN_H
#define FM_DECODE_JPEG_HUFFMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

#define FM_HUFFMAN_MAX_BLOCKS 10 /* of an MCU, as the standard has it */
#define FM_HUFFMAN_N_TABLES 4
#define FM_HUFFMAN_MAX_COMPONENTS 4

/* A table as the file has it (T.81, B.2.4.2). */
typedef struct fm_huffman_code {
    const uint8_t *n_codes; /* [17]: by length, 1 to 16 bits; [0] is not looked at */
    const uint8_t *symbols; /* [256]: by rising code */
} fm_huffman_code;

typedef struct fm_huffman_block {
    uint8_t component, dc_table, ac_table;
} fm_huffman_block;

typedef struct fm_huffman_scan {
    const uint8_t *bytes; /* the entropy-coded data, from its first byte on, and what follows */
    size_t n_bytes;
    uint32_t restart_interval; /* in MCUs; 0: none */
    int32_t n_blocks;          /* of an MCU */
    fm_huffman_block blocks[FM_HUFFMAN_MAX_BLOCKS];
    fm_huffman_code dc[FM_HUFFMAN_N_TABLES], ac[FM_HUFFMAN_N_TABLES]; /* those that blocks name */
} fm_huffman_scan;

typedef struct fm_huffman fm_huffman;

/* NULL when out of memory. Some 150 KiB. */
fm_huffman *fm_huffman_open(fm_mem_counter *counter);

/*
 * Starts a scan, whose bytes must stay until its last MCU. false if a table is no Huffman code, or
 * a number is out of range: no scan is started then.
 */
bool fm_huffman_begin(fm_huffman *huffman, const fm_huffman_scan *scan);

/*
 * The next MCU's coefficients, in natural order, into n_blocks blocks of 64, which are zero before.
 * false if the data is damaged; only begin and close are allowed then.
 */
bool fm_huffman_read(fm_huffman *huffman, int16_t *const *blocks);

/* Passes the next MCU. Finds the same damage as reading does. */
bool fm_huffman_skip(fm_huffman *huffman);

/*
 * Passes n_mcus, before one that is read: by the restart markers as far as that goes, so that only
 * those that share its interval are looked at. Of those before that, nothing but the number of
 * restart markers is seen, and the last one's own.
 */
bool fm_huffman_leap(fm_huffman *huffman, uint32_t n_mcus);

/*
 * What the MCU was refused for, such as "the data ends early"; a constant. NULL if none of this
 * scan's was.
 */
const char *fm_huffman_damage(const fm_huffman *huffman);

/* Accepts NULL and a pointer to NULL. */
void fm_huffman_close(fm_huffman **huffman);

#endif
