/*
 * The draws of RANDOM_APPLY, RANDOM_BLUR and RANDOM_CHOICE from the streams of Python and NumPy, as
 * transforms of a script's own make them, and what a plan refuses of them.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "seeded.h"
#include "transform/draws.h"
#include "transform/op_check.h"

enum { N_DRAWS = 1000 };

static fm_draw draw_of(const fm_op *op, fm_streams *streams) {
    const fm_draw_key key = {.streams = streams};
    fm_rng rng = fm_rng_init(&key, 1);
    fm_draw draw = {.kind = op->kind};
    fm_draws_make(op, &rng, 30, 20, &draw);
    return draw;
}

/* The sum of a product is rounded once or twice, and both occur. */
static void numbers_are_rounded_as_numpy_does(void **state) {
    (void)state;
    const double low = 0.1, width = 2.3 - 0.1;
    for (int is_fused = 0; is_fused < 2; is_fused++) {
        fm_streams streams = {.numpy = seeded(5)};
        fm_mt19937 same = seeded(5);
        const double way = 2 + is_fused;
        const fm_op op = {.kind = FM_OP_RANDOM_BLUR, .p = 1, .values = {low, 2.3, way, low, width}};
        int n_different = 0;
        for (int i = 0; i < N_DRAWS; i++) {
            const double share = fm_numpy_rand(&same);
            const double plain = low + width * share, fused = fma(width, share, low);
            assert_true(draw_of(&op, &streams).values[0] == (is_fused ? fused : plain));
            n_different += plain != fused;
        }
        assert_true(n_different > 0);
    }
}

static void conditions_compare_such_numbers(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        fm_streams streams = {.numpy = seeded(5), .python = seeded(5)};
        fm_mt19937 same = seeded(5);
        const fm_op op = {
            .kind = FM_OP_RANDOM_APPLY, .p = 0.5, .values = {0, FM_LESS, 1.2, 0.1, 2.2, way}};
        for (int i = 0; i < N_DRAWS; i++) {
            const double share = fm_python_random(&same);
            const double number = way == 2 ? fma(2.2, share, 0.1) : 0.1 + 2.2 * share;
            assert_int_equal(draw_of(&op, &streams).flip, number < 1.2);
        }
    }
}

static void numbers_of_torch(void **state) {
    (void)state;
    fm_streams streams = {.torch = seeded(5)};
    fm_mt19937 same = seeded(5);
    const fm_op blur = {.kind = FM_OP_RANDOM_BLUR, .p = 1, .values = {0.1, 2.3, 4, 0.1, 2.2}};
    const fm_op apply = {
        .kind = FM_OP_RANDOM_APPLY, .p = 0.5, .values = {0, FM_GREATER, 0.5, 0, 1, 3}};
    for (int i = 0; i < N_DRAWS; i++) {
        const double radius = 0.1 + 2.2 * (double)fm_torch_rand(&same);
        assert_true(draw_of(&blur, &streams).values[0] == radius);
        assert_int_equal(draw_of(&apply, &streams).flip, fm_torch_rand(&same) > 0.5f);
    }
}

static void children_are_found_by_a_number(void **state) {
    (void)state;
    const fm_op op = {.kind = FM_OP_RANDOM_CHOICE, .n_children = 3, .values = {2, 2, 7}};
    for (int way = 1; way < 3; way++) {
        fm_op one = op;
        one.values[32] = way;
        fm_streams streams = {.numpy = seeded(8), .python = seeded(8)};
        fm_mt19937 same = seeded(8);
        for (int i = 0; i < N_DRAWS; i++) {
            const uint32_t number = way == 1 ? fm_python_below(&same, 7) : fm_numpy_below(&same, 7);
            assert_int_equal((int)draw_of(&one, &streams).values[0], number < 2 ? 0 : 2);
        }
    }
    const fm_op by_share = {
        .kind = FM_OP_RANDOM_CHOICE, .n_children = 2, .values = {0.3, 1, [32] = 3}};
    fm_streams streams = {.numpy = seeded(8)};
    fm_mt19937 same = seeded(8);
    for (int i = 0; i < N_DRAWS; i++)
        assert_int_equal((int)draw_of(&by_share, &streams).values[0],
                         fm_numpy_rand(&same) < 0.3 ? 0 : 1);
}

static void assert_refused(const fm_op *ops, size_t n_ops, const char *text) {
    fm_error error = {0};
    assert_int_equal(fm_op_check(0, ops, n_ops, &error), FM_ERR_ARGUMENT);
    if (!strstr(error.message, text)) fail_msg("\"%s\" lacks \"%s\"", error.message, text);
}

static void other_numbers_are_refused(void **state) {
    (void)state;
    const fm_op invert = {.kind = FM_OP_RANDOM_INVERT, .p = 1};
    fm_op choice = {.kind = FM_OP_RANDOM_CHOICE, .n_children = 1, .n_within = 1, .values = {3}};
    for (int way = 0; way < 4; way++) {
        choice.values[32] = way;
        assert_int_equal(fm_op_check(0, (fm_op[]){choice, invert}, 2, NULL), FM_OK);
    }
    choice.values[32] = 4;
    assert_refused((fm_op[]){choice, invert}, 2, "values[32] is 4");
    static const double bad[] = {0.5, 2.5, 65536};
    for (int way = 1; way < 3; way++) {
        choice.values[32] = way;
        for (size_t i = 0; i < 3; i++) {
            choice.values[0] = bad[i];
            assert_refused((fm_op[]){choice, invert}, 2, "whole numbers from 1 to 65535");
        }
    }
    const fm_op apply = {.kind = FM_OP_RANDOM_APPLY, .p = 0.5, .values = {[5] = 5}};
    assert_refused(&apply, 1, "values[5] is 5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_as_numpy_does),
        cmocka_unit_test(conditions_compare_such_numbers),
        cmocka_unit_test(numbers_of_torch),
        cmocka_unit_test(children_are_found_by_a_number),
        cmocka_unit_test(other_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
