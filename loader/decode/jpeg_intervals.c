#define _GNU_SOURCE
#include "decode/jpeg_intervals.h"

#include <string.h>

#include "decode/jpeg_interval_tables.h"
#include "decode/jpeg_segments.h"

#define INLINE static inline __attribute__((always_inline))
#define COLD __attribute__((cold, noinline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#define N_LANES 4
#define MAX_BLOCKS 2048   /* whose coefficients are kept */
#define MAX_STEPS 4096    /* of all rows */
#define MAX_INTERVALS 256 /* of all rows */
#define MAX_BYTES 65536   /* of all rows, without stuffed zeros */
#define MAX_INTERVAL_BLOCKS 512
/* What damaged data can make a lane read: 64 symbols of 31 bits for each block. */
#define MAX_BLOCK_BYTES 248

/* One of the two parts of a block, the DC coefficient or the AC coefficients; or the end of an
 * interval, or of all of them. */
typedef struct step {
    const uint64_t *entries;
    /* What of the state stays when the step begins. At the end of an interval also its number, in
     * bits 8 to 23, where the state has nothing of use. */
    uint64_t keep;
    int16_t *block;
    const fm_huffman_table *table; /* NULL at the end of an interval */
} step;

#define KEEP_ALL UINT64_MAX
#define KEEP_NEW_BLOCK ((uint64_t)NEW_BLOCK << 56 | 0xff)

/* One of the intervals that are read at the same time. */
typedef struct lane {
    uint64_t at; /* in bits from the first byte of `bytes` on */
    uint64_t state;
    const step *step;
} lane;

typedef bool (*run_fn)(fm_jpeg_intervals *v, int n);
typedef void (*complete_fn)(fm_jpeg_intervals *v);

struct fm_jpeg_intervals {
    run_fn run;
    complete_fn complete;
    fm_huffman *huffman;
    fm_jpeg_interval_part part;
    int32_t interval_mcus;
    int32_t n_before;       /* MCUs of a row's first interval before the part */
    int32_t row_blocks;     /* of the part */
    int32_t row_intervals;  /* that hold the part */
    int32_t n_skipped;      /* intervals between those of two rows */
    int32_t max_rows;       /* that are read at once */
    bool ends_whole;        /* the part ends where an interval does */
    uint32_t max_left_bits; /* that an interval may leave */
    int32_t first_row;      /* with seek points: of those that are being read */
    int32_t n_rows;         /* that are being read, or were read last */
    int32_t n_intervals;    /* of these rows */
    int32_t next_interval;  /* that no lane has begun */
    const step *first_steps[MAX_INTERVALS];
    uint64_t begin[MAX_INTERVALS], end[MAX_INTERVALS]; /* of intervals, as lane.at */
    lane lanes[N_LANES];
    uint8_t order[512];              /* the index in its block, by bits 56-63 of the state */
    uint64_t at_end[1 << READ_BITS]; /* the entries at the end of an interval */
    step steps[MAX_STEPS];
    _Alignas(FM_MEM_ALIGN) int16_t ignored[64]; /* AC coefficients before the part */
    int16_t dc_before[2 * MAX_STEPS]; /* DC coefficients before the part, each with a 0 behind it */
    _Alignas(FM_MEM_ALIGN) int16_t coefficients[64 * MAX_BLOCKS];
    uint8_t bytes[MAX_BYTES + FM_JPEG_UNSTUFF_SLACK + MAX_INTERVAL_BLOCKS * MAX_BLOCK_BYTES];
};

/* ---- reading --------------------------------------------------------------------------------- */

/* At least 57 bits from bit `at` on. */
INLINE uint64_t load(const uint8_t *base, uint64_t at) {
    uint64_t word;
    memcpy(&word, base + (at >> 3), sizeof(word));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word << (at & 7);
}

/* Where a lane goes on after an entry that overflowed its state. */
typedef struct closer_look {
    uint64_t at;
    uint32_t place; /* for bits 56-63 of the state */
    const step *step;
    bool is_idle, is_damaged;
} closer_look;

