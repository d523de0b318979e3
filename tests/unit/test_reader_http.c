/* The reader's HTTP back end, against a server on this machine that does what can go wrong. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>

#include "http_session.h"
#include "read/readers.h"

#define N_BYTES 100000
#define MS ((uint64_t)1000000)

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

/* ---- ranges ---------------------------------------------------------------------------------- */

static void reads_ranges(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/pack", 1, N_BYTES);
    static const struct {
        const char *script;
        uint64_t offset, n_bytes;
    } ranges[] = {
        {"ok", 0, 1},           {"ok", 1000, 50000},           {"ok", N_BYTES - 5, 5},
        {"ok", 0, N_BYTES},     {"no-range", 500, 100},        {"no-range", 90000, 10000},
        {"chunked", 500, 1000}, {"unsized,close", 700, 40000}, {"wrong-range", 10, 20},
        {"unsized", 0, 10},     {"chunked,no-range", 5, 10},   {"reset=300", 100, 60000},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
        test_http_script(server, "/pack", ranges[i].script);
        get one = get_range(&self, "/pack", ranges[i].offset, ranges[i].n_bytes);
        check_range(&one, 1);
        fm_reader_return(self.reads.reader, &one.read);
    }
    session_close(&self);
}

static void ranges_beyond_the_end_are_refused(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/pack", 1, N_BYTES);
    static const char *const scripts[] = {"ok", "no-range", "chunked,no-range"};
    for (size_t i = 0; i < 3; i++) {
        test_http_script(server, "/pack", scripts[i]);
        assert_int_equal(get_range(&self, "/pack", N_BYTES - 5, 6).read.error, FM_READ_ENDS_EARLY);
        test_http_script(server, "/pack", scripts[i]);
        assert_int_equal(get_range(&self, "/pack", N_BYTES + 1, 6).read.error, FM_READ_ENDS_EARLY);
    }
    assert_int_equal(test_http_n_requests(server), 6); /* none was tried again */
    session_close(&self);
}

/* A pack that is replaced while it is read does not yield bytes of both. */
static void changed_packs_are_noticed(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/pack", 1, N_BYTES);
    get one = get_range(&self, "/pack", 0, 100);
    check_range(&one, 1);
    fm_reader_return(self.reads.reader, &one.read);
    put("/pack", 2, N_BYTES);
    one = get_range(&self, "/pack", 100, 100);
    assert_int_equal(one.read.error, FM_READ_REMOTE);
    assert_string_equal(one.why, "the object has changed since it was first read");
    session_close(&self);
}

/* A range that is the first one takes the version that is there, and tells which it is. */
static void first_ranges_take_a_new_version(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    static const char *const scripts[] = {"etag=a", "etag=b", "etag=c,no-range", "weak"};
    static const char *const etags[] = {"\"a\"", "\"b\"", "\"c\"", ""};
    for (uint32_t i = 0; i < 4; i++) {
        fm_read_object object;
        get one;
        put("/pack", i, N_BYTES + i);
        test_http_script(server, "/pack", scripts[i]);
        get_init(&one, server, "/pack");
        one.read.range_bytes = 100;
        one.read.first = &object;
        submit_one(self.reads.reader, &one.read);
        assert_ptr_equal(test_reads_pop(&self.reads), &one.read);
        check_range(&one, i);
        assert_string_equal(object.etag, etags[i]);
        assert_int_equal(object.object_bytes, N_BYTES + i);
        fm_reader_return(self.reads.reader, &one.read);
    }
    session_close(&self);
}

/* Also by a server that ignores If-Match, and between two attempts of one read. */
static void resumed_ranges_notice_changes(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/old", 1, N_BYTES);
    static const char *const scripts[] = {"reset=500,etag=a,from=/old no-if-match,etag=b",
                                          "reset=500,etag=a,from=/old etag=b"};
    for (uint32_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
        char path[32];
        snprintf(path, sizeof(path), "/pack%u", i);
        put(path, 2, N_BYTES);
        test_http_script(server, path, scripts[i]);
        get one = get_range(&self, path, 0, 50000);
        assert_int_equal(one.read.error, FM_READ_REMOTE);
        assert_string_equal(one.why, "the object has changed since it was first read");
    }
    session_close(&self);
}

