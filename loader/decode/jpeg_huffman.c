#define _GNU_SOURCE
#include "decode/jpeg_huffman.h"

#include <assert.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define COLD __attribute__((cold, noinline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Bits that one look-up sees. */
#define READ_BITS 10
#define SKIP_BITS 11
#define MAX_CODE_BITS 16

/* No block takes more: 64 symbols of a code of 16 and a value of 15 bits. */
#define MAX_BLOCK_BYTES 248
/* Bytes behind the ones that count which an MCU that starts before their end may read. */
#define MARGIN (FM_HUFFMAN_MAX_BLOCKS * MAX_BLOCK_BYTES + 80)
#define WINDOW_BYTES 16384
/* What unstuff() may write further than it was asked to. */
#define SLACK 16
/* Behind a segment's end: more than the longest code and its value, so that damage there has the
 * same name whatever the window held before. */
#define N_ZEROS 16

/* Predictions stay far within int32 if each MCU leaves them below this. */
#define MAX_PREDICTION (1 << 29)

/* ---- tables ---------------------------------------------------------------------------------- */

/*
 * An entry for reading, by the next READ_BITS bits:
 *
 *     bits 0-7    length of code and value
 *     bits 8-14   for AC, the run and one
 *     bit 15      a special entry
 *     bits 16-31  the value, signed
 *
 * Special are the end of a block and symbols whose value's bits are not all seen: the length is
 * the code's then, and the symbol stands in bits 16-23. 0 for length: the code is not all seen.
 */
#define SPECIAL 0x8000u

/*
 * An entry for two AC symbols at once:
 *
 *     bits 0-7    length of both
 *     bits 8-15   places from the value before to the first one
 *     bits 16-23  ... to the second one
 *     bits 24-39  the first value, 40-55 the second
 *     bits 56-61  places to the last value that is taken
 *     bit 62      the block ends behind it
 *     bit 63      a special entry: the first symbol is one
 *
 * Where the second symbol is not all seen, its value is a 0 for the place behind the first. The
 * upper byte, added to a place below 63, stays below 63 unless there is something to look at.
 */
#define PAIR_END 0x40u
#define PAIR_SPECIAL 0x80u

/*
 * An entry for skipping, by the next SKIP_BITS bits: bits 0-7 are the length of as many symbols as
 * begin, with their whole code, in what is seen; bits 8-13 how many places they go on; the others
 * as above.
 */
#define SKIP_END 0x4000u
#define SKIP_SPECIAL 0x8000u

typedef struct code {
    uint16_t bits;
    uint8_t length, symbol;
} code;

typedef struct table {
    uint32_t read[1 << READ_BITS];
    uint64_t pairs[1 << READ_BITS]; /* of AC tables */
    uint16_t skip[1 << SKIP_BITS];  /* of AC tables, where has_skip */
    bool is_built, has_skip;
    int32_t n;       /* codes */
    code codes[256]; /* in rising order */
    /* By length, the largest code + 1, and what, added to a code, gives its place among `codes`. */
    int32_t end[MAX_CODE_BITS + 1], offset[MAX_CODE_BITS + 1];
} table;

/* T.81, F.2.2.1: the value that n extra bits stand for. */
INLINE int32_t extend(uint32_t bits, uint32_t n) {
    const int32_t value = (int32_t)bits;
    return value < (1 << n) >> 1 ? value - (1 << n) + 1 : value;
}

static bool same_codes(const table *t, const fm_huffman_code *given) {
    if (!t->is_built) return false;
    int32_t n = 0;
    for (uint8_t length = 1; length <= MAX_CODE_BITS; length++)
        for (int32_t left = given->n_codes[length]; left > 0; left--, n++)
            if (n == t->n || t->codes[n].length != length ||
                t->codes[n].symbol != given->symbols[n])
                return false;
    return n == t->n;
}

