/*
 * The custom back end: names that the caller reads (fm_custom_reader).
 *
 * Each thread takes one read after the other and calls config.custom.read(), which may block for
 * any time. Calls can't be interrupted: fm_reader_cancel_queued() and fm_reader_close() end their
 * reads at once and leave the calls to themselves. Such a thread is free again once its call
 * returns.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "read/reader_impl.h"

/* Untouched pages cost nothing; interpreters and their libraries need much. */
#define STACK_BYTES ((size_t)8 << 20)
#define WHY_BYTES 512

typedef struct fm_custom_thread {
    fm_reader *reader;
    fm_thread thread;
    bool in_call; /* under the reader's lock */
} fm_custom_thread;

typedef struct fm_custom_pool {
    uint32_t n_threads; /* fixed after open */
    uint32_t n_idle;    /* under the reader's lock */
    pthread_cond_t work;
    fm_custom_thread threads[];
} fm_custom_pool;

struct fm_custom_read {
    fm_reader *reader;
    fm_reader_op *op;
    bool has_ended; /* put() or fail() was called */
    char why[WHY_BYTES];
};

/* ---- names ----------------------------------------------------------------------------------- */

/* A scheme followed by "://", or by "::" and another name. */
bool fm_custom_is_name(const char *path) {
    const char *end = path;
    if (!isalpha((unsigned char)*path)) return false;
    while (isalnum((unsigned char)*end) || (*end && strchr("+.-", *end))) end++;
    if (end - path < 2) return false;
    return !strncmp(end, "://", 3) || (!strncmp(end, "::", 2) && strstr(end, "://"));
}

/* ---- one read -------------------------------------------------------------------------------- */

void fm_custom_read_put(fm_custom_read *read, const void *bytes, size_t n_bytes) {
    fm_reader_op *const op = read->op;
    if (read->has_ended) return;
    read->has_ended = true;
    if (op->range_bytes && n_bytes > op->range_bytes) n_bytes = (size_t)op->range_bytes;
    if (op->range_bytes && n_bytes < op->range_bytes)
        op->error = FM_READ_ENDS_EARLY;
    else if (n_bytes > read->reader->config.max_file_bytes)
        op->error = EFBIG;
    else if (n_bytes > op->capacity && !fm_reader_grow_buffer(read->reader, op, n_bytes))
        op->error = ENOMEM;
    if (op->error) return;
    if (n_bytes) memcpy(op->buffer, bytes, n_bytes);
    op->n_bytes = n_bytes;
    op->opened = true;
}

void fm_custom_read_fail(fm_custom_read *read, const char *why) {
    if (read->has_ended) return;
    read->has_ended = true;
    snprintf(read->why, sizeof(read->why), "%s", why);
    read->op->why = read->why;
    read->op->error = FM_READ_REMOTE;
}

static void make_read(fm_reader *reader, fm_reader_op *op) {
    const fm_custom_reader *const custom = &reader->config.custom;
    fm_custom_read read = {.reader = reader, .op = op};
    if (!op->error) {
        custom->read(custom->user, op->path, op->offset_bytes, op->range_bytes, &read);
        fm_custom_read_fail(&read, "the custom reader has returned nothing");
    }
    fm_reader_finish(reader, op);
}

/* ---- the pool -------------------------------------------------------------------------------- */

static bool custom_wake_locked(fm_reader *reader) {
    const fm_custom_pool *const pool = reader->impl;
    return pool->n_idle > 0;
}

static void custom_notify(fm_reader *reader) {
    fm_custom_pool *const pool = reader->impl;
    pthread_cond_signal(&pool->work);
}

static fm_read *custom_cancel_locked(fm_reader *reader) {
    fm_read *list = NULL;
    for (uint32_t i = 0; i < reader->n_ops; i++) {
        fm_read *const read = reader->ops[i].read;
        if (!read) continue;
        reader->ops[i].read = NULL;
        read->next = list;
        list = read;
    }
    return list;
}

