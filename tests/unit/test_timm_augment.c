/*
 * FM_OP_TIMM_RAND_AUGMENT and FM_OP_TIMM_AUTO_AUGMENT: what a plan refuses, what is drawn, and that
 * every operation with every magnitude gives the same pixels on every tier. That these are timm's
 * is checked by tests/frameworks.
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
#include "transform/draws_timm.h"
#include "transform/plan.h"

enum { WEIGHTS = FM_DRAWS_TIMM_WEIGHTS };

/* n operations out of all of them. */
static fm_op rand_of(int n, double p, double magnitude, double std) {
    fm_op op = {
        .kind = FM_OP_TIMM_RAND_AUGMENT,
        .filter = FM_FILTER_BILINEAR,
        .values = {n, p, magnitude, std, 10, 0.45, 20, FM_FILTER_BICUBIC + 1, 124, 116, 104}};
    for (int i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++) op.values[WEIGHTS + i] = 1;
    return op;
}

static fm_op auto_of(int policy) {
    return (fm_op){.kind = FM_OP_TIMM_AUTO_AUGMENT,
                   .filter = FM_FILTER_BICUBIC,
                   .values = {policy, 0, 0, 0, 10, 0.45, 20, 0, 1, 2, 3}};
}

/* ---- plans ----------------------------------------------------------------------------------- */

static int status_of(const fm_op *op, int32_t channels, fm_plan *plan, fm_error *error) {
    const fm_op crop = {.kind = FM_OP_CENTER_CROP, .height = 7, .width = 9};
    const fm_op ops[2] = {crop, *op};
    const fm_transform transform = {
        .ops = ops, .n_ops = 2, .dtype = FM_UINT8, .std = {1, 1, 1}, .in_channels = channels};
    return fm_plan_init(plan, &transform, error);
}

static void plans_check_the_parameters(void **state) {
    (void)state;
    static const struct {
        int at;
        double value;
    } bad[] = {{0, 6},   {0, -1},  {0, 1.5},  {0, NAN}, {1, -0.1}, {1, 1.1},
               {2, -1},  {2, NAN}, {3, -1.5}, {3, NAN}, {4, 0},    {4, 101},
               {5, -1},  {5, 11},  {6, -1},   {6, 7e4}, {7, 3},    {7, 7},
               {7, 0.5}, {8, 256}, {10, -1},  {12, -1}, {38, NAN}, {20, INFINITY},
               {39, 3},  {40, 28}, {40, 1.5}, {41, 27}, {67, -1}};
    fm_plan plan;
    fm_error error = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        fm_op op = rand_of(2, 0.5, 9, 0.5);
        assert_int_equal(status_of(&op, 0, &plan, &error), FM_OK);
        op.values[bad[i].at] = bad[i].value;
        assert_int_equal(status_of(&op, 0, &plan, &error), FM_ERR_ARGUMENT);
        assert_non_null(strstr(error.message, "op 1 (timm's RandAugment): "));
    }
    fm_op op = rand_of(2, 0.5, 9, 0.5);
    op.filter = FM_FILTER_LANCZOS;
    assert_int_equal(status_of(&op, 0, &plan, &error), FM_ERR_ARGUMENT);
    for (int policy = -1; policy <= FM_DRAWS_TIMM_POLICIES; policy++) {
        op = auto_of(policy);
        const bool good = policy >= 0 && policy < FM_DRAWS_TIMM_POLICIES;
        assert_int_equal(status_of(&op, 3, &plan, &error), good ? FM_OK : FM_ERR_ARGUMENT);
        if (good) assert_true(plan.augments && plan.blurs == (policy == 4));
        assert_int_equal(status_of(&op, 1, &plan, &error), FM_ERR_ARGUMENT);
    }
}

static void plans_count_the_weights(void **state) {
    (void)state;
    fm_plan plan;
    for (int n_weights = 0; n_weights < 4; n_weights++) {
        for (int once = 0; once < 2; once++) {
            fm_op op = rand_of(3, 0.5, 9, 0.5);
            for (int i = n_weights; i < FM_N_TIMM_AUGMENTATIONS; i++) op.values[WEIGHTS + i] = 0;
            op.values[11] = once;
            const bool good = n_weights >= (once ? 3 : 1);
            assert_int_equal(status_of(&op, 0, &plan, NULL), good ? FM_OK : FM_ERR_ARGUMENT);
            if (good) assert_false(plan.blurs);
        }
    }
}