/* Numbers the codes (T.81, annex C). false if the lengths are not those of a code. */
static bool set_codes(table *t, const fm_huffman_code *given) {
    int32_t bits = 0, n = 0;
    for (uint8_t length = 1; length <= MAX_CODE_BITS; length++, bits *= 2) {
        t->offset[length] = n - bits;
        for (int32_t left = given->n_codes[length]; left > 0; left--, n++, bits++) {
            if (n == 256 || bits >= 1 << length) return false;
            t->codes[n] =
                (code){.bits = (uint16_t)bits, .length = length, .symbol = given->symbols[n]};
        }
        t->end[length] = bits;
    }
    t->n = n;
    return true;
}

/* Whether an AC symbol ends its block. libjpeg takes runs other than 0 for that, too. */
INLINE bool is_end(uint32_t symbol) { return (symbol & 15) == 0 && symbol != 0xf0; }

static void fill_read(table *t, bool is_ac) {
    for (size_t i = 0; i < 1u << READ_BITS; i++) t->read[i] = SPECIAL;
    for (const code *c = t->codes; c < t->codes + t->n && c->length <= READ_BITS; c++) {
        const int run = is_ac ? c->symbol >> 4 : 0, n_bits = is_ac ? c->symbol & 15 : c->symbol;
        const int n_behind = READ_BITS - c->length; /* bits seen behind the code */
        const bool ends = is_ac && is_end(c->symbol);
        uint32_t *const entries = t->read + ((size_t)c->bits << n_behind);
        for (uint32_t i = 0; i < 1u << n_behind; i++) {
            if (ends || n_bits > n_behind) {
                entries[i] = (uint32_t)c->symbol << 16 | SPECIAL | c->length;
                continue;
            }
            const int32_t value = extend(i >> (n_behind - n_bits), (uint32_t)n_bits);
            entries[i] =
                (uint32_t)value << 16 | (uint32_t)(run + 1) << 8 | (uint32_t)(c->length + n_bits);
        }
    }
}

/* From the entries for one. */
static void fill_pairs(table *t) {
    for (uint32_t bits = 0; bits < 1u << READ_BITS; bits++) {
        const uint32_t first = t->read[bits];
        if (first & SPECIAL) {
            t->pairs[bits] = (uint64_t)PAIR_SPECIAL << 56;
            continue;
        }
        const uint32_t length = first & 0xff, place = first >> 8 & 0x7f;
        const uint32_t second = t->read[bits << length & ((1u << READ_BITS) - 1)];
        const uint32_t next_length = second & 0xff;
        const bool is_seen = next_length > 0 && length + next_length <= READ_BITS;
        uint32_t lengths = length, next_place = place + 1, next_value = 0, reach = place;
        if (is_seen && !(second & SPECIAL)) {
            lengths += next_length;
            next_value = second >> 16;
            reach = next_place = place + (second >> 8 & 0x7f);
        } else if (is_seen && is_end(second >> 16 & 0xff)) {
            lengths += next_length;
            reach |= PAIR_END;
        }
        t->pairs[bits] = lengths | place << 8 | next_place << 16 | (uint64_t)(first >> 16) << 24 |
                         (uint64_t)next_value << 40 | (uint64_t)reach << 56;
    }
}

/*
 * The entries for r bits, r from 0 on, stand one behind the other: behind a symbol's code and value
 * the entries for what is left of the r bits go on. Each is made from smaller ones.
 */
static void fill_skip(table *t) {
    uint16_t levels[2 << SKIP_BITS]; /* level r begins at 1 << r */
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) levels[i] = SKIP_SPECIAL;
    for (int r = 1; r <= SKIP_BITS; r++) {
        for (const code *c = t->codes; c < t->codes + t->n && c->length <= r; c++) {
            const int run = c->symbol >> 4, n_bits = c->symbol & 15;
            const int n_behind = r - c->length, n_next_bits = n_behind - n_bits;
            const bool ends = is_end(c->symbol);
            const uint16_t first = ends ? (uint16_t)(SKIP_END | c->length)
                                        : (uint16_t)((run + 1) << 8 | (c->length + n_bits));
            uint16_t *const entries = levels + (1 << r) + ((size_t)c->bits << n_behind);
            const size_t n = (size_t)1 << n_behind;
            if (ends || n_next_bits < 1) {
                for (size_t i = 0; i < n; i++) entries[i] = first;
                continue;
            }
            const size_t n_next = (size_t)1 << n_next_bits;
            const uint16_t *const next = levels + n_next;
            for (size_t i = 0; i < n_next; i++) {
                const int places = (next[i] >> 8 & 0x3f) + run + 1;
                const bool only_first = next[i] & SKIP_SPECIAL || places > 63;
                entries[i] = only_first ? first : (uint16_t)(first + next[i]);
            }
            for (size_t i = n_next; i < n; i += n_next)
                memcpy(entries + i, entries, n_next * sizeof(*entries));
        }
    }
    memcpy(t->skip, levels + (1 << SKIP_BITS), sizeof(t->skip));
    t->has_skip = true;
}

