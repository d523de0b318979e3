/*
 * The HTTP back end: objects in stores and on web servers.
 *
 * One thread runs all requests, on connections that are kept. Each read is a transfer, which makes
 * one attempt after the other (transfer.h, retry.h) until it has the object or range.
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
#include "read/lookups.h"
#include "read/transfer.h"

/* TLS handshakes and certificates need most of it. */
#define STACK_BYTES ((size_t)512 << 10)
#define MS_NS 1000000u
#define RETRY_BASE_NS (200u * (uint64_t)MS_NS)
#define RETRY_CAP_NS (20000u * (uint64_t)MS_NS)
/* How long leave() waits for connections to be closed. */
#define LEAVE_LIMIT_NS (50u * (uint64_t)MS_NS)
/* Threads that look up, as many of them as the disk needs. */
#define MAX_LOOKUP_THREADS 32
#define LOOKUP_STACK_BYTES ((size_t)256 << 10)
/* Poll without anything to do; wake-ups end it. */
#define IDLE_MS 10000

typedef struct fm_http_reader {
    fm_reader *reader;
    fm_remote *remote; /* not used any more once the reader is closing */
    fm_http *http;
    fm_thread thread;
    bool waits, has_ended; /* under the reader's lock */
    bool any_cancelled;    /* under the reader's lock */
    /* Under the reader's lock: reads that the disk cache does not have, in order. */
    fm_reader_op *missed, **missed_end;
    fm_lookups lookups;
    /* The thread's. */
    uint64_t stall_ns, connect_ns;
    fm_retry_policy policy;
    fm_flow flow;
    fm_transfer *waiting;
    uint32_t n_running;
    uint64_t random, stall_check_ns;
    fm_transfer transfers[]; /* [reader->n_ops] */
} fm_http_reader;

/* ---- attempts -------------------------------------------------------------------------------- */

/* What may be sent to an origin that the credentials are not for. */
static bool is_public(const char *header) {
    return !strncasecmp(header, "range:", 6) || !strncasecmp(header, "if-match:", 9) ||
           !strncasecmp(header, "if-none-match:", 14);
}

static void end_read(fm_http_reader *self, fm_transfer *transfer);

/* Begins the request; false: no memory. */
static bool begin_request(fm_http_reader *self, fm_transfer *transfer,
                          const fm_remote_request *request) {
    const char *headers[FM_REMOTE_MAX_HEADERS];
    size_t n = 0;
    for (size_t i = 0; i < request->n_headers; i++)
        if (!transfer->is_elsewhere || is_public(request->headers[i]))
            headers[n++] = request->headers[i];
    const char *const url = transfer->redirect ? transfer->redirect : request->url;
    if (!fm_http_begin(self->http, &transfer->request, url, headers, n, transfer->is_fresh))
        return false;
    transfer->begun_ns = transfer->progress_ns = fm_clock_ns();
    if (!transfer->retry.first_ns) transfer->retry.first_ns = transfer->begun_ns;
    self->n_running++;
    return true;
}

/* Makes the request: FM_AGAIN if the reader is closing. fm_reader_close() waits for callbacks, and
 * so for the use of the caller's fm_remote, which may be closed after it. */
static int make_request(fm_http_reader *self, const fm_transfer *transfer, fm_remote_request *out,
                        fm_error *error) {
    fm_reader *const reader = self->reader;
    const fm_remote_wish wish = fm_transfer_wish(transfer);
    *out = (fm_remote_request){0};
    pthread_mutex_lock(&reader->lock);
    const bool closing = reader->closing;
    reader->n_callbacks += !closing;
    pthread_mutex_unlock(&reader->lock);
    if (closing) return FM_AGAIN;
    const int status = fm_remote_request_make(self->remote, &wish, out, error);
    pthread_mutex_lock(&reader->lock);
    reader->n_callbacks--;
    fm_reader_signal_if_quiet_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    return status;
}

