/* The reader's HTTP back end with a disk cache: what is fetched once, versions, and faults. */
#define _GNU_SOURCE
#include "http_get.h"
#include "read/disk_cache.h"
#include "read/readers.h"
#include "read/remote.h"
#include "reads.h"

#define N_BYTES 100000

static test_http *server;
static char folder[256];
static size_t n_seen; /* requests, by expect_requests() */

static int set_up(void **state) {
    (void)state;
    setenv("no_proxy", "*", 1);
    snprintf(folder, sizeof(folder), "/tmp/fm_disk_cache_XXXXXX");
    assert_non_null(mkdtemp(folder));
    server = test_http_open();
    n_seen = 0;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char command[300];
    test_http_close(server);
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

static void put(const char *path, uint32_t seed, size_t n_bytes) {
    test_http_put_made(server, path, seed, n_bytes);
}

typedef struct session {
    test_reads reads;
    fm_remote *remote;
    fm_disk_cache *cache;
} session;

static void session_open(session *self, bool check) {
    fm_error error;
    fm_remote_config settings;
    fm_remote_config_init(&settings);
    settings.max_attempts = 3;
    if (fm_remote_open(&self->remote, &settings, &error)) fail_msg("%s", error.message);
    fm_disk_cache_config config;
    fm_disk_cache_config_init(&config);
    config.path = folder;
    config.limit_bytes = 64 << 20;
    config.check = check;
    if (fm_disk_cache_open(&self->cache, &config, &error)) fail_msg("%s", error.message);
    test_reads_open(
        &self->reads,
        (fm_reader_config){.remote = self->remote, .disk_cache = self->cache, .depth = 16}, NULL);
}

/* What was read is then stored. */
static void session_close(session *self) {
    test_reads_close(&self->reads);
    fm_disk_cache_close(&self->cache);
    fm_remote_close(&self->remote);
}

/* Reads a range, or, for 0 bytes, the object of N_BYTES. Returns the error. */
static int read_part(session *self, const char *path, uint32_t seed, uint64_t offset,
                     uint64_t n_bytes, const char *etag, fm_read_object *first) {
    get one;
    get_init(&one, server, path);
    one.read.offset_bytes = offset;
    one.read.range_bytes = n_bytes;
    one.read.etag = etag;
    one.read.first = first;
    submit_one(self->reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self->reads), &one.read);
    if (one.read.error) return one.read.error;
    assert_int_equal(one.read.n_bytes, n_bytes ? n_bytes : N_BYTES);
    for (uint64_t i = 0; i < one.read.n_bytes; i++)
        if (one.read.bytes[i] != test_byte(seed, offset + i)) fail_msg("%s: byte %d", path, (int)i);
    fm_reader_return(self->reads.reader, &one.read);
    return 0;
}

static void read_whole(session *self, const char *path, uint32_t seed) {
    assert_int_equal(read_part(self, path, seed, 0, 0, NULL, NULL), 0);
}

static void expect_requests(size_t n) {
    const size_t now = test_http_n_requests(server);
    assert_int_equal(now - n_seen, n);
    n_seen = now;
}

static void objects_are_fetched_once(void **state) {
    (void)state;
    session self;
    put("/a", 1, N_BYTES);
    put("/b", 2, N_BYTES);
    for (int round = 0; round < 3; round++) {
        session_open(&self, false);
        for (int again = 0; again < 2; again++) {
            read_whole(&self, "/a", 1);
            read_whole(&self, "/b", 2);
            assert_int_equal(read_part(&self, "/a", 1, 5, 100, NULL, NULL), 0);
        }
        expect_requests(round ? 0 : 3);
        fm_reader_stats stats;
        fm_reader_stats_get(self.reads.reader, &stats);
        assert_int_equal(stats.n_disk_hits, round ? 6 : 3);
        assert_int_equal(stats.n_disk_misses, round ? 0 : 3);
        assert_int_equal(stats.n_files, 6);
        session_close(&self);
    }
}

static void objects_without_etag_are_stored_by_name(void **state) {
    (void)state;
    session self;
    put("/a", 1, N_BYTES);
    session_open(&self, false);
    test_http_script(server, "/a", "etag=none,chunked");
    read_whole(&self, "/a", 1);
    read_whole(&self, "/a", 1);
    expect_requests(1);
    session_close(&self);
    /* With `check` there is nothing to ask for, so it is not used, and not stored. */
    session_open(&self, true);
    test_http_script(server, "/a", "weak weak weak");
    read_whole(&self, "/a", 1);
    read_whole(&self, "/a", 1);
    expect_requests(2);
    session_close(&self);
}

