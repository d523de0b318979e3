/* Several views of each sample: each equals what a loader of its own makes. */
#define _GNU_SOURCE
#include <fcntl.h>

#define N_FILES 31
#include "folder_group.h"

#define MOST_BYTES ((size_t)N_FILES * 3 * 64 * 64 * 4)

/* ---- transforms ------------------------------------------------------------------------------ */

static const fm_op crop_ops[] = {{.kind = FM_OP_RANDOM_RESIZED_CROP,
                                  .height = 20,
                                  .width = 28,
                                  .scale = {0.05, 0.4},
                                  .ratio = {0.75, 4.0 / 3},
                                  .filter = FM_FILTER_BICUBIC},
                                 {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5}};
static const fm_op color_ops[] = {
    {.kind = FM_OP_RANDOM_RESIZED_CROP,
     .height = 24,
     .width = 32,
     .scale = {0.3, 1},
     .ratio = {0.75, 4.0 / 3}},
    {.kind = FM_OP_RANDOM_APPLY, .p = 0.8, .n_children = 1, .n_within = 1},
    {.kind = FM_OP_COLOR_JITTER, .values = {0.6, 1.4, 0.6, 1.4, 0.8, 1.2, -0.1, 0.1}},
    {.kind = FM_OP_RANDOM_GRAYSCALE, .p = 0.2},
    {.kind = FM_OP_RANDOM_BLUR, .p = 1, .values = {0.1, 2}},
    {.kind = FM_OP_RANDOM_SOLARIZE, .p = 0.2, .values = {128}}};
static const fm_op eval_ops[] = {{.kind = FM_OP_RESIZE, .height = 30},
                                 {.kind = FM_OP_CENTER_CROP, .height = 16, .width = 48}};

static fm_transform transform_of(const fm_op *ops, size_t n_ops, fm_dtype dtype) {
    fm_transform transform = test_config((fm_source){0}).transform;
    transform.ops = ops;
    transform.n_ops = n_ops;
    transform.dtype = dtype;
    return transform;
}

/* The views must stay until the loader is open. */
static fm_config config_of(fm_source source, const fm_transform *views, size_t n_views) {
    fm_config config = test_config(source);
    config.n_samples = source.locate ? 0 : 10;
    config.transform = views[0];
    config.more_views = views + 1;
    config.n_more_views = n_views - 1;
    return config;
}

/* The ops of a loader with one view that draws as view `number` does: ops that change nothing take
 * the place of those of the views before it. */
static size_t alone(const fm_transform *views, size_t number, fm_op *ops) {
    size_t n = 0;
    for (size_t i = 0; i < number; i++)
        for (size_t j = 0; j < views[i].n_ops; j++)
            ops[n++] = (fm_op){.kind = FM_OP_RANDOM_HORIZONTAL_FLIP};
    memcpy(ops + n, views[number].ops, views[number].n_ops * sizeof(*ops));
    return n + views[number].n_ops;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void start(fm_loader *loader, uint32_t number) {
    int64_t order[N_FILES];
    for (int64_t i = 0; i < N_FILES; i++) order[i] = i * 12 % N_FILES;
    const fm_epoch epoch = {.seed = 9, .number = number, .order = order, .n_order = N_FILES};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
}

/* Runs an epoch; view v of the kth sample goes to out[v] + k * sample_bytes[v]. */
static void run(fm_loader *loader, uint32_t number, uint8_t *const *out,
                const size_t *sample_bytes) {
    start(loader, number);
    size_t n = 0;
    fm_batch batch;
    fm_error error;
    int status;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
        for (size_t v = 0; v < fm_loader_n_views(loader); v++) {
            fm_view view;
            assert_int_equal(fm_loader_view(loader, v, &view), FM_OK);
            assert_int_equal(view.offset % 64, 0);
            memcpy(out[v] + n * sample_bytes[v], (uint8_t *)batch.images + view.offset,
                   batch.n * sample_bytes[v]);
        }
        for (uint32_t i = 0; i < batch.n; i++) assert_int_equal(batch.labels[i], 0);
        n += batch.n;
        fm_batch_release(&batch);
    }
    if (status != FM_END) fail_msg("next: %d %s", status, status < 0 ? error.message : "");
    assert_int_equal(n, N_FILES);
}

