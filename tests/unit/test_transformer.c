/*
 * fm_transformer: an encoded image and its pixels give the same values and leave the generators
 * alike; the values of a crop are those of the image's pixels; nothing is written beyond the
 * result; what fails leaves the generators as they were.
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

#include "encode_jpeg.h"
#include "feedmill/transformer.h"
#include "guarded.h"

enum { WIDTH = 157, HEIGHT = 122, SIDE = 48, N_IMAGES = 300 };

static uint8_t *jpeg;
static size_t jpeg_bytes;
static uint8_t whole[WIDTH * HEIGHT * 3];

static int set_up(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(whole); i++) whole[i] = (uint8_t)(i * 7 + i / 90 % 50);
    jpeg_bytes = test_encode_jpeg(&jpeg, whole, WIDTH, HEIGHT);
    const fm_sample sample = {.data = jpeg, .data_bytes = jpeg_bytes};
    fm_imread *image;
    assert_int_equal(fm_imread_open(&image, &sample, 0, NULL), FM_OK);
    assert_int_equal(fm_imread_pixels(image, FM_RGB, false, whole, NULL), FM_OK);
    fm_imread_close(&image);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(jpeg);
    return 0;
}

static const fm_op random_ops[] = {
    {.kind = FM_OP_RANDOM_RESIZED_CROP,
     .height = SIDE,
     .width = SIDE,
     .scale = {0.08, 1.0},
     .ratio = {3.0 / 4.0, 4.0 / 3.0}},
    {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5},
};
static const fm_op crop_ops[] = {{.kind = FM_OP_CENTER_CROP, .height = SIDE, .width = SIDE}};

static fm_transformer *open_with(const fm_op *ops, size_t n_ops, fm_dtype dtype, fm_layout layout) {
    const fm_transform transform = {
        .ops = ops, .n_ops = n_ops, .dtype = dtype, .layout = layout, .std = {0.5f, 0.25f, 1.0f}};
    fm_transformer *transformer;
    fm_error error;
    if (fm_transformer_open(&transformer, &transform, 0, &error)) fail_msg("%s", error.message);
    return transformer;
}

static fm_streams some_streams(uint32_t seed) {
    fm_streams streams = {0};
    for (size_t i = 0; i < FM_MT19937_N; i++) {
        seed = seed * 1664525u + 1013904223u;
        streams.torch.words[i] = seed ^ seed >> 15;
    }
    streams.torch.next = streams.python.next = streams.numpy.next = FM_MT19937_N;
    return streams;
}

static const fm_source_image *encoded(void) {
    static fm_source_image image;
    image = (fm_source_image){.data = jpeg, .data_bytes = jpeg_bytes};
    return &image;
}

static const fm_source_image in_memory = {
    .pixels = whole, .pixels_width = WIDTH, .pixels_height = HEIGHT};

static void test_files_and_pixels_give_the_same(void **state) {
    (void)state;
    static const fm_layout layouts[] = {FM_NCHW, FM_NHWC};
    for (size_t k = 0; k < 4; k++) {
        fm_transformer *transformer =
            open_with(random_ops, 2, k < 2 ? FM_FLOAT32 : FM_UINT8, layouts[k % 2]);
        const size_t n_bytes = fm_transformer_shape(transformer).sample_bytes;
        assert_int_equal(n_bytes, 3 * SIDE * SIDE * (k < 2 ? 4 : 1));
        const test_guarded one = test_guarded_open(NULL, n_bytes);
        const test_guarded other = test_guarded_open(NULL, n_bytes);
        fm_streams streams = some_streams(5), again = streams;
        for (int i = 0; i < N_IMAGES; i++) {
            const fm_streams before = streams;
            assert_int_equal(fm_transformer_run(transformer, encoded(), &streams, one.bytes, NULL),
                             FM_OK);
            assert_int_equal(fm_transformer_run(transformer, &in_memory, &again, other.bytes, NULL),
                             FM_OK);
            assert_memory_equal(one.bytes, other.bytes, n_bytes);
            assert_memory_equal(&streams, &before, sizeof(streams));
            assert_int_equal(fm_transformer_draw(transformer, WIDTH, HEIGHT, &streams, NULL),
                             FM_OK);
            again = streams;
            assert_memory_not_equal(&streams.torch, &before.torch, sizeof(before.torch));
            assert_memory_equal(&streams.python, &before.python, sizeof(before.python));
        }
        test_guarded_close(&one);
        test_guarded_close(&other);
        fm_transformer_close(&transformer);
    }
}

static void test_a_crop_has_the_images_pixels(void **state) {
    (void)state;
    fm_transformer *transformer = open_with(crop_ops, 1, FM_UINT8, FM_NCHW);
    uint8_t out[3 * SIDE * SIDE];
    fm_streams streams = some_streams(1);
    const fm_streams before = streams;
    assert_int_equal(fm_transformer_run(transformer, encoded(), &streams, out, NULL), FM_OK);
    assert_int_equal(fm_transformer_draw(transformer, WIDTH, HEIGHT, &streams, NULL), FM_OK);
    assert_memory_equal(&streams, &before, sizeof(before));
    /* torchvision's int(round((size - crop) / 2.0)), which rounds halves to even numbers */
    const int left = 54, top = 37;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int c = 0; c < 3; c++)
                assert_int_equal(out[(c * SIDE + y) * SIDE + x],
                                 whole[((top + y) * WIDTH + left + x) * 3 + c]);
    fm_transformer_close(&transformer);
}

