#define _GNU_SOURCE
#include "reads.h"

#define N_SIZES 12
static const uint64_t sizes[N_SIZES] = {0,     1,      63,     64,     65,      4095,
                                        65536, 196608, 196609, 300001, 1048577, 3000000};

typedef struct fixture {
    test_reads reads;
    char dir[64];
    char paths[N_SIZES][96];
} fixture;

static void make_files(fixture *f) {
    test_dir_open(f->dir);
    for (uint32_t i = 0; i < N_SIZES; i++) {
        snprintf(f->paths[i], sizeof(f->paths[i]), "%s/%u", f->dir, i);
        test_file_write(f->paths[i], i, sizes[i]);
    }
}

static void open_both(fixture *f, void **state, fm_reader_config config) {
    config.kind = **(fm_reader_kind **)state;
    test_reads_open(&f->reads, config, NULL);
    make_files(f);
}

static void close_both(fixture *f) {
    test_reads_close(&f->reads);
    test_dir_close(f->dir);
}

static void files_come_whole_from(void **state, bool together) {
    fixture f;
    open_both(&f, state, (fm_reader_config){0});
    for (int known = 0; known < 2; known++) {
        fm_read reads[N_SIZES];
        for (uint32_t i = 0; i < N_SIZES; i++) {
            reads[i] = (fm_read){.path = f.paths[i], .expected_bytes = known ? sizes[i] : 0};
            if (together && i > 0)
                reads[i - 1].next = &reads[i];
            else if (!together)
                submit_one(f.reads.reader, &reads[i]);
        }
        if (together) fm_reader_submit(f.reads.reader, reads);
        assert_true(test_reads_wait(&f.reads, N_SIZES * (size_t)(known + 1)));
        for (uint32_t i = 0; i < N_SIZES; i++) {
            test_check_file(&reads[i], i, sizes[i]);
            fm_reader_return(f.reads.reader, &reads[i]);
            test_reads_pop(&f.reads);
            assert_null(reads[i].bytes);
            fm_reader_return(f.reads.reader, &reads[i]);
        }
    }
    fm_reader_stats stats;
    fm_reader_stats_get(f.reads.reader, &stats);
    assert_int_equal(stats.n_files, 2 * N_SIZES);
    assert_int_equal(stats.n_opens, 2 * N_SIZES);
    assert_int_equal(stats.n_errors, 0);
    uint64_t n_bytes = 0;
    for (int i = 0; i < N_SIZES; i++) n_bytes += 2 * sizes[i];
    assert_int_equal(stats.n_bytes, n_bytes);
    assert_true(stats.read_ns > 0);
    assert_string_equal(stats.reason, "asked for");
    const bool uring = **(fm_reader_kind **)state == FM_READER_URING;
    assert_string_equal(stats.name, uring ? "uring" : "pread");
    assert_int_equal(stats.depth, uring ? 64 : 32);
    assert_int_equal(stats.n_threads, uring ? 1 : 32);
    /* Each file of unknown size takes two reads at least, of known size one. */
    if (uring) assert_true(f.reads.reader->n_completions >= 3 * N_SIZES - 1);
    close_both(&f);
}

static void files_come_whole(void **state) { files_come_whole_from(state, false); }
static void files_asked_for_together_come_whole(void **state) {
    files_come_whole_from(state, true);
}

static void wrong_expectations_do_no_harm(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.max_file_bytes = 4 << 20});
    static const uint64_t expected[] = {1,      2,      100,     65535,     65537,
                                        299999, 300002, 5 << 20, UINT64_MAX};
    for (uint32_t i = 0; i < N_SIZES; i++) {
        for (size_t e = 0; e < sizeof(expected) / sizeof(*expected); e++) {
            fm_read read = test_read_one(&f.reads, f.paths[i], expected[e]);
            test_check_file(&read, i, sizes[i]);
            fm_reader_return(f.reads.reader, &read);
        }
    }
    close_both(&f);
}