/* At the end of an interval: goes on with one that no lane has begun, if there is one. */
static closer_look next_interval(fm_jpeg_intervals *v, const step *s, uint64_t at) {
    const int32_t interval = (int32_t)(s->keep >> 8 & 0xffff);
    /* The last one of a row may end behind the part. */
    const bool is_whole = (interval + 1) % v->row_intervals != 0 || v->ends_whole;
    if (at > v->end[interval] || (is_whole && v->end[interval] - at > v->max_left_bits))
        return (closer_look){.is_damaged = true};
    if (v->next_interval == v->n_intervals)
        return (closer_look){.at = at, .step = s, .place = NEW_BLOCK, .is_idle = true};
    const int32_t next = v->next_interval++;
    return (closer_look){.at = v->begin[next], .step = v->first_steps[next], .place = NEW_BLOCK};
}

/* Reads a single symbol, or ends an interval. */
static COLD closer_look look_closer(fm_jpeg_intervals *v, const step *s, uint64_t at,
                                    uint32_t place) {
    const fm_huffman_table *const t = s->table;
    if (!t) return next_interval(v, s, at);
    const uint64_t bits = load(v->bytes, at);
    const bool is_dc = s->keep == KEEP_NEW_BLOCK;
    const uint32_t entry = t->read[bits >> (64 - READ_BITS)];
    uint32_t length = entry & 0xff, number = entry >> 16 & 0xff, places = entry >> 8 & 0x7f;
    int32_t value = (int32_t)entry >> 16;
    closer_look done = {.place = place, .step = s + 1};
    if (entry & SPECIAL) {
        if (length == 0) {
            const int found = fm_huffman_find_long(t, bits, &length);
            if (found < 0) return (closer_look){.is_damaged = true};
            number = (uint32_t)found;
        }
        done.at = at + length;
        if (!is_dc && fm_huffman_is_end(number)) return done;
        const uint32_t n_bits = is_dc ? number : number & 15;
        value = fm_huffman_extend(n_bits ? (uint32_t)(bits << length >> (64 - n_bits)) : 0, n_bits);
        places = (number >> 4) + 1;
        length += n_bits;
    }
    done.at = at + length;
    const uint32_t found = place + (is_dc ? DC_PLACES : places);
    if (found > PLACE_0 + 63) return (closer_look){.is_damaged = true};
    s->block[v->order[found]] = (int16_t)fm_jpeg_stored(value);
    /* The state can't hold the place of a block's last coefficient, and need not. */
    if (found < PLACE_0 + 63) {
        done.place = found;
        done.step = s + is_dc;
    }
    return done;
}

/* Reads with n lanes until one of them has nothing to do. false if the data is damaged. */
INLINE bool run(fm_jpeg_intervals *v, const int n) {
    const uint8_t *const base = v->bytes;
    const uint8_t *const order = v->order;
    uint64_t at[N_LANES], state[N_LANES], word[N_LANES];
    const step *steps[N_LANES];
    uint64_t top = (uint64_t)1 << 63;
    __asm__("" : "+r"(top)); /* a constant of 64 bits would be loaded for each symbol */
    bool is_idle = false;
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        at[i] = v->lanes[i].at;
        state[i] = v->lanes[i].state;
        steps[i] = v->lanes[i].step;
    }
    do {
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            at[i] += state[i] & 0xff;
            word[i] = load(base, at[i]);
            state[i] = state[i] >> 56 << 56;
        }
