/*
 * One ring, created and owned by one thread: only that thread submits and reaps.
 *
 * A file is a chain: open into a slot of the ring's file table, then read. Its steps but the last
 * carry IOSQE_CQE_SKIP_SUCCESS: they are silent when they succeed, and when one fails its
 * completion is the only one of the chain (req_set_fail() in io_uring.c hands the silence on to
 * the rest). So each chain and each further read end in exactly one completion, and there is no
 * count of what is still to come. The slot's number is the op's; it is closed as soon as the
 * file is complete. Closing is done inline when it is submitted, before a later open of the same
 * slot.
 *
 * A range's file is opened by itself, to an ordinary file descriptor that stays open, and others
 * that want it meanwhile wait for it; then a range is one read. Where descriptors run out a range
 * is a chain as well.
 *
 * - The open goes to the kernel's helpers (IOSQE_ASYNC). Tried inline first, as is the default, a
 *   FUSE or NFS open blocks the ring's thread: one file after the other, at any depth.
 * - The helpers are capped at four per CPU unless told otherwise.
 * - O_CLOEXEC with a slot is refused (EINVAL).
 * - A file of unknown size may be a FIFO, whose open would wait for a writer: it is opened with
 *   O_NONBLOCK, and FADV_NORMAL, which changes nothing, then fails for a FIFO (ESPIPE). The read
 *   goes to the helpers too: for an O_NONBLOCK file io_uring believes that no read blocks, and
 * would read inline, one after the other. A size that is known proves the file to be regular.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "read/reader_impl.h"

#define STACK_BYTES (256u << 10)
/* A chain has three entries, and closing the slot's last file is one more. */
#define ENTRIES_PER_FILE 4
/* The wake-up's read and the cancelling. */
#define MORE_ENTRIES 8
/* Entries wait only until the next submission: more would be memory for nothing, and a ring's
   memory is scarce where RLIMIT_MEMLOCK is the usual 64 KiB for all processes of a user. */
#define MOST_ENTRIES 256
#define LEAST_DEPTH 4
#define REAP_BATCH 64
#define PROBE_LIMIT_S 2
/* Operations that the kernel is asked about; their numbers have 8 bits. */
#define N_PROBED 256

/*
 * liburing maps and unmaps a ring by system calls of its own, which ThreadSanitizer does not see:
 * it would take a ring at the address of an earlier thread's for shared memory.
 */
#if defined(__SANITIZE_THREAD__)
void AnnotateHappensBefore(const char *file, int line, const volatile void *address);
void AnnotateHappensAfter(const char *file, int line, const volatile void *address);
static const char ring_memory;
#define RING_UNMAPPED() AnnotateHappensBefore(__FILE__, __LINE__, &ring_memory)
#define RING_MAPPED() AnnotateHappensAfter(__FILE__, __LINE__, &ring_memory)
#else
#define RING_UNMAPPED() ((void)0)
#define RING_MAPPED() ((void)0)
#endif

/* user_data: an op's address, whose lowest bits are free for the step; or one of the specials. */
enum { STEP_READ = 0, STEP_OPEN = 1, STEP_ADVISE = 2, STEP_SHARD = 3, STEP_MASK = 3 };
enum { DATA_NONE = 0, DATA_WAKE = 4, DATA_PROBE = 8 };
/* A file being closed is its descriptor and, in the lower bits, what is no op's step. */
enum { DATA_CLOSE = 12, DATA_CLOSE_BITS = 4 };

typedef enum fm_uring_state { URING_STARTING, URING_RUNNING, URING_FAILED } fm_uring_state;

typedef struct fm_uring {
    fm_reader *reader;
    fm_thread thread;
    /* The ring thread's alone. */
    struct io_uring ring;
    bool has_ring;
    bool wake_posted, cancelled, helpless;
    uint64_t wake_value;  /* where the kernel puts the event count */
    uint32_t n_in_flight; /* ops, and files being closed */
    fm_error error;       /* why the start failed; read by the opener after `state` is set */
    int wake_file;        /* eventfd; fixed after open */
    /* Under the reader's lock. */
    fm_uring_state state;
    bool waiting; /* nobody has written to wake_file since the thread went to wait */
} fm_uring;