/* Begins the next attempt, or ends the read if there can be none. */
static void begin_attempt(fm_http_reader *self, fm_transfer *transfer) {
    fm_remote_request request;
    fm_error error;
    fm_transfer_reset(transfer);
    transfer->prepared_ns = fm_clock_ns();
    const int status = make_request(self, transfer, &request, &error);
    const bool has_begun = !status && begin_request(self, transfer, &request);
    fm_remote_request_free(&request);
    if (has_begun) return;
    if (status == FM_ERR_ARGUMENT) {
        fm_transfer_say(transfer, "%s", error.message);
        fm_transfer_fail(transfer);
    } else {
        fm_transfer_fail_code(transfer, status == FM_AGAIN ? ECANCELED : ENOMEM);
    }
    end_read(self, transfer);
}

static void count(fm_http_reader *self, const fm_transfer *transfer, fm_attempt end) {
    const fm_http_times times = fm_http_times_of(&transfer->request);
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    reader->stats.n_requests++;
    reader->stats.n_refused += end == FM_ATTEMPT_FEWER;
    reader->stats.fetched_bytes += transfer->n_fetched;
    reader->stats.connect_ns += times.connect_ns;
    reader->stats.first_byte_ns += times.first_byte_ns;
    reader->stats.transfer_ns += times.transfer_ns;
    pthread_mutex_unlock(&reader->lock);
}

/* Notes what the read spent its latest attempt on. */
static void note_attempt(const fm_transfer *transfer, fm_attempt end) {
    fm_reader_op *const op = transfer->op;
    const uint64_t attempt_ns = fm_clock_ns() - transfer->prepared_ns;
    fm_read_stages_add(&op->earlier, &op->last);
    op->last = (fm_read_stages){0};
    if (end == FM_ATTEMPT_FEWER) {
        op->earlier.throttled_ns += attempt_ns;
    } else if (end != FM_ATTEMPT_DONE) {
        op->earlier.retry_ns += attempt_ns;
    } else {
        const fm_http_times times = fm_http_times_of(&transfer->request);
        uint64_t left_ns = attempt_ns;
        uint64_t part_ns = transfer->begun_ns - transfer->prepared_ns + times.connect_ns;
        op->last.connect_ns = part_ns < left_ns ? part_ns : left_ns;
        left_ns -= op->last.connect_ns;
        part_ns = times.first_byte_ns;
        op->last.first_byte_ns = part_ns < left_ns ? part_ns : left_ns;
        op->last.transfer_ns = left_ns - op->last.first_byte_ns;
    }
}

/* Notes what the read spent its pause on, which ends now. */
static void note_pause(const fm_http_reader *self, const fm_transfer *transfer, uint64_t now_ns) {
    fm_read_stages *const stages = &transfer->op->earlier;
    const uint64_t pause_ns = transfer->at_ns - transfer->failed_ns;
    *(transfer->was_refused ? &stages->throttled_ns : &stages->retry_ns) += pause_ns;
    /* Since then it has waited for a place within the limit. */
    const bool is_held = transfer->was_refused || fm_flow_is_lowered(&self->flow);
    *(is_held ? &stages->throttled_ns : &stages->retry_ns) += now_ns - transfer->at_ns;
}

/* The attempt has failed. Queues the next one, or ends the read. */
static void try_again(fm_http_reader *self, fm_transfer *transfer, fm_attempt end) {
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    const fm_retry_failure failure = {
        .now_ns = fm_clock_ns(),
        .wait_ns = transfer->response.retry_after_s < 86400
                       ? transfer->response.retry_after_s * 1000 * MS_NS
                       : UINT64_MAX / 4,
        .random = (uint32_t)(self->random >> 32),
        .no_server = end == FM_ATTEMPT_NO_SERVER,
    };
    fm_transfer_forget_redirect(transfer);
    if (fm_retry_next(&self->policy, &transfer->retry, &failure, &transfer->at_ns)) {
        transfer->failed_ns = failure.now_ns;
        transfer->was_refused = end == FM_ATTEMPT_FEWER;
        transfer->next = self->waiting;
        self->waiting = transfer;
        pthread_mutex_lock(&self->reader->lock);
        self->reader->stats.n_retries++;
        self->reader->stats.retry_ns += transfer->at_ns - failure.now_ns;
        pthread_mutex_unlock(&self->reader->lock);
        return;
    }
    const size_t n = strlen(transfer->why);
    const uint64_t seconds = (failure.now_ns - transfer->retry.first_ns) / (1000 * MS_NS);
    if (transfer->retry.n_failures > 1)
        snprintf(transfer->why + n, sizeof(transfer->why) - n, " (%u attempts in %llu s)",
                 transfer->retry.n_failures, (unsigned long long)seconds);
    fm_transfer_fail(transfer);
    end_read(self, transfer);
}

