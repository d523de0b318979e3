/*
 * Epochs with samples on a server, with and without faults: the pixels are those of the local
 * files, and a sample that can't be had is reported by name and cause.
 *
 *     test_remote_epochs RUNS [FIRST]   RUNS epochs with random faults, instead of all tests; run
 *                                       number FIRST, default 0, is the first one
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>

#include "feedmill/remote.h"
#include "feedmill/stats.h"
#include "folder.h"
#include "http_server.h"
#include "reads.h"

#define N_FILES 120

static test_folder images;
static test_http *server;
static char local[N_FILES][128], urls[N_FILES][128];
static bool is_remote[N_FILES];
static bool server_vanishes; /* at any time */
static uint8_t expected[N_FILES * TEST_SAMPLE_BYTES];

static int locate(void *user, int64_t index, fm_sample *out) {
    (void)user;
    *out = (fm_sample){.index = index, .path = is_remote[index] ? urls[index] : local[index]};
    return FM_OK;
}

static const fm_source source = {NULL, N_FILES, locate};

static void run_local(void) {
    const fm_config config = test_config(source);
    fm_loader *loader = test_loader_open(&config);
    memset(is_remote, 0, sizeof(is_remote));
    test_run_shuffled(loader, N_FILES, 1, 0, expected);
    fm_loader_close(&loader);
}

static void serve_file(int i) {
    static uint8_t bytes[1 << 20];
    FILE *const in = fopen(local[i], "rb");
    assert_non_null(in);
    const size_t n = fread(bytes, 1, sizeof(bytes), in);
    fclose(in);
    char path[32];
    snprintf(path, sizeof(path), "/%d.jpg", i);
    test_http_put(server, path, bytes, n);
    snprintf(urls[i], sizeof(urls[i]), "http://127.0.0.1:%d%s?token=hidden", test_http_port(server),
             path);
}

static int set_up_all(void **state) {
    (void)state;
    setenv("no_proxy", "*", 1); /* a proxy would not find this machine's server */
    images = test_folder_open(N_FILES);
    for (int i = 0; i < N_FILES; i++)
        snprintf(local[i], sizeof(local[i]), "%s/%04d.jpg", images.dir, i);
    run_local();
    return 0;
}

static int tear_down_all(void **state) {
    (void)state;
    test_folder_close(&images);
    return 0;
}

static int set_up(void **state) {
    (void)state;
    server = test_http_open();
    for (int i = 0; i < N_FILES; i++) {
        serve_file(i);
        is_remote[i] = i % 4 != 0;
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_http_close(server);
    return 0;
}

static void script_one(int i, const char *script) {
    char path[32];
    snprintf(path, sizeof(path), "/%d.jpg", i);
    test_http_script(server, path, script);
}

static void script_all(const char *script) {
    for (int i = 0; i < N_FILES; i++) script_one(i, script);
}

static fm_remote *remote_open(uint32_t stall_timeout_ms) {
    fm_remote *remote = NULL;
    fm_remote_config config;
    fm_error error;
    fm_remote_config_init(&config);
    config.stall_timeout_ms = stall_timeout_ms;
    config.max_attempts = 1000; /* on a busy machine, some end by the stall timeout */
    if (fm_remote_open(&remote, &config, &error)) fail_msg("%s", error.message);
    return remote;
}

static fm_loader *loader_open(fm_remote *remote, bool fallback) {
    fm_config config = test_config(source);
    config.remote = remote;
    config.fallback = fallback;
    return test_loader_open(&config);
}

static void check_pixels(const uint8_t *actual) {
    for (size_t i = 0; i < N_FILES; i++)
        if (memcmp(actual + i * TEST_SAMPLE_BYTES, expected + i * TEST_SAMPLE_BYTES,
                   TEST_SAMPLE_BYTES))
            fail_msg("sample %zu has other pixels", i);
}

static void pixels_are_those_of_files(void **state) {
    (void)state;
    static uint8_t actual[sizeof(expected)];
    fm_remote *remote = remote_open(500);
    fm_loader *loader = loader_open(remote, false);
    for (int faults = 0; faults <= 30; faults += 30) {
        test_http_random(server, 5, faults);
        memset(actual, 0, sizeof(actual));
        test_run_shuffled(loader, N_FILES, 1, 0, actual);
        check_pixels(actual);
    }
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.read_files, 2 * N_FILES);
    assert_non_null(strstr(stats.reader, "+http"));
    /* Three of four are remote; the second epoch had faults. */
    assert_true(stats.http_requests >= test_http_n_requests(server));
    assert_true(stats.http_requests > 2 * (N_FILES - N_FILES / 4));
    assert_int_equal(stats.http_requests,
                     2 * (N_FILES - N_FILES / 4) + stats.http_retries + stats.http_hedged);
    assert_true(stats.http_refused > 0 && stats.http_refused <= stats.http_retries);
    assert_true(stats.http_bytes > 0 && stats.http_retry_ns > 0);
    assert_true(stats.http_connect_ns > 0 && stats.http_first_byte_ns > 0);
    fm_loader_close(&loader);
    fm_remote_close(&remote);
}

