#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transform/half.h"
#include "transform/plan.h"

static const fm_op resize_short = {.kind = FM_OP_RESIZE, .height = 256};
static const fm_op resize_pair = {.kind = FM_OP_RESIZE, .height = 20, .width = 30};
static const fm_op center = {.kind = FM_OP_CENTER_CROP, .height = 7, .width = 9};
static const fm_op flip = {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5};
static const fm_op random_crop = {.kind = FM_OP_RANDOM_RESIZED_CROP,
                                  .height = 224,
                                  .width = 225,
                                  .scale = {0.08, 1},
                                  .ratio = {0.75, 4.0 / 3}};

static fm_transform transform_of(const fm_op *ops, size_t n_ops) {
    return (fm_transform){.ops = ops, .n_ops = n_ops, .dtype = FM_UINT8, .std = {1, 1, 1}};
}

static void assert_size(const fm_op *ops, size_t n_ops, int32_t height, int32_t width) {
    const fm_transform transform = transform_of(ops, n_ops);
    fm_plan plan;
    fm_error error;
    if (fm_plan_init(&plan, &transform, &error)) fail_msg("%s", error.message);
    assert_int_equal(plan.out_height, height);
    assert_int_equal(plan.out_width, width);
    assert_int_equal(plan.sample_bytes, 3 * height * width);
    assert_int_equal(plan.n_ops, n_ops);
    assert_memory_equal(plan.ops, ops, n_ops * sizeof(*ops));
}

/* The plan is refused, and the message contains each of the texts. */
static void assert_refused(const fm_transform *transform, const char *text, const char *more) {
    fm_plan plan;
    fm_error error = {0};
    assert_int_equal(fm_plan_init(&plan, transform, &error), FM_ERR_ARGUMENT);
    assert_int_equal(error.status, FM_ERR_ARGUMENT);
    if (!strstr(error.message, text) || !strstr(error.message, more))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", error.message, text, more);
    assert_int_equal(fm_plan_init(&plan, transform, NULL), FM_ERR_ARGUMENT);
}

static void assert_ops_refused(const fm_op *ops, size_t n_ops, const char *text, const char *more) {
    const fm_transform transform = transform_of(ops, n_ops);
    assert_refused(&transform, text, more);
}

static void the_last_sized_op_gives_the_size(void **state) {
    (void)state;
    assert_size((fm_op[]){random_crop, flip}, 2, 224, 225);
    assert_size((fm_op[]){resize_short, center}, 2, 7, 9);
    assert_size((fm_op[]){flip, center, resize_pair, flip}, 4, 20, 30);
    assert_size((fm_op[]){center, random_crop}, 2, 224, 225);
    assert_size((fm_op[]){center, center, flip}, 3, 7, 9);
    fm_op most[FM_MAX_OPS];
    for (int i = 0; i < FM_MAX_OPS; i++) most[i] = i ? flip : center;
    assert_size(most, FM_MAX_OPS, 7, 9);
}

/* Of several resizes, the first is of the front, and the others are applied to images in memory. */
static void ops_may_resize_several_times(void **state) {
    (void)state;
    const fm_op ops[] = {resize_short, flip, random_crop, resize_pair};
    assert_size(ops, 4, 20, 30);
    const fm_transform transform = transform_of(ops, 4);
    fm_plan plan;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    assert_int_equal(plan.n_front, 2);
    assert_int_equal(plan.n_resizes, 3);
    assert_true(plan.resizes_late && plan.augments);
    assert_int_equal(plan.most_px, FM_PLAN_MAX_PX);
    fm_transform of_floats = transform;
    of_floats.resize_order = FM_RESIZE_TORCH_FLOAT;
    assert_refused(&of_floats, "3 ops that resize", "at most one");
}

static fm_op holding(fm_op_kind kind, int32_t n_children, int32_t n_within, double value) {
    fm_op op = {.kind = kind, .p = 0.5, .n_children = n_children, .n_within = n_within};
    op.values[0] = value;
    for (int32_t i = 0; kind == FM_OP_RANDOM_CHOICE && i < n_children; i++) {
        op.values[i] = i + 1;
        op.values[16 + i] = 1;
    }
    return op;
}

