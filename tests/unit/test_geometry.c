#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transform/geometry.h"

static const fm_draw_key key = {.seed = 7, .epoch = 1, .index = 42};

static fm_op resize_short(int32_t size, int32_t max_size) {
    return (fm_op){.kind = FM_OP_RESIZE, .height = size, .max_size = max_size};
}

static fm_op resize_pair(int32_t height, int32_t width) {
    return (fm_op){.kind = FM_OP_RESIZE, .height = height, .width = width};
}

static fm_op center(int32_t height, int32_t width) {
    return (fm_op){.kind = FM_OP_CENTER_CROP, .height = height, .width = width};
}

static fm_op flip(double p) { return (fm_op){.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = p}; }

static fm_op random_crop(double low, double high, double narrow, double wide) {
    return (fm_op){.kind = FM_OP_RANDOM_RESIZED_CROP,
                   .height = 10,
                   .width = 20,
                   .scale = {low, high},
                   .ratio = {narrow, wide}};
}

static void assert_box(fm_box box, int32_t left, int32_t top, int32_t width, int32_t height) {
    if (box.left != left || box.top != top || box.width != width || box.height != height)
        fail_msg("box %d,%d %dx%d instead of %d,%d %dx%d", box.left, box.top, box.width, box.height,
                 left, top, width, height);
}

static fm_geometry located(const fm_op *ops, size_t n_ops, int32_t width, int32_t height) {
    fm_geometry geometry;
    fm_error error;
    if (fm_geometry_locate(ops, n_ops, n_ops, &key, width, height, &geometry, NULL, &error))
        fail_msg("%s", error.message);
    return geometry;
}

static void assert_unsupported(const fm_op *ops, size_t n_ops, int32_t width, int32_t height,
                               const char *reason) {
    fm_geometry geometry;
    fm_draw draws[FM_MAX_OPS], alone[FM_MAX_OPS];
    fm_error error;
    memset(draws, 0, sizeof(draws));
    memset(alone, 0, sizeof(alone));
    assert_int_equal(
        fm_geometry_locate(ops, n_ops, n_ops, &key, width, height, &geometry, draws, &error),
        FM_ERR_LIMIT);
    assert_non_null(strstr(error.message, reason));
    assert_int_equal(fm_geometry_draw(ops, n_ops, &key, width, height, alone, &error), FM_OK);
    assert_memory_equal(draws, alone, n_ops * sizeof(*draws));
}

static void resize_keeps_the_ratio_and_truncates(void **state) {
    (void)state;
    /* width, height, size, max_size -> width, height; by torchvision. */
    static const int32_t cases[][6] = {
        {500, 375, 256, 0, 341, 256},   {375, 500, 256, 0, 256, 341},
        {300, 300, 256, 0, 256, 256},   {500, 375, 256, 300, 300, 225},
        {375, 500, 256, 300, 225, 300}, {7, 3, 100, 0, 233, 100},
        {500, 375, 256, 342, 341, 256}, {1, 9, 5, 40, 4, 40},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int32_t *const c = cases[i];
        const fm_op op = resize_short(c[2], c[3]);
        const fm_geometry geometry = located(&op, 1, c[0], c[1]);
        assert_box(geometry.source, 0, 0, c[0], c[1]);
        assert_int_equal(geometry.resized_width, c[4]);
        assert_int_equal(geometry.resized_height, c[5]);
        assert_box(geometry.window, 0, 0, c[4], c[5]);
        fm_draw draw;
        assert_int_equal(fm_geometry_draw(&op, 1, &key, c[0], c[1], &draw, NULL), FM_OK);
        assert_int_equal(draw.kind, FM_OP_RESIZE);
        assert_int_equal(draw.width, c[4]);
        assert_int_equal(draw.height, c[5]);
    }
}

static void one_of_two_filters_is_drawn(void **state) {
    (void)state;
    fm_op op = random_crop(0.2, 1, 0.5, 2);
    op.values[1] = FM_FILTER_BICUBIC + 1;
    int n_second = 0;
    for (int i = 0; i < 400; i++) {
        const fm_draw_key one = {.seed = 7, .epoch = 1, .index = (uint64_t)i};
        fm_geometry geometry;
        fm_draw draw;
        assert_int_equal(fm_geometry_locate(&op, 1, 1, &one, 90, 70, &geometry, &draw, NULL),
                         FM_OK);
        assert_int_equal(draw.n_values, 1);
        assert_true(draw.values[0] ==
                    (geometry.second_filter ? FM_FILTER_BICUBIC : FM_FILTER_BILINEAR));
        n_second += geometry.second_filter;
    }
    assert_in_range(n_second, 160, 240);
    op.values[1] = FM_FILTER_BILINEAR + 1; /* the same twice */
    fm_draw draw;
    assert_int_equal(fm_geometry_draw(&op, 1, &key, 90, 70, &draw, NULL), FM_OK);
    assert_int_equal(draw.n_values, 0);
}