static void pause_ms(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

/* ---- setting up ------------------------------------------------------------------------------ */

/* A negative errno, or 0. */
static int try_ring(fm_uring *self, uint32_t depth) {
    /* From the kernel's newest offer to its oldest: 6.1, 5.19, any. */
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
    unsigned n_entries = depth * ENTRIES_PER_FILE + MORE_ENTRIES;
    if (n_entries > MOST_ENTRIES) n_entries = MOST_ENTRIES;
    int result = -EINVAL;
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags) && result == -EINVAL; i++) {
        struct io_uring_params params = {.flags = flags[i] | IORING_SETUP_CQSIZE,
                                         .cq_entries = 2 * depth + n_entries};
        result = io_uring_queue_init_params(n_entries, &self->ring, &params);
    }
    return result;
}

/* The ring's own memory counts as locked from Linux 6.13 on, without CAP_IPC_LOCK. */
static int init_ring(fm_uring *self) {
    fm_reader *const reader = self->reader;
    const uint32_t asked = reader->n_ops;
    int result;
    while ((result = try_ring(self, reader->n_ops)) == -ENOMEM && reader->n_ops > LEAST_DEPTH)
        reader->n_ops /= 2;
    if (result < 0)
        return fm_error_set_errno(&self->error, FM_ERR_UNAVAILABLE, -result,
                                  "io_uring can't be had here (io_uring_setup)");
    if (reader->n_ops < asked)
        fm_reader_note(reader,
                       "depth lowered from %u to %u: no memory for a larger ring "
                       "(RLIMIT_MEMLOCK)",
                       asked, reader->n_ops);
    RING_MAPPED();
    self->has_ring = true;
    io_uring_ring_dontfork(&self->ring);
    io_uring_register_ring_fd(&self->ring); /* saves a look-up; not every kernel has it */
    return FM_OK;
}

static int check_kernel(fm_uring *self) {
    static const int needed[] = {IORING_OP_OPENAT, IORING_OP_READ, IORING_OP_CLOSE,
                                 IORING_OP_FADVISE, IORING_OP_ASYNC_CANCEL};
    /* LINKED_FILE: the read finds the file that the open before it has put into the slot. */
    const unsigned features = IORING_FEAT_LINKED_FILE | IORING_FEAT_CQE_SKIP |
                              IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_NODROP;
    if ((self->ring.features & features) != features)
        return fm_error_set(&self->error, FM_ERR_UNAVAILABLE,
                            "io_uring can't be had here: the kernel's is too old (before 5.19)");
    /* In place of io_uring_get_probe_ring(), which does not tell why it fails. */
    union {
        struct io_uring_probe probe;
        uint8_t room[sizeof(struct io_uring_probe) + N_PROBED * sizeof(struct io_uring_probe_op)];
    } known = {.room = {0}};
    const int result = io_uring_register_probe(&self->ring, &known.probe, N_PROBED);
    if (result < 0)
        return fm_error_set_errno(&self->error, FM_ERR_UNAVAILABLE, -result,
                                  "io_uring can't be had here (asking for its operations)");
    bool complete = true;
    for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++)
        complete = complete && io_uring_opcode_supported(&known.probe, needed[i]);
    if (complete) return FM_OK;
    return fm_error_set(&self->error, FM_ERR_UNAVAILABLE,
                        "io_uring can't be had here: operations that it needs are missing");
}