static void requests_start_in_order(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.depth = 1, .buffer_bytes = 64 << 20});
    fm_read reads[60];
    for (uint32_t i = 0; i < 60; i++) {
        reads[i] = (fm_read){.path = f.paths[i % N_SIZES]};
        submit_one(f.reads.reader, &reads[i]);
    }
    for (uint32_t i = 0; i < 60; i++) {
        assert_ptr_equal(test_reads_pop(&f.reads), &reads[i]);
        test_check_file(&reads[i], i % N_SIZES, sizes[i % N_SIZES]);
        fm_reader_return(f.reads.reader, &reads[i]);
    }
    close_both(&f);
}

static void errors_name_their_cause(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.max_file_bytes = 65536});
    char path[128], fifo[128], long_path[5000];
    snprintf(path, sizeof(path), "%s/none", f.dir);
    snprintf(fifo, sizeof(fifo), "%s/fifo", f.dir);
    memset(long_path, 'x', sizeof(long_path));
    long_path[sizeof(long_path) - 1] = 0;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    for (uint64_t expected = 0; expected < 6; expected += 5) {
        assert_int_equal(test_read_one(&f.reads, path, expected).error, ENOENT);
        assert_int_equal(test_read_one(&f.reads, f.dir, expected).error, EISDIR);
        assert_int_equal(test_read_one(&f.reads, long_path, expected).error, ENAMETOOLONG);
        assert_int_equal(test_read_one(&f.reads, f.paths[8], expected).error, EFBIG);
        fm_read largest = test_read_one(&f.reads, f.paths[6], expected);
        test_check_file(&largest, 6, sizes[6]);
        fm_reader_return(f.reads.reader, &largest);
    }
    assert_int_equal(test_read_one(&f.reads, "", 0).error, ENOENT);
    assert_int_equal(test_read_one(&f.reads, fifo, 0).error, EINVAL);
    const int writer = open(fifo, O_RDWR | O_CLOEXEC);
    assert_int_equal(test_read_one(&f.reads, fifo, 0).error, EINVAL);
    assert_int_equal(write(writer, "bytes", 5), 5);
    assert_int_equal(test_read_one(&f.reads, fifo, 0).error, EINVAL);
    close(writer);
    fm_reader_stats stats;
    fm_reader_stats_get(f.reads.reader, &stats);
    assert_int_equal(stats.n_errors, 12);
    assert_int_equal(stats.n_files, 2);
    assert_int_equal(f.reads.reader->arena.n_used, 0);
    close_both(&f);
}

/* Returns buffers on a separate thread as reads finish. */
static void *return_main(void *argument) {
    fixture *const f = argument;
    for (int n = 0; n < 300; n++) {
        fm_read *const read = test_reads_pop(&f->reads);
        if (!read) return "a read is missing";
        if (read->error) return "a read failed";
        fm_reader_return(f->reads.reader, read);
    }
    return NULL;
}

/* Buffers for about three files, hundreds of files: all are read, without further allocations. */
static void short_buffers_are_shared(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.buffer_bytes = 1000000});
    enum { N = 300 };
    static fm_read reads[N];
    memset(reads, 0, sizeof(reads));
    /* Up to 300,001 bytes, so that no file needs a heap buffer. */
    for (uint32_t i = 0; i < N; i++)
        reads[i] = (fm_read){.path = f.paths[i % 10], .expected_bytes = sizes[i % 10]};
    const uint64_t n_blocks = f.reads.counter.n_blocks;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, return_main, &f), 0);
    for (uint32_t i = 0; i < N; i++) submit_one(f.reads.reader, &reads[i]);
    void *failure = NULL;
    pthread_join(thread, &failure);
    if (failure) fail_msg("%s", (char *)failure);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(reads[i].n_bytes, sizes[i % 10]);
    assert_int_equal(f.reads.reader->arena.n_used, 0);
    assert_int_equal(f.reads.counter.n_blocks, n_blocks);
    close_both(&f);
}

