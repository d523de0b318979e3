/*
 * Compares the reading of several restart intervals at once (jpeg_intervals.h) with jpeg_huffman.h,
 * which reads one after another: made data, with any codes that the format allows, has the same
 * coefficients; of damaged data, whatever is read is what jpeg_huffman.h reads without finding
 * damage. Prints its seed; FM_SEED sets it.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decode/jpeg_huffman.h"
#include "decode/jpeg_intervals.h"
#include "guarded.h"

enum { MOST_BYTES = 1 << 20, MOST_WIDE = 40, MOST_HIGH = 9 };

static uint32_t lcg_state;
static int random_below(int n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static int least(int a, int b) { return a < b ? a : b; }

/* ---- codes ----------------------------------------------------------------------------------- */

typedef struct code {
    uint8_t n_codes[17], symbols[256];
    int n;
    int lengths[256], bits[256]; /* by symbol */
} code;

/* Lengths at random, under which each symbol still gets a code of at most 16 bits. */
static void choose_lengths(code *c, bool are_short) {
    int n_free = 1, n_left = c->n;
    for (int length = 1; length <= 16; length++) {
        n_free *= 2;
        /* One code must stay free: a code of ones alone is not allowed. */
        int most = least(n_free - 1, n_left);
        while (most > 0 && ((n_free - most) << (16 - length)) - 1 < n_left - most) most--;
        int n = random_below(most + 1);
        if (length == 16 || (are_short && length > 7)) n = most;
        c->n_codes[length] = (uint8_t)n;
        n_free -= n;
        n_left -= n;
    }
    assert_int_equal(n_left, 0);
}

static void make_code(code *c, bool is_ac) {
    *c = (code){.n = 0};
    for (int n_bits = is_ac; n_bits < 16; n_bits++)
        for (int run = 0; run < (is_ac ? 16 : 1); run++)
            c->symbols[c->n++] = (uint8_t)(run << 4 | n_bits);
    if (is_ac) {
        c->symbols[c->n++] = 0xF0;
        c->symbols[c->n++] = 0x00;
    }
    for (int i = c->n - 1; i > 0; i--) {
        const int other = random_below(i + 1);
        const uint8_t symbol = c->symbols[i];
        c->symbols[i] = c->symbols[other];
        c->symbols[other] = symbol;
    }
    /* Symbols that occur often get short codes, or any. */
    for (int i = 0; is_ac && random_below(4) && i < 40; i++)
        for (int k = i + 1; k < c->n; k++)
            if ((c->symbols[k] & 15) < (c->symbols[i] & 15)) {
                const uint8_t symbol = c->symbols[i];
                c->symbols[i] = c->symbols[k];
                c->symbols[k] = symbol;
            }
    choose_lengths(c, random_below(3) > 0);
    int bits = 0, i = 0;
    for (int length = 1; length <= 16; length++, bits *= 2)
        for (int n = c->n_codes[length]; n > 0; n--, i++, bits++) {
            c->lengths[c->symbols[i]] = length;
            c->bits[c->symbols[i]] = bits;
        }
}

/* ---- data ------------------------------------------------------------------------------------ */

typedef struct image {
    code dc[2], ac[2];
    fm_huffman_scan scan;
    int interval, wide, high; /* MCUs */
    test_guarded data;
} image;

typedef struct writer {
    uint8_t *bytes;
    size_t n;
    uint64_t bits;
    int n_bits; /* fewer than 8 between two calls */
} writer;

static void put(writer *w, uint32_t bits, int n) {
    w->bits = w->bits << n | bits;
    for (w->n_bits += n; w->n_bits >= 8;) {
        w->n_bits -= 8;
        const uint8_t byte = (uint8_t)(w->bits >> w->n_bits);
        w->bytes[w->n++] = byte;
        if (byte == 0xFF) w->bytes[w->n++] = 0;
    }
    assert_true(w->n < MOST_BYTES - 8);
}

static void put_symbol(writer *w, const code *c, int symbol) {
    put(w, (uint32_t)c->bits[symbol], c->lengths[symbol]);
    if ((symbol & 15) != 0) put(w, (uint32_t)random_below(1 << (symbol & 15)), symbol & 15);
}

