/*
 * The pread back end: a pool of threads that open, pread and close. The HTTP back end uses the pool
 * for its lookups in a disk cache.
 *
 * All threads are created at the start, but only n_wanted of them read at the same time. With a
 * warm page cache two are enough, and each further one costs a wake-up and a cold CPU cache. Where
 * storage blocks, n_wanted grows by one with each file that blocked, which doubles it in each round
 * trip, and shrinks slowly once files no longer block. Whether a file blocked shows in the kernel's
 * count of voluntary context switches. Wall time alone would mistake CPU contention for slow
 * storage, and answer it with more threads.
 *
 * While reads are queued that no thread is about to take, one idle thread, the watcher, waits with
 * a timeout, and starts to read when all others are stuck.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "read/reader_impl.h"

/* Enough for on_done() and for the thread-local memory of the process's libraries, which glibc also
   takes from the stack. Untouched pages cost nothing. */
#define STACK_BYTES (256u << 10)
#define MIN_WANTED 2
/* A faster read has not waited for storage: a file of 110 KB in the page cache takes 22 us. */
#define BLOCKED_NS 100000u
/* n_wanted shrinks by one after so many files in a row that did not block. */
#define CALM_FILES 64
/* n_wanted grows by one if reads are queued and none has started for so long. */
#define WATCH_NS 4000000u
/* Pause after EAGAIN, which comes from file leases and from files being recalled from an archive.
 */
#define AGAIN_WAIT_NS 1000000u

typedef struct fm_pread_thread {
    fm_reader *reader;
    fm_thread thread;
    /* Under the reader's lock. */
    bool in_file; /* in a system call on a file, perhaps stuck */
} fm_pread_thread;

typedef struct fm_pread {
    uint32_t n_threads;                                /* fixed after open */
    bool (*read)(fm_reader *reader, fm_reader_op *op); /* see fm_reader_pool_open() */
    pthread_cond_t work;
    /* Under the reader's lock. */
    uint32_t n_wanted; /* how many threads may read at the same time */
    uint32_t n_busy, n_idle;
    uint32_t n_waking; /* signalled, not yet awake */
    uint32_t n_calm;   /* files in a row that did not block */
    uint64_t n_started;
    bool watched; /* there is a watcher */
    fm_pread_thread threads[];
} fm_pread;

/* ---- one file -------------------------------------------------------------------------------- */

static void wait_again(void) {
    struct timespec left = {.tv_nsec = AGAIN_WAIT_NS};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) continue;
}

/* With O_NONBLOCK, as opening a FIFO would wait for a writer. It has no effect on regular files.
 * Returns a negative errno on failure. */