static void large_files_get_blocks_of_their_own(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.buffer_bytes = 400000});
    fm_read reads[8];
    for (int i = 0; i < 8; i++) {
        /* 1 MB and 3 MB, expected and not. */
        reads[i] =
            (fm_read){.path = f.paths[10 + i % 2], .expected_bytes = i < 4 ? sizes[10 + i % 2] : 0};
        submit_one(f.reads.reader, &reads[i]);
    }
    for (int i = 0; i < 8; i++) {
        fm_read *const read = test_reads_pop(&f.reads);
        assert_non_null(read);
        test_check_file(read, read->path == f.paths[10] ? 10 : 11, read->n_bytes);
        pthread_mutex_lock(&f.reads.reader->lock);
        assert_true(f.reads.reader->heap_bytes > 0);
        pthread_mutex_unlock(&f.reads.reader->lock);
        fm_reader_return(f.reads.reader, read);
    }
    assert_int_equal(f.reads.reader->heap_bytes, 0);
    assert_int_equal(f.reads.reader->arena.n_used, 0);
    close_both(&f);
}

/* While blocks outside exceed the buffers, nothing new is started. */
static void own_blocks_are_bounded(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.buffer_bytes = 400000});
    fm_read large = test_read_one(&f.reads, f.paths[11], sizes[11]);
    test_check_file(&large, 11, sizes[11]);
    fm_read small = {.path = f.paths[5], .expected_bytes = sizes[5]};
    submit_one(f.reads.reader, &small);
    usleep(30000);
    assert_int_equal(test_reads_n_done(&f.reads), 1);
    fm_reader_return(f.reads.reader, &large);
    assert_ptr_equal(test_reads_pop(&f.reads), &small);
    test_check_file(&small, 5, sizes[5]);
    fm_reader_return(f.reads.reader, &small);
    close_both(&f);
}

static void queued_requests_can_be_cancelled(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.buffer_bytes = 700000});
    fm_read reads[20];
    for (uint32_t i = 0; i < 20; i++) {
        reads[i] = (fm_read){.path = f.paths[9], .expected_bytes = sizes[9]};
        submit_one(f.reads.reader, &reads[i]);
    }
    assert_true(test_reads_wait(&f.reads, 2)); /* the buffers hold two */
    fm_reader_cancel_queued(f.reads.reader);
    assert_int_equal(test_reads_n_done(&f.reads), 20);
    for (uint32_t i = 0; i < 20; i++) {
        if (i < 2)
            test_check_file(&reads[i], 9, sizes[9]);
        else
            assert_int_equal(reads[i].error, ECANCELED);
        fm_reader_return(f.reads.reader, &reads[i]);
        test_reads_pop(&f.reads);
    }
    fm_read again = test_read_one(&f.reads, f.paths[9], sizes[9]);
    test_check_file(&again, 9, sizes[9]);
    fm_reader_stats stats;
    fm_reader_stats_get(f.reads.reader, &stats);
    assert_int_equal(stats.n_errors, 0);
    close_both(&f);
}

/* on_done() submits the next file and returns the buffer of the last. */
typedef struct relay {
    fm_reader *reader;
    fm_read reads[200];
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t n_done, n_failed;
} relay;

static void relay_on_done(void *user, fm_read *read) {
    relay *const self = user;
    const uint32_t failed = read->error != 0;
    fm_reader_return(self->reader, read);
    if (read + 4 < self->reads + 200) submit_one(self->reader, read + 4);
    pthread_mutex_lock(&self->lock);
    self->n_failed += failed;
    if (++self->n_done == 200) pthread_cond_signal(&self->ended);
    pthread_mutex_unlock(&self->lock);
}