#pragma GCC unroll 3
        for (int k = 0; k < LOOK_UPS; k++) {
#pragma GCC unroll 4
            for (int i = 0; i < n; i++) {
                const step *const s = steps[i];
                const uint64_t before = state[i] & s->keep;
                const uint64_t bits = word[i] << (before & 63);
                const uint64_t entry = s->entries[bits >> (64 - READ_BITS)];
                const uint64_t after = before + entry;
                if (UNLIKELY(after < before)) {
                    const closer_look found =
                        look_closer(v, s, at[i] + (before & 0xff), (uint32_t)(before >> 56));
                    if (found.is_damaged) return false;
                    is_idle |= found.is_idle;
                    at[i] = found.at;
                    word[i] = load(base, found.at);
                    state[i] = (uint64_t)found.place << 56;
                    steps[i] = found.step;
                    continue;
                }
                const uint64_t first = (before >> 56) + (entry >> 8 & 0xff);
                /* The value's bits after a sign bit, which is the opposite of their first one. */
                const uint64_t value = (uint64_t)((int64_t)(bits << (entry >> 40 & 63)) >> 1) ^ top;
                s->block[order[after >> 56]] = (int16_t)((int64_t)value >> (entry >> 16 & 63));
                /* In the same place if the entry has no second value. */
                s->block[order[first]] = (int16_t)(entry >> 24);
                steps[i] = s + (entry >> 52 & 1);
                state[i] = after;
            }
        }
    } while (!is_idle);
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        v->lanes[i] = (lane){
            .at = at[i] + (state[i] & 0xff), .state = state[i] >> 56 << 56, .step = steps[i]};
    return true;
}

/* A value from what was stored for it; see fm_jpeg_stored(). */
INLINE int16_t value_of(int16_t value) { return (int16_t)(value - (value >> 15)); }

/* With seek points: the number in the image of the first interval of a row that holds the part. */
INLINE uint32_t first_interval(const fm_jpeg_intervals *v, int32_t row) {
    return (uint32_t)(v->first_row + row) * v->part.seek->head.row_intervals +
           (uint32_t)(v->part.first_mcu / v->interval_mcus);
}

/* Sets the DC predictions at the begin of one of the row's intervals that hold the part. */
INLINE void begin_predictions(const fm_jpeg_intervals *v, int32_t row, int32_t interval,
                              int32_t *predictions) {
    memset(predictions, 0, FM_HUFFMAN_MAX_COMPONENTS * sizeof(*predictions));
    if (!v->part.seek) return;
    fm_huffman_point point;
    fm_jpeg_seek_get(v->part.seek, first_interval(v, row) + (uint32_t)interval, &point);
    memcpy(predictions, point.dc, sizeof(point.dc));
}

/* Turns what was stored into coefficients. */
INLINE void complete(fm_jpeg_intervals *v) {
    const fm_jpeg_interval_part *const part = &v->part;
    int16_t *block = v->coefficients;
    for (int32_t n = v->n_rows * v->row_blocks; n > 0; n--, block += 64)
        for (int i = 0; i < 64; i++) block[i] = value_of(block[i]);
    const int16_t *before = v->dc_before;
    for (int32_t row = 0; row < v->n_rows; row++) {
        int16_t *const blocks = v->coefficients + 64 * (ptrdiff_t)(row * v->row_blocks);
        int32_t predictions[FM_HUFFMAN_MAX_COMPONENTS], interval = 0;
        begin_predictions(v, row, 0, predictions);
        for (int32_t n = v->n_before; n > 0; n--)
            for (int32_t i = 0; i < part->n_blocks; i++, before += 2)
                predictions[part->blocks[i].component] += value_of(*before);
        for (int32_t mcu = part->first_mcu; mcu < part->end_mcu; mcu++) {
            if (mcu % v->interval_mcus == 0 && mcu > part->first_mcu)
                begin_predictions(v, row, ++interval, predictions);
            for (int32_t i = 0; i < part->n_blocks; i++) {
                int16_t *const dc = &blocks[64 * (part->blocks[i].first +
                                                  (mcu - part->first_mcu) * part->blocks[i].step)];
                *dc = (int16_t)(predictions[part->blocks[i].component] += *dc);
            }
        }
    }
}

INLINE bool run_any(fm_jpeg_intervals *v, int n) {
    switch (n) {
    case 4:
        return run(v, 4);
    case 3:
        return run(v, 3);
    case 2:
        return run(v, 2);
    default:
        return run(v, 1);
    }
}

