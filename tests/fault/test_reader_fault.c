#define _GNU_SOURCE
#include "slow_storage.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define UNUSED_USER 54321 /* no other process runs as this user */
#define FILE_BYTES 100000

static fm_reader_kind kind_of(void **state) { return **(fm_reader_kind **)state; }

/* A directory with one file, "file", of known bytes. */
typedef struct fixture {
    test_reads reads;
    char dir[64], path[128];
} fixture;

static void make_file(fixture *f) {
    test_dir_open(f->dir);
    assert_int_equal(chmod(f->dir, 0755), 0);
    snprintf(f->path, sizeof(f->path), "%s/file", f->dir);
    test_file_write(f->path, 7, FILE_BYTES);
}

/* ---- reads that misbehave -------------------------------------------------------------------- */

typedef struct test_script {
    _Atomic uint32_t n_calls;
    int failure;      /* returned instead of a read's result, */
    uint32_t n_times; /* how often, from the first time on */
} test_script;

static int64_t follow_script(void *user, const char *path, int64_t result) {
    (void)path;
    test_script *const self = user;
    const uint32_t call = atomic_fetch_add_explicit(&self->n_calls, 1, memory_order_relaxed);
    return call < self->n_times ? -self->failure : result;
}

/* Reads the file with a fault, of unknown and of known size; the error that it ended with. */
static int read_with(void **state, fm_reader_fault fault, test_script *script) {
    fixture f;
    test_reads_open(&f.reads, (fm_reader_config){.kind = kind_of(state), .depth = 4},
                    &(fm_reader_fault){.max_read_bytes = fault.max_read_bytes,
                                       .result = script ? follow_script : NULL,
                                       .user = script});
    make_file(&f);
    int error = 0;
    for (int known = 0; known < 2 && !error; known++) {
        if (script) script->n_calls = 0;
        fm_read read = test_read_one(&f.reads, f.path, known ? FILE_BYTES : 0);
        error = read.error;
        if (!error) test_check_file(&read, 7, FILE_BYTES);
        fm_reader_return(f.reads.reader, &read);
    }
    if (script && script->failure == ECANCELED) {
        fm_reader_stats stats;
        fm_reader_stats_get(f.reads.reader, &stats);
        assert_non_null(strstr(stats.reason, "helper"));
    }
    test_reads_close(&f.reads);
    test_dir_close(f.dir);
    return error;
}

static void short_reads_are_no_end(void **state) {
    assert_int_equal(read_with(state, (fm_reader_fault){.max_read_bytes = 999}, NULL), 0);
}

static void interrupted_reads_go_on(void **state) {
    test_script script = {.failure = EINTR, .n_times = 5};
    assert_int_equal(read_with(state, (fm_reader_fault){.max_read_bytes = 30000}, &script), 0);
}

static void refused_reads_are_tried_again(void **state) {
    test_script script = {.failure = EAGAIN, .n_times = 5};
    assert_int_equal(read_with(state, (fm_reader_fault){.max_read_bytes = 30000}, &script), 0);
}

static void refusals_without_end_are_an_error(void **state) {
    test_script script = {.failure = EAGAIN, .n_times = UINT32_MAX};
    assert_int_equal(read_with(state, (fm_reader_fault){0}, &script), EAGAIN);
}

static void errors_come_through(void **state) {
    test_script script = {.failure = EIO, .n_times = 1};
    assert_int_equal(read_with(state, (fm_reader_fault){0}, &script), EIO);
}

/* What the ring answers when no helper thread can be created. */
static void a_ring_without_helpers_still_reads(void **state) {
    (void)state;
    fm_reader_kind kind = FM_READER_URING, *const kind_state = &kind;
    test_script script = {.failure = ECANCELED, .n_times = 1};
    assert_int_equal(read_with((void *)&kind_state, (fm_reader_fault){0}, &script), 0);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void ignore_signal(int number) { (void)number; }

typedef struct storm {
    _Atomic bool stop;
    pid_t spared; /* the test's own thread */
} storm;

/* Sends SIGPROF to all threads but this one and the test's, as fast as it can. */
static void *send_signals(void *argument) {
    storm *const self = argument;
    const pid_t here = (pid_t)syscall(SYS_gettid);
    while (!self->stop) {
        DIR *const tasks = opendir("/proc/self/task");
        for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
            const pid_t thread = (pid_t)atoi(entry->d_name);
            if (thread > 0 && thread != here && thread != self->spared)
                syscall(SYS_tgkill, getpid(), thread, SIGPROF);
        }
        if (tasks) closedir(tasks);
    }
    return NULL;
}

