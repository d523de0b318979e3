/*
 * FM_OP_RANDOM_ERASING with random numbers and several boxes: what a plan refuses, what is drawn,
 * fm_noise(), and which bytes of a sample change.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/normals.h"
#include "guarded.h"
#include "pipeline/erasing.h"
#include "transform/draws.h"
#include "transform/half.h"
#include "transform/numbers.h"

enum { HEIGHT = 37, WIDTH = 600 }; /* rows with more numbers than are made at once */

static fm_op erasing_of(double written, double least, double most) {
    return (fm_op){.kind = FM_OP_RANDOM_ERASING,
                   .scale = {0.02, 0.6},
                   .ratio = {0.3, 3.3},
                   .p = 1,
                   .values = {0.25, 0.5, 2, written, least, most}};
}

static int plan_of(const fm_op *op, fm_dtype dtype, fm_layout layout, fm_plan *plan) {
    const fm_op crop = {.kind = FM_OP_CENTER_CROP, .height = HEIGHT, .width = WIDTH};
    const fm_op ops[2] = {crop, *op};
    const fm_transform transform = {
        .ops = ops, .n_ops = 2, .dtype = dtype, .layout = layout, .std = {1, 1, 1}};
    fm_error error = {0};
    return fm_plan_init(plan, &transform, &error);
}

static void plans_check_the_parameters(void **state) {
    (void)state;
    static const double bad[][3] = {
        {3, 0, 0}, {-1, 0, 0}, {0.5, 0, 0}, {NAN, 0, 0}, {0, 0, 1},   {0, 2, 1},       {0, 1, 9},
        {0, 9, 9}, {0, 1, 0},  {0, 1, 1.5}, {0, -1, 1},  {0, 1, NAN}, {0, 1, INFINITY}};
    fm_plan plan;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const fm_op op = erasing_of(bad[i][0], bad[i][1], bad[i][2]);
        assert_int_equal(plan_of(&op, FM_FLOAT32, FM_NCHW, &plan), FM_ERR_ARGUMENT);
    }
    for (int written = 0; written <= 2; written++) {
        const fm_op op = erasing_of(written, 1, FM_MAX_ERASED);
        assert_int_equal(plan_of(&op, FM_FLOAT16, FM_NHWC, &plan), FM_OK);
        assert_int_equal(plan_of(&op, FM_UINT8, FM_NCHW, &plan), written ? FM_ERR_ARGUMENT : FM_OK);
    }
}

static fm_draw draw_of(const fm_op *op, int64_t index) {
    const fm_draw_key key = {.seed = 7, .index = index};
    fm_rng rng = fm_rng_init(&key, 1);
    fm_draw draw = {.kind = op->kind};
    fm_draws_make(op, &rng, WIDTH, HEIGHT, &draw);
    return draw;
}

static fm_box box_of(const fm_draw *draw, int number) {
    if (number == 0) return (fm_box){draw->left, draw->top, draw->width, draw->height};
    const uint64_t corner = (uint64_t)draw->values[2 * number];
    const uint64_t size = (uint64_t)draw->values[2 * number + 1];
    return (fm_box){(int32_t)(corner % 65536), (int32_t)(corner / 65536), (int32_t)(size % 65536),
                    (int32_t)(size / 65536)};
}

/* ---- draws ----------------------------------------------------------------------------------- */

static void boxes_lie_in_the_image(void **state) {
    (void)state;
    const fm_op op = erasing_of(2, 2, FM_MAX_ERASED);
    int counts[FM_MAX_ERASED + 1] = {0};
    for (int64_t i = 0; i < 4000; i++) {
        const fm_draw draw = draw_of(&op, i);
        const int n = draw.flip ? draw.n_values / 2 : 0;
        assert_in_range(n, 0, FM_MAX_ERASED);
        counts[n]++;
        for (int k = 0; k < n; k++) {
            const fm_box box = box_of(&draw, k);
            assert_true(box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0);
            assert_true(box.width < WIDTH && box.height < HEIGHT);
            assert_true(box.left + box.width <= WIDTH && box.top + box.height <= HEIGHT);
        }
    }
    for (int n = 2; n <= FM_MAX_ERASED; n++) assert_in_range(counts[n], 200, 1200);
}

