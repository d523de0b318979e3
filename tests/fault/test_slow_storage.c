/* Storage that delays or fails requests while the reader is used and closed. The test controls
 * which ones (support/far.h), so nothing here depends on timing. */
#define _GNU_SOURCE
#include "folder.h"
#include "slow_storage.h"

#include <limits.h>
#include <sys/resource.h>

#define FILE_BYTES 20000
#define N_FILES 3

typedef struct fixture {
    test_reads reads;
    test_storage at;
    int n_files; /* open before anything else was */
} fixture;

static bool is_uring(void **state) { return **(fm_reader_kind **)state == FM_READER_URING; }

/* Files "0" to "2" on high-latency storage, and a reader. */
static void open_far(fixture *f, void **state, const fm_reader_fault *fault) {
    test_storage_need();
    *f = (fixture){.n_files = test_count_entries("/proc/self/fd")};
    test_reads_open(&f->reads, (fm_reader_config){.kind = **(fm_reader_kind **)state, .depth = 8},
                    fault);
    if (!test_storage_open(&f->at, "0")) {
        test_reads_close(&f->reads);
        skip();
    }
    for (uint32_t i = 0; i < N_FILES; i++) {
        char path[96];
        snprintf(path, sizeof(path), "%s/%u", f->at.source, i);
        test_file_write(path, i, FILE_BYTES);
    }
}

/* Counts threads by name, as sanitizers start some as well. */
static int count_reader_threads(void) {
    DIR *const tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    int n = 0;
    for (const struct dirent *entry; (entry = readdir(tasks));) {
        char path[320], name[16] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        FILE *const file = fopen(path, "r");
        if (!file) continue;
        n += fgets(name, sizeof(name), file) && !strncmp(name, "fm-", 3);
        fclose(file);
    }
    closedir(tasks);
    return n;
}

/* All threads and files of the reader end, also those that close() had to leave behind. */
static void expect_nothing_left(const fixture *f) {
    const uint64_t limit_ns = test_patience_ends_ns();
    while (fm_clock_ns() < limit_ns &&
           (count_reader_threads() > 0 || test_count_entries("/proc/self/fd") > f->n_files))
        usleep(10000);
    assert_int_equal(count_reader_threads(), 0);
    assert_int_equal(test_count_entries("/proc/self/fd"), f->n_files);
}

static void submit_range(fixture *f, fm_read *read, const char *path) {
    *read = (fm_read){.path = path, .offset_bytes = 100, .range_bytes = 1000};
    submit_one(f->reads.reader, read);
}

/* ---- the caller's memory goes at close ------------------------------------------------------- */

/* A thread that comes back from open() after close() must not touch the caller's counter. */
static void an_open_may_outlast_the_counter(void **state) {
    (void)state;
    fixture f;
    fm_reader_kind kind = FM_READER_PREAD, *const kind_state = &kind;
    open_far(&f, (void *)&kind_state, NULL);
    char path[96];
    snprintf(path, sizeof(path), "%s/0", f.at.mountpoint);
    test_storage_rule(&f.at, "open", "0", "");
    fm_read read;
    submit_range(&f, &read, path);
    assert_true(test_storage_is_held(&f.at, "open", "0"));
    test_reads_close(&f.reads);
    assert_int_equal(read.error, ECANCELED);
    const uint64_t n_blocks = f.reads.counter.n_blocks;
    test_storage_release(&f.at, "open", "0");
    expect_nothing_left(&f);
    assert_int_equal(f.reads.counter.n_blocks, n_blocks);
    test_storage_close(&f.at);
}

/* Holds the thread that reports the result of a read, each time. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_reached, n_open;
} gate;

static int64_t pass_gate(void *user, const char *path, int64_t result) {
    (void)path;
    gate *const at = user;
    pthread_mutex_lock(&at->lock);
    const int number = ++at->n_reached;
    pthread_cond_broadcast(&at->changed);
    while (at->n_open < number) pthread_cond_wait(&at->changed, &at->lock);
    pthread_mutex_unlock(&at->lock);
    return result;
}

static void wait_for_gate(gate *at, int number) {
    pthread_mutex_lock(&at->lock);
    while (at->n_reached < number) pthread_cond_wait(&at->changed, &at->lock);
    pthread_mutex_unlock(&at->lock);
}

/* Only for the first n results. */
static void open_gate(gate *at, int n_open) {
    pthread_mutex_lock(&at->lock);
    at->n_open = n_open;
    pthread_cond_broadcast(&at->changed);
    pthread_mutex_unlock(&at->lock);
}

/*
 * The ring's thread is held while the reader is closed. What it does next is to look at a file that
 * could not be opened, and to open it again for the reads that waited for it. For that the failed
 * open (of file 1) must be reported together with, and behind, the read (of file 2) that holds the
 * thread; it is held at file 0 until both are there.
 */
