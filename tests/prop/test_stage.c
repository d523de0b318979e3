/* A loader with FM_DEVICE_HOST: rules of the device stage that need no GPU. */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "device_job.h"
#include "wait_causes.h"

#define N_FILES 22
#define BATCH 4
#define N_BATCHES 6
#define MAX_TARGETS 40
#define OUT_PX (24 * 32)

static test_folder folder;
static fm_folder *source;
static fm_output targets[MAX_TARGETS];

static fm_config config_of(fm_device_kind kind, fm_dtype dtype, fm_layout layout) {
    fm_config config = test_device_config(source, kind, dtype, layout);
    config.batch_size = BATCH;
    return config;
}

static void start(fm_loader *loader, uint32_t number) {
    static int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    const fm_epoch epoch = {.order = order, .n_order = N_FILES, .number = number, .seed = 5};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
}

static void alloc_targets(const fm_loader *loader) {
    size_t image_bytes, label_bytes;
    fm_loader_output_bytes(loader, &image_bytes, &label_bytes);
    for (int i = 0; i < MAX_TARGETS; i++)
        targets[i] = (fm_output){.images = aligned_alloc(64, (image_bytes + 63) / 64 * 64),
                                 .image_bytes = image_bytes,
                                 .labels = calloc(label_bytes / 8 + 1, 8),
                                 .label_bytes = label_bytes,
                                 .user = &targets[i]};
}

static void free_targets(void) {
    for (int i = 0; i < MAX_TARGETS; i++) {
        free(targets[i].images);
        free(targets[i].labels);
    }
}

static int next_on(fm_loader *loader, int target, fm_batch *batch, fm_error *error) {
    const int status = fm_loader_add_output(loader, &targets[target], error);
    return status ? status : fm_loader_next(loader, -1, batch, error);
}

/* ---- batches --------------------------------------------------------------------------------- */

static size_t value_bytes(fm_dtype dtype) {
    return dtype == FM_UINT8 ? 1 : dtype == FM_FLOAT32 ? 4 : 2;
}

static void assert_epoch_equals(fm_dtype dtype, fm_layout layout, bool convert, uint32_t n_ahead) {
    const fm_config cpu_config = config_of(FM_DEVICE_NONE, dtype, layout);
    fm_config config = config_of(FM_DEVICE_HOST, dtype, layout);
    config.device.convert = convert;
    fm_loader *cpu = test_loader_open(&cpu_config), *loader = test_loader_open(&config);
    assert_int_equal(fm_loader_converts(loader), convert && dtype != FM_UINT8);
    alloc_targets(loader);
    for (uint32_t number = 0; number < 2; number++) {
        start(cpu, number);
        start(loader, number);
        fm_error error = {.message = ""};
        uint32_t n_added = 0;
        for (uint32_t i = 0; i < N_BATCHES; i++) {
            fm_batch want, got;
            assert_int_equal(fm_loader_next(cpu, -1, &want, &error), FM_OK);
            for (; n_added < i + n_ahead; n_added++)
                assert_int_equal(
                    fm_loader_add_output(loader, &targets[n_added % MAX_TARGETS], &error), FM_OK);
            assert_int_equal(fm_loader_n_outputs(loader), n_ahead);
            if (fm_loader_next(loader, -1, &got, &error)) fail_msg("%s", error.message);
            assert_ptr_equal(got.output_user, &targets[i]);
            assert_ptr_equal(got.images, targets[i].images);
            assert_null(got.borrowed);
            assert_int_equal(got.n, want.n);
            assert_int_equal(got.dtype, dtype);
            assert_int_equal(got.layout, layout);
            assert_int_equal(got.number, want.number);
            assert_memory_equal(got.images, want.images, want.n * 3 * OUT_PX * value_bytes(dtype));
            assert_memory_equal(got.labels, want.labels, want.n * sizeof(int64_t));
            fm_batch_release(&want);
            fm_batch_release(&got);
        }
        fm_batch batch;
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_END);
    }
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.h2d_batches, 2 * N_BATCHES);
    const size_t slot_value = fm_loader_converts(loader) ? 1 : value_bytes(dtype);
    assert_int_equal(stats.h2d_bytes, 2 * N_FILES * (3 * OUT_PX * slot_value + sizeof(int64_t)));
    assert_int_equal(stats.pinned_bytes, stats.n_slots * stats.slot_bytes);
    assert_int_equal(wait_causes_ns(&stats.causes), stats.data_wait_ns);
    fm_loader_close(&cpu);
    fm_loader_close(&loader);
    free_targets();
}

