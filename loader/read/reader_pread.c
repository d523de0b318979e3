/* The pread back end: threads of reader_pool.c that open, pread and close. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "read/reader_impl.h"

/* Enough for on_done() and for the thread-local memory of the process's libraries, which glibc also
   takes from the stack. Untouched pages cost nothing. */
#define STACK_BYTES (256u << 10)
/* Pause after EAGAIN, which comes from file leases and from files being recalled from an archive.
 */
#define AGAIN_WAIT_NS 1000000u

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

/* ---- the back end ---------------------------------------------------------------------------- */

static bool read_file(fm_reader *reader, fm_reader_op *op) {
    fm_reader_read_file(reader, op);
    return true;
}

static int pread_open(fm_reader *reader, fm_error *error) {
    const fm_reader_pool_config pool = {reader->n_ops, STACK_BYTES, read_file};
    const int status = fm_reader_pool_open(reader, &pool, error);
    if (status) return status;
    pthread_mutex_lock(&reader->lock);
    reader->n_ops = fm_reader_pool_n_threads(reader);
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