/* Slots and helpers; where limits refuse the depth, a lower one. */
static int register_limits(fm_uring *self) {
    fm_reader *const reader = self->reader;
    const uint32_t asked = reader->n_ops;
    int refused = 0, result;
    while ((result = io_uring_register_files_sparse(&self->ring, reader->n_ops)) < 0 &&
           (result == -EMFILE || result == -ENOMEM) && reader->n_ops > LEAST_DEPTH) {
        refused = -result;
        reader->n_ops /= 2;
    }
    if (result < 0)
        return fm_error_set_errno(&self->error, FM_ERR_UNAVAILABLE, -result,
                                  "io_uring can't be had here (registering a file table)");
    if (refused)
        fm_reader_note(reader,
                       "depth lowered from %u to %u: a file table of that size was "
                       "refused (%s)",
                       asked, reader->n_ops, refused == EMFILE ? "RLIMIT_NOFILE" : "no memory");
    unsigned n_helpers[2] = {reader->n_ops, reader->n_ops};
    result = io_uring_register_iowq_max_workers(&self->ring, n_helpers);
    if (result < 0) {
        const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
        const uint32_t most = n_cpus > 0 ? (uint32_t)n_cpus * 4 : 4;
        if (reader->n_ops > most) reader->n_ops = most;
        fm_reader_note(reader, "depth %u, as the kernel's helpers can't be set (%s)", reader->n_ops,
                       strerrordesc_np(-result));
    }
    return FM_OK;
}

/* Room for n entries. A full ring is normal: submitting empties it. */
static void make_room(fm_uring *self, unsigned n) {
    while (io_uring_sq_space_left(&self->ring) < n)
        if (io_uring_submit(&self->ring) < 0) pause_ms();
}

static struct io_uring_sqe *next_entry(fm_uring *self) {
    make_room(self, 1);
    return io_uring_get_sqe(&self->ring);
}

static void add_open(fm_uring *self, const char *path, uint32_t slot, int flags, uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(self);
    io_uring_prep_openat_direct(entry, AT_FDCWD, path, O_RDONLY | O_NOCTTY | flags, 0, slot);
    io_uring_sqe_set_flags(entry, IOSQE_ASYNC | IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS);
    io_uring_sqe_set_data64(entry, data);
}

static void add_close(fm_uring *self, uint32_t slot) {
    struct io_uring_sqe *const entry = next_entry(self);
    io_uring_prep_close_direct(entry, slot);
    io_uring_sqe_set_flags(entry, IOSQE_CQE_SKIP_SUCCESS);
    io_uring_sqe_set_data64(entry, DATA_NONE);
}

/* Submits, and waits for one completion: 0, or a negative errno. A signal, upon which liburing may
 * return neither, does not end the wait. */
static int submit_and_wait_for_one(fm_uring *self, struct io_uring_cqe **completion) {
    const uint64_t deadline_ns = fm_clock_ns() + PROBE_LIMIT_S * (uint64_t)1000000000;
    struct __kernel_timespec limit = {.tv_sec = PROBE_LIMIT_S};
    int result;
    do {
        *completion = NULL;
        result = io_uring_submit_and_wait_timeout(&self->ring, completion, 1, &limit, NULL);
    } while (!*completion && (result >= 0 || result == -EINTR) && fm_clock_ns() < deadline_ns);
    if (*completion) return 0;
    return result < 0 ? result : -ETIME;
}

/* Reads one byte of `path` through the ring. The number of bytes, or a negative errno. */
static int probe_path(fm_uring *self, const char *path) {
    /* One completion: the open's if it fails, else the read's. */
    add_open(self, path, 0, 0, DATA_NONE);
    struct io_uring_sqe *const entry = next_entry(self);
    io_uring_prep_read(entry, 0, &self->wake_value, 1, 0);
    io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(entry, DATA_PROBE);
    struct io_uring_cqe *completion;
    int result = submit_and_wait_for_one(self, &completion);
    if (result < 0) return result;
    result = completion->res;
    const bool opened = completion->user_data == DATA_PROBE;
    io_uring_cqe_seen(&self->ring, completion);
    /* Closing an empty slot fails, which the next probe would take for its own result. */
    if (opened) add_close(self, 0);
    if (opened) io_uring_submit(&self->ring);
    return result;
}

