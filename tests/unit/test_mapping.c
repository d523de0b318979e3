/*
 * fm_mapping_run(): pixels equal Pillow's definition (Geometry.c), written with one channel of one
 * pixel at a time, on every tier; wrong mappings are refused; nothing beyond the pixels is read,
 * except for the one byte, or written. FM_SEED sets the seed.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "feedmill/operations.h"
#include "guarded.h"

enum { MOST_SIDE = 150 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static double random_within(double low, double high) {
    return low + (high - low) * random_below(1 << 23) / (1 << 23);
}

/* ---- the definition -------------------------------------------------------------------------- */

static int clamp(int at, int n) { return at < 0 ? 0 : at < n ? at : n - 1; }

static uint8_t at(const fm_mapping *mapping, int x, int y, int channel) {
    return mapping->pixels[3 * (y * mapping->width + clamp(x, mapping->width)) + channel];
}

static double cubic(const double v[4], double d) {
    const double p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3];
    const double p4 = -v[0] + v[1] - v[2] + v[3];
    return v[1] + d * (p2 + d * (p3 + d * p4));
}

static uint8_t interpolated(const fm_mapping *mapping, double x, double y, int channel) {
    x -= 0.5;
    y -= 0.5;
    const int left = (int)floor(x), top = (int)floor(y);
    const double dx = x - left, dy = y - top;
    double rows[4];
    int row = 0;
    for (int i = 0; i < 4; i++) {
        const int wanted = top - 1 + i;
        if (i == 0 || (wanted >= 0 && wanted < mapping->height))
            row = clamp(wanted, mapping->height);
        double v[4];
        for (int k = 0; k < 4; k++) v[k] = at(mapping, left - 1 + k, row, channel);
        rows[i] = mapping->filter == FM_FILTER_BICUBIC ? cubic(v, dx) : v[1] + (v[2] - v[1]) * dx;
    }
    if (mapping->filter == FM_FILTER_BILINEAR) return (uint8_t)(rows[1] + (rows[2] - rows[1]) * dy);
    const double value = cubic(rows, dy);
    return (uint8_t)(value <= 0 ? 0 : value >= 255 ? 255 : value);
}

/* The point of a result's pixel, as the nearest filter of an affine transform computes it. */
static void nearest_point(const fm_mapping *mapping, int column, int row, double *x, double *y) {
    const double *const m = mapping->m;
    if (m[1] == 0 && m[3] == 0) {
        *x = m[2] + m[0] * 0.5;
        *y = m[5] + m[4] * 0.5;
        for (int i = 0; i < column; i++) *x += m[0];
        for (int i = 0; i < row; i++) *y += m[4];
        return;
    }
#define FIXED(v) ((int64_t)floor((v)*65536.0 + 0.5))
    const int64_t fixed_x =
        FIXED(m[2] + m[0] * 0.5 + m[1] * 0.5) + row * FIXED(m[1]) + column * FIXED(m[0]);
    const int64_t fixed_y =
        FIXED(m[5] + m[3] * 0.5 + m[4] * 0.5) + row * FIXED(m[4]) + column * FIXED(m[3]);
#undef FIXED
    *x = (double)fixed_x / 65536;
    *y = (double)fixed_y / 65536;
}

