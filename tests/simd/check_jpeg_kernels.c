/*
 * The JPEG kernels of every tier that the CPU has, against the scalar versions: blocks of random
 * coefficients, usual and extreme ones; rows of any length; all pairs of Cb and Cr. Inputs end with
 * their slack at a page that can't be read, and so do outputs. Prints its seed; FM_SEED sets it.
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

#include "decode/jpeg_kernels.h"
#include "guarded.h"

enum { MOST_BLOCKS = 9, MOST_PX = 200, STRIDE = 8 * MOST_BLOCKS + 8 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static fm_jpeg_kernels scalar, fast;

/* ---- inverse DCT ----------------------------------------------------------------------------- */

static void random_quant(fm_jpeg_quant *quant) {
    const int32_t most[] = {1, 4, 40, 255};
    const int32_t limit = most[random_below(4)];
    uint16_t steps[64];
    for (int i = 0; i < 64; i++) steps[i] = (uint16_t)(1 + random_below(limit));
    fm_jpeg_quant_set(quant, steps);
}

static int16_t random_coefficient(int32_t most) {
    if (most > 2000 && random_below(20) == 0) return random_below(2) ? -INT16_MAX : INT16_MAX;
    return (int16_t)(random_below(2 * most + 1) - most);
}

static void random_blocks(int16_t *blocks, int32_t n) {
    const int32_t most[] = {1, 8, 60, 400, 32767};
    memset(blocks, 0, 128 * (size_t)n);
    for (int32_t b = 0; b < n; b++, blocks += 64) {
        const int32_t limit = most[random_below(random_below(4) ? 3 : 5)];
        blocks[0] =
            random_coefficient(random_below(30) ? limit * 4 < 500 ? limit * 4 : 500 : 32767);
        if (random_below(200) == 0) blocks[0] = INT16_MIN;
        for (int32_t i = random_below(3) ? random_below(64) : 0; i > 0; i--)
            blocks[1 + random_below(63)] = random_coefficient(limit);
    }
}

static void blocks_equal(void **state) {
    (void)state;
    uint8_t wanted[8 * STRIDE];
    int n_refused = 0, n_calls = 20000;
    const test_guarded out = test_guarded_open(NULL, sizeof(wanted));
    for (int i = 0; i < n_calls; i++) {
        const int32_t n = 1 + random_below(MOST_BLOCKS);
        _Alignas(32) int16_t blocks[64 * MOST_BLOCKS];
        fm_jpeg_quant quant;
        random_quant(&quant);
        random_blocks(blocks, n);
        memset(wanted, 7, sizeof(wanted));
        memset(out.bytes, 7, out.n);
        const bool in_range = scalar.idct(wanted, STRIDE, blocks, &quant, n);
        assert_int_equal(fast.idct(out.bytes, STRIDE, blocks, &quant, n), in_range);
        if (in_range) assert_memory_equal(out.bytes, wanted, sizeof(wanted));
        n_refused += !in_range;
    }
    print_message("%d of %d out of range\n", n_refused, n_calls);
    assert_in_range(n_refused, n_calls / 10, n_calls * 2 / 3);
    test_guarded_close((test_guarded *)&out);
}

/* Every block that the fast check accepts is in range: blocks just below the limit of its sum, with
 * the signs that make a sample largest. */
