/*
 * Huffman decoding of a baseline JPEG's single scan, MCU by MCU, in place of libjpeg-turbo's
 * decoder. Huffman decoding is the larger part of a JPEG's cost, and for most of the image a crop
 * only needs to know where MCUs end. Knows nothing of libjpeg.
 *
 * There are three ways through an MCU:
 *
 *     read   stores the coefficients; one look-up gives run, value and length of a usual symbol
 *     skip   only keeps the DC predictions; one look-up passes as many symbols as its index holds
 *     skip intervals   goes from one restart marker to another without decoding
 *
 * Read and skip work on a window from which the stuffed zeros are already removed, so that bits are
 * refilled without a branch (F. Giesen, "Reading bits in far too many ways", variant 4).
 *
 * Stricter than libjpeg, which warns and continues with made-up data: everything that it would warn
 * about up to the last MCU is refused. So is what libjpeg accepts silently: a run past a block's
 * end; whole bytes left over before a restart marker; and FF FF 00, where the standard allows no
 * padding FF, and after which libjpeg-turbo may return meaningless coefficients. Accepted data
 * gives libjpeg's coefficients. What follows the last MCU is not checked.
 *
 * One fm_huffman per thread, which is kept for all images; its tables are only built anew for other
 * codes.
 */
#ifndef FM_DECODE_JPEG_HUFFMAN_H
#define FM_DECODE_JPEG_HUFFMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/mem.h"

#define FM_HUFFMAN_MAX_BLOCKS 10 /* of an MCU, in the standard */
#define FM_HUFFMAN_N_TABLES 4
#define FM_HUFFMAN_MAX_COMPONENTS 4

/* A Huffman table as in the file (T.81, B.2.4.2). */
typedef struct fm_huffman_code {
    const uint8_t *n_codes; /* [17]: by length, 1 to 16 bits; [0] is not used */
    const uint8_t *symbols; /* [256]: by rising code */
} fm_huffman_code;

typedef struct fm_huffman_block {
    uint8_t component, dc_table, ac_table;
} fm_huffman_block;

typedef struct fm_huffman_scan {
    const uint8_t *bytes; /* starts with the entropy-coded data; more may follow */
    size_t n_bytes;
    uint32_t restart_interval; /* in MCUs; 0: none */
    int32_t n_blocks;          /* of an MCU */
    fm_huffman_block blocks[FM_HUFFMAN_MAX_BLOCKS];
    fm_huffman_code dc[FM_HUFFMAN_N_TABLES],
        ac[FM_HUFFMAN_N_TABLES]; /* only those that `blocks` use */
} fm_huffman_scan;

typedef struct fm_huffman fm_huffman;

/* Allocates about 220 KiB. NULL when out of memory. Each tier gives the same results; from
 * FM_CPU_AVX2 on, BMI2 is used. */
fm_huffman *fm_huffman_open(fm_mem_counter *counter, fm_cpu_tier tier);

/*
 * Starts a scan. scan->bytes must stay until its last MCU. false, without starting a scan, if a
 * table is not a Huffman code or a number is out of range.
 */
bool fm_huffman_begin(fm_huffman *huffman, const fm_huffman_scan *scan);

/*
 * Reads the next MCU's coefficients, in natural order, into n_blocks zeroed blocks of 64. false if
 * the data is damaged; then only fm_huffman_begin() and fm_huffman_close() may be called.
 */
bool fm_huffman_read(fm_huffman *huffman, int16_t *const *blocks);

/* Skips the next MCU. Detects the same damage as fm_huffman_read(). */
bool fm_huffman_skip(fm_huffman *huffman);

/*
 * Passes n_mcus MCUs before one that is read. Goes from restart marker to restart marker as far as
 * possible, and skips the rest. Of the segments passed without decoding, only the number of restart
 * markers is checked, and the number of the last marker.
 */
bool fm_huffman_skip_intervals(fm_huffman *huffman, uint32_t n_mcus);

/* A place in the entropy-coded data. */
typedef struct fm_huffman_place {
    const uint8_t *bytes, *end; /* the data from that place on */
    uint32_t next_restart;      /* number of the next restart marker, 0 to 7 */
} fm_huffman_place;

/* Sets *place to where the current restart interval begins. */
void fm_huffman_tell(const fm_huffman *huffman, fm_huffman_place *place);

/* Goes to a place in the same scan: where a restart interval begins or, with `is_end`, where one
 * ends that another decoder has read. */
void fm_huffman_seek(fm_huffman *huffman, const fm_huffman_place *place, bool is_end);

/* Where an MCU begins, in a scan without restart intervals. */
typedef struct fm_huffman_point {
    uint64_t bit; /* from the scan's first byte on, stuffed zeros included */
    int32_t dc[FM_HUFFMAN_MAX_COMPONENTS]; /* the predictions */
} fm_huffman_point;

/* After fm_huffman_begin(): fm_huffman_tell_mcu() may be called. Costs a look at each byte. */
void fm_huffman_track(fm_huffman *huffman);

/* Sets *point to where the next MCU begins. */
void fm_huffman_tell_mcu(fm_huffman *huffman, fm_huffman_point *point);

/* Goes to a point of the same scan. */
void fm_huffman_seek_mcu(fm_huffman *huffman, const fm_huffman_point *point);

/* The scan's data; the end may be that of the file. */
void fm_huffman_data(const fm_huffman *huffman, const uint8_t **data, const uint8_t **end);

/* The scan's restart interval in MCUs; 0: none. */
uint32_t fm_huffman_interval(const fm_huffman *huffman);

/* Why an MCU was refused, such as "the data ends early"; a constant string. NULL if none was. */
const char *fm_huffman_damage(const fm_huffman *huffman);

/* Accepts NULL and a pointer to NULL. */
void fm_huffman_close(fm_huffman **huffman);

#endif
