/*
 * The device stage on a real GPU. The consumer uses a CUDA runtime of its own, as torch does.
 * Skipped, with the reason, without a GPU.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <time.h>

#include "device_job.h"

#define N_FILES 22
#define BATCH 4
#define N_BATCHES 6
#define N_TARGETS 3

static test_folder folder;
static fm_folder *source;
static int n_gpus;

static void check(cudaError_t result, const char *what) {
    if (result != cudaSuccess) fail_msg("%s: %s", what, cudaGetErrorString(result));
}

static uint64_t sum_of(const void *bytes, size_t n_bytes) {
    const unsigned char *const b = bytes;
    uint64_t sum = 1469598103934665603u;
    for (size_t i = 0; i < n_bytes; i++) sum = (sum ^ b[i]) * 1099511628211u;
    return sum;
}

/* ---- the consumer ---------------------------------------------------------------------------- */

typedef struct consumer {
    cudaStream_t stream, side; /* side NULL: none */
    fm_loader *loader;
    fm_output targets[N_TARGETS];
    size_t n_added;
    uint8_t *results; /* on the host: what the stream saw, batch after batch */
    size_t result_bytes;
} consumer;

static fm_config config_of(fm_device_kind kind, fm_dtype dtype, fm_layout layout) {
    fm_config config = test_device_config(source, kind, dtype, layout);
    config.batch_size = BATCH;
    config.prefetch_batches = 2;
    return config;
}

static void start(fm_loader *loader, size_t n_samples) {
    static int64_t order[BATCH * 1000];
    for (size_t i = 0; i < n_samples; i++) order[i] = (int64_t)(i % N_FILES);
    const fm_epoch epoch = {.order = order, .n_order = n_samples, .seed = 5};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
}

static void open_consumer(consumer *user, const fm_config *config, size_t n_batches) {
    fm_error error;
    if (fm_loader_open(&user->loader, config, &error)) fail_msg("open: %s", error.message);
    size_t image_bytes, label_bytes;
    fm_loader_output_bytes(user->loader, &image_bytes, &label_bytes);
    check(cudaSetDevice(config->device.index), "cudaSetDevice");
    for (int i = 0; i < N_TARGETS; i++) {
        void *images, *labels;
        check(cudaMalloc(&images, image_bytes), "cudaMalloc");
        check(cudaMalloc(&labels, label_bytes), "cudaMalloc");
        user->targets[i] = (fm_output){.images = images,
                                       .image_bytes = image_bytes,
                                       .labels = labels,
                                       .label_bytes = label_bytes,
                                       .stream = user->stream,
                                       .user = &user->targets[i]};
    }
    user->result_bytes = image_bytes + label_bytes;
    void *results;
    check(cudaMallocHost(&results, n_batches * user->result_bytes), "cudaMallocHost");
    memset(results, 0, n_batches * user->result_bytes);
    user->results = results;
}

static void close_consumer(consumer *user) {
    fm_loader_close(&user->loader);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (int i = 0; i < N_TARGETS; i++) {
        check(cudaFree(user->targets[i].images), "cudaFree");
        check(cudaFree(user->targets[i].labels), "cudaFree");
    }
    check(cudaFreeHost(user->results), "cudaFreeHost");
    check(cudaSetDevice(0), "cudaSetDevice");
}

static int add_output(consumer *user, fm_error *error) {
    const int status =
        fm_loader_add_output(user->loader, &user->targets[user->n_added % N_TARGETS], error);
    if (!status) user->n_added++;
    return status;
}