/* Also by reads that begin together, of which none knows an ETag yet. */
static void ranges_read_together_notice_changes(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/pack", 1, N_BYTES);
    test_http_script(server, "/pack", "delay=200,etag=a delay=200,no-if-match,etag=b");
    get gets[2];
    for (int i = 0; i < 2; i++) {
        get_init(&gets[i], server, "/pack");
        gets[i].read.range_bytes = 1000;
        submit_one(self.reads.reader, &gets[i].read);
    }
    assert_true(test_reads_wait(&self.reads, 2));
    const get *const failed = gets[0].read.error ? &gets[0] : &gets[1];
    check_range(failed == gets ? &gets[1] : &gets[0], 1);
    assert_int_equal(failed->read.error, FM_READ_REMOTE);
    assert_string_equal(failed->why, "the object has changed since it was first read");
    session_close(&self);
}

/* ---- versions that an index names -------------------------------------------------------------
 */

static get get_version(session *self, const char *path, const char *etag, uint64_t n_bytes) {
    get one;
    get_init(&one, server, path);
    one.read.path = one.url;
    one.read.why = one.why;
    one.read.etag = etag;
    one.read.range_bytes = n_bytes;
    submit_one(self->reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self->reads), &one.read);
    return one;
}

/* Also after attempts that break off, with or without the bytes that came. */
static void indexed_versions_are_read(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/object", 1, N_BYTES);
    static const struct {
        const char *script, *etag;
    } cases[] = {{"etag=a", "\"a\""},
                 {"etag=a", "W/\"b\""}, /* a weak one is not compared */
                 {"etag=a", ""},
                 {"no-if-match,etag=none", "\"a\""}, /* the server does not say */
                 {"reset=500,etag=a etag=a", "\"a\""},
                 {"reset=500,no-if-match,etag=none etag=a", "\"a\""}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        test_http_script(server, "/object", cases[i].script);
        get one = get_version(&self, "/object", cases[i].etag, 0);
        if (one.read.error) fail_msg("case %zu: %s", i, one.why);
        test_check_file(&one.read, 1, N_BYTES);
        fm_reader_return(self.reads.reader, &one.read);
    }
    session_close(&self);
}

/* Also by a server that ignores If-Match, and between two attempts. */
static void changed_versions_are_refused(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/object", 1, N_BYTES);
    static const char *const scripts[] = {"etag=b", "no-if-match,etag=b", "reset=500,etag=a etag=b",
                                          "reset=500,etag=a no-if-match,etag=b",
                                          "reset=500,no-if-match,etag=none etag=b"};
    for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++)
        for (uint64_t n_bytes = 0; n_bytes <= 5000; n_bytes += 5000) {
            char path[32];
            snprintf(path, sizeof(path), "/object%zu-%llu", i, (unsigned long long)n_bytes);
            put(path, 1, N_BYTES);
            test_http_script(server, path, scripts[i]);
            const get one = get_version(&self, path, "\"a\"", n_bytes);
            assert_int_equal(one.read.error, FM_READ_REMOTE);
            assert_string_equal(one.why,
                                "the object has changed since it was indexed; index it again");
        }
    session_close(&self);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static const char *const passing[] = {
    "status=500",
    "status=502,close",
    "status=503,code=SlowDown,retry-after=1",
    "status=429,retry-after=0 status=429",
    "status=408",
    "reset=0",
    "reset=5000",
    "reset=5000,etag=none",
    "reset=500 reset=600 reset=70000",
    "short=0",
    "short=70000",
    "short=70000,no-range no-range",
    "chunked,short=20000",
    "stall=0",
    "stall=40000",
    "delay=100",
    "close",
    "chunked",
    "unsized",
    "short=9000,etag=none short=9500",
    "stall=7000 reset=8000 status=503 short=9000",
};
#define N_PASSING (sizeof(passing) / sizeof(*passing))

static void passing_faults_are_survived(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    settings.stall_timeout_ms = 1000;
    session_open(&self, &settings, (fm_reader_config){0});
    get gets[N_PASSING];
    for (uint32_t i = 0; i < N_PASSING; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/%u", i);
        put(path, i, N_BYTES + i);
        test_http_script(server, path, passing[i]);
        get_init(&gets[i], server, path);
        submit_one(self.reads.reader, &gets[i].read);
    }
    assert_true(test_reads_wait(&self.reads, N_PASSING));
    for (uint32_t i = 0; i < N_PASSING; i++) {
        if (gets[i].read.error) fail_msg("%s: %s", passing[i], gets[i].why);
        test_check_file(&gets[i].read, i, N_BYTES + i);
    }
    fm_reader_stats stats;
    fm_reader_stats_get(self.reads.reader, &stats);
    assert_int_equal(stats.n_files, N_PASSING);
    /* An attempt that stalls on a busy machine may end before its request was sent. */
    assert_true(test_http_n_requests(server) <= stats.n_requests);
    assert_int_equal(stats.n_requests, N_PASSING + stats.n_retries);
    assert_true(stats.n_refused > 0 && stats.n_refused <= 4);
    assert_true(test_http_count(server, "If-Match") > 0);
    assert_string_equal(stats.name, "http");
    session_close(&self);
}

