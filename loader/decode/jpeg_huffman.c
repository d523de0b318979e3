#define _GNU_SOURCE
#include "decode/jpeg_huffman.h"

#include <assert.h>
#include <string.h>

#include "decode/jpeg_huffman_tables.h"
#include "decode/jpeg_segments.h"

#define INLINE static inline __attribute__((always_inline))
#define COLD __attribute__((cold, noinline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Upper bound of a block: 64 symbols with a code of 16 bits and a value of 15 bits. */
#define MAX_BLOCK_BYTES 248
/* How far an MCU may read beyond the byte at which it starts. */
#define MARGIN (FM_HUFFMAN_MAX_BLOCKS * MAX_BLOCK_BYTES + 80)
#define WINDOW_BYTES 16384
/* Zeros after a segment's end, longer than any code with its value, so that the message about
 * damage there does not depend on earlier contents of the window. */
#define N_ZEROS 16

/* Limit of a DC prediction after each MCU, which keeps sums far within int32. */
#define MAX_PREDICTION (1 << 29)

/* ---- window and segments --------------------------------------------------------------------- */

/* The top n bits of `bits` are the next bits of the window; `next` is the byte after them. */
typedef struct reader {
    uint64_t bits;
    const uint8_t *next;
    uint32_t n;
} reader;

typedef struct mcu_block {
    fm_huffman_table *dc, *ac;
    int32_t *prediction; /* of its component */
} mcu_block;

/* As fm_huffman_read(); blocks is NULL to skip. */
typedef bool (*process_fn)(fm_huffman *h, int16_t *const *blocks);

struct fm_huffman {
    process_fn read, skip;
    reader reader;
    const uint8_t *check_at; /* once reader.next is past this, advance() must be called */
    const uint8_t *end;      /* of the segment's bytes in the window */
    const uint8_t *segment;  /* where the segment begins in the source */
    const uint8_t *source, *source_end; /* data that is not in the window yet */
    const uint8_t *begin;               /* of the scan's data */
    /* If is_tracked: a byte of the window, at or before the next bit, and where it came from. */
    const uint8_t *mark, *mark_source;
    bool is_tracked;
    bool has_whole_segment; /* `source` is at a marker or at the end */
    const char *damage;     /* why the data was refused */

    uint32_t restart_interval, restart_in, restart_number;
    int32_t n_blocks;
    bool has_pairs, has_skip;                /* the tables of all blocks have them */
    mcu_block blocks[FM_HUFFMAN_MAX_BLOCKS]; /* of an MCU */
    int32_t prediction[FM_HUFFMAN_MAX_COMPONENTS];
    fm_huffman_table dc[FM_HUFFMAN_N_TABLES], ac[FM_HUFFMAN_N_TABLES];
    uint8_t window[WINDOW_BYTES + FM_JPEG_UNSTUFF_SLACK + MARGIN];
};

/* Remaining bits of the segment; negative if more bits were consumed than it has. */
static int64_t bits_left(const fm_huffman *h) {
    return 8 * (int64_t)(h->end - h->reader.next) + h->reader.n;
}

/* The byte that holds the next bit. */
static const uint8_t *next_byte(const reader *r) { return r->next - (r->n + 7) / 8; }

/* Moves the mark to a byte of the window behind it. */
static void move_mark(fm_huffman *h, const uint8_t *to) {
    /* A zero was stuffed after each FF. */
    h->mark_source += (to - h->mark) + (ptrdiff_t)fm_jpeg_count_ff(h->mark, to);
    h->mark = to;
}

/* Moves the window's unread bytes to its start and fills the rest. */
static void fill_window(fm_huffman *h) {
    assert(h->reader.next <= h->end); /* an MCU takes fewer bytes than MARGIN */
    const uint8_t *const first = next_byte(&h->reader);
    const size_t n_ahead = (size_t)(h->reader.next - first);
    const size_t n_kept = (size_t)(h->end - first);
    if (h->is_tracked) move_mark(h, first);
    h->mark = h->window;
    memmove(h->window, first, n_kept);
    uint8_t *const end = fm_jpeg_unstuff(&h->source, h->source_end, h->window + n_kept,
                                         WINDOW_BYTES - n_kept, &h->has_whole_segment);
    h->end = end;
    h->reader.next = h->window + n_ahead;
    if (h->has_whole_segment) {
        memset(end, 0, N_ZEROS);
        h->check_at = end;
    } else {
        h->check_at = end - MARGIN;
    }
}