static bool build(table *t, const fm_huffman_code *given, bool is_ac) {
    if (same_codes(t, given)) return true;
    t->is_built = t->has_skip = false;
    if (!set_codes(t, given)) return false;
    for (int32_t i = 0; i < t->n && !is_ac; i++)
        if (t->codes[i].symbol > 15) return false;
    fill_read(t, is_ac);
    if (is_ac) fill_pairs(t);
    t->is_built = true;
    return true;
}

/* ---- the window ------------------------------------------------------------------------------ */

/* The top n bits of `bits` are the next ones; `next` is the byte behind them. */
typedef struct reader {
    uint64_t bits;
    const uint8_t *next;
    uint32_t n;
} reader;

typedef struct mcu_block {
    const table *dc;
    table *ac;
    int32_t *prediction; /* of its component */
} mcu_block;

struct fm_huffman {
    reader reader;
    const uint8_t *check_at;            /* the reader's next byte from which on advance() is due */
    const uint8_t *end;                 /* of what the window has of the segment */
    const uint8_t *source, *source_end; /* what is not in the window yet */
    bool has_whole_segment;             /* source is at a marker or at its end */
    const char *damage;                 /* what the data was refused for */

    uint32_t restart_interval, restart_in, restart_number;
    int32_t n_blocks;
    mcu_block blocks[FM_HUFFMAN_MAX_BLOCKS]; /* of an MCU */
    int32_t prediction[FM_HUFFMAN_MAX_COMPONENTS];
    table dc[FM_HUFFMAN_N_TABLES], ac[FM_HUFFMAN_N_TABLES];
    uint8_t window[WINDOW_BYTES + SLACK + MARGIN];
};

/* Bits of the segment not yet taken; negative if bits were taken that it does not have. */
static int64_t bits_left(const fm_huffman *h) {
    return 8 * (int64_t)(h->end - h->reader.next) + h->reader.n;
}

/*
 * Copies bytes to `out` until a marker or the end of the source, taking the zero out that is
 * stuffed behind each FF. Returns the end of these bytes; all that is written lies within `room` +
 * SLACK bytes.
 */
static uint8_t *unstuff(fm_huffman *h, uint8_t *out, size_t room) {
    const uint8_t *from = h->source;
    uint8_t *const out_end = out + room;
    while (out < out_end) {
#if defined(__SSE2__)
        const __m128i ones = _mm_set1_epi8(-1);
        while (out < out_end && h->source_end - from >= 16) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)from);
            _mm_storeu_si128((__m128i *)out, bytes);
            const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, ones));
            const int n = found ? __builtin_ctz((unsigned)found) : 16;
            from += n;
            out += n;
            if (found) break;
        }
        if (out >= out_end) break;
#endif
        if (from == h->source_end) {
            h->has_whole_segment = true;
            break;
        }
        if (*from == 0xFF) {
            if (h->source_end - from < 2 || from[1] != 0) {
                h->has_whole_segment = true;
                break;
            }
            *out++ = 0xFF;
            from += 2;
            continue;
        }
        *out++ = *from++;
    }
    h->source = from;
    return out;
}

/* Fills the window behind what it still has. */
static void fill_window(fm_huffman *h) {
    assert(h->reader.next <= h->end); /* an MCU takes less than the margin */
    const size_t n_kept = (size_t)(h->end - h->reader.next);
    memmove(h->window, h->end - n_kept, n_kept);
    uint8_t *const end = unstuff(h, h->window + n_kept, WINDOW_BYTES - n_kept);
    h->end = end;
    h->reader.next = h->window;
    if (h->has_whole_segment) {
        memset(end, 0, N_ZEROS);
        h->check_at = end;
    } else {
        h->check_at = end - MARGIN;
    }
}

