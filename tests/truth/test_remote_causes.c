/*
 * What the wait for objects on a server consists of, where the server's delays are known: most of
 * the wait must be in the part that the server causes. Other processes can only add to the other
 * parts, so one try of a few must do.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "feedmill/remote.h"
#include "folder.h"
#include "http_server.h"
#include "wait_causes.h"

#define MOST_TRIES 5
#define MOST_SAMPLES 4

static test_folder images;
static test_http *server;
static uint8_t file[1 << 16];
static size_t file_bytes;
static char url[128];

static int set_up(void **state) {
    (void)state;
    setenv("no_proxy", "*", 1); /* a proxy would not find this machine's server */
    images = test_folder_open(1);
    char path[128];
    snprintf(path, sizeof(path), "%s/0000.jpg", images.dir);
    FILE *const in = fopen(path, "rb");
    assert_non_null(in);
    file_bytes = fread(file, 1, sizeof(file), in);
    fclose(in);
    server = test_http_open();
    test_http_put(server, "/0.jpg", file, file_bytes);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/0.jpg", test_http_port(server));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_http_close(server);
    test_folder_close(&images);
    return 0;
}

/* The first step of a new loader, whose batch has n samples of that path. */
static fm_step wait_for(const char *path, uint32_t n, uint32_t max_requests) {
    fm_remote *remote = NULL;
    fm_remote_config settings;
    fm_error error;
    fm_batch batch;
    fm_step step;
    fm_stats stats;
    fm_sample samples[MOST_SAMPLES];
    fm_remote_config_init(&settings);
    settings.max_requests = max_requests;
    if (fm_remote_open(&remote, &settings, &error)) fail_msg("%s", error.message);
    fm_config config = test_config((fm_source){.n_samples = n});
    config.batch_size = n;
    config.remote = remote;
    fm_loader *loader = test_loader_open(&config);
    for (uint32_t i = 0; i < n; i++) samples[i] = (fm_sample){.index = i, .path = path};
    const fm_epoch epoch = {.seed = 1};
    if (fm_loader_start(loader, &epoch, &error) || fm_loader_submit(loader, samples, n, &error) ||
        fm_loader_next(loader, -1, &batch, &error))
        fail_msg("%s", error.message);
    assert_int_equal(fm_loader_steps(loader, 0, &step, 1), 1);
    fm_loader_stats(loader, &stats);
    fm_batch_release(&batch);
    fm_loader_close(&loader);
    fm_remote_close(&remote);
    assert_int_equal(wait_causes_ns(&step.causes), step.data_wait_ns);
    assert_int_equal(storage_parts_ns(&step.storage), step.causes.storage_ns);
    assert_memory_equal(&stats.storage, &step.storage, sizeof(step.storage));
    return step;
}

static bool is_most(const fm_step *step, uint64_t part_ns) {
#define FM_X(name, meaning) \
    if (step->storage.name) \
        print_message("  %-24s %8.3f ms\n", #name, (double)step->storage.name / 1e6);
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
    return part_ns * 2 > step->causes.storage_ns && part_ns * 2 > step->data_wait_ns;
}

/* Waits for objects that the server answers as the script says. */
#define CHECK(script, n, max_requests, part)                        \
    do {                                                            \
        bool is_right = false;                                      \
        for (int i = 0; i < MOST_TRIES && !is_right; i++) {         \
            test_http_script(server, "/0.jpg", script);             \
            const fm_step step = wait_for(url, n, max_requests);    \
            is_right = is_most(&step, step.storage.storage_##part); \
        }                                                           \
        assert_true(is_right);                                      \
    } while (0)

static void a_late_response_is_the_first_byte(void **state) {
    (void)state;
    CHECK("delay=300", 1, 4, first_byte_ns);
}

static void a_slow_response_is_the_transfer(void **state) {
    (void)state;
    char script[32];
    snprintf(script, sizeof(script), "drip=%zu", file_bytes - 15);
    CHECK(script, 1, 4, transfer_ns);
}

static void errors_are_retries(void **state) {
    (void)state;
    CHECK("status=500,retry-after=1", 1, 4, retry_ns);
}

static void refusals_are_throttling(void **state) {
    (void)state;
    CHECK("status=503,retry-after=1", 1, 4, throttled_ns);
}

/* Three of the four reads wait for their turn, and so for others' responses. */
static void queued_reads_wait_for_what_the_others_do(void **state) {
    (void)state;
    CHECK("delay=100 delay=100 delay=100 delay=100", 4, 1, first_byte_ns);
}

static void files_are_local(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof(path), "%s/0000.jpg", images.dir);
    const fm_step step = wait_for(path, 1, 4);
    assert_int_equal(step.storage.storage_local_ns, step.causes.storage_ns);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void must(bool ok, const char *what) {
    if (!ok) fail_msg("%s: %s", what, strerror(errno));
}

static uint32_t late_us; /* how long accept_late() waits */

/* Serves the image once, to the second connection: the first one fills the queue of connections, so
 * that the kernel drops others until it is accepted. */
static void *accept_late(void *argument) {
    const int listener = *(const int *)argument;
    char text[4096];
    usleep(late_us);
    const int first = accept(listener, NULL, NULL), second = accept(listener, NULL, NULL);
    const ssize_t n = read(second, text, sizeof(text));
    snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", file_bytes);
    const bool is_sent = n > 0 && write(second, text, strlen(text)) == (ssize_t)strlen(text) &&
                         write(second, file, file_bytes) == (ssize_t)file_bytes;
    close(first);
    close(second);
    return is_sent ? argument : NULL;
}

static fm_step connect_late(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int filler = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(!bind(listener, (struct sockaddr *)&address, size), "bind");
    must(!listen(listener, 0), "listen");
    must(!getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    must(!connect(filler, (struct sockaddr *)&address, size), "connect");
    char late_url[64];
    snprintf(late_url, sizeof(late_url), "http://127.0.0.1:%d/0.jpg", ntohs(address.sin_port));
    pthread_t thread;
    void *is_sent = NULL;
    assert_int_equal(pthread_create(&thread, NULL, accept_late, (void *)&listener), 0);
    const fm_step step = wait_for(late_url, 1, 4);
    pthread_join(thread, &is_sent);
    assert_non_null(is_sent);
    close(filler);
    close(listener);
    return step;
}

static void a_late_connection_is_connecting(void **state) {
    (void)state;
    bool is_right = false;
    for (int i = 0; i < MOST_TRIES && !is_right; i++) {
        late_us = 200000u << i; /* a slow machine needs longer to begin its connection */
        const fm_step step = connect_late();
        is_right = is_most(&step, step.storage.storage_connect_ns);
    }
    assert_true(is_right);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_response_is_the_first_byte),
        cmocka_unit_test(a_slow_response_is_the_transfer),
        cmocka_unit_test(errors_are_retries),
        cmocka_unit_test(refusals_are_throttling),
        cmocka_unit_test(queued_reads_wait_for_what_the_others_do),
        cmocka_unit_test(files_are_local),
        cmocka_unit_test(a_late_connection_is_connecting),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
