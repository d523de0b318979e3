#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/thread.h"

static void at_least_one_cpu_and_some_memory(void **state) {
    (void)state;
    assert_true(fm_cpu_usable() >= 1);
    assert_true(fm_cpu_usable() <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    assert_true(fm_cpu_memory_bytes() > ((uint64_t)1 << 20));
}

static void a_tier_is_one_that_the_cpu_has(void **state) {
    (void)state;
#if defined(__aarch64__)
    static const char *const names[FM_CPU_N_TIERS] = {"scalar", "neon"};
    static const char *const wrong = "sse41", *const all = "it must be scalar or neon";
#else
    static const char *const names[FM_CPU_N_TIERS] = {"scalar", "sse41", "avx2", "avx512"};
    static const char *const wrong = "neon", *const all = "scalar, sse41, avx2 or avx512";
#endif
    fm_cpu_tier tier;
    fm_error error;
    const char *const set = getenv("FEEDMILL_CPU");
    char *const kept = set ? strdup(set) : NULL;
    unsetenv("FEEDMILL_CPU");
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), FM_OK);
    assert_int_equal(tier, fm_cpu_best_tier());
    for (int asked = 0; asked < FM_CPU_N_TIERS; asked++) {
        setenv("FEEDMILL_CPU", names[asked], 1);
        assert_string_equal(fm_cpu_tier_name((fm_cpu_tier)asked), names[asked]);
        assert_int_equal(fm_cpu_tier_get(&tier, NULL), FM_OK);
        const int best = (int)fm_cpu_best_tier();
        assert_int_equal(tier, asked < best ? asked : best);
    }
    setenv("FEEDMILL_CPU", "sse42", 1);
    assert_int_equal(fm_cpu_tier_get(&tier, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "'sse42'"));
    assert_non_null(strstr(error.message, all));
    setenv("FEEDMILL_CPU", wrong, 1); /* another processor's */
    assert_int_equal(fm_cpu_tier_get(&tier, &error), FM_ERR_ARGUMENT);
    setenv("FEEDMILL_CPU", "", 1); /* as if it were not set */
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), FM_OK);
    unsetenv("FEEDMILL_CPU");
    if (kept) setenv("FEEDMILL_CPU", kept, 1);
    free(kept);
}

static void *report_mask(void *out) {
    /* The creator sets the mask right after the start. */
    do {
        usleep(1000);
        sched_getaffinity(0, sizeof(cpu_set_t), out);
    } while (CPU_COUNT((cpu_set_t *)out) < 2);
    return NULL;
}

static void *wait_for_end(void *go) {
    while (!__atomic_load_n((int *)go, __ATOMIC_ACQUIRE)) usleep(1000);
    return NULL;
}

/* OMP_PROC_BIND pins the main thread to one CPU; decode threads must not inherit that. */
static void a_pinned_main_thread_does_not_pin_ours(void **state) {
    (void)state;
    cpu_set_t before, one, seen;
    sched_getaffinity(0, sizeof(before), &before);
    if (CPU_COUNT(&before) < 2) skip();
    int go = 0;
    fm_thread other, ours;
    assert_int_equal(fm_thread_start(&other, "other", 0, wait_for_end, &go, NULL), FM_OK);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &before)) continue;
        CPU_SET(cpu, &one);
        break;
    }
    sched_setaffinity(0, sizeof(one), &one);
    assert_true(fm_cpu_process_mask(&seen, sizeof(seen)));
    assert_true(CPU_EQUAL(&seen, &before));
    assert_int_equal(fm_thread_start(&ours, "ours", 0, report_mask, &seen, NULL), FM_OK);
    fm_thread_join(&ours);
    assert_true(CPU_EQUAL(&seen, &before));
    sched_setaffinity(0, sizeof(before), &before);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    fm_thread_join(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_least_one_cpu_and_some_memory),
        cmocka_unit_test(a_tier_is_one_that_the_cpu_has),
        cmocka_unit_test(a_pinned_main_thread_does_not_pin_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