static void files_need_no_more(void **state) {
    (void)state;
    fm_stats alone, with;
    fm_loader *loader = loader_open(NULL, false);
    fm_loader_stats(loader, &alone);
    fm_loader_close(&loader);
    fm_remote *remote = remote_open(20000);
    loader = loader_open(remote, false);
    fm_loader_stats(loader, &with);
    fm_loader_close(&loader);
    fm_remote_close(&remote);
    assert_null(strstr(alone.reader, "http"));
    assert_int_equal(alone.threads_created + 1, with.threads_created);
    assert_true(alone.allocated_bytes < with.allocated_bytes);
}

/* Every sample is delivered with its pixels or reported, once. How many were reported. */
static int run_with_fallback(fm_loader *loader, const char *why) {
    static uint8_t actual[sizeof(expected)];
    int64_t order[N_FILES];
    bool is_reported[N_FILES] = {false};
    int status, n_reported = 0;
    size_t n = 0;
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    const fm_epoch epoch = {.seed = 42, .number = 0, .order = order, .n_order = N_FILES};
    fm_error error;
    fm_batch batch;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
    while ((status = fm_loader_next(loader, -1, &batch, &error)) != FM_END) {
        if (status == FM_FALLBACK) {
            fm_fallback asked;
            char name[64];
            assert_int_equal(fm_loader_fallback(loader, &asked), FM_OK);
            /* The end of a body of unknown size can't be told from that of its connection. */
            if (asked.cause != FM_ERR_READ && !server_vanishes)
                fail_msg("cause %d: %s", asked.cause, error.message);
            assert_false(is_reported[asked.index]);
            is_reported[asked.index] = true;
            snprintf(name, sizeof(name), "/%d.jpg): ", (int)asked.index);
            if (!strstr(error.message, name) || !strstr(error.message, why) ||
                strstr(error.message, "hidden"))
                fail_msg("%s", error.message);
            memcpy(asked.out, expected + (size_t)asked.index * TEST_SAMPLE_BYTES,
                   TEST_SAMPLE_BYTES);
            n_reported++;
            assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
            continue;
        }
        if (status) fail_msg("next: %s", error.message);
        memcpy(actual + n * TEST_SAMPLE_BYTES, batch.images, batch.n * TEST_SAMPLE_BYTES);
        n += batch.n;
        fm_batch_release(&batch);
    }
    assert_int_equal(n, N_FILES);
    check_pixels(actual);
    return n_reported;
}

static void missing_objects_are_reported(void **state) {
    (void)state;
    fm_remote *remote = remote_open(20000);
    fm_loader *loader = loader_open(remote, true);
    int n = 0;
    for (int i = 1; i < N_FILES; i += 20, n++) script_one(i, "status=403,code=AccessDenied");
    assert_int_equal(run_with_fallback(loader, "HTTP 403 AccessDenied"), n);
    assert_int_equal(run_with_fallback(loader, ""), 0);
    fm_loader_close(&loader);
    /* Without a fallback the error is next()'s. */
    loader = loader_open(remote, false);
    script_one(1, "status=404,code=NoSuchKey");
    const int64_t order[] = {1};
    const fm_epoch epoch = {.order = order, .n_order = 1};
    fm_error error;
    fm_batch batch;
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_ERR_READ);
    assert_int_equal(error.index, 1);
    char message[256];
    snprintf(message, sizeof(message), "sample 1 (http://127.0.0.1:%d/1.jpg): HTTP 404 NoSuchKey",
             test_http_port(server));
    assert_string_equal(error.message, message);
    fm_loader_close(&loader);
    fm_remote_close(&remote);
}

static void names_need_a_remote(void **state) {
    (void)state;
    fm_loader *loader = loader_open(NULL, true);
    assert_int_equal(run_with_fallback(loader, "fm_config.remote"), N_FILES - N_FILES / 4);
    assert_int_equal(test_http_n_requests(server), 0);
    fm_loader_close(&loader);
}

static int n_runs = 4, first_run = 0;