static bool run_plain(fm_jpeg_intervals *v, int n) { return run_any(v, n); }
static void complete_plain(fm_jpeg_intervals *v) { complete(v); }

#if defined(__x86_64__)
/* The same code with BMI2's shifts, which take their count from any register, and AVX2. */
__attribute__((target("bmi2"))) static bool run_bmi2(fm_jpeg_intervals *v, int n) {
    return run_any(v, n);
}
__attribute__((target("avx2"))) static void complete_avx2(fm_jpeg_intervals *v) { complete(v); }
#endif

/* ---- runs ------------------------------------------------------------------------------------ */

/* Moves place->bytes behind the n-th restart marker from there on. false if it is not there, or has
 * another number than is due; the first one must follow at once. */
static bool pass_markers(fm_huffman_place *place, uint32_t n) {
    const uint8_t *const first = place->bytes;
    const uint8_t *const last = fm_jpeg_find_restart(first, place->end, n);
    const uint32_t number = (place->next_restart + n - 1) % 8;
    if (!last || (n == 1 && last != first) || last[1] != 0xD0 + number) return false;
    place->bytes = last + 2;
    place->next_restart = (number + 1) % 8;
    return true;
}

/* Copies the intervals from *place on, and moves that to the end of the last one. false if they are
 * not where they should be, or too long. */
static bool copy_intervals(fm_jpeg_intervals *v, fm_huffman_place *place) {
    uint8_t *next = v->bytes;
    uint8_t *const end = v->bytes + MAX_BYTES;
    for (int32_t i = 0; i < v->n_intervals; i++) {
        const bool begins_row = i % v->row_intervals == 0;
        if (i > 0 && !pass_markers(place, 1 + (begins_row ? (uint32_t)v->n_skipped : 0)))
            return false;
        bool is_whole = false;
        v->begin[i] = 8 * (uint64_t)(next - v->bytes);
        next = fm_jpeg_unstuff(&place->bytes, place->end, next, (size_t)(end - next), &is_whole);
        if (!is_whole || next >= end) return false;
        v->end[i] = 8 * (uint64_t)(next - v->bytes);
    }
    return true;
}

/* Copies the data from one byte to another. */
static uint8_t *copy_part(const uint8_t *from, const uint8_t *to, uint8_t *out,
                          const uint8_t *out_end) {
    bool is_whole;
    return fm_jpeg_unstuff(&from, to, out, (size_t)(out_end - out), &is_whole);
}

/* The same for intervals between seek points. */
static bool copy_known(fm_jpeg_intervals *v) {
    const uint8_t *data, *data_end;
    fm_huffman_data(v->huffman, &data, &data_end);
    uint8_t *next = v->bytes;
    const uint8_t *const end = v->bytes + MAX_BYTES;
    for (int32_t row = 0; row < v->n_rows; row++) {
        const uint64_t *const begin = v->part.seek->begin_bits + first_interval(v, row);
        for (int32_t i = 0; i < v->row_intervals; i++) {
            const int32_t interval = row * v->row_intervals + i;
            v->begin[interval] = 8 * (uint64_t)(next - v->bytes) + begin[i] % 8;
            next = copy_part(data + begin[i] / 8, data + begin[i + 1] / 8, next, end);
            if (next >= end) return false;
            v->end[interval] = 8 * (uint64_t)(next - v->bytes) + begin[i + 1] % 8;
        }
        /* The last bits may be in the byte where the next interval begins. */
        const uint8_t *const last = data + begin[v->row_intervals] / 8;
        next = copy_part(last, data_end - last < 2 ? data_end : last + 2, next, end);
    }
    return next < end;
}

