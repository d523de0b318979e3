/*
 * The io_uring back end: one thread owns the ring (uring.h), starts reads and completes them.
 *
 * A whole file is a chain of operations: open into a slot of the ring's file table, then read. All
 * but the last carry IOSQE_CQE_SKIP_SUCCESS: they complete silently if they succeed, and if one
 * fails, its completion is the only one of the chain (the kernel's req_set_fail() silences the
 * rest). So each chain, and each further read, ends in exactly one completion, and completions need
 * no counting. The slot's number is op->index. The slot is closed as soon as the file is complete;
 * the kernel closes it when the entry is submitted, before a later open into the same slot.
 *
 * The file of a range is opened to an ordinary descriptor that stays open (file_cache.h). Other
 * ranges of the file wait while it is being opened; after that a range is one read. Where no
 * descriptor or no entry of the cache is free, a range is a chain as well.
 *
 * - Opens run on the kernel's helper threads (IOSQE_ASYNC). By default io_uring first tries inline,
 *   and an open on FUSE or NFS then blocks this thread: one file at a time, at any depth.
 * - The kernel allows four helpers per CPU unless it is told otherwise (uring.c).
 * - O_CLOEXEC together with a slot is refused (EINVAL).
 * - A file of unknown size may be a FIFO, whose open would wait for a writer. It is opened with
 *   O_NONBLOCK, and a POSIX_FADV_NORMAL, which changes nothing, then fails for a FIFO (ESPIPE). The
 *   read runs on a helper, too: io_uring assumes that reads of an O_NONBLOCK file never block and
 *   would run them inline, one at a time. If the size is known, the file was a regular one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "read/reader_impl.h"
#include "read/uring.h"

#define STACK_BYTES (256u << 10)
/* Entries of the longest chain and of closing a slot. */
#define CHAIN_ENTRIES 4

/* An operation's data: the op's address, whose lowest bits hold the step; or one of the DATA_*. */
enum { STEP_READ = 0, STEP_OPEN = 1, STEP_ADVISE = 2, STEP_OPEN_CACHED = 3, STEP_MASK = 3 };
enum { DATA_NONE = 0, DATA_WAKE = 4 };
/* For closing a cached file: the descriptor, shifted, and lower bits that no op's address has. */
enum { DATA_CLOSE = 12, DATA_CLOSE_BITS = 4 };

typedef enum uring_state { URING_STARTING, URING_RUNNING, URING_FAILED } uring_state;

typedef struct fm_uring_reader {
    fm_reader *reader;
    fm_thread thread;
    /* Only the ring's thread uses these. */
    fm_uring *ring;
    bool wake_posted; /* a read of wake_file is in flight */
    bool cancelled;   /* everything in flight was cancelled: the reader is closing */
    bool no_helpers;  /* noted that helper threads could not be created */
    uint64_t wake_value;
    uint32_t n_in_flight; /* reads, and files being closed */
    fm_error error;       /* why the start failed; the opener reads it after `state` is set */
    int wake_file;        /* eventfd that wakes the thread; constant after open */
    /* Under the reader's lock. */
    uring_state state;
    bool waiting; /* the thread waits, and nobody has written to wake_file since */
} fm_uring_reader;

/* ---- queueing -------------------------------------------------------------------------------- */

/* Whether the file is opened without O_NONBLOCK, so that io_uring knows which reads may block. */
static bool opens_blocking(const fm_reader_op *op) {
    return op->open_blocking || op->expected_bytes > 0 || op->cached;
}

static void add_read(fm_uring_reader *self, fm_reader_op *op, bool on_helper) {
    const int file = op->cached ? op->cached->file : (int)op->index;
    const unsigned flags = (on_helper || !opens_blocking(op) ? FM_URING_ON_HELPER : 0u) |
                           (op->cached ? 0u : FM_URING_SLOT);
    fm_uring_queue_read(self->ring, file, flags, op->buffer + op->n_bytes,
                        (unsigned)fm_reader_request_bytes(self->reader, op),
                        op->offset_bytes + op->n_bytes, (uint64_t)(uintptr_t)op | STEP_READ);
}

