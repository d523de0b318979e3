/*
 * Compares the color kernels of every tier that the CPU has with the scalar ones, those of PIL
 * images and those of tensors, for any number of pixels and any factor, and checks that nothing is
 * written beyond the end. Compares hue shifts with Pillow's algorithm (Convert.c) for all colors,
 * there and back. Prints its seed; FM_SEED sets it.
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

#include "augment/color.h"
#include "augment/tensor_color.h"
#include "guarded.h"

enum { MOST_PX = 700 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static float random_factor(void) {
    static const float marked[] = {0, 1, 0.5f, 1.9f, -0.3f, 3};
    const int32_t which = random_below(8);
    return which < 6 ? marked[which] : (float)random_below(1 << 20) / (1 << 19);
}

static test_guarded random_bytes(size_t n) {
    const test_guarded bytes = test_guarded_open(NULL, n);
    for (size_t i = 0; i < n; i++) bytes.bytes[i] = (uint8_t)random_below(256);
    return bytes;
}

typedef void change(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                    const uint8_t *other);

static void fade(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                 const uint8_t *other) {
    kernels->fade(px, 3 * n_px, (float)other[0], factor);
}

static void blend(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                  const uint8_t *other) {
    kernels->blend(px, other, 3 * n_px, factor);
}

static void fade_to_gray(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                         const uint8_t *other) {
    (void)other;
    kernels->fade_to_gray(px, n_px, factor);
}

static void gray(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                 const uint8_t *other) {
    (void)factor;
    (void)other;
    kernels->gray(px, px, n_px);
}

static void gray_rgb(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                     const uint8_t *other) {
    (void)factor;
    kernels->gray_rgb(px, other, n_px);
}

static void gray_sum(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                     const uint8_t *other) {
    (void)factor;
    (void)other;
    const uint64_t sum = kernels->gray_sum(px, n_px);
    memcpy(px, &sum, n_px ? 3 : 0);
}

static void hue(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                const uint8_t *other) {
    (void)factor;
    kernels->hue(px, n_px, other[0]);
}

static void smooth(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                   const uint8_t *other) {
    (void)factor;
    uint8_t rows[3][3 * MOST_PX];
    if (n_px < 3) return;
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < 3 * n_px; k++) rows[i][k] = (uint8_t)(other[k] * (i + 1));
    kernels->smooth(px, rows[0], rows[1], rows[2], 3 * n_px - 6, 3);
}

static void lookup(const fm_color_kernels *kernels, uint8_t *px, size_t n_px, float factor,
                   const uint8_t *other) {
    uint8_t tables[3 * 256];
    for (size_t i = 0; i < sizeof(tables); i++)
        tables[i] = (uint8_t)(i * i / 7 + i / 256 * 31 + (size_t)fabsf(factor * 9) + other[0]);
    kernels->lookup(px, n_px, tables);
}

static change *const CHANGES[] = {fade,     blend, fade_to_gray, gray,  gray_rgb,
                                  gray_sum, hue,   smooth,       lookup};

static void tiers_give_the_same(void **state) {
    (void)state;
    for (int tier = FM_CPU_SCALAR + 1; tier <= (int)fm_cpu_best_tier(); tier++) {
        fm_color_kernels scalar, kernels;
        fm_color_init(&scalar, FM_CPU_SCALAR);
        fm_color_init(&kernels, (fm_cpu_tier)tier);
        for (int run = 0; run < 1800; run++) {
            const size_t n_px = (size_t)random_below(run % 4 ? 70 : MOST_PX);
            const test_guarded want = random_bytes(3 * n_px), other = random_bytes(3 * n_px + 1);
            const test_guarded got = test_guarded_open(want.bytes, 3 * n_px);
            const float factor = random_factor();
            change *const made = CHANGES[run % 9];
            made(&scalar, want.bytes, n_px, factor, other.bytes);
            made(&kernels, got.bytes, n_px, factor, other.bytes);
            if (n_px) assert_memory_equal(got.bytes, want.bytes, 3 * n_px);
            test_guarded_close(&want);
            test_guarded_close(&got);
            test_guarded_close(&other);
        }
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef void change_tensor(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                           float factor, const uint8_t *other, bool flag);

static void tensor_gray(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                        float factor, const uint8_t *other, bool flag) {
    (void)factor;
    (void)other;
    kernels->gray(px, px, n_px, flag);
}

static void tensor_fade_to_gray(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                                float factor, const uint8_t *other, bool flag) {
    (void)other;
    kernels->fade_to_gray(px, n_px, factor, (float)(1.0 - (double)factor), flag);
}

static void tensor_blend(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                         float factor, const uint8_t *other, bool flag) {
    (void)flag;
    kernels->blend(px, other, 3 * n_px, factor, (float)(1.0 - (double)factor));
}

static void tensor_approach(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                            float factor, const uint8_t *other, bool flag) {
    kernels->approach(px, other, 3 * n_px, (float)(1.0 - (double)factor), flag);
}

static void tensor_hue(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                       float factor, const uint8_t *other, bool flag) {
    (void)other;
    kernels->hue(px, n_px, fmodf(factor, 0.5f), flag);
}

static void tensor_blur(const fm_tensor_color_kernels *kernels, uint8_t *px, size_t n_px,
                        float factor, const uint8_t *other, bool flag) {
    (void)factor;
    (void)flag;
    uint8_t rows[3][3 * MOST_PX];
    if (n_px < 3) return;
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < 3 * n_px; k++) rows[i][k] = (uint8_t)(other[k] * (i + 1));
    kernels->blur(px, rows[0], rows[1], rows[2], 3 * n_px - 6, 3);
}

static change_tensor *const TENSOR_CHANGES[] = {tensor_gray,     tensor_fade_to_gray, tensor_blend,
                                                tensor_approach, tensor_hue,          tensor_blur};

static void tiers_give_the_same_for_tensors(void **state) {
    (void)state;
    for (int tier = FM_CPU_SCALAR + 1; tier <= (int)fm_cpu_best_tier(); tier++) {
        fm_tensor_color_kernels scalar, kernels;
        fm_tensor_color_init(&scalar, FM_CPU_SCALAR);
        fm_tensor_color_init(&kernels, (fm_cpu_tier)tier);
        for (int run = 0; run < 1800; run++) {
            const size_t n_px = (size_t)random_below(run % 4 ? 70 : MOST_PX);
            const test_guarded want = random_bytes(3 * n_px), other = random_bytes(3 * n_px + 1);
            const test_guarded got = test_guarded_open(want.bytes, 3 * n_px);
            const float factor = random_factor();
            const bool flag = run / 6 % 2;
            change_tensor *const made = TENSOR_CHANGES[run % 6];
            made(&scalar, want.bytes, n_px, factor, other.bytes, flag);
            made(&kernels, got.bytes, n_px, factor, other.bytes, flag);
            if (n_px) assert_memory_equal(got.bytes, want.bytes, 3 * n_px);
            test_guarded_close(&want);
            test_guarded_close(&got);
            test_guarded_close(&other);
        }
    }
}

/* ---- hue ------------------------------------------------------------------------------------- */

