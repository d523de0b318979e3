/* The tasks of a batch that have their bytes: large ones first, each exactly once. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "pipeline/schedule.h"

#define N_TASKS 300

static int octave(uint64_t bytes) {
    int log2 = 0;
    while (bytes >>= 1) log2++;
    return log2;
}

static void the_largest_octave_comes_first(void **state) {
    (void)state;
    static const uint64_t sizes[] = {300, 70000, 0, 140000, 66000, 8191, 8192, 1u << 31, 5000000};
    static const int wanted[] = {31, 22, 17, 16, 16, 13};
    fm_pending batch = {0};
    fm_task tasks[9] = {0};
    for (int i = 0; i < 9; i++) fm_pending_push(&batch, &tasks[i], sizes[i]);
    for (int i = 0; i < 6; i++)
        assert_int_equal(octave(sizes[fm_pending_pop(&batch) - tasks]), wanted[i]);
    /* Below 8 KiB there is one class. */
    for (int i = 0; i < 3; i++) assert_true(sizes[fm_pending_pop(&batch) - tasks] < 8192);
    assert_null(fm_pending_pop(&batch));
}

/* Tasks become decodable while others are dequeued: none is lost, none is dequeued twice. */
static void each_task_comes_once(void **state) {
    (void)state;
    fm_pending batch = {0};
    static fm_task tasks[N_TASKS];
    int n_pushed = 0, n_taken[N_TASKS] = {0}, n_popped = 0;
    uint64_t random = 7;
    while (n_popped < N_TASKS) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        if (n_pushed < N_TASKS && random >> 63) {
            fm_pending_push(&batch, &tasks[n_pushed++], random >> (20 + random % 44));
            continue;
        }
        const fm_task *const task = fm_pending_pop(&batch);
        if (!task) {
            assert_int_equal(n_popped, n_pushed);
            continue;
        }
        n_taken[task - tasks]++;
        n_popped++;
    }
    for (int i = 0; i < N_TASKS; i++) assert_int_equal(n_taken[i], 1);
    assert_null(fm_pending_pop(&batch));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_octave_comes_first),
        cmocka_unit_test(each_task_comes_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