static void add_chain(fm_uring_reader *self, fm_reader_op *op) {
    const uint64_t data = (uint64_t)(uintptr_t)op;
    const bool blocking = opens_blocking(op);
    fm_uring_reserve(self->ring, CHAIN_ENTRIES);
    fm_uring_queue_open_in_slot(self->ring, op->path, op->index, blocking ? 0 : O_NONBLOCK,
                                data | STEP_OPEN);
    if (!blocking) fm_uring_queue_refuse_fifo(self->ring, op->index, data | STEP_ADVISE);
    add_read(self, op, false);
}

static void release_slot(fm_uring_reader *self, fm_reader_op *op) {
    if (op->in_slot) fm_uring_queue_close_slot(self->ring, op->index);
    op->in_slot = false;
}

/* Closes a cached file, which reader->n_closing already counts. On some file systems close(2) takes
 * a round trip. */
static void add_close_file(fm_uring_reader *self, int file) {
    fm_uring_queue_close(self->ring, file, (uint64_t)file << DATA_CLOSE_BITS | DATA_CLOSE);
    self->n_in_flight++;
}

/* Accepts -1. */
static void close_file(fm_uring_reader *self, int file) {
    if (file < 0) return;
    pthread_mutex_lock(&self->reader->lock);
    self->reader->n_closing++;
    pthread_mutex_unlock(&self->reader->lock);
    add_close_file(self, file);
}

/* While closing: closes the cached files. */
static void close_kept_files(fm_uring_reader *self) {
    for (;;) {
        pthread_mutex_lock(&self->reader->lock);
        const int file = fm_reader_begin_close_locked(self->reader);
        pthread_mutex_unlock(&self->reader->lock);
        if (file < 0) return;
        add_close_file(self, file);
    }
}

static bool is_close(uint64_t data) { return (data & ((1u << DATA_CLOSE_BITS) - 1)) == DATA_CLOSE; }

static void complete_close(fm_uring_reader *self, uint64_t data, int result) {
    self->n_in_flight--;
    /* After any other failure the descriptor is gone. */
    if (result == -ECANCELED) close((int)(data >> DATA_CLOSE_BITS));
    pthread_mutex_lock(&self->reader->lock);
    fm_reader_end_close_locked(self->reader);
    pthread_mutex_unlock(&self->reader->lock);
}

static void add_cached_open(fm_uring_reader *self, fm_reader_op *op) {
    fm_uring_queue_open(self->ring, op->path, O_NONBLOCK,
                        (uint64_t)(uintptr_t)op | STEP_OPEN_CACHED);
}

/* Reads a range from its cached file, which may be open, being opened, or must be opened; or, where
 * all entries of the cache are in use, by a chain. */
static void start_range(fm_uring_reader *self, fm_reader_op *op) {
    fm_reader *const reader = self->reader;
    int to_close = -1;
    pthread_mutex_lock(&reader->lock);
    op->cached = fm_file_cache_find(&reader->file_cache, op->path);
    const bool found = op->cached != NULL;
    if (!found)
        op->cached = fm_file_cache_add(&reader->file_cache, op->path, reader->counter, &to_close);
    pthread_mutex_unlock(&reader->lock);
    close_file(self, to_close);
    if (!op->cached) {
        add_chain(self, op);
    } else if (op->cached->file >= 0) {
        add_read(self, op, false);
    } else if (found) {
        op->next = op->cached->waiting;
        op->cached->waiting = op;
    } else {
        add_cached_open(self, op);
    }
}

/* Starts a read, or starts it again. */
static void start(fm_uring_reader *self, fm_reader_op *op) {
    if (op->range_bytes)
        start_range(self, op);
    else
        add_chain(self, op);
}

/* Ends a read of which nothing is in the ring any more. */
static void finish(fm_uring_reader *self, fm_reader_op *op) {
    release_slot(self, op);
    close_file(self, fm_reader_release_file(self->reader, op));
    self->n_in_flight--;
    fm_reader_finish(self->reader, op);
}

/* The message appears once. */
static void note_no_helpers(fm_uring_reader *self) {
    if (self->no_helpers) return;
    self->no_helpers = true;
    pthread_mutex_lock(&self->reader->lock);
    fm_reader_note(self->reader, "io_uring could not create helper threads: files were read one "
                                 "by one");
    pthread_mutex_unlock(&self->reader->lock);
}