static void batches_equal_the_cpus(void **state) {
    (void)state;
    static const fm_dtype dtypes[] = {FM_UINT8, FM_FLOAT32, FM_FLOAT16, FM_BFLOAT16};
    for (int i = 0; i < 16; i++)
        assert_epoch_equals(dtypes[i / 4], i & 1 ? FM_NHWC : FM_NCHW, i & 2, 1 + (uint32_t)i % 3);
}

static void erased_images_are_the_cpus(void **state) {
    (void)state;
    const fm_op ops[] = {{.kind = FM_OP_RESIZE, .height = 24, .width = 32},
                         {.kind = FM_OP_RANDOM_ERASING,
                          .p = 1,
                          .scale = {0.1, 0.3},
                          .ratio = {0.5, 2},
                          .values = {0.5, 0.25, 0.125}}};
    fm_config config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    config.transform.ops = ops;
    fm_loader *loader = test_loader_open(&config);
    assert_false(fm_loader_converts(loader));
    fm_loader_close(&loader);
}

static int64_t rows_of_numbers[N_FILES][3];

static void arrays_cross_as_they_are(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES * 3; i++) rows_of_numbers[i / 3][i % 3] = i * 11;
    const fm_array list[] = {
        {.data = rows_of_numbers, .n_rows = N_FILES, .row_bytes = sizeof(*rows_of_numbers)}};
    fm_config config = config_of(FM_DEVICE_HOST, FM_UINT8, FM_NCHW);
    config.source = (fm_source){0};
    config.arrays = (fm_arrays){.list = list, .n = 1};
    config.transform.ops = NULL;
    config.transform.n_ops = 0;
    fm_loader *loader = test_loader_open(&config);
    alloc_targets(loader);
    assert_int_equal(targets[0].label_bytes, 0);
    start(loader, 0);
    for (int i = 0; i < N_BATCHES; i++) {
        fm_batch batch;
        fm_error error = {.message = ""};
        if (next_on(loader, i, &batch, &error)) fail_msg("%s", error.message);
        assert_memory_equal(batch.images, rows_of_numbers[i * BATCH],
                            batch.n * sizeof(*rows_of_numbers));
        assert_null(batch.labels);
    }
    fm_loader_close(&loader);
    free_targets();
}

/* ---- samples that the caller finishes, or that fail -------------------------------------------
 */

/* Submits one batch, the second sample of which is no image. */
static void submit_damaged(fm_loader *loader) {
    static const char text[] = "no image";
    fm_sample samples[2] = {{0}, {.index = 1, .label = 5, .data = text, .data_bytes = 8}};
    const fm_source of = fm_folder_source(source);
    assert_int_equal(of.locate(of.user, 0, &samples[0]), FM_OK);
    samples[0].label = 4;
    assert_int_equal(fm_loader_submit(loader, samples, 2, NULL), FM_OK);
}

