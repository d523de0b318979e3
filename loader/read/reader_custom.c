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

struct fm_custom_read {
    fm_reader *reader;
    fm_reader_op *op;
    bool has_ended; /* put() or fail() was called */
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
    char(*const reasons)[WHY_BYTES] = read->reader->impl;
    snprintf(reasons[read->op->index], WHY_BYTES, "%s", why);
    read->op->why = reasons[read->op->index];
    read->op->error = FM_READ_REMOTE;
}

/* On a thread of the pool. */
static bool make_read(fm_reader *reader, fm_reader_op *op) {
    const fm_custom_reader *const custom = &reader->config.custom;
    fm_custom_read read = {.reader = reader, .op = op};
    custom->read(custom->user, op->path, op->offset_bytes, op->range_bytes, &read);
    fm_custom_read_fail(&read, "the custom reader has returned nothing");
    return true;
}

/* ---- the back end ---------------------------------------------------------------------------- */

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

static void custom_destroy(fm_reader *reader) {
    const fm_custom_reader *const custom = &reader->config.custom;
    fm_reader_pool_destroy(reader);
    if (custom->release) custom->release(custom->user);
    fm_mem_free(reader->impl);
}

static int custom_open(fm_reader *reader, fm_error *error) {
    const fm_custom_reader *const custom = &reader->config.custom;
    const fm_reader_pool_config pool = {reader->n_ops, STACK_BYTES, make_read};
    reader->impl = fm_mem_alloc(reader->config.counter, reader->n_ops, WHY_BYTES);
    if (!reader->impl)
        return fm_error_set(error, FM_ERR_NOMEM, "out of memory for %u reads", reader->n_ops);
    if (custom->retain) custom->retain(custom->user);
    const int status = fm_reader_pool_open(reader, &pool, error);
    if (status) {
        custom_destroy(reader);
        reader->impl = NULL;
        return status;
    }
    pthread_mutex_lock(&reader->lock);
    reader->n_ops = fm_reader_pool_n_threads(reader);
    pthread_mutex_unlock(&reader->lock);
    return FM_OK;
}

const fm_reader_backend fm_reader_custom_backend = {.name = "custom",
                                                    .default_depth = 16,
                                                    .max_depth = 1024,
                                                    .open = custom_open,
                                                    .wake_locked = fm_reader_pool_wake_locked,
                                                    .notify = fm_reader_pool_notify,
                                                    .cancel_locked = custom_cancel_locked,
                                                    .stop_locked = fm_reader_pool_stop_locked,
                                                    .leave = fm_reader_pool_leave,
                                                    .destroy = custom_destroy};
