/*
 * FM_OP_RANDOM_BLUR: what a plan refuses, what is drawn, and that fm_augment_apply() gives the
 * pixels of Pillow's GaussianBlur on every tier.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "augment/augment.h"
#include "guarded.h"
#include "transform/draws.h"
#include "transform/plan.h"

static const fm_op crop = {.kind = FM_OP_CENTER_CROP, .height = 7, .width = 9};

static fm_op blur_of(double p, double low, double high) {
    return (fm_op){.kind = FM_OP_RANDOM_BLUR, .p = p, .values = {low, high}};
}

/* ---- plans ----------------------------------------------------------------------------------- */

static int init_plan(fm_plan *plan, const fm_op *ops, size_t n_ops, int32_t in_channels,
                     fm_error *error) {
    const fm_transform transform = {.ops = ops,
                                    .n_ops = n_ops,
                                    .dtype = FM_UINT8,
                                    .std = {1, 1, 1},
                                    .in_channels = in_channels};
    return fm_plan_init(plan, &transform, error);
}

static void assert_refused(const fm_op *ops, size_t n_ops, int32_t in_channels, const char *text) {
    fm_plan plan;
    fm_error error = {0};
    assert_int_equal(init_plan(&plan, ops, n_ops, in_channels, &error), FM_ERR_ARGUMENT);
    if (!strstr(error.message, text)) fail_msg("\"%s\" lacks \"%s\"", error.message, text);
}

static void plans_check_the_parameters(void **state) {
    (void)state;
    static const double good[][2] = {{0, 0}, {0, 10}, {10, 0}, {1.5, 1.5}, {2, 0.1}, {10, 10}};
    static const double bad[][2] = {{-0.1, 1},  {1, -0.1},   {0, 10.1},     {10.1, 0},
                                    {NAN, 1},   {1, NAN},    {0, INFINITY}, {-INFINITY, 1},
                                    {1e300, 1}, {-1e-300, 1}};
    fm_plan plan;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        const fm_op ops[2] = {blur_of(0.5, good[i][0], good[i][1]), crop};
        assert_int_equal(init_plan(&plan, ops, 2, 0, NULL), FM_OK);
        assert_true(plan.blurs && plan.augments);
        assert_int_equal(plan.n_front, 0);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        const fm_op ops[2] = {blur_of(0.5, bad[i][0], bad[i][1]), crop};
        assert_refused(ops, 2, 0, "op 0 (RandomBlur): values[");
        assert_refused(ops, 2, 0, "numbers from 0 to 10");
    }
    fm_op of_unknown = blur_of(0.5, 1, 2);
    of_unknown.values[2] = 6; /* 1 to 5 are the generators of Python, NumPy and torch */
    assert_refused((fm_op[]){of_unknown, crop}, 2, 0, "op 0 (RandomBlur): values[2] is 6");
    static const double bad_p[] = {-0.1, 1.1, NAN};
    for (size_t i = 0; i < 3; i++) {
        const fm_op ops[2] = {crop, blur_of(bad_p[i], 1, 2)};
        assert_refused(ops, 2, 0, "op 1 (RandomBlur): p is");
    }
    assert_int_equal(init_plan(&plan, &crop, 1, 0, NULL), FM_OK);
    assert_false(plan.blurs);
}

static void plans_need_three_channels(void **state) {
    (void)state;
    const fm_op blur = blur_of(1, 1, 2), to_gray = {.kind = FM_OP_GRAYSCALE, .values = {1}};
    const fm_op apply = {.kind = FM_OP_RANDOM_APPLY, .p = 0.5, .n_children = 1, .n_within = 1};
    const fm_op to_rgb = {.kind = FM_OP_GRAYSCALE, .values = {3}};
    assert_refused((fm_op[]){crop, blur}, 2, 1, "op 1 (RandomBlur) gets images of one channel");
    assert_refused((fm_op[]){crop, to_gray, blur}, 3, 3, "op 2 (RandomBlur) gets images of one");
    assert_refused((fm_op[]){crop, to_gray, apply, blur}, 4, 3, "op 3 (RandomBlur) gets images");
    fm_plan plan;
    assert_int_equal(init_plan(&plan, (fm_op[]){crop, blur, to_gray}, 3, 3, NULL), FM_OK);
    assert_int_equal(plan.channels, 1);
    assert_int_equal(init_plan(&plan, (fm_op[]){crop, to_rgb, blur}, 3, 1, NULL), FM_OK);
    assert_int_equal(init_plan(&plan, (fm_op[]){crop, apply, blur}, 3, 3, NULL), FM_OK);
    assert_true(plan.blurs);
}

