/* Samples that are rows of arrays in memory, through the public header only. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "feedmill/feedmill.h"
#include "guarded.h"
#include "wait_causes.h"

#define N_ROWS 97

static fm_loader *open_loader(const fm_config *config) {
    fm_loader *loader = NULL;
    fm_error error;
    if (fm_loader_open(&loader, config, &error)) fail_msg("open: %s", error.message);
    return loader;
}

static void start(fm_loader *loader, const int64_t *order, size_t n) {
    const fm_epoch epoch = {.seed = 5, .number = 1, .order = order, .n_order = n};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
}

static fm_config config_of(const fm_array *arrays, size_t n) {
    fm_config config;
    fm_config_init(&config);
    config.arrays.list = arrays;
    config.arrays.n = n;
    config.batch_size = 10;
    config.n_threads = 3;
    config.memory_budget_bytes = (uint64_t)64 << 20;
    return config;
}

/* An array whose last row ends at a page that can't be read. */
static test_guarded open_bytes(size_t n) {
    test_guarded guarded = test_guarded_open(NULL, n);
    for (size_t i = 0; i < n; i++) guarded.bytes[i] = (uint8_t)(rand() >> 7);
    return guarded;
}

static fm_array array_in(const test_guarded *memory, size_t row_bytes, size_t stride_bytes) {
    return (fm_array){.data = memory->bytes,
                      .n_rows = N_ROWS,
                      .row_bytes = row_bytes,
                      .stride_bytes = stride_bytes};
}

/* Some rows in order, some not, some twice. */
static void make_order(int64_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)((i / 7) % 2 ? i * 31 % N_ROWS : i % N_ROWS);
}

static void check_batch(const fm_loader *loader, const fm_batch *batch, const fm_array *arrays,
                        size_t n_arrays, const int64_t *order) {
    for (size_t a = 0; a < n_arrays; a++) {
        size_t offset, row_bytes;
        assert_int_equal(fm_loader_section(loader, a, &offset, &row_bytes), FM_OK);
        assert_int_equal(offset % 64, 0);
        assert_int_equal(row_bytes, arrays[a].row_bytes);
        const size_t stride = arrays[a].stride_bytes ? arrays[a].stride_bytes : row_bytes;
        for (uint32_t i = 0; i < batch->n; i++)
            assert_memory_equal((const uint8_t *)batch->images + offset + i * row_bytes,
                                (const uint8_t *)arrays[a].data + (size_t)order[i] * stride,
                                row_bytes);
    }
}

static void rows_are_gathered_in_order(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 3, 4, 8, 16, 24, 1000, 70000, 600000};
    int64_t order[2 * N_ROWS + 3];
    make_order(order, 2 * N_ROWS + 3);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        const size_t row_bytes = sizes[s], wide = row_bytes + 5;
        const test_guarded dense = open_bytes(N_ROWS * row_bytes);
        const test_guarded strided = open_bytes((N_ROWS - 1) * wide + 3);
        const fm_array arrays[] = {array_in(&dense, row_bytes, 0), array_in(&strided, 3, wide)};
        const fm_config config = config_of(arrays, 2);
        fm_loader *loader = open_loader(&config);
        for (int epoch = 0; epoch < 2; epoch++) {
            start(loader, order, 2 * N_ROWS + 3);
            fm_batch batch;
            size_t n = 0;
            while (fm_loader_next(loader, -1, &batch, NULL) == FM_OK) {
                assert_null(batch.labels);
                assert_int_equal(batch.channels, 0);
                check_batch(loader, &batch, arrays, 2, order + n);
                n += batch.n;
                fm_batch_release(&batch);
            }
            assert_int_equal(n, 2 * N_ROWS + 3);
        }
        fm_stats stats;
        fm_loader_stats(loader, &stats);
        assert_int_equal(stats.samples, 2 * (2 * N_ROWS + 3));
        assert_int_equal(stats.native_samples, stats.samples);
        assert_string_equal(stats.reader, "none");
        fm_loader_close(&loader);
        test_guarded_close(&dense);
        test_guarded_close(&strided);
    }
}

