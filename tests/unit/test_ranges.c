/* Ranges of files: read completely or an error, with cached files, under any limit on open files.
 */
#define _GNU_SOURCE
#include "reads.h"

#include <sys/resource.h>

#define FILE_BYTES 400000

typedef struct fixture {
    test_reads reads;
    char dir[64];
} fixture;

static void open_both(fixture *f, void **state, fm_reader_config config) {
    config.kind = **(fm_reader_kind **)state;
    test_reads_open(&f->reads, config, NULL);
    test_dir_open(f->dir);
}

static void close_both(fixture *f) {
    test_reads_close(&f->reads);
    test_dir_close(f->dir);
}

static void name_file(const fixture *f, uint32_t number, char path[96]) {
    snprintf(path, 96, "%s/%u", f->dir, number);
}

static void make_files(const fixture *f, uint32_t n) {
    char path[96];
    for (uint32_t i = 0; i < n; i++) {
        name_file(f, i, path);
        test_file_write(path, i, FILE_BYTES);
    }
}

/* Asserts that the read returned this range of the file with that number. */
static void check_range(const fm_read *read, uint32_t number) {
    assert_int_equal(read->error, 0);
    assert_int_equal(read->n_bytes, read->range_bytes);
    assert_int_equal((uintptr_t)read->bytes % 64, 0);
    for (uint64_t i = 0; i < read->n_bytes; i++)
        if (read->bytes[i] != test_byte(number, read->offset_bytes + i))
            fail_msg("byte %llu of %llu+%llu differs", (unsigned long long)i,
                     (unsigned long long)read->offset_bytes, (unsigned long long)read->range_bytes);
}

static fm_read read_range(fixture *f, const char *path, uint64_t offset, uint64_t n) {
    fm_read read = {.path = path, .offset_bytes = offset, .range_bytes = n};
    submit_one(f->reads.reader, &read);
    assert_ptr_equal(test_reads_pop(&f->reads), &read);
    return read;
}

static fm_reader_stats stats_of(const fixture *f) {
    fm_reader_stats stats;
    fm_reader_stats_get(f->reads.reader, &stats);
    return stats;
}

enum { N_READS = 600 };

/* Ranges at random offsets, of random sizes, of n files, some of them twice as large as the
 * buffers. */
static void read_many(fixture *f, uint32_t n_files) {
    static fm_read reads[N_READS];
    static char paths[N_READS][96];
    uint64_t state = 88172645463325252u;
    memset(reads, 0, sizeof(reads));
    for (uint32_t i = 0; i < N_READS; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const uint64_t n = 1 + (i % 50 == 0 ? state % FILE_BYTES : state % 9000);
        name_file(f, i % n_files, paths[i]);
        reads[i] = (fm_read){.path = paths[i],
                             .offset_bytes = (state >> 32) % (FILE_BYTES - n + 1),
                             .range_bytes = n};
        if (i > 0) reads[i - 1].next = &reads[i];
    }
    fm_reader_submit(f->reads.reader, reads);
    for (uint32_t i = 0; i < N_READS; i++) {
        fm_read *const read = test_reads_pop(&f->reads);
        assert_non_null(read);
        check_range(read, (uint32_t)(read - reads) % n_files);
        fm_reader_return(f->reads.reader, read);
    }
}

static void ranges_come_whole(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){.buffer_bytes = 300000});
    make_files(&f, 3);
    const int n_files = test_count_entries("/proc/self/fd");
    read_many(&f, 3);
    const fm_reader_stats stats = stats_of(&f);
    assert_int_equal(stats.n_files, N_READS);
    /* Threads that want the same file at the same time may each open it. */
    const bool uring = **(fm_reader_kind **)state == FM_READER_URING;
    assert_in_range(stats.n_opens, 3, uring ? 3 : 3 * 32);
    assert_int_equal(test_count_entries("/proc/self/fd"), n_files + 3);
    const uint64_t n_blocks = f.reads.counter.n_blocks;
    read_many(&f, 3);
    assert_int_equal(stats_of(&f).n_opens, stats.n_opens);
    assert_in_range(f.reads.counter.n_blocks - n_blocks, 0, 12); /* ranges larger than the arena */
    assert_int_equal(f.reads.reader->arena.n_used, 0);
    close_both(&f);
}

