/*
 * fm_operation_run(): blurs equal Pillow's algorithm (BoxBlur.c) written with a sliding sum, on
 * every tier; the others equal their definitions; wrong operations are refused; nothing beyond the
 * pixels is read or written. FM_SEED sets the seed.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "augment/blur.h"
#include "feedmill/operations.h"
#include "guarded.h"

enum { MOST_SIDE = 70 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static test_guarded random_bytes(size_t n) {
    const test_guarded bytes = test_guarded_open(NULL, n);
    for (size_t i = 0; i < n; i++) bytes.bytes[i] = (uint8_t)random_below(256);
    return bytes;
}

/* ---- blur ------------------------------------------------------------------------------------ */

/* One pass over n values that are `step` bytes apart, in place. */
static void slide(uint8_t *line, int n, size_t step, float radius) {
    uint8_t in[MOST_SIDE];
    const int r = (int)radius;
    const uint32_t weight = (uint32_t)((float)(1 << 24) / (radius * 2 + 1));
    const uint32_t far_weight = ((1u << 24) - (uint32_t)(r * 2 + 1) * weight) / 2;
    for (int i = 0; i < n; i++) in[i] = line[(size_t)i * step];
#define AT(i) (uint32_t) in[(i) < 0 ? 0 : (i) < n ? (i) : n - 1]
    uint32_t sum = 0;
    for (int i = -r - 1; i < r; i++) sum += AT(i);
    for (int i = 0; i < n; i++) {
        sum += AT(i + r) - AT(i - r - 1);
        const uint32_t mixed = sum * weight + (AT(i - r - 1) + AT(i + r + 1)) * far_weight;
        line[(size_t)i * step] = (uint8_t)((mixed + (1 << 23)) >> 24);
    }
#undef AT
}

static void blur_by_sliding(uint8_t *px, int width, int height, float x, float y, int n_passes) {
    const size_t row_bytes = 3 * (size_t)width;
    for (int pass = 0; x != 0 && pass < n_passes; pass++)
        for (int row = 0; row < height; row++)
            for (size_t c = 0; c < 3; c++) slide(px + (size_t)row * row_bytes + c, width, 3, x);
    for (int pass = 0; y != 0 && pass < n_passes; pass++)
        for (size_t i = 0; i < row_bytes; i++) slide(px + i, height, row_bytes, y);
}

static float random_radius(void) {
    const int32_t kind = random_below(8);
    if (kind == 0) return 0;
    if (kind == 1) return (float)random_below(16);
    const float most = kind < 5 ? 2.0f : 15.99f;
    return most * (float)random_below(1 << 16) / (1 << 16);
}

static void blurs_equal_a_sliding_sum(void **state) {
    (void)state;
    for (int run = 0; run < 500; run++) {
        const int width = 1 + random_below(MOST_SIDE), height = 1 + random_below(MOST_SIDE);
        const size_t n = 3 * (size_t)width * (size_t)height;
        const float x = random_radius(), y = random_below(4) ? x : random_radius();
        const int n_passes = 1 + random_below(4);
        const test_guarded in = random_bytes(n), want = test_guarded_open(in.bytes, n);
        blur_by_sliding(want.bytes, width, height, x, y, n_passes);
        for (int tier = 0; tier <= (int)fm_cpu_best_tier(); tier++) {
            const test_guarded got = test_guarded_open(NULL, n);
            const test_guarded scratch = test_guarded_open(NULL, fm_blur_scratch_bytes(width));
            const fm_image image = {in.bytes, width, height, 3};
            fm_blur_kernels kernels;
            fm_blur_init(&kernels, (fm_cpu_tier)tier);
            fm_blur_box(&kernels, &image, got.bytes, scratch.bytes, x, y, n_passes);
            assert_memory_equal(got.bytes, want.bytes, n);
            test_guarded_close(&got);
            test_guarded_close(&scratch);
        }
        fm_operation operation = {.struct_bytes = sizeof(operation),
                                  .kind = FM_OPERATION_BOX_BLUR,
                                  .pixels = in.bytes,
                                  .width = width,
                                  .height = height,
                                  .x = x,
                                  .y = y,
                                  .n_passes = n_passes};
        const test_guarded got = test_guarded_open(NULL, n);
        assert_int_equal(fm_operation_run(&operation, got.bytes, NULL), FM_OK);
        assert_memory_equal(got.bytes, want.bytes, n);
        test_guarded_close(&got);
        test_guarded_close(&in);
        test_guarded_close(&want);
    }
}