static void a_sample_may_be_finished_by_the_caller(void **state) {
    (void)state;
    fm_config config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    config.fallback = true;
    fm_loader *loader = test_loader_open(&config);
    alloc_targets(loader);
    assert_int_equal(fm_loader_start(loader, &(fm_epoch){.seed = 1}, NULL), FM_OK);
    submit_damaged(loader);
    fm_batch batch;
    fm_error error;
    assert_int_equal(next_on(loader, 0, &batch, &error), FM_FALLBACK);
    fm_fallback fallback;
    assert_int_equal(fm_loader_fallback(loader, &fallback), FM_OK);
    /* He gives bytes, and gets what the transform makes of them. */
    assert_int_equal(fallback.dtype, FM_UINT8);
    assert_int_equal(fallback.layout, FM_NHWC);
    assert_int_equal(fallback.out_bytes, 3 * OUT_PX);
    memset(fallback.out, 51, fallback.out_bytes);
    assert_int_equal(fm_loader_fallback_done(loader, FM_OK, NULL), FM_OK);
    if (fm_loader_next(loader, -1, &batch, &error)) fail_msg("%s", error.message);
    const float *const values = batch.images;
    const float *const second = values + 3 * OUT_PX;
    assert_true(second[0] == 51 / 255.0f);
    assert_true(second[OUT_PX] == 51 / 255.0f - 0.25f);
    assert_true(second[2 * OUT_PX + 5] == 51 / 255.0f / 0.5f);
    assert_int_equal(batch.labels[1], 5);
    fm_loader_close(&loader);
    free_targets();
}

static void a_failed_batch_takes_no_target(void **state) {
    (void)state;
    const fm_config config = config_of(FM_DEVICE_HOST, FM_UINT8, FM_NCHW);
    fm_loader *loader = test_loader_open(&config);
    alloc_targets(loader);
    assert_int_equal(fm_loader_start(loader, &(fm_epoch){.seed = 1}, NULL), FM_OK);
    submit_damaged(loader);
    fm_sample sample = {0};
    const fm_source of = fm_folder_source(source);
    assert_int_equal(of.locate(of.user, 0, &sample), FM_OK);
    assert_int_equal(fm_loader_submit(loader, &sample, 1, NULL), FM_OK);
    fm_batch batch;
    fm_error error;
    assert_int_equal(next_on(loader, 0, &batch, &error), FM_ERR_FORMAT);
    assert_int_equal(fm_loader_n_outputs(loader), 1);
    if (fm_loader_next(loader, -1, &batch, &error)) fail_msg("%s", error.message);
    assert_ptr_equal(batch.output_user, &targets[0]);
    fm_loader_close(&loader);
    free_targets();
}

/* ---- calls that are refused ------------------------------------------------------------------ */