static int open_file(fm_reader_op *op) {
    for (;;) {
        const int file = open(op->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (file >= 0) return file;
        if (errno == EAGAIN && ++op->n_retries < FM_READER_MAX_RETRIES)
            wait_again();
        else if (errno != EINTR)
            return -errno;
    }
}

static void read_bytes(fm_reader *reader, fm_reader_op *op, int file) {
    for (;;) {
        const uint64_t ask = fm_reader_request_bytes(reader, op);
        int64_t n =
            pread(file, op->buffer + op->n_bytes, ask, (off_t)(op->offset_bytes + op->n_bytes));
        n = fm_reader_result(reader, op, n < 0 ? -errno : n);
        if (n >= 0) {
            if (!fm_reader_advance(reader, op, (uint64_t)n)) return;
        } else if (n == -EAGAIN && ++op->n_retries < FM_READER_MAX_RETRIES) {
            fcntl(file, F_SETFL, 0); /* the file is no FIFO: let reads block */
            wait_again();
        } else if (n != -EINTR) {
            /* FIFOs and terminals have no offset. "Illegal seek" would puzzle the user. */
            op->error = n == -ESPIPE ? EINVAL : (int)-n;
            return;
        }
    }
}

/* Sets op->cached if the cache has the file, open. */
static bool find_cached(fm_reader *reader, fm_reader_op *op) {
    pthread_mutex_lock(&reader->lock);
    op->cached = fm_file_cache_find(&reader->file_cache, op->path);
    /* An entry that the io_uring thread is opening has no file yet. */
    if (op->cached && op->cached->file < 0) {
        fm_file_cache_release(&reader->file_cache, op->cached);
        op->cached = NULL;
    }
    pthread_mutex_unlock(&reader->lock);
    return op->cached != NULL;
}

/* Puts the file into the cache as op->cached, unless another thread did or the cache is full. */
static void add_to_cache(fm_reader *reader, fm_reader_op *op, int file) {
    if (lseek(file, 0, SEEK_CUR) < 0) return; /* a FIFO, which can't be read at an offset */
    /* io_uring may read it, too, and assumes that reads of an O_NONBLOCK file never block. */
    fcntl(file, F_SETFL, 0);
    int to_close = -1;
    pthread_mutex_lock(&reader->lock);
    fm_cached_file *const other = fm_file_cache_find(&reader->file_cache, op->path);
    if (other)
        fm_file_cache_release(&reader->file_cache, other);
    else
        op->cached = fm_file_cache_add(&reader->file_cache, op->path, reader->counter, &to_close);
    if (op->cached) op->cached->file = file;
    pthread_mutex_unlock(&reader->lock);
    if (to_close >= 0) close(to_close);
}

/* After open() failed: whether a descriptor was freed, so that it may succeed now. */
static bool free_descriptor(fm_reader *reader, fm_reader_op *op, int failure) {
    if (failure != EMFILE && failure != ENFILE) return false;
    if (fm_reader_evict_file(reader)) return true;
    /* Other threads use all cached files, but not for long. */
    if (!op->range_bytes || ++op->n_retries >= FM_READER_MAX_RETRIES) return false;
    wait_again();
    return true;
}

void fm_reader_read_file(fm_reader *reader, fm_reader_op *op) {
    if (op->range_bytes && find_cached(reader, op)) {
        read_bytes(reader, op, op->cached->file);
    } else {
        int file;
        do file = open_file(op);
        while (file < 0 && free_descriptor(reader, op, -file));
        if (file < 0) {
            op->error = -file;
            return;
        }
        op->opened = true;
        if (op->range_bytes) add_to_cache(reader, op, file);
        read_bytes(reader, op, file);
        if (!op->cached) close(file);
    }
    const int to_close = fm_reader_release_file(reader, op);
    if (to_close >= 0) close(to_close);
}

/* ---- the pool -------------------------------------------------------------------------------- */

bool fm_reader_pool_wake_locked(fm_reader *reader) {
    fm_pread *const pool = reader->pool;
    if (pool->n_idle <= pool->n_waking || reader->n_queued <= pool->n_waking) return false;
    /* If n_wanted threads are busy, wakes one more as the watcher. */
    if (pool->n_busy + pool->n_waking >= pool->n_wanted && pool->watched) return false;
    pool->n_waking++;
    return true;
}

void fm_reader_pool_notify(fm_reader *reader) {
    fm_pread *const pool = reader->pool;
    pthread_cond_signal(&pool->work);
}

/* Waits until this thread must start a read; false: the reader is closing. */
static bool wait_for_work_locked(fm_reader *reader, fm_pread *pool) {
    while (!reader->closing) {
        const bool ready = fm_reader_ready_locked(reader);
        if (ready && pool->n_busy < pool->n_wanted) return true;
        const bool watch = ready && !pool->watched;
        const uint64_t n_started = pool->n_started;
        bool late = false;
        pool->n_idle++;
        if (watch) {
            pool->watched = true;
            late = fm_cond_wait_until(&pool->work, &reader->lock, fm_clock_ns() + WATCH_NS);
            pool->watched = false;
        } else {
            pthread_cond_wait(&pool->work, &reader->lock);
        }
        pool->n_idle--;
        if (pool->n_waking) pool->n_waking--;
        if (late && n_started == pool->n_started && pool->n_wanted < pool->n_threads)
            pool->n_wanted++;
    }
    return false;
}

/* Whether the calling thread has blocked in a system call since *seen was last updated. */
static bool has_blocked(int64_t *seen) {
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage)) return true;
    const bool blocked = usage.ru_nvcsw > *seen;
    *seen = usage.ru_nvcsw;
    return blocked;
}

static void adapt_locked(fm_reader *reader, fm_pread *pool, bool blocked) {
    if (blocked) {
        pool->n_calm = 0;
        if (reader->queue && pool->n_wanted < pool->n_threads) pool->n_wanted++;
    } else if (++pool->n_calm >= CALM_FILES) {
        pool->n_calm = 0;
        if (pool->n_wanted > MIN_WANTED) pool->n_wanted--;
    }
}

/* Called with the lock held; drops it while reading. */
static void serve_locked(fm_reader *reader, fm_pread_thread *self) {
    fm_pread *const pool = reader->pool;
    int64_t seen = 0;
    while (wait_for_work_locked(reader, pool)) {
        fm_reader_op *const op = fm_reader_dequeue_locked(reader);
        self->in_file = true;
        pool->n_busy++;
        pool->n_started++;
        const bool notify = fm_reader_ready_locked(reader) && fm_reader_pool_wake_locked(reader);
        pthread_mutex_unlock(&reader->lock);
        if (notify) fm_reader_pool_notify(reader);
        has_blocked(&seen);
        const uint64_t started_ns = op->started_ns;
        const bool is_done = op->error || pool->read(reader, op);
        const bool blocked = fm_clock_ns() - started_ns > BLOCKED_NS && has_blocked(&seen);
        if (is_done) fm_reader_finish(reader, op);
        pthread_mutex_lock(&reader->lock);
        self->in_file = false;
        pool->n_busy--;
        adapt_locked(reader, pool, blocked);
    }
}

