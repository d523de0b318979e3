/* When requests are tried again, and how many are in flight. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "read/retry.h"

#define S ((uint64_t)1000000000)
#define FIRST (100 * S)

static const fm_retry_policy policy = {
    .max_attempts = 6, .give_up_ns = 60 * S, .base_ns = S, .cap_ns = 8 * S};

/* The pauses are between nothing and a limit that doubles up to the cap. */
static void pauses_grow(void **state) {
    (void)state;
    static const uint64_t longest[] = {S, 2 * S, 4 * S, 8 * S, 8 * S};
    fm_retry low = {.first_ns = FIRST}, high = {.first_ns = FIRST};
    for (int i = 0; i < 5; i++) {
        uint64_t at_ns;
        fm_retry_failure failure = {.now_ns = FIRST + 1};
        assert_true(fm_retry_next(&policy, &low, &failure, &at_ns));
        assert_int_equal(at_ns, failure.now_ns);
        failure.random = UINT32_MAX;
        assert_true(fm_retry_next(&policy, &high, &failure, &at_ns));
        assert_in_range(at_ns - failure.now_ns, longest[i] - 100, longest[i]);
    }
    /* That was the sixth attempt. */
    uint64_t at_ns;
    const fm_retry_failure failure = {.now_ns = FIRST + 1};
    assert_false(fm_retry_next(&policy, &low, &failure, &at_ns));
    assert_int_equal(low.n_failures, 6);
}

static void one_attempt_is_not_repeated(void **state) {
    (void)state;
    fm_retry_policy one = policy;
    one.max_attempts = 1;
    fm_retry retry = {.first_ns = FIRST};
    uint64_t at_ns;
    assert_false(fm_retry_next(&one, &retry, &(fm_retry_failure){.now_ns = FIRST}, &at_ns));
}

/* A server that is not there is waited for until the time is over, and not tried in a burst then.
 */
static void absent_servers_are_waited_for(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 200; seed++) {
        fm_retry retry = {.first_ns = FIRST};
        fm_retry_failure failure = {.now_ns = FIRST, .no_server = true};
        uint64_t at_ns;
        srand(seed);
        for (;;) {
            failure.random = (uint32_t)rand() << 1;
            if (!fm_retry_next(&policy, &retry, &failure, &at_ns)) break;
            assert_true(at_ns >= failure.now_ns && at_ns < FIRST + policy.give_up_ns);
            failure.now_ns = at_ns + S / 1000;
        }
        assert_true(failure.now_ns + policy.base_ns >= FIRST + policy.give_up_ns);
        assert_true(retry.n_failures < 100);
        assert_int_equal(retry.n_counted, 0);
    }
}

static void servers_choose_the_pause(void **state) {
    (void)state;
    fm_retry retry = {.first_ns = FIRST};
    fm_retry_failure failure = {.now_ns = FIRST + S, .wait_ns = 30 * S};
    uint64_t at_ns;
    assert_true(fm_retry_next(&policy, &retry, &failure, &at_ns));
    assert_int_equal(at_ns, FIRST + 31 * S);
    failure.random = UINT32_MAX;
    assert_true(fm_retry_next(&policy, &retry, &failure, &at_ns));
    assert_in_range(at_ns, FIRST + 32 * S, FIRST + 33 * S);
    /* Not if it is over after the last attempt may begin. */
    failure.wait_ns = 59 * S;
    assert_false(fm_retry_next(&policy, &retry, &failure, &at_ns));
    failure.wait_ns = UINT64_MAX / 4;
    assert_false(fm_retry_next(&policy, &retry, &failure, &at_ns));
}

static void no_attempt_is_late(void **state) {
    (void)state;
    fm_retry retry = {.first_ns = FIRST};
    fm_retry_failure failure = {.now_ns = FIRST + 58 * S, .random = UINT32_MAX};
    uint64_t at_ns;
    retry.n_failures = 3;
    assert_true(fm_retry_next(&policy, &retry, &failure, &at_ns));
    assert_true(at_ns < FIRST + 60 * S);
    failure.now_ns = FIRST + 60 * S;
    assert_false(fm_retry_next(&policy, &retry, &failure, &at_ns));
    failure.now_ns = FIRST + 600 * S;
    assert_false(fm_retry_next(&policy, &retry, &failure, &at_ns));
}

/* ---- requests in flight ---------------------------------------------------------------------- */

static void flow_grows_to_its_limit(void **state) {
    (void)state;
    fm_flow flow;
    fm_flow_init(&flow, 256);
    assert_int_equal(fm_flow_limit(&flow), FM_FLOW_FIRST);
    for (int i = 0; i < 1000; i++) fm_flow_answered(&flow);
    assert_int_equal(fm_flow_limit(&flow), 256);
    fm_flow_init(&flow, 3);
    for (int i = 0; i < 10; i++) {
        assert_in_range(fm_flow_limit(&flow), 1, 3);
        fm_flow_answered(&flow);
    }
    assert_int_equal(fm_flow_limit(&flow), 3);
}

static void flow_falls_and_recovers(void **state) {
    (void)state;
    fm_flow flow;
    fm_flow_init(&flow, 256);
    for (int i = 0; i < 1000; i++) fm_flow_answered(&flow);
    /* All 256 in flight are refused: that halves it once. */
    for (int i = 0; i < 256; i++) fm_flow_refused(&flow, 10 * S, 11 * S);
    assert_int_equal(fm_flow_limit(&flow), 128);
    fm_flow_refused(&flow, 12 * S, 13 * S);
    assert_int_equal(fm_flow_limit(&flow), 64);
    /* One round of answers adds a little. */
    for (int i = 0; i < 64; i++) fm_flow_answered(&flow);
    assert_in_range(fm_flow_limit(&flow), 64 + FM_FLOW_GROWTH - 1, 64 + FM_FLOW_GROWTH);
    for (int i = 0; i < 100000; i++) fm_flow_answered(&flow);
    assert_int_equal(fm_flow_limit(&flow), 256);
    /* It never comes to a halt. */
    for (uint64_t t = 20; t < 100; t++) {
        fm_flow_refused(&flow, t * S, t * S);
        assert_true(fm_flow_limit(&flow) >= 1);
    }
    assert_int_equal(fm_flow_limit(&flow), 1);
    for (int i = 0; i < 100000; i++) fm_flow_answered(&flow);
    assert_int_equal(fm_flow_limit(&flow), 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_grow),
        cmocka_unit_test(one_attempt_is_not_repeated),
        cmocka_unit_test(absent_servers_are_waited_for),
        cmocka_unit_test(servers_choose_the_pause),
        cmocka_unit_test(no_attempt_is_late),
        cmocka_unit_test(flow_grows_to_its_limit),
        cmocka_unit_test(flow_falls_and_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
