/* The signals that a thread receives, and the share of its time that it has a CPU. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
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

/* ---- signals --------------------------------------------------------------------------------- */

/* What a fault raises in the thread that it happens in, and what a profiler sends to the threads
 * that run. */
static const int own_signals[] = {SIGSEGV, SIGBUS,  SIGFPE, SIGILL,
                                  SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
#define N_OWN_SIGNALS (sizeof(own_signals) / sizeof(*own_signals))

static void end_with_signal(int number) { _exit(100 + number); }

static void *raise_signal(void *argument) {
    const int number = *(const int *)argument;
    volatile char *const page = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (number == SIGSEGV) *page = 1;
    raise(number);
    return NULL;
}

/* faulthandler and crash reporters see the crash of a thread: the handler runs. A fault whose
 * signal is blocked ends the process without it. */
static void handlers_see_what_threads_raise(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OWN_SIGNALS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            fm_thread thread;
            int number = own_signals[i];
            signal(number, end_with_signal);
            if (fm_thread_start(&thread, "raises", 0, raise_signal, &number, NULL)) _exit(1);
            fm_thread_join(&thread);
            _exit(2);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 100 + own_signals[i]);
    }
}

static void *get_mask(void *argument) {
    pthread_sigmask(SIG_SETMASK, NULL, argument);
    return NULL;
}

static sigset_t mask_of_thread(void) {
    fm_thread thread;
    sigset_t mask;
    assert_int_equal(fm_thread_start(&thread, "mask", 0, get_mask, &mask, NULL), FM_OK);
    fm_thread_join(&thread);
    return mask;
}

/* All others are for the program's own threads: Ctrl-C, children, timers. */
static void other_signals_are_blocked(void **state) {
    (void)state;
    sigset_t mask = mask_of_thread(), before, more;
    for (int number = 1; number < SIGRTMIN; number++) {
        bool own = number == SIGKILL || number == SIGSTOP || number > SIGSYS;
        for (size_t i = 0; i < N_OWN_SIGNALS; i++) own = own || number == own_signals[i];
        if (!own && !sigismember(&mask, number)) fail_msg("signal %d is not blocked", number);
    }
    /* A program that blocks SIGPROF in all of its threads waits for it elsewhere. */
    sigemptyset(&more);
    sigaddset(&more, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &more, &before);
    mask = mask_of_thread();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_true(sigismember(&mask, SIGPROF));
    assert_false(sigismember(&mask, SIGSEGV));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handlers_see_what_threads_raise),
        cmocka_unit_test(other_signals_are_blocked),
        cmocka_unit_test(work_is_core_time),
        cmocka_unit_test(sleep_is_none),
        cmocka_unit_test(short_spans_lead_to_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