/* Opens a reader of that kind, which reads the file ten times. How often that worked. */
static int read_ten(fixture *f, fm_reader_kind kind, fm_error *error) {
    const fm_reader_config config = {.kind = kind,
                                     .buffer_bytes = 4 << 20,
                                     .max_file_bytes = 1 << 20,
                                     .on_done = test_on_done,
                                     .user = &f->reads};
    f->reads.closed = false;
    if (fm_reader_open(&f->reads.reader, &config, error)) return 0;
    int n_read = 0;
    for (int i = 0; i < 10; i++) {
        fm_read read = test_read_one(&f->reads, f->path, i % 2 ? FILE_BYTES : 0);
        n_read += read.error == 0 && read.n_bytes == FILE_BYTES;
        fm_reader_return(f->reads.reader, &read);
    }
    test_reads_close(&f->reads);
    return n_read;
}

/* A profiler's signals interrupt system calls while a reader is opened, reads and is closed. */
static void profilers_do_no_harm(void **state) {
    fixture f;
    test_reads_open(&f.reads, (fm_reader_config){.kind = kind_of(state)}, NULL);
    test_reads_close(&f.reads);
    make_file(&f);
    const struct sigaction interrupt = {.sa_handler = ignore_signal}; /* without SA_RESTART */
    struct sigaction before;
    sigaction(SIGPROF, &interrupt, &before);
    storm shared = {.spared = (pid_t)syscall(SYS_gettid)};
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, send_signals, &shared), 0);
    fm_error error = {.message = ""};
    int n_read = 0;
    for (int round = 0; round < 40 && !*error.message; round++)
        n_read += read_ten(&f, kind_of(state), &error);
    shared.stop = true;
    pthread_join(sender, NULL);
    sigaction(SIGPROF, &before, NULL);
    test_dir_close(f.dir);
    assert_string_equal(error.message, "");
    assert_int_equal(n_read, 400);
}

/* ---- files that misbehave -------------------------------------------------------------------- */

static void files_vanish_shrink_and_grow(void **state) {
    fixture f;
    test_reads_open(&f.reads, (fm_reader_config){.kind = kind_of(state)}, NULL);
    make_file(&f);
    fm_read read = test_read_one(&f.reads, f.path, 0);
    test_check_file(&read, 7, FILE_BYTES);
    fm_reader_return(f.reads.reader, &read);
    static const uint64_t now[] = {FILE_BYTES / 2, 0, FILE_BYTES + 1, FILE_BYTES * 3};
    for (int i = 0; i < 4; i++) {
        test_file_write(f.path, 8, now[i]);
        read = test_read_one(&f.reads, f.path, FILE_BYTES);
        test_check_file(&read, 8, now[i]);
        fm_reader_return(f.reads.reader, &read);
    }
    assert_int_equal(unlink(f.path), 0);
    assert_int_equal(test_read_one(&f.reads, f.path, FILE_BYTES).error, ENOENT);
    test_reads_close(&f.reads);
    test_dir_close(f.dir);
}

static void huge_files_and_odd_ones_are_refused(void **state) {
    fixture f;
    test_reads_open(&f.reads, (fm_reader_config){.kind = kind_of(state), .max_file_bytes = 1 << 20},
                    NULL);
    make_file(&f);
    char fifo[128];
    snprintf(fifo, sizeof(fifo), "%s/fifo", f.dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(truncate(f.path, (off_t)1 << 36), 0);
    assert_int_equal(test_read_one(&f.reads, f.path, 0).error, EFBIG);
    assert_int_equal(test_read_one(&f.reads, f.path, (uint64_t)1 << 36).error, EFBIG);
    assert_int_equal(test_read_one(&f.reads, "/dev/zero", 0).error, EFBIG);
    assert_int_equal(test_read_one(&f.reads, fifo, 0).error, EINVAL);
    assert_int_equal(test_read_one(&f.reads, f.dir, 0).error, EISDIR);
    fm_read empty = test_read_one(&f.reads, "/dev/null", 0);
    assert_int_equal(empty.error, 0);
    assert_null(empty.bytes);
    test_reads_close(&f.reads);
    test_dir_close(f.dir);
}

/* ---- systems that refuse things: each in a child process ------------------------------------- */

/* In a child: says what was wrong and ends it. */
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)