/* The size after an op that holds others is known if it is the same whatever is drawn. */
static void sizes_may_change_within_ops(void **state) {
    (void)state;
    const fm_op choice = holding(FM_OP_RANDOM_CHOICE, 2, 2, 0);
    const fm_op apply = holding(FM_OP_RANDOM_APPLY, 1, 1, 0);
    const fm_op always = holding(FM_OP_RANDOM_APPLY, 1, 1, 1);
    const fm_op order = holding(FM_OP_RANDOM_ORDER, 2, 2, 0);
    assert_size((fm_op[]){choice, center, center}, 3, 7, 9);
    assert_size((fm_op[]){center, choice, center, flip}, 4, 7, 9);
    assert_size((fm_op[]){always, center}, 2, 7, 9);
    assert_size((fm_op[]){center, apply, center}, 3, 7, 9);
    assert_size((fm_op[]){apply, center, resize_pair}, 3, 20, 30);
    assert_size((fm_op[]){center, order, flip, center}, 4, 7, 9);
    const fm_op nested[] = {holding(FM_OP_RANDOM_CHOICE, 2, 4, 0),
                            holding(FM_OP_RANDOM_APPLY, 2, 2, 1), resize_short, center, center};
    assert_size(nested, 5, 7, 9);
    assert_ops_refused((fm_op[]){apply, center}, 2, "op 1 (CenterCrop)", "some images only");
    assert_ops_refused((fm_op[]){choice, center, resize_pair}, 3, "op 2 (Resize)", "drawn");
    assert_ops_refused((fm_op[]){center, order, flip, resize_pair}, 4, "op 3 (Resize)", "drawn");
    assert_ops_refused((fm_op[]){resize_pair, apply, resize_short}, 3, "op 2 (Resize)",
                       "width is 0");
}

static void lighting_is_the_last_op_of_three_channels(void **state) {
    (void)state;
    fm_op light = {.kind = FM_OP_LIGHTING, .values = {[0] = 0.1, [16] = 1, 1, 1}};
    const fm_op erase = {.kind = FM_OP_RANDOM_ERASING, .scale = {0.1, 0.2}, .ratio = {1, 1}};
    const fm_op gray = {.kind = FM_OP_GRAYSCALE, .values = {1}};
    fm_plan plan;
    fm_transform transform = transform_of((fm_op[]){center, light, erase}, 3);
    assert_ops_refused((fm_op[]){center, light}, 2, "op 1 (Lighting) gets", "dtype is 1");
    transform.dtype = FM_FLOAT32;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    assert_true(plan.lights && plan.erases && plan.augments);
    transform.ops = (fm_op[]){center, light, center};
    assert_refused(&transform, "op 1 (Lighting)", "must be the last");
    transform.ops = (fm_op[]){center, gray, light};
    assert_refused(&transform, "op 2 (Lighting)", "1 channels");
    transform.ops = (fm_op[]){center, holding(FM_OP_RANDOM_APPLY, 1, 1, 0), light};
    assert_refused(&transform, "op 2 (Lighting) is within op 1", "types");
    light.values[17] = 0;
    transform.ops = (fm_op[]){center, center, light};
    assert_refused(&transform, "op 2 (Lighting)", "values[17], a divisor, is 0");
    light.values[17] = 1;
    light.values[0] = -1;
    transform.ops = (fm_op[]){center, center, light};
    assert_refused(&transform, "op 2 (Lighting)", "values[0]");
}

static void chains_without_one_size_or_form_are_refused(void **state) {
    (void)state;
    assert_ops_refused(NULL, 0, "no op", "one size");
    assert_ops_refused((fm_op[]){flip, flip}, 2, "no op", "one size");
    assert_ops_refused(NULL, 1, "NULL", "1 ops");
    assert_ops_refused((fm_op[]){flip, resize_short}, 2, "op 1 (Resize)", "width is 0");
    assert_ops_refused((fm_op[]){center, resize_short, flip}, 3, "op 1 (Resize)", "width is 0");
    fm_op many[FM_MAX_OPS + 1];
    for (int i = 0; i <= FM_MAX_OPS; i++) many[i] = center;
    assert_ops_refused(many, FM_MAX_OPS + 1, "65 ops", "64");
}