/* A filter that lets the ring be created may still forbid what it does. */
static int probe_read(fm_uring *self) {
    int result = probe_path(self, "/proc/self/exe");
    if (result == -ENOENT || result == -EACCES) result = probe_path(self, "/dev/null");
    if (result >= 0) return FM_OK;
    return fm_error_set_errno(&self->error, FM_ERR_UNAVAILABLE, -result,
                              "io_uring can't be had here (a read through it failed)");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Whether the file has been opened without O_NONBLOCK, so that the kernel knows what may block. */
static bool is_plain(const fm_reader_op *op) {
    return op->plain || op->expected_bytes > 0 || op->shard;
}

static void add_read(fm_uring *self, fm_reader_op *op, bool to_helpers) {
    const int file = op->shard ? op->shard->file : (int)op->index;
    const unsigned flags =
        (to_helpers || !is_plain(op) ? IOSQE_ASYNC : 0) | (op->shard ? 0 : IOSQE_FIXED_FILE);
    struct io_uring_sqe *const entry = next_entry(self);
    io_uring_prep_read(entry, file, op->buffer + op->n_bytes,
                       (unsigned)fm_reader_ask(self->reader, op), op->offset_bytes + op->n_bytes);
    io_uring_sqe_set_flags(entry, flags);
    io_uring_sqe_set_data64(entry, (uint64_t)(uintptr_t)op | STEP_READ);
}

static void add_chain(fm_uring *self, fm_reader_op *op) {
    make_room(self, ENTRIES_PER_FILE); /* a submission in the middle would cut the chain */
    const uint64_t data = (uint64_t)(uintptr_t)op;
    add_open(self, op->path, op->index, is_plain(op) ? 0 : O_NONBLOCK, data | STEP_OPEN);
    if (!is_plain(op)) {
        struct io_uring_sqe *const entry = next_entry(self);
        io_uring_prep_fadvise(entry, (int)op->index, 0, 0, POSIX_FADV_NORMAL);
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE | IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS);
        io_uring_sqe_set_data64(entry, data | STEP_ADVISE);
    }
    add_read(self, op, false);
}

static void release_slot(fm_uring *self, fm_reader_op *op) {
    if (op->in_slot) add_close(self, op->index);
    op->in_slot = false;
}

/* A shard's file, which reader->n_closing counts already. Some file systems answer only after a
 * round trip. */
static void add_close_file(fm_uring *self, int file) {
    struct io_uring_sqe *const entry = next_entry(self);
    io_uring_prep_close(entry, file);
    io_uring_sqe_set_data64(entry, (uint64_t)file << DATA_CLOSE_BITS | DATA_CLOSE);
    self->n_in_flight++;
}

/* Accepts -1. */
static void close_file(fm_uring *self, int file) {
    if (file < 0) return;
    pthread_mutex_lock(&self->reader->lock);
    self->reader->n_closing++;
    pthread_mutex_unlock(&self->reader->lock);
    add_close_file(self, file);
}

/* At the end: files that stayed open. */
static void close_kept_files(fm_uring *self) {
    for (;;) {
        pthread_mutex_lock(&self->reader->lock);
        const int file = fm_reader_begin_close_locked(self->reader);
        pthread_mutex_unlock(&self->reader->lock);
        if (file < 0) return;
        add_close_file(self, file);
    }
}

static bool is_close(uint64_t data) { return (data & ((1u << DATA_CLOSE_BITS) - 1)) == DATA_CLOSE; }

static void complete_close(fm_uring *self, uint64_t data, int result) {
    self->n_in_flight--;
    /* Any other failure comes after the descriptor has gone. */
    if (result == -ECANCELED) close((int)(data >> DATA_CLOSE_BITS));
    pthread_mutex_lock(&self->reader->lock);
    fm_reader_end_close_locked(self->reader);
    pthread_mutex_unlock(&self->reader->lock);
}

static void add_shard_open(fm_uring *self, fm_reader_op *op) {
    struct io_uring_sqe *const entry = next_entry(self);
    io_uring_prep_openat(entry, AT_FDCWD, op->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                         0);
    io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    io_uring_sqe_set_data64(entry, (uint64_t)(uintptr_t)op | STEP_SHARD);
}

/* By its shard, which is open, being opened or now opened; or where all are in use by a chain. */
static void start_range(fm_uring *self, fm_reader_op *op) {
    fm_reader *const reader = self->reader;
    int to_close = -1;
    pthread_mutex_lock(&reader->lock);
    op->shard = fm_shards_find(&reader->shards, op->path);
    const bool found = op->shard != NULL;
    if (!found) op->shard = fm_shards_add(&reader->shards, op->path, reader->counter, &to_close);
    pthread_mutex_unlock(&reader->lock);
    close_file(self, to_close);
    if (!op->shard) {
        add_chain(self, op);
    } else if (op->shard->file >= 0) {
        add_read(self, op, false);
    } else if (found) {
        op->next = op->shard->waiting;
        op->shard->waiting = op;
    } else {
        add_shard_open(self, op);
    }
}