/* Runs body(f) in a child and checks that it came to its end. True: it was skipped. */
static bool run_child(void (*body)(fixture *f, fm_reader_kind kind), fixture *f,
                      fm_reader_kind kind) {
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(TEST_PATIENCE_S);
        body(f, kind);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("the child ended with %x", status);
    return false;
}

static void become_nobody(void) {
    CHECK(setresgid(UNUSED_USER, UNUSED_USER, UNUSED_USER) == 0 &&
          setresuid(UNUSED_USER, UNUSED_USER, UNUSED_USER) == 0);
}

/* Opens in a child; exits with 77 where io_uring can't be had. */
static void child_open(test_reads *reads, fm_reader_kind kind, uint32_t depth) {
    *reads = (test_reads){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    reads->ended_end = &reads->ended;
    const fm_reader_config config = {.kind = kind,
                                     .depth = depth,
                                     .buffer_bytes = 4 << 20,
                                     .max_file_bytes = 1 << 20,
                                     .on_done = test_on_done,
                                     .user = reads};
    fm_error error;
    const int status = fm_reader_open(&reads->reader, &config, &error);
    if (!status) return;
    fprintf(stderr, "%s: %s\n", status == FM_ERR_UNAVAILABLE ? "skipped" : "failed", error.message);
    _exit(status == FM_ERR_UNAVAILABLE ? 77 : 1);
}

static int child_read(test_reads *reads, const char *path) {
    fm_read read = {.path = path};
    submit_one(reads->reader, &read);
    CHECK(test_reads_pop(reads) == &read);
    for (uint64_t i = 0; i < read.n_bytes; i++) CHECK(read.bytes[i] == test_byte(7, i));
    CHECK(read.error || read.n_bytes == FILE_BYTES);
    fm_reader_return(reads->reader, &read);
    return read.error;
}

static void unreadable_body(fixture *f, fm_reader_kind kind) {
    become_nobody();
    child_open(&f->reads, kind, 0);
    CHECK(child_read(&f->reads, f->path) == EACCES);
    test_reads_close(&f->reads);
}

static void unreadable_files_are_an_error(void **state) {
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: needs root to become another user\n");
        skip();
    }
    fixture f;
    make_file(&f);
    assert_int_equal(chmod(f.path, 0600), 0);
    const bool skipped = run_child(unreadable_body, &f, kind_of(state));
    test_dir_close(f.dir);
    if (skipped) skip();
}

/* As in a container: no capability at all, little locked memory, few file descriptors. */
static void limits_body(fixture *f, fm_reader_kind kind) {
    CHECK(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){65536, 65536}) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){256, 256}) == 0);
    become_nobody();
    for (uint32_t depth = 0; depth <= 512; depth += 512) {
        child_open(&f->reads, kind, depth);
        for (int i = 0; i < 50; i++) CHECK(child_read(&f->reads, f->path) == 0);
        fm_reader_stats stats;
        fm_reader_stats_get(f->reads.reader, &stats);
        if (kind == FM_READER_URING && depth) {
            CHECK(stats.depth >= 16 && stats.depth <= 256);
            CHECK(strstr(stats.reason, "RLIMIT_"));
        }
        if (kind == FM_READER_URING) CHECK(f->reads.reader->n_completions >= 50);
        test_reads_close(&f->reads);
    }
}

static void low_limits_lower_the_depth(void **state) {
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: needs root to become another user\n");
        skip();
    }
    fixture f;
    make_file(&f);
    const bool skipped = run_child(limits_body, &f, kind_of(state));
    test_dir_close(f.dir);
    if (skipped) skip();
}

static void few_threads_body(fixture *f, fm_reader_kind kind) {
    CHECK(setrlimit(RLIMIT_NPROC, &(struct rlimit){6, 6}) == 0);
    become_nobody();
    child_open(&f->reads, kind, 0);
    fm_read reads[100];
    for (int i = 0; i < 100; i++) {
        reads[i] = (fm_read){.path = f->path};
        submit_one(f->reads.reader, &reads[i]);
    }
    for (int i = 0; i < 100; i++) {
        fm_read *const read = test_reads_pop(&f->reads);
        CHECK(read && read->error == 0 && read->n_bytes == FILE_BYTES);
        fm_reader_return(f->reads.reader, read);
    }
    fm_reader_stats stats;
    fm_reader_stats_get(f->reads.reader, &stats);
    if (kind == FM_READER_PREAD) {
        CHECK(stats.n_threads >= 1 && stats.n_threads <= 6 && stats.depth == stats.n_threads);
        CHECK(strstr(stats.reason, "instead of 32"));
    }
    test_reads_close(&f->reads);
}