static size_t bytes_of(const fm_loader *loader, size_t number, size_t value_bytes) {
    fm_view view;
    assert_int_equal(fm_loader_view(loader, number, &view), FM_OK);
    return value_bytes * view.channels * view.height * view.width;
}

/* Compares each view of a loader with those of a loader of its own. */
static void compare(const fm_config *config, const fm_transform *views, size_t n_views) {
    const size_t value_bytes = views[0].dtype == FM_UINT8 ? 1 : 4;
    fm_loader *loader = test_loader_open(config);
    assert_int_equal(fm_loader_n_views(loader), n_views);
    uint8_t *made[FM_MAX_VIEWS];
    size_t sample_bytes[FM_MAX_VIEWS];
    for (size_t v = 0; v < n_views; v++) {
        made[v] = malloc(MOST_BYTES);
        sample_bytes[v] = bytes_of(loader, v, value_bytes);
        assert_true(sample_bytes[v] * N_FILES <= MOST_BYTES);
    }
    run(loader, 4, made, sample_bytes);
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.native_samples, N_FILES);
    assert_int_equal(stats.read_files, N_FILES);
    uint8_t *const wanted = malloc(MOST_BYTES);
    for (size_t v = 0; v < n_views; v++) {
        fm_op ops[64];
        fm_config own = *config;
        own.transform.ops = ops;
        own.transform.n_ops = alone(views, v, ops);
        own.n_more_views = 0;
        fm_loader *other = test_loader_open(&own);
        run(other, 4, &wanted, &sample_bytes[v]);
        assert_memory_equal(made[v], wanted, N_FILES * sample_bytes[v]);
        fm_draw one[64], two[64];
        fm_error error;
        const size_t n = views[v].n_ops, first = own.transform.n_ops - n;
        for (int64_t index = 0; index < N_FILES; index++) {
            assert_int_equal(fm_loader_draws(loader, v, 1, 2, index, 0, 99, 88, one, &error), 0);
            assert_int_equal(fm_loader_draws(other, 0, 1, 2, index, 0, 99, 88, two, &error), 0);
            assert_memory_equal(one, two + first, n * sizeof(*one));
        }
        fm_loader_close(&other);
        free(made[v]);
    }
    free(wanted);
    fm_loader_close(&loader);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void each_view_is_that_of_its_own_loader(void **state) {
    (void)state;
    for (int dtype = FM_UINT8; dtype <= FM_FLOAT32; dtype++) {
        const fm_transform views[] = {
            transform_of(color_ops, 6, (fm_dtype)dtype), transform_of(crop_ops, 2, (fm_dtype)dtype),
            transform_of(eval_ops, 2, (fm_dtype)dtype), transform_of(crop_ops, 2, (fm_dtype)dtype)};
        for (int layout = FM_NCHW; layout <= FM_NHWC; layout++)
            for (int reader = FM_READER_AUTO; reader <= FM_READER_PREAD; reader += 2)
                for (uint32_t batch_size = 1; batch_size <= 9; batch_size += 4) {
                    fm_transform all[4];
                    memcpy(all, views, sizeof(all));
                    for (int i = 0; i < 4; i++) all[i].layout = (fm_layout)layout;
                    fm_config config = config_of(fm_folder_source(folder), all, 4);
                    config.reader = (fm_reader_kind)reader;
                    config.batch_size = batch_size;
                    compare(&config, all, 4);
                }
    }
}

static void as_many_views_as_allowed(void **state) {
    (void)state;
    fm_transform views[FM_MAX_VIEWS];
    for (int i = 0; i < FM_MAX_VIEWS; i++) views[i] = transform_of(crop_ops, 2, FM_UINT8);
    const fm_config config = config_of(fm_folder_source(folder), views, FM_MAX_VIEWS);
    compare(&config, views, FM_MAX_VIEWS);
}