/* ---- draws ----------------------------------------------------------------------------------- */

enum { N_DRAWS = 40000, N_BINS = 20 };

static fm_draw draw_of(const fm_op *op, int64_t index) {
    const fm_draw_key key = {.seed = 77, .index = index};
    fm_rng rng = fm_rng_init(&key, 1);
    fm_draw draw = {.kind = op->kind};
    fm_draws_make(op, &rng, 30, 20, &draw);
    return draw;
}

/* Radii are uniform between the limits, whichever is larger, and do not depend on whether the op is
 * applied. */
static void radii_are_uniform(void **state) {
    (void)state;
    static const double limits[][2] = {{0.1, 2}, {2, 0.1}, {0, 10}, {9.5, 10}};
    for (size_t at = 0; at < 4; at++) {
        const fm_op op = blur_of(0.3, limits[at][0], limits[at][1]);
        int n_of[2][N_BINS] = {{0}}, n_applied = 0;
        for (int64_t i = 0; i < N_DRAWS; i++) {
            const fm_draw draw = draw_of(&op, i);
            const double share = (draw.values[0] - op.values[0]) / (op.values[1] - op.values[0]);
            assert_int_equal(draw.n_values, 1);
            assert_true(share >= 0 && share < 1);
            assert_true(draw.values[0] >= 0 && draw.values[0] <= 10);
            n_of[draw.flip][(int)(share * N_BINS)]++;
            n_applied += draw.flip;
        }
        assert_float_equal(n_applied, 0.3 * N_DRAWS, 5 * sqrt(N_DRAWS * 0.3 * 0.7));
        for (int applied = 0; applied < 2; applied++) {
            const double mean = (applied ? n_applied : N_DRAWS - n_applied) / (double)N_BINS;
            for (int bin = 0; bin < N_BINS; bin++)
                assert_float_equal(n_of[applied][bin], mean, 5 * sqrt(mean));
        }
    }
}

static void equal_limits_give_that_radius(void **state) {
    (void)state;
    static const double radii[] = {0, 0.1, 1.0 / 3, 9.999999999, 10};
    for (size_t at = 0; at < 5; at++) {
        for (int p = 0; p < 2; p++) {
            const fm_op op = blur_of(p, radii[at], radii[at]);
            for (int64_t i = 0; i < 100; i++) {
                const fm_draw draw = draw_of(&op, i);
                assert_true(draw.values[0] == radii[at] && draw.flip == (p == 1));
            }
        }
    }
}

/* ---- pixels ---------------------------------------------------------------------------------- */

enum { N_RADII = 7 };
static const double radii[N_RADII] = {0, 0.1, 0.5, 1, 2, 3.7, 10};

/* FNV-1a sums of image.filter(ImageFilter.GaussianBlur(radius)) in Pillow 13.0, for each radius and
 * the images of fill(). */
static const struct {
    int32_t width, height;
    uint32_t sums[N_RADII];
} WANTED[] = {
    {1, 1, {0xf3a3fffd, 0xf3a3fffd, 0xf3a3fffd, 0xf3a3fffd, 0xf3a3fffd, 0xf3a3fffd, 0xf3a3fffd}},
    {1, 9, {0xe13b9f94, 0xe13b9f94, 0x1f360557, 0xf1530a6b, 0xfadbf62b, 0xd9f611b5, 0xe2b65dd3}},
    {9, 1, {0xe13b9f94, 0xe13b9f94, 0x1f360557, 0xf1530a6b, 0xfadbf62b, 0xd9f611b5, 0xe2b65dd3}},
    {2, 3, {0x2c74cbe8, 0x2c74cbe8, 0xc0f1d09c, 0x93951658, 0x5c985bdc, 0xa3014bfa, 0x09fa590f}},
    {37, 23, {0x8f7be9f8, 0x8f7be9f8, 0x645b8cba, 0xc92f5cc9, 0xb0714782, 0x1da56677, 0x546f41aa}},
    {64, 5, {0x8d216fbd, 0x8d216fbd, 0xbe74222c, 0x0bfc6354, 0xa61629cd, 0x85d66e80, 0xa9ed4f2e}},
};

