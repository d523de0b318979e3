/*
 * Compares affine transforms of tensors in every tier that the CPU has with the scalar ones, for
 * any image, matrix and rounding, and checks that nothing is read or written further than allowed
 * beyond an image's end. Prints its seed; FM_SEED sets it. The Python tests compare the results
 * with torchvision's.
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

#include "augment/tensor_warp.h"
#include "guarded.h"

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

/* From -most to most. */
static double random_number(double most) {
    return most * ((double)random_below(1 << 24) / (1 << 23) - 1);
}

typedef struct warp {
    fm_affine affine;
    fm_arithmetic arithmetic;
    uint32_t sampling;
    fm_filter filter;
    uint8_t fill[3];
} warp;

/* Some move the whole image far away, or to coordinates beyond float32's. */
static warp random_warp(int32_t width, int32_t height) {
    static const double mosts[] = {0.2, 1, 1, 3, 1e4, 1e39};
    warp made = {.arithmetic = (fm_arithmetic)(1 + random_below(3)),
                 .sampling = (uint32_t)random_below(8),
                 .filter = random_below(2) ? FM_FILTER_NEAREST : FM_FILTER_BILINEAR};
    const double most = mosts[random_below(6)];
    for (int i = 0; i < 6; i++) made.affine.m[i] = random_number(most);
    made.affine.m[2] *= width;
    made.affine.m[5] *= height;
    if (random_below(3) == 0) { /* the image almost as it is */
        made.affine.m[0] = made.affine.m[4] = 1;
        made.affine.m[1] = made.affine.m[3] = 0;
    }
    for (int i = 0; i < 3; i++) made.fill[i] = (uint8_t)random_below(256);
    return made;
}

static test_guarded random_image(size_t n) {
    const test_guarded bytes = test_guarded_open(NULL, n + FM_IMAGE_SLACK);
    for (size_t i = 0; i < n + FM_IMAGE_SLACK; i++) bytes.bytes[i] = (uint8_t)random_below(256);
    return bytes;
}

static void tiers_give_the_same(void **state) {
    (void)state;
    fm_tensor_warp_kernels scalar, kernels;
    fm_tensor_warp_init(&scalar, FM_CPU_SCALAR);
    for (int run = 0; run < 3000; run++) {
        const int32_t most = run % 10 ? 40 : 300;
        const fm_image in = {NULL, 1 + random_below(most), 1 + random_below(most),
                             random_below(4) ? 3 : 1};
        const size_t n = fm_image_bytes(&in);
        const warp one = random_warp(in.width, in.height);
        const test_guarded from = random_image(n), want = random_image(n), got = random_image(n);
        fm_image image = in, out = in;
        image.px = from.bytes;
        out.px = want.bytes;
        fm_tensor_warp_map(&scalar, &image, &out, &one.affine, one.arithmetic, one.sampling,
                           one.filter, one.fill);
        out.px = got.bytes;
        for (int tier = FM_CPU_SCALAR + 1; tier <= (int)fm_cpu_best_tier(); tier++) {
            fm_tensor_warp_init(&kernels, (fm_cpu_tier)tier);
            memset(got.bytes, run & 255, n);
            fm_tensor_warp_map(&kernels, &image, &out, &one.affine, one.arithmetic, one.sampling,
                               one.filter, one.fill);
            assert_memory_equal(got.bytes, want.bytes, n);
        }
        test_guarded_close(&from);
        test_guarded_close(&want);
        test_guarded_close(&got);
    }
}

static const double IDENTITY[6] = {1, 0, 0, 0, 1, 0};

static void the_identity_changes_nothing(void **state) {
    (void)state;
    fm_tensor_warp_kernels kernels;
    fm_tensor_warp_init(&kernels, fm_cpu_best_tier());
    for (int run = 0; run < 64; run++) {
        warp one = random_warp(64, 32);
        memcpy(one.affine.m, IDENTITY, sizeof(IDENTITY));
        const test_guarded from = random_image(64 * 32 * 3), to = random_image(64 * 32 * 3);
        const fm_image in = {from.bytes, 64, 32, 3}, out = {to.bytes, 64, 32, 3};
        fm_tensor_warp_map(&kernels, &in, &out, &one.affine, one.arithmetic, one.sampling,
                           one.filter, one.fill);
        assert_memory_equal(from.bytes, to.bytes, fm_image_bytes(&in));
        test_guarded_close(&from);
        test_guarded_close(&to);
    }
}

static void far_points_are_filled(void **state) {
    (void)state;
    static const double far_away[] = {1e3, -1e3, 1e12, -1e30, 1e200};
    fm_tensor_warp_kernels kernels;
    fm_tensor_warp_init(&kernels, fm_cpu_best_tier());
    for (int run = 0; run < 60; run++) {
        warp one = random_warp(30, 20);
        memcpy(one.affine.m, IDENTITY, sizeof(IDENTITY));
        one.affine.m[run & 1 ? 2 : 5] = far_away[run % 5];
        const test_guarded from = random_image(30 * 20 * 3), to = random_image(30 * 20 * 3);
        const fm_image in = {from.bytes, 30, 20, 3}, out = {to.bytes, 30, 20, 3};
        fm_tensor_warp_map(&kernels, &in, &out, &one.affine, one.arithmetic, one.sampling,
                           one.filter, one.fill);
        for (size_t i = 0; i < fm_image_bytes(&out); i++)
            assert_int_equal(to.bytes[i],
                             one.sampling & FM_SAMPLING_WITHOUT_FILL ? 0 : one.fill[i % 3]);
        test_guarded_close(&from);
        test_guarded_close(&to);
    }
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 20261128u;
    print_message("FM_SEED=%u\n", (unsigned)lcg_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_give_the_same),
        cmocka_unit_test(the_identity_changes_nothing),
        cmocka_unit_test(far_points_are_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
