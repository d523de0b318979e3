/* Opening and closing a reader, and the calls of its user. */
#define _GNU_SOURCE
#include "read/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "read/reader_impl.h"

/* How long fm_reader_close() waits for reads in flight. */
#define CLOSE_LIMIT_NS 50000000u

/* ---- open ------------------------------------------------------------------------------------ */

int fm_reader_kind_from_env(fm_reader_kind asked, fm_reader_kind *out, fm_error *error) {
    *out = asked;
    const char *const text = getenv("FEEDMILL_READER");
    if (!text || !*text) return FM_OK;
    if (!strcmp(text, "uring"))
        *out = FM_READER_URING;
    else if (!strcmp(text, "pread"))
        *out = FM_READER_PREAD;
    else if (!strcmp(text, "auto"))
        *out = FM_READER_AUTO;
    else
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "FEEDMILL_READER is '%.100s': it must be uring, pread or auto", text);
    return FM_OK;
}

static int open_backend(fm_reader *reader, const fm_reader_backend *backend, fm_error *error) {
    uint32_t depth = reader->config.depth ? reader->config.depth : backend->default_depth;
    if (depth > backend->max_depth) {
        fm_reader_note(reader, "depth %u lowered to %u, the maximum", depth, backend->max_depth);
        depth = backend->max_depth;
    }
    reader->ops = fm_mem_alloc(reader->config.counter, depth, sizeof(*reader->ops));
    if (!reader->ops)
        return fm_error_set(error, FM_ERR_NOMEM, "out of memory for %u reads in flight", depth);
    reader->n_ops = depth;
    reader->backend = backend;
    int status = backend->open(reader, error);
    if (status) {
        fm_mem_free(reader->ops);
        reader->ops = NULL;
        reader->backend = NULL;
        return status;
    }
    /* The threads run already, but have not looked at the ops, as nothing is queued. */
    pthread_mutex_lock(&reader->lock);
    for (uint32_t i = reader->n_ops; i-- > 0;) {
        fm_reader_op *const op = &reader->ops[i];
        op->read = NULL;
        op->index = i;
        op->next = reader->free_ops;
        reader->free_ops = op;
    }
    reader->stats.name = backend->name;
    reader->stats.depth = reader->n_ops;
    pthread_mutex_unlock(&reader->lock);
    return FM_OK;
}

static int open_uring(fm_reader *reader, fm_error *error) {
#if FM_HAVE_URING
    return open_backend(reader, &fm_reader_uring_backend, error);
#else
    (void)reader;
    return fm_error_set(error, FM_ERR_UNAVAILABLE,
                        "feedmill was built without io_uring: liburing 2.2 "
                        "or newer was missing at build time");
#endif
}

static int open_http(fm_reader *reader, fm_error *error) {
#if FM_HAVE_HTTP
    return open_backend(reader, &fm_reader_http_backend, error);
#else
    (void)reader;
    return fm_error_set(error, FM_ERR_UNAVAILABLE,
                        "feedmill was built without libcurl, which reading objects needs");
#endif
}

static int open_kind(fm_reader *reader, fm_error *error) {
    const fm_reader_kind kind = reader->config.kind;
    if (reader->config.custom.read) return open_backend(reader, &fm_reader_custom_backend, error);
    if (reader->config.remote) return open_http(reader, error);
    if (kind == FM_READER_PREAD) {
        fm_reader_note(reader, "asked for");
        return open_backend(reader, &fm_reader_pread_backend, error);
    }
    fm_reader_note(reader, kind == FM_READER_URING ? "asked for" : "io_uring works here");
    fm_error why;
    const int status = open_uring(reader, &why);
    if (!status) return FM_OK;
    if (kind == FM_READER_URING) {
        if (error) *error = why;
        return status;
    }
    reader->stats.reason[0] = 0;
    fm_reader_note(reader, "%s", why.message);
    return open_backend(reader, &fm_reader_pread_backend, error);
}

static int check_config(const fm_reader_config *config, fm_error *error) {
    if (!config->on_done || !config->buffer_bytes || !config->max_file_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "a reader needs on_done, buffer_bytes and max_file_bytes");
    if (config->kind != FM_READER_AUTO && config->kind != FM_READER_URING &&
        config->kind != FM_READER_PREAD)
        return fm_error_set(error, FM_ERR_ARGUMENT, "reader kind is %d; see fm_reader_kind",
                            (int)config->kind);
    return FM_OK;
}

int fm_reader_open_faulty(fm_reader **out, const fm_reader_config *config,
                          const fm_reader_fault *fault, fm_error *error) {
    *out = NULL;
    int status = check_config(config, error);
    if (status) return status;
    fm_reader *const reader = fm_mem_zalloc(config->counter, 1, sizeof(*reader));
    if (!reader) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for a reader");
    reader->config = *config;
    /* Above any file, and low enough that sums of sizes can't overflow. */
    if (reader->config.max_file_bytes > INT64_MAX / 4)
        reader->config.max_file_bytes = INT64_MAX / 4;
    if (fault) reader->fault = *fault;
    reader->queue_end = &reader->queue;
    reader->n_references = 1;
    reader->counter = config->counter;
    if (pthread_mutex_init(&reader->lock, NULL)) {
        fm_mem_free(reader);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    }
    if (fm_cond_init(&reader->quiet)) {
        pthread_mutex_destroy(&reader->lock);
        fm_mem_free(reader);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a condition variable");
    }
    status = fm_arena_init(&reader->arena, config->buffer_bytes, config->counter);
    if (!status) status = fm_file_cache_init(&reader->file_cache, config->counter);
    if (status)
        fm_error_set(error, status, "out of memory for %llu bytes of read buffers",
                     (unsigned long long)config->buffer_bytes);
    else
        status = open_kind(reader, error);
    if (status) {
        fm_reader_unref(reader);
        return status;
    }
    *out = reader;
    return FM_OK;
}