static void values_out_of_range_are_named(void **state) {
    (void)state;
    static const fm_op *const sized[] = {&center, &random_crop};
    for (int i = 0; i < 2; i++) {
        static const int32_t bad[] = {0, -1, 65536};
        for (int j = 0; j < 3; j++) {
            fm_op ops[2] = {flip, *sized[i]};
            ops[1].height = bad[j];
            assert_ops_refused(ops, 2, "op 1 (", "height is");
            ops[1] = *sized[i];
            ops[1].width = bad[j];
            assert_ops_refused(ops, 2, "op 1 (", "1 to 65535");
        }
    }
    fm_op op = resize_pair;
    op.width = -1;
    assert_ops_refused(&op, 1, "width is -1", "0 to 65535");
    op = resize_pair;
    op.height = 0;
    assert_ops_refused(&op, 1, "height is 0", "1 to 65535");
    op = resize_pair;
    op.max_size = 40;
    assert_ops_refused(&op, 1, "max_size is 40", "must be 0");
    static const int32_t bad_limits[] = {-1, 255, 256, 65536};
    for (int i = 0; i < 4; i++) {
        fm_op ops[2] = {resize_short, center};
        ops[0].max_size = bad_limits[i];
        assert_ops_refused(ops, 2, "op 0 (Resize): max_size is", "257 to 65535");
    }
    op = flip;
    op.kind = 77;
    assert_ops_refused(&op, 1, "op 0", "kind is 77");
    op = flip;
    op.arithmetic = FM_ARITHMETIC_TENSOR_V1;
    assert_ops_refused(&op, 1, "op 0 (RandomHorizontalFlip): arithmetic is 1", "0 to 0");
    op.kind = FM_OP_RANDOM_GRAYSCALE;
    op.arithmetic = (fm_arithmetic)4;
    assert_ops_refused(&op, 1, "op 0 (RandomGrayscale): arithmetic is 4", "0 to 3");
    op.arithmetic = FM_ARITHMETIC_TENSOR_V2;
    op.sampling = FM_SAMPLING_WITHOUT_FILL;
    assert_ops_refused(&op, 1, "op 0 (RandomGrayscale): sampling is 4", "0 to 0");
    op = (fm_op){.kind = FM_OP_RANDOM_AFFINE, .sampling = FM_SAMPLING_FUSED_GRID};
    assert_ops_refused(&op, 1, "op 0 (RandomAffine): sampling is 1", "0 to 0");
    op.arithmetic = FM_ARITHMETIC_TENSOR_V1;
    op.sampling = 8;
    assert_ops_refused(&op, 1, "op 0 (RandomAffine): sampling is 8", "0 to 7");
    op.sampling = 7;
    op.filter = FM_FILTER_BICUBIC;
    assert_ops_refused(&op, 1, "op 0 (RandomAffine): the filter is bicubic", "tensors");
    op.filter = FM_FILTER_NEAREST;
    op.values[5] = 1;
    op.scale[0] = 0.0009;
    op.scale[1] = 2;
    assert_ops_refused(&op, 1, "op 0 (RandomAffine): scale is (0.0009, 2)", "0.001");
    op.scale[0] = 0.001;
    op.values[10] = 89.5;
    assert_ops_refused(&op, 1, "op 0 (RandomAffine): values[10] is 89.5", "-89 to 89");
    for (int i = 0; i < 2; i++) {
        fm_op filtered = i ? random_crop : resize_pair;
        filtered.filter = (fm_filter)6;
        assert_ops_refused(&filtered, 1, "op 0 (", "filter is 6; allowed are 0 to 5");
        filtered.filter = (fm_filter)-1;
        assert_ops_refused(&filtered, 1, "op 0 (", "filter is -1");
        filtered.filter = FM_FILTER_BOX;
        filtered.values[1] = 7;
        assert_ops_refused(&filtered, 1, "values[1] is 7", "from 0 to 6");
        filtered.values[1] = 1.5;
        assert_ops_refused(&filtered, 1, "values[1] is 1.5", "whole");
    }
    op = center;
    op.values[4] = 4;
    assert_ops_refused(&op, 1, "op 0 (CenterCrop): values[4] is 4", "0 to 3");
    fm_op keep[2] = {{.kind = FM_OP_RESIZE_KEEP_RATIO, .height = 8, .width = 9}, center};
    assert_ops_refused(keep, 1, "width is 0", "");
    keep[0].values[0] = 1.5;
    assert_ops_refused(keep, 2, "op 0 (ResizeKeepRatio): values[0] is 1.5", "0 to 1");
    keep[0].values[0] = 1;
    keep[0].values[6] = 0.5;
    assert_ops_refused(keep, 2, "op 0 (ResizeKeepRatio): values[7] is 0", "numbers from");
    op = center;
    op.kind = FM_OP_HALVING_CENTER_CROP;
    assert_ops_refused(&op, 1, "op 0 (halving CenterCrop): the result has 9 x 7 pixels", "square");
    static const double bad_p[] = {-0.1, 1.1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        op = flip;
        op.p = bad_p[i];
        assert_ops_refused(&op, 1, "p is", "0 to 1");
    }
    static const double bad_scale[][2] = {{-0.1, 1}, {0.5, 0.4},    {NAN, 1},
                                          {0, NAN},  {0, INFINITY}, {0, 1e300}};
    for (int i = 0; i < 6; i++) {
        op = random_crop;
        memcpy(op.scale, bad_scale[i], sizeof(op.scale));
        assert_ops_refused(&op, 1, "scale is", "scale[0] <= scale[1]");
    }
    static const double bad_ratio[][2] = {{0, 1},   {-1, 1},       {2, 1},      {NAN, 1},
                                          {1, NAN}, {1, INFINITY}, {1e-300, 1}, {1, 1e300}};
    for (int i = 0; i < 8; i++) {
        op = random_crop;
        memcpy(op.ratio, bad_ratio[i], sizeof(op.ratio));
        assert_ops_refused(&op, 1, "ratio is", "ratio[0] <= ratio[1]");
    }
}