static void a_second_epoch_allocates_nothing(void **state) {
    (void)state;
    const fm_transform views[] = {transform_of(color_ops, 6, FM_UINT8),
                                  transform_of(crop_ops, 2, FM_UINT8)};
    fm_config config = config_of(fm_folder_source(folder), views, 2);
    config.n_threads = 1;
    fm_loader *loader = test_loader_open(&config);
    uint8_t *const out[] = {malloc(MOST_BYTES), malloc(MOST_BYTES)};
    const size_t sample_bytes[] = {bytes_of(loader, 0, 1), bytes_of(loader, 1, 1)};
    fm_stats before, after;
    /* The first epochs grow the scratch memory for the largest image. */
    for (uint32_t number = 0; number < 2; number++) run(loader, 7, out, sample_bytes);
    fm_loader_stats(loader, &before);
    run(loader, 7, out, sample_bytes);
    fm_loader_stats(loader, &after);
    assert_int_equal(after.allocations, before.allocations);
    for (int i = 0; i < 2; i++) free(out[i]);
    fm_loader_close(&loader);
}

/* The caller fills in all views of a sample that can't be decoded. */
static void rejected_samples_have_a_place_for_each_view(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof(path), "%s/bad", images.dir);
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(file, "no image", 8), 8);
    close(file);
    const fm_transform views[] = {transform_of(color_ops, 6, FM_UINT8),
                                  transform_of(crop_ops, 2, FM_UINT8),
                                  transform_of(eval_ops, 2, FM_UINT8)};
    fm_config config = config_of((fm_source){0}, views, 3);
    config.fallback = true;
    fm_loader *loader = test_loader_open(&config);
    fm_error error;
    const fm_epoch epoch = {.seed = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    char good[128];
    snprintf(good, sizeof(good), "%s/0000.jpg", images.dir);
    const fm_sample samples[] = {{.index = 0, .path = good},
                                 {.index = 1, .path = path, .label = 3}};
    assert_int_equal(fm_loader_submit(loader, samples, 2, &error), FM_OK);
    fm_batch batch;
    void *out;
    size_t n_bytes;
    assert_int_equal(fm_loader_fallback_view(loader, 0, &out, &n_bytes), FM_ERR_STATE);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
    fm_fallback fallback;
    assert_int_equal(fm_loader_fallback(loader, &fallback), FM_OK);
    for (size_t v = 0; v < 3; v++) {
        assert_int_equal(fm_loader_fallback_view(loader, v, &out, &n_bytes), FM_OK);
        assert_int_equal(n_bytes, bytes_of(loader, v, 1));
        if (v == 0) assert_ptr_equal(out, fallback.out);
        memset(out, 100 + (int)v, n_bytes);
    }
    assert_int_equal(fm_loader_fallback_view(loader, 3, &out, &n_bytes), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_fallback_view(loader, 0, NULL, &n_bytes), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
    assert_int_equal(batch.labels[1], 3);
    for (size_t v = 0; v < 3; v++) {
        fm_view view;
        assert_int_equal(fm_loader_view(loader, v, &view), FM_OK);
        const size_t bytes = bytes_of(loader, v, 1);
        const uint8_t *const second = (uint8_t *)batch.images + view.offset + bytes;
        for (size_t i = 0; i < bytes; i++) assert_int_equal(second[i], 100 + v);
    }
    fm_batch_release(&batch);
    fm_loader_close(&loader);
    unlink(path);
}

/* The decoded part of an image is in memory, of which a thread takes a limited amount. */
static void too_large_parts_are_rejected(void **state) {
    (void)state;
    static const fm_op whole = {.kind = FM_OP_RESIZE, .height = 8, .width = 8};
    static const fm_op middle = {.kind = FM_OP_CENTER_CROP, .height = 30, .width = 20};
    char path[128], command[512];
    snprintf(path, sizeof(path), "%s/large", images.dir);
    snprintf(command, sizeof(command), "%s size=7000x4200 sampling=420 noise=0 %s",
             getenv("FM_MKJPEG"), path);
    test_run(command);
    const fm_sample sample = {.index = 0, .path = path};
    const fm_op *const ops[] = {&middle, &whole};
    for (int i = 0; i < 2; i++) {
        const fm_transform views[] = {transform_of(&middle, 1, FM_UINT8),
                                      transform_of(ops[i], 1, FM_UINT8)};
        fm_config config = config_of((fm_source){0}, views, 2);
        config.read_ahead_bytes = 4 << 20;
        fm_loader *loader = test_loader_open(&config);
        fm_error error;
        fm_stats before, after;
        fm_loader_stats(loader, &before);
        const fm_epoch epoch = {.seed = 1};
        assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
        assert_int_equal(fm_loader_submit(loader, &sample, 1, &error), FM_OK);
        fm_batch batch;
        const int status = fm_loader_next(loader, -1, &batch, &error);
        assert_int_equal(status, i ? FM_ERR_LIMIT : FM_OK);
        if (status) assert_non_null(strstr(error.message, "7000 x 4200 pixels"));
        if (!status) fm_batch_release(&batch);
        fm_loader_stats(loader, &after);
        const uint64_t n_bytes = after.allocated_bytes - before.allocated_bytes;
        if (n_bytes > 32u << 20) fail_msg("%llu bytes", (unsigned long long)n_bytes);
        fm_loader_close(&loader);
    }
    unlink(path);
}

static void refuse(const fm_config *config, int status, const char *text) {
    fm_loader *loader = NULL;
    fm_error error;
    assert_int_equal(fm_loader_open(&loader, config, &error), status);
    assert_null(loader);
    if (!strstr(error.message, text)) fail_msg("%s", error.message);
}

static void wrong_views_are_refused(void **state) {
    (void)state;
    fm_transform views[FM_MAX_VIEWS];
    for (int i = 0; i < FM_MAX_VIEWS; i++) views[i] = transform_of(crop_ops, 2, FM_UINT8);
    fm_config config = test_config(fm_folder_source(folder));
    config.transform = views[0];
    config.more_views = views;
    config.n_more_views = FM_MAX_VIEWS;
    refuse(&config, FM_ERR_ARGUMENT, "at most 15");
    config.n_more_views = 1;
    config.more_views = NULL;
    refuse(&config, FM_ERR_ARGUMENT, "more_views");
    config.more_views = views;
    views[0].dtype = FM_FLOAT32;
    refuse(&config, FM_ERR_ARGUMENT, "more_views[0] has another dtype");
    views[0] = views[1];
    views[0].layout = FM_NHWC;
    refuse(&config, FM_ERR_ARGUMENT, "layout");
    views[0] = views[1];
    const fm_op wrong = {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 2};
    views[0].ops = &wrong;
    views[0].n_ops = 1;
    refuse(&config, FM_ERR_ARGUMENT, "p");
    fm_op many[64];
    for (int i = 0; i < 64; i++) many[i] = (fm_op){.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5};
    many[0] = crop_ops[0];
    for (int i = 0; i < 4; i++) views[i] = transform_of(many, 64, FM_UINT8);
    config.n_more_views = 4;
    refuse(&config, FM_ERR_ARGUMENT, "ops; the limit is 255");
    config.n_more_views = 1;
    config.memory_budget_bytes = 1 << 20;
    refuse(&config, FM_ERR_BUDGET, "memory_budget");
    const uint8_t px[12] = {0};
    fm_array array = {.data = px, .n_rows = 1, .row_bytes = 12, .stride_bytes = 12};
    config = test_config((fm_source){0});
    config.arrays = (fm_arrays){.list = &array, .n = 1};
    config.more_views = views;
    config.n_more_views = 1;
    refuse(&config, FM_ERR_ARGUMENT, "arrays");
}

static void one_view_is_a_view(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = test_loader_open(&config);
    fm_view view;
    fm_draw draws[2];
    fm_error error;
    assert_int_equal(fm_loader_n_views(loader), 1);
    assert_int_equal(fm_loader_view(loader, 0, &view), FM_OK);
    assert_true(view.offset == 0 && view.channels == 3 && view.height == 24 && view.width == 32);
    assert_int_equal(fm_loader_view(loader, 1, &view), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_view(loader, 0, NULL), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_view(NULL, 0, &view), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_n_views(NULL), 0);
    assert_int_equal(fm_loader_draws(loader, 1, 1, 1, 0, 0, 9, 9, draws, &error), FM_ERR_ARGUMENT);
    fm_loader_close(&loader);
}

/* ---- views of files of their own ------------------------------------------------------------- */

#define N_SUBMITTED 23

/* Submits batches of samples whose index is drawn twice at times, each with n_files files, and
 * copies their views to out[]. */
static void run_submitted(const fm_config *config, size_t n_files, const fm_streams *streams,
                          uint8_t *const *out, const size_t *sample_bytes) {
    fm_loader *loader = test_loader_open(config);
    fm_error error;
    const fm_epoch epoch = {.seed = 9, .number = 4, .streams = streams, .n_streams = !!streams};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    for (size_t n = 0; n < N_SUBMITTED;) {
        fm_sample samples[3 * 8];
        char paths[8][128];
        size_t n_batch = 0;
        for (; n_batch < config->batch_size && n + n_batch < N_SUBMITTED; n_batch++) {
            const int64_t index = (int64_t)(n + n_batch) * 7 % 10;
            snprintf(paths[n_batch], sizeof(*paths), "%s/%04d.jpg", images.dir, (int)index);
            for (size_t file = 0; file < n_files; file++)
                samples[n_batch * n_files + file] =
                    (fm_sample){.index = index, .path = paths[n_batch], .label = file ? 5 : 77};
        }
        assert_int_equal(fm_loader_submit(loader, samples, n_batch * n_files, &error), FM_OK);
        fm_batch batch;
        const int status = fm_loader_next(loader, -1, &batch, &error);
        if (status) fail_msg("next: %d %s", status, status < 0 ? error.message : "");
        assert_int_equal(batch.n, n_batch);
        for (size_t v = 0; v < fm_loader_n_views(loader); v++) {
            fm_view view;
            assert_int_equal(fm_loader_view(loader, v, &view), FM_OK);
            memcpy(out[v] + n * sample_bytes[v], (uint8_t *)batch.images + view.offset,
                   n_batch * sample_bytes[v]);
        }
        for (size_t i = 0; i < n_batch; i++) assert_int_equal(batch.labels[i], 77);
        fm_batch_release(&batch);
        n += n_batch;
    }
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.samples, N_SUBMITTED);
    assert_int_equal(stats.native_samples, N_SUBMITTED * n_files);
    assert_int_equal(stats.read_files, N_SUBMITTED * n_files);
    fm_loader_close(&loader);
}