/* A server that sends a byte now and then stalls, too. */
static void slow_bodies_are_tried_again(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    settings.stall_timeout_ms = 500;
    put("/object", 1, N_BYTES);
    session_open(&self, &settings, (fm_reader_config){0});
    test_http_script(server, "/object", "drip=40000 drip=1");
    check_whole(&self, "/object", 1, N_BYTES);
    assert_true(test_http_n_requests(server) >= 3);
    session_close(&self);
    settings.max_attempts = 2;
    session_open(&self, &settings, (fm_reader_config){0});
    test_http_script(server, "/object", "drip=0,etag=none drip=0,etag=none");
    get one = get_range(&self, "/object", 0, 0);
    assert_int_equal(one.read.error, FM_READ_REMOTE);
    if (!strstr(one.why, " has stopped sending, or sends too slowly")) fail_msg("%s", one.why);
    session_close(&self);
}

static void lasting_faults_are_reported(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/object", 1, N_BYTES);
    static const char *const cases[][2] = {
        {"status=403,code=AccessDenied", "HTTP 403 AccessDenied"},
        {"status=404,code=NoSuchKey", "HTTP 404 NoSuchKey"},
        {"status=400", "HTTP 400"},
        {"status=401", "HTTP 401"},
        {"status=301,code=PermanentRedirect", "HTTP 301 PermanentRedirect"},
        {"status=304", "HTTP 304: a redirect that can't be followed"},
        {"redirect=ftp://127.0.0.1/", "HTTP 302: a redirect that can't be followed"},
        {"redirect=file:///etc/passwd", "HTTP 302: a redirect that can't be followed"},
    };
    const size_t n = sizeof(cases) / sizeof(*cases);
    for (size_t i = 0; i < n; i++) {
        test_http_script(server, "/object", cases[i][0]);
        get one = get_range(&self, "/object", 0, 0);
        assert_int_equal(one.read.error, FM_READ_REMOTE);
        assert_null(one.read.bytes);
        assert_string_equal(one.why, cases[i][1]);
    }
    assert_int_equal(test_http_n_requests(server), n);
    session_close(&self);
}

static void attempts_end(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    settings.max_attempts = 3;
    session_open(&self, &settings, (fm_reader_config){0});
    put("/object", 1, N_BYTES);
    test_http_script(server, "/object", "status=500 reset=10 status=503,code=SlowDown");
    get one = get_range(&self, "/object", 0, 0);
    assert_int_equal(one.read.error, FM_READ_REMOTE);
    assert_non_null(strstr(one.why, "HTTP 503 SlowDown (3 attempts in "));
    test_http_script(server, "/object",
                     "short=100,etag=none short=100,etag=none short=100,etag=none");
    one = get_range(&self, "/object", 0, 0);
    assert_non_null(strstr(one.why, ", after 100 bytes (3 attempts in "));
    /* The server's wish to wait is beyond the time that there is. */
    test_http_script(server, "/object", "status=503,retry-after=1000");
    one = get_range(&self, "/object", 0, 0);
    assert_string_equal(one.why, "HTTP 503");
    session_close(&self);
}

/* An object that is replaced between two attempts is not pieced together of both. */
static void changed_objects_are_read_anew(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/old", 1, N_BYTES);
    static const struct {
        const char *second; /* answer to the rest's request */
        size_t n_bytes;
    } cases[] = {
        {"etag=b", 150000},
        {"no-if-match,etag=b", 150000},
        {"no-if-match,etag=b", N_BYTES},
        {"no-if-match,etag=none", 150000},
        {"no-if-match,etag=none", N_BYTES},
        {"no-if-match,no-range,etag=none", N_BYTES},
        {"no-if-match,etag=a,weak", N_BYTES},
        {"no-if-match,etag=a", 150000}, /* an ETag that is wrong */
        {"no-if-match,no-range,etag=a", 70000},
        {"no-if-match,etag=a", 30000},
        {"no-if-match,etag=b short=100,etag=c etag=d", N_BYTES},
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char path[32], script[128];
        snprintf(path, sizeof(path), "/object%u", i);
        snprintf(script, sizeof(script), "reset=50000,etag=a,from=/old %s", cases[i].second);
        put(path, 2, cases[i].n_bytes);
        test_http_script(server, path, script);
        check_whole(&self, path, 2, cases[i].n_bytes);
    }
    session_close(&self);
}

