/* How much of its time a thread has a core. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"

#define MS 1000000u

static fm_core_clock open_clock(void) {
    fm_core_clock clock = {0};
    const uint64_t now_ns = fm_clock_ns();
    assert_int_equal(fm_core_clock_span(&clock, now_ns, now_ns), 0);
    return clock;
}

static void spin(uint64_t ns) {
    const uint64_t end_ns = fm_clock_of(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (fm_clock_of(CLOCK_THREAD_CPUTIME_ID) < end_ns) continue;
}

/* Whatever else runs on this machine, a thread has used what it has used, interrupts aside. Where a
 * hypervisor takes the core away unseen, one span has too much, and the next so much less. */
static void work_is_core_time(void **state) {
    (void)state;
    fm_core_clock clock = open_clock();
    uint64_t sum_ns = 0;
    for (int i = 0; i < 20; i++) {
        const uint64_t begin_ns = fm_clock_ns();
        spin(MS);
        const uint64_t whole_ns = fm_clock_ns() - begin_ns;
        const uint64_t span_ns = fm_core_clock_span(&clock, begin_ns, begin_ns + whole_ns);
        assert_true(span_ns <= whole_ns);
        sum_ns += span_ns;
    }
    assert_true(sum_ns >= 15 * MS);
}

static void sleep_is_none(void **state) {
    (void)state;
    fm_core_clock clock = open_clock();
    for (int i = 0; i < 5; i++) {
        const uint64_t begin_ns = fm_clock_ns();
        usleep(10000);
        const uint64_t end_ns = fm_clock_ns();
        assert_true(fm_core_clock_span(&clock, begin_ns, end_ns) < (end_ns - begin_ns) / 2);
    }
}

/* Spans in which nothing is looked up, and sleep between them: the next long one is right again. */
static void short_spans_lead_to_no_error(void **state) {
    (void)state;
    fm_core_clock clock = open_clock();
    for (int i = 0; i < 50; i++) {
        const uint64_t begin_ns = fm_clock_ns();
        const uint64_t end_ns = fm_clock_ns();
        assert_true(fm_core_clock_span(&clock, begin_ns, end_ns) <= end_ns - begin_ns);
        if (i % 10 == 0) usleep(500);
    }
    const uint64_t begin_ns = fm_clock_ns();
    spin(6 * MS);
    const uint64_t end_ns = fm_clock_ns();
    assert_in_range(fm_core_clock_span(&clock, begin_ns, end_ns), 3 * MS, end_ns - begin_ns);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_core_time),
        cmocka_unit_test(sleep_is_none),
        cmocka_unit_test(short_spans_lead_to_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
