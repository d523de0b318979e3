/*
 * The HTTP back end: objects in stores and on web servers.
 *
 * One thread runs all requests, on connections that are kept. Each read is a transfer, which makes
 * one attempt after the other (http_attempts.c, transfer.h, retry.h) until it has the object or
 * range. Ranges that follow each other closely in the queue and in the object are brought by the
 * attempt of the first one.
 *
 * With a disk cache, a pool of threads (reader_pool.c) takes the reads from the queue and looks
 * them up first; what it does not find is handed to that one thread.
 *
 * Redirects are followed here, and their requests carry no credentials once they lead to another
 * server.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "read/reader_http.h"

/* TLS handshakes and certificates need most of it. */
#define STACK_BYTES ((size_t)512 << 10)
#define RETRY_BASE_NS (200u * (uint64_t)FM_HTTP_MS_NS)
#define RETRY_CAP_NS (20000u * (uint64_t)FM_HTTP_MS_NS)
/* How long leave() waits for connections to be closed. */
#define LEAVE_LIMIT_NS (50u * (uint64_t)FM_HTTP_MS_NS)
/* Threads that look up, as many of them as the disk needs. */
#define MAX_LOOKUP_THREADS 32
#define LOOKUP_STACK_BYTES ((size_t)256 << 10)
/* The most that a request brings behind its first range; and the most between two ranges: a request
 * costs the client and the server about as much time as so many bytes. */
#define MAX_SHARED_BYTES (4u << 20)
#define MAX_GAP_BYTES (64u << 10)
/* So many requests must have ended before one is shared, so that it is known what they take. */
#define LEAST_REQUESTS 8
/* Poll without anything to do; wake-ups end it. */
#define IDLE_MS 10000

/* ---- reads ----------------------------------------------------------------------------------- */

/* The version that is requested: the wished one, or that of the object's other ranges. */
static void choose_version(fm_http_reader *self, fm_transfer *transfer) {
    const fm_reader_op *const op = transfer->op;
    snprintf(transfer->etag, sizeof(transfer->etag), "%s", op->etag);
    if (!op->range_bytes) return;
    pthread_mutex_lock(&self->reader->lock);
    if (op->is_first) fm_etags_forget(&self->lookups.etags, op->path);
    const char *const etag = fm_etags_find(&self->lookups.etags, op->path);
    if (etag && !*op->etag) snprintf(transfer->etag, sizeof(transfer->etag), "%s", etag);
    pthread_mutex_unlock(&self->reader->lock);
}

/* Takes a read, without beginning it. */
static fm_transfer *take_read(fm_http_reader *self, fm_reader_op *op) {
    fm_transfer *const transfer = &self->transfers[op->index];
    transfer->op = op;
    transfer->retry = (fm_retry){0};
    *transfer->why = 0;
    transfer->n_total = op->range_bytes ? op->range_bytes : FM_RESPONSE_UNKNOWN;
    transfer->is_fresh = false;
    return transfer;
}

/* Begins a read, and those behind it in the list, whose ranges its first attempt brings as well. */
static void begin_reads(fm_http_reader *self, fm_reader_op *op) {
    fm_transfer *const first = take_read(self, op);
    const bool is_found =
        op->is_kept && fm_lookup_again(self->reader, &self->lookups, op) == FM_LOOKUP_HIT;
    choose_version(self, first);
    fm_transfer *last = first;
    for (fm_reader_op *next = op->next; next; next = next->next) {
        last->behind = take_read(self, next);
        last = last->behind;
        choose_version(self, last);
    }
    if (op->error || is_found)
        fm_http_end_read(self, first);
    else
        fm_http_begin_attempt(self, first);
}

static void unlist(fm_http_reader *self, const fm_transfer *transfer) {
    fm_transfer **link = &self->waiting;
    while (*link && *link != transfer) link = &(*link)->next;
    if (*link) *link = transfer->next;
}

/* Takes a read that was missed, and is marked or may be any, from the list; NULL: there is none. */
static fm_reader_op *take_missed_locked(fm_http_reader *self, bool any) {
    fm_reader_op **link = &self->missed;
    while (*link && !any && !(*link)->cancelled) link = &(*link)->next;
    fm_reader_op *const op = *link;
    if (!op) return NULL;
    *link = op->next;
    if (!*link) self->missed_end = link;
    op->next = NULL;
    return op;
}

/* Puts the read that was just taken from the list, or from the queue, back in front. */
static void put_back_locked(fm_http_reader *self, fm_reader_op *op) {
    op->next = self->missed;
    if (!self->missed) self->missed_end = &op->next;
    self->missed = op;
}