static uint8_t expected(const fm_mapping *mapping, int column, int row, int channel) {
    const double *const m = mapping->m, center_x = column + 0.5, center_y = row + 0.5;
    double x = m[0] * center_x + m[1] * center_y + m[2];
    double y = m[3] * center_x + m[4] * center_y + m[5];
    if (mapping->kind == FM_MAPPING_PERSPECTIVE) {
        x /= m[6] * center_x + m[7] * center_y + 1;
        y /= m[6] * center_x + m[7] * center_y + 1;
    } else if (mapping->filter == FM_FILTER_NEAREST) {
        nearest_point(mapping, column, row, &x, &y);
    }
    if (x < 0 || x >= mapping->width || y < 0 || y >= mapping->height)
        return mapping->fill[channel];
    return mapping->filter == FM_FILTER_NEAREST ? at(mapping, (int)x, (int)y, channel)
                                                : interpolated(mapping, x, y, channel);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static int32_t random_side(void) { return 1 + random_below(random_below(3) ? 20 : MOST_SIDE); }

static void fill_mapping(fm_mapping *mapping) {
    static const fm_filter FILTERS[] = {FM_FILTER_NEAREST, FM_FILTER_BILINEAR, FM_FILTER_BICUBIC};
    *mapping = (fm_mapping){.struct_bytes = sizeof(*mapping),
                            .width = random_side(),
                            .height = random_side(),
                            .out_width = random_side(),
                            .out_height = random_side(),
                            .filter = FILTERS[random_below(3)],
                            .kind = (fm_mapping_kind)random_below(2)};
    double *const m = mapping->m;
    const bool scales = random_below(3) == 0, moves = random_below(6) == 0;
    for (int i = 0; i < 6; i++) m[i] = random_within(-1.5, 1.5);
    if (scales) m[1] = m[3] = 0;
    if (moves) m[0] = m[4] = 1, m[1] = m[3] = 0;
    m[2] = random_within(-10, mapping->width);
    m[5] = random_within(-10, mapping->height);
    if (random_below(3) == 0) m[2] = round(m[2]), m[5] = round(m[5]);
    for (int i = 6; i < 8; i++) m[i] = random_within(-0.003, 0.003);
    for (int i = 0; i < 3; i++) mapping->fill[i] = (uint8_t)random_below(256);
}

static void check_result(const fm_mapping *mapping) {
    const size_t n = 3 * (size_t)mapping->out_width * (size_t)mapping->out_height;
    const test_guarded got = test_guarded_open(NULL, n);
    assert_int_equal(fm_mapping_run(mapping, got.bytes, NULL), FM_OK);
    for (size_t i = 0; i < n; i++) {
        const int px = (int)(i / 3), row = px / mapping->out_width;
        const uint8_t want = expected(mapping, px % mapping->out_width, row, (int)(i % 3));
        assert_int_equal(got.bytes[i], want);
    }
    test_guarded_close(&got);
}

static void results_equal_the_definition(void **state) {
    (void)state;
    const bool is_set = getenv("FEEDMILL_CPU") != NULL;
    for (int run = 0; run < 1500; run++) {
        fm_mapping mapping;
        fill_mapping(&mapping);
        const size_t n = 3 * (size_t)mapping.width * (size_t)mapping.height;
        const test_guarded in = test_guarded_open(NULL, n + 1);
        for (size_t i = 0; i < n; i++) in.bytes[i] = (uint8_t)random_below(256);
        mapping.pixels = in.bytes;
        for (int tier = 0; tier <= (int)fm_cpu_best_tier() && !is_set; tier++) {
            setenv("FEEDMILL_CPU", fm_cpu_tier_name((fm_cpu_tier)tier), 1);
            check_result(&mapping);
        }
        if (is_set)
            check_result(&mapping);
        else
            unsetenv("FEEDMILL_CPU");
        test_guarded_close(&in);
    }
}

static void wrong_mappings_are_refused(void **state) {
    (void)state;
    static uint8_t px[3 * 4 * 4 + 1], out[3 * 4 * 4];
    const fm_mapping right = {.struct_bytes = sizeof(right),
                              .pixels = px,
                              .width = 4,
                              .height = 4,
                              .out_width = 4,
                              .out_height = 4,
                              .m = {1, 0.5, 0, 0, 1, 0},
                              .filter = FM_FILTER_NEAREST};
    fm_mapping wrong[12];
    for (int i = 0; i < 12; i++) wrong[i] = right;
    wrong[0].struct_bytes = 1;
    wrong[1].pixels = NULL;
    wrong[2].width = 0;
    wrong[3].out_height = 1 << 20;
    wrong[4].kind = (fm_mapping_kind)2;
    wrong[5].filter = FM_FILTER_LANCZOS;
    wrong[6].m[2] = NAN;
    wrong[7].m[4] = INFINITY;
    wrong[8].m[5] = 20000; /* Pillow's fixed-point numbers have 16 bits */
    wrong[9].m[2] = 2e9, wrong[9].filter = FM_FILTER_BILINEAR;
    wrong[10].kind = FM_MAPPING_PERSPECTIVE, wrong[10].m[6] = -0.5; /* divides by 0 */
    wrong[11].kind = FM_MAPPING_PERSPECTIVE, wrong[11].m[7] = NAN;
    fm_error error;
    for (int i = 0; i < 12; i++) {
        assert_int_equal(fm_mapping_run(&wrong[i], out, &error),
                         i < 6 ? FM_ERR_ARGUMENT : FM_ERR_LIMIT);
        assert_true(error.message[0] != '\0');
    }
    assert_int_equal(fm_mapping_run(NULL, out, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_mapping_run(&right, NULL, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_mapping_run(&right, out, NULL), FM_OK);
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 0) : 7;
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_equal_the_definition),
                                       cmocka_unit_test(wrong_mappings_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
