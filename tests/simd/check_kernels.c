/*
 * Compares every kernel of every tier that the CPU has with the scalar one: random sizes, taps,
 * weights and alignments. Rows end, with their slack, at an inaccessible page, or begin after one;
 * the bytes before an output must not change. Prints its seed; FM_SEED sets it.
 *
 * Built with FM_EMULATED_TIER, it checks the resize kernels of that tier and of those below on any
 * CPU, with emulated intrinsics; floating point isn't emulated to the last bit, so that the stores
 * of floats are left out.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "transform/float_resize.h"
#include "transform/kernels.h"

#ifdef FM_EMULATED_TIER
enum { N_CASES = 1000 };
#else
enum { N_CASES = 4000 };
#endif
enum { MOST_ROWS = 20, MOST_PX = 65535 };
/* Rows of the usual size, and of the largest. */
enum { ROW_BYTES = 8192, MOST_ROW_BYTES = 196608 + 4096 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

#ifdef FM_EMULATED_TIER
static fm_cpu_tier best_tier(void) { return FM_EMULATED_TIER; }
#else
static fm_cpu_tier best_tier(void) {
    fm_cpu_tier tier;
    fm_error error;
    if (!fm_cpu_tier_get(&tier, &error)) return tier;
    fprintf(stderr, "%s\n", error.message);
    exit(1);
}
#endif

/* ---- memory between guard pages -------------------------------------------------------------- */

static size_t page_bytes, row_bytes;

/* Rows of row_bytes bytes, each between two guard pages. */
static uint8_t *map_rows(void) {
    const size_t step = row_bytes + page_bytes;
    uint8_t *const memory = mmap(NULL, MOST_ROWS * step + page_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    for (size_t i = 0; i <= MOST_ROWS; i++)
        assert_int_equal(mprotect(memory + i * step, page_bytes, PROT_NONE), 0);
    return memory;
}

/* Row i's n bytes; `behind` bytes after them the guard page begins. */
static uint8_t *row_at(uint8_t *memory, int i, size_t n, size_t behind) {
    return memory + (size_t)(i + 1) * (row_bytes + page_bytes) - behind - n;
}

static uint8_t *in_memory, *want_memory, *got_memory;

static void map_memory_of(size_t bytes) {
    row_bytes = bytes;
    in_memory = map_rows();
    want_memory = map_rows();
    got_memory = map_rows();
}

static void unmap_memory(void) {
    const size_t bytes = MOST_ROWS * (row_bytes + page_bytes) + page_bytes;
    munmap(in_memory, bytes);
    munmap(want_memory, bytes);
    munmap(got_memory, bytes);
}

static int map_memory(void **state) {
    (void)state;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    map_memory_of(ROW_BYTES);
    return 0;
}

/* How far before the guard page a row of n bytes ends: by the slack, or so that it begins
 * at the guard page before it. */
static size_t random_behind(size_t n) { return random_below(4) ? FM_ROW_SLACK : row_bytes - n; }

/* Fills input rows of n bytes: noise, or white, which makes the largest sums. */
static void fill_rows(const uint8_t **rows, int n_rows, size_t n) {
    const bool white = random_below(8) == 0;
    const size_t behind = random_behind(n);
    for (int i = 0; i < n_rows; i++) {
        uint8_t *const row = row_at(in_memory, i, n, behind);
        for (size_t k = 0; k < n + FM_ROW_SLACK; k++)
            row[k] = white ? 255 : (uint8_t)random_below(256);
        rows[i] = row;
    }
}

/* The same bytes before each result, and any before the call in its place. */
static void clear_results(int n_rows) {
    for (int i = 0; i < n_rows; i++) {
        memset(row_at(want_memory, i, row_bytes, 0), 0xa5, row_bytes);
        memset(row_at(got_memory, i, row_bytes, 0), 0xa5, row_bytes);
    }
}

/* Compares rows of n bytes and all before them. */
static void compare_rows(const char *kernel, int tier, int n_rows, size_t n, size_t behind) {
    for (int i = 0; i < n_rows; i++) {
        const uint8_t *const want = row_at(want_memory, i, row_bytes, 0);
        const uint8_t *const got = row_at(got_memory, i, row_bytes, 0);
        for (size_t k = 0; k + behind < row_bytes; k++)
            if (got[k] != want[k])
                fail_msg("%s, %s: byte %zd of %zu, row %d, is %d, not %d", kernel,
                         fm_cpu_tier_name((fm_cpu_tier)tier),
                         (ssize_t)(k + n + behind) - (ssize_t)row_bytes, n, i, got[k], want[k]);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* n weights, any that add up to 2^22; with `negative` ones, sums pass 0 and 255. */
static void random_weights(int32_t *weights, int32_t n, bool negative) {
    int32_t left = 1 << FM_COEFFS_BITS;
    const int32_t usual = 2 * (left / n) + 1;
    for (int32_t t = 0; t + 1 < n; t++) {
        const int32_t most = random_below(4) ? usual : left + 1;
        weights[t] = random_below(most < left + 1 ? most : left + 1);
        left -= weights[t];
    }
    weights[n - 1] = left;
    for (int32_t t = 0; negative && t + 1 < n; t++) {
        const int32_t moved = random_below((1 << FM_COEFFS_BITS) / n);
        weights[t] -= moved;
        weights[random_below(n)] += moved;
    }
}

/* Weights of n outputs from n_in pixels, in any of the orders that the transform makes. */
static void random_columns(fm_coeffs *coeffs, int32_t n_in, int32_t n_out, int32_t first,
                           int32_t n) {
    coeffs->short_weights = random_below(2);
    assert_int_equal(
        fm_coeffs_compute(coeffs, FM_FILTER_BILINEAR, n_in, n_out, first, n, NULL, NULL), FM_OK);
    if (random_below(2)) fm_coeffs_mirror_input(coeffs, n_in);
    fm_coeffs_even_taps(coeffs, n_in);
    const int weights = random_below(4); /* 0: any, 1: negative ones, too */
    for (int32_t i = 0; weights < 2 && i < n; i++)
        random_weights(coeffs->weights + (size_t)i * (size_t)coeffs->stride, coeffs->max_taps,
                       weights == 1);
    coeffs->clips = weights == 1;
    if (random_below(2)) fm_coeffs_mirror_output(coeffs);
}

static void compare_horizontal(fm_coeffs *coeffs, int32_t n_in, int n_rows) {
    const size_t n = 3 * (size_t)coeffs->n, behind = random_behind(n);
    const uint8_t *in[MOST_ROWS];
    uint8_t *want[MOST_ROWS], *got[MOST_ROWS];
    fm_kernels scalar, kernels;
    fm_kernels_init(&scalar, FM_CPU_SCALAR);
    fill_rows(in, n_rows, 3 * (size_t)n_in);
    for (int i = 0; i < n_rows; i++) {
        want[i] = row_at(want_memory, i, n, behind);
        got[i] = row_at(got_memory, i, n, behind);
    }
    for (int tier = 1; tier <= (int)best_tier(); tier++) {
        clear_results(n_rows);
        fm_kernels_init(&kernels, (fm_cpu_tier)tier);
        assert_int_equal(scalar.prepare_columns(coeffs, NULL, NULL), FM_OK);
        scalar.horizontal(want, in, n_rows, coeffs);
        assert_int_equal(kernels.prepare_columns(coeffs, NULL, NULL), FM_OK);
        kernels.horizontal(got, in, n_rows, coeffs);
        compare_rows("horizontal", tier, n_rows, n, behind);
    }
}

static void horizontal_equals_scalar(void **state) {
    (void)state;
    fm_coeffs coeffs = {0};
    bool met[32] = {false}; /* numbers of taps */
    for (int c = 0; c < N_CASES; c++) {
        const int32_t n_in = 1 + random_below(c % 8 ? 300 : 2000);
        const int32_t n_out = 1 + random_below(c % 3 ? 300 : 20);
        const int32_t first = random_below(n_out), n = 1 + random_below(n_out - first);
        random_columns(&coeffs, n_in, n_out, first, n);
        compare_horizontal(&coeffs, n_in, 1 + random_below(MOST_ROWS));
        if (coeffs.max_taps < 32) met[coeffs.max_taps] = true;
    }
    for (int n_taps = 2; n_taps < 16; n_taps++)
        if (!met[n_taps]) fail_msg("no case with %d taps", n_taps);
    fm_coeffs_fini(&coeffs);
}

/* One output of n bytes; weights are there in whole fours. */
static void compare_vertical(const uint8_t *const *in, int32_t *weights, int32_t n_taps, size_t n,
                             bool clips) {
    const size_t behind = random_behind(n);
    fm_coeffs coeffs = {.n = 1,
                        .stride = (n_taps + 3) / 4 * 4,
                        .max_taps = n_taps,
                        .clips = clips,
                        .n_taps = &n_taps,
                        .weights = weights};
    fm_kernels scalar, kernels;
    fm_kernels_init(&scalar, FM_CPU_SCALAR);
    for (int tier = 1; tier <= (int)best_tier(); tier++) {
        clear_results(1);
        fm_kernels_init(&kernels, (fm_cpu_tier)tier);
        assert_int_equal(scalar.prepare_rows(&coeffs, NULL, NULL), FM_OK);
        scalar.vertical(row_at(want_memory, 0, n, behind), in, &coeffs, 0, n);
        assert_int_equal(kernels.prepare_rows(&coeffs, NULL, NULL), FM_OK);
        kernels.vertical(row_at(got_memory, 0, n, behind), in, &coeffs, 0, n);
        compare_rows("vertical", tier, 1, n, behind);
    }
    fm_mem_free(coeffs.table);
}

static void vertical_equals_scalar(void **state) {
    (void)state;
    for (int c = 0; c < 3 * N_CASES; c++) {
        const int32_t n_taps = 1 + random_below(c % 4 ? 8 : MOST_ROWS);
        int32_t weights[MOST_ROWS];
        const bool clips = random_below(2);
        random_weights(weights, n_taps, clips);
        /* Digits that add up to the most, and what rounding leaves. */
        if (c % 16 == 0 && n_taps <= 4)
            for (int32_t t = 0; t < n_taps; t++)
                weights[t] = (1 << FM_COEFFS_BITS) / n_taps + random_below(3) - 1;
        /* Short weights, which leave more. */
        if (c % 16 == 1)
            for (int32_t t = 0; t < n_taps; t++)
                weights[t] = (weights[t] + random_below(2) * 255) / 256 * 256;
        const size_t n = 1 + (size_t)random_below(c % 5 ? 300 : 3000);
        const uint8_t *in[MOST_ROWS];
        fill_rows(in, n_taps, n);
        compare_vertical(in, weights, n_taps, n, clips);
    }
}

/* Sides of up to 65,535 pixels, and as many taps. */
static void largest_sizes_equal_scalar(void **state) {
    (void)state;
    static const int32_t sizes[] = {MOST_PX, MOST_PX - 1, 32768, 4096, 255, 16, 3, 2, 1};
    enum { N_SIZES = sizeof(sizes) / sizeof(*sizes) };
    fm_coeffs coeffs = {0};
    unmap_memory();
    map_memory_of(MOST_ROW_BYTES);
    for (int c = 0; c < N_SIZES; c++) {
        const int32_t n_in = MOST_PX - random_below(3), n_out = sizes[c];
        random_columns(&coeffs, n_in, n_out, 0, n_out);
        compare_horizontal(&coeffs, n_in, 1 + random_below(3));
        random_columns(&coeffs, n_out, n_in, 0, n_in);
        compare_horizontal(&coeffs, n_out, 1 + random_below(3));
        int32_t weights[MOST_ROWS];
        const int32_t n_taps = 1 + random_below(MOST_ROWS);
        random_weights(weights, n_taps, c % 2);
        const uint8_t *in[MOST_ROWS];
        fill_rows(in, n_taps, 3 * (size_t)n_in);
        compare_vertical(in, weights, n_taps, 3 * (size_t)n_in, c % 2);
    }
    unmap_memory();
    map_memory_of(ROW_BYTES);
    fm_coeffs_fini(&coeffs);
}

/* A column of as many rows as an image can have, one of each in turn. */
static void most_rows_equal_scalar(void **state) {
    (void)state;
    enum { WIDTH = 70 };
    static int32_t weights[MOST_PX + 1];
    static const uint8_t *in[MOST_PX];
    const uint8_t *kept[MOST_ROWS];
    fill_rows(kept, MOST_ROWS, WIDTH);
    for (int32_t i = 0; i < MOST_PX; i++) in[i] = kept[i % MOST_ROWS];
    for (int c = 0; c < 20; c++) {
        const int32_t n_taps = c ? 1 + random_below(MOST_PX) : MOST_PX;
        const bool clips = n_taps > 16000 || c % 2;
        random_weights(weights, n_taps, clips);
        compare_vertical(in, weights, n_taps, WIDTH, clips);
    }
}

/* Bits, as a sum may not even differ in a zero's sign. */
static void compare_floats(const char *kernel, int tier, const float *got, const float *want,
                           size_t n) {
    if (memcmp(got, want, n * sizeof(*got)))
        fail_msg("%s, %s differs in one of %zu floats", kernel, fm_cpu_tier_name((fm_cpu_tier)tier),
                 n);
}

/* Passes of float_resize.h, over rows that end at a guard page but for the bytes that kernels may
 * touch. */
static void float_resize_equals_scalar(void **state) {
    (void)state;
    enum { PAST = 16 };
    fm_coeffs coeffs = {0};
    fm_float_kernels scalar, kernels;
    fm_float_kernels_init(&scalar, FM_CPU_SCALAR);
    for (int c = 0; c < N_CASES; c++) {
        const int32_t n_in = 1 + random_below(c % 4 ? 60 : 200), n_out = 1 + random_below(60);
        const int32_t first = random_below(n_out), n = 1 + random_below(n_out - first);
#ifdef FM_EMULATED_TIER
        const int32_t run_taps = 1; /* the emulator rounds in a fused multiply-add */
#else
        const int32_t run_taps = random_below(10);
#endif
        assert_int_equal(fm_float_weights_compute(&coeffs, n_in, n_out, first, n, NULL, NULL),
                         FM_OK);
        int32_t begin, end;
        fm_coeffs_span(&coeffs, &begin, &end);
        const size_t in_bytes = 16 * (size_t)n_in, out_bytes = 16 * (size_t)n;
        const float *in[MOST_ROWS];
        for (int i = 0; i < MOST_ROWS; i++) {
            float *const row = (void *)row_at(in_memory, i, in_bytes, PAST);
            for (int32_t k = 0; k < 4 * n_in + 4; k++)
                row[k] = (float)(random_below(20001) - 10000) / 3000.0f;
            in[i] = row;
        }
        float *const want = (void *)row_at(want_memory, 0, out_bytes, PAST);
        float *const got = (void *)row_at(got_memory, 0, out_bytes, PAST);
        const int32_t i = random_below(n), n_floats = 4 * n_in;
        float *const want_row = (void *)row_at(want_memory, 1, in_bytes, PAST);
        float *const got_row = (void *)row_at(got_memory, 1, in_bytes, PAST);
        for (int tier = 1; tier <= (int)best_tier(); tier++) {
            fm_float_kernels_init(&kernels, (fm_cpu_tier)tier);
            scalar.columns(want, in[0], &coeffs, run_taps);
            kernels.columns(got, in[0], &coeffs, run_taps);
            compare_floats("float columns", tier, got, want, out_bytes / sizeof(float));
            if (coeffs.n_taps[i] > MOST_ROWS) continue;
            scalar.rows(want_row, in, &coeffs, i, run_taps, (size_t)n_floats);
            kernels.rows(got_row, in, &coeffs, i, run_taps, (size_t)n_floats);
            compare_floats("float rows", tier, got_row, want_row, (size_t)n_floats);
        }
    }
    fm_coeffs_fini(&coeffs);
}

static void mirror_equals_scalar(void **state) {
    (void)state;
    fm_kernels scalar, kernels;
    fm_kernels_init(&scalar, FM_CPU_SCALAR);
    for (int32_t n_px = 1; n_px < 400; n_px++) {
        const size_t n = 3 * (size_t)n_px;
        const uint8_t *in;
        fill_rows(&in, 1, n);
        for (int tier = 1; tier <= (int)best_tier(); tier++) {
            clear_results(MOST_ROWS);
            fm_kernels_init(&kernels, (fm_cpu_tier)tier);
            scalar.mirror(row_at(want_memory, 0, n, FM_ROW_SLACK), in, n_px);
            kernels.mirror(row_at(got_memory, 0, n, FM_ROW_SLACK), in, n_px);
            compare_rows("mirror", tier, 1, n, FM_ROW_SLACK);
        }
    }
}

static void four_bytes_per_pixel_equal_scalar(void **state) {
    (void)state;
    fm_kernels scalar, kernels;
    fm_kernels_init(&scalar, FM_CPU_SCALAR);
    for (int32_t n_px = 1; n_px < 400; n_px++) {
        const size_t three = 3 * (size_t)n_px, four = 4 * (size_t)n_px;
        const uint8_t fourth = (uint8_t)random_below(256);
        const uint8_t *in;
        for (int tier = 1; tier <= (int)best_tier(); tier++) {
            fm_kernels_init(&kernels, (fm_cpu_tier)tier);
            fill_rows(&in, 1, three);
            clear_results(1);
            scalar.widen(row_at(want_memory, 0, four, 0), in, n_px, fourth);
            kernels.widen(row_at(got_memory, 0, four, 0), in, n_px, fourth);
            compare_rows("widen", tier, 1, four, 0);
            /* Back, from the row's end at the guard page. */
            const uint8_t *const wide = row_at(want_memory, 0, four, 0);
            uint8_t *const back = row_at(in_memory, 1, three, 0);
            kernels.narrow(back, wide, n_px);
            assert_memory_equal(back, in, three);
            scalar.narrow(back, wide, n_px);
            assert_memory_equal(back, in, three);
        }
    }
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 1;
    print_message("seed %u, tier %s\n", lcg_state, fm_cpu_tier_name(best_tier()));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(horizontal_equals_scalar),
        cmocka_unit_test(vertical_equals_scalar),
        cmocka_unit_test(largest_sizes_equal_scalar),
        cmocka_unit_test(most_rows_equal_scalar),
        cmocka_unit_test(float_resize_equals_scalar),
        cmocka_unit_test(mirror_equals_scalar),
        cmocka_unit_test(four_bytes_per_pixel_equal_scalar),
    };
    return cmocka_run_group_tests(tests, map_memory, NULL);
}