/* The same for a range, if the response does not say which version it is of. */
static void ranges_without_etag_are_read_anew(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/old", 1, N_BYTES);
    static const char *const scripts[] = {
        "reset=500,etag=a,from=/old no-if-match,etag=none etag=none",
        "reset=500,etag=a,from=/old no-if-match,etag=a,weak etag=none",
        "reset=500,etag=none,from=/old no-if-match,etag=a",
    };
    for (uint32_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
        char path[32];
        snprintf(path, sizeof(path), "/pack%u", i);
        put(path, 2, N_BYTES);
        test_http_script(server, path, scripts[i]);
        get one = get_range(&self, path, 100, 50000);
        check_range(&one, 2);
        fm_reader_return(self.reads.reader, &one.read);
    }
    session_close(&self);
}

static void large_objects_are_refused(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){.max_file_bytes = N_BYTES});
    put("/object", 1, N_BYTES + 1);
    assert_int_equal(get_range(&self, "/object", 0, 0).read.error, EFBIG);
    test_http_script(server, "/object", "chunked unsized");
    assert_int_equal(get_range(&self, "/object", 0, 0).read.error, EFBIG);
    assert_int_equal(get_range(&self, "/object", 0, 0).read.error, EFBIG);
    assert_int_equal(get_range(&self, "/object", 0, N_BYTES + 1).read.error, EFBIG);
    put("/object", 1, N_BYTES);
    check_whole(&self, "/object", 1, N_BYTES);
    session_close(&self);
}

/* ---- redirects ------------------------------------------------------------------------------- */

static void redirects_are_followed(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    test_http *const other = test_http_open();
    char script[128];
    put("/there", 3, N_BYTES);
    uint8_t byte = test_byte(4, 0);
    test_http_put(other, "/there", &byte, 1);
    test_http_script(server, "/here", "redirect=/there");
    check_whole(&self, "/here", 3, N_BYTES);
    test_http_script(server, "/here", "redirect=/there,status=307");
    get one = get_range(&self, "/here", 100, 1000);
    check_range(&one, 3);
    fm_reader_return(self.reads.reader, &one.read);
    snprintf(script, sizeof(script), "redirect=http://127.0.0.1:%d/there", test_http_port(other));
    test_http_script(server, "/here", script);
    check_whole(&self, "/here", 4, 1);
    test_http_script(server, "/loop",
                     "redirect=/loop redirect=/loop redirect=/loop redirect=/loop redirect=/loop "
                     "redirect=/loop redirect=/loop");
    one = get_range(&self, "/loop", 0, 0);
    assert_string_equal(one.why, "HTTP 302: a redirect that can't be followed");
    assert_int_equal(test_http_count(server, "GET /loop "), 6);
    session_close(&self);
    test_http_close(other);
}

/* A redirect's body does not matter. */
static void redirects_without_a_whole_body_are_followed(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    settings.max_attempts = 1;
    session_open(&self, &settings, (fm_reader_config){0});
    put("/a/there", 3, N_BYTES);
    char absolute[128];
    snprintf(absolute, sizeof(absolute), "redirect=http://127.0.0.1:%d/a/there,body=100,short=10",
             test_http_port(server));
    const char *const scripts[] = {
        "redirect=/a/there,body=1000000",
        "redirect=there,body=100,reset=10",
        "redirect=../a/there,body=100,short=10",
        "redirect=/a/there,body=100,reset=0",
        absolute,
    };
    put("/a/here", 3, N_BYTES);
    for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
        test_http_script(server, "/a/here", scripts[i]);
        check_whole(&self, "/a/here", 3, N_BYTES);
    }
    test_http_script(server, "/a/here", "redirect=ftp://127.0.0.1/,body=100,short=10");
    get one = get_range(&self, "/a/here", 0, 0);
    assert_string_equal(one.why, "HTTP 302: a redirect that can't be followed");
    session_close(&self);
    /* On a busy machine, other responses may exceed the stall timeout, too. */
    settings.stall_timeout_ms = 500;
    settings.max_attempts = 1000;
    session_open(&self, &settings, (fm_reader_config){0});
    test_http_script(server, "/a/here", "redirect=?x=y,body=100,stall=10 ok");
    check_whole(&self, "/a/here", 3, N_BYTES);
    assert_true(test_http_count(server, "GET /a/here?x=y ") >= 1);
    session_close(&self);
}