/* If the files of a sample are the same file, its views are those of one decode. */
static void views_may_have_files_of_their_own(void **state) {
    (void)state;
    const fm_transform views[] = {transform_of(color_ops, 6, FM_UINT8),
                                  transform_of(crop_ops, 2, FM_UINT8),
                                  transform_of(eval_ops, 2, FM_UINT8)};
    const size_t sample_bytes[] = {3 * 24 * 32, 3 * 20 * 28, 3 * 16 * 48};
    fm_streams streams = {.torch.next = FM_MT19937_N, .python.next = FM_MT19937_N,
                          .numpy.next = FM_MT19937_N};
    for (uint32_t i = 0; i < FM_MT19937_N; i++)
        streams.torch.words[i] = streams.python.words[i] = 2654435761u * (i + 1);
    for (uint32_t batch_size = 1; batch_size <= 8; batch_size += 7)
        for (int has_streams = 0; has_streams < 2; has_streams++) {
            uint8_t *made[2][3];
            for (int v = 0; v < 6; v++) made[v / 3][v % 3] = calloc(1, MOST_BYTES);
            fm_config config = config_of((fm_source){0}, views, 3);
            config.batch_size = batch_size;
            run_submitted(&config, 1, has_streams ? &streams : NULL, made[0], sample_bytes);
            config.views_have_files = true;
            run_submitted(&config, 3, has_streams ? &streams : NULL, made[1], sample_bytes);
            for (int v = 0; v < 3; v++) {
                assert_memory_equal(made[0][v], made[1][v], N_SUBMITTED * sample_bytes[v]);
                free(made[0][v]);
                free(made[1][v]);
            }
        }
}

