/* Helpers of the reader's tests: files with known bytes, and a reader whose reads can be waited
 * for.
 */
#ifndef FM_TEST_READS_H
#define FM_TEST_READS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "read/reader_impl.h"

/* Timeout of all waits: only a hang takes longer, even on a slow machine. */
#define TEST_PATIENCE_S 300

static inline uint64_t test_patience_ends_ns(void) {
    return fm_clock_ns() + TEST_PATIENCE_S * (uint64_t)1000000000u;
}

/* Each body runs on both back ends. */
#define TEST_BOTH(body)                                                           \
    {#body " (pread)", body, NULL, NULL, &(fm_reader_kind){FM_READER_PREAD}}, {   \
#body " (uring)", body, NULL, NULL, &(fm_reader_kind) { FM_READER_URING } \
    }

/* A reader, and the reads that it has finished. */
typedef struct test_reads {
    fm_reader *reader;
    fm_mem_counter counter;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock. */
    size_t n_done;
    fm_read *ended, **ended_end; /* in the order in which they ended, not yet popped */
    bool closed;                 /* on_done() must not be called any more */
} test_reads;

static inline void test_on_done(void *user, fm_read *read) {
    test_reads *const reads = user;
    pthread_mutex_lock(&reads->lock);
    if (reads->closed) {
        fprintf(stderr, "on_done() after fm_reader_close()\n");
        abort();
    }
    read->next = NULL;
    *reads->ended_end = read;
    reads->ended_end = &read->next;
    reads->n_done++;
    pthread_cond_broadcast(&reads->changed);
    pthread_mutex_unlock(&reads->lock);
}

/* Opens a reader; skips the test if io_uring is not available. Zero fields of *config get small
 * defaults. */
static inline void test_reads_open(test_reads *reads, fm_reader_config config,
                                   const fm_reader_fault *fault) {
    *reads = (test_reads){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    reads->ended_end = &reads->ended;
    if (!config.buffer_bytes) config.buffer_bytes = 8 << 20;
    if (!config.max_file_bytes) config.max_file_bytes = 64 << 20;
    config.on_done = test_on_done;
    config.user = reads;
    config.counter = &reads->counter;
    fm_error error;
    const int status = fm_reader_open_faulty(&reads->reader, &config, fault, &error);
    if (status == FM_ERR_UNAVAILABLE && config.kind == FM_READER_URING) {
        fprintf(stderr, "skipped: %s\n", error.message);
        skip();
    }
    if (status) fail_msg("%s", error.message);
}

static inline void test_reads_close(test_reads *reads) {
    fm_reader_close(&reads->reader);
    pthread_mutex_lock(&reads->lock);
    reads->closed = true;
    pthread_mutex_unlock(&reads->lock);
}

/* Waits until n reads have ended; false on a timeout. */
static inline bool test_reads_wait(test_reads *reads, size_t n) {
    const uint64_t limit_ns = test_patience_ends_ns();
    pthread_mutex_lock(&reads->lock);
    while (reads->n_done < n && fm_clock_ns() < limit_ns) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        pthread_cond_timedwait(&reads->changed, &reads->lock, &soon);
    }
    const bool complete = reads->n_done >= n;
    pthread_mutex_unlock(&reads->lock);
    return complete;
}

static inline size_t test_reads_n_done(test_reads *reads) {
    pthread_mutex_lock(&reads->lock);
    const size_t n_done = reads->n_done;
    pthread_mutex_unlock(&reads->lock);
    return n_done;
}

/* Waits for the next read to end and returns it; NULL on a timeout. */
static inline fm_read *test_reads_pop(test_reads *reads) {
    const uint64_t limit_ns = test_patience_ends_ns();
    pthread_mutex_lock(&reads->lock);
    while (!reads->ended && fm_clock_ns() < limit_ns) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        pthread_cond_timedwait(&reads->changed, &reads->lock, &soon);
    }
    fm_read *const read = reads->ended;
    if (read) reads->ended = read->next;
    if (!reads->ended) reads->ended_end = &reads->ended;
    pthread_mutex_unlock(&reads->lock);
    return read;
}

static inline void submit_one(fm_reader *reader, fm_read *read) {
    read->next = NULL;
    fm_reader_submit(reader, read);
}

/* Reads one file and waits for it. No others may be in flight. */
static inline fm_read test_read_one(test_reads *reads, const char *path, uint64_t expected_bytes) {
    fm_read read = {.path = path, .expected_bytes = expected_bytes};
    submit_one(reads->reader, &read);
    assert_ptr_equal(test_reads_pop(reads), &read);
    return read;
}

/* ---- files ----------------------------------------------------------------------------------- */

static inline uint8_t test_byte(uint32_t seed, uint64_t at) {
    const uint64_t mixed = (at + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)seed * 0xC2B2AE3D27D4EB4Fu;
    return (uint8_t)(mixed >> 29);
}

static inline void test_file_write(const char *path, uint32_t seed, uint64_t n_bytes) {
    uint8_t *const bytes = malloc(n_bytes + 1);
    assert_non_null(bytes);
    for (uint64_t i = 0; i < n_bytes; i++) bytes[i] = test_byte(seed, i);
    FILE *const out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n_bytes, out), n_bytes);
    assert_int_equal(fclose(out), 0);
    free(bytes);
}

/* Asserts that the read returned exactly this file, aligned. */
static inline void test_check_file(const fm_read *read, uint32_t seed, uint64_t n_bytes) {
    assert_int_equal(read->error, 0);
    assert_int_equal(read->n_bytes, n_bytes);
    assert_true(read->submitted_ns <= read->started_ns && read->started_ns <= read->done_ns);
    if (n_bytes == 0) {
        assert_null(read->bytes);
        return;
    }
    assert_int_equal((uintptr_t)read->bytes % 64, 0);
    for (uint64_t i = 0; i < n_bytes; i++)
        if (read->bytes[i] != test_byte(seed, i))
            fail_msg("%s: byte %llu is %d instead of %d", read->path, (unsigned long long)i,
                     read->bytes[i], test_byte(seed, i));
}

static inline void test_dir_open(char dir[64]) {
    strcpy(dir, "/tmp/fm_reader_XXXXXX");
    if (!mkdtemp(dir)) fail_msg("can't make a directory in /tmp");
}

static inline void test_dir_close(const char *dir) {
    DIR *const handle = opendir(dir);
    assert_non_null(handle);
    for (const struct dirent *entry; (entry = readdir(handle));) {
        if (entry->d_name[0] == '.') continue;
        if (unlinkat(dirfd(handle), entry->d_name, 0))
            unlinkat(dirfd(handle), entry->d_name, AT_REMOVEDIR);
    }
    closedir(handle);
    assert_int_equal(rmdir(dir), 0);
}

static inline int test_count_entries(const char *dir) {
    DIR *const handle = opendir(dir);
    int n = 0;
    while (handle && readdir(handle)) n++;
    if (handle) closedir(handle);
    return n;
}

/* Waits until a directory of /proc has at most that many entries; false on a timeout. The kernel
 * removes ended threads and closed files with a delay. */
static inline bool test_counts_fall(const char *dir, int n_entries) {
    const uint64_t limit_ns = test_patience_ends_ns();
    while (test_count_entries(dir) > n_entries && fm_clock_ns() < limit_ns) usleep(1000);
    return test_count_entries(dir) <= n_entries;
}

#endif