/* Neither a user's password nor what signs a request to a store goes to another server. */
static void redirects_keep_secrets(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    test_http *const other = test_http_open();
    char script[128], endpoint[64];
    fm_error error;
    put("/bucket/key", 3, N_BYTES);
    uint8_t byte = test_byte(4, 0);
    test_http_put(other, "/there", &byte, 1);
    snprintf(script, sizeof(script), "redirect=http://127.0.0.1:%d/there", test_http_port(other));
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%d", test_http_port(server));
    settings.endpoint_url = endpoint;
    session_open(&self, &settings, (fm_reader_config){0});
    const fm_remote_credentials credentials = {
        .access_key = "a", .secret_key = "b", .session_token = "c"};
    assert_int_equal(fm_remote_set_credentials(self.remote, &credentials, &error), FM_OK);
    test_http_script(server, "/bucket/key", script);
    get one = {.read = {.path = "s3://bucket/key"}};
    submit_one(self.reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self.reads), &one.read);
    test_check_file(&one.read, 4, 1);
    fm_reader_return(self.reads.reader, &one.read);
    assert_int_equal(test_http_n_requests(other), 1);
    assert_int_equal(test_http_count(other, "authorization"), 0);
    assert_int_equal(test_http_count(other, "x-amz"), 0);
    session_close(&self);
    test_http_close(other);
}

static void messages_keep_secrets(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    settings.max_attempts = 1;
    session_open(&self, &settings, (fm_reader_config){0});
    static const char *const scripts[] = {"status=403", "reset=0", "short=10", "status=500",
                                          "redirect=ftp://hidden/hidden"};
    put("/object", 1, N_BYTES);
    for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
        test_http_script(server, "/object", scripts[i]);
        get one = get_range(&self, "/object?signature=hidden", 0, 0);
        assert_int_equal(one.read.error, FM_READ_REMOTE);
        assert_null(strstr(one.why, "hidden"));
    }
    session_close(&self);
}

/* ---- servers that are not there -------------------------------------------------------------- */

static void absent_servers_are_reported(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    settings.give_up_ms = 6000;
    settings.max_attempts = 2; /* counts answers only */
    session_open(&self, &settings, (fm_reader_config){0});
    test_http_vanish(server, true);
    get one = get_range(&self, "/object", 0, 0);
    char expected[64];
    snprintf(expected, sizeof(expected), "connection refused by 127.0.0.1:%d (",
             test_http_port(server));
    assert_int_equal(one.read.error, FM_READ_REMOTE);
    if (!strstr(one.why, expected)) fail_msg("%s", one.why);
    get_init(&one, server, "");
    /* A label of more than 63 characters: no server of names is asked. */
    static const char name[] =
        "this-label-of-a-name-is-longer-than-the-63-characters-that-it-may-have";
    snprintf(one.url, sizeof(one.url), "http://%s.invalid/object", name);
    one.read.path = one.url;
    one.read.why = one.why;
    submit_one(self.reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self.reads), &one.read);
    assert_int_equal(one.read.error, FM_READ_REMOTE);
    if (!strstr(one.why, name) || !strstr(one.why, ".invalid:80")) fail_msg("%s", one.why);
    session_close(&self);
}

#define N_MANY 200

static void submit_many(session *self, get *gets, size_t n_bytes) {
    for (uint32_t i = 0; i < N_MANY; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/%u", i);
        put(path, i, n_bytes + i);
        get_init(&gets[i], server, path);
        /* A third are ranges. */
        if (i % 3 == 0) {
            gets[i].read.offset_bytes = 10;
            gets[i].read.range_bytes = n_bytes - 20;
        }
    }
    for (uint32_t i = 0; i < N_MANY; i++) submit_one(self->reads.reader, &gets[i].read);
}

/* Each read ended once. How many were delivered, and right. */
static uint32_t check_many(session *self, get *gets, size_t n_bytes) {
    uint32_t n_right = 0;
    assert_int_equal(test_reads_n_done(&self->reads), N_MANY);
    for (uint32_t i = 0; i < N_MANY; i++) {
        if (gets[i].read.error) {
            assert_null(gets[i].read.bytes);
            continue;
        }
        if (gets[i].read.range_bytes)
            check_range(&gets[i], i);
        else
            test_check_file(&gets[i].read, i, n_bytes + i);
        fm_reader_return(self->reads.reader, &gets[i].read);
        n_right++;
    }
    return n_right;
}