static void few_threads_are_enough(void **state) {
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: needs root to become another user\n");
        skip();
    }
    fixture f;
    make_file(&f);
    const bool skipped = run_child(few_threads_body, &f, kind_of(state));
    test_dir_close(f.dir);
    if (skipped) skip();
}

/* Makes one system call fail from now on. */
static void forbid(long call, int failure) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)failure),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {.len = 4, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    const int refused = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? errno : 0;
    if (refused == EINVAL) {
        fprintf(stderr, "skipped: no system call can be forbidden here, as in an emulator\n");
        _exit(77);
    }
    CHECK(refused == 0);
}

/* AUTO reads all the same and says why with pread; URING names what the kernel answered. */
static void check_without_uring(fixture *f, const char *answer) {
    fm_reader_stats stats;
    child_open(&f->reads, FM_READER_AUTO, 0);
    CHECK(child_read(&f->reads, f->path) == 0);
    fm_reader_stats_get(f->reads.reader, &stats);
    CHECK(!strcmp(stats.name, "pread"));
    CHECK(strstr(stats.reason, "io_uring"));
    CHECK(strstr(stats.reason, answer));
    test_reads_close(&f->reads);
    const fm_reader_config config = {.kind = FM_READER_URING,
                                     .buffer_bytes = 4 << 20,
                                     .max_file_bytes = 1 << 20,
                                     .on_done = test_on_done};
    fm_error error;
    fm_reader *reader;
    CHECK(fm_reader_open(&reader, &config, &error) == FM_ERR_UNAVAILABLE);
    CHECK(reader == NULL);
    CHECK(strstr(error.message, answer));
}

#if FM_HAVE_URING
#define EXPECT(answer) answer
#else
#define EXPECT(answer) "io_uring"
#endif

static void setup_eperm_body(fixture *f, fm_reader_kind kind) {
    (void)kind;
    forbid(SYS_io_uring_setup, EPERM);
    check_without_uring(f, EXPECT("Operation not permitted"));
}

static void setup_enosys_body(fixture *f, fm_reader_kind kind) {
    (void)kind;
    forbid(SYS_io_uring_setup, ENOSYS);
    check_without_uring(f, EXPECT("Function not implemented"));
}

static void enter_eperm_body(fixture *f, fm_reader_kind kind) {
    (void)kind;
    forbid(SYS_io_uring_enter, EPERM);
    check_without_uring(f, EXPECT("Operation not permitted"));
}

static void register_eperm_body(fixture *f, fm_reader_kind kind) {
    (void)kind;
    forbid(SYS_io_uring_register, EPERM);
    check_without_uring(f, "io_uring");
}

static void a_forbidden_ring_is_noticed(void **state) {
    (void)state;
    fixture f;
    make_file(&f);
    const bool skipped = run_child(setup_eperm_body, &f, FM_READER_AUTO);
    if (!skipped) {
        run_child(setup_enosys_body, &f, FM_READER_AUTO);
        run_child(enter_eperm_body, &f, FM_READER_AUTO);
        run_child(register_eperm_body, &f, FM_READER_AUTO);
    }
    test_dir_close(f.dir);
    if (skipped) skip();
}

/* ---- far storage ----------------------------------------------------------------------------- */

#define N_FAR 64
typedef struct slow_storage {
    fixture f;
    test_storage at;
} slow_storage;

/* N_FAR files 0, 1, ... and two that are stuck, seen through slowfs. */
static void far_open(slow_storage *far, const char *delay_ms) {
    if (!test_storage_open(&far->at, delay_ms)) {
        if (far->f.reads.reader) test_reads_close(&far->f.reads);
        skip();
    }
    char path[128];
    for (uint32_t i = 0; i < N_FAR + 2; i++) {
        snprintf(path, sizeof(path), "%s/%s%u", far->at.source, i < N_FAR ? "" : "stuck", i);
        test_file_write(path, i, FILE_BYTES);
    }
}

static void far_path(const slow_storage *far, uint32_t i, char path[128]) {
    snprintf(path, 128, "%s/%s%u", far->at.mountpoint, i < N_FAR ? "" : "stuck", i);
}

