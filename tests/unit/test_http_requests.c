/* Requests of the HTTP reader that are more or fewer than its reads: second ones for what is not
 * answered, and one for several ranges of a pack. */
#define _GNU_SOURCE
#include "http_session.h"

#include "read/hedge.h"

#define N_BYTES 100000
/* Longer than other answers take by far. */
#define LATE "delay=60000"

static fm_reader_stats stats_of(const session *self) {
    fm_reader_stats stats;
    fm_reader_stats_get(self->reads.reader, &stats);
    return stats;
}

/* ---- second requests ------------------------------------------------------------------------- */

static void session_open_hedging(session *self, uint32_t percent) {
    fm_remote_config settings = quick_config();
    settings.hedge_percent = percent;
    session_open(self, &settings, (fm_reader_config){0});
}

/* The reader learns how long answers take. */
static void learn(session *self) {
    put("/quick", 1, 100);
    for (int i = 0; i < FM_HEDGE_LEAST_ANSWERS; i++) check_whole(self, "/quick", 1, 100);
}

/* The first request is answered after the read has ended, the second as the script says. */
static void late_answers_are_asked_for_again(void **state) {
    (void)state;
    static const struct {
        const char *script;
        uint32_t n_requests, n_retries;
    } cases[] = {
        {LATE " ok", 2, 0},
        {LATE " chunked", 2, 0},
        {LATE " status=503 ok", 3, 1},
        {LATE " reset=1000 ok", 3, 1},
        {LATE " redirect=/other", 2, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        session self;
        session_open_hedging(&self, 100);
        learn(&self);
        char path[16];
        snprintf(path, sizeof(path), "/late%zu", i);
        put(path, 7, N_BYTES);
        put("/other", 7, N_BYTES);
        test_http_script(server, path, cases[i].script);
        const fm_reader_stats before = stats_of(&self);
        check_whole(&self, path, 7, N_BYTES);
        const fm_reader_stats after = stats_of(&self);
        const uint64_t n_hedged = after.n_hedged - before.n_hedged;
        assert_true(n_hedged > 0);
        assert_int_equal(after.n_retries - before.n_retries, cases[i].n_retries);
        /* On a busy machine, the next attempt may be late as well. */
        assert_in_range(test_http_count(server, path), cases[i].n_requests,
                        cases[i].n_requests + n_hedged - 1);
        session_close(&self);
    }
}

/* The first request is answered although there is a second one. */
static void the_first_answer_counts(void **state) {
    (void)state;
    session self;
    session_open_hedging(&self, 100);
    learn(&self);
    put("/late", 7, N_BYTES);
    put("/other", 8, N_BYTES);
    test_http_script(server, "/late", "delay=500 from=/other," LATE);
    check_whole(&self, "/late", 7, N_BYTES);
    /* It fails, as does libcurl's own repetition; the second one's answer is waited for. */
    test_http_script(server, "/late", "delay=500,hangup delay=1000 hangup");
    check_whole(&self, "/late", 7, N_BYTES);
    assert_int_equal(stats_of(&self).n_retries, 0);
    session_close(&self);
}

static void no_more_second_requests_than_allowed(void **state) {
    (void)state;
    for (uint32_t percent = 0; percent <= 1; percent++) {
        session self;
        session_open_hedging(&self, percent);
        learn(&self);
        const size_t n_before = test_http_n_requests(server);
        put("/late", 7, N_BYTES);
        for (int i = 0; i < 4; i++) {
            test_http_script(server, "/late", "delay=100");
            check_whole(&self, "/late", 7, N_BYTES);
        }
        const fm_reader_stats stats = stats_of(&self);
        assert_in_range(stats.n_hedged, 0, percent);
        assert_in_range(test_http_n_requests(server) - n_before, 4, 4 + stats.n_hedged);
        session_close(&self);
    }
}

/* ---- one request for several ranges ---------------------------------------------------------- */

#define N_RANGES 12
#define RANGE_BYTES 2000
#define STEP_BYTES 2100 /* from one range to the next */
#define PACK_BYTES (N_RANGES * STEP_BYTES)

/* Opens a reader, for a pack of so many bytes, that knows that waiting for an answer takes longer
 * than some bytes. */
static void open_far(session *self, size_t pack_bytes, uint32_t max_attempts) {
    fm_remote_config settings = quick_config();
    settings.max_attempts = max_attempts;
    session_open(self, &settings, (fm_reader_config){0});
    put("/pack", 3, pack_bytes);
    put("/far", 1, 100000);
    for (int i = 0; i < 8; i++) {
        test_http_script(server, "/far", "delay=50");
        check_whole(self, "/far", 1, 100000);
    }
}

/* Submits ranges from `first` on together. */
static void submit_ranges(session *self, get gets[N_RANGES], uint64_t first, uint64_t step_bytes) {
    for (uint32_t i = 0; i < N_RANGES; i++) {
        get_init(&gets[i], server, "/pack");
        gets[i].read.path = gets[i].url;
        gets[i].read.why = gets[i].why;
        gets[i].read.offset_bytes = first + i * step_bytes;
        gets[i].read.range_bytes = RANGE_BYTES;
        gets[i].read.next = i + 1 < N_RANGES ? &gets[i + 1].read : NULL;
    }
    fm_reader_submit(self->reads.reader, &gets[0].read);
}

static void wait_for_all(session *self) {
    for (uint32_t i = 0; i < N_RANGES; i++) assert_non_null(test_reads_pop(&self->reads));
}

static void check_ranges(session *self, get gets[N_RANGES]) {
    wait_for_all(self);
    for (uint32_t i = 0; i < N_RANGES; i++) {
        check_range(&gets[i], 3);
        fm_reader_return(self->reads.reader, &gets[i].read);
    }
}

static void neighbouring_ranges_share_a_request(void **state) {
    (void)state;
    session self;
    get gets[N_RANGES];
    open_far(&self, PACK_BYTES, 10);
    submit_ranges(&self, gets, 0, STEP_BYTES);
    check_ranges(&self, gets);
    assert_int_equal(test_http_count(server, "GET /pack"), 1);
    assert_int_equal(stats_of(&self).n_shared, N_RANGES - 1);
    assert_int_equal(stats_of(&self).n_bytes, 8 * 100000 + N_RANGES * RANGE_BYTES);
    /* Without a gap. */
    submit_ranges(&self, gets, 7, RANGE_BYTES);
    check_ranges(&self, gets);
    assert_int_equal(test_http_count(server, "GET /pack"), 2);
    session_close(&self);
}

/* Neither those that overlap, nor those in other places or of other objects. */
static void other_ranges_do_not(void **state) {
    (void)state;
    session self;
    get gets[N_RANGES];
    open_far(&self, N_RANGES * (100 << 10), 10);
    submit_ranges(&self, gets, 0, RANGE_BYTES - 1);
    check_ranges(&self, gets);
    submit_ranges(&self, gets, 0, 100 << 10);
    check_ranges(&self, gets);
    assert_int_equal(test_http_count(server, "GET /pack"), 2 * N_RANGES);
    assert_int_equal(stats_of(&self).n_shared, 0);
    session_close(&self);
}

static void shared_requests_survive_faults(void **state) {
    (void)state;
    static const char *const scripts[] = {
        "reset=0",
        "reset=1000",
        "reset=5000",
        "short=20000",
        "status=503",
        "status=500",
        "wrong-range",
        "no-range",
        "chunked",
        "unsized,close",
        "no-range,chunked",
        "redirect=/pack",
        "etag=none,no-if-match",
        "short=7000,etag=none,no-if-match",
        "reset=9000 reset=500 status=503 short=1000 ok reset=300",
    };
    session self;
    get gets[N_RANGES];
    open_far(&self, PACK_BYTES, 10);
    for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
        const uint64_t n_shared = stats_of(&self).n_shared;
        test_http_script(server, "/pack", scripts[i]);
        submit_ranges(&self, gets, 0, STEP_BYTES);
        check_ranges(&self, gets);
        assert_int_equal(stats_of(&self).n_shared - n_shared, N_RANGES - 1);
        /* All of them have waited for the server's sake. */
        for (uint32_t k = 0; !strcmp(scripts[i], "status=503") && k < N_RANGES; k++)
            assert_true(gets[k].read.times.earlier.throttled_ns > 0);
    }
    session_close(&self);
}