static void on_done_may_submit_and_return(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){0}); /* for the skip and the files */
    static relay self;
    self = (relay){.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    const fm_reader_config config = {.kind = **(fm_reader_kind **)state,
                                     .buffer_bytes = 1 << 20,
                                     .max_file_bytes = 1 << 20,
                                     .on_done = relay_on_done,
                                     .user = &self};
    assert_int_equal(fm_reader_open(&self.reader, &config, NULL), FM_OK);
    for (int i = 0; i < 200; i++) self.reads[i] = (fm_read){.path = f.paths[i % 10]};
    for (int i = 0; i < 4; i++) submit_one(self.reader, &self.reads[i]);
    pthread_mutex_lock(&self.lock);
    while (self.n_done < 200) pthread_cond_wait(&self.ended, &self.lock);
    pthread_mutex_unlock(&self.lock);
    fm_reader_close(&self.reader);
    assert_int_equal(self.n_done, 200);
    assert_int_equal(self.n_failed, 0);
    close_both(&f);
}

/* Whatever is queued, in flight or done at close: each request ends once, none afterwards. */
static void close_ends_each_request_once(void **state) {
    for (int round = 0; round < 20; round++) {
        fixture f;
        open_both(&f, state, (fm_reader_config){.buffer_bytes = 2000000});
        enum { N = 100 };
        fm_read reads[N];
        for (uint32_t i = 0; i < N; i++) {
            reads[i] = (fm_read){.path = f.paths[i % N_SIZES], .error = -1};
            submit_one(f.reads.reader, &reads[i]);
        }
        usleep((useconds_t)round * 100);
        test_reads_close(&f.reads);
        assert_null(f.reads.reader);
        assert_int_equal(f.reads.n_done, N);
        for (uint32_t i = 0; i < N; i++)
            if (reads[i].error && reads[i].error != ECANCELED)
                fail_msg("%s ended with %d", reads[i].path, reads[i].error);
        test_dir_close(f.dir);
    }
}

static void close_leaves_nothing(void **state) {
    fixture f;
    make_files(&f);
    int n_threads = 0, n_files = 0;
    for (int round = 0; round < 6; round++) {
        test_reads_open(&f.reads, (fm_reader_config){.kind = **(fm_reader_kind **)state}, NULL);
        fm_read read = test_read_one(&f.reads, f.paths[9], 0);
        test_check_file(&read, 9, sizes[9]);
        test_reads_close(&f.reads);
        fm_reader_close(&f.reads.reader);
        fm_reader_close(NULL);
        if (round > 0) {
            assert_true(test_counts_fall("/proc/self/task", n_threads));
            assert_true(test_counts_fall("/proc/self/fd", n_files));
        } else {
            n_threads = 3; /* ".", "..", the main thread; some runtimes have one */
            n_files = test_count_entries("/proc/self/fd");
#if defined(__SANITIZE_THREAD__) || FM_EMULATED
            n_threads++;
#endif
        }
    }
    test_dir_close(f.dir);
}

static void depths_are_kept_to_the_limits(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.depth = 5000});
    fm_reader_stats stats;
    fm_reader_stats_get(f.reads.reader, &stats);
    assert_int_equal(stats.depth, 1024);
    assert_non_null(strstr(stats.reason, "lowered"));
    fm_read read = test_read_one(&f.reads, f.paths[9], 0);
    test_check_file(&read, 9, sizes[9]);
    close_both(&f);
}

/* The guess for unknown sizes follows what was seen: small files stop taking large buffers. */
static void the_guess_follows_the_sizes(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.buffer_bytes = 16 << 20, .depth = 1});
    for (int i = 0; i < 300; i++) {
        fm_read read = test_read_one(&f.reads, f.paths[5], 0);
        fm_reader_return(f.reads.reader, &read);
    }
    assert_true(f.reads.reader->ops[0].capacity < 8192);
    for (int i = 0; i < 3000; i++) {
        fm_read read = test_read_one(&f.reads, f.paths[7], 0);
        fm_reader_return(f.reads.reader, &read);
    }
    const uint64_t capacity = f.reads.reader->ops[0].capacity;
    assert_true(capacity > sizes[7] && capacity < sizes[7] * 5 / 4 + 64);
    close_both(&f);
}