static void end_request(fm_http_reader *self, fm_transfer *transfer) {
    if (!transfer->request.is_running) return;
    fm_http_end(&transfer->request);
    self->n_running--;
}

static void end_attempt(fm_http_reader *self, fm_transfer *transfer, int code, bool is_stalled) {
    end_request(self, transfer);
    /* If the transfer broke the request off, `why` already says so. */
    const size_t why_bytes = transfer->has_failed ? 0 : sizeof(transfer->why);
    const fm_http_result result =
        fm_http_judge(&transfer->request, code, is_stalled, transfer->why, why_bytes);
    /* A redirect's body does not matter, nor whether it came to its end. */
    const bool is_redirect = result != FM_HTTP_NO_MEMORY && fm_transfer_follow(transfer);
    const fm_attempt end = is_redirect ? FM_ATTEMPT_DONE : fm_transfer_judge(transfer, result);
    count(self, transfer, end);
    note_attempt(transfer, end);
    if (end == FM_ATTEMPT_FEWER)
        fm_flow_refused(&self->flow, transfer->begun_ns, fm_clock_ns());
    else if (end == FM_ATTEMPT_DONE)
        fm_flow_answered(&self->flow);
    if (is_redirect)
        begin_attempt(self, transfer);
    else if (end == FM_ATTEMPT_DONE || end == FM_ATTEMPT_FAILED)
        end_read(self, transfer);
    else
        try_again(self, transfer, end);
}

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

static void begin_read(fm_http_reader *self, fm_reader_op *op) {
    fm_transfer *const transfer = &self->transfers[op->index];
    transfer->op = op;
    transfer->retry = (fm_retry){0};
    const bool is_found =
        op->is_kept && fm_lookup_again(self->reader, &self->lookups, op) == FM_LOOKUP_HIT;
    choose_version(self, transfer);
    *transfer->why = 0;
    transfer->n_total = op->range_bytes ? op->range_bytes : FM_RESPONSE_UNKNOWN;
    transfer->is_fresh = false;
    if (op->error || is_found)
        end_read(self, transfer);
    else
        begin_attempt(self, transfer);
}

/* Tells the caller what the object is. */
static void describe_object(fm_http_reader *self, const fm_transfer *transfer) {
    pthread_mutex_lock(&self->reader->lock);
    fm_read *const read = transfer->op->read;
    if (read) {
        memcpy(read->first->etag, transfer->etag, sizeof(read->first->etag));
        read->first->object_bytes = transfer->op->from_disk
                                        ? transfer->op->object_bytes
                                        : fm_transfer_object_bytes(&transfer->response);
    }
    pthread_mutex_unlock(&self->reader->lock);
}

/* A read has ended: another one may start. Threads of the pool do not look themselves. */
static void wake_pool(fm_reader *reader) {
    if (!reader->pool) return;
    pthread_mutex_lock(&reader->lock);
    const bool notify =
        !reader->closing && fm_reader_ready_locked(reader) && fm_reader_pool_wake_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (notify) fm_reader_pool_notify(reader);
}