/* Reads the intervals that were copied. */
static bool read_rows(fm_jpeg_intervals *v) {
    memset(v->coefficients, 0, 64 * sizeof(int16_t) * (size_t)(v->n_rows * v->row_blocks));
    int n = 0;
    for (; n < N_LANES && n < v->n_intervals; n++)
        v->lanes[n] = (lane){
            .at = v->begin[n], .state = (uint64_t)NEW_BLOCK << 56, .step = v->first_steps[n]};
    v->next_interval = n;
    while (n > 0) {
        if (!v->run(v, n)) return false;
        for (int i = 0; i < n; i++) {
            const lane *const l = &v->lanes[i];
            if (l->step->table || v->next_interval < v->n_intervals) continue;
            if (next_interval(v, l->step, l->at).is_damaged) return false;
            v->lanes[i--] = v->lanes[--n];
        }
    }
    v->complete(v);
    return true;
}

int32_t fm_jpeg_intervals_read(fm_jpeg_intervals *intervals, int32_t max_rows) {
    fm_jpeg_intervals *const v = intervals;
    fm_huffman_place begin, place;
    fm_huffman_tell(v->huffman, &begin);
    place = begin;
    v->n_rows = max_rows < v->max_rows ? max_rows : v->max_rows;
    v->n_intervals = v->n_rows * v->row_intervals;
    const bool is_read = copy_intervals(v, &place) && read_rows(v);
    fm_huffman_seek(v->huffman, is_read ? &place : &begin, is_read);
    return is_read ? v->n_rows : 0;
}

/* With seek points: how many of the next rows can be read, at most max_rows. */
static int32_t n_known_rows(const fm_jpeg_intervals *v, int32_t max_rows) {
    const fm_jpeg_seek *const seek = v->part.seek;
    int32_t n = 0;
    for (uint64_t n_bytes = 0; n < max_rows; n++) {
        const uint32_t first = first_interval(v, n), end = first + (uint32_t)v->row_intervals;
        if (end > seek->head.n) break;
        n_bytes += (seek->begin_bits[end] - seek->begin_bits[first]) / 8 + 4;
        if (n_bytes > MAX_BYTES) break;
    }
    return n;
}

int32_t fm_jpeg_intervals_read_known(fm_jpeg_intervals *intervals, int32_t row, int32_t max_rows) {
    fm_jpeg_intervals *const v = intervals;
    v->first_row = row;
    v->n_rows = n_known_rows(v, max_rows < v->max_rows ? max_rows : v->max_rows);
    v->n_intervals = v->n_rows * v->row_intervals;
    return v->n_rows > 0 && copy_known(v) && read_rows(v) ? v->n_rows : 0;
}

const int16_t *fm_jpeg_intervals_row(const fm_jpeg_intervals *intervals, int32_t row) {
    return intervals->coefficients + 64 * (ptrdiff_t)(row * intervals->row_blocks);
}

/* ---- open, begin, close ---------------------------------------------------------------------- */

/* Adds the steps of a row's intervals. Returns the place behind them. */
static step *add_row(fm_jpeg_intervals *v, int32_t row, step *next) {
    const fm_jpeg_interval_part *const part = &v->part;
    const int32_t first = part->first_mcu - v->n_before;
    int16_t *dc_before = v->dc_before + 2 * (ptrdiff_t)(row * v->n_before * part->n_blocks);
    int32_t interval = row * v->row_intervals;
    for (int32_t mcu = first; mcu < part->end_mcu; mcu++) {
        if ((mcu - first) % v->interval_mcus == 0) v->first_steps[interval] = next;
        for (int32_t i = 0; i < part->n_blocks; i++) {
            fm_huffman_table *dc, *ac;
            fm_huffman_tables(v->huffman, i, &dc, &ac);
            step *const s = next;
            next += 2;
            s[0] = (step){dc->steps, KEEP_NEW_BLOCK, dc_before, dc};
            s[1] = (step){ac->steps, KEEP_ALL, v->ignored, ac};
            if (mcu < part->first_mcu) {
                dc_before += 2;
                continue;
            }
            const int32_t at =
                part->blocks[i].first + (mcu - part->first_mcu) * part->blocks[i].step;
            s[0].block = s[1].block = v->coefficients + 64 * (ptrdiff_t)(row * v->row_blocks + at);
        }
        if ((mcu + 1 - first) % v->interval_mcus && mcu + 1 < part->end_mcu) continue;
        *next++ = (step){v->at_end, KEEP_NEW_BLOCK | (uint64_t)interval++ << 8, v->ignored, NULL};
    }
    return next;
}