static void types_and_statistics_are_checked(void **state) {
    (void)state;
    fm_transform transform = transform_of(&center, 1);
    transform.dtype = 5;
    assert_refused(&transform, "dtype is 5", "bfloat16");
    transform.dtype = 0;
    assert_refused(&transform, "dtype is 0", "uint8");
    transform.dtype = FM_FLOAT16;
    transform.layout = 2;
    assert_refused(&transform, "layout is 2", "NHWC");
    transform.layout = FM_NHWC;
    transform.resize_order = 1000;
    assert_refused(&transform, "resize_order is 1000", "allowed");
    transform.resize_order = FM_RESIZE_PILLOW_13;
    transform.std[1] = 0;
    assert_refused(&transform, "channel 1", "std is 0");
    transform.std[1] = NAN;
    assert_refused(&transform, "channel 1", "finite");
    transform.std[1] = 1;
    transform.mean[2] = INFINITY;
    assert_refused(&transform, "channel 2", "mean is inf");
    transform.dtype = FM_UINT8; /* which uses neither */
    fm_plan plan;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
}

static void the_table_follows_the_float32_steps(void **state) {
    (void)state;
    fm_transform transform = transform_of(&center, 1);
    transform.dtype = FM_FLOAT32;
    const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    memcpy(transform.mean, mean, sizeof(mean));
    memcpy(transform.std, std, sizeof(std));
    fm_plan plan;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    assert_int_equal(plan.sample_bytes, 3 * 7 * 9 * sizeof(float));
    for (int channel = 0; channel < 3; channel++) {
        for (int value = 0; value < 256; value++) {
            volatile float step = (float)value / 255.0f;
            step = step - mean[channel];
            step = step / std[channel];
            assert_true(plan.table[channel][value] == step);
        }
    }
    float table[3][256];
    for (int i = 0; i < 768; i++) table[i / 256][i % 256] = (float)i * 0.37f;
    transform.value_table = &table[0][0];
    transform.std[0] = 0; /* not used then */
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    assert_memory_equal(plan.table, table, sizeof(table));
}

/* Without a table they are the float32 results rounded; with one they are its values. */
static void tables_of_16_bits(void **state) {
    (void)state;
    fm_transform transform = transform_of(&center, 1);
    const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    memcpy(transform.mean, mean, sizeof(mean));
    memcpy(transform.std, std, sizeof(std));
    fm_plan plan;
    for (int half = 0; half < 2; half++) {
        transform.dtype = half ? FM_FLOAT16 : FM_BFLOAT16;
        transform.value_table = NULL;
        assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
        assert_int_equal(plan.sample_bytes, 3 * 7 * 9 * 2);
        for (int i = 0; i < 768; i++) {
            volatile float value = (float)(i % 256) / 255.0f;
            value = value - mean[i / 256];
            value = value / std[i / 256];
            assert_int_equal(plan.bits[i / 256][i % 256],
                             half ? fm_float16_bits(value) : fm_bfloat16_bits(value));
        }
        uint16_t table[3][256];
        for (int i = 0; i < 768; i++) table[i / 256][i % 256] = (uint16_t)(65535 - 77 * i);
        transform.value_table = table;
        assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
        for (int i = 0; i < 768; i++)
            assert_int_equal(plan.bits[i / 256][i % 256], table[i / 256][i % 256]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_sized_op_gives_the_size),
        cmocka_unit_test(ops_may_resize_several_times),
        cmocka_unit_test(sizes_may_change_within_ops),
        cmocka_unit_test(lighting_is_the_last_op_of_three_channels),
        cmocka_unit_test(chains_without_one_size_or_form_are_refused),
        cmocka_unit_test(values_out_of_range_are_named),
        cmocka_unit_test(types_and_statistics_are_checked),
        cmocka_unit_test(the_table_follows_the_float32_steps),
        cmocka_unit_test(tables_of_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