static void a_failed_open_may_outlast_the_counter(void **state) {
    (void)state;
    fixture f;
    /* Static, as the thread that is left behind is not joined. */
    static gate at = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    fm_reader_kind kind = FM_READER_URING, *const kind_state = &kind;
    open_far(&f, (void *)&kind_state, &(fm_reader_fault){.result = pass_gate, .user = &at});
    char paths[N_FILES][96];
    for (int i = 0; i < N_FILES; i++)
        snprintf(paths[i], sizeof(paths[i]), "%s/%d", f.at.mountpoint, i);
    test_storage_rule(&f.at, "open", "1", "");
    test_storage_rule(&f.at, "read", "2", "");
    fm_read reads[5];
    for (int i = 0; i < 5; i++) {
        if (i == 4) {
            assert_true(test_storage_is_held(&f.at, "open", "1"));
            assert_true(test_storage_is_held(&f.at, "read", "2"));
        }
        submit_range(&f, &reads[i], paths[i < 3 ? 1 : i == 3 ? 2 : 0]);
    }
    wait_for_gate(&at, 1);
    test_storage_release(&f.at, "read", "2");
    test_storage_rule(&f.at, "open", "1", "5 1");
    test_storage_wait_for_count(&f.at, "open", "1");
    open_gate(&at, 1);
    wait_for_gate(&at, 2);
    test_reads_close(&f.reads);
    const uint64_t n_blocks = f.reads.counter.n_blocks;
    open_gate(&at, INT_MAX);
    test_storage_release(&f.at, "open", "1");
    expect_nothing_left(&f);
    assert_int_equal(f.reads.counter.n_blocks, n_blocks);
    test_storage_close(&f.at);
}

/* ---- files that stay open -------------------------------------------------------------------- */

/* Of a file with O_NONBLOCK io_uring believes that no read waits. The ring's thread opens a file
 * itself where the kernel answers ECANCELED. */
static void files_that_stay_open_block(void **state) {
    fixture f;
    open_far(&f, state, NULL);
    char path[96], rule[16];
    snprintf(path, sizeof(path), "%s/0", f.at.mountpoint);
    snprintf(rule, sizeof(rule), "%d 1", ECANCELED);
    if (is_uring(state)) test_storage_rule(&f.at, "open", "0", rule);
    fm_read read;
    submit_range(&f, &read, path);
    if (is_uring(state)) {
        assert_true(test_storage_is_held(&f.at, "open", "0"));
        test_storage_release(&f.at, "open", "0");
    }
    assert_ptr_equal(test_reads_pop(&f.reads), &read);
    assert_int_equal(read.error, 0);
    pthread_mutex_lock(&f.reads.reader->lock);
    const fm_cached_file *const cached = f.reads.reader->file_cache.newest;
    const int flags = cached ? fcntl(cached->file, F_GETFL) : -1;
    pthread_mutex_unlock(&f.reads.reader->lock);
    assert_true(flags >= 0);
    assert_int_equal(flags & O_NONBLOCK, 0);
    test_reads_close(&f.reads);
    expect_nothing_left(&f);
    test_storage_close(&f.at);
}

/* ---- a close that hangs ---------------------------------------------------------------------- */

/* Ends the hold some minutes later, so that a reader that waits for it fails the test. */
typedef struct watchdog {
    const fixture *f;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, barked;
    pthread_t thread;
} watchdog;