static void one_box_of_a_constant_draws_what_it_always_drew(void **state) {
    (void)state;
    const fm_op plain = erasing_of(0, 0, 0), one = erasing_of(0, 1, 1), noise = erasing_of(1, 1, 1);
    for (int64_t i = 0; i < 100; i++) {
        const fm_draw wanted = draw_of(&plain, i), got = draw_of(&one, i);
        const fm_box box = box_of(&wanted, 0), other = box_of(&got, 0);
        assert_memory_equal(&box, &other, sizeof(box));
        assert_true(wanted.flip == got.flip && wanted.n_values == 0 && got.n_values == 0);
        assert_int_equal(draw_of(&noise, i).n_values, 2);
    }
}

/* A plan knows how many numbers its RandomErasing writes, also for images of one channel. */
static void plans_set_the_channels(void **state) {
    (void)state;
    fm_plan plan;
    for (int channels = 1; channels <= 3; channels += 2) {
        const fm_op ops[] = {
            {.kind = FM_OP_CENTER_CROP, .height = HEIGHT, .width = WIDTH},
            {.kind = FM_OP_GRAYSCALE, .values = {channels}},
            erasing_of(2, 0, 0),
        };
        const fm_transform transform = {
            .ops = ops, .n_ops = 3, .dtype = FM_FLOAT32, .std = {1, 1, 1}};
        fm_error error = {0};
        assert_int_equal(fm_plan_init(&plan, &transform, &error), FM_OK);
        assert_true(plan.ops[2].values[FM_DRAWS_CHANNELS] == channels);
    }
}

/* torchvision draws the numbers of the pixels between the box's size and its place. */
static void pixels_are_drawn_before_the_place(void **state) {
    (void)state;
    const fm_op constant = erasing_of(0, 0, 0), pixels = erasing_of(2, 0, 0);
    int n_drawn = 0;
    for (uint32_t seed = 0; seed < 50; seed++) {
        fm_streams drawn = {.torch = {.next = FM_MT19937_N}}, before = {0};
        for (uint32_t i = 0; i < FM_MT19937_N; i++) drawn.torch.words[i] = (i + seed) * 2654435761u;
        fm_streams other = drawn;
        const fm_draw_key key = {.streams = &drawn, .before_pixels = &before};
        fm_rng rng = fm_rng_init(&key, 1);
        fm_draw draw = {.kind = pixels.kind};
        fm_draws_make(&pixels, &rng, WIDTH, HEIGHT, &draw);
        assert_int_equal(draw.n_values, 0);
        if (!draw.flip) continue; /* no attempt found a box that fits */
        n_drawn++;
        fm_torch_skip_normals(&before, 3 * (size_t)draw.height * (size_t)draw.width);
        fm_mt19937_u32(&before.torch); /* top and left */
        fm_mt19937_u32(&before.torch);
        assert_memory_equal(&before, &drawn, sizeof(drawn));
        const fm_draw_key other_key = {.streams = &other};
        rng = fm_rng_init(&other_key, 1);
        fm_draw without = {.kind = constant.kind};
        fm_draws_make(&constant, &rng, WIDTH, HEIGHT, &without);
        assert_true(draw.height == without.height && draw.width == without.width);
    }
    assert_true(n_drawn > 25);
}

/* ---- random numbers -------------------------------------------------------------------------- */