/* Lets requests of that kind for all files go on once each of them is held: all at the same time.
 */
static void release_together(const slow_storage *far, const char *request) {
    char name[16];
    for (int i = 0; i < N_FAR; i++) {
        snprintf(name, sizeof(name), "%d", i);
        if (!test_storage_is_held(&far->at, request, name))
            fail_msg("no %s of file %d", request, i);
    }
    for (int i = 0; i < N_FAR; i++) {
        snprintf(name, sizeof(name), "%d", i);
        test_storage_release(&far->at, request, name);
    }
}

/* Each file is opened once, and all files are opened, and then read, at the same time. */
static void slow_files_are_read_concurrently(void **state) {
    test_storage_need();
    slow_storage far = {0};
    test_reads_open(
        &far.f.reads,
        (fm_reader_config){.kind = kind_of(state), .depth = N_FAR, .buffer_bytes = 64 << 20}, NULL);
    far_open(&far, "0");
    char paths[N_FAR][128], name[16];
    fm_read reads[N_FAR];
    for (uint32_t i = 0; i < N_FAR; i++) {
        snprintf(name, sizeof(name), "%u", i);
        test_storage_rule(&far.at, "open", name, "");
        test_storage_rule(&far.at, "read", name, "");
    }
    for (uint32_t i = 0; i < N_FAR; i++) {
        far_path(&far, i, paths[i]);
        reads[i] = (fm_read){.path = paths[i], .expected_bytes = i % 2 ? FILE_BYTES : 0};
        submit_one(far.f.reads.reader, &reads[i]);
    }
    release_together(&far, "open");
    release_together(&far, "read");
    assert_true(test_reads_wait(&far.f.reads, N_FAR));
    for (uint32_t i = 0; i < N_FAR; i++) {
        test_check_file(&reads[i], i, FILE_BYTES);
        fm_reader_return(far.f.reads.reader, &reads[i]);
    }
    fm_reader_stats stats;
    fm_reader_stats_get(far.f.reads.reader, &stats);
    assert_int_equal(stats.n_opens, N_FAR);
    if (kind_of(state) == FM_READER_URING)
        assert_true(far.f.reads.reader->n_completions >= N_FAR + N_FAR / 2);
    test_reads_close(&far.f.reads);
    kill(far.at.server, SIGUSR1);
    const uint64_t limit_ns = test_patience_ends_ns();
    FILE *counts = NULL;
    while (!(counts = fopen(far.at.counts, "r")) && fm_clock_ns() < limit_ns) usleep(10000);
    assert_non_null(counts);
    int n_opens = 0;
    assert_int_equal(fscanf(counts, "{\"n_opens\": %d", &n_opens), 1);
    fclose(counts);
    assert_int_equal(n_opens, N_FAR);
    test_storage_close(&far.at);
}

/* Two reads never return: the others go on, and close() neither waits for them nor is hurt. If it
 * waited, it would do so until the test is ended for taking too long. */
static void stuck_reads_are_left_behind(void **state) {
    test_storage_need();
    slow_storage far = {0};
    const int n_threads = test_count_entries("/proc/self/task");
    test_reads_open(
        &far.f.reads,
        (fm_reader_config){.kind = kind_of(state), .depth = 8, .buffer_bytes = 64 << 20}, NULL);
    far_open(&far, "1");
    char paths[N_FAR + 2][128];
    fm_read *const reads = calloc(N_FAR + 2, sizeof(*reads));
    for (uint32_t i = 0; i < N_FAR + 2; i++) {
        const uint32_t number = i < 2 ? N_FAR + i : i - 2; /* the stuck ones first */
        far_path(&far, number, paths[i]);
        reads[i] = (fm_read){.path = paths[i], .expected_bytes = i % 2 ? FILE_BYTES : 0};
        submit_one(far.f.reads.reader, &reads[i]);
    }
    assert_true(test_reads_wait(&far.f.reads, N_FAR));
    for (uint32_t i = 2; i < N_FAR + 2; i++) {
        test_check_file(&reads[i], i - 2, FILE_BYTES);
        fm_reader_return(far.f.reads.reader, &reads[i]);
    }
    test_reads_close(&far.f.reads);
    assert_int_equal(far.f.reads.n_done, N_FAR + 2);
    assert_int_equal(reads[0].error, ECANCELED);
    assert_int_equal(reads[1].error, ECANCELED);
    /* The caller's memory may go: the reader has let go of it. */
    free(reads);
    test_storage_close(&far.at);
    assert_true(test_counts_fall("/proc/self/task", n_threads));
}