static void begin_segment(fm_huffman *h) {
    h->has_whole_segment = false;
    h->reader = (reader){.next = h->window};
    h->end = h->window;
    memset(h->prediction, 0, sizeof(h->prediction));
    h->restart_in = h->restart_interval;
    fill_window(h);
}

static const char ENDS_EARLY[] = "the data ends early";

/* Whatever came of bits that were made up is no damage of its own. */
static COLD bool refuse(fm_huffman *h, const char *damage) {
    const bool made_up = h->has_whole_segment && bits_left(h) < 0;
    h->damage = made_up ? ENDS_EARLY : damage;
    return false;
}

/* Due between MCUs from check_at on: fills the window, or looks whether bits were made up. */
static bool advance(fm_huffman *h) {
    if (h->has_whole_segment) return bits_left(h) >= 0 || refuse(h, ENDS_EARLY);
    fill_window(h);
    return true;
}

static const char WRONG_RESTART[] = "not the restart marker that is due";

/* To the next segment. */
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

/* The n-th restart marker from p on, n at least 1; NULL: there are fewer. */
static const uint8_t *find_restart(const uint8_t *p, const uint8_t *end, uint32_t n) {
#if defined(__SSE2__)
    const __m128i ones = _mm_set1_epi8(-1), kind = _mm_set1_epi8((char)0xF8);
    const __m128i restarts = _mm_set1_epi8((char)0xD0);
    for (; end - p > 16; p += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        const __m128i behind = _mm_loadu_si128((const __m128i *)(p + 1));
        const __m128i found = _mm_and_si128(_mm_cmpeq_epi8(bytes, ones),
                                            _mm_cmpeq_epi8(_mm_and_si128(behind, kind), restarts));
        for (int mask = _mm_movemask_epi8(found); mask; mask &= mask - 1)
            if (--n == 0) return p + __builtin_ctz((unsigned)mask);
    }
#endif
    for (; end - p >= 2; p++)
        if (p[0] == 0xFF && (p[1] & 0xF8) == 0xD0 && --n == 0) return p;
    return NULL;
}