static void plans_check_the_list(void **state) {
    (void)state;
    fm_plan plan;
    fm_error error = {0};
    for (int once = 0; once < 2; once++) {
        fm_op op = rand_of(2, 0.5, 9, 0.5);
        for (int i = 5; i < FM_N_TIMM_AUGMENTATIONS; i++) op.values[WEIGHTS + i] = 0;
        op.values[11] = once;
        op.values[FM_DRAWS_TIMM_N_LISTED] = 6;
        for (int i = 0; i < 6; i++) op.values[FM_DRAWS_TIMM_LISTED + i] = 5 - i;
        assert_int_equal(status_of(&op, 0, &plan, &error), FM_OK);
        op.values[FM_DRAWS_TIMM_LISTED] = 0; /* twice, in place of one that has no weight */
        assert_int_equal(status_of(&op, 0, &plan, &error), once ? FM_ERR_ARGUMENT : FM_OK);
        op.values[FM_DRAWS_TIMM_LISTED] = 5;
        op.values[FM_DRAWS_TIMM_LISTED + 3] = 7;
        assert_int_equal(status_of(&op, 0, &plan, &error), FM_ERR_ARGUMENT);
        assert_non_null(strstr(error.message, "an operation that has a weight is not listed"));
    }
}

/* ---- draws ----------------------------------------------------------------------------------- */

static fm_draw draw_of(const fm_op *op, int64_t index) {
    const fm_draw_key key = {.seed = 77, .index = index};
    fm_rng rng = fm_rng_init(&key, 1);
    fm_draw draw = {.kind = op->kind};
    fm_draws_make(op, &rng, 30, 20, &draw);
    return draw;
}

static void draws_are_within_bounds(void **state) {
    (void)state;
    const fm_op ops[] = {rand_of(5, 1, 9, 3), rand_of(5, 0.5, 200, -1),
                         rand_of(5, 1, 0, 0), auto_of(0),
                         auto_of(3),          auto_of(4)};
    for (size_t at = 0; at < sizeof(ops) / sizeof(*ops); at++) {
        int most = 0;
        for (int64_t i = 0; i < 5000; i++) {
            const fm_draw draw = draw_of(&ops[at], i);
            most = draw.n_values > most ? draw.n_values : most;
            assert_true(draw.n_values % 3 == 0 && draw.n_values <= FM_N_DRAW_VALUES);
            for (int k = 0; k < draw.n_values; k += 3) {
                assert_true(draw.values[k] >= 0 && draw.values[k] < FM_N_TIMM_AUGMENTATIONS);
                assert_true(fabs(draw.values[k + 1]) <= 10);
                assert_true(draw.values[k + 2] >= 0 && draw.values[k + 2] <= 5);
            }
        }
        assert_int_equal(most, at < 3 ? 15 : at == 5 ? 3 : 6);
    }
}

static void weighted_operations_are_chosen_once(void **state) {
    (void)state;
    fm_op op = rand_of(5, 1, 9, 0);
    op.values[11] = 1;
    for (int i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++) op.values[WEIGHTS + i] = i < 5 ? 1e-9 : 0;
    op.values[WEIGHTS] = 1e9;
    for (int64_t i = 0; i < 5000; i++) {
        const fm_draw draw = draw_of(&op, i);
        unsigned chosen = 0;
        for (int k = 0; k < draw.n_values; k += 3) chosen |= 1u << (int)draw.values[k];
        assert_int_equal(draw.n_values, 15);
        assert_int_equal(chosen, 31);
    }
}