bool fm_jpeg_intervals_begin(fm_jpeg_intervals *intervals, fm_huffman *huffman,
                             const fm_jpeg_interval_part *part) {
    fm_jpeg_intervals *const v = intervals;
    const fm_jpeg_seek *const seek = part->seek;
    const int64_t interval =
        seek ? (int64_t)seek->head.interval_mcus : (int64_t)fm_huffman_interval(huffman);
    if (interval < 1 || (!seek && part->row_mcus % interval)) return false;
    v->huffman = huffman;
    v->max_left_bits = seek ? 0 : 7;
    v->ends_whole = part->end_mcu % interval == 0 || part->end_mcu == part->row_mcus;
    v->part = *part;
    v->interval_mcus = (int32_t)interval;
    v->n_before = part->first_mcu % v->interval_mcus;
    v->row_blocks = (part->end_mcu - part->first_mcu) * part->n_blocks;
    const int32_t n_mcus = part->end_mcu - part->first_mcu + v->n_before;
    v->row_intervals = (n_mcus + v->interval_mcus - 1) / v->interval_mcus;
    v->n_skipped = part->row_mcus / v->interval_mcus - v->row_intervals;
    const int64_t row_steps = 2 * (int64_t)n_mcus * part->n_blocks + v->row_intervals;
    if (interval * part->n_blocks > MAX_INTERVAL_BLOCKS) return false;
    /* As few rows as give each lane intervals, one after another. */
    v->max_rows = (2 * N_LANES + v->row_intervals - 1) / v->row_intervals;
    if (v->max_rows > MAX_BLOCKS / v->row_blocks) v->max_rows = MAX_BLOCKS / v->row_blocks;
    if (v->max_rows > MAX_STEPS / row_steps) v->max_rows = (int32_t)(MAX_STEPS / row_steps);
    if (v->max_rows > MAX_INTERVALS / v->row_intervals)
        v->max_rows = MAX_INTERVALS / v->row_intervals;
    if (v->max_rows * v->row_intervals < 2) return false;
    for (int32_t i = 0; i < part->n_blocks; i++) {
        fm_huffman_table *dc, *ac;
        fm_huffman_tables(huffman, i, &dc, &ac);
        fm_jpeg_interval_table_add(dc, false);
        fm_jpeg_interval_table_add(ac, true);
    }
    step *next = v->steps;
    for (int32_t row = 0; row < v->max_rows; row++) next = add_row(v, row, next);
    return true;
}

fm_jpeg_intervals *fm_jpeg_intervals_open(fm_mem_counter *counter, fm_cpu_tier tier) {
    fm_jpeg_intervals *const v = fm_mem_zalloc(counter, 1, sizeof(*v));
    if (!v) return NULL;
    for (uint32_t i = 0; i < sizeof(v->order); i++)
        v->order[i] = i < PLACE_0 ? 0 : i > PLACE_0 + 63 ? 63 : fm_jpeg_natural_order[i - PLACE_0];
    for (uint32_t i = 0; i < 1u << READ_BITS; i++) v->at_end[i] = CLOSER_LOOK(false);
    v->run = run_plain;
    v->complete = complete_plain;
#if defined(__x86_64__)
    if (tier >= FM_CPU_AVX2) {
        v->run = run_bmi2;
        v->complete = complete_avx2;
    }
#else
    (void)tier;
#endif
    return v;
}

void fm_jpeg_intervals_close(fm_jpeg_intervals **intervals) {
    if (!intervals) return;
    fm_mem_free(*intervals);
    *intervals = NULL;
}