static void vanished_servers_are_waited_for(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    static get gets[N_MANY];
    session_open(&self, &settings, (fm_reader_config){0});
    submit_many(&self, gets, 3000);
    usleep(5000);
    test_http_vanish(server, true);
    usleep(2000000);
    test_http_vanish(server, false);
    assert_true(test_reads_wait(&self.reads, N_MANY));
    for (uint32_t i = 0; i < N_MANY; i++)
        if (gets[i].read.error) print_message("read %u: %s\n", i, gets[i].why);
    assert_int_equal(check_many(&self, gets, 3000), N_MANY);
    session_close(&self);
}

/* With few buffers, so that reads also wait for these. */
static void random_faults(void **state) {
    (void)state;
    static get gets[N_MANY];
    for (uint32_t seed = 1; seed <= 3; seed++) {
        session self;
        fm_remote_config settings = quick_config();
        settings.stall_timeout_ms = 500;
        /* On a busy machine, attempts also end by the stall timeout. */
        settings.max_attempts = seed == 3 ? 2 : 1000;
        session_open(&self, &settings, (fm_reader_config){.buffer_bytes = 256 << 10});
        test_http_random(server, seed, 30);
        submit_many(&self, gets, 5000);
        /* Buffers are returned as reads end. */
        for (uint32_t n = 0; n < N_MANY; n++) {
            fm_read *const read = test_reads_pop(&self.reads);
            assert_non_null(read);
            get *const one = (get *)(void *)((char *)read - offsetof(get, read));
            const uint32_t i = (uint32_t)(one - gets);
            if (read->error && seed < 3) fail_msg("seed %u: %s: %s", seed, one->url, one->why);
            if (read->error)
                assert_int_equal(read->error, FM_READ_REMOTE);
            else if (read->range_bytes)
                check_range(one, i);
            else
                test_check_file(read, i, 5000 + i);
            fm_reader_return(self.reads.reader, read);
        }
        assert_int_equal(test_reads_n_done(&self.reads), N_MANY);
        session_close(&self);
    }
}

/* ---- close and cancel ------------------------------------------------------------------------ */

/* Reads that are stuck in all ways. */
static void submit_stuck(session *self, get *gets) {
    static const char *const scripts[] = {"stall=0", "stall=1000", "status=503,retry-after=60",
                                          "delay=100000", "reset=0"};
    for (uint32_t i = 0; i < N_MANY; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/%u", i);
        test_http_script(server, path, scripts[i % 5]);
    }
    submit_many(self, gets, 3000);
}

static void cancel_ends_all(void **state) {
    (void)state;
    session self;
    fm_remote_config settings = quick_config();
    static get gets[N_MANY];
    settings.max_requests = 100;
    session_open(&self, &settings, (fm_reader_config){0});
    submit_stuck(&self, gets);
    usleep(100000);
    fm_reader_cancel_queued(self.reads.reader);
    for (uint32_t i = 0; i < N_MANY; i++) {
        const fm_read *const read = test_reads_pop(&self.reads);
        assert_non_null(read);
        assert_true(read->error == ECANCELED || read->error == 0);
    }
    check_many(&self, gets, 3000);
    /* The reader goes on. */
    put("/object", 1, N_BYTES);
    check_whole(&self, "/object", 1, N_BYTES);
    session_close(&self);
}