/* Whole files and ranges of them, by turns: neither disturbs the other. */
static void files_and_ranges_mix(void **state) {
    fixture f;
    char path[96];
    open_both(&f, state, (fm_reader_config){0});
    make_files(&f, 2);
    for (uint32_t i = 0; i < 20; i++) {
        name_file(&f, i % 2, path);
        fm_read whole = test_read_one(&f.reads, path, i < 10 ? 0 : FILE_BYTES);
        test_check_file(&whole, i % 2, FILE_BYTES);
        fm_reader_return(f.reads.reader, &whole);
        fm_read range = read_range(&f, path, 1000 * i, 5000);
        check_range(&range, i % 2);
        fm_reader_return(f.reads.reader, &range);
        fm_read all = read_range(&f, path, 0, FILE_BYTES);
        test_check_file(&all, i % 2, FILE_BYTES);
        fm_reader_return(f.reads.reader, &all);
    }
    assert_int_equal(stats_of(&f).n_opens, 22);
    close_both(&f);
}

static void bad_ranges_are_errors(void **state) {
    fixture f;
    char path[96], other[96];
    open_both(&f, state, (fm_reader_config){.max_file_bytes = 100000});
    make_files(&f, 1);
    name_file(&f, 0, path);
    const int n_files = test_count_entries("/proc/self/fd");
    for (int round = 0; round < 3; round++) {
        assert_int_equal(read_range(&f, path, FILE_BYTES - 10, 11).error, FM_READ_ENDS_EARLY);
        assert_int_equal(read_range(&f, path, FILE_BYTES, 1).error, FM_READ_ENDS_EARLY);
        assert_int_equal(read_range(&f, path, (uint64_t)1 << 61, 1).error, FM_READ_ENDS_EARLY);
        assert_int_equal(read_range(&f, path, 0, 100001).error, EFBIG);
        assert_int_equal(read_range(&f, path, 5, (uint64_t)1 << 61).error, EFBIG);
        name_file(&f, 7, other);
        assert_int_equal(read_range(&f, other, 0, 10).error, ENOENT);
        assert_int_equal(read_range(&f, f.dir, 0, 10).error, EISDIR);
        assert_int_equal(read_range(&f, "", 0, 10).error, ENOENT);
        fm_read good = read_range(&f, path, FILE_BYTES - 10, 10);
        check_range(&good, 0);
        fm_reader_return(f.reads.reader, &good);
    }
    assert_int_equal(stats_of(&f).n_errors, 24);
    assert_int_equal(f.reads.reader->arena.n_used, 0);
    assert_int_equal(test_count_entries("/proc/self/fd"), n_files + 1);
    /* A FIFO can't be read at an offset, and must not block. */
    snprintf(other, sizeof(other), "%s/fifo", f.dir);
    assert_int_equal(mkfifo(other, 0600), 0);
    for (int round = 0; round < 2; round++)
        assert_int_equal(read_range(&f, other, 0, 10).error, EINVAL);
    const int writer = open(other, O_RDWR | O_CLOEXEC);
    assert_int_equal(write(writer, "bytes", 5), 5);
    assert_int_equal(read_range(&f, other, 0, 5).error, EINVAL);
    close(writer);
    close_both(&f);
}

/* Several ask at once for a file that is not there: each gets its error. */
static void all_who_wait_get_the_error(void **state) {
    fixture f;
    open_both(&f, state, (fm_reader_config){0});
    char path[96];
    name_file(&f, 0, path);
    fm_read reads[100];
    for (int i = 0; i < 100; i++) {
        reads[i] = (fm_read){.path = path, .range_bytes = 10};
        if (i > 0) reads[i - 1].next = &reads[i];
    }
    fm_reader_submit(f.reads.reader, reads);
    assert_true(test_reads_wait(&f.reads, 100));
    for (int i = 0; i < 100; i++) assert_int_equal(reads[i].error, ENOENT);
    for (int i = 0; i < 100; i++) test_reads_pop(&f.reads);
    make_files(&f, 1);
    fm_read good = read_range(&f, path, 3, 10);
    check_range(&good, 0);
    close_both(&f);
}

