#define _GNU_SOURCE
#include "decode/jpeg_interval_tables.h"

static uint64_t entry_of(uint32_t length, uint32_t first_place, int32_t first_value,
                         uint32_t n_before, uint32_t n_bits, uint32_t places, bool ends) {
    return length | (uint64_t)first_place << 8 | (uint64_t)(63 - n_bits) << 16 |
           (uint64_t)(uint16_t)first_value << 24 | (uint64_t)n_before << 40 | (uint64_t)ends << 52 |
           (uint64_t)places << 56;
}

/* A symbol of an entry of fm_huffman_table.read. */
typedef struct symbol {
    uint32_t code_bits, value_bits, places;
    bool is_end;
} symbol;

static symbol symbol_of(uint32_t entry) {
    if (entry & SPECIAL) {
        const uint32_t number = entry >> 16 & 0xff;
        return (symbol){entry & 0xff, number & 15, (number >> 4) + 1, fm_huffman_is_end(number)};
    }
    const int32_t value = (int32_t)entry >> 16;
    const uint32_t size = (uint32_t)(value < 0 ? -value : value);
    const uint32_t value_bits = size ? 32 - (uint32_t)__builtin_clz(size) : 0;
    return (symbol){(entry & 0xff) - value_bits, value_bits, entry >> 8 & 0x7f, false};
}

/* The entry for a symbol of whose value the index does not hold all bits: it is taken as the second
 * one. The first one is a 0 for the place behind it. */
static uint64_t long_entry(symbol s, bool is_ac) {
    const uint32_t length = s.code_bits + s.value_bits;
    const uint32_t places = is_ac ? s.places : DC_PLACES;
    if (s.code_bits == 0 || length > MAX_ENTRY_BITS) return CLOSER_LOOK(is_ac);
    return entry_of(length, places + 1, 0, s.code_bits, s.value_bits, places, !is_ac);
}

static uint64_t ac_entry(const uint32_t *read, uint32_t bits) {
    const uint32_t entry = read[bits];
    if (entry & SPECIAL) {
        const symbol only = symbol_of(entry);
        if (entry & 0xff && only.is_end) return entry_of(only.code_bits, 1, 0, 0, 0, 1, true);
        return long_entry(only, true);
    }
    const uint32_t length = entry & 0xff, places = entry >> 8 & 0x7f;
    const int32_t value = fm_jpeg_stored((int32_t)entry >> 16);
    /* Of the second symbol, the index may hold the code alone. */
    const uint32_t next = read[bits << length & ((1u << READ_BITS) - 1)];
    const symbol second = symbol_of(next);
    const uint32_t both = length + second.code_bits;
    const bool is_seen = next & 0xff && both <= READ_BITS;
    const bool is_end = is_seen && second.is_end;
    const bool is_taken = is_seen && !is_end && both + second.value_bits <= MAX_ENTRY_BITS;
    return entry_of(is_taken ? both + second.value_bits
                    : is_end ? both
                             : length,
                    places, value, is_taken ? both : 0, is_taken ? second.value_bits : 0,
                    is_taken ? places + second.places : places, is_end);
}

static uint64_t dc_entry(const uint32_t *read, uint32_t bits) {
    const uint32_t entry = read[bits];
    if (entry & SPECIAL) {
        const uint32_t n_bits = entry >> 16 & 0xff;
        return long_entry((symbol){.code_bits = entry & 0xff, .value_bits = n_bits}, false);
    }
    return entry_of(entry & 0xff, DC_PLACES, fm_jpeg_stored((int32_t)entry >> 16), 0, 0, DC_PLACES,
                    true);
}

void fm_jpeg_interval_table_add(fm_huffman_table *t, bool is_ac) {
    if (t->has_steps) return;
    for (uint32_t bits = 0; bits < 1u << READ_BITS; bits++)
        t->steps[bits] = is_ac ? ac_entry(t->read, bits) : dc_entry(t->read, bits);
    t->has_steps = true;
}