static void close_ends_all(void **state) {
    (void)state;
    static get gets[N_MANY];
    for (int delay_us = 0; delay_us < 100000; delay_us = delay_us * 4 + 500) {
        session self;
        const fm_remote_config settings = quick_config();
        session_open(&self, &settings, (fm_reader_config){0});
        submit_stuck(&self, gets);
        usleep((useconds_t)delay_us);
        test_reads_close(&self.reads);
        assert_int_equal(test_reads_n_done(&self.reads), N_MANY);
        for (uint32_t i = 0; i < N_MANY; i++)
            assert_true(gets[i].read.error == ECANCELED || gets[i].read.error == 0);
        fm_remote_close(&self.remote);
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static void connections_are_kept(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/object", 1, N_BYTES);
    for (int i = 0; i < 20; i++) check_whole(&self, "/object", 1, N_BYTES);
    /* The body of an error is read, too. */
    test_http_script(server, "/object", "status=404");
    assert_int_equal(get_range(&self, "/object", 0, 0).read.error, FM_READ_REMOTE);
    check_whole(&self, "/object", 1, N_BYTES);
    assert_int_equal(test_http_n_connections(server), 1);
    session_close(&self);
}

static void requests_are_limited(void **state) {
    (void)state;
    session self;
    static get gets[N_MANY];
    fm_remote_config settings = quick_config();
    settings.max_requests = 7;
    settings.hedge_percent = 0; /* the server may not yet know which request was given up */
    session_open(&self, &settings, (fm_reader_config){0});
    submit_many(&self, gets, 3000);
    assert_true(test_reads_wait(&self.reads, N_MANY));
    assert_int_equal(check_many(&self, gets, 3000), N_MANY);
    assert_true(test_http_peak(server) <= 7);
    session_close(&self);
}

/* Delays of the server are lower bounds of the stages, on any machine. */
static void reads_tell_their_stages(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    put("/object", 1, N_BYTES);
    test_http_script(server, "/object",
                     "status=500,delay=50 status=503,retry-after=1 delay=60,drip=99960");
    get one = get_range(&self, "/object", 0, 0);
    test_check_file(&one.read, 1, N_BYTES);
    const fm_read_times *const times = &one.read.times;
    assert_true(times->earlier.retry_ns >= 50 * MS);
    assert_true(times->earlier.throttled_ns >= 1000 * MS);
    assert_true(times->last.first_byte_ns >= 60 * MS);
    assert_true(times->last.transfer_ns >= 60 * MS);
    assert_int_equal(times->held_ns, 0);
    const uint64_t sum_ns = fm_read_stages_ns(&times->earlier) + fm_read_stages_ns(&times->last);
    assert_true(sum_ns <= one.read.done_ns - one.read.started_ns);
    fm_reader_return(self.reads.reader, &one.read);
    /* The next one finds a connection, and has nothing of the first one's. */
    one = get_range(&self, "/object", 0, 0);
    assert_int_equal(fm_read_stages_ns(&one.read.times.earlier), 0);
    fm_reader_return(self.reads.reader, &one.read);
    session_close(&self);
}

/* Once the server has asked for fewer requests, reads wait longer to be started, and say so. */
static void reads_are_held_by_throttling(void **state) {
    (void)state;
    session self;
    static get gets[N_MANY];
    fm_remote_config settings = quick_config();
    settings.max_requests = 64;
    session_open(&self, &settings, (fm_reader_config){0});
    for (uint32_t i = 0; i < N_MANY; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/%u", i);
        test_http_script(server, path, i < 32 ? "status=503 delay=100" : "delay=100");
    }
    submit_many(&self, gets, 3000);
    assert_true(test_reads_wait(&self.reads, N_MANY));
    assert_int_equal(check_many(&self, gets, 3000), N_MANY);
    const fm_read *last = &gets[0].read;
    for (uint32_t i = 1; i < N_MANY; i++)
        if (gets[i].read.started_ns > last->started_ns) last = &gets[i].read;
    assert_true(last->times.held_ns * 2 > last->started_ns - last->submitted_ns);
    assert_true(last->times.held_ns <= last->started_ns - last->submitted_ns);
    assert_true(last->times.queue.first_byte_ns > 0);
    session_close(&self);
}

static void bad_names_are_reported(void **state) {
    (void)state;
    session self;
    const fm_remote_config settings = quick_config();
    session_open(&self, &settings, (fm_reader_config){0});
    static const char *const names[] = {"http://", "http://host:99999/", "http://[::1/"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        get one;
        get_init(&one, server, "");
        one.read.path = names[i];
        submit_one(self.reads.reader, &one.read);
        assert_ptr_equal(test_reads_pop(&self.reads), &one.read);
        assert_int_equal(one.read.error, FM_READ_REMOTE);
        assert_true(*one.why);
    }
    session_close(&self);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

typedef struct tls_server {
    char dir[64];
    pid_t pid;
    int port, out;
} tls_server;

/* openssl's server, with a certificate of its own for 127.0.0.1; skips the test without it. */
static tls_server tls_open(void) {
    tls_server self = {.port = 0};
    char command[512], text[512];
    size_t n = 0;
    int ends[2];
    test_dir_open(self.dir);
    snprintf(command, sizeof(command),
             "cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 "
             "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1",
             self.dir);
    if (system(command)) {
        test_dir_close(self.dir);
        fprintf(stderr, "skipped: there is no openssl that makes certificates\n");
        skip();
    }
    snprintf(text, sizeof(text), "%s/object", self.dir);
    test_file_write(text, 9, N_BYTES);
    assert_int_equal(pipe(ends), 0);
    self.pid = fork();
    if (self.pid == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        if (!chdir(self.dir))
            execlp("openssl", "openssl", "s_server", "-accept", "127.0.0.1:0", "-WWW", "-key",
                   "key", "-cert", "cert", (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    self.out = ends[0];
    for (ssize_t got; n + 1 < sizeof(text) && !self.port; n += (size_t)got) {
        got = read(self.out, text + n, sizeof(text) - 1 - n);
        if (got <= 0) fail_msg("openssl's server ended");
        text[n + (size_t)got] = 0;
        const char *const at = strstr(text, "ACCEPT 127.0.0.1:");
        if (at && strchr(at, '\n')) self.port = atoi(at + strlen("ACCEPT 127.0.0.1:"));
    }
    return self;
}

static void tls_close(tls_server *self) {
    kill(self->pid, SIGKILL);
    waitpid(self->pid, NULL, 0);
    close(self->out);
    test_dir_close(self->dir);
}

static get get_tls(const tls_server *tls, const char *host, const char *ca_bundle,
                   uint8_t *first_byte) {
    session self;
    fm_remote_config settings = quick_config();
    settings.ca_bundle = ca_bundle;
    session_open(&self, &settings, (fm_reader_config){0});
    get one;
    get_init(&one, server, "");
    snprintf(one.url, sizeof(one.url), "https://%s:%d/object", host, tls->port);
    one.read.path = one.url;
    one.read.why = one.why;
    submit_one(self.reads.reader, &one.read);
    assert_ptr_equal(test_reads_pop(&self.reads), &one.read);
    if (!one.read.error) {
        test_check_file(&one.read, 9, N_BYTES);
        *first_byte = one.read.bytes[0];
    }
    session_close(&self);
    return one;
}

/* Only a server with a certificate that is known, and for its name, is read from. */
static void certificates_are_verified(void **state) {
    (void)state;
    tls_server tls = tls_open();
    char cert[128], missing[128];
    uint8_t byte = 0;
    snprintf(cert, sizeof(cert), "%s/cert", tls.dir);
    snprintf(missing, sizeof(missing), "%s/missing", tls.dir);
    get one = get_tls(&tls, "127.0.0.1", cert, &byte);
    if (one.read.error) fail_msg("%s", one.why);
    assert_int_equal(byte, test_byte(9, 0));
    const struct {
        const char *host, *ca_bundle;
    } cases[] = {{"127.0.0.1", NULL}, {"localhost", cert}, {"127.0.0.1", missing}};
    for (size_t i = 0; i < 3; i++) {
        one = get_tls(&tls, cases[i].host, cases[i].ca_bundle, &byte);
        assert_int_equal(one.read.error, FM_READ_REMOTE);
        char expected[64];
        snprintf(expected, sizeof(expected), "the certificate of %s:%d: ", cases[i].host, tls.port);
        if (strncmp(one.why, expected, strlen(expected))) fail_msg("case %zu: %s", i, one.why);
        assert_null(strstr(one.why, "attempts"));
    }
    tls_close(&tls);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_WITH_SERVER(reads_objects),
        TEST_WITH_SERVER(reads_ranges),
        TEST_WITH_SERVER(ranges_beyond_the_end_are_refused),
        TEST_WITH_SERVER(changed_packs_are_noticed),
        TEST_WITH_SERVER(first_ranges_take_a_new_version),
        TEST_WITH_SERVER(resumed_ranges_notice_changes),
        TEST_WITH_SERVER(ranges_read_together_notice_changes),
        TEST_WITH_SERVER(indexed_versions_are_read),
        TEST_WITH_SERVER(changed_versions_are_refused),
        TEST_WITH_SERVER(passing_faults_are_survived),
        TEST_WITH_SERVER(slow_bodies_are_tried_again),
        TEST_WITH_SERVER(lasting_faults_are_reported),
        TEST_WITH_SERVER(attempts_end),
        TEST_WITH_SERVER(changed_objects_are_read_anew),
        TEST_WITH_SERVER(ranges_without_etag_are_read_anew),
        TEST_WITH_SERVER(large_objects_are_refused),
        TEST_WITH_SERVER(redirects_are_followed),
        TEST_WITH_SERVER(redirects_without_a_whole_body_are_followed),
        TEST_WITH_SERVER(redirects_keep_secrets),
        TEST_WITH_SERVER(messages_keep_secrets),
        TEST_WITH_SERVER(absent_servers_are_reported),
        TEST_WITH_SERVER(vanished_servers_are_waited_for),
        TEST_WITH_SERVER(random_faults),
        TEST_WITH_SERVER(cancel_ends_all),
        TEST_WITH_SERVER(close_ends_all),
        TEST_WITH_SERVER(connections_are_kept),
        TEST_WITH_SERVER(requests_are_limited),
        TEST_WITH_SERVER(reads_tell_their_stages),
        TEST_WITH_SERVER(reads_are_held_by_throttling),
        TEST_WITH_SERVER(bad_names_are_reported),
        TEST_WITH_SERVER(certificates_are_verified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