static void auto_takes_the_best_there_is(void **state) {
    (void)state;
    test_reads probe, reads;
    fm_reader_stats stats;
    test_reads_open(&reads, (fm_reader_config){.kind = FM_READER_AUTO}, NULL);
    fm_reader_stats_get(reads.reader, &stats);
    if (!strcmp(stats.name, "uring")) {
        assert_string_equal(stats.reason, "io_uring works here");
    } else {
        assert_string_equal(stats.name, "pread");
        assert_non_null(strstr(stats.reason, "io_uring"));
    }
    test_reads_close(&reads);
    if (strcmp(stats.name, "uring"))
        test_reads_open(&probe, (fm_reader_config){.kind = FM_READER_URING}, NULL);
}

static void the_environment_names_the_kind(void **state) {
    (void)state;
    fm_reader_kind kind;
    fm_error error;
    static const struct {
        const char *text;
        fm_reader_kind kind;
    } known[] = {{"uring", FM_READER_URING}, {"pread", FM_READER_PREAD}, {"auto", FM_READER_AUTO}};
    unsetenv("FEEDMILL_READER");
    assert_int_equal(fm_reader_kind_from_env(FM_READER_PREAD, &kind, &error), FM_OK);
    assert_int_equal(kind, FM_READER_PREAD);
    for (int i = 0; i < 3; i++) {
        setenv("FEEDMILL_READER", known[i].text, 1);
        assert_int_equal(fm_reader_kind_from_env(FM_READER_AUTO, &kind, &error), FM_OK);
        assert_int_equal(kind, known[i].kind);
    }
    setenv("FEEDMILL_READER", "mmap", 1);
    assert_int_equal(fm_reader_kind_from_env(FM_READER_AUTO, &kind, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "'mmap'"));
    assert_int_equal(fm_reader_kind_from_env(FM_READER_AUTO, &kind, NULL), FM_ERR_ARGUMENT);
    unsetenv("FEEDMILL_READER");
}

static void bad_configurations_are_refused(void **state) {
    (void)state;
    fm_reader *reader = (fm_reader *)&reader;
    fm_error error;
    fm_reader_config config = {.buffer_bytes = 1 << 20, .max_file_bytes = 1};
    assert_int_equal(fm_reader_open(&reader, &config, &error), FM_ERR_ARGUMENT);
    assert_null(reader);
    config.on_done = test_on_done;
    config.kind = (fm_reader_kind)7;
    assert_int_equal(fm_reader_open(&reader, &config, &error), FM_ERR_ARGUMENT);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they abort instead */
    config.kind = FM_READER_PREAD;
    config.buffer_bytes = UINT64_MAX / 4;
    assert_int_equal(fm_reader_open(&reader, &config, &error), FM_ERR_NOMEM);
    assert_null(reader);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_BOTH(files_come_whole),
        TEST_BOTH(files_asked_for_together_come_whole),
        TEST_BOTH(wrong_expectations_do_no_harm),
        TEST_BOTH(requests_start_in_order),
        TEST_BOTH(errors_name_their_cause),
        TEST_BOTH(short_buffers_are_shared),
        TEST_BOTH(large_files_get_blocks_of_their_own),
        TEST_BOTH(own_blocks_are_bounded),
        TEST_BOTH(queued_requests_can_be_cancelled),
        TEST_BOTH(on_done_may_submit_and_return),
        TEST_BOTH(close_ends_each_request_once),
        TEST_BOTH(close_leaves_nothing),
        TEST_BOTH(depths_are_kept_to_the_limits),
        TEST_BOTH(the_guess_follows_the_sizes),
        cmocka_unit_test(auto_takes_the_best_there_is),
        cmocka_unit_test(the_environment_names_the_kind),
        cmocka_unit_test(bad_configurations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