static void put_block(writer *w, const code *dc, const code *ac, int most_bits) {
    put_symbol(w, dc, random_below(most_bits + 1));
    const int density = random_below(6);
    for (int k = 0; k < 63;) {
        if (random_below(8) >= density + 2) {
            put_symbol(w, ac, 0);
            return;
        }
        const int run = random_below(3) ? random_below(2) : random_below(16);
        if (k + run + 1 > 63) continue;
        const bool is_long_run = run == 15 && random_below(2);
        put_symbol(w, ac, is_long_run ? 0xF0 : run << 4 | (1 + random_below(most_bits)));
        k += run + 1;
    }
}

static void pad(writer *w) {
    if (w->n_bits) put(w, (1u << (8 - w->n_bits)) - 1, 8 - w->n_bits);
}

static void make(image *i) {
    static uint8_t bytes[MOST_BYTES];
    writer w = {.bytes = bytes};
    for (int t = 0; t < 2; t++) {
        make_code(&i->dc[t], false);
        make_code(&i->ac[t], true);
    }
    i->interval = 1 + random_below(8);
    i->wide = i->interval * (1 + random_below(MOST_WIDE / i->interval));
    i->high = 1 + random_below(MOST_HIGH);
    i->scan = (fm_huffman_scan){.restart_interval = (uint32_t)i->interval,
                                .n_blocks = 1 + random_below(random_below(3) ? 6 : 10)};
    for (int b = 0; b < i->scan.n_blocks; b++) {
        const uint8_t component = (uint8_t)(3 * b / i->scan.n_blocks);
        i->scan.blocks[b] = (fm_huffman_block){component, component > 0, component > 0};
    }
    const int most_bits = 1 + random_below(random_below(4) ? 6 : 15);
    for (int mcu = 0; mcu < i->wide * i->high; mcu++) {
        if (mcu && mcu % i->interval == 0) {
            pad(&w);
            w.bytes[w.n++] = 0xFF;
            w.bytes[w.n++] = (uint8_t)(0xD0 + (mcu / i->interval - 1) % 8);
        }
        for (int b = 0; b < i->scan.n_blocks; b++) {
            const int t = i->scan.blocks[b].dc_table;
            put_block(&w, &i->dc[t], &i->ac[t], most_bits);
        }
    }
    pad(&w);
    w.bytes[w.n++] = 0xFF;
    w.bytes[w.n++] = 0xD9;
    i->data = test_guarded_open(w.bytes, w.n);
}

static void begin(fm_huffman *huffman, image *i) {
    i->scan.bytes = i->data.bytes;
    i->scan.n_bytes = i->data.n;
    for (int t = 0; t < 2; t++) {
        i->scan.dc[t] = (fm_huffman_code){i->dc[t].n_codes, i->dc[t].symbols};
        i->scan.ac[t] = (fm_huffman_code){i->ac[t].n_codes, i->ac[t].symbols};
    }
    assert_true(fm_huffman_begin(huffman, &i->scan));
}