static void checked_objects_are_asked_for(void **state) {
    (void)state;
    session self;
    put("/a", 1, N_BYTES);
    session_open(&self, true);
    read_whole(&self, "/a", 1);
    expect_requests(1);
    test_http_script(server, "/a", "status=500 ok");
    read_whole(&self, "/a", 1);
    expect_requests(2);
    assert_int_equal(test_http_count(server, "If-None-Match: \"v"), 2);
    put("/a", 7, N_BYTES);
    read_whole(&self, "/a", 7);
    expect_requests(1);
    session_close(&self);
    session_open(&self, true);
    const size_t n_before = test_http_count(server, "If-None-Match");
    read_whole(&self, "/a", 7); /* the new version was stored in place of the old one */
    fm_reader_stats stats;
    fm_reader_stats_get(self.reads.reader, &stats);
    assert_int_equal(stats.n_disk_hits, 1);
    assert_int_equal(stats.fetched_bytes, 0);
    assert_int_equal(test_http_count(server, "If-None-Match"), n_before + 1);
    assert_int_equal(test_http_count(server, "If-Match"), 0);
    session_close(&self);
}

static void wished_versions_are_kept_apart(void **state) {
    (void)state;
    session self;
    put("/a", 1, N_BYTES);
    for (int check = 0; check < 2; check++) {
        session_open(&self, check);
        test_http_script(server, "/a", "etag=one");
        if (!check) read_whole(&self, "/a", 1);
        expect_requests(check ? 0 : 1);
        assert_int_equal(read_part(&self, "/a", 1, 0, 0, "\"one\"", NULL), 0);
        expect_requests(0); /* it is the wished one, so nobody is asked */
        /* Until it is written, another version of it may not be stored. */
        session_close(&self);
        session_open(&self, check);
        /* Another one is wished than is there; the server has it. */
        test_http_script(server, "/a", "etag=two");
        assert_int_equal(read_part(&self, "/a", 1, 0, 0, "\"two\"", NULL), 0);
        expect_requests(1);
        session_close(&self);
        session_open(&self, check);
        assert_int_equal(read_part(&self, "/a", 1, 0, 0, "\"two\"", NULL), 0);
        expect_requests(0);
        test_http_script(server, "/a", "etag=two");
        assert_int_equal(read_part(&self, "/a", 1, 0, 0, "\"one\"", NULL), FM_READ_REMOTE);
        expect_requests(1);
        test_http_script(server, "/a", "etag=one");
        assert_int_equal(read_part(&self, "/a", 1, 0, 0, "\"one\"", NULL), 0);
        expect_requests(1);
        session_close(&self);
    }
    assert_int_equal(test_http_count(server, "If-None-Match"), 0);
}

/* A cached range of an earlier version is not mixed with ranges of the present one. */
static void ranges_are_of_one_version(void **state) {
    (void)state;
    session self;
    put("/pack", 1, N_BYTES);
    session_open(&self, false);
    assert_int_equal(read_part(&self, "/pack", 1, 100, 50, NULL, NULL), 0);
    session_close(&self);
    put("/pack", 2, N_BYTES);
    expect_requests(1);
    /* What is read first decides: here the server. */
    session_open(&self, false);
    assert_int_equal(read_part(&self, "/pack", 2, 500, 50, NULL, NULL), 0);
    assert_int_equal(read_part(&self, "/pack", 2, 100, 50, NULL, NULL), 0);
    expect_requests(2);
    session_close(&self);
    put("/pack", 3, N_BYTES);
    /* And here the cache, after which the server's version is an error. */
    session_open(&self, false);
    assert_int_equal(read_part(&self, "/pack", 2, 100, 50, NULL, NULL), 0);
    assert_int_equal(read_part(&self, "/pack", 3, 900, 50, NULL, NULL), FM_READ_REMOTE);
    assert_int_equal(read_part(&self, "/pack", 2, 500, 50, NULL, NULL), 0);
    expect_requests(1);
    session_close(&self);
    /* With `check` the server is asked before the first range, and what it has is read. */
    session_open(&self, true);
    assert_int_equal(read_part(&self, "/pack", 3, 100, 50, NULL, NULL), 0);
    assert_int_equal(read_part(&self, "/pack", 3, 500, 50, NULL, NULL), 0);
    assert_int_equal(read_part(&self, "/pack", 3, 100, 50, NULL, NULL), 0);
    expect_requests(2);
    session_close(&self);
    session_open(&self, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read_part(&self, "/pack", 3, 100, 50, NULL, NULL), 0);
    assert_int_equal(read_part(&self, "/pack", 3, 500, 50, NULL, NULL), 0);
    expect_requests(1);
    session_close(&self);
}

