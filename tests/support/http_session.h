/* Reads of objects of the tests' web server, for tests of the HTTP reader. */
#ifndef FM_TEST_HTTP_SESSION_H
#define FM_TEST_HTTP_SESSION_H

#include "http_get.h"
#include "read/remote.h"
#include "reads.h"

static test_http *server;

static inline int set_up(void **state) {
    (void)state;
    /* A proxy would not find this machine's server. */
    setenv("no_proxy", "*", 1);
    server = test_http_open();
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    test_http_close(server);
    return 0;
}

static inline void put(const char *path, uint32_t seed, size_t n_bytes) {
    test_http_put_made(server, path, seed, n_bytes);
}

typedef struct session {
    test_reads reads;
    fm_remote *remote;
} session;

static inline fm_remote_config quick_config(void) {
    fm_remote_config config;
    fm_remote_config_init(&config);
    return config;
}

static inline void session_open(session *self, const fm_remote_config *settings,
                                fm_reader_config config) {
    fm_error error;
    if (fm_remote_open(&self->remote, settings, &error)) fail_msg("%s", error.message);
    config.remote = self->remote;
    config.depth = settings->max_requests;
    test_reads_open(&self->reads, config, NULL);
}

static inline void session_close(session *self) {
    test_reads_close(&self->reads);
    fm_remote_close(&self->remote);
}

/* Reads an object, or a range of it, and waits. */
static inline get get_range(session *self, const char *path, uint64_t offset, uint64_t n_bytes) {
    get one;
    get_init(&one, server, path);
    one.read.path = one.url;
    one.read.why = one.why;
    one.read.offset_bytes = offset;
    one.read.range_bytes = n_bytes;
    submit_one(self->reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self->reads), &one.read);
    return one;
}

static inline void check_whole(session *self, const char *path, uint32_t seed, uint64_t n_bytes) {
    get one = get_range(self, path, 0, 0);
    if (one.read.error) fail_msg("%s: error %d: %s", path, one.read.error, one.why);
    test_check_file(&one.read, seed, n_bytes);
    fm_reader_return(self->reads.reader, &one.read);
}

static inline void check_range(const get *one, uint32_t seed) {
    if (one->read.error) fail_msg("%s: error %d: %s", one->url, one->read.error, one->why);
    assert_int_equal(one->read.n_bytes, one->read.range_bytes);
    for (uint64_t i = 0; i < one->read.n_bytes; i++)
        assert_int_equal(one->read.bytes[i], test_byte(seed, one->read.offset_bytes + i));
}

#define TEST_WITH_SERVER(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)

#endif