static void rows_need_not_be_the_indices(void **state) {
    (void)state;
    const test_guarded memory = open_bytes(N_ROWS * 12);
    const fm_array array = array_in(&memory, 12, 0);
    fm_config config = config_of(&array, 1);
    config.n_samples = 4;
    fm_loader *loader = open_loader(&config);
    start(loader, NULL, 0);
    const int64_t indices[] = {3, 0, 3, 1}, rows[] = {96, 7, 96, 8};
    fm_error error;
    assert_int_equal(fm_loader_submit_rows(loader, indices, rows, 4, &error), FM_OK);
    fm_batch batch;
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
    check_batch(loader, &batch, &array, 1, rows);
    fm_batch_release(&batch);
    fm_loader_close(&loader);
    test_guarded_close(&memory);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    const test_guarded memory = open_bytes(N_ROWS * 12);
    fm_array array = array_in(&memory, 12, 0);
    fm_config config = config_of(&array, 1);
    fm_loader *loader = open_loader(&config);
    start(loader, NULL, 0);
    fm_error error;
    const int64_t indices[] = {3, 97}, good[] = {3, 4}, rows[] = {1, -1};
    assert_int_equal(fm_loader_submit_rows(loader, indices, NULL, 2, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "index 97 is outside the dataset of 97 samples"));
    assert_int_equal(error.index, 97);
    assert_int_equal(fm_loader_submit_rows(loader, good, rows, 2, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "index 4 has row -1"));
    assert_int_equal(fm_loader_submit_rows(loader, good, NULL, 0, &error), FM_ERR_ARGUMENT);
    const fm_sample sample = {.index = 0, .path = "x"};
    assert_int_equal(fm_loader_submit(loader, &sample, 1, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_section(loader, 1, NULL, NULL), FM_ERR_ARGUMENT);
    fm_loader_close(&loader);

    array.stride_bytes = 11;
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "array 0: stride_bytes is 11"));
    array.stride_bytes = 0;
    config.arrays.images = true;
    config.transform.in_height = config.transform.in_width = 2;
    config.transform.in_channels = 3;
    config.transform.dtype = FM_UINT8;
    config.arrays.line_stride = 7;
    config.arrays.pixel_stride = 3;
    config.arrays.channel_stride = 1;
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "are not within the 12 bytes"));
    config.arrays.line_stride = 6;
    loader = open_loader(&config);
    fm_loader_close(&loader);
    test_guarded_close(&memory);
}

static void steps_add_up(void **state) {
    (void)state;
    const test_guarded memory = open_bytes(N_ROWS * (size_t)50000);
    const fm_array array = array_in(&memory, 50000, 0);
    fm_config config = config_of(&array, 1);
    config.batch_size = 30;
    config.sample_records = 1024;
    fm_loader *loader = open_loader(&config);
    int64_t order[N_ROWS];
    make_order(order, N_ROWS);
    for (int epoch = 0; epoch < 3; epoch++) {
        start(loader, order, N_ROWS);
        fm_batch batch;
        while (fm_loader_next(loader, -1, &batch, NULL) == FM_OK) fm_batch_release(&batch);
    }
    fm_step steps[64];
    const size_t n = fm_loader_steps(loader, 0, steps, 64);
    assert_int_equal(n, 3 * 4);
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    uint64_t data_wait_ns = 0, n_samples = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(wait_causes_ns(&steps[i].causes), steps[i].data_wait_ns);
        assert_int_equal(steps[i].causes.storage_ns, 0);
        assert_int_equal(steps[i].causes.decode_ns, 0);
        data_wait_ns += steps[i].data_wait_ns;
        n_samples += steps[i].n_samples;
    }
    assert_int_equal(n_samples, 3 * N_ROWS);
    assert_int_equal(wait_causes_ns(&stats.causes), data_wait_ns);
    /* A record a run: 10 of these rows are half a mebibyte. */
    fm_sample_record records[64];
    uint64_t first;
    const size_t n_records = fm_loader_sample_records(loader, 0, records, 64, &first);
    assert_int_equal(n_records, 3 * (3 + 3 + 3 + 1));
    fm_loader_close(&loader);
    test_guarded_close(&memory);
}