static void begin_segment(fm_huffman *h) {
    h->segment = h->mark_source = h->source;
    h->has_whole_segment = false;
    h->reader = (reader){.next = h->window};
    h->end = h->mark = h->window;
    memset(h->prediction, 0, sizeof(h->prediction));
    h->restart_in = h->restart_interval;
    fill_window(h);
}

static const char ENDS_EARLY[] = "the data ends early";

/* If bits beyond the segment's end were consumed, the data ended early, whatever else was found. */
static COLD bool refuse(fm_huffman *h, const char *damage) {
    const bool past_end = h->has_whole_segment && bits_left(h) < 0;
    h->damage = past_end ? ENDS_EARLY : damage;
    return false;
}

/* Called between MCUs past check_at: fills the window, or checks that the segment has not ended
 * early. */
static bool advance(fm_huffman *h) {
    if (h->has_whole_segment) return bits_left(h) >= 0 || refuse(h, ENDS_EARLY);
    fill_window(h);
    return true;
}

static const char WRONG_RESTART[] = "not the restart marker that is due";

/* Goes to the next segment, which begins after the next restart marker. */
static bool restart(fm_huffman *h) {
    if (!h->has_whole_segment || bits_left(h) >= 8)
        return refuse(h, "data is left before a restart marker");
    const uint8_t *p = h->source;
    while (p < h->source_end && *p == 0xFF) p++;
    if (p == h->source || p == h->source_end || *p != 0xD0 + h->restart_number)
        return refuse(h, WRONG_RESTART);
    h->restart_number = (h->restart_number + 1) % 8;
    h->source = p + 1;
    begin_segment(h);
    return true;
}