/* Starts a file or range, or goes on with it. */
static void start(fm_uring *self, fm_reader_op *op) {
    if (op->range_bytes)
        start_range(self, op);
    else
        add_chain(self, op);
}

/* Ends a file that is not in the ring any more. */
static void finish(fm_uring *self, fm_reader_op *op) {
    release_slot(self, op);
    close_file(self, fm_reader_release_shard(self->reader, op));
    self->n_in_flight--;
    fm_reader_finish(self->reader, op);
}

static void note_helpless(fm_uring *self) {
    if (self->helpless) return;
    self->helpless = true;
    pthread_mutex_lock(&self->reader->lock);
    fm_reader_note(self->reader, "the kernel could not create helper threads: files were read one "
                                 "by one");
    pthread_mutex_unlock(&self->reader->lock);
}

/*
 * A step failed. Refusals are tried again. ECANCELED that nobody asked for means that the kernel
 * could not create a helper (pids.max), unless the file system answers it: this thread then reads
 * the file itself, and learns which.
 */
static void fail(fm_uring *self, fm_reader_op *op, int step, int failure) {
    const bool again = (failure == EAGAIN || failure == EINTR) && !self->cancelled &&
                       ++op->n_again < FM_READER_MOST_AGAIN;
    if (again && step == STEP_READ && (failure == EINTR || is_plain(op))) {
        add_read(self, op, true);
    } else if (again) {
        /* A read refused: fadvise has passed, so that O_NONBLOCK is not needed. */
        op->plain = op->plain || step == STEP_READ;
        release_slot(self, op);
        start(self, op);
    } else if (failure == ECANCELED && !self->cancelled) {
        release_slot(self, op);
        close_file(self, fm_reader_release_shard(self->reader, op));
        op->n_bytes = 0;
        fm_reader_read_file(self->reader, op);
        if (op->error != ECANCELED) note_helpless(self);
        finish(self, op);
    } else {
        op->error = failure == ESPIPE ? EINVAL : failure;
        if (self->cancelled && failure == EINTR) op->error = ECANCELED;
        finish(self, op);
    }
}

/* What was opened can be read at an offset; it is to block, as the kernel knows what may. */
static int check_shard(int file) {
    if (lseek(file, 0, SEEK_CUR) < 0) {
        const int failure = errno;
        close(file);
        return -failure;
    }
    fcntl(file, F_SETFL, 0);
    return file;
}

/* The shard that could not be opened is given up by all who waited for it; op is the first. */
static void shard_failed(fm_uring *self, fm_reader_op *op, fm_reader_op *waiting, int failure) {
    pthread_mutex_lock(&self->reader->lock);
    fm_shards_unlist(&self->reader->shards, op->shard);
    pthread_mutex_unlock(&self->reader->lock);
    const bool full = failure == EMFILE || failure == ENFILE;
    const bool has_room = full && fm_reader_close_a_shard(self->reader);
    fm_reader_release_shard(self->reader, op);
    if (has_room)
        start(self, op);
    else if (full)
        add_chain(self, op);
    else
        fail(self, op, STEP_SHARD, failure);
    /* The others try for themselves: what failed may work the next time. */
    while ((op = waiting)) {
        waiting = op->next;
        fm_reader_release_shard(self->reader, op);
        if (self->cancelled)
            fail(self, op, STEP_SHARD, ECANCELED);
        else
            start(self, op);
    }
}

