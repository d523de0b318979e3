#define _GNU_SOURCE
#include "decode/jpeg_huffman_tables.h"

#include <string.h>

const uint8_t fm_jpeg_natural_order[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

static bool same_codes(const fm_huffman_table *t, const fm_huffman_code *given) {
    if (!t->is_built) return false;
    int32_t n = 0;
    for (uint8_t length = 1; length <= MAX_CODE_BITS; length++)
        for (int32_t left = given->n_codes[length]; left > 0; left--, n++)
            if (n == t->n || t->codes[n].length != length ||
                t->codes[n].symbol != given->symbols[n])
                return false;
    return n == t->n;
}

/* Assigns the codes (T.81, annex C). false if the lengths are not those of a prefix code. */
static bool set_codes(fm_huffman_table *t, const fm_huffman_code *given) {
    int32_t bits = 0, n = 0;
    for (uint8_t length = 1; length <= MAX_CODE_BITS; length++, bits *= 2) {
        t->offset[length] = n - bits;
        for (int32_t left = given->n_codes[length]; left > 0; left--, n++, bits++) {
            if (n == 256 || bits >= 1 << length) return false;
            t->codes[n] = (fm_huffman_symbol){
                .bits = (uint16_t)bits, .length = length, .symbol = given->symbols[n]};
        }
        t->end[length] = bits;
    }
    t->n = n;
    return true;
}

static void fill_read(fm_huffman_table *t, bool is_ac) {
    for (size_t i = 0; i < 1u << READ_BITS; i++) t->read[i] = SPECIAL;
    for (const fm_huffman_symbol *c = t->codes; c < t->codes + t->n && c->length <= READ_BITS;
         c++) {
        const int run = is_ac ? c->symbol >> 4 : 0, n_bits = is_ac ? c->symbol & 15 : c->symbol;
        const int n_after = READ_BITS - c->length; /* bits of the index after the code */
        const bool ends = is_ac && fm_huffman_is_end(c->symbol);
        uint32_t *const entries = t->read + ((size_t)c->bits << n_after);
        for (uint32_t i = 0; i < 1u << n_after; i++) {
            if (ends || n_bits > n_after) {
                entries[i] = (uint32_t)c->symbol << 16 | SPECIAL | c->length;
                continue;
            }
            const int32_t value = fm_huffman_extend(i >> (n_after - n_bits), (uint32_t)n_bits);
            entries[i] =
                (uint32_t)value << 16 | (uint32_t)(run + 1) << 8 | (uint32_t)(c->length + n_bits);
        }
    }
}

/* Combines the entries of `read`. */
void fm_huffman_table_add_pairs(fm_huffman_table *t) {
    if (t->has_pairs) return;
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
        } else if (is_seen && fm_huffman_is_end(second >> 16 & 0xff)) {
            lengths += next_length;
            reach |= PAIR_END;
        }
        t->pairs[bits] = lengths | place << 8 | next_place << 16 | (uint64_t)(first >> 16) << 24 |
                         (uint64_t)next_value << 40 | (uint64_t)reach << 56;
    }
    t->has_pairs = true;
}

/*
 * Builds the tables for indexes of r bits, r from 0 on, each from the smaller ones: after a
 * symbol's code and value, an index continues with an entry for the remaining bits.
 */
void fm_huffman_table_add_skip(fm_huffman_table *t) {
    if (t->has_skip) return;
    uint16_t levels[2 << SKIP_BITS]; /* level r begins at 1 << r */
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) levels[i] = SKIP_SPECIAL;
    for (int r = 1; r <= SKIP_BITS; r++) {
        for (const fm_huffman_symbol *c = t->codes; c < t->codes + t->n && c->length <= r; c++) {
            const int run = c->symbol >> 4, n_bits = c->symbol & 15;
            const int n_after = r - c->length, n_next_bits = n_after - n_bits;
            const bool ends = fm_huffman_is_end(c->symbol);
            const uint16_t first = ends ? (uint16_t)(SKIP_END | c->length)
                                        : (uint16_t)((run + 1) << 8 | (c->length + n_bits));
            uint16_t *const entries = levels + (1 << r) + ((size_t)c->bits << n_after);
            const size_t n = (size_t)1 << n_after;
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

bool fm_huffman_table_build(fm_huffman_table *t, const fm_huffman_code *given, bool is_ac) {
    if (same_codes(t, given)) return true;
    t->is_built = t->has_pairs = t->has_skip = t->has_steps = false;
    if (!set_codes(t, given)) return false;
    for (int32_t i = 0; i < t->n && !is_ac; i++)
        if (t->codes[i].symbol > 15) return false;
    fill_read(t, is_ac);
    t->is_built = true;
    return true;
}

int fm_huffman_find_long(const fm_huffman_table *t, uint64_t bits, uint32_t *length) {
    for (uint32_t n = READ_BITS + 1; n <= MAX_CODE_BITS; n++) {
        const int32_t code = (int32_t)(bits >> (64 - n));
        if (code >= t->end[n]) continue;
        *length = n;
        return t->codes[code + t->offset[n]].symbol;
    }
    *length = 0;
    return -1;
}