static void resize_keep_ratio_weighs_the_edges(void **state) {
    (void)state;
    /* width, height, target width, height, weight of the longer edge in 1/4 -> width, height; by
     * timm. */
    static const int32_t cases[][7] = {
        {500, 375, 256, 256, 0, 341, 256}, {500, 375, 256, 256, 4, 256, 192},
        {500, 375, 256, 256, 2, 293, 219}, {333, 501, 320, 200, 0, 320, 481},
        {333, 501, 320, 200, 1, 237, 356}, {7, 3, 100, 40, 4, 93, 40},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int32_t *const c = cases[i];
        const fm_op op = {
            .kind = FM_OP_RESIZE_KEEP_RATIO, .width = c[2], .height = c[3], .values = {c[4] / 4.0}};
        const fm_geometry geometry = located(&op, 1, c[0], c[1]);
        assert_int_equal(geometry.resized_width, c[5]);
        assert_int_equal(geometry.resized_height, c[6]);
    }
}

/* timm does not draw again if a crop rounds to no pixels. */
static void timms_crops_may_be_empty(void **state) {
    (void)state;
    fm_op op = random_crop(0.0001, 0.0001, 1, 1);
    assert_box(located(&op, 1, 20, 20).source, 0, 0, 20, 20);
    op.values[0] = 1;
    assert_unsupported(&op, 1, 20, 20, "a side without pixels");
    op.scale[0] = op.scale[1] = 0.01;
    const fm_geometry geometry = located(&op, 1, 20, 20);
    assert_int_equal(geometry.source.width, 2);
    assert_int_equal(geometry.source.height, 2);
}

/* As ResNeSt's ECenterCrop, which Pillow's crop() rounds. */
static void efficient_crops_leave_out_a_margin(void **state) {
    (void)state;
    /* width, height, size -> left, top, width, height */
    static const int32_t cases[][7] = {
        {500, 375, 224, 86, 23, 328, 328}, {375, 500, 224, 23, 86, 328, 328},
        {224, 224, 224, 14, 14, 196, 196}, {33, 35, 224, 2, 3, 29, 29},
        {1000, 3, 32, 499, 1, 1, 1},       {100, 97, 224, 8, 6, 85, 85},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int32_t *const c = cases[i];
        fm_op op = random_crop(0.1, 1, 0.75, 1.5);
        op.height = op.width = c[2];
        op.values[0] = 4;
        assert_box(located(&op, 1, c[0], c[1]).source, c[3], c[4], c[5], c[6]);
        op.values[0] = 3; /* without attempts */
        assert_box(located(&op, 1, c[0], c[1]).source, c[3], c[4], c[5], c[6]);
    }
    fm_op op = random_crop(0.1, 1, 0.75, 1.5);
    op.height = op.width = 9;
    op.values[0] = 4;
    assert_unsupported(&op, 1, 1, 1, "a side without pixels");
}

/* round() of a half goes to the even number: 3.5 to 4, 2.5 to 2. */
static void center_crop_rounds_halves_to_even(void **state) {
    (void)state;
    const fm_op ops[] = {resize_pair(20, 20), center(13, 15)};
    assert_box(located(ops, 2, 99, 99).window, 2, 4, 15, 13);
    /* Alone it narrows the source: nothing else is decoded. */
    const fm_geometry alone = located(&ops[1], 1, 20, 20);
    assert_box(alone.source, 2, 4, 15, 13);
    assert_int_equal(alone.resized_width, 15);
    assert_int_equal(alone.resized_height, 13);
    assert_box(alone.window, 0, 0, 15, 13);
}