static void fill(uint8_t *px, size_t n) {
    for (size_t i = 0; i < n; i++) px[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
}

static uint32_t sum_of(const fm_image *image) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < fm_image_bytes(image); i++) sum = (sum ^ image->px[i]) * 16777619u;
    return sum;
}

/* Blurs one of the images, which is in memory of the caller or of fm_augment. */
static void check_sums(fm_augment *augment, size_t at, bool borrowed) {
    const int32_t width = WANTED[at].width, height = WANTED[at].height;
    const size_t n = 3 * (size_t)width * (size_t)height;
    for (int i = 0; i < N_RADII; i++) {
        const test_guarded own = test_guarded_open(NULL, n);
        fill(own.bytes, n);
        fm_image image = {own.bytes, width, height, 3};
        if (borrowed) {
            assert_int_equal(fm_augment_begin_with(augment, &image, NULL), FM_OK);
        } else {
            assert_int_equal(fm_augment_begin(augment, width, height, 3, &image, NULL), FM_OK);
            fill(image.px, n);
        }
        const fm_op op = blur_of(1, radii[i], radii[i]);
        fm_draw draw = {.kind = op.kind, .n_values = 1, .values = {radii[i]}};
        assert_int_equal(fm_augment_apply(augment, &op, &draw, NULL), FM_OK);
        assert_int_equal(sum_of(fm_augment_image(augment)), WANTED[at].sums[0]);
        draw.flip = true;
        assert_int_equal(fm_augment_apply(augment, &op, &draw, NULL), FM_OK);
        const fm_image *const got = fm_augment_image(augment);
        assert_true(got->width == width && got->height == height && got->channels == 3);
        assert_int_equal(sum_of(got), WANTED[at].sums[i]);
        test_guarded_close(&own);
    }
}

static void pixels_are_pillows(void **state) {
    (void)state;
    for (int tier = 0; tier <= (int)fm_cpu_best_tier(); tier++) {
        fm_augment *augment;
        assert_int_equal(
            fm_augment_open(&augment, (fm_cpu_tier)tier, 3 * 64 * 64, 64, true, NULL, NULL), FM_OK);
        for (size_t at = 0; at < sizeof(WANTED) / sizeof(*WANTED); at++)
            for (int borrowed = 0; borrowed < 2; borrowed++) check_sums(augment, at, borrowed);
        fm_augment_close(&augment);
        assert_null(augment);
    }
}

/* The limit is of the width alone; what is not applied has none. */
static void wide_images_are_refused(void **state) {
    (void)state;
    enum { MOST = FM_AUGMENT_MAX_BLURRED };
    fm_augment *augment;
    const size_t most_bytes = 3 * (MOST + 1) * 2;
    assert_int_equal(
        fm_augment_open(&augment, fm_cpu_best_tier(), most_bytes, MOST + 1, true, NULL, NULL),
        FM_OK);
    const fm_op op = blur_of(1, 10, 10);
    for (int applied = 0; applied < 2; applied++) {
        const fm_draw draw = {.kind = op.kind, .flip = applied, .n_values = 1, .values = {10}};
        for (int more = 0; more < 3; more++) {
            const int32_t width = more < 2 ? MOST + more : 2, height = more < 2 ? 2 : MOST + 1;
            fm_image image;
            assert_int_equal(fm_augment_begin(augment, width, height, 3, &image, NULL), FM_OK);
            fill(image.px, fm_image_bytes(&image));
            fm_error error = {0};
            const int status = fm_augment_apply(augment, &op, &draw, &error);
            assert_int_equal(status, applied && more == 1 ? FM_ERR_LIMIT : FM_OK);
            if (status) assert_non_null(strstr(error.message, "8193 columns to blur"));
        }
    }
    fm_augment_close(&augment);
    assert_true(fm_augment_scratch_bytes(most_bytes, MOST, true) >
                fm_augment_scratch_bytes(most_bytes, MOST, false));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_check_the_parameters),
        cmocka_unit_test(plans_need_three_channels),
        cmocka_unit_test(radii_are_uniform),
        cmocka_unit_test(equal_limits_give_that_radius),
        cmocka_unit_test(pixels_are_pillows),
        cmocka_unit_test(wide_images_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