static void test_a_failure_leaves_the_generators(void **state) {
    (void)state;
    fm_transformer *transformer = open_with(random_ops, 2, FM_UINT8, FM_NCHW);
    uint8_t out[3 * SIDE * SIDE];
    fm_streams streams = some_streams(2);
    const fm_streams before = streams;
    uint8_t *const damaged = malloc(jpeg_bytes);
    memcpy(damaged, jpeg, jpeg_bytes);
    memset(damaged + jpeg_bytes / 2, 0xFF, jpeg_bytes / 4);
    const fm_source_image images[] = {
        {.data = damaged, .data_bytes = jpeg_bytes},
        {.data = jpeg, .data_bytes = jpeg_bytes / 2},
        {.data = "no image", .data_bytes = 8},
        {0},
        {.data = jpeg, .data_bytes = jpeg_bytes, .pixels = whole},
        {.pixels = whole, .pixels_width = 0, .pixels_height = 3},
        {.pixels = whole, .pixels_width = 3, .pixels_height = 1 << 30},
    };
    fm_error error;
    for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
        assert_true(fm_transformer_run(transformer, &images[i], &streams, out, &error) < 0);
        assert_true(strlen(error.message) > 5);
        assert_memory_equal(&streams, &before, sizeof(before));
    }
    assert_int_equal(fm_transformer_run(transformer, encoded(), NULL, out, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_run(transformer, encoded(), &streams, NULL, NULL),
                     FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_run(NULL, encoded(), &streams, out, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_draw(transformer, 0, 9, &streams, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_draw(transformer, 9, 1 << 30, &streams, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_draw(transformer, 9, 9, NULL, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_draw(NULL, 9, 9, &streams, NULL), FM_ERR_ARGUMENT);
    assert_memory_equal(&streams, &before, sizeof(before));
    assert_int_equal(fm_transformer_run(transformer, encoded(), &streams, out, NULL), FM_OK);
    free(damaged);
    fm_transformer_close(&transformer);
}

static void test_wrong_transforms_are_refused(void **state) {
    (void)state;
    fm_transformer *transformer = (fm_transformer *)whole; /* is set to NULL */
    const fm_op resize = {.kind = FM_OP_RESIZE, .height = SIDE};
    const fm_transform of_any_size = {.ops = &resize, .n_ops = 1, .dtype = FM_UINT8};
    fm_error error;
    assert_int_equal(fm_transformer_open(&transformer, &of_any_size, 0, &error), FM_ERR_ARGUMENT);
    assert_null(transformer);
    assert_non_null(strstr(error.message, "size"));
    assert_int_equal(fm_transformer_open(NULL, &of_any_size, 0, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transformer_open(&transformer, NULL, 0, NULL), FM_ERR_ARGUMENT);
    fm_transformer_close(&transformer);
    fm_transformer_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_and_pixels_give_the_same),
        cmocka_unit_test(test_a_crop_has_the_images_pixels),
        cmocka_unit_test(test_a_failure_leaves_the_generators),
        cmocka_unit_test(test_wrong_transforms_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