static void sums_bound_samples(void **state) {
    (void)state;
    for (int i = 0; i < 20000; i++) {
        fm_jpeg_quant quant;
        random_quant(&quant);
        _Alignas(32) int16_t block[64] = {0};
        int32_t sum = 0;
        for (int k = 0; k < 200; k++) {
            const int at = random_below(1 + random_below(64));
            const int32_t more = 1 + random_below(300), weight = quant.weight[at];
            if (abs(block[at]) + more > INT16_MAX || sum + more * weight > FM_JPEG_SAFE_SUM)
                continue;
            sum += more * weight;
            block[at] = (int16_t)(block[at] < 0 || random_below(2) ? -abs(block[at]) - more
                                                                   : block[at] + more);
            if (i % 3 == 0) block[at] = (int16_t)abs(block[at]);
        }
        assert_true(fm_jpeg_block_in_range(block, &quant));
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of n samples with one before and the slack behind them. */
static test_guarded random_row(int32_t n) {
    const test_guarded row = test_guarded_open(NULL, (size_t)n + 1 + FM_JPEG_SLACK);
    const int32_t kind = random_below(3);
    for (size_t i = 0; i < row.n; i++)
        row.bytes[i] = (uint8_t)(kind ? random_below(256) : 255 * random_below(2));
    return row;
}

/* Both outputs' first n bytes are equal, and nothing before them has changed. */
static void check_out(const test_guarded *wanted, const test_guarded *out, size_t n) {
    assert_memory_equal(wanted->bytes, out->bytes, n + 1);
}

static void rows_equal(void **state) {
    (void)state;
    for (int i = 0; i < 3000; i++) {
        const int32_t n = 1 + random_below(random_below(2) ? 40 : MOST_PX);
        test_guarded in[3], out[2];
        for (int c = 0; c < 3; c++) in[c] = random_row(n);
        const uint8_t *const a = in[0].bytes + 1, *const b = in[1].bytes + 1;
        const uint8_t *const c = in[2].bytes + 1;
        const bool flag = random_below(2);
        const int kernel = i % 5;
        const size_t n_out = (size_t)n * (kernel < 2 ? 2 : kernel == 2 ? 1 : 3);
        for (int k = 0; k < 2; k++) {
            const fm_jpeg_kernels *const kernels = k ? &fast : &scalar;
            out[k] = test_guarded_open(NULL, 1 + n_out + FM_JPEG_SLACK);
            uint8_t *const to = out[k].bytes + 1;
            if (kernel == 0) kernels->upsample_h2(to, a, n);
            if (kernel == 1) kernels->upsample_h2v2(to, a, b, n);
            if (kernel == 2) kernels->upsample_v2(to, a, b, n, flag);
            if (kernel == 3) kernels->ycc_to_rgb(to, a, b, c, n, flag);
            if (kernel == 4) kernels->gray_to_rgb(to, a, n);
        }
        check_out(&out[0], &out[1], n_out);
        for (int k = 0; k < 3; k++) test_guarded_close(&in[k]);
        for (int k = 0; k < 2; k++) test_guarded_close(&out[k]);
    }
}

static void all_colors_equal(void **state) {
    (void)state;
    uint8_t y[256 + FM_JPEG_SLACK] = {0}, cb[256 + FM_JPEG_SLACK], cr[256 + FM_JPEG_SLACK] = {0};
    uint8_t wanted[3 * 256 + FM_JPEG_SLACK], out[3 * 256 + FM_JPEG_SLACK];
    for (int u = 0; u < 256; u++) {
        memset(cb, u, sizeof(cb));
        for (int v = 0; v < 256; v++) cr[v] = (uint8_t)v;
        for (int luma = 0; luma < 256; luma += 5) {
            memset(y, luma, sizeof(y));
            scalar.ycc_to_rgb(wanted, y, cb, cr, 256, false);
            fast.ycc_to_rgb(out, y, cb, cr, 256, false);
            assert_memory_equal(out, wanted, (size_t)3 * 256);
        }
    }
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 20240607u;
    printf("seed %u\n", lcg_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal),
        cmocka_unit_test(sums_bound_samples),
        cmocka_unit_test(rows_equal),
        cmocka_unit_test(all_colors_equal),
    };
    int n_failed = 0;
    fm_jpeg_kernels_init(&scalar, FM_CPU_SCALAR);
    for (int tier = FM_CPU_SCALAR; tier <= (int)fm_cpu_best_tier(); tier++) {
        fm_jpeg_kernels_init(&fast, (fm_cpu_tier)tier);
        printf("%s\n", fm_cpu_tier_name(fast.tier));
        n_failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return n_failed;
}