/* The server is gone for a while, now and then, until the pipe's other end is closed. */
static void *vanish_main(void *pipe_end) {
    struct pollfd end = {.fd = *(const int *)pipe_end, .events = POLLIN};
    for (bool is_gone = true; !poll(&end, 1, 100); is_gone = !is_gone)
        test_http_vanish(server, is_gone);
    test_http_vanish(server, false);
    return NULL;
}

/* An epoch whose faults, number of attempts and connections depend on the run's number; in one of
 * four the server vanishes as well, and in one an object has another version now and then. */
static void run_random(int run) {
    fm_remote *remote = NULL;
    fm_remote_config config;
    fm_error error;
    fm_remote_config_init(&config);
    config.stall_timeout_ms = 300;
    config.give_up_ms = 2000 + 1000 * (uint32_t)(run % 7);
    config.max_attempts = 1 + (uint32_t)run % 5;
    config.max_requests = 1 + (uint32_t)run * 7 % 100;
    config.hedge_percent = run % 3 == 0 ? 100 : 2;
    if (fm_remote_open(&remote, &config, &error)) fail_msg("%s", error.message);
    fm_loader *loader = loader_open(remote, true);
    test_http_random(server, (uint32_t)run + 1, 10 + run * 13 % 80);
    if (run % 4 == 1) script_all("short=100,etag=a etag=b,reset=200");
    int ends[2];
    pthread_t vanishing;
    assert_int_equal(pipe(ends), 0);
    server_vanishes = run % 4 == 0;
    if (server_vanishes)
        assert_int_equal(pthread_create(&vanishing, NULL, vanish_main, &ends[0]), 0);
    run_with_fallback(loader, "");
    close(ends[1]);
    if (server_vanishes) pthread_join(vanishing, NULL);
    close(ends[0]);
    server_vanishes = false;
    /* The reader goes on. */
    test_http_random(server, 1, 0);
    script_all("");
    run_with_fallback(loader, "");
    fm_loader_close(&loader);
    fm_remote_close(&remote);
}

static void random_faults(void **state) {
    (void)state;
    const int n_files = test_count_entries("/proc/self/fd");
    const int n_threads = test_count_entries("/proc/self/task");
    for (int run = first_run; run < first_run + n_runs; run++) {
        fprintf(stderr, "run %d\n", run);
        run_random(run);
        /* The server's side of a connection is closed a moment later. */
        assert_true(test_counts_fall("/proc/self/fd", n_files));
        assert_true(test_counts_fall("/proc/self/task", n_threads));
    }
}

/* A server that answers nothing any more does not keep an epoch, or a loader, from its end. */
static void epochs_stop_in_the_middle(void **state) {
    (void)state;
    static uint8_t actual[sizeof(expected)];
    fm_remote *remote = remote_open(500);
    fm_loader *loader = loader_open(remote, false);
    static const char *const scripts[] = {"delay=100000", "stall=100", "status=503,retry-after=60",
                                          "reset=50 stall=0"};
    fm_error error;
    for (uint32_t round = 0; round < 6; round++) {
        int64_t order[N_FILES];
        for (int i = 0; i < N_FILES; i++) order[i] = i;
        for (int i = 0; i < N_FILES; i++) script_one(i, scripts[(uint32_t)i % 4]);
        const fm_epoch epoch = {.order = order, .n_order = N_FILES};
        if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
        usleep(round * 10000);
        if (fm_loader_stop(loader, &error)) fail_msg("stop: %s", error.message);
    }
    script_all("");
    test_run_shuffled(loader, N_FILES, 1, 0, actual);
    check_pixels(actual);
    test_http_random(server, 3, 100);
    const int64_t order[] = {1, 2, 3, 5, 6, 7};
    const fm_epoch epoch = {.order = order, .n_order = 6};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    fm_loader_close(&loader);
    fm_remote_close(&remote);
}

#define TEST(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)

int main(int n_arguments, char **arguments) {
    if (n_arguments > 1) {
        const struct CMUnitTest random[] = {TEST(random_faults)};
        n_runs = atoi(arguments[1]);
        first_run = n_arguments > 2 ? atoi(arguments[2]) : 0;
        return cmocka_run_group_tests(random, set_up_all, tear_down_all);
    }
    const struct CMUnitTest tests[] = {
        TEST(pixels_are_those_of_files),
        TEST(files_need_no_more),
        TEST(missing_objects_are_reported),
        TEST(names_need_a_remote),
        TEST(random_faults),
        TEST(epochs_stop_in_the_middle),
    };
    return cmocka_run_group_tests(tests, set_up_all, tear_down_all);
}