/* One byte more, less or another one, or a bit, or a restart marker of another number. */
static void damage(image *i) {
    static uint8_t bytes[MOST_BYTES];
    size_t n = i->data.n;
    memcpy(bytes, i->data.bytes, n);
    test_guarded_close(&i->data);
    size_t at = (size_t)random_below((int)n);
    switch (random_below(5)) {
    case 0:
        memmove(bytes + at + 1, bytes + at, n++ - at);
        bytes[at] = (uint8_t)random_below(256);
        break;
    case 1:
        memmove(bytes + at, bytes + at + 1, --n - at);
        break;
    case 2:
        bytes[at] = (uint8_t)random_below(256);
        break;
    case 3:
        while (at + 1 < n && !(bytes[at] == 0xFF && (bytes[at + 1] & 0xF8) == 0xD0)) at++;
        if (at + 1 < n) bytes[at + 1] = (uint8_t)(0xD0 + random_below(8));
        break;
    default:
        bytes[at] ^= (uint8_t)(1 << random_below(8));
        break;
    }
    i->data = test_guarded_open(bytes, n);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static fm_jpeg_interval_part random_part(const image *i) {
    fm_jpeg_interval_part part = {.row_mcus = i->wide, .n_blocks = i->scan.n_blocks};
    part.first_mcu = random_below(i->wide);
    part.end_mcu = part.first_mcu + 1 + random_below(i->wide - part.first_mcu);
    /* Side by side by block, as jpeg_rows.c has them, or MCU after MCU. */
    const int n = part.end_mcu - part.first_mcu;
    const bool is_apart = random_below(2);
    for (int b = 0; b < part.n_blocks; b++) {
        part.blocks[b].first = (uint16_t)(is_apart ? b * n : b);
        part.blocks[b].step = (uint16_t)(is_apart ? 1 : part.n_blocks);
        part.blocks[b].component = i->scan.blocks[b].component;
    }
    return part;
}

/* Reads the part of the next row by jpeg_huffman.h, from the beginning of the first interval. false
 * if it finds damage. */
static bool has_row(fm_huffman *huffman, const image *i, const fm_jpeg_interval_part *part,
                    uint32_t n_before, const int16_t *coefficients) {
    static int16_t memory[FM_HUFFMAN_MAX_BLOCKS][64];
    if (!fm_huffman_skip_intervals(huffman, n_before)) return false;
    for (int mcu = part->first_mcu - part->first_mcu % i->interval; mcu < part->end_mcu; mcu++) {
        int16_t *blocks[FM_HUFFMAN_MAX_BLOCKS];
        memset(memory, 0, sizeof(memory));
        for (int b = 0; b < part->n_blocks; b++) blocks[b] = memory[b];
        if (!fm_huffman_read(huffman, blocks)) return false;
        for (int b = 0; mcu >= part->first_mcu && b < part->n_blocks; b++) {
            const int at = part->blocks[b].first + (mcu - part->first_mcu) * part->blocks[b].step;
            assert_memory_equal(coefficients + 64 * (ptrdiff_t)at, memory[b], sizeof(memory[b]));
        }
    }
    return true;
}

/* Returns the number of rows that were read. */
static int compare(fm_huffman *huffman, fm_huffman *one_by_one, fm_jpeg_intervals *intervals,
                   image *i) {
    const fm_jpeg_interval_part part = random_part(i);
    const int first = part.first_mcu - part.first_mcu % i->interval;
    const int end = (part.end_mcu + i->interval - 1) / i->interval * i->interval;
    begin(huffman, i);
    begin(one_by_one, i);
    if (!fm_jpeg_intervals_begin(intervals, huffman, &part)) return -1;
    int row = random_below(i->high), n_before = row * i->wide + first;
    int n_reference = n_before; /* MCUs before the next one that one_by_one has not passed */
    while (row < i->high) {
        if (!fm_huffman_skip_intervals(huffman, (uint32_t)n_before)) return row;
        const int n_left = i->high - row;
        const int n = fm_jpeg_intervals_read(intervals, n_left - random_below(n_left));
        assert_in_range(n, 0, n_left);
        if (n == 0) return row;
        for (int k = 0; k < n; k++) {
            const int16_t *const coefficients = fm_jpeg_intervals_row(intervals, k);
            assert_true(has_row(one_by_one, i, &part, (uint32_t)n_reference, coefficients));
            n_reference = i->wide - part.end_mcu + first;
        }
        row += n;
        n_before = i->wide - end + first;
    }
    return row;
}

static void run(bool is_damaged) {
    fm_cpu_tier tier;
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), 0);
    fm_huffman *huffman = fm_huffman_open(NULL, tier), *one_by_one = fm_huffman_open(NULL, tier);
    fm_jpeg_intervals *intervals = fm_jpeg_intervals_open(NULL, tier);
    assert_non_null(intervals);
    static image i;
    int n_read = 0, n_refused = 0;
    for (int round = 0; round < 1000; round++) {
        make(&i);
        if (is_damaged) damage(&i);
        for (int part = 0; part < 6; part++) {
            const int n = compare(huffman, one_by_one, intervals, &i);
            if (n < 0) continue;
            n_read += n == i.high;
            n_refused += n < i.high;
            if (!is_damaged) assert_int_equal(n, i.high);
        }
        test_guarded_close(&i.data);
    }
    assert_true(n_read > 1000);
    if (is_damaged) assert_true(n_refused > 300);
    fm_jpeg_intervals_close(&intervals);
    fm_huffman_close(&one_by_one);
    fm_huffman_close(&huffman);
}

static void intact_intervals_are_read(void **state) {
    (void)state;
    run(false);
}

static void damaged_intervals_are_not_read(void **state) {
    (void)state;
    run(true);
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 1;
    print_message("seed %u\n", lcg_state);
    const struct CMUnitTest tests[] = {cmocka_unit_test(intact_intervals_are_read),
                                       cmocka_unit_test(damaged_intervals_are_not_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