static void held_batches_stay_what_they_were(void **state) {
    (void)state;
    const test_guarded memory = open_bytes(N_ROWS * 100);
    const fm_array array = array_in(&memory, 100, 0);
    const fm_config config = config_of(&array, 1);
    fm_loader *loader = open_loader(&config);
    int64_t order[N_ROWS];
    make_order(order, N_ROWS);
    start(loader, order, N_ROWS);
    fm_batch batches[10];
    for (int i = 0; i < 10; i++)
        assert_int_equal(fm_loader_next(loader, -1, &batches[i], NULL), FM_OK);
    assert_false(batches[1].copied);
    assert_true(batches[9].copied);
    for (int i = 0; i < 10; i++) check_batch(loader, &batches[i], &array, 1, order + 10 * i);
    fm_loader_close(&loader);
    for (int i = 0; i < 10; i++) fm_batch_release(&batches[i]);
    test_guarded_close(&memory);
}

static void every_budget_is_refused_or_leaves_three_slots(void **state) {
    (void)state;
    const test_guarded memory = open_bytes(N_ROWS * 1000);
    const fm_array array = array_in(&memory, 1000, 0);
    int64_t order[N_ROWS];
    make_order(order, N_ROWS);
    bool opened = false;
    for (uint64_t bytes = 1; bytes < (uint64_t)1 << 26; bytes += bytes / 3 + 1) {
        fm_config config = config_of(&array, 1);
        config.memory_budget_bytes = bytes;
        fm_loader *loader = NULL;
        fm_error error;
        const int status = fm_loader_open(&loader, &config, &error);
        if (status) {
            assert_int_equal(status, FM_ERR_BUDGET);
            assert_false(opened);
            continue;
        }
        opened = true;
        fm_stats stats;
        fm_loader_stats(loader, &stats);
        assert_true(stats.n_slots >= 3 && stats.n_slots <= 6);
        assert_true(stats.allocated_bytes <= bytes);
        start(loader, order, N_ROWS);
        fm_batch batch;
        for (size_t n = 0; fm_loader_next(loader, -1, &batch, NULL) == FM_OK; n += batch.n) {
            check_batch(loader, &batch, &array, 1, order + n);
            fm_batch copy = batch;
            fm_batch_release(&copy);
        }
        fm_loader_close(&loader);
    }
    assert_true(opened);
    test_guarded_close(&memory);
}

/* ---- images ---------------------------------------------------------------------------------- */

typedef struct image_case {
    int32_t height, width, channels;
    fm_dtype dtype;
    fm_layout layout;              /* of the result */
    uint32_t channel, line, pixel; /* strides in the array */
} image_case;

static float value_of(int channel, uint8_t px) {
    static const float mean[] = {0.4f, 0.5f, 0.25f}, std[] = {0.2f, 0.25f, 0.5f};
    return ((float)px / 255.0f - mean[channel]) / std[channel];
}

/* The value at (channel, y, x) of a result of height x width pixels. */
static float result_at(const image_case *one, const void *out, int channel, int32_t y, int32_t x,
                       int32_t height, int32_t width) {
    const size_t at = one->layout == FM_NHWC ? (size_t)((y * width + x) * one->channels + channel)
                                             : (size_t)((channel * height + y) * width + x);
    return one->dtype == FM_UINT8 ? ((const uint8_t *)out)[at] : ((const float *)out)[at];
}

static void check_image(const image_case *one, const uint8_t *row, const void *out,
                        const fm_draw *crop, bool flip) {
    for (int channel = 0; channel < one->channels; channel++)
        for (int32_t y = 0; y < crop->height; y++)
            for (int32_t x = 0; x < crop->width; x++) {
                const int32_t from = crop->left + (flip ? crop->width - 1 - x : x);
                const uint8_t px =
                    row[(size_t)channel * one->channel + (size_t)(crop->top + y) * one->line +
                        (size_t)from * one->pixel];
                const float want = one->dtype == FM_UINT8 ? px : value_of(channel, px);
                const float got = result_at(one, out, channel, y, x, crop->height, crop->width);
                if (memcmp(&got, &want, sizeof(got)))
                    fail_msg("channel %d, row %d, column %d: %g, not %g", channel, (int)y, (int)x,
                             (double)got, (double)want);
            }
}