static void padding_is_a_window_over_the_edge(void **state) {
    (void)state;
    /* 7 columns padded to 10: one before, two behind. 9 rows cropped to 4: 2.5 goes to 2. */
    const fm_op op = center(4, 10);
    const fm_geometry geometry = located(&op, 1, 7, 9);
    assert_box(geometry.source, 0, 2, 7, 4);
    assert_box(geometry.window, -1, 0, 10, 4);
    fm_draw draw;
    assert_int_equal(fm_geometry_draw(&op, 1, &key, 7, 9, &draw, NULL), FM_OK);
    assert_int_equal(draw.left, -1);
    assert_int_equal(draw.top, 2);
    /* Cropped to one column of the padding of a one-column image: nothing of it shows. */
    const fm_op ops[] = {center(1, 3), center(1, 2), center(1, 1), center(5, 5)};
    const fm_geometry empty = located(ops, 4, 1, 1);
    assert_box(empty.source, 0, 0, 0, 0);
    assert_int_equal(empty.window.width, 5);
}

static void flips_before_a_resize_mirror_the_source(void **state) {
    (void)state;
    const fm_op before[] = {flip(1), center(10, 10), resize_pair(5, 5), flip(0)};
    fm_geometry geometry = located(before, 4, 15, 10);
    /* Of 15 columns, 2.5 rounded to 2 are cut from the mirrored left: 3 from the image's left. */
    assert_box(geometry.source, 3, 0, 10, 10);
    assert_true(geometry.mirror_source);
    assert_false(geometry.flip);

    const fm_op after[] = {resize_pair(5, 5), flip(1), center(5, 2), flip(1), flip(1)};
    geometry = located(after, 5, 15, 10);
    assert_false(geometry.mirror_source);
    assert_true(geometry.flip);
    /* 1.5 rounds to 2 from the mirrored left: the window begins at column 1. */
    assert_box(geometry.window, 1, 0, 2, 5);

    const fm_op twice[] = {flip(1), flip(1), resize_pair(5, 5)};
    geometry = located(twice, 3, 15, 10);
    assert_false(geometry.mirror_source || geometry.flip);
}

static void random_crops_stay_inside_and_are_pure(void **state) {
    (void)state;
    for (int64_t index = 0; index < 5000; index++) {
        const fm_draw_key own = {.seed = 3, .index = index};
        const fm_op ops[] = {flip(0.5), random_crop(0.01, 1.5, 0.2, 5)};
        const int32_t width = 1 + (int32_t)(index % 97), height = 1 + (int32_t)(index % 89);
        fm_geometry geometry, again;
        fm_draw draws[2];
        memset(&geometry, 0, sizeof(geometry));
        memset(&again, 0, sizeof(again));
        if (fm_geometry_locate(ops, 2, 2, &own, width, height, &geometry, draws, NULL)) continue;
        assert_true(geometry.source.left >= 0 && geometry.source.top >= 0);
        assert_true(geometry.source.width >= 1 && geometry.source.height >= 1);
        assert_true(geometry.source.left + geometry.source.width <= width);
        assert_true(geometry.source.top + geometry.source.height <= height);
        assert_int_equal(geometry.mirror_source, draws[0].flip);
        assert_int_equal(draws[1].top, geometry.source.top);
        assert_int_equal(draws[1].left, draws[0].flip
                                            ? width - geometry.source.left - geometry.source.width
                                            : geometry.source.left);
        assert_int_equal(fm_geometry_locate(ops, 2, 2, &own, width, height, &again, NULL, NULL),
                         FM_OK);
        assert_memory_equal(&geometry, &again, sizeof(geometry));
    }
}

static void hopeless_random_crops_fall_back_to_the_center(void **state) {
    (void)state;
    /* No crop of 3 to 4 times the area fits; the ratio is bounded. */
    const fm_op wide = random_crop(3, 4, 2, 2.5), tall = random_crop(3, 4, 0.3, 0.5);
    const fm_op any = random_crop(3, 4, 0.5, 2);
    assert_box(located(&wide, 1, 100, 100).source, 0, 25, 100, 50);
    assert_box(located(&tall, 1, 100, 100).source, 25, 0, 50, 100);
    assert_box(located(&any, 1, 100, 90).source, 0, 0, 100, 90);
}

static void each_op_has_a_stream_of_its_own(void **state) {
    (void)state;
    int together = 0;
    for (int64_t index = 0; index < 4000; index++) {
        const fm_draw_key own = {.seed = 3, .index = index};
        const fm_op ops[] = {flip(0.5), flip(0.5)};
        fm_draw draws[2];
        assert_int_equal(fm_geometry_draw(ops, 2, &own, 9, 9, draws, NULL), FM_OK);
        together += draws[0].flip == draws[1].flip;
    }
    assert_in_range(together, 1850, 2150);
}