static void noise_is_that_of_the_philox_words(void **state) {
    (void)state;
    /* The known answers of Philox4x32-10 for the key and counter 0. */
    static const uint32_t words[4] = {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8};
    float all[64], part[64];
    fm_noise(0, 0, 64, all);
    for (int i = 0; i < 4; i++) assert_true(all[i] == (float)fm_normal(words[i]));
    for (uint64_t first = 0; first < 64; first++)
        for (size_t n = 0; first + n <= 64; n++) {
            memset(part, 0, sizeof(part));
            fm_noise(0, first, n, part);
            assert_memory_equal(part, all + first, n * sizeof(float));
        }
    fm_noise(1ull << 32, 0, 4, part);
    assert_memory_not_equal(part, all, 4 * sizeof(float));
    fm_noise(0, 4ull << 32, 4, part);
    assert_memory_not_equal(part, all, 4 * sizeof(float));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The value that a sample must hold at a place: noise of all boxes in turn, or as it was. */
typedef struct expected {
    float values[3][HEIGHT][WIDTH];
    bool erased[3][HEIGHT][WIDTH];
} expected;

static void expect(expected *all, const fm_op *op, const fm_draw *draw) {
    const uint64_t seed = (uint64_t)draw->values[0] | (uint64_t)draw->values[1] << 32;
    uint64_t at = 0;
    memset(all, 0, sizeof(*all));
    for (int k = 0; k < draw->n_values / 2; k++) {
        const fm_box box = box_of(draw, k);
        for (int channel = 0; channel < 3; channel++) {
            float one = (float)op->values[channel];
            if (op->values[3] == 1) fm_noise(seed, at++, 1, &one);
            for (int row = box.top; row < box.top + box.height; row++)
                for (int column = box.left; column < box.left + box.width; column++) {
                    if (op->values[3] == 2) fm_noise(seed, at++, 1, &one);
                    all->values[channel][row][column] = one;
                    all->erased[channel][row][column] = true;
                }
        }
    }
}

static void check_bytes(const fm_op *op, fm_dtype dtype, fm_layout layout, int64_t index) {
    static expected wanted;
    fm_plan plan;
    assert_int_equal(plan_of(op, dtype, layout, &plan), FM_OK);
    const fm_draw draw = draw_of(op, index);
    expect(&wanted, op, &draw);
    const size_t bytes = dtype == FM_FLOAT32 ? 4 : 2;
    const test_guarded out = test_guarded_open(NULL, 3 * HEIGHT * WIDTH * bytes);
    memset(out.bytes, 0x55, 3 * HEIGHT * WIDTH * bytes);
    fm_erase(&plan, &draw, NULL, out.bytes);
    for (size_t channel = 0; channel < 3; channel++)
        for (size_t row = 0; row < HEIGHT; row++)
            for (size_t column = 0; column < WIDTH; column++) {
                const size_t at = layout == FM_NHWC ? (row * WIDTH + column) * 3 + channel
                                                    : (channel * HEIGHT + row) * WIDTH + column;
                const float value = wanted.values[channel][row][column];
                const uint16_t half = fm_float16_bits(value);
                uint8_t one[4] = {0x55, 0x55, 0x55, 0x55};
                if (wanted.erased[channel][row][column])
                    memcpy(one, dtype == FM_FLOAT32 ? (const void *)&value : &half, bytes);
                if (memcmp(out.bytes + at * bytes, one, bytes) != 0)
                    fail_msg("channel %zu, row %zu, column %zu", channel, row, column);
            }
    test_guarded_close(&out);
}

static void boxes_hold_what_was_drawn(void **state) {
    (void)state;
    for (int written = 0; written <= 2; written++) {
        const fm_op op = erasing_of(written, 3, 5);
        for (int64_t i = 0; i < 4; i++) {
            check_bytes(&op, FM_FLOAT32, i % 2 ? FM_NHWC : FM_NCHW, i);
            check_bytes(&op, FM_FLOAT16, i % 2 ? FM_NCHW : FM_NHWC, i);
        }
    }
}

/* Numbers that torch's generator drew for the channels of each box. */
static void boxes_hold_the_colors_that_were_drawn(void **state) {
    (void)state;
    fm_plan plan;
    const fm_op op = erasing_of(1, 1, FM_MAX_ERASED);
    assert_int_equal(plan_of(&op, FM_FLOAT32, FM_NCHW, &plan), FM_OK);
    for (int n = 1; n <= FM_MAX_ERASED; n++) {
        fm_draw draw = {.kind = op.kind, .flip = true, .width = 1, .height = 1};
        for (int i = 1; i < n; i++) {
            draw.values[2 * i] = i; /* one pixel in row 0 and column i */
            draw.values[2 * i + 1] = 65536 + 1;
        }
        draw.n_values = FM_DRAWS_COLORS + 3 * n;
        for (int i = 0; i < 3 * n; i++) draw.values[FM_DRAWS_COLORS + i] = i - 0.5;
        const test_guarded out = test_guarded_open(NULL, 3 * HEIGHT * WIDTH * sizeof(float));
        float *const values = (float *)(void *)out.bytes;
        memset(values, 0, 3 * HEIGHT * WIDTH * sizeof(float));
        fm_erase(&plan, &draw, NULL, values);
        for (int channel = 0; channel < 3; channel++)
            for (int i = 0; i < HEIGHT * WIDTH; i++)
                assert_true(values[channel * HEIGHT * WIDTH + i] ==
                            (i < n ? 3 * i + channel - 0.5f : 0));
        test_guarded_close(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_check_the_parameters),
        cmocka_unit_test(boxes_lie_in_the_image),
        cmocka_unit_test(one_box_of_a_constant_draws_what_it_always_drew),
        cmocka_unit_test(plans_set_the_channels),
        cmocka_unit_test(pixels_are_drawn_before_the_place),
        cmocka_unit_test(noise_is_that_of_the_philox_words),
        cmocka_unit_test(boxes_hold_what_was_drawn),
        cmocka_unit_test(boxes_hold_the_colors_that_were_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