static void *watch(void *argument) {
    watchdog *const self = argument;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += TEST_PATIENCE_S;
    pthread_mutex_lock(&self->lock);
    while (!self->done && !self->barked)
        self->barked = pthread_cond_timedwait(&self->changed, &self->lock, &limit) == ETIMEDOUT;
    if (self->barked) test_storage_release(&self->f->at, "close", "0");
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* Closes the reader while the file system does not answer closes of file 0. */
static void close_on_dead_storage(fixture *f) {
    watchdog dog = {.f = f, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    assert_int_equal(pthread_create(&dog.thread, NULL, watch, &dog), 0);
    test_reads_close(&f->reads);
    pthread_mutex_lock(&dog.lock);
    dog.done = true;
    pthread_cond_broadcast(&dog.changed);
    pthread_mutex_unlock(&dog.lock);
    pthread_join(dog.thread, NULL);
    assert_false(dog.barked);
}

/* The files that stay open are closed at the end, and the storage may be gone by then. */
static void close_does_not_wait_for_dead_storage(void **state) {
    fixture f;
    open_far(&f, state, NULL);
    char paths[N_FILES][96];
    fm_read reads[N_FILES];
    for (int i = 0; i < N_FILES; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s/%d", f.at.mountpoint, i);
        submit_range(&f, &reads[i], paths[i]);
    }
    assert_true(test_reads_wait(&f.reads, N_FILES));
    test_storage_rule(&f.at, "close", "0", "");
    close_on_dead_storage(&f);
    assert_true(test_storage_is_held(&f.at, "close", "0"));
    test_storage_release(&f.at, "close", "0");
    expect_nothing_left(&f);
    test_storage_close(&f.at);
}

/* A file that made room for another one is being closed when the reader is. */
static void close_does_not_wait_for_an_evicted_file(void **state) {
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit lowered = {64, before.rlim_max}; /* an eighth of it may stay open */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &lowered), 0);
    fixture f;
    open_far(&f, state, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    const uint32_t n_kept = f.reads.reader->file_cache.limit;
    assert_int_equal(n_kept, 8);
    test_storage_rule(&f.at, "close", "0", "");
    for (uint32_t i = 0; i <= n_kept; i++) {
        char path[96];
        snprintf(path, sizeof(path), "%s/%u", f.at.source, i);
        test_file_write(path, i, FILE_BYTES);
        snprintf(path, sizeof(path), "%s/%u", f.at.mountpoint, i);
        fm_read read;
        submit_range(&f, &read, path);
        /* With threads the last read waits for the close, and ends with the reader. */
        if (i == n_kept) {
            assert_true(test_storage_is_held(&f.at, "close", "0"));
            close_on_dead_storage(&f);
        } else {
            assert_ptr_equal(test_reads_pop(&f.reads), &read);
            assert_int_equal(read.error, 0);
            fm_reader_return(f.reads.reader, &read);
        }
    }
    test_storage_release(&f.at, "close", "0");
    expect_nothing_left(&f);
    test_storage_close(&f.at);
}

/* ---- errors of the storage ------------------------------------------------------------------- */

/* A loader of the images "0.jpg" and "1.jpg" on far storage, whole files or ranges. */
static fm_loader *open_loader(fixture *f, void **state) {
    char command[256];
    test_storage_need();
    *f = (fixture){0};
    if (!test_storage_open(&f->at, "0")) skip();
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof(command), "%s size=40x30 %s/%d.jpg", getenv("FM_MKJPEG"),
                 f->at.source, i);
        test_run(command);
    }
    fm_config config = test_config((fm_source){.n_samples = 2});
    config.reader = **(fm_reader_kind **)state;
    fm_loader *loader = NULL;
    fm_error error;
    const int status = fm_loader_open(&loader, &config, &error);
    if (!status) return loader;
    test_storage_close(&f->at);
    if (status != FM_ERR_UNAVAILABLE) fail_msg("open: %s", error.message);
    fprintf(stderr, "skipped: %s\n", error.message);
    skip();
    return NULL;
}

/* Two batches: what becomes of image 0, and of image 1. */
static void run_epoch(const fixture *f, fm_loader *loader, bool ranges, int statuses[2],
                      fm_error errors[2]) {
    assert_int_equal(fm_loader_start(loader, &(fm_epoch){.seed = 1}, NULL), FM_OK);
    for (int i = 0; i < 2; i++) {
        char path[96];
        struct stat file;
        snprintf(path, sizeof(path), "%s/%d.jpg", f->at.mountpoint, i);
        assert_int_equal(stat(path, &file), 0);
        const fm_sample sample = {
            .index = i, .path = path, .range_bytes = ranges ? (uint64_t)file.st_size : 0};
        assert_int_equal(fm_loader_submit(loader, &sample, 1, NULL), FM_OK);
    }
    for (int i = 0; i < 2; i++) {
        fm_batch batch;
        statuses[i] = fm_loader_next(loader, 20000000000, &batch, &errors[i]);
        fm_batch_release(&batch);
    }
}

/* ECANCELED is also what the reader answers for reads of an epoch that was stopped. */
static void a_cancelled_read_is_an_error(void **state) {
    char rule[16];
    snprintf(rule, sizeof(rule), "%d", ECANCELED);
    for (int round = 0; round < 4; round++) {
        fixture f;
        fm_loader *loader = open_loader(&f, state);
        const char *const request = round % 2 ? "open" : "read";
        int statuses[2];
        fm_error errors[2];
        test_storage_rule(&f.at, request, "0.jpg", rule);
        run_epoch(&f, loader, round / 2, statuses, errors);
        assert_int_equal(statuses[0], FM_ERR_READ);
        assert_int_equal(errors[0].index, 0);
        assert_non_null(strstr(errors[0].message, "0.jpg"));
        assert_non_null(strstr(errors[0].message, strerror(ECANCELED)));
        assert_int_equal(statuses[1], FM_OK);
        test_storage_release(&f.at, request, "0.jpg");
        run_epoch(&f, loader, round / 2, statuses, errors);
        assert_int_equal(statuses[0], FM_OK);
        assert_int_equal(statuses[1], FM_OK);
        fm_stats stats;
        fm_loader_stats(loader, &stats);
        assert_null(strstr(stats.reader_reason, "helper"));
        fm_loader_close(&loader);
        test_storage_close(&f.at);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_open_may_outlast_the_counter),
        cmocka_unit_test(a_failed_open_may_outlast_the_counter),
        TEST_BOTH(files_that_stay_open_block),
        TEST_BOTH(close_does_not_wait_for_dead_storage),
        TEST_BOTH(close_does_not_wait_for_an_evicted_file),
        TEST_BOTH(a_cancelled_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