/* What lies beyond the object's end fails, and nothing else does, even without further attempts. */
static void shared_requests_may_end_early(void **state) {
    (void)state;
    session self;
    get gets[N_RANGES];
    open_far(&self, 4 * STEP_BYTES - 1, 1);
    submit_ranges(&self, gets, 0, STEP_BYTES);
    wait_for_all(&self);
    for (uint32_t i = 0; i < N_RANGES; i++) {
        if (i >= 4) assert_int_equal(gets[i].read.error, FM_READ_ENDS_EARLY);
        if (i < 4) check_range(&gets[i], 3);
        fm_reader_return(self.reads.reader, &gets[i].read);
    }
    session_close(&self);
}

static void shared_requests_can_be_cancelled(void **state) {
    (void)state;
    for (int closes = 0; closes < 2; closes++) {
        session self;
        get gets[N_RANGES];
        open_far(&self, PACK_BYTES, 10);
        test_http_script(server, "/pack", "stall=5000");
        submit_ranges(&self, gets, 0, STEP_BYTES);
        usleep(50000);
        if (!closes) {
            fm_reader_cancel_queued(self.reads.reader);
            wait_for_all(&self);
            check_whole(&self, "/far", 1, 100000);
        }
        session_close(&self);
        for (uint32_t i = 0; i < N_RANGES; i++) assert_int_equal(gets[i].read.error, ECANCELED);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_WITH_SERVER(late_answers_are_asked_for_again),
        TEST_WITH_SERVER(the_first_answer_counts),
        TEST_WITH_SERVER(no_more_second_requests_than_allowed),
        TEST_WITH_SERVER(neighbouring_ranges_share_a_request),
        TEST_WITH_SERVER(other_ranges_do_not),
        TEST_WITH_SERVER(shared_requests_survive_faults),
        TEST_WITH_SERVER(shared_requests_may_end_early),
        TEST_WITH_SERVER(shared_requests_can_be_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