/* What the consumer's stream finds there, and then overwrites. */
static void use(consumer *user, const fm_batch *batch, bool on_side) {
    fm_output *const target = batch->output_user;
    const cudaStream_t stream = on_side ? user->side : user->stream;
    const size_t image_bytes = batch->n * target->image_bytes / BATCH;
    const size_t label_bytes = batch->n * sizeof(int64_t);
    uint8_t *const place = user->results + batch->number * user->result_bytes;
    fm_error error;
    if (on_side && fm_loader_wait(user->loader, stream, &error)) fail_msg("%s", error.message);
    check(cudaMemcpyAsync(place, target->images, image_bytes, cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(place + target->image_bytes, target->labels, label_bytes,
                          cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
    check(cudaMemsetAsync(target->images, 0xee, image_bytes, stream), "cudaMemsetAsync");
    check(cudaMemsetAsync(target->labels, 0xee, label_bytes, stream), "cudaMemsetAsync");
    if (!on_side) return;
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(event, stream), "cudaEventRecord");
    check(cudaStreamWaitEvent(user->stream, event, 0), "cudaStreamWaitEvent");
    check(cudaEventDestroy(event), "cudaEventDestroy");
}

static int take(consumer *user, size_t n_batches, fm_error *error) {
    int status = FM_OK;
    for (size_t i = 0; i < n_batches; i++) {
        while (fm_loader_n_outputs(user->loader) < 2 && !status) status = add_output(user, error);
        fm_batch batch;
        if (!status) status = fm_loader_next(user->loader, -1, &batch, error);
        if (status) break;
        use(user, &batch, user->side && i % 2);
    }
    return status;
}

static void CUDART_CB sleep_20_ms(void *nothing) {
    (void)nothing;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* The stream is busy for so long, before anything that is queued from now on. */
static void spin(cudaStream_t stream) {
    check(cudaLaunchHostFunc(stream, sleep_20_ms, NULL), "cudaLaunchHostFunc");
}

/* All batches, against those of a loader without a device. */
static void compare(consumer *user, fm_dtype dtype, fm_layout layout, size_t n_samples) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const fm_config config = config_of(FM_DEVICE_NONE, dtype, layout);
    fm_loader *loader = test_loader_open(&config);
    start(loader, n_samples);
    fm_batch batch;
    while (fm_loader_next(loader, -1, &batch, NULL) == FM_OK) {
        const uint8_t *const got = user->results + batch.number * user->result_bytes;
        const size_t image_bytes = user->targets[0].image_bytes;
        const size_t n = batch.n * image_bytes / BATCH;
        assert_int_equal(sum_of(got, n), sum_of(batch.images, n));
        assert_memory_equal(got + image_bytes, batch.labels, batch.n * sizeof(int64_t));
        fm_batch_release(&batch);
    }
    fm_loader_close(&loader);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void epoch(fm_dtype dtype, fm_layout layout, int device, bool own_stream, bool with_side) {
    consumer user = {0};
    check(cudaSetDevice(device), "cudaSetDevice");
    if (own_stream) check(cudaStreamCreate(&user.stream), "cudaStreamCreate");
    if (with_side) check(cudaStreamCreate(&user.side), "cudaStreamCreate");
    /* The loader must not need the caller's current device to be its own. */
    check(cudaSetDevice(0), "cudaSetDevice");
    fm_config config = config_of(FM_DEVICE_CUDA, dtype, layout);
    config.device.index = device;
    open_consumer(&user, &config, N_BATCHES);
    start(user.loader, N_FILES);
    fm_error error;
    if (take(&user, N_BATCHES + 1, &error) != FM_END) fail_msg("next: %s", error.message);
    compare(&user, dtype, layout, N_FILES);
    close_consumer(&user);
    if (own_stream) check(cudaStreamDestroy(user.stream), "cudaStreamDestroy");
    if (with_side) check(cudaStreamDestroy(user.side), "cudaStreamDestroy");
}

static void batches_equal_the_cpus(void **state) {
    (void)state;
    static const fm_dtype dtypes[] = {FM_UINT8, FM_FLOAT32, FM_FLOAT16, FM_BFLOAT16};
    for (int i = 0; i < 8; i++)
        epoch(dtypes[i / 2], i % 2 ? FM_NHWC : FM_NCHW, (int)(i % n_gpus), i % 3 != 0, i % 4 == 1);
}

static void dropped_batches_leave_their_memory_alone(void **state) {
    (void)state;
    consumer user = {0};
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NCHW);
    check(cudaStreamCreate(&user.stream), "cudaStreamCreate");
    open_consumer(&user, &config, N_BATCHES);
    void *seen;
    const size_t n = user.targets[0].image_bytes;
    check(cudaMallocHost(&seen, n), "cudaMallocHost");
    for (int round = 0; round < 10; round++) {
        start(user.loader, N_FILES);
        spin(user.stream);
        fm_error error;
        if (take(&user, 2, &error)) fail_msg("next: %s", error.message);
        if (fm_loader_stop(user.loader, &error)) fail_msg("stop: %s", error.message);
        for (int i = 0; i < N_TARGETS; i++) {
            check(cudaMemsetAsync(user.targets[i].images, round, n, user.stream), "cudaMemset");
            check(cudaMemcpyAsync(seen, user.targets[i].images, n, cudaMemcpyDeviceToHost,
                                  user.stream),
                  "cudaMemcpyAsync");
            check(cudaStreamSynchronize(user.stream), "cudaStreamSynchronize");
            for (size_t at = 0; at < n; at++) assert_int_equal(((uint8_t *)seen)[at], round);
        }
    }
    check(cudaFreeHost(seen), "cudaFreeHost");
    start(user.loader, N_FILES);
    fm_error error;
    if (take(&user, N_BATCHES + 1, &error) != FM_END) fail_msg("next: %s", error.message);
    compare(&user, FM_FLOAT32, FM_NCHW, N_FILES);
    close_consumer(&user);
    check(cudaStreamDestroy(user.stream), "cudaStreamDestroy");
}

static void a_capture_is_refused(void **state) {
    (void)state;
    consumer user = {0};
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NCHW);
    check(cudaStreamCreate(&user.stream), "cudaStreamCreate");
    open_consumer(&user, &config, N_BATCHES);
    start(user.loader, N_FILES);
    fm_error error;
    assert_int_equal(add_output(&user, &error), FM_OK);
    check(cudaStreamBeginCapture(user.stream, cudaStreamCaptureModeGlobal), "begin");
    assert_int_equal(add_output(&user, &error), FM_ERR_STATE);
    assert_non_null(strstr(error.message, "captured"));
    fm_batch batch;
    assert_int_equal(fm_loader_next(user.loader, -1, &batch, &error), FM_ERR_STATE);
    cudaGraph_t graph;
    /* It was not broken by what was refused, nor by the loader's own thread. */
    check(cudaStreamEndCapture(user.stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    if (take(&user, N_BATCHES + 1, &error) != FM_END) fail_msg("next: %s", error.message);
    compare(&user, FM_FLOAT32, FM_NCHW, N_FILES);
    close_consumer(&user);
    check(cudaStreamDestroy(user.stream), "cudaStreamDestroy");
}

static void a_thousand_batches_behind_long_kernels(void **state) {
    (void)state;
    consumer user = {0};
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT16, FM_NHWC);
    check(cudaStreamCreate(&user.stream), "cudaStreamCreate");
    check(cudaStreamCreate(&user.side), "cudaStreamCreate");
    open_consumer(&user, &config, 1000);
    start(user.loader, (size_t)BATCH * 1000);
    fm_error error = {.message = ""};
    for (int i = 0; i < 10; i++) {
        spin(user.stream);
        if (take(&user, 100, &error)) fail_msg("next: %s", error.message);
    }
    compare(&user, FM_FLOAT16, FM_NHWC, (size_t)BATCH * 1000);
    close_consumer(&user);
    check(cudaStreamDestroy(user.stream), "cudaStreamDestroy");
    check(cudaStreamDestroy(user.side), "cudaStreamDestroy");
}

static void two_loaders_at_once(void **state) {
    (void)state;
    const fm_config config = config_of(FM_DEVICE_CUDA, FM_FLOAT32, FM_NCHW);
    consumer users[2] = {{0}, {0}};
    fm_error error;
    for (int i = 0; i < 2; i++) {
        check(cudaStreamCreate(&users[i].stream), "cudaStreamCreate");
        open_consumer(&users[i], &config, N_BATCHES);
        start(users[i].loader, N_FILES);
    }
    for (int batch = 0; batch < N_BATCHES; batch++)
        for (int i = 0; i < 2; i++)
            if (take(&users[i], 1, &error)) fail_msg("next: %s", error.message);
    for (int i = 0; i < 2; i++) {
        compare(&users[i], FM_FLOAT32, FM_NCHW, N_FILES);
        close_consumer(&users[i]);
        check(cudaStreamDestroy(users[i].stream), "cudaStreamDestroy");
    }
}

int main(void) {
    fm_error error;
    if (fm_device_count(FM_DEVICE_CUDA, &n_gpus, &error)) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    folder = test_folder_open(N_FILES);
    source = test_source_open(&folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_equal_the_cpus),
        cmocka_unit_test(dropped_batches_leave_their_memory_alone),
        cmocka_unit_test(a_capture_is_refused),
        cmocka_unit_test(a_thousand_batches_behind_long_kernels),
        cmocka_unit_test(two_loaders_at_once),
    };
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_folder_close(&source);
    test_folder_close(&folder);
    return n_failed;
}
