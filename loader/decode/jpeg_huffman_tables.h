/*
 * The look-up tables of the Huffman decoder (jpeg_huffman.c): their format, and how they are built
 * from the codes of a file. Private to the decoder.
 */
#ifndef FM_DECODE_JPEG_HUFFMAN_TABLES_H
#define FM_DECODE_JPEG_HUFFMAN_TABLES_H

#include "decode/jpeg_huffman.h"

/* Bits that index a table. */
#define READ_BITS 10
#define SKIP_BITS 11
#define MAX_CODE_BITS 16

/*
 * An entry of `read`, indexed by the next READ_BITS bits:
 *
 *     bits 0-7    length of code and value
 *     bits 8-14   AC: the run of zeros, plus one
 *     bit 15      SPECIAL
 *     bits 16-31  the value, signed
 *
 * A special entry stands for the end of a block, or for a symbol of whose value the index does not
 * hold all bits: bits 0-7 are the length of the code alone, and bits 16-23 the symbol. Length 0:
 * the index does not hold the whole code.
 */
#define SPECIAL 0x8000u

/*
 * An entry of `pairs`, for two AC symbols at once:
 *
 *     bits 0-7    length of both
 *     bits 8-15   places from the previous value to the first one
 *     bits 16-23  places from the previous value to the second one
 *     bits 24-39  the first value, 40-55 the second
 *     bits 56-61  places from the previous value to the last one of the entry
 *     bit 62      PAIR_END: the block ends after the first value
 *     bit 63      PAIR_SPECIAL: the first symbol's entry in `read` is special
 *
 * If the index does not hold all of the second symbol, the second value is a 0 for the place after
 * the first. The top byte plus a place below 63 is 63 or more only if the entry needs a closer
 * look.
 */
#define PAIR_END 0x40u
#define PAIR_SPECIAL 0x80u

/*
 * An entry of `skip`, indexed by the next SKIP_BITS bits, for as many AC symbols as have their
 * whole code in the index: bits 0-7 are their length with values, bits 8-13 the places they
 * advance, and bits 14 and 15 as above.
 */
#define SKIP_END 0x4000u
#define SKIP_SPECIAL 0x8000u

typedef struct fm_huffman_symbol {
    uint16_t bits;
    uint8_t length, symbol;
} fm_huffman_symbol;

typedef struct fm_huffman_table {
    uint32_t read[1 << READ_BITS];
    uint64_t pairs[1 << READ_BITS]; /* AC only, if has_pairs */
    uint16_t skip[1 << SKIP_BITS];  /* AC only, if has_skip */
    uint64_t steps[1 << READ_BITS]; /* if has_steps; see jpeg_interval_tables.h */
    bool is_built, has_pairs, has_skip, has_steps;
    int32_t n;                    /* codes */
    fm_huffman_symbol codes[256]; /* in rising order */
    /* By length: the largest code + 1, and what to add to a code to get its index in `codes`. */
    int32_t end[MAX_CODE_BITS + 1], offset[MAX_CODE_BITS + 1];
} fm_huffman_table;

/* Index of the k-th coefficient. A run of up to 16 may pass the end before that is noticed. */
extern const uint8_t fm_jpeg_natural_order[64 + 16];

/* EXTEND of T.81, F.2.2.1: the value that n additional bits stand for. */
static inline __attribute__((always_inline)) int32_t fm_huffman_extend(uint32_t bits, uint32_t n) {
    const int32_t value = (int32_t)bits;
    return value < (1 << n) >> 1 ? value - (1 << n) + 1 : value;
}

/* Whether an AC symbol ends its block. As in libjpeg, that does not depend on the run. */
static inline __attribute__((always_inline)) bool fm_huffman_is_end(uint32_t symbol) {
    return (symbol & 15) == 0 && symbol != 0xf0;
}

/* Builds the table, but only `read` of its look-up tables, unless it has these codes already. false
 * if they are no code. */
bool fm_huffman_table_build(fm_huffman_table *t, const fm_huffman_code *given, bool is_ac);
/* Build `pairs` and `skip` of an AC table, unless it has them. */
void fm_huffman_table_add_pairs(fm_huffman_table *t);
void fm_huffman_table_add_skip(fm_huffman_table *t);

/* The symbol whose code of more than READ_BITS bits the top bits of `bits` begin with, and the
 * code's length; -1 and 0 if there is none. */
int fm_huffman_find_long(const fm_huffman_table *t, uint64_t bits, uint32_t *length);

/* The tables of a block of the MCU. They belong to the decoder, until fm_huffman_begin(). */
void fm_huffman_tables(fm_huffman *huffman, int32_t block, fm_huffman_table **dc,
                       fm_huffman_table **ac);

#endif