/*
 * A step of op failed. EAGAIN and EINTR are retried. ECANCELED without a cancellation means that
 * the kernel could not create a helper thread (pids.max), or that the file system returned it: this
 * thread then reads the file itself, which shows which of both it was.
 */
static void fail(fm_uring_reader *self, fm_reader_op *op, int step, int failure) {
    const bool again = (failure == EAGAIN || failure == EINTR) && !self->cancelled &&
                       ++op->n_retries < FM_READER_MAX_RETRIES;
    if (again && step == STEP_READ && (failure == EINTR || opens_blocking(op))) {
        add_read(self, op, true);
    } else if (again) {
        /* If the read failed, fadvise has succeeded: the file is no FIFO. */
        op->open_blocking = op->open_blocking || step == STEP_READ;
        release_slot(self, op);
        start(self, op);
    } else if (failure == ECANCELED && !self->cancelled) {
        release_slot(self, op);
        close_file(self, fm_reader_release_file(self->reader, op));
        op->n_bytes = 0;
        fm_reader_read_file(self->reader, op);
        if (op->error != ECANCELED) note_no_helpers(self);
        finish(self, op);
    } else {
        op->error = failure == ESPIPE ? EINVAL : failure;
        if (self->cancelled && failure == EINTR) op->error = ECANCELED;
        finish(self, op);
    }
}

/* Checks that a file can be read at an offset, and clears O_NONBLOCK, so that io_uring knows which
 * reads may block. Returns the file, or closes it and returns a negative errno. */
static int check_opened(int file) {
    if (lseek(file, 0, SEEK_CUR) < 0) {
        const int failure = errno;
        close(file);
        return -failure;
    }
    fcntl(file, F_SETFL, 0);
    return file;
}

/* op->cached could not be opened: op and the reads waiting for it release the entry. */
static void cached_open_failed(fm_uring_reader *self, fm_reader_op *op, fm_reader_op *waiting,
                               int failure) {
    pthread_mutex_lock(&self->reader->lock);
    fm_file_cache_unlist(&self->reader->file_cache, op->cached);
    pthread_mutex_unlock(&self->reader->lock);
    const bool full = failure == EMFILE || failure == ENFILE;
    const bool has_descriptor = full && fm_reader_evict_file(self->reader);
    fm_reader_release_file(self->reader, op);
    if (has_descriptor)
        start(self, op);
    else if (full)
        add_chain(self, op);
    else
        fail(self, op, STEP_OPEN_CACHED, failure);
    /* Each of the others starts anew, as the next attempt may succeed. */
    while ((op = waiting)) {
        waiting = op->next;
        fm_reader_release_file(self->reader, op);
        if (self->cancelled)
            fail(self, op, STEP_OPEN_CACHED, ECANCELED);
        else
            start(self, op);
    }
}

/* Opening op->cached has ended: `result` is the file or a negative errno. */
static void complete_cached_open(fm_uring_reader *self, fm_reader_op *op, int result) {
    fm_cached_file *const cached = op->cached;
    fm_reader_op *waiting = cached->waiting;
    cached->waiting = NULL;
    if (result >= 0) result = check_opened(result);
    if (result < 0) {
        cached_open_failed(self, op, waiting, -result);
        return;
    }
    pthread_mutex_lock(&self->reader->lock);
    cached->file = result;
    pthread_mutex_unlock(&self->reader->lock);
    op->opened = true;
    add_read(self, op, false);
    while ((op = waiting)) {
        waiting = op->next;
        add_read(self, op, false);
    }
}