/* Ends reads that were missed, and have not begun to be fetched. */
static void end_missed(fm_http_reader *self, bool all) {
    for (;;) {
        pthread_mutex_lock(&self->reader->lock);
        fm_reader_op *const op = take_missed_locked(self, all);
        pthread_mutex_unlock(&self->reader->lock);
        if (!op) return;
        op->error = ECANCELED;
        fm_reader_finish(self->reader, op);
        fm_reader_pool_wake(self->reader);
    }
}

/* Ends reads that fm_reader_cancel_queued() has marked; or all. */
static void end_cancelled(fm_http_reader *self, bool all) {
    end_missed(self, all);
    for (uint32_t i = 0; i < self->reader->n_ops; i++) {
        fm_transfer *const transfer = &self->transfers[i];
        if (!transfer->op) continue;
        pthread_mutex_lock(&self->reader->lock);
        const bool cancelled = all || transfer->op->cancelled;
        pthread_mutex_unlock(&self->reader->lock);
        if (!cancelled) continue;
        unlist(self, transfer);
        transfer->op->error = ECANCELED;
        fm_http_end_read(self, transfer);
    }
    /* After all of them have ended: closing connections may take a while. */
    for (uint32_t i = 0; i < self->reader->n_ops; i++)
        if (!self->transfers[i].op) fm_http_end_requests(self, &self->transfers[i]);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static fm_reader_op *next_op_locked(fm_http_reader *self) {
    fm_reader_op *const op = take_missed_locked(self, true);
    return op || self->reader->pool ? op : fm_reader_dequeue_locked(self->reader);
}

/* Whether a read may share a request, first or not. */
static bool is_plain_range(const fm_reader_op *op) {
    return op->range_bytes && !op->error && !op->is_first && !op->is_kept;
}

/* Whether a read's range lies so close behind those from `first` to `last` that it is better
 * brought with them: the bytes behind the first range then take less time than a request of their
 * own would wait for its answer. */
static bool is_close_locked(const fm_reader *reader, const fm_reader_op *first,
                            const fm_reader_op *last, const fm_reader_op *op) {
    const fm_reader_stats *const stats = &reader->stats;
    const uint64_t begin = last->offset_bytes + last->range_bytes;
    if (!is_plain_range(op) || strcmp(first->path, op->path) || strcmp(first->etag, op->etag) ||
        op->offset_bytes < begin || op->offset_bytes - begin > MAX_GAP_BYTES)
        return false;
    if (stats->n_requests < LEAST_REQUESTS || !stats->fetched_bytes) return false;
    const uint64_t end = op->offset_bytes + op->range_bytes;
    const double n_bytes = (double)(end - first->offset_bytes - first->range_bytes);
    const double ns = n_bytes * (double)stats->transfer_ns / (double)stats->fetched_bytes;
    return n_bytes <= MAX_SHARED_BYTES &&
           ns <= (double)stats->first_byte_ns / (double)stats->n_requests;
}

/* The next read, and those that can share its request, as a list. */
static fm_reader_op *next_ops_locked(fm_http_reader *self) {
    fm_reader_op *const first = next_op_locked(self);
    fm_reader_op *last = first;
    while (last && is_plain_range(first)) {
        fm_reader_op *const op = next_op_locked(self);
        if (!op) break;
        if (!is_close_locked(self->reader, first, last, op)) {
            put_back_locked(self, op);
            break;
        }
        last->next = op;
        last = op;
        self->reader->stats.n_shared++;
    }
    return first;
}

/* Begins all reads that can start. False: the reader is closing. */
static bool begin_new(fm_http_reader *self) {
    fm_reader *const reader = self->reader;
    for (;;) {
        fm_reader_op *op = NULL;
        pthread_mutex_lock(&reader->lock);
        const bool closing = reader->closing, any_cancelled = self->any_cancelled;
        const bool has_room = self->n_running < fm_flow_limit(&self->flow);
        self->any_cancelled = false;
        if (!closing && !any_cancelled && has_room) op = next_ops_locked(self);
        self->waits = !op && has_room;
        fm_reader_wait_locked(&reader->held_waits, !has_room && fm_flow_is_lowered(&self->flow));
        pthread_mutex_unlock(&reader->lock);
        if (closing) return false;
        if (any_cancelled)
            end_cancelled(self, false);
        else if (op)
            begin_reads(self, op);
        else
            return true;
    }
}

/* Ends all attempts whose requests have ended. Returns whether there were any. */
static bool reap(fm_http_reader *self) {
    bool any = false;
    int code;
    for (fm_http_request *request; (request = fm_http_next(self->http, &code));) {
        fm_http_request_ended(self, request, code);
        any = true;
    }
    return any;
}

/* How long to wait for sockets. */
static int wait_ms(const fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns(), next_ns = fm_http_next_ns(self, now_ns);
    const uint64_t wait_ns = next_ns - now_ns;
    if (wait_ns >= IDLE_MS * (uint64_t)FM_HTTP_MS_NS) return IDLE_MS;
    return wait_ns ? (int)(wait_ns / FM_HTTP_MS_NS) + 1 : 0;
}

static void serve(fm_http_reader *self) {
    for (;;) {
        fm_http_begin_due(self);
        if (!begin_new(self)) break;
        fm_http_run(self->http);
        if (reap(self)) continue;
        fm_http_end_stalled(self);
        fm_http_hedge(self);
        fm_http_wait(self->http, wait_ms(self));
    }
    end_cancelled(self, true);
}

static void *http_main(void *argument) {
    fm_http_reader *const self = argument;
    fm_reader *const reader = self->reader;
    serve(self);
    for (uint32_t i = 0; i < reader->n_ops; i++)
        for (int j = 0; j < 2; j++) fm_http_request_free(&self->transfers[i].requests[j]);
    fm_http_close(self->http);
    pthread_mutex_lock(&reader->lock);
    self->has_ended = true;
    pthread_cond_broadcast(&reader->quiet);
    pthread_mutex_unlock(&reader->lock);
    fm_reader_unref(reader);
    return NULL;
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* Hands a read to the thread that fetches. False: it has ended instead. */
static bool hand_over(fm_http_reader *self, fm_reader_op *op) {
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    const bool is_cancelled = reader->closing || op->cancelled || !op->read;
    if (is_cancelled) {
        op->error = ECANCELED;
    } else {
        *self->missed_end = op;
        self->missed_end = &op->next;
        /* Under lock: the thread closes what is woken once it sees that the reader is closing. */
        if (self->waits) fm_http_wake(self->http);
        self->waits = false;
    }
    pthread_mutex_unlock(&reader->lock);
    return !is_cancelled;
}

/* On a thread of the pool. True: the read has ended. */
static bool look_up(fm_reader *reader, fm_reader_op *op) {
    fm_http_reader *const self = reader->impl;
    op->opened = fm_lookup_find(reader, &self->lookups, op) == FM_LOOKUP_HIT;
    return op->opened || !hand_over(self, op);
}

/* ---- the back end ---------------------------------------------------------------------------- */

static bool http_wake_locked(fm_reader *reader) {
    if (reader->pool) return fm_reader_pool_wake_locked(reader);
    fm_http_reader *const self = reader->impl;
    const bool waits = self->waits;
    self->waits = false;
    return waits;
}

static void http_notify(fm_reader *reader) {
    if (reader->pool) {
        fm_reader_pool_notify(reader);
        return;
    }
    fm_http_reader *const self = reader->impl;
    fm_http_wake(self->http);
}

static fm_read *http_cancel_locked(fm_reader *reader) {
    fm_http_reader *const self = reader->impl;
    for (uint32_t i = 0; i < reader->n_ops; i++)
        reader->ops[i].cancelled = reader->ops[i].read != NULL;
    self->any_cancelled = true;
    if (reader->pool) fm_http_wake(self->http); /* http_notify() wakes the pool */
    return NULL;
}

static void http_stop_locked(fm_reader *reader) {
    fm_http_reader *const self = reader->impl;
    fm_http_wake(self->http);
    if (reader->pool) fm_reader_pool_stop_locked(reader);
}

/* Waits for connections to be closed, but not for long. */
static void http_leave(fm_reader *reader) {
    fm_http_reader *const self = reader->impl;
    const uint64_t deadline_ns = fm_clock_ns() + LEAVE_LIMIT_NS;
    pthread_mutex_lock(&reader->lock);
    while (!self->has_ended && fm_clock_ns() < deadline_ns)
        fm_cond_wait_until(&reader->quiet, &reader->lock, deadline_ns);
    const bool has_ended = self->has_ended;
    pthread_mutex_unlock(&reader->lock);
    if (has_ended)
        fm_thread_join(&self->thread);
    else
        fm_thread_detach(&self->thread);
    if (reader->pool) fm_reader_pool_leave(reader);
}

static void http_destroy(fm_reader *reader) {
    fm_http_reader *const self = reader->impl;
    fm_reader_pool_destroy(reader);
    if (reader->config.disk_cache) fm_disk_cache_unref(reader->config.disk_cache);
    fm_mem_free(self);
}

static int open_http(fm_http_reader *self, const fm_remote_config *settings, fm_error *error) {
    self->stall_ns = settings->stall_timeout_ms * (uint64_t)FM_HTTP_MS_NS;
    self->connect_ns = settings->connect_timeout_ms * (uint64_t)FM_HTTP_MS_NS;
    self->policy = (fm_retry_policy){
        .max_attempts = settings->max_attempts,
        .give_up_ns = settings->give_up_ms * (uint64_t)FM_HTTP_MS_NS,
        .base_ns = RETRY_BASE_NS,
        .cap_ns = RETRY_CAP_NS,
    };
    fm_flow_init(&self->flow, self->reader->n_ops);
    fm_hedge_init(&self->hedge, settings->hedge_percent);
    self->random = (fm_clock_ns() ^ (uintptr_t)self) | 1;
    const fm_http_settings http = {
        .ca_bundle = settings->ca_bundle,
        .connect_timeout_ms = settings->connect_timeout_ms,
        .n_connections = self->reader->n_ops,
        .calls = fm_transfer_calls,
    };
    return fm_http_open(&self->http, &http, error);
}

static int open_pool(fm_reader *reader, fm_error *error) {
    fm_http_reader *const self = reader->impl;
    const uint32_t n_threads =
        reader->n_ops < MAX_LOOKUP_THREADS ? reader->n_ops : MAX_LOOKUP_THREADS;
    fm_lookups_init(&self->lookups, fm_remote_settings(self->remote));
    const fm_reader_pool_config pool = {n_threads, LOOKUP_STACK_BYTES, look_up};
    return fm_reader_pool_open(reader, &pool, error);
}

/* The reader can't be opened: ends the pool. */
static void close_pool(fm_reader *reader) {
    if (!reader->pool) return;
    pthread_mutex_lock(&reader->lock);
    reader->closing = true;
    fm_reader_pool_stop_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    fm_reader_pool_leave(reader);
}

/* Starts all threads, or closes self->http. */
static int start_threads(fm_http_reader *self, fm_error *error) {
    fm_reader *const reader = self->reader;
    int status = reader->config.disk_cache ? open_pool(reader, error) : FM_OK;
    pthread_mutex_lock(&reader->lock);
    if (!status)
        status = fm_thread_start(&self->thread, "fm-http", STACK_BYTES, http_main, self, error);
    reader->n_references += !status;
    reader->stats.n_threads += !status;
    pthread_mutex_unlock(&reader->lock);
    if (!status) return FM_OK;
    close_pool(reader);
    fm_http_close(self->http);
    return status;
}

static int http_open(fm_reader *reader, fm_error *error) {
    fm_http_reader *const self = fm_mem_zalloc(
        reader->config.counter, 1, sizeof(*self) + reader->n_ops * sizeof(*self->transfers));
    if (!self)
        return fm_error_set(error, FM_ERR_NOMEM, "out of memory for %u requests", reader->n_ops);
    self->reader = reader;
    self->remote = reader->config.remote;
    reader->impl = self;
    for (uint32_t i = 0; i < reader->n_ops; i++) {
        self->transfers[i].reader = reader;
        self->transfers[i].etags = &self->lookups.etags;
        self->transfers[i].request = &self->transfers[i].requests[0];
        for (int j = 0; j < 2; j++) self->transfers[i].requests[j].user = &self->transfers[i];
    }
    self->missed_end = &self->missed;
    if (reader->config.disk_cache) fm_disk_cache_ref(reader->config.disk_cache);
    int status = open_http(self, fm_remote_settings(self->remote), error);
    if (!status) status = start_threads(self, error);
    if (status) {
        http_destroy(reader);
        reader->impl = NULL;
        return status;
    }
    fm_reader_note(reader, "%s", fm_http_version());
    return FM_OK;
}

const fm_reader_backend fm_reader_http_backend = {.name = "http",
                                                  .default_depth = 256,
                                                  .max_depth = 4096,
                                                  .open = http_open,
                                                  .wake_locked = http_wake_locked,
                                                  .notify = http_notify,
                                                  .cancel_locked = http_cancel_locked,
                                                  .stop_locked = http_stop_locked,
                                                  .leave = http_leave,
                                                  .destroy = http_destroy};