static void images_without_a_form_are_left_to_pillow(void **state) {
    (void)state;
    assert_unsupported((fm_op[]){center(20, 20), resize_pair(5, 5)}, 2, 10, 30, "padding before");
    assert_unsupported((fm_op[]){center(20, 20), random_crop(0.1, 1, 1, 1)}, 2, 10, 30,
                       "padding before");
    assert_unsupported((fm_op[]){resize_pair(30, 30), center(9, 9), center(20, 20)}, 3, 10, 30,
                       "padding around");
    assert_unsupported((fm_op[]){resize_short(30000, 0), center(9, 9)}, 2, 10, 30, "65,535");
    assert_unsupported((fm_op[]){resize_short(5, 6), center(9, 9)}, 2, 1000, 1, "without pixels");
    /* Where the ratio asks for less than half a row. */
    assert_unsupported((fm_op[]){random_crop(3, 4, 3, 3)}, 1, 1, 1, "without pixels");
}

/* Sizes and boxes of ADM's center_crop_arr(): round() to even, and floor division. */
static void halving_crops_as_adms(void **state) {
    (void)state;
    /* width, height, size -> resized width, height, left, top */
    static const int32_t cases[][7] = {
        {500, 375, 64, 86, 64, 11, 0}, {6, 4, 3, 4, 3, 0, 0},        {10, 4, 3, 8, 3, 2, 0},
        {4, 10, 3, 3, 8, 0, 2},        {128, 127, 64, 65, 64, 0, 0}, {128, 129, 64, 64, 64, 0, 0},
        {1, 1, 9, 9, 9, 0, 0},         {1000, 3, 1, 500, 1, 249, 0}, {300, 299, 32, 32, 32, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int32_t *const c = cases[i];
        const fm_op op = {.kind = FM_OP_HALVING_CENTER_CROP, .height = c[2], .width = c[2]};
        fm_draw draw;
        assert_int_equal(fm_geometry_draw(&op, 1, &key, c[0], c[1], &draw, NULL), FM_OK);
        assert_int_equal(draw.n_values, 2);
        assert_int_equal((int32_t)draw.values[0], c[3]);
        assert_int_equal((int32_t)draw.values[1], c[4]);
        assert_int_equal(draw.left, c[5]);
        assert_int_equal(draw.top, c[6]);
        assert_true(draw.width == c[2] && draw.height == c[2]);
    }
}

static void impossible_images_are_refused(void **state) {
    (void)state;
    fm_geometry geometry;
    fm_draw draw;
    const fm_op op = center(4, 4);
    static const int32_t bad[] = {0, -1, 65536};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fm_geometry_locate(&op, 1, 1, &key, bad[i], 5, &geometry, NULL, NULL),
                         FM_ERR_LIMIT);
        assert_int_equal(fm_geometry_draw(&op, 1, &key, 5, bad[i], &draw, NULL), FM_ERR_LIMIT);
    }
    const fm_op huge = resize_short(65535, 0);
    assert_int_equal(fm_geometry_draw(&huge, 1, &key, 1, 65535, &draw, NULL), FM_ERR_LIMIT);
    /* With the padding its side would have more than 2^31 pixels. */
    const fm_op padded[] = {resize_short(32768, 0),
                            {.kind = FM_OP_PAD, .values = {65535, 0, 65535, 0}}};
    fm_draw draws[2];
    assert_int_equal(fm_geometry_draw(padded, 2, &key, 65535, 1, draws, NULL), FM_ERR_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resize_keeps_the_ratio_and_truncates),
        cmocka_unit_test(one_of_two_filters_is_drawn),
        cmocka_unit_test(timms_crops_may_be_empty),
        cmocka_unit_test(efficient_crops_leave_out_a_margin),
        cmocka_unit_test(resize_keep_ratio_weighs_the_edges),
        cmocka_unit_test(center_crop_rounds_halves_to_even),
        cmocka_unit_test(halving_crops_as_adms),
        cmocka_unit_test(padding_is_a_window_over_the_edge),
        cmocka_unit_test(flips_before_a_resize_mirror_the_source),
        cmocka_unit_test(random_crops_stay_inside_and_are_pure),
        cmocka_unit_test(hopeless_random_crops_fall_back_to_the_center),
        cmocka_unit_test(each_op_has_a_stream_of_its_own),
        cmocka_unit_test(images_without_a_form_are_left_to_pillow),
        cmocka_unit_test(impossible_images_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