static void radii_of_gaussian_blurs_are_pillows(void **state) {
    (void)state;
    assert_true(fm_blur_box_radius(0, 3) == 0);
    /* Three boxes of this radius have the variance of the Gaussian, within the paper's error. */
    for (int i = 1; i < 60; i++) {
        const float deviation = 0.25f * (float)i, radius = fm_blur_box_radius(deviation, 3);
        const double whole = floor((double)radius), part = (double)radius - whole;
        const double length = 2 * whole + 1;
        const double inner = (length * length - 1) / 12 * length;
        const double variance =
            (inner + 2 * part * (whole + 1) * (whole + 1)) / (length + 2 * part);
        assert_float_equal(3 * variance, deviation * deviation, 1e-3 * deviation * deviation);
    }
}

/* ---- the others ------------------------------------------------------------------------------ */

static uint8_t gray_of(const uint8_t *px) {
    return (uint8_t)((px[0] * 19595u + px[1] * 38470u + px[2] * 7471u + 0x8000u) >> 16);
}

static uint8_t mixed(uint8_t base, uint8_t value, float factor) {
    const float sum = (float)base + factor * (float)(value - base);
    return (uint8_t)(sum <= 0 ? 0 : sum >= 255 ? 255 : (int)sum);
}

/* One byte of the result of an operation without neighbors. */
static uint8_t expected(const fm_operation *operation, size_t i) {
    const uint8_t value = operation->pixels[i], gray = gray_of(operation->pixels + i / 3 * 3);
    switch (operation->kind) {
    case FM_OPERATION_BLEND:
        return mixed(operation->other[i], value, operation->factor);
    case FM_OPERATION_BLEND_VALUE:
        return mixed((uint8_t)operation->value, value, operation->factor);
    case FM_OPERATION_BLEND_GRAY:
        return mixed(gray, value, operation->factor);
    case FM_OPERATION_POINT:
        return operation->other[i % 3 * 256 + value];
    default:
        return gray;
    }
}

/* Tables of each kind for which there is other code. */
static void fill_table(uint8_t *table, int kind) {
    const int threshold = random_below(257);
    for (int i = 0; i < 768; i++) {
        const int value = i % 256;
        table[i] = (uint8_t)(kind == 0           ? random_below(256)
                             : kind == 1         ? value * 7 + 3
                             : value < threshold ? value
                                                 : 255 - value);
    }
}

static void others_equal_their_definitions(void **state) {
    (void)state;
    static const fm_operation_kind KINDS[] = {FM_OPERATION_BLEND, FM_OPERATION_BLEND_VALUE,
                                              FM_OPERATION_BLEND_GRAY, FM_OPERATION_GRAY,
                                              FM_OPERATION_POINT};
    for (int run = 0; run < 1000; run++) {
        const int width = 1 + random_below(MOST_SIDE), height = 1 + random_below(MOST_SIDE);
        const size_t n = 3 * (size_t)width * (size_t)height;
        const fm_operation_kind kind = KINDS[run % 5];
        const size_t n_other = kind == FM_OPERATION_POINT ? 768 : n;
        const test_guarded in = random_bytes(n), other = random_bytes(n_other);
        const test_guarded got = test_guarded_open(NULL, n);
        if (kind == FM_OPERATION_POINT) fill_table(other.bytes, random_below(4));
        const fm_operation operation = {.struct_bytes = sizeof(operation),
                                        .kind = kind,
                                        .pixels = in.bytes,
                                        .width = width,
                                        .height = height,
                                        .other = other.bytes,
                                        .factor = (float)(random_below(4000) - 1000) / 1000,
                                        .value = random_below(256)};
        assert_int_equal(fm_operation_run(&operation, got.bytes, NULL), FM_OK);
        for (size_t i = 0; i < n; i++) assert_int_equal(got.bytes[i], expected(&operation, i));
        test_guarded_close(&in);
        test_guarded_close(&other);
        test_guarded_close(&got);
    }
}