/* The shard that op asked for is open, or `result` says why not. */
static void complete_shard(fm_uring *self, fm_reader_op *op, int result) {
    fm_shard *const shard = op->shard;
    fm_reader_op *waiting = shard->waiting;
    shard->waiting = NULL;
    if (result >= 0) result = check_shard(result);
    if (result < 0) {
        shard_failed(self, op, waiting, -result);
        return;
    }
    pthread_mutex_lock(&self->reader->lock);
    shard->file = result;
    pthread_mutex_unlock(&self->reader->lock);
    op->opened = true;
    add_read(self, op, false);
    while ((op = waiting)) {
        waiting = op->next;
        add_read(self, op, false);
    }
}

static void complete(fm_uring *self, uint64_t data, int result) {
    if (data == DATA_WAKE) self->wake_posted = false;
    if (data <= DATA_PROBE) return;
    if (is_close(data)) {
        complete_close(self, data, result);
        return;
    }
    fm_reader_op *const op = (fm_reader_op *)(uintptr_t)(data & ~(uint64_t)STEP_MASK);
    const int step = (int)(data & STEP_MASK);
    if (step == STEP_SHARD) {
        complete_shard(self, op, result);
        return;
    }
    if (step != STEP_OPEN && !op->shard) op->opened = op->in_slot = true;
    if (step != STEP_READ) {
        fail(self, op, step, -result);
        return;
    }
    const int64_t n = fm_reader_result(self->reader, op, result);
    if (n < 0)
        fail(self, op, step, (int)-n);
    else if (fm_reader_advance(self->reader, op, (uint64_t)n))
        add_read(self, op, false);
    else
        finish(self, op);
}

/* ---- the ring's thread ----------------------------------------------------------------------- */

static void reap(fm_uring *self) {
    struct io_uring_cqe *found[REAP_BATCH];
    struct {
        uint64_t data;
        int result;
    } copies[REAP_BATCH];
    unsigned n;
    while ((n = io_uring_peek_batch_cqe(&self->ring, found, REAP_BATCH)) > 0) {
        uint64_t n_reads = 0;
        for (unsigned i = 0; i < n; i++) {
            copies[i].data = found[i]->user_data;
            copies[i].result = found[i]->res;
            n_reads += copies[i].data > DATA_PROBE && !(copies[i].data & STEP_MASK) &&
                       !is_close(copies[i].data);
        }
        io_uring_cq_advance(&self->ring, n);
        pthread_mutex_lock(&self->reader->lock);
        self->reader->n_completions += n_reads;
        pthread_mutex_unlock(&self->reader->lock);
        for (unsigned i = 0; i < n; i++) complete(self, copies[i].data, copies[i].result);
    }
}

/* What waits for a helper ends at once, and sleeps that can be interrupted are. Once. */
static void cancel_all(fm_uring *self) {
    if (!self->cancelled && self->n_in_flight > 0) {
        struct io_uring_sqe *const entry = next_entry(self);
        io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
        io_uring_sqe_set_data64(entry, DATA_NONE);
    }
    self->cancelled = true;
}

/* Starts all that can be started; false: the reader is closing and nothing is in flight. */
static bool start_all(fm_uring *self) {
    fm_reader *const reader = self->reader;
    for (;;) {
        fm_reader_op *list = NULL, **end = &list, *op;
        pthread_mutex_lock(&reader->lock);
        while ((op = fm_reader_take_locked(reader))) {
            *end = op;
            end = &op->next;
        }
        const bool idle = list == NULL;
        self->waiting = idle;
        const bool closing = reader->closing;
        pthread_mutex_unlock(&reader->lock);
        while ((op = list)) {
            list = op->next;
            self->n_in_flight++;
            if (op->error)
                finish(self, op);
            else
                start(self, op);
        }
        if (!idle) continue;
        if (!closing) return true;
        cancel_all(self);
        close_kept_files(self); /* behind the cancelling, which leaves these alone */
        return self->n_in_flight > 0;
    }
}

static void serve(fm_uring *self) {
    while (start_all(self)) {
        if (!self->wake_posted && !self->cancelled) {
            struct io_uring_sqe *const entry = next_entry(self);
            io_uring_prep_read(entry, self->wake_file, &self->wake_value, sizeof(self->wake_value),
                               0);
            io_uring_sqe_set_data64(entry, DATA_WAKE);
            self->wake_posted = true;
        }
        const int result = io_uring_submit_and_wait(&self->ring, 1);
        /* Memory is short: completions may still come, and then entries go through. */
        if (result < 0 && result != -EINTR && result != -EBUSY) pause_ms();
        pthread_mutex_lock(&self->reader->lock);
        self->waiting = false;
        pthread_mutex_unlock(&self->reader->lock);
        reap(self);
    }
}