/* To the n-th segment behind this one, without a look at those in between. */
static bool leap(fm_huffman *h, uint32_t n) {
    const uint32_t number = (h->restart_number + (n - 1) % 8) % 8;
    const uint8_t *const marker = find_restart(h->source, h->source_end, n);
    if (!marker) return refuse(h, ENDS_EARLY);
    if (marker[1] != 0xD0 + number) return refuse(h, WRONG_RESTART);
    h->restart_number = (number + 1) % 8;
    h->source = marker + 2;
    begin_segment(h);
    return true;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The place of the k-th coefficient. Runs of up to 16 may pass the end before that is noticed. */
static const uint8_t natural_order[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* At least 56 bits from then on. */
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

/* n is below 64. */
INLINE void take(reader *r, uint32_t n) {
    r->bits <<= n;
    r->n -= n;
}

/* The next n bits, 0 to 15, as a number. */
INLINE uint32_t peek(const reader *r, uint32_t n) { return (uint32_t)(r->bits >> 1 >> (63 - n)); }

/* Takes a code, of more than READ_BITS bits; its symbol or -1. */
static int take_long_code(reader *r, const table *t) {
    for (uint32_t length = READ_BITS + 1; length <= MAX_CODE_BITS; length++) {
        const int32_t bits = (int32_t)peek(r, length);
        if (bits >= t->end[length]) continue;
        take(r, length);
        return t->codes[bits + t->offset[length]].symbol;
    }
    return -1;
}

/* Takes the code of a special entry; its symbol or -1. */
INLINE int take_special(reader *r, const table *t, uint32_t entry) {
    if ((entry & 0xff) == 0) return take_long_code(r, t);
    take(r, entry & 0xff);
    return (int)(entry >> 16 & 0xff);
}

INLINE int32_t take_value(reader *r, uint32_t n_bits) {
    const int32_t value = extend(peek(r, n_bits), n_bits);
    take(r, n_bits);
    return value;
}

/* The difference to the prediction. Leaves 25 bits at least. */
INLINE bool take_dc(reader *r, const table *t, int32_t *prediction) {
    const uint32_t entry = t->read[r->bits >> (64 - READ_BITS)];
    if (UNLIKELY(entry & SPECIAL)) {
        const int symbol = take_special(r, t, entry);
        if (symbol < 0) return false;
        *prediction += take_value(r, (uint32_t)symbol);
        return true;
    }
    take(r, entry & 0xff);
    *prediction += (int32_t)entry >> 16;
    return true;
}

/* Takes one AC symbol. 0: it ends the block; else the places to its value, or -1 for damage. */
INLINE int take_ac(reader *r, const table *t, int32_t *value) {
    const uint32_t entry = t->read[r->bits >> (64 - READ_BITS)];
    if (!(entry & SPECIAL)) {
        take(r, entry & 0xff);
        *value = (int32_t)entry >> 16;
        return (int)(entry >> 8 & 0x7f);
    }
    const int symbol = take_special(r, t, entry);
    if (UNLIKELY(symbol < 0)) return -1;
    if (is_end((uint32_t)symbol)) return 0;
    *value = take_value(r, (uint32_t)symbol & 15);
    return (symbol >> 4) + 1;
}

/* Where a block's coefficients end. */
enum block_end { AT_ITS_END, PAST_ITS_END, AT_NO_CODE };

INLINE void store_pair(int16_t *block, uint32_t k, uint64_t entry) {
    /* The second one first: it may be a 0 for a place that the block does not have. */
    block[natural_order[k + (entry >> 16 & 0xff)]] = (int16_t)(entry >> 40);
    block[natural_order[k + (entry >> 8 & 0xff)]] = (int16_t)(entry >> 24);
}

/* A block's AC coefficients. */
INLINE enum block_end read_ac(reader *r, const table *t, int16_t *block) {
    const uint64_t *const pairs = t->pairs;
    uint32_t k = 0; /* the place of the last one */
    for (;;) {
        refill(r);
        uint64_t entry = 0;
        /* Five times READ_BITS bits are there. */
#pragma GCC unroll 5
        for (int i = 0; i < 5; i++) {
            entry = pairs[r->bits >> (64 - READ_BITS)];
            const uint32_t last = k + (uint32_t)(entry >> 56);
            if (UNLIKELY(last >= 63)) goto look;
            take(r, entry & 0xff);
            store_pair(block, k, entry);
            k = last;
        }
        continue;
    look:;
        const uint32_t reach = (uint32_t)(entry >> 56), last = k + (reach & 0x3f);
        if (!(reach & PAIR_SPECIAL) && (reach & PAIR_END ? last < 63 : last == 63)) {
            take(r, entry & 0xff);
            store_pair(block, k, entry);
            return AT_ITS_END;
        }
        refill(r);
        int32_t value = 0;
        const int places = take_ac(r, t, &value);
        if (places <= 0) return places == 0 ? AT_ITS_END : AT_NO_CODE;
        k += (uint32_t)places;
        block[natural_order[k]] = (int16_t)value;
        if (k >= 63) return k == 63 ? AT_ITS_END : PAST_ITS_END;
    }
}

/* The same without a block. */
INLINE enum block_end skip_ac(reader *r, const table *t) {
    const uint16_t *const skip = t->skip;
    uint32_t k = 0;
    for (;;) {
        refill(r);
        uint32_t entry = 0;
        /* Twice the longest entry's bits are there. */
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            entry = skip[r->bits >> (64 - SKIP_BITS)];
            const uint32_t last = k + (entry >> 8);
            if (UNLIKELY(last >= 63)) goto look;
            take(r, entry & 0xff);
            k = last;
        }
        continue;
    look:;
        const uint32_t last = k + (entry >> 8 & 0x3f);
        if (!(entry & SKIP_SPECIAL) && (entry & SKIP_END ? last < 63 : last == 63)) {
            take(r, entry & 0xff);
            return AT_ITS_END;
        }
        refill(r);
        int32_t value = 0;
        const int places = take_ac(r, t, &value);
        if (places <= 0) return places == 0 ? AT_ITS_END : AT_NO_CODE;
        k += (uint32_t)places;
        if (k >= 63) return k == 63 ? AT_ITS_END : PAST_ITS_END;
    }
}

static COLD bool refuse_block(fm_huffman *h, enum block_end end) {
    if (end == AT_NO_CODE) return refuse(h, "bad Huffman code");
    return refuse(h, end == PAST_ITS_END ? "a run past the end of its block"
                                         : "a DC coefficient out of range");
}

INLINE bool pass_mcu(fm_huffman *h, int16_t *const *blocks) {
    if (h->restart_interval) {
        if (h->restart_in == 0 && !restart(h)) return false;
        h->restart_in--;
    }
    reader r = h->reader; /* in registers */
    for (int32_t i = 0; i < h->n_blocks; i++) {
        const mcu_block *const b = &h->blocks[i];
        int32_t prediction = *b->prediction;
        refill(&r);
        if (UNLIKELY(!take_dc(&r, b->dc, &prediction))) {
            h->reader = r;
            return refuse_block(h, AT_NO_CODE);
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
        if (UNLIKELY(!in_range || end != AT_ITS_END)) {
            h->reader = r;
            return refuse_block(h, end);
        }
    }
    h->reader = r;
    return r.next <= h->check_at || advance(h);
}

bool fm_huffman_read(fm_huffman *huffman, int16_t *const *blocks) {
    return pass_mcu(huffman, blocks);
}

bool fm_huffman_skip(fm_huffman *huffman) {
    for (int32_t i = 0; i < huffman->n_blocks; i++) {
        table *const ac = huffman->blocks[i].ac;
        if (UNLIKELY(!ac->has_skip)) fill_skip(ac);
    }
    return pass_mcu(huffman, NULL);
}

bool fm_huffman_leap(fm_huffman *huffman, uint32_t n_mcus) {
    const uint32_t interval = huffman->restart_interval;
    uint32_t n_left = n_mcus;
    if (interval && n_mcus >= huffman->restart_in) {
        n_left = (n_mcus - huffman->restart_in) % interval;
        if (!leap(huffman, (n_mcus - huffman->restart_in) / interval + 1)) return false;
    }
    for (; n_left > 0; n_left--)
        if (!fm_huffman_skip(huffman)) return false;
    return true;
}

const char *fm_huffman_damage(const fm_huffman *huffman) { return huffman->damage; }

/* ---- open, begin, close ---------------------------------------------------------------------- */

fm_huffman *fm_huffman_open(fm_mem_counter *counter) {
    return fm_mem_zalloc(counter, 1, sizeof(fm_huffman));
}

bool fm_huffman_begin(fm_huffman *huffman, const fm_huffman_scan *scan) {
    if (scan->n_blocks < 1 || scan->n_blocks > FM_HUFFMAN_MAX_BLOCKS) return false;
    for (int32_t i = 0; i < scan->n_blocks; i++) {
        const fm_huffman_block given = scan->blocks[i];
        const uint8_t dc = given.dc_table, ac = given.ac_table;
        if (given.component >= FM_HUFFMAN_MAX_COMPONENTS || dc >= FM_HUFFMAN_N_TABLES ||
            ac >= FM_HUFFMAN_N_TABLES || !build(&huffman->dc[dc], &scan->dc[dc], false) ||
            !build(&huffman->ac[ac], &scan->ac[ac], true))
            return false;
        huffman->blocks[i] =
            (mcu_block){&huffman->dc[dc], &huffman->ac[ac], &huffman->prediction[given.component]};
    }
    huffman->n_blocks = scan->n_blocks;
    huffman->restart_interval = scan->restart_interval;
    huffman->restart_number = 0;
    huffman->damage = NULL;
    huffman->source = scan->bytes;
    huffman->source_end = scan->bytes + scan->n_bytes;
    begin_segment(huffman);
    return true;
}

void fm_huffman_close(fm_huffman **huffman) {
    if (!huffman) return;
    fm_mem_free(*huffman);
    *huffman = NULL;
}