static void gray_bytes_have_one_channel(void **state) {
    (void)state;
    const test_guarded in = random_bytes(3 * 50 * 41), got = random_bytes(50 * 41);
    const fm_operation operation = {.struct_bytes = sizeof(operation),
                                    .kind = FM_OPERATION_GRAY_BYTES,
                                    .pixels = in.bytes,
                                    .width = 50,
                                    .height = 41};
    assert_int_equal(fm_operation_run(&operation, got.bytes, NULL), FM_OK);
    for (size_t i = 0; i < 50 * 41; i++) assert_int_equal(got.bytes[i], gray_of(in.bytes + 3 * i));
    test_guarded_close(&in);
    test_guarded_close(&got);
}

static void pixels_are_counted(void **state) {
    (void)state;
    const size_t n_px = 5001;
    const test_guarded in = random_bytes(3 * n_px);
    uint64_t counts[3][256], want[3][256] = {{0}}, sum, want_sum = 0;
    for (size_t i = 0; i < 3 * n_px; i++) want[i % 3][in.bytes[i]]++;
    for (size_t i = 0; i < n_px; i++) want_sum += gray_of(in.bytes + 3 * i);
    fm_pixels_histogram(in.bytes, n_px, counts);
    assert_memory_equal(counts, want, sizeof(want));
    assert_int_equal(fm_pixels_gray_sum(in.bytes, n_px, &sum, NULL), FM_OK);
    assert_int_equal(sum, want_sum);
    assert_int_equal(fm_pixels_gray_sum(NULL, n_px, &sum, NULL), FM_ERR_ARGUMENT);
    test_guarded_close(&in);
}

/* The entries of ImageOps.autocontrast()'s or equalize()'s table for one channel. */
static void expected_table(fm_operation_kind kind, const uint64_t counts[256], uint8_t table[256]) {
    int low = 255, high = 0, n_used = 0;
    uint64_t total = 0, last = 0;
    for (int i = 0; i < 256; i++) {
        if (!counts[i]) continue;
        low = i < low ? i : low;
        high = i;
        n_used++;
        total += last = counts[i];
    }
    const uint64_t step = n_used > 1 ? (total - last) / 255 : 0;
    uint64_t sum = step / 2;
    for (int i = 0; i < 256; i++) {
        int64_t value = i;
        if (kind == FM_OPERATION_EQUALIZE && step) value = (int64_t)(sum / step);
        if (kind == FM_OPERATION_AUTOCONTRAST && high > low) {
            const double scale = 255.0 / (high - low), offset = -low * scale;
            value = (int64_t)(i * scale + offset);
        }
        table[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        sum += counts[i];
    }
}

static void contrasts_equal_their_definitions(void **state) {
    (void)state;
    for (int run = 0; run < 300; run++) {
        const int width = 1 + random_below(MOST_SIDE), height = 1 + random_below(MOST_SIDE);
        const size_t n = 3 * (size_t)width * (size_t)height;
        const test_guarded in = random_bytes(n), got = test_guarded_open(NULL, n);
        const int range = 1 + random_below(200), least = random_below(256 - range);
        for (size_t i = 0; i < n; i++) in.bytes[i] = (uint8_t)(least + in.bytes[i] % range);
        const fm_operation operation = {.struct_bytes = sizeof(operation),
                                        .kind = run % 2 ? FM_OPERATION_EQUALIZE
                                                        : FM_OPERATION_AUTOCONTRAST,
                                        .pixels = in.bytes,
                                        .width = width,
                                        .height = height};
        uint64_t counts[3][256];
        uint8_t tables[3][256];
        fm_pixels_histogram(in.bytes, n / 3, counts);
        for (int c = 0; c < 3; c++) expected_table(operation.kind, counts[c], tables[c]);
        assert_int_equal(fm_operation_run(&operation, got.bytes, NULL), FM_OK);
        for (size_t i = 0; i < n; i++) assert_int_equal(got.bytes[i], tables[i % 3][in.bytes[i]]);
        test_guarded_close(&in);
        test_guarded_close(&got);
    }
}

static void images_are_mixed_as_torch_does(void **state) {
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        const size_t n = (size_t)random_below(4000);
        const test_guarded one = random_bytes(n), other = random_bytes(n), got = random_bytes(n);
        const double share = trial % 10 == 0 ? 0.5
                             : trial == 1    ? 1
                                             : random_below(1 << 20) * 0x1p-20;
        const float weight = (float)share, other_weight = (float)(1 - share);
        assert_int_equal(
            fm_pixels_mix(one.bytes, other.bytes, n, weight, other_weight, got.bytes, NULL), FM_OK);
        for (size_t i = 0; i < n; i++) {
            const volatile float a = (float)one.bytes[i] * weight;
            const volatile float b = (float)other.bytes[i] * other_weight;
            assert_int_equal(got.bytes[i], (int)nearbyintf(a + b));
        }
        test_guarded_close(&one);
        test_guarded_close(&other);
        test_guarded_close(&got);
    }
}