/* The caller fills in the view of a file that can't be decoded, and that one only. */
static void each_rejected_file_has_the_place_of_its_view(void **state) {
    (void)state;
    const fm_transform views[] = {transform_of(color_ops, 6, FM_UINT8),
                                  transform_of(crop_ops, 2, FM_UINT8)};
    fm_config config = config_of((fm_source){0}, views, 2);
    config.fallback = config.views_have_files = true;
    fm_loader *loader = test_loader_open(&config);
    fm_error error;
    const fm_epoch epoch = {.seed = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    char good[128];
    snprintf(good, sizeof(good), "%s/0000.jpg", images.dir);
    const fm_sample bad = {.index = 1, .data = "no image", .data_bytes = 8};
    const fm_sample samples[] = {{.index = 0, .path = good}, {.index = 0, .path = good},
                                 {.index = 1, .path = good}, bad,
                                 bad,                        {.index = 1, .path = good}};
    assert_int_equal(fm_loader_submit(loader, samples, 6, &error), FM_OK);
    fm_batch batch;
    for (uint32_t position = 3; position < 5; position++) {
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_FALLBACK);
        fm_fallback fallback;
        assert_int_equal(fm_loader_fallback(loader, &fallback), FM_OK);
        const size_t v = position % 2;
        assert_int_equal(fallback.position, position);
        assert_int_equal(fallback.occurrence, position == 4);
        assert_int_equal(fallback.out_bytes, bytes_of(loader, v, 1));
        void *out;
        size_t n_bytes;
        assert_int_equal(fm_loader_fallback_view(loader, v, &out, &n_bytes), FM_OK);
        assert_true(out == fallback.out && n_bytes == fallback.out_bytes);
        assert_int_equal(fm_loader_fallback_view(loader, 1 - v, &out, &n_bytes), FM_ERR_ARGUMENT);
        memset(fallback.out, 100 + (int)v, n_bytes);
        assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
    }
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
    for (size_t v = 0; v < 2; v++) {
        fm_view view;
        assert_int_equal(fm_loader_view(loader, v, &view), FM_OK);
        const size_t bytes = bytes_of(loader, v, 1), number = v ? 1 : 2;
        const uint8_t *const made = (uint8_t *)batch.images + view.offset + number * bytes;
        for (size_t i = 0; i < bytes; i++) assert_int_equal(made[i], 100 + v);
    }
    fm_batch_release(&batch);
    fm_loader_close(&loader);
}

