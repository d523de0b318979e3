/* The reader's HTTP back end, against a server on this machine that does what can go wrong. */
#define _GNU_SOURCE
#include "http_server.h"
#include "read/remote.h"
#include "reads.h"

#define N_BYTES 100000

static test_http *server;

static int set_up(void **state) {
    (void)state;
    /* A proxy would not find this machine's server. */
    setenv("no_proxy", "*", 1);
    server = test_http_open();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_http_close(server);
    return 0;
}

static void put(const char *path, uint32_t seed, size_t n_bytes) {
    uint8_t *const bytes = malloc(n_bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = test_byte(seed, i);
    test_http_put(server, path, bytes, n_bytes);
    free(bytes);
}

typedef struct session {
    test_reads reads;
    fm_remote *remote;
} session;

static fm_remote_config quick_config(void) {
    fm_remote_config config;
    fm_remote_config_init(&config);
    return config;
}

static void session_open(session *self, const fm_remote_config *settings, fm_reader_config config) {
    fm_error error;
    if (fm_remote_open(&self->remote, settings, &error)) fail_msg("%s", error.message);
    config.remote = self->remote;
    config.depth = settings->max_requests;
    test_reads_open(&self->reads, config, NULL);
}

static void session_close(session *self) {
    test_reads_close(&self->reads);
    fm_remote_close(self->remote);
}

typedef struct get {
    fm_read read;
    char url[256], why[224];
} get;

static void get_init(get *self, const char *path) {
    *self = (get){0};
    snprintf(self->url, sizeof(self->url), "http://127.0.0.1:%d%s", test_http_port(server), path);
    self->read = (fm_read){.path = self->url, .why = self->why, .why_bytes = sizeof(self->why)};
}

/* Reads an object, or a range of it, and waits. */
static get get_range(session *self, const char *path, uint64_t offset, uint64_t n_bytes) {
    get one;
    get_init(&one, path);
    one.read.path = one.url;
    one.read.why = one.why;
    one.read.offset_bytes = offset;
    one.read.range_bytes = n_bytes;
    submit_one(self->reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self->reads), &one.read);
    return one;
}

static void check_whole(session *self, const char *path, uint32_t seed, uint64_t n_bytes) {
    get one = get_range(self, path, 0, 0);
    if (one.read.error) fail_msg("%s: error %d: %s", path, one.read.error, one.why);
    test_check_file(&one.read, seed, n_bytes);
    fm_reader_return(self->reads.reader, &one.read);
}

static void reads_objects(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    static const size_t sizes[] = {0, 1, 100, 16384, 200000, 5000000};
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        put("/object", i, sizes[i]);
        check_whole(&self, "/object", i, sizes[i]);
    }
    session_close(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_objects, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