static void first_ranges_are_described(void **state) {
    (void)state;
    session self;
    put("/pack", 1, N_BYTES);
    for (int round = 0; round < 2; round++) {
        fm_read_object first = {.etag = "x"};
        session_open(&self, false);
        test_http_script(server, "/pack", "etag=one");
        assert_int_equal(read_part(&self, "/pack", 1, 0, 50, NULL, &first), 0);
        assert_string_equal(first.etag, "\"one\"");
        assert_int_equal(first.object_bytes, N_BYTES);
        expect_requests(1 - round);
        session_close(&self);
    }
    fm_read_object first = {.etag = "x"};
    session_open(&self, true);
    test_http_script(server, "/pack", "etag=one");
    assert_int_equal(read_part(&self, "/pack", 1, 0, 50, NULL, &first), 0);
    assert_string_equal(first.etag, "\"one\"");
    assert_int_equal(first.object_bytes, N_BYTES);
    expect_requests(1);
    session_close(&self);
}

static void failures_are_not_stored(void **state) {
    (void)state;
    session self;
    put("/a", 1, N_BYTES);
    session_open(&self, false);
    test_http_script(server, "/a", "status=404 reset=5000,etag=none reset=500,etag=none");
    assert_int_equal(read_part(&self, "/a", 1, 0, 0, NULL, NULL), FM_READ_REMOTE);
    read_whole(&self, "/a", 1);
    read_whole(&self, "/a", 1);
    expect_requests(4);
    session_close(&self);
}

/* Many reads at once, of objects that are there, that must be asked for, and that are not there. */
static void many_at_once(void **state) {
    (void)state;
    enum { N = 300 };
    static get gets[N];
    char path[32];
    for (int i = 0; i < N; i++) {
        snprintf(path, sizeof(path), "/%d", i);
        put(path, (uint32_t)i, 500 + 331 * (size_t)i);
    }
    for (int round = 0; round < 4; round++) {
        session self;
        session_open(&self, round == 3);
        test_http_random(server, (uint32_t)round, round == 1 ? 10 : 0);
        const int n = round == 0 ? N / 2 : N;
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof(path), "/%d", i);
            get_init(&gets[i], server, path);
            gets[i].read.next = i + 1 < n ? &gets[i + 1].read : NULL;
        }
        fm_reader_submit(self.reads.reader, &gets[0].read);
        for (int i = 0; i < n; i++) {
            fm_read *const read = test_reads_pop(&self.reads);
            assert_non_null(read);
            const size_t k = (size_t)((get *)read - gets);
            if (read->error) fail_msg("%s: %s", gets[k].url, gets[k].why);
            test_check_file(read, (uint32_t)k, 500 + 331 * k);
            fm_reader_return(self.reads.reader, read);
        }
        session_close(&self);
    }
}

static void cancel_and_close_end_all(void **state) {
    (void)state;
    enum { N = 100 };
    static get gets[N];
    put("/a", 1, N_BYTES);
    for (int round = 0; round < 30; round++) {
        session self;
        session_open(&self, round % 2);
        if (round < 2) read_whole(&self, "/a", 1);
        test_http_script(server, "/slow", "delay=300000");
        const size_t n_before = test_reads_n_done(&self.reads);
        for (int i = 0; i < N; i++) {
            get_init(&gets[i], server, i % 2 ? "/slow" : "/a");
            gets[i].read.next = i + 1 < N ? &gets[i + 1].read : NULL;
        }
        fm_reader_submit(self.reads.reader, &gets[0].read);
        if (round % 3) usleep(200 * (useconds_t)round);
        if (round % 3 < 2) {
            fm_reader_cancel_queued(self.reads.reader);
            assert_true(test_reads_wait(&self.reads, n_before + N));
        }
        session_close(&self);
        assert_int_equal(test_reads_n_done(&self.reads), n_before + N);
    }
}

#define TEST(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(objects_are_fetched_once),      TEST(objects_without_etag_are_stored_by_name),
        TEST(checked_objects_are_asked_for), TEST(wished_versions_are_kept_apart),
        TEST(ranges_are_of_one_version),     TEST(first_ranges_are_described),
        TEST(failures_are_not_stored),       TEST(many_at_once),
        TEST(cancel_and_close_end_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