static int set_up(fm_uring *self) {
    int status = init_ring(self);
    if (!status) status = check_kernel(self);
    if (!status) status = register_limits(self);
    if (!status) status = probe_read(self);
    return status;
}

/* A profiler's signal, which other threads take. The kernel creates its helpers on behalf of this
 * thread, gives up where a signal is pending, and cancels what they were to do. */
static void block_profiling(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void *uring_main(void *argument) {
    fm_uring *const self = argument;
    fm_reader *const reader = self->reader;
    block_profiling();
    const int status = set_up(self);
    pthread_mutex_lock(&reader->lock);
    self->state = status ? URING_FAILED : URING_RUNNING;
    pthread_cond_broadcast(&reader->quiet);
    pthread_mutex_unlock(&reader->lock);
    if (!status) serve(self);
    if (self->has_ring) {
        RING_UNMAPPED();
        io_uring_queue_exit(&self->ring);
    }
    fm_reader_unref(reader);
    return NULL;
}

/* ---- the back end ---------------------------------------------------------------------------- */

static bool uring_wake_locked(fm_reader *reader) {
    fm_uring *const self = reader->impl;
    const bool waiting = self->waiting;
    self->waiting = false;
    return waiting;
}

static void uring_notify(fm_reader *reader) {
    const fm_uring *const self = reader->impl;
    const uint64_t one = 1;
    /* Apart from a signal it fails only if 2^64 - 2 wake-ups are pending. */
    while (write(self->wake_file, &one, sizeof(one)) < 0 && errno == EINTR) continue;
}

static void uring_stop_locked(fm_reader *reader) { uring_notify(reader); }

static void uring_leave(fm_reader *reader) {
    fm_uring *const self = reader->impl;
    pthread_mutex_lock(&reader->lock);
    const bool stuck = reader->n_active > 0 || reader->n_closing > 0;
    pthread_mutex_unlock(&reader->lock);
    if (stuck)
        fm_thread_detach(&self->thread);
    else
        fm_thread_join(&self->thread);
}

static void uring_destroy(fm_reader *reader) {
    fm_uring *const self = reader->impl;
    close(self->wake_file);
    fm_mem_free(self);
}

static int uring_open(fm_reader *reader, fm_error *error) {
    fm_uring *const self = fm_mem_zalloc(reader->config.counter, 1, sizeof(*self));
    if (!self) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for an io_uring");
    self->reader = reader;
    reader->impl = self;
    self->wake_file = eventfd(0, EFD_CLOEXEC);
    int status = FM_OK;
    if (self->wake_file < 0) {
        status = fm_error_set_errno(error, FM_ERR_UNAVAILABLE, errno, "can't create an eventfd");
        fm_mem_free(self);
        return status;
    }
    pthread_mutex_lock(&reader->lock);
    status = fm_thread_start(&self->thread, "fm-uring", STACK_BYTES, uring_main, self, error);
    if (!status) {
        reader->n_references++;
        while (self->state == URING_STARTING) pthread_cond_wait(&reader->quiet, &reader->lock);
    }
    pthread_mutex_unlock(&reader->lock);
    if (self->state == URING_FAILED) {
        fm_thread_join(&self->thread);
        status = self->error.status;
        if (error) *error = self->error;
    }
    if (status) {
        uring_destroy(reader);
        reader->impl = NULL;
        return status;
    }
    reader->stats.n_threads = 1;
    return FM_OK;
}

const fm_reader_backend fm_reader_uring_backend = {.name = "uring",
                                                   .default_depth = 64,
                                                   .most_depth = 1024,
                                                   .open = uring_open,
                                                   .wake_locked = uring_wake_locked,
                                                   .notify = uring_notify,
                                                   .stop_locked = uring_stop_locked,
                                                   .leave = uring_leave,
                                                   .destroy = uring_destroy};