static void complete(fm_uring_reader *self, uint64_t data, int result) {
    if (data == DATA_WAKE) self->wake_posted = false;
    if (data <= DATA_WAKE) return;
    if (is_close(data)) {
        complete_close(self, data, result);
        return;
    }
    fm_reader_op *const op = (fm_reader_op *)(uintptr_t)(data & ~(uint64_t)STEP_MASK);
    const int step = (int)(data & STEP_MASK);
    if (step == STEP_OPEN_CACHED) {
        complete_cached_open(self, op, result);
        return;
    }
    if (step != STEP_OPEN && !op->cached) op->opened = op->in_slot = true;
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

static void reap(fm_uring_reader *self) {
    fm_uring_completion done[FM_URING_REAP_BATCH];
    unsigned n;
    while ((n = fm_uring_reap(self->ring, done, FM_URING_REAP_BATCH)) > 0) {
        uint64_t n_reads = 0;
        for (unsigned i = 0; i < n; i++)
            n_reads +=
                done[i].data > DATA_WAKE && !(done[i].data & STEP_MASK) && !is_close(done[i].data);
        pthread_mutex_lock(&self->reader->lock);
        self->reader->n_completions += n_reads;
        pthread_mutex_unlock(&self->reader->lock);
        for (unsigned i = 0; i < n; i++) complete(self, done[i].data, done[i].result);
    }
}

/* Cancels everything in flight, once. */
static void cancel_all(fm_uring_reader *self) {
    if (!self->cancelled && self->n_in_flight > 0) fm_uring_queue_cancel_all(self->ring, DATA_NONE);
    self->cancelled = true;
}

/* Starts every read that can start. False: the reader is closing and nothing is in flight. */
static bool start_all(fm_uring_reader *self) {
    fm_reader *const reader = self->reader;
    for (;;) {
        fm_reader_op *list = NULL, **end = &list, *op;
        pthread_mutex_lock(&reader->lock);
        while ((op = fm_reader_dequeue_locked(reader))) {
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
        close_kept_files(self); /* queued after the cancellation, which spares them */
        return self->n_in_flight > 0;
    }
}

static void serve(fm_uring_reader *self) {
    while (start_all(self)) {
        if (!self->wake_posted && !self->cancelled) {
            fm_uring_queue_read(self->ring, self->wake_file, 0, &self->wake_value,
                                sizeof(self->wake_value), 0, DATA_WAKE);
            self->wake_posted = true;
        }
        fm_uring_submit_and_wait(self->ring);
        pthread_mutex_lock(&self->reader->lock);
        self->waiting = false;
        pthread_mutex_unlock(&self->reader->lock);
        reap(self);
    }
}

/* Blocks SIGPROF, a profiler's signal: the kernel creates helper threads on behalf of this thread,
 * and if a signal is pending it gives up and cancels their operations. */
static void block_profiling(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void *uring_main(void *argument) {
    fm_uring_reader *const self = argument;
    fm_reader *const reader = self->reader;
    block_profiling();
    const int status = fm_uring_open(&self->ring, reader, &self->error);
    pthread_mutex_lock(&reader->lock);
    self->state = status ? URING_FAILED : URING_RUNNING;
    pthread_cond_broadcast(&reader->quiet);
    pthread_mutex_unlock(&reader->lock);
    if (!status) serve(self);
    fm_uring_close(&self->ring);
    fm_reader_unref(reader);
    return NULL;
}

/* ---- the back end ---------------------------------------------------------------------------- */

static bool uring_wake_locked(fm_reader *reader) {
    fm_uring_reader *const self = reader->impl;
    const bool waiting = self->waiting;
    self->waiting = false;
    return waiting;
}

static void uring_notify(fm_reader *reader) {
    const fm_uring_reader *const self = reader->impl;
    const uint64_t one = 1;
    /* Fails only after a signal, or if 2^64 - 2 wake-ups are pending. */
    while (write(self->wake_file, &one, sizeof(one)) < 0 && errno == EINTR) continue;
}

static void uring_stop_locked(fm_reader *reader) { uring_notify(reader); }

static void uring_leave(fm_reader *reader) {
    fm_uring_reader *const self = reader->impl;
    pthread_mutex_lock(&reader->lock);
    const bool stuck = reader->n_active > 0 || reader->n_closing > 0;
    pthread_mutex_unlock(&reader->lock);
    if (stuck)
        fm_thread_detach(&self->thread);
    else
        fm_thread_join(&self->thread);
}

static void uring_destroy(fm_reader *reader) {
    fm_uring_reader *const self = reader->impl;
    close(self->wake_file);
    fm_mem_free(self);
}

static int uring_open(fm_reader *reader, fm_error *error) {
    fm_uring_reader *const self = fm_mem_zalloc(reader->config.counter, 1, sizeof(*self));
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
                                                   .max_depth = 1024,
                                                   .open = uring_open,
                                                   .wake_locked = uring_wake_locked,
                                                   .notify = uring_notify,
                                                   .stop_locked = uring_stop_locked,
                                                   .leave = uring_leave,
                                                   .destroy = uring_destroy};