static void end_read(fm_http_reader *self, fm_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    if (op->is_first && !op->error) describe_object(self, transfer);
    if (op->has_key && !op->error)
        fm_lookup_store(self->reader, op, transfer->etag,
                        fm_transfer_object_bytes(&transfer->response));
    op->why = op->error == FM_READ_REMOTE ? transfer->why : NULL;
    op->opened = !op->error;
    fm_transfer_forget_redirect(transfer);
    transfer->op = NULL;
    fm_reader_finish(self->reader, op);
    wake_pool(self->reader);
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

/* Ends reads that were missed, and have not begun to be fetched. */
static void end_missed(fm_http_reader *self, bool all) {
    for (;;) {
        pthread_mutex_lock(&self->reader->lock);
        fm_reader_op *const op = take_missed_locked(self, all);
        pthread_mutex_unlock(&self->reader->lock);
        if (!op) return;
        op->error = ECANCELED;
        fm_reader_finish(self->reader, op);
        wake_pool(self->reader);
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
        end_read(self, transfer);
    }
    /* After all of them have ended: closing connections may take a while. */
    for (uint32_t i = 0; i < self->reader->n_ops; i++)
        if (!self->transfers[i].op) end_request(self, &self->transfers[i]);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Begins all attempts whose pause is over, as far as the limit allows. */
static void begin_due(fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns();
    fm_transfer *list = self->waiting, *next;
    self->waiting = NULL;
    for (; list; list = next) {
        next = list->next;
        if (list->at_ns <= now_ns && self->n_running < fm_flow_limit(&self->flow)) {
            note_pause(self, list, now_ns);
            begin_attempt(self, list);
        } else {
            list->next = self->waiting;
            self->waiting = list;
        }
    }
}

static fm_reader_op *next_op_locked(fm_http_reader *self) {
    return self->reader->pool ? take_missed_locked(self, true)
                              : fm_reader_dequeue_locked(self->reader);
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
        if (!closing && !any_cancelled && has_room) op = next_op_locked(self);
        self->waits = !op && has_room;
        fm_reader_wait_locked(&reader->held_waits, !has_room && fm_flow_is_lowered(&self->flow));
        pthread_mutex_unlock(&reader->lock);
        if (closing) return false;
        if (any_cancelled)
            end_cancelled(self, false);
        else if (op)
            begin_read(self, op);
        else
            return true;
    }
}

/* Ends all attempts whose requests have ended. Returns whether there were any. */
static bool reap(fm_http_reader *self) {
    bool any = false;
    int code;
    for (fm_http_request *request; (request = fm_http_next(self->http, &code));) {
        end_attempt(self, request->user, code, false);
        any = true;
    }
    return any;
}

/* Ends attempts that have made no progress for too long. One that waits for a connection has the
 * time that a connection may take on top. */
static void end_stalled(fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns();
    if (now_ns < self->stall_check_ns) return;
    self->stall_check_ns = now_ns + self->stall_ns / 8;
    for (uint32_t i = 0; i < self->reader->n_ops; i++) {
        fm_transfer *const transfer = &self->transfers[i];
        if (!transfer->request.is_running || now_ns - transfer->progress_ns < self->stall_ns)
            continue;
        const uint64_t extra_ns = fm_http_is_connected(&transfer->request) ? 0 : self->connect_ns;
        if (now_ns - transfer->progress_ns >= self->stall_ns + extra_ns)
            end_attempt(self, transfer, 0, true);
    }
}

/* How long to wait for sockets. */
static int wait_ms(const fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns();
    uint64_t until_ns = now_ns + IDLE_MS * (uint64_t)MS_NS;
    if (self->n_running && self->stall_check_ns < until_ns) until_ns = self->stall_check_ns;
    const bool has_room = self->n_running < fm_flow_limit(&self->flow);
    for (const fm_transfer *one = self->waiting; has_room && one; one = one->next)
        if (one->at_ns < until_ns) until_ns = one->at_ns;
    return until_ns > now_ns ? (int)((until_ns - now_ns) / MS_NS) + 1 : 0;
}

static void serve(fm_http_reader *self) {
    for (;;) {
        begin_due(self);
        if (!begin_new(self)) break;
        fm_http_run(self->http);
        if (reap(self)) continue;
        end_stalled(self);
        fm_http_wait(self->http, wait_ms(self));
    }
    end_cancelled(self, true);
}

static void *http_main(void *argument) {
    fm_http_reader *const self = argument;
    fm_reader *const reader = self->reader;
    serve(self);
    for (uint32_t i = 0; i < reader->n_ops; i++) fm_http_request_free(&self->transfers[i].request);
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
    self->stall_ns = settings->stall_timeout_ms * (uint64_t)MS_NS;
    self->connect_ns = settings->connect_timeout_ms * (uint64_t)MS_NS;
    self->policy = (fm_retry_policy){
        .max_attempts = settings->max_attempts,
        .give_up_ns = settings->give_up_ms * (uint64_t)MS_NS,
        .base_ns = RETRY_BASE_NS,
        .cap_ns = RETRY_CAP_NS,
    };
    fm_flow_init(&self->flow, self->reader->n_ops);
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
        self->transfers[i].request.user = &self->transfers[i];
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