/* The moments, and values of tables of the normal distribution. */
static void normal_numbers(void **state) {
    (void)state;
    double sum = 0, squares = 0, fourth = 0, last = -10;
    enum { N = 1 << 20 };
    for (uint32_t i = 0; i < N; i++) {
        const double x = fm_normal(i * 4096u + 2048);
        assert_true(x > last);
        last = x;
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    assert_float_equal(sum / N, 0, 1e-6);
    assert_float_equal(squares / N, 1, 1e-4);
    assert_float_equal(fourth / N, 3, 2e-3);
    assert_float_equal(fm_normal((uint32_t)(0.975 * 0x1p32)), 1.959963984540054, 1e-8);
    assert_float_equal(fm_normal((uint32_t)(0.001 * 0x1p32)), -3.090232306167813, 1e-6);
    assert_true(fm_normal(0) == -fm_normal(UINT32_MAX) && fm_normal(0) > -6.34);
}

/* ---- pixels ---------------------------------------------------------------------------------- */

static void fill(uint8_t *px, size_t n) {
    for (size_t i = 0; i < n; i++) px[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
}

/* Applies one operation to an image that is the caller's and ends at a forbidden page. */
static int apply(fm_augment *augment, const fm_op *op, const fm_draw *draw, int32_t width,
                 int32_t height) {
    const size_t n = 3 * (size_t)width * (size_t)height;
    const test_guarded own = test_guarded_open(NULL, n);
    fill(own.bytes, n);
    const fm_image image = {own.bytes, width, height, 3};
    fm_error error = {0};
    assert_int_equal(fm_augment_begin_with(augment, &image, NULL), FM_OK);
    const int status = fm_augment_apply(augment, op, draw, &error);
    if (status) assert_non_null(strstr(error.message, "posterized to"));
    test_guarded_close(&own);
    return status;
}

static void tiers_agree(void **state) {
    (void)state;
    static const double levels[] = {0, -0.0, 0.3, -4.9, 7.3, -10, 77, -100};
    static const int32_t sizes[][2] = {{1, 1}, {37, 23}, {24, 24}, {2, 40}};
    fm_augment *scalar, *best;
    assert_int_equal(fm_augment_open(&scalar, (fm_cpu_tier)0, 3 * 4096, 64, true, NULL, NULL), 0);
    assert_int_equal(fm_augment_open(&best, fm_cpu_best_tier(), 3 * 4096, 64, true, NULL, NULL), 0);
    fm_op op = rand_of(1, 1, 9, 0);
    op.values[5] = 10;
    op.values[6] = 65535;
    for (int what = 0; what < FM_N_TIMM_AUGMENTATIONS; what++) {
        for (int at = 0; at < 4 * 8 * 3; at++) {
            static const double filters[] = {FM_FILTER_BILINEAR, FM_FILTER_BICUBIC,
                                             FM_FILTER_NEAREST};
            const double level = levels[at % 8], detail = filters[at / 8 % 3];
            const int32_t *const size = sizes[at / 24];
            const fm_draw draw = {.kind = op.kind, .n_values = 3, .values = {what, level, detail}};
            const int status = apply(scalar, &op, &draw, size[0], size[1]);
            assert_int_equal(apply(best, &op, &draw, size[0], size[1]), status);
            if (status) continue;
            const fm_image *const one = fm_augment_image(scalar), *const two =
                                                                      fm_augment_image(best);
            assert_true(one->width == size[0] && one->height == size[1]);
            assert_memory_equal(one->px, two->px, fm_image_bytes(one));
        }
    }
    fm_augment_close(&scalar);
    fm_augment_close(&best);
}

static void less_than_one_bit_is_refused(void **state) {
    (void)state;
    fm_augment *augment;
    assert_int_equal(fm_augment_open(&augment, fm_cpu_best_tier(), 3 * 64, 8, false, NULL, NULL),
                     FM_OK);
    const fm_op op = rand_of(1, 1, 9, 0);
    static const struct {
        int what;
        double level;
        int status;
    } cases[] = {{FM_TIMM_POSTERIZE, 2.4, FM_ERR_LIMIT},
                 {FM_TIMM_POSTERIZE, 2.5, FM_OK},
                 {FM_TIMM_POSTERIZE_INCREASING, 9.99, FM_OK},
                 {FM_TIMM_POSTERIZE_INCREASING, 10, FM_ERR_LIMIT},
                 {FM_TIMM_POSTERIZE_INCREASING, 100, FM_ERR_LIMIT},
                 {FM_TIMM_POSTERIZE_ORIGINAL, 0, FM_OK},
                 {FM_TIMM_POSTERIZE_ORIGINAL, 100, FM_OK}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const fm_draw draw = {
            .kind = op.kind, .n_values = 3, .values = {cases[i].what, cases[i].level, 0}};
        assert_int_equal(apply(augment, &op, &draw, 8, 8), cases[i].status);
    }
    fm_augment_close(&augment);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_check_the_parameters),
        cmocka_unit_test(plans_count_the_weights),
        cmocka_unit_test(plans_check_the_list),
        cmocka_unit_test(draws_are_within_bounds),
        cmocka_unit_test(weighted_operations_are_chosen_once),
        cmocka_unit_test(normal_numbers),
        cmocka_unit_test(tiers_agree),
        cmocka_unit_test(less_than_one_bit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