static void wrong_files_are_refused(void **state) {
    (void)state;
    const fm_transform views[] = {transform_of(crop_ops, 2, FM_UINT8),
                                  transform_of(crop_ops, 2, FM_UINT8)};
    fm_config config = config_of(fm_folder_source(folder), views, 2);
    config.views_have_files = true;
    refuse(&config, FM_ERR_ARGUMENT, "without a source");
    config = config_of((fm_source){0}, views, 1);
    config.views_have_files = true;
    refuse(&config, FM_ERR_ARGUMENT, "several views");
    config = config_of((fm_source){0}, views, 2);
    config.views_have_files = true;
    config.batch_size = 2;
    fm_loader *loader = test_loader_open(&config);
    fm_error error;
    const fm_epoch epoch = {.seed = 1};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    fm_sample samples[6];
    for (int i = 0; i < 6; i++) samples[i] = (fm_sample){.index = i / 2, .path = "missing"};
    const size_t wrong[] = {0, 1, 3, 5, 6};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(fm_loader_submit(loader, samples, wrong[i], &error), FM_ERR_ARGUMENT);
        assert_non_null(strstr(error.message, "2 of each index"));
    }
    samples[3].index = 2;
    assert_int_equal(fm_loader_submit(loader, samples, 4, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "the indices 1 and 2"));
    assert_int_equal(fm_loader_n_pending(loader), 0);
    fm_loader_close(&loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_view_is_that_of_its_own_loader),
        cmocka_unit_test(as_many_views_as_allowed),
        cmocka_unit_test(a_second_epoch_allocates_nothing),
        cmocka_unit_test(rejected_samples_have_a_place_for_each_view),
        cmocka_unit_test(too_large_parts_are_rejected),
        cmocka_unit_test(wrong_views_are_refused),
        cmocka_unit_test(one_view_is_a_view),
        cmocka_unit_test(views_may_have_files_of_their_own),
        cmocka_unit_test(each_rejected_file_has_the_place_of_its_view),
        cmocka_unit_test(wrong_files_are_refused),
    };
    return cmocka_run_group_tests_name("views", tests, set_up, tear_down);
}
