/* cache.h: what is cached, the budget, and concurrent use. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/cache.h"

#define KIB ((uint64_t)1024)

static fm_cache *open_cache(uint64_t budget_bytes) {
    fm_cache *cache;
    fm_error error;
    if (fm_cache_open(&cache, budget_bytes, &error)) fail_msg("%s", error.message);
    return cache;
}

static fm_cache_usage usage_of(fm_cache *cache) {
    fm_cache_usage usage;
    fm_cache_usage_get(cache, &usage);
    return usage;
}

/* File i of a generated set: its path, and bytes that identify it. */
static void make_file(int i, size_t n_bytes, char path[64], uint8_t *bytes) {
    snprintf(path, 64, "/set/class%d/%06d.jpg", i % 7, i);
    for (size_t k = 0; k < n_bytes; k++) bytes[k] = (uint8_t)(i * 31 + k);
}

static void put(fm_cache *cache, int i, size_t n_bytes) {
    char path[64];
    uint8_t *const bytes = test_malloc(n_bytes + 1);
    make_file(i, n_bytes, path, bytes);
    fm_cache_put(cache, &(fm_cache_key){.path = path}, bytes, n_bytes);
    test_free(bytes);
}

/* Whether file i is cached; its bytes must be those that were put. */
static bool has(fm_cache *cache, int i, size_t n_bytes) {
    char path[64];
    uint8_t wanted[4096];
    make_file(i, n_bytes, path, wanted);
    size_t n;
    const uint8_t *const bytes = fm_cache_get(cache, &(fm_cache_key){.path = path}, &n);
    if (!bytes) {
        assert_int_equal(n, 0);
        return false;
    }
    assert_int_equal(n, n_bytes);
    assert_int_equal((uintptr_t)bytes % 64, 0);
    assert_memory_equal(bytes, wanted, n_bytes);
    return true;
}

static void files_are_kept_once(void **state) {
    (void)state;
    fm_cache *cache = open_cache(1024 * KIB);
    assert_false(has(cache, 1, 100));
    put(cache, 1, 100);
    assert_true(has(cache, 1, 100));
    assert_false(has(cache, 8, 100));
    size_t n;
    const fm_cache_key key = {.path = "/set/class1/000001.jpg"};
    const uint8_t *const first = fm_cache_get(cache, &key, &n);
    put(cache, 1, 100);
    assert_ptr_equal(fm_cache_get(cache, &key, &n), first);
    const fm_cache_usage usage = usage_of(cache);
    assert_int_equal(usage.n_files, 1);
    assert_int_equal(usage.file_bytes, 100);
    assert_int_equal(usage.n_refused, 0);
    fm_cache_close(&cache);
    assert_null(cache);
    fm_cache_close(&cache);
    fm_cache_close(NULL);
}

static void first_come_stays(void **state) {
    (void)state;
    for (uint64_t budget = 8 * KIB; budget <= 512 * KIB; budget *= 2) {
        fm_cache *cache = open_cache(budget);
        for (int i = 0; i < 1000; i++) put(cache, i, 900 + (size_t)i % 100);
        const fm_cache_usage usage = usage_of(cache);
        assert_in_range(usage.used_bytes, 1, budget);
        assert_int_equal(usage.n_files + usage.n_refused, 1000);
        int n_kept = 0;
        uint64_t bytes = 0;
        for (int i = 0; i < 1000; i++) {
            const size_t n_bytes = 900 + (size_t)i % 100;
            if (!has(cache, i, n_bytes)) continue;
            n_kept++;
            bytes += n_bytes;
        }
        assert_int_equal(n_kept, usage.n_files);
        assert_int_equal(bytes, usage.file_bytes);
        /* Paths, padding, table and the last piece, of such small files. */
        assert_true(bytes + bytes / 3 + 8 * KIB > budget);
        assert_true(has(cache, 0, 900));
        fm_cache_close(&cache);
    }
}

static void a_large_file_leaves_room_for_small_ones(void **state) {
    (void)state;
    fm_cache *cache = open_cache(64 * KIB);
    put(cache, 1, 100 * KIB);
    put(cache, 2, 2000);
    assert_true(has(cache, 2, 2000));
    assert_int_equal(usage_of(cache).n_refused, 1);
    fm_cache_close(&cache);
}