/* Ranges of a few files: those of one that is being opened wait for it alone; two more are stuck in
 * their reads, one of them twice. */
static void slow_ranges_share_their_files(void **state) {
    test_storage_need();
    slow_storage far = {0};
    const int n_threads = test_count_entries("/proc/self/task");
    const int n_files = test_count_entries("/proc/self/fd");
    test_reads_open(
        &far.f.reads,
        (fm_reader_config){.kind = kind_of(state), .depth = 16, .buffer_bytes = 64 << 20}, NULL);
    far_open(&far, "10");
    enum { N_STUCK = 3, N = 100 };
    char paths[N][128];
    fm_read *const reads = calloc(N, sizeof(*reads));
    for (uint32_t i = 0; i < N; i++) {
        far_path(&far, i < N_STUCK ? N_FAR + i % 2 : i % 4, paths[i]);
        reads[i] = (fm_read){.path = paths[i], .offset_bytes = 10 * i, .range_bytes = 5000};
        submit_one(far.f.reads.reader, &reads[i]);
    }
    assert_true(test_reads_wait(&far.f.reads, N - N_STUCK));
    for (uint32_t i = N_STUCK; i < N; i++) {
        assert_int_equal(reads[i].error, 0);
        for (uint32_t k = 0; k < 5000; k++)
            if (reads[i].bytes[k] != test_byte(i % 4, 10 * i + k)) fail_msg("byte %u of %u", k, i);
        fm_reader_return(far.f.reads.reader, &reads[i]);
    }
    fm_reader_stats stats;
    fm_reader_stats_get(far.f.reads.reader, &stats);
    assert_in_range(stats.n_opens, 4, kind_of(state) == FM_READER_URING ? 4 : 4 * 16);
    test_reads_close(&far.f.reads);
    assert_int_equal(far.f.reads.n_done, N);
    for (uint32_t i = 0; i < N_STUCK; i++) assert_int_equal(reads[i].error, ECANCELED);
    free(reads);
    test_storage_close(&far.at);
    assert_true(test_counts_fall("/proc/self/task", n_threads));
    assert_true(test_counts_fall("/proc/self/fd", n_files));
}

static test_storage *exit_storage; /* for the child */

/* A process that ends with a held read ends. */
static void exit_body(fixture *f, fm_reader_kind kind) {
    child_open(&f->reads, kind, 8);
    fm_read read = {.path = f->path};
    submit_one(f->reads.reader, &read);
    CHECK(test_storage_is_held(exit_storage, "read", "0"));
    test_reads_close(&f->reads);
    CHECK(f->reads.n_done == 1 && read.error == ECANCELED);
#if defined(__SANITIZE_ADDRESS__)
    _exit(0); /* its search for leaks would stop all threads first, and wait for the stuck one */
#else
    exit(0);
#endif
}

static void exit_does_not_wait_for_stuck_reads(void **state) {
    test_storage_need();
    slow_storage far = {0};
    far_open(&far, "0");
    far_path(&far, 0, far.f.path);
    test_storage_rule(&far.at, "read", "0", "");
    exit_storage = &far.at;
    const bool skipped = run_child(exit_body, &far.f, kind_of(state));
    test_storage_close(&far.at);
    if (skipped) skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_BOTH(short_reads_are_no_end),
        TEST_BOTH(interrupted_reads_go_on),
        TEST_BOTH(refused_reads_are_tried_again),
        TEST_BOTH(refusals_without_end_are_an_error),
        TEST_BOTH(errors_come_through),
        cmocka_unit_test(a_ring_without_helpers_still_reads),
        TEST_BOTH(profilers_do_no_harm),
        TEST_BOTH(files_vanish_shrink_and_grow),
        TEST_BOTH(huge_files_and_odd_ones_are_refused),
        TEST_BOTH(unreadable_files_are_an_error),
        TEST_BOTH(low_limits_lower_the_depth),
        TEST_BOTH(few_threads_are_enough),
        cmocka_unit_test(a_forbidden_ring_is_noticed),
        TEST_BOTH(slow_files_are_read_concurrently),
        TEST_BOTH(stuck_reads_are_left_behind),
        TEST_BOTH(slow_ranges_share_their_files),
        TEST_BOTH(exit_does_not_wait_for_stuck_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