/* Closes the cached files. Called with the lock held; drops it meanwhile. */
static void close_files_locked(fm_reader *reader, fm_pread_thread *self) {
    for (int file; (file = fm_reader_begin_close_locked(reader)) >= 0;) {
        self->in_file = true;
        pthread_mutex_unlock(&reader->lock);
        close(file);
        pthread_mutex_lock(&reader->lock);
        self->in_file = false;
        fm_reader_end_close_locked(reader);
    }
}

static void *pread_main(void *argument) {
    fm_pread_thread *const self = argument;
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    serve_locked(reader, self);
    close_files_locked(reader, self);
    pthread_mutex_unlock(&reader->lock);
    fm_reader_unref(reader);
    return NULL;
}

void fm_reader_pool_stop_locked(fm_reader *reader) {
    fm_pread *const pool = reader->pool;
    pthread_cond_broadcast(&pool->work);
}

/* Joins the threads that end at once, and detaches those that are stuck in a system call. */
void fm_reader_pool_leave(fm_reader *reader) {
    fm_pread *const pool = reader->pool;
    for (uint32_t i = 0; i < pool->n_threads; i++) {
        fm_pread_thread *const self = &pool->threads[i];
        pthread_mutex_lock(&reader->lock);
        const bool stuck = self->in_file;
        pthread_mutex_unlock(&reader->lock);
        if (stuck)
            fm_thread_detach(&self->thread);
        else
            fm_thread_join(&self->thread);
    }
}

void fm_reader_pool_destroy(fm_reader *reader) {
    fm_pread *const pool = reader->pool;
    if (!pool) return;
    pthread_cond_destroy(&pool->work);
    fm_mem_free(pool);
    reader->pool = NULL;
}

int fm_reader_pool_open(fm_reader *reader, uint32_t n_threads,
                        bool (*read)(fm_reader *reader, fm_reader_op *op), fm_error *error) {
    fm_pread *const pool = fm_mem_zalloc(reader->config.counter, 1,
                                         sizeof(*pool) + n_threads * sizeof(*pool->threads));
    if (!pool) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for reading threads");
    if (fm_cond_init(&pool->work)) {
        fm_mem_free(pool);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a condition variable");
    }
    reader->pool = pool;
    pool->read = read;
    pool->n_wanted = MIN_WANTED;
    uint32_t n = 0;
    fm_error why;
    /* Under lock: no thread may see n_threads or n_references before they are complete. */
    pthread_mutex_lock(&reader->lock);
    for (; n < n_threads; n++) {
        fm_pread_thread *const self = &pool->threads[n];
        self->reader = reader;
        if (fm_thread_start(&self->thread, "fm-read", STACK_BYTES, pread_main, self, &why)) break;
        reader->n_references++;
    }
    if (n > 0 && n < n_threads)
        fm_reader_note(reader, "%u threads instead of %u: %s", n, n_threads, why.message);
    pool->n_threads = n;
    reader->stats.n_threads += n;
    pthread_mutex_unlock(&reader->lock);
    if (n) return FM_OK;
    fm_reader_pool_destroy(reader);
    if (error) *error = why;
    return FM_ERR_THREAD;
}

static bool read_file(fm_reader *reader, fm_reader_op *op) {
    fm_reader_read_file(reader, op);
    return true;
}

static int pread_open(fm_reader *reader, fm_error *error) {
    const int status = fm_reader_pool_open(reader, reader->n_ops, read_file, error);
    if (status) return status;
    pthread_mutex_lock(&reader->lock);
    reader->n_ops = reader->pool->n_threads;
    pthread_mutex_unlock(&reader->lock);
    return FM_OK;
}

const fm_reader_backend fm_reader_pread_backend = {.name = "pread",
                                                   .default_depth = 32,
                                                   .max_depth = 1024,
                                                   .open = pread_open,
                                                   .wake_locked = fm_reader_pool_wake_locked,
                                                   .notify = fm_reader_pool_notify,
                                                   .stop_locked = fm_reader_pool_stop_locked,
                                                   .leave = fm_reader_pool_leave,
                                                   .destroy = fm_reader_pool_destroy};