/* All rows as images: whole (no op), or cropped at the centre and flipped by chance. */
static void check_images(const image_case *one, bool crops) {
    const fm_op ops[] = {{.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5},
                         {.kind = FM_OP_CENTER_CROP, .height = 7, .width = 6}};
    const size_t row_bytes = (size_t)(one->height * one->width * one->channels);
    const test_guarded memory = open_bytes(N_ROWS * row_bytes);
    const fm_array array = array_in(&memory, row_bytes, 0);
    fm_config config = config_of(&array, 1);
    config.arrays.images = true;
    config.arrays.channel_stride = one->channel;
    config.arrays.line_stride = one->line;
    config.arrays.pixel_stride = one->pixel;
    config.transform = (fm_transform){.dtype = one->dtype,
                                      .layout = one->layout,
                                      .ops = ops,
                                      .n_ops = crops ? 2 : 0,
                                      .mean = {0.4f, 0.5f, 0.25f},
                                      .std = {0.2f, 0.25f, 0.5f},
                                      .in_height = one->height,
                                      .in_width = one->width,
                                      .in_channels = one->channels};
    fm_loader *loader = open_loader(&config);
    int64_t order[N_ROWS];
    for (int64_t i = 0; i < N_ROWS; i++) order[i] = i;
    start(loader, order, N_ROWS);
    size_t sample_bytes;
    assert_int_equal(fm_loader_section(loader, 0, NULL, &sample_bytes), FM_OK);
    fm_batch batch;
    int n_flipped = 0;
    for (int64_t n = 0; fm_loader_next(loader, -1, &batch, NULL) == FM_OK;) {
        assert_int_equal(batch.channels, one->channels);
        for (uint32_t i = 0; i < batch.n; i++, n++) {
            fm_draw draws[2] = {{.flip = false}, {.height = one->height, .width = one->width}};
            if (crops)
                assert_int_equal(
                    fm_loader_draws(loader, 0, 5, 1, n, 0, one->width, one->height, draws, NULL),
                    FM_OK);
            /* The flip is applied first, which changes a crop with an odd margin. */
            if (draws[0].flip) draws[1].left = one->width - draws[1].left - draws[1].width;
            n_flipped += draws[0].flip;
            check_image(one, memory.bytes + (size_t)n * row_bytes,
                        (const uint8_t *)batch.images + i * sample_bytes, &draws[1], draws[0].flip);
        }
        fm_batch_release(&batch);
    }
    assert_true(!crops || (n_flipped > 20 && n_flipped < 80));
    fm_loader_close(&loader);
    test_guarded_close(&memory);
}

static void images_are_stored_as_they_lie(void **state) {
    (void)state;
    const image_case cases[] = {
        {9, 11, 3, FM_FLOAT32, FM_NCHW, 1, 33, 3},   /* rows of pixels */
        {9, 11, 3, FM_FLOAT32, FM_NHWC, 1, 33, 3},   /* ... */
        {9, 11, 3, FM_UINT8, FM_NCHW, 1, 33, 3},     /* ... */
        {9, 11, 3, FM_UINT8, FM_NHWC, 1, 33, 3},     /* ... */
        {9, 11, 3, FM_FLOAT32, FM_NCHW, 99, 11, 1},  /* planes */
        {9, 11, 3, FM_FLOAT32, FM_NCHW, 99, 1, 9},   /* planes of columns */
        {9, 11, 1, FM_FLOAT32, FM_NCHW, 1, 11, 1},   /* grey */
        {9, 11, 1, FM_UINT8, FM_NHWC, 99, 1, 9},     /* grey, of columns */
        {32, 32, 3, FM_FLOAT32, FM_NCHW, 1, 96, 3},  /* as CIFAR */
        {28, 28, 1, FM_FLOAT32, FM_NCHW, 1, 28, 1},  /* as MNIST */
        {32, 32, 3, FM_UINT8, FM_NCHW, 1024, 1, 32}, /* as SVHN */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        check_images(&cases[i], false);
        check_images(&cases[i], true);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_gathered_in_order),
        cmocka_unit_test(rows_need_not_be_the_indices),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(steps_add_up),
        cmocka_unit_test(held_batches_stay_what_they_were),
        cmocka_unit_test(every_budget_is_refused_or_leaves_three_slots),
        cmocka_unit_test(images_are_stored_as_they_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
