/*
 * A pool of threads for reads that block: of files (reader_pread.c), of what the caller reads
 * (reader_custom.c), and of a disk cache (reader_http.c).
 *
 * All threads are created at the start, but only n_wanted of them read at the same time. With a
 * warm page cache two are enough, and each further one costs a wake-up and a cold CPU cache. Where
 * storage blocks, n_wanted grows by one with each read that blocked, which doubles it in each round
 * trip, and shrinks slowly once reads no longer block. Whether one blocked shows in the kernel's
 * count of voluntary context switches. Wall time alone would mistake CPU contention for slow
 * storage, and answer it with more threads.
 *
 * While reads are queued that no thread is about to take, one idle thread, the watcher, waits with
 * a timeout, and starts to read when all others are stuck.
 */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "read/reader_impl.h"

#define MIN_WANTED 2
/* A faster read has not waited for storage: a file of 110 KB in the page cache takes 22 us. */
#define BLOCKED_NS 100000u
/* n_wanted shrinks by one after so many reads in a row that did not block. */
#define CALM_READS 64
/* n_wanted grows by one if reads are queued and none has started for so long. */
#define WATCH_NS 4000000u

typedef struct fm_reader_thread {
    fm_reader *reader;
    fm_thread thread;
    /* Under the reader's lock. */
    bool in_read; /* in a call that may block, perhaps stuck */
} fm_reader_thread;

typedef struct fm_reader_pool {
    uint32_t n_threads; /* fixed after open */
    bool (*read)(fm_reader *reader, fm_reader_op *op);
    pthread_cond_t work;
    /* Under the reader's lock. */
    uint32_t n_wanted; /* how many threads may read at the same time */
    uint32_t n_busy, n_idle;
    uint32_t n_waking; /* signalled, not yet awake */
    uint32_t n_calm;   /* reads in a row that did not block */
    uint64_t n_started;
    bool watched; /* there is a watcher */
    fm_reader_thread threads[];
} fm_reader_pool;

bool fm_reader_pool_wake_locked(fm_reader *reader) {
    fm_reader_pool *const pool = reader->pool;
    if (pool->n_idle <= pool->n_waking || reader->n_queued <= pool->n_waking) return false;
    /* If n_wanted threads are busy, wakes one more as the watcher. */
    if (pool->n_busy + pool->n_waking >= pool->n_wanted && pool->watched) return false;
    pool->n_waking++;
    return true;
}

void fm_reader_pool_notify(fm_reader *reader) {
    fm_reader_pool *const pool = reader->pool;
    pthread_cond_signal(&pool->work);
}

/* Waits until this thread must start a read; false: the reader is closing. */
static bool wait_for_work_locked(fm_reader *reader, fm_reader_pool *pool) {
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

static void adapt_locked(fm_reader *reader, fm_reader_pool *pool, bool blocked) {
    if (blocked) {
        pool->n_calm = 0;
        if (reader->queue && pool->n_wanted < pool->n_threads) pool->n_wanted++;
    } else if (++pool->n_calm >= CALM_READS) {
        pool->n_calm = 0;
        if (pool->n_wanted > MIN_WANTED) pool->n_wanted--;
    }
}

/* Called with the lock held; drops it while reading. */
static void serve_locked(fm_reader *reader, fm_reader_thread *self) {
    fm_reader_pool *const pool = reader->pool;
    int64_t seen = 0;
    while (wait_for_work_locked(reader, pool)) {
        fm_reader_op *const op = fm_reader_dequeue_locked(reader);
        self->in_read = true;
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
        self->in_read = false;
        pool->n_busy--;
        adapt_locked(reader, pool, blocked);
    }
}

/* Closes the cached files. Called with the lock held; drops it meanwhile. */
static void close_files_locked(fm_reader *reader, fm_reader_thread *self) {
    for (int file; (file = fm_reader_begin_close_locked(reader)) >= 0;) {
        self->in_read = true;
        pthread_mutex_unlock(&reader->lock);
        close(file);
        pthread_mutex_lock(&reader->lock);
        self->in_read = false;
        fm_reader_end_close_locked(reader);
    }
}

static void *pool_main(void *argument) {
    fm_reader_thread *const self = argument;
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    serve_locked(reader, self);
    close_files_locked(reader, self);
    pthread_mutex_unlock(&reader->lock);
    fm_reader_unref(reader);
    return NULL;
}

void fm_reader_pool_wake(fm_reader *reader) {
    if (!reader->pool) return;
    pthread_mutex_lock(&reader->lock);
    const bool notify =
        !reader->closing && fm_reader_ready_locked(reader) && fm_reader_pool_wake_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (notify) fm_reader_pool_notify(reader);
}

void fm_reader_pool_stop_locked(fm_reader *reader) {
    fm_reader_pool *const pool = reader->pool;
    pthread_cond_broadcast(&pool->work);
}

/* Joins the threads that end at once, and detaches those that are in a read, perhaps stuck. */
void fm_reader_pool_leave(fm_reader *reader) {
    fm_reader_pool *const pool = reader->pool;
    for (uint32_t i = 0; i < pool->n_threads; i++) {
        fm_reader_thread *const self = &pool->threads[i];
        pthread_mutex_lock(&reader->lock);
        const bool stuck = self->in_read;
        pthread_mutex_unlock(&reader->lock);
        if (stuck)
            fm_thread_detach(&self->thread);
        else
            fm_thread_join(&self->thread);
    }
}

void fm_reader_pool_destroy(fm_reader *reader) {
    fm_reader_pool *const pool = reader->pool;
    if (!pool) return;
    pthread_cond_destroy(&pool->work);
    fm_mem_free(pool);
    reader->pool = NULL;
}

int fm_reader_pool_open(fm_reader *reader, const fm_reader_pool_config *config, fm_error *error) {
    const uint32_t n_threads = config->n_threads;
    fm_reader_pool *const pool = fm_mem_zalloc(reader->config.counter, 1,
                                               sizeof(*pool) + n_threads * sizeof(*pool->threads));
    if (!pool) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for reading threads");
    if (fm_cond_init(&pool->work)) {
        fm_mem_free(pool);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a condition variable");
    }
    reader->pool = pool;
    pool->read = config->read;
    pool->n_wanted = MIN_WANTED;
    uint32_t n = 0;
    fm_error why;
    /* Under lock: no thread may see n_threads or n_references before they are complete. */
    pthread_mutex_lock(&reader->lock);
    for (; n < n_threads; n++) {
        fm_reader_thread *const self = &pool->threads[n];
        self->reader = reader;
        if (fm_thread_start(&self->thread, "fm-read", config->stack_bytes, pool_main, self, &why))
            break;
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

uint32_t fm_reader_pool_n_threads(const fm_reader *reader) { return reader->pool->n_threads; }