/* Pillow's rgb2hsv_row(). */
static void pillow_hsv(const uint8_t in[3], uint8_t out[3]) {
    const uint8_t r = in[0], g = in[1], b = in[2];
    const uint8_t maxc = r > g ? (r > b ? r : b) : (g > b ? g : b);
    const uint8_t minc = r < g ? (r < b ? r : b) : (g < b ? g : b);
    out[0] = out[1] = 0;
    out[2] = maxc;
    if (minc == maxc) return;
    const float cr = (float)(maxc - minc);
    const float s = cr / (float)maxc;
    const float rc = (float)(maxc - r) / cr, gc = (float)(maxc - g) / cr;
    const float bc = (float)(maxc - b) / cr;
    float h;
    if (r == maxc)
        h = bc - gc;
    else if (g == maxc)
        h = (float)(2.0 + (double)rc - (double)bc);
    else
        h = (float)(4.0 + (double)gc - (double)rc);
    h = (float)fmod(((double)h / 6.0 + 1.0), 1.0);
    out[0] = (uint8_t)(int)((double)h * 255.0);
    out[1] = (uint8_t)(int)((double)s * 255.0);
}

/* Pillow's hsv2rgb(), of one pixel. */
static void pillow_rgb(const uint8_t in[3], uint8_t out[3]) {
    const uint8_t h = in[0], s = in[1], v = in[2];
    memset(out, v, 3);
    if (s == 0) return;
    const int i = (int)floor((double)(float)h * 6.0 / 255.0);
    const float f = (float)((double)(float)h * 6.0 / 255.0 - (double)(float)i);
    const float fs = (float)((double)(float)s / 255.0);
    const uint8_t p = (uint8_t)round((double)(float)v * (1.0 - (double)fs));
    const uint8_t q = (uint8_t)round((double)(float)v * (1.0 - (double)(fs * f)));
    const uint8_t t = (uint8_t)round((double)(float)v * (1.0 - (double)fs * (1.0 - (double)f)));
    const uint8_t of_sextant[6][3] = {{v, t, p}, {q, v, p}, {p, v, t},
                                      {p, q, v}, {t, p, v}, {v, p, q}};
    memcpy(out, of_sextant[i % 6], 3);
}

/* All reds and greens with one blue, and a shift by so much. */
static void check_plane(const fm_color_kernels *kernels, int blue, uint8_t shift) {
    static uint8_t got[256 * 256 * 3 + 64];
    for (int i = 0; i < 256 * 256; i++) {
        got[3 * i] = (uint8_t)(i >> 8);
        got[3 * i + 1] = (uint8_t)i;
        got[3 * i + 2] = (uint8_t)blue;
    }
    kernels->hue(got, 256 * 256, shift);
    for (int i = 0; i < 256 * 256; i++) {
        const uint8_t px[3] = {(uint8_t)(i >> 8), (uint8_t)i, (uint8_t)blue};
        uint8_t hsv[3], want[3];
        pillow_hsv(px, hsv);
        hsv[0] = (uint8_t)(hsv[0] + shift);
        pillow_rgb(hsv, want);
        if (memcmp(got + 3 * i, want, 3))
            fail_msg("colour (%d, %d, %d), shift %d: (%d, %d, %d), not (%d, %d, %d)", px[0], px[1],
                     px[2], shift, got[3 * i], got[3 * i + 1], got[3 * i + 2], want[0], want[1],
                     want[2]);
    }
}

static void hues_are_pillows(void **state) {
    (void)state;
    fm_color_kernels kernels;
    fm_color_init(&kernels, fm_cpu_best_tier());
    /* Shifts by a prime, so that every hue, saturation and value come together. */
    for (int blue = 0; blue < 256; blue++) check_plane(&kernels, blue, (uint8_t)(blue * 37));
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 0) : 20261121;
    printf("FM_SEED=%u\n", lcg_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_give_the_same),
        cmocka_unit_test(tiers_give_the_same_for_tensors),
        cmocka_unit_test(hues_are_pillows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