static void custom_stop_locked(fm_reader *reader) {
    fm_custom_pool *const pool = reader->impl;
    pthread_cond_broadcast(&pool->work);
}

/* The next read; NULL: the reader is closing. */
static fm_reader_op *next_locked(fm_reader *reader, fm_custom_pool *pool) {
    while (!reader->closing) {
        fm_reader_op *const op = fm_reader_dequeue_locked(reader);
        if (op) return op;
        pool->n_idle++;
        pthread_cond_wait(&pool->work, &reader->lock);
        pool->n_idle--;
    }
    return NULL;
}

static void *custom_main(void *argument) {
    fm_custom_thread *const self = argument;
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    for (fm_reader_op *op; (op = next_locked(reader, reader->impl));) {
        self->in_call = true;
        /* A list of reads wakes one thread, which wakes the next one. */
        const bool notify = fm_reader_ready_locked(reader) && custom_wake_locked(reader);
        pthread_mutex_unlock(&reader->lock);
        if (notify) custom_notify(reader);
        make_read(reader, op);
        pthread_mutex_lock(&reader->lock);
        self->in_call = false;
    }
    pthread_mutex_unlock(&reader->lock);
    fm_reader_unref(reader);
    return NULL;
}

/* Joins the threads that end at once, and detaches those that are in a call. */
static void custom_leave(fm_reader *reader) {
    fm_custom_pool *const pool = reader->impl;
    for (uint32_t i = 0; i < pool->n_threads; i++) {
        fm_custom_thread *const self = &pool->threads[i];
        pthread_mutex_lock(&reader->lock);
        const bool in_call = self->in_call;
        pthread_mutex_unlock(&reader->lock);
        if (in_call)
            fm_thread_detach(&self->thread);
        else
            fm_thread_join(&self->thread);
    }
}

static void custom_destroy(fm_reader *reader) {
    fm_custom_pool *const pool = reader->impl;
    const fm_custom_reader *const custom = &reader->config.custom;
    if (custom->release) custom->release(custom->user);
    pthread_cond_destroy(&pool->work);
    fm_mem_free(pool);
}

static int custom_open(fm_reader *reader, fm_error *error) {
    const fm_custom_reader *const custom = &reader->config.custom;
    fm_custom_pool *const pool = fm_mem_zalloc(
        reader->config.counter, 1, sizeof(*pool) + reader->n_ops * sizeof(*pool->threads));
    if (!pool) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for reading threads");
    if (fm_cond_init(&pool->work)) {
        fm_mem_free(pool);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a condition variable");
    }
    if (custom->retain) custom->retain(custom->user);
    reader->impl = pool;
    uint32_t n = 0;
    fm_error why;
    /* Under lock: no thread may see n_threads or n_references before they are complete. */
    pthread_mutex_lock(&reader->lock);
    for (; n < reader->n_ops; n++) {
        fm_custom_thread *const self = &pool->threads[n];
        self->reader = reader;
        if (fm_thread_start(&self->thread, "fm-custom", STACK_BYTES, custom_main, self, &why))
            break;
        reader->n_references++;
    }
    if (n > 0 && n < reader->n_ops)
        fm_reader_note(reader, "%u threads instead of %u: %s", n, reader->n_ops, why.message);
    pool->n_threads = reader->stats.n_threads = n;
    if (n) reader->n_ops = n;
    pthread_mutex_unlock(&reader->lock);
    if (n) return FM_OK;
    custom_destroy(reader);
    reader->impl = NULL;
    if (error) *error = why;
    return FM_ERR_THREAD;
}

const fm_reader_backend fm_reader_custom_backend = {.name = "custom",
                                                    .default_depth = 16,
                                                    .max_depth = 1024,
                                                    .open = custom_open,
                                                    .wake_locked = custom_wake_locked,
                                                    .notify = custom_notify,
                                                    .cancel_locked = custom_cancel_locked,
                                                    .stop_locked = custom_stop_locked,
                                                    .leave = custom_leave,
                                                    .destroy = custom_destroy};