int fm_reader_open(fm_reader **out, const fm_reader_config *config, fm_error *error) {
    return fm_reader_open_faulty(out, config, NULL, error);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Ends requests that have not started, or that close() has abandoned. */
static void cancel(fm_reader *reader, fm_read *list) {
    while (list) {
        fm_read *const read = list;
        list = read->next;
        read->bytes = NULL;
        read->n_bytes = 0;
        read->error = ECANCELED;
        read->started_ns = read->done_ns = fm_clock_ns();
        read->buffer_wait_ns = 0;
        read->times = (fm_read_times){0};
        reader->config.on_done(reader->config.user, read);
    }
}

void fm_reader_submit(fm_reader *reader, fm_read *list) {
    const uint64_t now_ns = fm_clock_ns();
    pthread_mutex_lock(&reader->lock);
    if (reader->closing) {
        pthread_mutex_unlock(&reader->lock);
        for (fm_read *read = list; read; read = read->next) read->submitted_ns = now_ns;
        cancel(reader, list);
        return;
    }
    const uint64_t buffer_wait_ns = fm_reader_waits_ns_locked(&reader->buffer_waits, now_ns);
    const uint64_t held_ns = fm_reader_waits_ns_locked(&reader->held_waits, now_ns);
    *reader->queue_end = list;
    for (fm_read *read = list; read; read = read->next) {
        read->bytes = NULL;
        read->submitted_ns = now_ns;
        /* fm_reader_dequeue_locked() turns these into differences. */
        read->buffer_wait_ns = buffer_wait_ns;
        read->times = (fm_read_times){.held_ns = held_ns, .queue = reader->ended};
        reader->queue_end = &read->next;
        reader->n_queued++;
    }
    const bool notify = fm_reader_ready_locked(reader) && reader->backend->wake_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (notify) reader->backend->notify(reader);
}

static fm_read *drain_locked(fm_reader *reader) {
    fm_read *const list = reader->queue;
    reader->queue = NULL;
    reader->queue_end = &reader->queue;
    reader->n_queued = 0;
    fm_reader_free_buffer_locked(reader, reader->next_buffer);
    reader->next_buffer = NULL;
    reader->next_error = 0;
    return list;
}

void fm_reader_cancel_queued(fm_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    fm_read *const list = drain_locked(reader);
    const fm_reader_backend *const backend = reader->backend;
    fm_read *const started = backend->cancel_locked ? backend->cancel_locked(reader) : NULL;
    pthread_mutex_unlock(&reader->lock);
    if (backend->cancel_locked) backend->notify(reader);
    cancel(reader, list);
    cancel(reader, started);
}

void fm_reader_return(fm_reader *reader, fm_read *read) {
    uint8_t *const bytes = read->bytes;
    if (!bytes) return;
    read->bytes = NULL;
    pthread_mutex_lock(&reader->lock);
    fm_reader_free_buffer_locked(reader, bytes);
    const bool notify =
        !reader->closing && fm_reader_ready_locked(reader) && reader->backend->wake_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (notify) reader->backend->notify(reader);
}

void fm_reader_stats_get(fm_reader *reader, fm_reader_stats *out) {
    pthread_mutex_lock(&reader->lock);
    *out = reader->stats;
    pthread_mutex_unlock(&reader->lock);
}

/* ---- close ----------------------------------------------------------------------------------- */

/* Whether cached files are left and a thread that is not busy will close them. */
static bool has_closer_locked(const fm_reader *reader) {
    const uint32_t n_threads = reader->n_references - 1;
    return reader->file_cache.oldest && n_threads > reader->n_active + reader->n_closing;
}

/* Waits for the reads in flight and for cached files to be closed. Returns the reads that are
 * stuck, which their threads no longer see. Drops the lock while waiting. */
static fm_read *wait_for_quiet_locked(fm_reader *reader) {
    const uint64_t deadline_ns = fm_clock_ns() + CLOSE_LIMIT_NS;
    /* Past the deadline, waits for threads that are only slow to wake up: files that no thread
     * closes would be left to this one. */
    while (!fm_reader_is_quiet_locked(reader) &&
           (fm_clock_ns() < deadline_ns || has_closer_locked(reader)))
        fm_cond_wait_until(&reader->quiet, &reader->lock, fm_clock_ns() + CLOSE_LIMIT_NS / 10);
    reader->abandoned = true;
    fm_read *stuck = NULL;
    for (uint32_t i = 0; reader->n_active && i < reader->n_ops; i++) {
        fm_read *const read = reader->ops[i].read;
        if (!read) continue;
        reader->ops[i].read = NULL;
        read->next = stuck;
        stuck = read;
    }
    /* on_done() is short: always wait for its end. */
    while (reader->n_callbacks) {
        const uint64_t later_ns = fm_clock_ns() + CLOSE_LIMIT_NS;
        fm_cond_wait_until(&reader->quiet, &reader->lock, later_ns);
    }
    return stuck;
}

void fm_reader_close(fm_reader **handle) {
    if (!handle || !*handle) return;
    fm_reader *const reader = *handle;
    *handle = NULL;
    pthread_mutex_lock(&reader->lock);
    reader->closing = true;
    reader->counter = NULL;
    fm_read *const queued = drain_locked(reader);
    reader->backend->stop_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    cancel(reader, queued);
    pthread_mutex_lock(&reader->lock);
    fm_read *const stuck = wait_for_quiet_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    cancel(reader, stuck);
    reader->backend->leave(reader);
    fm_reader_unref(reader);
}
