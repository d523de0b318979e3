/*
 * Counts the whole process's allocations from the C library (malloc() and the like, mmap()), and
 * makes one of these calls fail. Include it in the one source file of a test: it defines malloc()
 * and the others for the executable, and, since they are exported, for the shared libraries that it
 * uses.
 *
 * Under a sanitizer, whose malloc() can't be replaced, its hook counts, and only aligned_alloc(),
 * which base/mem.c uses, can be made to fail.
 */
#ifndef FM_TEST_ALLOCATIONS_H
#define FM_TEST_ALLOCATIONS_H

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Everything is compiled with -fvisibility=hidden, by which no shared library would see these. */
#define TEST_EXPORT __attribute__((visibility("default")))

static _Atomic bool test_allocations_on;
static _Atomic long test_allocations_n, test_allocations_failable;
static _Atomic long test_allocations_fail_at; /* from 1; 0: none */

/* From now on calls are counted; the fail_at-th (from 1) of those that can fails. 0: none fails. */
static inline void test_allocations_begin(long fail_at) {
    atomic_store(&test_allocations_n, 0);
    atomic_store(&test_allocations_failable, 0);
    atomic_store(&test_allocations_fail_at, fail_at);
    atomic_store(&test_allocations_on, true);
}

/* Ends counting. The number of calls, with the one that failed. */
static inline long test_allocations_end(void) {
    atomic_store(&test_allocations_on, false);
    return atomic_load(&test_allocations_n);
}

static inline bool test_allocations_failed(void) {
    const long fail_at = atomic_load(&test_allocations_fail_at);
    return fail_at > 0 && atomic_load(&test_allocations_failable) >= fail_at;
}

/* Whether all other threads of the process sleep. */
static inline bool test_others_sleep(void) {
    DIR *const tasks = opendir("/proc/self/task");
    bool sleep = tasks != NULL;
    for (struct dirent *entry; sleep && (entry = readdir(tasks));) {
        char path[300], line[512] = "";
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == gettid()) continue;
        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", entry->d_name);
        FILE *const file = fopen(path, "r");
        if (!file) continue; /* it has ended */
        const bool is_read = fgets(line, sizeof(line), file) != NULL;
        fclose(file);
        const char *const name_end = strrchr(line, ')');
        sleep = is_read && name_end && strncmp(name_end, ") S", 3) == 0;
    }
    if (tasks) closedir(tasks);
    return sleep;
}

/* Waits until all threads have begun to run and wait for work: AddressSanitizer allocates where a
 * thread begins, which may be long after it was created. */
static inline void test_allocations_settle(void) {
    for (int n_asleep = 0, n_tries = 0; n_asleep < 3 && n_tries < 30000; n_tries++) {
        n_asleep = test_others_sleep() ? n_asleep + 1 : 0;
        usleep(2000);
    }
}

static inline void test_allocations_count(void) {
    if (atomic_load(&test_allocations_on)) atomic_fetch_add(&test_allocations_n, 1);
}

/* Whether this call is to fail. */
static inline bool test_allocations_fail(void) {
    if (!atomic_load(&test_allocations_on)) return false;
    if (atomic_fetch_add(&test_allocations_failable, 1) + 1 !=
        atomic_load(&test_allocations_fail_at))
        return false;
    errno = ENOMEM;
    return true;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void test_allocations_on_malloc(const volatile void *block, size_t n) {
    (void)block, (void)n;
    test_allocations_count();
}

static void test_allocations_on_free(const volatile void *block) { (void)block; }

__attribute__((constructor)) static void test_allocations_install(void) {
    __sanitizer_install_malloc_and_free_hooks(test_allocations_on_malloc, test_allocations_on_free);
}

TEST_EXPORT void *aligned_alloc(size_t alignment, size_t n) {
    void *block = NULL;
    if (test_allocations_fail() || posix_memalign(&block, alignment, n)) return NULL;
    return block;
}

#else

/* glibc's own, under the names that it exports for this purpose. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static inline bool test_allocations_refuse(void) {
    test_allocations_count();
    return test_allocations_fail();
}

TEST_EXPORT void *malloc(size_t n) { return test_allocations_refuse() ? NULL : __libc_malloc(n); }

TEST_EXPORT void *calloc(size_t n, size_t size) {
    return test_allocations_refuse() ? NULL : __libc_calloc(n, size);
}

TEST_EXPORT void *realloc(void *block, size_t n) {
    return test_allocations_refuse() ? NULL : __libc_realloc(block, n);
}

TEST_EXPORT void *aligned_alloc(size_t alignment, size_t n) {
    return test_allocations_refuse() ? NULL : __libc_memalign(alignment, n);
}

TEST_EXPORT int posix_memalign(void **block, size_t alignment, size_t n) {
    if (test_allocations_refuse()) return ENOMEM;
    void *const taken = __libc_memalign(alignment, n);
    if (!taken) return ENOMEM;
    *block = taken;
    return 0;
}

TEST_EXPORT void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset) {
    if (test_allocations_refuse()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, n, protection, flags, fd, offset);
}

#endif

#endif