static void without_a_device_no_output_is_added(void **state) {
    (void)state;
    const fm_config config = config_of(FM_DEVICE_NONE, FM_UINT8, FM_NCHW);
    fm_loader *loader = test_loader_open(&config);
    fm_error error;
    size_t image_bytes = 1, label_bytes = 1;
    fm_loader_output_bytes(loader, &image_bytes, &label_bytes);
    assert_int_equal(image_bytes + label_bytes, 0);
    start(loader, 0);
    assert_int_equal(fm_loader_add_output(loader, &targets[0], &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_wait(loader, NULL, &error), FM_ERR_STATE);
    fm_loader_close(&loader);
}

static void outputs_have_rules(void **state) {
    (void)state;
    fm_config config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    config.prefetch_batches = 3;
    fm_loader *loader = test_loader_open(&config);
    alloc_targets(loader);
    fm_error error;
    fm_batch batch;
    assert_int_equal(fm_loader_add_output(loader, &targets[0], &error), FM_ERR_STATE);
    assert_non_null(strstr(error.message, "start one"));
    start(loader, 0);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_STATE);
    assert_non_null(strstr(error.message, "no output"));
    assert_int_equal(fm_loader_wait(loader, NULL, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_add_output(loader, NULL, &error), FM_ERR_ARGUMENT);
    fm_output wrong = targets[0];
    wrong.image_bytes--;
    assert_int_equal(fm_loader_add_output(loader, &wrong, &error), FM_ERR_ARGUMENT);
    wrong = targets[0];
    wrong.labels = NULL;
    assert_int_equal(fm_loader_add_output(loader, &wrong, &error), FM_ERR_ARGUMENT);
    wrong = targets[0];
    wrong.images = (char *)wrong.images + 1;
    assert_int_equal(fm_loader_add_output(loader, &wrong, &error), FM_ERR_ARGUMENT);
    for (int i = 0; i < 5; i++)
        assert_int_equal(fm_loader_add_output(loader, &targets[i], &error), FM_OK);
    assert_int_equal(fm_loader_add_output(loader, &targets[5], &error), FM_AGAIN);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
    assert_int_equal(fm_loader_wait(loader, NULL, &error), FM_OK);
    assert_int_equal(fm_loader_add_output(loader, &targets[5], &error), FM_OK);
    assert_int_equal(fm_loader_stop(loader, &error), FM_OK);
    assert_int_equal(fm_loader_n_outputs(loader), 0);
    assert_int_equal(fm_loader_wait(loader, NULL, &error), FM_ERR_STATE);
    fm_loader_close(&loader);
    free_targets();
}

static void *never(void *user, size_t bytes, void **handle) {
    (void)user, (void)bytes, (void)handle;
    return NULL;
}

static void never_free(void *user, void *memory, void *handle) {
    (void)user, (void)memory, (void)handle;
}

static void configurations_are_checked(void **state) {
    (void)state;
    fm_loader *loader;
    fm_error error;
    fm_config config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    config.device.index = 3;
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "index 3"));
    config = config_of((fm_device_kind)7, FM_FLOAT32, FM_NCHW);
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_ERR_ARGUMENT);
    config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    config.allocator = (fm_allocator){.alloc = never, .free = never_free};
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "allocator"));
    assert_null(loader);
}

/* ---- other ways out -------------------------------------------------------------------------- */

static void epochs_can_be_left_at_any_batch(void **state) {
    (void)state;
    const fm_config config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    for (int n_taken = 0; n_taken < 4; n_taken++) {
        fm_loader *loader = test_loader_open(&config);
        alloc_targets(loader);
        for (int round = 0; round < 20; round++) {
            start(loader, 0);
            for (int i = 0; i < n_taken; i++) {
                fm_batch batch;
                fm_error error;
                assert_int_equal(next_on(loader, i, &batch, &error), FM_OK);
            }
            assert_int_equal(fm_loader_add_output(loader, &targets[9], NULL), FM_OK);
        }
        fm_loader_close(&loader);
        free_targets();
    }
}

static void a_child_leaves_it_alone(void **state) {
    (void)state;
    const fm_config config = config_of(FM_DEVICE_HOST, FM_FLOAT32, FM_NCHW);
    fm_loader *loader = test_loader_open(&config);
    alloc_targets(loader);
    start(loader, 0);
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = fm_loader_add_output(loader, &targets[0], NULL) == FM_ERR_FORKED &&
                             fm_loader_wait(loader, NULL, NULL) == FM_ERR_FORKED;
        fm_loader_close(&loader);
        _exit(!refused);
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    fm_batch batch;
    assert_int_equal(next_on(loader, 0, &batch, NULL), FM_OK);
    fm_loader_close(&loader);
    free_targets();
}

int main(void) {
    folder = test_folder_open(N_FILES);
    source = test_source_open(&folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_equal_the_cpus),
        cmocka_unit_test(erased_images_are_the_cpus),
        cmocka_unit_test(arrays_cross_as_they_are),
        cmocka_unit_test(a_sample_may_be_finished_by_the_caller),
        cmocka_unit_test(a_failed_batch_takes_no_target),
        cmocka_unit_test(without_a_device_no_output_is_added),
        cmocka_unit_test(outputs_have_rules),
        cmocka_unit_test(configurations_are_checked),
        cmocka_unit_test(epochs_can_be_left_at_any_batch),
        cmocka_unit_test(a_child_leaves_it_alone),
    };
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_folder_close(&source);
    test_folder_close(&folder);
    return n_failed;
}