static void wrong_weights_are_refused(void **state) {
    (void)state;
    uint8_t px[4] = {1, 2, 3, 4};
    const float wrong[][2] = {{-0.1f, 1}, {1, -0.1f}, {0.6f, 0.5f}, {NAN, 0}, {0, NAN}};
    fm_error error;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(fm_pixels_mix(px, px, 4, wrong[i][0], wrong[i][1], px, &error),
                         FM_ERR_ARGUMENT);
        assert_true(error.message[0] != '\0');
    }
    assert_int_equal(fm_pixels_mix(NULL, px, 4, 1, 0, px, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(px[3], 4);
}

static void wrong_operations_are_refused(void **state) {
    (void)state;
    static uint8_t px[3 * 4 * 4], out[3 * 4 * 4];
    const fm_operation right = {.struct_bytes = sizeof(right),
                                .kind = FM_OPERATION_BOX_BLUR,
                                .pixels = px,
                                .width = 4,
                                .height = 4,
                                .x = 1,
                                .y = 1,
                                .n_passes = 1};
    fm_operation wrong[14];
    for (int i = 0; i < 14; i++) wrong[i] = right;
    wrong[0].struct_bytes = 1;
    wrong[1].pixels = NULL;
    wrong[2].width = 0;
    wrong[3].height = 1 << 20;
    wrong[4].kind = (fm_operation_kind)99;
    wrong[5].kind = FM_OPERATION_BLEND;
    wrong[6].kind = FM_OPERATION_POINT;
    wrong[7].factor = INFINITY;
    wrong[8].value = 256;
    wrong[9].x = 16;
    wrong[10].y = -0.5f;
    wrong[11].x = NAN;
    wrong[12].n_passes = 0;
    wrong[13].kind = FM_OPERATION_GAUSSIAN_BLUR, wrong[13].x = 99;
    fm_error error;
    for (int i = 0; i < 14; i++) {
        assert_int_equal(fm_operation_run(&wrong[i], out, &error), FM_ERR_ARGUMENT);
        assert_true(error.message[0] != '\0');
    }
    assert_int_equal(fm_operation_run(NULL, out, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_operation_run(&right, NULL, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_operation_run(&right, out, NULL), FM_OK);
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 0) : 7;
    const struct CMUnitTest tests[] = {cmocka_unit_test(blurs_equal_a_sliding_sum),
                                       cmocka_unit_test(radii_of_gaussian_blurs_are_pillows),
                                       cmocka_unit_test(others_equal_their_definitions),
                                       cmocka_unit_test(gray_bytes_have_one_channel),
                                       cmocka_unit_test(pixels_are_counted),
                                       cmocka_unit_test(contrasts_equal_their_definitions),
                                       cmocka_unit_test(images_are_mixed_as_torch_does),
                                       cmocka_unit_test(wrong_weights_are_refused),
                                       cmocka_unit_test(wrong_operations_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