/* A file that was too short is looked at anew: it may have been replaced. */
static void a_replaced_file_is_opened_again_after_an_error(void **state) {
    fixture f;
    char path[96], other[96];
    open_both(&f, state, (fm_reader_config){0});
    name_file(&f, 0, path);
    name_file(&f, 1, other);
    test_file_write(path, 0, 100);
    assert_int_equal(read_range(&f, path, 0, 1000).error, FM_READ_ENDS_EARLY);
    test_file_write(other, 5, 1000);
    assert_int_equal(rename(other, path), 0);
    fm_read good = read_range(&f, path, 0, 1000);
    check_range(&good, 5);
    close_both(&f);
}

/* More files than may be open, with the usual limit and with hardly any. */
static void few_descriptors_do(void **state) {
    static const rlim_t limits[] = {1024, 64, 8};
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
        const bool tight = limits[i] == 8;
        const struct rlimit lowered = {limits[i] < 64 ? 64 : limits[i], before.rlim_max};
        fixture f;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &lowered), 0);
        open_both(&f, state, (fm_reader_config){.depth = 16});
        make_files(&f, 150);
        /* No descriptor is left: the open files must suffice. */
        struct rlimit none = {(rlim_t)test_count_entries("/proc/self/fd") - 3 + 1, before.rlim_max};
        if (tight) assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        read_many(&f, 150);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_in_range(f.reads.reader->file_cache.limit, 1, limits[i] < 64 ? 8 : limits[i] / 8);
        close_both(&f);
    }
}

/* Whatever is queued, being opened, waited for or read at close. */
static void close_ends_each_request_once(void **state) {
    for (int round = 0; round < 30; round++) {
        fixture f;
        const int n_files = test_count_entries("/proc/self/fd");
        open_both(&f, state, (fm_reader_config){.buffer_bytes = 2000000});
        make_files(&f, 5);
        enum { N = 200 };
        fm_read reads[N];
        char paths[6][96];
        for (uint32_t i = 0; i < 6; i++) name_file(&f, i, paths[i]); /* the last one is missing */
        for (uint32_t i = 0; i < N; i++) {
            reads[i] = (fm_read){.path = paths[i % 6], .offset_bytes = i, .range_bytes = 3000};
            if (i > 0) reads[i - 1].next = &reads[i];
        }
        fm_reader_submit(f.reads.reader, reads);
        usleep((useconds_t)round * 50);
        if (round % 2) fm_reader_cancel_queued(f.reads.reader);
        test_reads_close(&f.reads);
        assert_int_equal(f.reads.n_done, N);
        for (uint32_t i = 0; i < N; i++)
            if (reads[i].error && reads[i].error != ECANCELED &&
                (i % 6 < 5 || reads[i].error != ENOENT))
                fail_msg("%s ended with %d", reads[i].path, reads[i].error);
        assert_true(test_counts_fall("/proc/self/fd", n_files));
        assert_int_equal(test_count_entries("/proc/self/fd"), n_files);
        test_dir_close(f.dir);
    }
}

/* ---- reads that misbehave -------------------------------------------------------------------- */

static int64_t now_and_then(void *user, const char *path, int64_t result) {
    uint32_t *const n = user;
    (void)path;
    const uint32_t nth = __atomic_add_fetch(n, 1, __ATOMIC_RELAXED);
    if (nth % 7 == 0) return -EINTR;
    if (nth % 11 == 0) return -EAGAIN;
    if (nth % 97 == 0) return -EIO;
    return result;
}

/* Short reads go on, refusals are tried again, errors are the sample's and close the file. */
static void reads_that_misbehave(void **state) {
    fixture f;
    uint32_t n_results = 0;
    const fm_reader_fault fault = {
        .max_read_bytes = 1000, .result = now_and_then, .user = &n_results};
    test_reads_open(&f.reads, (fm_reader_config){.kind = **(fm_reader_kind **)state}, &fault);
    test_dir_open(f.dir);
    make_files(&f, 2);
    int n_failed = 0;
    for (uint32_t i = 0; i < 100; i++) {
        char path[96];
        name_file(&f, i % 2, path);
        fm_read read = read_range(&f, path, 777 * i, 5 * i + 1);
        if (read.error) {
            assert_int_equal(read.error, EIO);
            n_failed++;
        } else {
            check_range(&read, i % 2);
            fm_reader_return(f.reads.reader, &read);
        }
    }
    assert_in_range(n_failed, 1, 10);
    assert_in_range(stats_of(&f).n_opens, 2, 2 + (unsigned)n_failed);
    close_both(&f);
}