static void the_table_grows(void **state) {
    (void)state;
    fm_cache *cache = open_cache(64 * 1024 * KIB);
    for (int i = 0; i < 20000; i++) put(cache, i, 1 + (size_t)i % 300);
    for (int i = 0; i < 20000; i++) assert_true(has(cache, i, 1 + (size_t)i % 300));
    for (int i = 20000; i < 21000; i++) assert_false(has(cache, i, 10));
    fm_cache_close(&cache);
}

static void budgets_are_checked(void **state) {
    (void)state;
    fm_cache *cache = (fm_cache *)&state;
    fm_error error;
    assert_int_equal(fm_cache_open(&cache, UINT64_MAX, &error), FM_ERR_BUDGET);
    assert_null(cache);
    assert_int_equal(fm_cache_open(&cache, 100, &error), FM_ERR_BUDGET);
    assert_int_equal(fm_cache_open(NULL, 100 * KIB, &error), FM_ERR_ARGUMENT);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define N_THREADS 4
#define N_FILES 2000

static void *put_and_get(void *argument) {
    fm_cache *const cache = argument;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    for (int k = 0; k < 4 * N_FILES; k++) {
        const int i = rand_r(&seed) % N_FILES;
        const size_t n_bytes = 10 + (size_t)i % 500;
        if (!has(cache, i, n_bytes)) put(cache, i, n_bytes);
    }
    return NULL;
}

static void threads_share_it(void **state) {
    (void)state;
    fm_cache *cache = open_cache(400 * KIB); /* about half of the files */
    pthread_t threads[N_THREADS];
    for (int t = 0; t < N_THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, put_and_get, cache), 0);
    for (int t = 0; t < N_THREADS; t++) pthread_join(threads[t], NULL);
    uint64_t n_kept = 0;
    for (int i = 0; i < N_FILES; i++) n_kept += has(cache, i, 10 + (size_t)i % 500);
    assert_int_equal(n_kept, usage_of(cache).n_files);
    assert_in_range(n_kept, 500, N_FILES - 1);
    fm_cache_close(&cache);
}

static void a_child_is_not_the_owner(void **state) {
    (void)state;
    fm_cache *cache = open_cache(64 * KIB);
    assert_true(fm_cache_is_ours(cache));
    const pid_t child = fork();
    if (child == 0) _exit(fm_cache_is_ours(cache));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    fm_cache_close(&cache);
}

typedef struct busy {
    fm_cache *cache;
    _Atomic bool stop;
} busy;

static void *put_until_stopped(void *argument) {
    busy *const self = argument;
    for (int i = 0; !self->stop; i++) put(self->cache, i % N_FILES, 100);
    return NULL;
}

/* A thread of the parent may hold the lock at the fork, which then is never released there. */
static void a_child_may_ask_for_the_usage(void **state) {
    (void)state;
    busy shared = {.cache = open_cache(64 * KIB)};
    pthread_t threads[N_THREADS];
    for (int t = 0; t < N_THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, put_until_stopped, &shared), 0);
    int n_failed = 0;
    for (int i = 0; i < 20; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            const fm_cache_usage usage = usage_of(shared.cache);
            _exit(usage.n_files || usage.file_bytes || usage.used_bytes || usage.n_refused);
        }
        int status = 1;
        assert_int_equal(waitpid(child, &status, 0), child);
        n_failed += status != 0;
        if (n_failed) break;
    }
    shared.stop = true;
    for (int t = 0; t < N_THREADS; t++) pthread_join(threads[t], NULL);
    assert_int_equal(n_failed, 0);
    assert_true(usage_of(shared.cache).n_files > 0);
    fm_cache_close(&shared.cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_kept_once),
        cmocka_unit_test(first_come_stays),
        cmocka_unit_test(a_large_file_leaves_room_for_small_ones),
        cmocka_unit_test(the_table_grows),
        cmocka_unit_test(budgets_are_checked),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(a_child_is_not_the_owner),
        cmocka_unit_test(a_child_may_ask_for_the_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