/* Goes to the n-th segment after this one without decoding those in between. */
static bool skip_segments(fm_huffman *h, uint32_t n) {
    const uint32_t number = (h->restart_number + (n - 1) % 8) % 8;
    const uint8_t *const marker = fm_jpeg_find_restart(h->source, h->source_end, n);
    if (!marker) return refuse(h, ENDS_EARLY);
    if (marker[1] != 0xD0 + number) return refuse(h, WRONG_RESTART);
    h->restart_number = (number + 1) % 8;
    h->source = marker + 2;
    begin_segment(h);
    return true;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Afterwards r has at least 56 bits. */
INLINE void refill(reader *r) {
    uint64_t word;
    memcpy(&word, r->next, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    r->bits |= word >> r->n;
    r->next += (63 - r->n) >> 3;
    r->n |= 56;
}

/* Consumes n bits, n below 64. */
INLINE void consume(reader *r, uint32_t n) {
    r->bits <<= n;
    r->n -= n;
}

/* The next n bits, 0 to 15, as a number. */
INLINE uint32_t peek(const reader *r, uint32_t n) { return (uint32_t)(r->bits >> 1 >> (63 - n)); }

/* Consumes a code of more than READ_BITS bits. Returns its symbol or -1. */
static int read_long_code(reader *r, const fm_huffman_table *t) {
    uint32_t length;
    const int symbol = fm_huffman_find_long(t, r->bits, &length);
    consume(r, length);
    return symbol;
}

/* Consumes the code of a special entry. Returns its symbol or -1. */
INLINE int read_special(reader *r, const fm_huffman_table *t, uint32_t entry) {
    if ((entry & 0xff) == 0) return read_long_code(r, t);
    consume(r, entry & 0xff);
    return (int)(entry >> 16 & 0xff);
}

INLINE int32_t read_value(reader *r, uint32_t n_bits) {
    const int32_t value = fm_huffman_extend(peek(r, n_bits), n_bits);
    consume(r, n_bits);
    return value;
}

/* Adds the DC difference to *prediction. Leaves at least 25 bits. */
INLINE bool read_dc(reader *r, const fm_huffman_table *t, int32_t *prediction) {
    const uint32_t entry = t->read[r->bits >> (64 - READ_BITS)];
    if (UNLIKELY(entry & SPECIAL)) {
        const int symbol = read_special(r, t, entry);
        if (symbol < 0) return false;
        *prediction += read_value(r, (uint32_t)symbol);
        return true;
    }
    consume(r, entry & 0xff);
    *prediction += (int32_t)entry >> 16;
    return true;
}

/* Reads one AC symbol. Returns the places to its value, 0 at the end of the block, -1 if damaged.
 */
INLINE int read_ac_symbol(reader *r, const fm_huffman_table *t, int32_t *value) {
    const uint32_t entry = t->read[r->bits >> (64 - READ_BITS)];
    if (!(entry & SPECIAL)) {
        consume(r, entry & 0xff);
        *value = (int32_t)entry >> 16;
        return (int)(entry >> 8 & 0x7f);
    }
    const int symbol = read_special(r, t, entry);
    if (UNLIKELY(symbol < 0)) return -1;
    if (fm_huffman_is_end((uint32_t)symbol)) return 0;
    *value = read_value(r, (uint32_t)symbol & 15);
    return (symbol >> 4) + 1;
}

/* How reading a block's AC coefficients ended. */
enum block_end { BLOCK_COMPLETE, BLOCK_OVERRUN, BAD_CODE };

INLINE void store_pair(int16_t *block, uint32_t k, uint64_t entry) {
    /* The second value first: it may be a 0 for a place past the block's end. */
    block[fm_jpeg_natural_order[k + (entry >> 16 & 0xff)]] = (int16_t)(entry >> 40);
    block[fm_jpeg_natural_order[k + (entry >> 8 & 0xff)]] = (int16_t)(entry >> 24);
}

/* Reads a block's AC coefficients. */
INLINE enum block_end read_ac(reader *r, const fm_huffman_table *t, int16_t *block) {
    const uint64_t *const pairs = t->pairs;
    uint32_t k = 0; /* index of the last coefficient */
    for (;;) {
        refill(r);
        uint64_t entry = 0;
        /* refill() gives enough bits for five look-ups. */
#pragma GCC unroll 5
        for (int i = 0; i < 5; i++) {
            entry = pairs[r->bits >> (64 - READ_BITS)];
            const uint32_t last = k + (uint32_t)(entry >> 56);
            if (UNLIKELY(last >= 63)) goto slow;
            consume(r, entry & 0xff);
            store_pair(block, k, entry);
            k = last;
        }
        continue;
    slow:;
        const uint32_t reach = (uint32_t)(entry >> 56), last = k + (reach & 0x3f);
        if (!(reach & PAIR_SPECIAL) && (reach & PAIR_END ? last < 63 : last == 63)) {
            consume(r, entry & 0xff);
            store_pair(block, k, entry);
            return BLOCK_COMPLETE;
        }
        refill(r);
        int32_t value = 0;
        const int places = read_ac_symbol(r, t, &value);
        if (places <= 0) return places == 0 ? BLOCK_COMPLETE : BAD_CODE;
        k += (uint32_t)places;
        block[fm_jpeg_natural_order[k]] = (int16_t)value;
        if (k >= 63) return k == 63 ? BLOCK_COMPLETE : BLOCK_OVERRUN;
    }
}

/* Skips a block's AC coefficients. */
INLINE enum block_end skip_ac(reader *r, const fm_huffman_table *t) {
    const uint16_t *const skip = t->skip;
    uint32_t k = 0;
    for (;;) {
        refill(r);
        uint32_t entry = 0;
        /* refill() gives enough bits for two entries of any length. */
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            entry = skip[r->bits >> (64 - SKIP_BITS)];
            const uint32_t last = k + (entry >> 8);
            if (UNLIKELY(last >= 63)) goto slow;
            consume(r, entry & 0xff);
            k = last;
        }
        continue;
    slow:;
        const uint32_t last = k + (entry >> 8 & 0x3f);
        if (!(entry & SKIP_SPECIAL) && (entry & SKIP_END ? last < 63 : last == 63)) {
            consume(r, entry & 0xff);
            return BLOCK_COMPLETE;
        }
        refill(r);
        int32_t value = 0;
        const int places = read_ac_symbol(r, t, &value);
        if (places <= 0) return places == 0 ? BLOCK_COMPLETE : BAD_CODE;
        k += (uint32_t)places;
        if (k >= 63) return k == 63 ? BLOCK_COMPLETE : BLOCK_OVERRUN;
    }
}

static COLD bool refuse_block(fm_huffman *h, enum block_end end) {
    if (end == BAD_CODE) return refuse(h, "bad Huffman code");
    return refuse(h, end == BLOCK_OVERRUN ? "a run past the end of its block"
                                          : "a DC coefficient out of range");
}

/* Reads an MCU into `blocks`, or skips it if `blocks` is NULL. */
INLINE bool process_mcu(fm_huffman *h, int16_t *const *blocks) {
    if (h->restart_interval) {
        if (h->restart_in == 0 && !restart(h)) return false;
        h->restart_in--;
    }
    reader r = h->reader; /* in registers */
    for (int32_t i = 0; i < h->n_blocks; i++) {
        const mcu_block *const b = &h->blocks[i];
        int32_t prediction = *b->prediction;
        refill(&r);
        if (UNLIKELY(!read_dc(&r, b->dc, &prediction))) {
            h->reader = r;
            return refuse_block(h, BAD_CODE);
        }
        *b->prediction = prediction;
        const bool in_range = (uint32_t)(prediction + MAX_PREDICTION) < 2u * MAX_PREDICTION;
        enum block_end end;
        if (blocks) {
            blocks[i][0] = (int16_t)prediction;
            end = read_ac(&r, b->ac, blocks[i]);
        } else {
            end = skip_ac(&r, b->ac);
        }
        if (UNLIKELY(!in_range || end != BLOCK_COMPLETE)) {
            h->reader = r;
            return refuse_block(h, end);
        }
    }
    h->reader = r;
    return r.next <= h->check_at || advance(h);
}

static bool read_plain(fm_huffman *h, int16_t *const *blocks) { return process_mcu(h, blocks); }
static bool skip_plain(fm_huffman *h, int16_t *const *blocks) {
    (void)blocks;
    return process_mcu(h, NULL);
}

#if defined(__x86_64__)
/* The same code with BMI2's shifts, which take their count from any register and leave the flags
 * alone. */
#define BMI2 __attribute__((target("bmi2")))
BMI2 static bool read_bmi2(fm_huffman *h, int16_t *const *blocks) { return process_mcu(h, blocks); }
BMI2 static bool skip_bmi2(fm_huffman *h, int16_t *const *blocks) {
    (void)blocks;
    return process_mcu(h, NULL);
}
#endif

bool fm_huffman_read(fm_huffman *huffman, int16_t *const *blocks) {
    if (UNLIKELY(!huffman->has_pairs)) {
        for (int32_t i = 0; i < huffman->n_blocks; i++)
            fm_huffman_table_add_pairs(huffman->blocks[i].ac);
        huffman->has_pairs = true;
    }
    return huffman->read(huffman, blocks);
}

bool fm_huffman_skip(fm_huffman *huffman) {
    if (UNLIKELY(!huffman->has_skip)) {
        for (int32_t i = 0; i < huffman->n_blocks; i++)
            fm_huffman_table_add_skip(huffman->blocks[i].ac);
        huffman->has_skip = true;
    }
    return huffman->skip(huffman, NULL);
}

bool fm_huffman_skip_intervals(fm_huffman *huffman, uint32_t n_mcus) {
    const uint32_t interval = huffman->restart_interval;
    uint32_t n_left = n_mcus;
    if (interval && n_mcus >= huffman->restart_in) {
        n_left = (n_mcus - huffman->restart_in) % interval;
        if (!skip_segments(huffman, (n_mcus - huffman->restart_in) / interval + 1)) return false;
    }
    for (; n_left > 0; n_left--)
        if (!fm_huffman_skip(huffman)) return false;
    return true;
}

void fm_huffman_tell(const fm_huffman *huffman, fm_huffman_place *place) {
    *place = (fm_huffman_place){.bytes = huffman->segment,
                                .end = huffman->source_end,
                                .next_restart = huffman->restart_number};
}

void fm_huffman_seek(fm_huffman *huffman, const fm_huffman_place *place, bool is_end) {
    huffman->source = place->bytes;
    huffman->restart_number = place->next_restart;
    if (!is_end) {
        begin_segment(huffman);
        return;
    }
    huffman->has_whole_segment = true;
    huffman->reader = (reader){.next = huffman->window};
    huffman->end = huffman->check_at = huffman->window;
    huffman->restart_in = 0;
}

void fm_huffman_track(fm_huffman *huffman) { huffman->is_tracked = true; }

void fm_huffman_tell_mcu(fm_huffman *huffman, fm_huffman_point *point) {
    assert(huffman->is_tracked);
    const reader *const r = &huffman->reader;
    move_mark(huffman, next_byte(r));
    point->bit = 8 * (uint64_t)(huffman->mark_source - huffman->begin) + (8 - r->n % 8) % 8;
    memcpy(point->dc, huffman->prediction, sizeof(point->dc));
}

void fm_huffman_seek_mcu(fm_huffman *huffman, const fm_huffman_point *point) {
    huffman->source = huffman->begin + point->bit / 8;
    begin_segment(huffman);
    refill(&huffman->reader);
    consume(&huffman->reader, point->bit % 8);
    memcpy(huffman->prediction, point->dc, sizeof(point->dc));
}

void fm_huffman_data(const fm_huffman *huffman, const uint8_t **data, const uint8_t **end) {
    *data = huffman->begin;
    *end = huffman->source_end;
}

uint32_t fm_huffman_interval(const fm_huffman *huffman) { return huffman->restart_interval; }

void fm_huffman_tables(fm_huffman *huffman, int32_t block, fm_huffman_table **dc,
                       fm_huffman_table **ac) {
    *dc = huffman->blocks[block].dc;
    *ac = huffman->blocks[block].ac;
}

const char *fm_huffman_damage(const fm_huffman *huffman) { return huffman->damage; }

/* ---- open, begin, close ---------------------------------------------------------------------- */

fm_huffman *fm_huffman_open(fm_mem_counter *counter, fm_cpu_tier tier) {
    fm_huffman *const huffman = fm_mem_zalloc(counter, 1, sizeof(fm_huffman));
    if (!huffman) return NULL;
    huffman->read = read_plain;
    huffman->skip = skip_plain;
#if defined(__x86_64__)
    if (tier >= FM_CPU_AVX2) {
        huffman->read = read_bmi2;
        huffman->skip = skip_bmi2;
    }
#else
    (void)tier;
#endif
    return huffman;
}

bool fm_huffman_begin(fm_huffman *huffman, const fm_huffman_scan *scan) {
    if (scan->n_blocks < 1 || scan->n_blocks > FM_HUFFMAN_MAX_BLOCKS) return false;
    for (int32_t i = 0; i < scan->n_blocks; i++) {
        const fm_huffman_block given = scan->blocks[i];
        const uint8_t dc = given.dc_table, ac = given.ac_table;
        if (given.component >= FM_HUFFMAN_MAX_COMPONENTS || dc >= FM_HUFFMAN_N_TABLES ||
            ac >= FM_HUFFMAN_N_TABLES ||
            !fm_huffman_table_build(&huffman->dc[dc], &scan->dc[dc], false) ||
            !fm_huffman_table_build(&huffman->ac[ac], &scan->ac[ac], true))
            return false;
        huffman->blocks[i] =
            (mcu_block){&huffman->dc[dc], &huffman->ac[ac], &huffman->prediction[given.component]};
    }
    huffman->n_blocks = scan->n_blocks;
    huffman->restart_interval = scan->restart_interval;
    huffman->restart_number = 0;
    huffman->damage = NULL;
    huffman->has_pairs = huffman->has_skip = false;
    huffman->is_tracked = false;
    huffman->begin = huffman->source = scan->bytes;
    huffman->source_end = scan->bytes + scan->n_bytes;
    begin_segment(huffman);
    return true;
}

void fm_huffman_close(fm_huffman **huffman) {
    if (!huffman) return;
    fm_mem_free(*huffman);
    *huffman = NULL;
}
