/*
 * A batch whose samples are all rejected while copies to the device hold every buffer. The stub GPU
 * (support/stub_cudart.h) keeps the copies running until the test releases them.
 * FEEDMILL_CUDA_LIBRARY names the plug-in, which holds the stub.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>

#include "device_job.h"
#include "stub_cudart.h"

#define N_FILES 2
#define MAX_FILE_BYTES 100000

static const stub_cudart_calls *stub;
static test_folder folder;
static fm_folder *source;

typedef struct consumer {
    void *stream;
    fm_loader *loader;
} consumer;

static void open_consumer(consumer *user, bool fallback) {
    stub->reset(1, 0);
    stub->set_context(-1);
    user->stream = stub->stream(0);
    fm_config config = test_device_config(source, FM_DEVICE_CUDA, FM_UINT8, FM_NCHW);
    config.batch_size = 2;
    config.prefetch_batches = 2;
    config.max_file_bytes = MAX_FILE_BYTES;
    config.fallback = fallback;
    user->loader = test_loader_open(&config);
    assert_int_equal(fm_loader_start(user->loader, &(fm_epoch){.seed = 1}, NULL), FM_OK);
}

static void close_consumer(consumer *user) {
    fm_loader_close(&user->loader);
    stub->finish(0, user->stream);
    stub->check_leaks();
    assert_string_equal(stub->complaints(), "");
}

/* Adds an output for the next batch; each has separate memory. */
static void add_output(consumer *user) {
    size_t image_bytes, label_bytes;
    fm_loader_output_bytes(user->loader, &image_bytes, &label_bytes);
    const fm_output target = {.images = stub->memory(image_bytes),
                              .image_bytes = image_bytes,
                              .labels = stub->memory(label_bytes),
                              .label_bytes = label_bytes,
                              .stream = user->stream};
    fm_error error;
    if (fm_loader_add_output(user->loader, &target, &error))
        fail_msg("add_output: %s", error.message);
}

static void submit_good(consumer *user) {
    fm_sample samples[N_FILES] = {{0}};
    const fm_source of = fm_folder_source(source);
    for (int i = 0; i < N_FILES; i++) assert_int_equal(of.locate(of.user, i, &samples[i]), FM_OK);
    assert_int_equal(fm_loader_submit(user->loader, samples, N_FILES, NULL), FM_OK);
}

/* Both samples have more bytes than is allowed: they are rejected at once, without a slot. */
static void submit_rejected(consumer *user) {
    static const char bytes[MAX_FILE_BYTES + 1];
    const fm_sample samples[2] = {{.index = 0, .data = bytes, .data_bytes = sizeof(bytes)},
                                  {.index = 1, .data = bytes, .data_bytes = sizeof(bytes)}};
    assert_int_equal(fm_loader_submit(user->loader, samples, 2, NULL), FM_OK);
}

/* Receives as many batches as there are buffers; their copies do not end before stub->release(). */
static void hold_all_slots(consumer *user) {
    fm_stats stats;
    fm_loader_stats(user->loader, &stats);
    stub->hold(0, user->stream);
    for (uint64_t i = 0; i < stats.n_slots; i++) {
        fm_batch batch;
        fm_error error;
        submit_good(user);
        add_output(user);
        if (fm_loader_next(user->loader, -1, &batch, &error)) fail_msg("%s", error.message);
    }
}

/* The batch is not settled as long as it has no slot. */
static void expect_nothing_yet(consumer *user) {
    fm_batch batch;
    fm_error error;
    assert_int_equal(fm_loader_next(user->loader, 0, &batch, &error), FM_AGAIN);
}

static void the_caller_gets_a_place_to_finish_it(void **state) {
    (void)state;
    consumer user;
    open_consumer(&user, true);
    hold_all_slots(&user);
    submit_rejected(&user);
    add_output(&user);
    expect_nothing_yet(&user);
    stub->release();
    fm_batch batch;
    fm_error error;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fm_loader_next(user.loader, -1, &batch, &error), FM_FALLBACK);
        fm_fallback fallback;
        assert_int_equal(fm_loader_fallback(user.loader, &fallback), FM_OK);
        assert_int_equal(fallback.cause, FM_ERR_LIMIT);
        memset(fallback.out, 7, fallback.out_bytes);
        assert_int_equal(fm_loader_fallback_done(user.loader, FM_OK, &error), FM_OK);
    }
    if (fm_loader_next(user.loader, -1, &batch, &error)) fail_msg("%s", error.message);
    stub->finish(0, user.stream);
    assert_int_equal(((const uint8_t *)batch.images)[0], 7);
    close_consumer(&user);
}

static void its_error_waits_for_a_slot(void **state) {
    (void)state;
    consumer user;
    open_consumer(&user, false);
    hold_all_slots(&user);
    submit_rejected(&user);
    submit_good(&user);
    add_output(&user);
    expect_nothing_yet(&user);
    stub->release();
    fm_batch batch;
    fm_error error;
    assert_int_equal(fm_loader_next(user.loader, -1, &batch, &error), FM_ERR_LIMIT);
    assert_int_equal(error.index, 0);
    if (fm_loader_next(user.loader, -1, &batch, &error)) fail_msg("%s", error.message);
    close_consumer(&user);
}

/* An epoch that is stopped, or a loader that is closed, drops such a batch. */
static void it_can_be_dropped(void **state) {
    (void)state;
    for (int by_close = 0; by_close < 2; by_close++) {
        consumer user;
        open_consumer(&user, true);
        hold_all_slots(&user);
        submit_rejected(&user);
        fm_error error;
        if (!by_close) assert_int_equal(fm_loader_stop(user.loader, &error), FM_OK);
        stub->release();
        close_consumer(&user);
    }
}

int main(void) {
    const char *const path = getenv("FEEDMILL_CUDA_LIBRARY");
    void *const library = path ? dlopen(path, RTLD_NOW) : NULL;
    union {
        void *data;
        stub_cudart_function *function;
    } symbol = {.data = library ? dlsym(library, "stub_cudart") : NULL};
    if (!symbol.data) {
        fprintf(stderr, "FEEDMILL_CUDA_LIBRARY names no plug-in with the stub\n");
        return 2;
    }
    stub = symbol.function();
    folder = test_folder_open(N_FILES);
    source = test_source_open(&folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_caller_gets_a_place_to_finish_it),
        cmocka_unit_test(its_error_waits_for_a_slot),
        cmocka_unit_test(it_can_be_dropped),
    };
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_folder_close(&source);
    test_folder_close(&folder);
    return n_failed;
}
