/*
 * The look-up tables of jpeg_intervals.c: `steps` of fm_huffman_table. Private to that decoder.
 */
#ifndef FM_DECODE_JPEG_INTERVAL_TABLES_H
#define FM_DECODE_JPEG_INTERVAL_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "decode/jpeg_huffman_tables.h"

/*
 * A lane reads one restart interval at a time. How far it has come in a block is its state, a
 * number of 64 bits. A table entry stands for up to two symbols, and is added to the state as a
 * whole:
 *
 *     bits 0-7    length of all codes and values
 *     bits 8-15   places from the last coefficient to the first value
 *     bits 16-23  63 - n; n: the bits of the second value, which is not in the entry
 *     bits 24-39  the first value; less 1 if negative
 *     bits 40-47  bits before the second value
 *     bit 52      the block's DC or AC coefficients end
 *     bits 56-63  places from the last coefficient to the second value
 *
 * The state has in bits 0-7 how many bits of the lane's word are consumed, and in bits 56-63 the
 * place of the last coefficient plus PLACE_0. Place 64 overflows the state: a single branch finds
 * the end of a block without an end-of-block code, and, as their entries overflow it from any
 * place, the symbols that no entry can hold. The bits in between are not used; within LOOK_UPS
 * additions they do not overflow into bits 56-63.
 */
#define PLACE_0 193u
#define NEW_BLOCK 128u     /* in bits 56-63 before a DC coefficient */
#define DC_PLACES 65u      /* PLACE_0 - NEW_BLOCK */
#define MAX_ENTRY_BITS 19u /* a word has 57 bits for LOOK_UPS entries */
#define LOOK_UPS 3

/* An entry that overflows any state in which AC coefficients, or a DC coefficient, are due. */
#define CLOSER_LOOK(is_ac) ((uint64_t)((is_ac) ? 256 - PLACE_0 + 1 : 256 - NEW_BLOCK) << 56)

/* A negative value less 1: what the bits of a value give when its sign is extended. */
static inline __attribute__((always_inline)) int32_t fm_jpeg_stored(int32_t value) {
    return value - (value < 0);
}

/* Builds `steps` of a table, unless it has them. */
void fm_jpeg_interval_table_add(fm_huffman_table *t, bool is_ac);

#endif