static int64_t no_helper(void *user, const char *path, int64_t result) {
    (void)path;
    return ++*(uint32_t *)user % 3 == 0 ? -ECANCELED : result;
}

/* What the ring answers when no helper thread can be created: its own thread reads, by the same
 * table of open files. */
static void a_ring_without_helpers_still_reads(void **state) {
    (void)state;
    fixture f;
    uint32_t n_results = 0;
    const fm_reader_fault fault = {.result = no_helper, .user = &n_results};
    test_reads_open(&f.reads, (fm_reader_config){.kind = FM_READER_URING}, &fault);
    test_dir_open(f.dir);
    make_files(&f, 2);
    for (uint32_t i = 0; i < 20; i++) {
        char path[96];
        name_file(&f, i % 2, path);
        fm_read read = read_range(&f, path, 777 * i, 5000);
        /* The second try is the injected fault's, too, now and then. */
        if (!read.error) check_range(&read, i % 2);
        if (read.error) assert_int_equal(read.error, ECANCELED);
        fm_reader_return(f.reads.reader, &read);
    }
    assert_non_null(strstr(stats_of(&f).reason, "helper"));
    close_both(&f);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void the_least_recently_used_goes(void **state) {
    (void)state;
    fm_file_cache cache;
    int to_close;
    assert_int_equal(fm_file_cache_init(&cache, NULL), FM_OK);
    const uint32_t limit = cache.limit;
    while (cache.limit > 3) { /* a capacity of three */
        cache.limit--;
        cache.unused = cache.unused->next;
    }
    static const char *const names[] = {"a", "b", "c", "a longer name", "e"};
    fm_cached_file *entries[5];
    for (int i = 0; i < 3; i++) {
        assert_null(fm_file_cache_find(&cache, names[i]));
        entries[i] = fm_file_cache_add(&cache, names[i], NULL, &to_close);
        assert_int_equal(to_close, -1);
        entries[i]->file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    assert_null(fm_file_cache_add(&cache, names[3], NULL, &to_close)); /* all are in use */
    for (int i = 0; i < 3; i++) assert_int_equal(fm_file_cache_release(&cache, entries[i]), -1);
    assert_ptr_equal(fm_file_cache_find(&cache, "a"), entries[0]);
    const int file_b = entries[1]->file, file_c = entries[2]->file;
    assert_non_null(fm_file_cache_add(&cache, names[3], NULL, &to_close));
    assert_int_equal(to_close, file_b);
    assert_null(fm_file_cache_find(&cache, "b"));
    assert_int_equal(fm_file_cache_evict(&cache), file_c);
    assert_int_equal(fm_file_cache_evict(&cache), -1); /* the others have users */
    fm_file_cache_unlist(&cache, entries[0]);
    fm_file_cache_unlist(&cache, entries[0]);
    assert_null(fm_file_cache_find(&cache, "a"));
    const int file_a = entries[0]->file;
    assert_int_equal(fm_file_cache_release(&cache, entries[0]), file_a);
    close(file_a), close(file_b), close(file_c);
    for (int i = 0; i < 2; i++)
        assert_non_null(fm_file_cache_add(&cache, names[2 * i + 2], NULL, &to_close));
    cache.limit = limit;
    fm_file_cache_fini(&cache);
    fm_file_cache_fini(&cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_BOTH(ranges_come_whole),
        TEST_BOTH(files_and_ranges_mix),
        TEST_BOTH(bad_ranges_are_errors),
        TEST_BOTH(all_who_wait_get_the_error),
        TEST_BOTH(a_replaced_file_is_opened_again_after_an_error),
        TEST_BOTH(few_descriptors_do),
        TEST_BOTH(close_ends_each_request_once),
        TEST_BOTH(reads_that_misbehave),
        cmocka_unit_test(a_ring_without_helpers_still_reads),
        cmocka_unit_test(the_least_recently_used_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
