/* The requests that the HTTP reader's thread makes: attempts, their ends and repetitions, and
 * second requests for what is not answered. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "read/reader_http.h"

/* How long to wait before the next look whether second requests are allowed again. */
#define HEDGE_PAUSE_NS (100u * (uint64_t)FM_HTTP_MS_NS)

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

void fm_http_end_read(fm_http_reader *self, fm_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    if (op->is_first && !op->error) describe_object(self, transfer);
    if (op->has_key && !op->error)
        fm_lookup_store(self->reader, op, transfer->etag,
                        fm_transfer_object_bytes(&transfer->response));
    op->why = op->error == FM_READ_REMOTE ? transfer->why : NULL;
    op->opened = !op->error;
    fm_transfer_forget_redirect(transfer);
    transfer->op = NULL;
    transfer->behind = NULL;
    fm_reader_finish(self->reader, op);
    fm_reader_pool_wake(self->reader);
}

/* What may be sent to an origin that the credentials are not for. */
static bool is_public(const char *header) {
    return !strncasecmp(header, "range:", 6) || !strncasecmp(header, "if-match:", 9) ||
           !strncasecmp(header, "if-none-match:", 14);
}

/* Sends the attempt's request, or its second one; false: no memory. */
static bool send_request(fm_http_reader *self, fm_transfer *transfer, fm_http_request *to_send,
                         const fm_remote_request *request, bool is_fresh) {
    const char *headers[FM_REMOTE_MAX_HEADERS];
    size_t n = 0;
    for (size_t i = 0; i < request->n_headers; i++)
        if (!transfer->is_elsewhere || is_public(request->headers[i]))
            headers[n++] = request->headers[i];
    const char *const url = transfer->redirect ? transfer->redirect : request->url;
    const bool has_begun = fm_http_begin(self->http, to_send, url, headers, n, is_fresh);
    self->n_running += has_begun;
    return has_begun;
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

/* The attempt that was to bring other ranges as well has ended: those that it brought are read, and
 * the others are queued. */
static void end_behind(fm_http_reader *self, fm_transfer *transfer) {
    fm_transfer *next = transfer->behind;
    transfer->behind = NULL;
    while (next) {
        fm_transfer *const one = next;
        fm_reader_op *const op = one->op;
        next = one->behind;
        one->behind = NULL;
        op->earlier = transfer->op->earlier;
        op->last = transfer->op->last;
        if (op->n_bytes == op->range_bytes) {
            memcpy(one->etag, transfer->etag, sizeof(one->etag));
            one->response = transfer->response;
            fm_http_end_read(self, one);
            continue;
        }
        op->n_bytes = 0;
        one->failed_ns = one->at_ns = fm_clock_ns();
        one->was_refused = transfer->response.status == 429 || transfer->response.status == 503;
        one->next = self->waiting;
        self->waiting = one;
    }
}

void fm_http_begin_attempt(fm_http_reader *self, fm_transfer *transfer) {
    fm_remote_request request;
    fm_error error;
    fm_transfer_reset(transfer);
    transfer->prepared_ns = fm_clock_ns();
    const int status = make_request(self, transfer, &request, &error);
    const bool has_begun =
        !status && send_request(self, transfer, transfer->request, &request, transfer->is_fresh);
    fm_remote_request_free(&request);
    transfer->begun_ns = transfer->progress_ns = fm_clock_ns();
    if (!transfer->retry.first_ns) transfer->retry.first_ns = transfer->begun_ns;
    if (has_begun) return;
    if (status == FM_ERR_ARGUMENT) {
        fm_transfer_say(transfer, "%s", error.message);
        fm_transfer_fail(transfer);
    } else {
        fm_transfer_fail_code(transfer, status == FM_AGAIN ? ECANCELED : ENOMEM);
    }
    end_behind(self, transfer);
    fm_http_end_read(self, transfer);
}

static void count(fm_http_reader *self, const fm_transfer *transfer, fm_attempt end) {
    const fm_http_times times = fm_http_times_of(transfer->request);
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    reader->stats.n_requests += 1 + transfer->is_hedged;
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
        const fm_http_times times = fm_http_times_of(transfer->request);
        const bool is_second = transfer->request != &transfer->requests[0];
        uint64_t left_ns = attempt_ns;
        uint64_t part_ns = transfer->begun_ns - transfer->prepared_ns + times.connect_ns;
        op->last.connect_ns = part_ns < left_ns ? part_ns : left_ns;
        left_ns -= op->last.connect_ns;
        part_ns = times.first_byte_ns;
        if (is_second) part_ns += transfer->hedged_ns - transfer->begun_ns;
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
                       ? transfer->response.retry_after_s * 1000 * FM_HTTP_MS_NS
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
    const uint64_t seconds = (failure.now_ns - transfer->retry.first_ns) / (1000 * FM_HTTP_MS_NS);
    if (transfer->retry.n_failures > 1)
        snprintf(transfer->why + n, sizeof(transfer->why) - n, " (%u attempts in %llu s)",
                 transfer->retry.n_failures, (unsigned long long)seconds);
    fm_transfer_fail(transfer);
    fm_http_end_read(self, transfer);
}

static void end_request(fm_http_reader *self, fm_http_request *request) {
    if (!request->is_running) return;
    fm_http_end(request);
    self->n_running--;
}

void fm_http_end_requests(fm_http_reader *self, fm_transfer *transfer) {
    for (int i = 0; i < 2; i++) end_request(self, &transfer->requests[i]);
}

static void end_attempt(fm_http_reader *self, fm_transfer *transfer, int code, bool is_stalled) {
    fm_http_end_requests(self, transfer);
    /* If the transfer broke the request off, `why` already says so. */
    const size_t why_bytes = transfer->has_failed ? 0 : sizeof(transfer->why);
    const fm_http_result result =
        fm_http_judge(transfer->request, code, is_stalled, transfer->why, why_bytes);
    /* A redirect's body does not matter, nor whether it came to its end. */
    const bool is_redirect = result != FM_HTTP_NO_MEMORY && fm_transfer_follow(transfer);
    const fm_attempt end = is_redirect ? FM_ATTEMPT_DONE : fm_transfer_judge(transfer, result);
    count(self, transfer, end);
    note_attempt(transfer, end);
    if (transfer->has_header)
        fm_hedge_answered(&self->hedge, transfer->answered_ns - transfer->begun_ns);
    if (end == FM_ATTEMPT_FEWER)
        fm_flow_refused(&self->flow, transfer->begun_ns, fm_clock_ns());
    else if (end == FM_ATTEMPT_DONE)
        fm_flow_answered(&self->flow);
    end_behind(self, transfer);
    if (is_redirect || end == FM_ATTEMPT_ALONE)
        fm_http_begin_attempt(self, transfer);
    else if (end == FM_ATTEMPT_DONE || end == FM_ATTEMPT_FAILED)
        fm_http_end_read(self, transfer);
    else
        try_again(self, transfer, end);
}

/* Whether the attempt does not need the request: the other one was answered, or may still be. */
static bool is_spare(fm_transfer *transfer, const fm_http_request *request) {
    fm_http_request *const other = fm_transfer_other(transfer, request);
    if (!transfer->has_header && other->is_running) transfer->request = other;
    return transfer->request != request;
}

void fm_http_request_ended(fm_http_reader *self, fm_http_request *request, int code) {
    fm_transfer *const transfer = request->user;
    if (is_spare(transfer, request))
        end_request(self, request);
    else
        end_attempt(self, transfer, code, false);
}

/* ---- what is due ----------------------------------------------------------------------------- */

void fm_http_begin_due(fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns();
    fm_transfer *list = self->waiting, *next;
    self->waiting = NULL;
    for (; list; list = next) {
        next = list->next;
        if (list->at_ns <= now_ns && self->n_running < fm_flow_limit(&self->flow)) {
            note_pause(self, list, now_ns);
            fm_http_begin_attempt(self, list);
        } else {
            list->next = self->waiting;
            self->waiting = list;
        }
    }
}

/* Begins a transfer's second request. It is not tried again if that is not possible. */
static void begin_hedge(fm_http_reader *self, fm_transfer *transfer) {
    fm_http_request *const second = fm_transfer_other(transfer, transfer->request);
    /* Requests that share a connection are held up together. */
    const bool is_fresh = fm_http_is_multiplexed(self->http);
    fm_remote_request request;
    fm_error error;
    transfer->hedged_ns = fm_clock_ns();
    transfer->is_hedged = !make_request(self, transfer, &request, &error) &&
                          send_request(self, transfer, second, &request, is_fresh);
    fm_remote_request_free(&request);
    if (!transfer->is_hedged) return;
    fm_hedge_made(&self->hedge);
    pthread_mutex_lock(&self->reader->lock);
    self->reader->stats.n_hedged++;
    pthread_mutex_unlock(&self->reader->lock);
}

void fm_http_hedge(fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns();
    if (now_ns < self->hedge_check_ns) return;
    uint64_t after_ns = fm_hedge_after_ns(&self->hedge);
    const bool may = after_ns != UINT64_MAX && !fm_flow_is_lowered(&self->flow);
    /* Requests that begin from now on are not due earlier. */
    self->hedge_check_ns = now_ns + (may ? after_ns : HEDGE_PAUSE_NS);
    for (uint32_t i = 0; may && i < self->reader->n_ops; i++) {
        fm_transfer *const transfer = &self->transfers[i];
        if (!transfer->request->is_running || transfer->has_header || transfer->hedged_ns) continue;
        const uint64_t due_ns = transfer->begun_ns + after_ns;
        if (due_ns > now_ns) {
            if (due_ns < self->hedge_check_ns) self->hedge_check_ns = due_ns;
        } else if (self->n_running < fm_flow_limit(&self->flow)) {
            begin_hedge(self, transfer);
            after_ns = fm_hedge_after_ns(&self->hedge);
            if (after_ns == UINT64_MAX) break;
        }
    }
}

/* An attempt that waits for a connection has the time that a connection may take on top. */
void fm_http_end_stalled(fm_http_reader *self) {
    const uint64_t now_ns = fm_clock_ns();
    if (now_ns < self->stall_check_ns) return;
    self->stall_check_ns = now_ns + self->stall_ns / 8;
    for (uint32_t i = 0; i < self->reader->n_ops; i++) {
        fm_transfer *const transfer = &self->transfers[i];
        if (!transfer->request->is_running || now_ns - transfer->progress_ns < self->stall_ns)
            continue;
        const uint64_t extra_ns = fm_http_is_connected(transfer->request) ? 0 : self->connect_ns;
        if (now_ns - transfer->progress_ns >= self->stall_ns + extra_ns)
            end_attempt(self, transfer, 0, true);
    }
}

uint64_t fm_http_next_ns(const fm_http_reader *self, uint64_t now_ns) {
    uint64_t next_ns = UINT64_MAX;
    if (self->n_running) next_ns = self->stall_check_ns;
    if (self->n_running && self->hedge.share > 0 && self->hedge_check_ns < next_ns)
        next_ns = self->hedge_check_ns;
    const bool has_room = self->n_running < fm_flow_limit(&self->flow);
    for (const fm_transfer *one = self->waiting; has_room && one; one = one->next)
        if (one->at_ns < next_ns) next_ns = one->at_ns;
    return next_ns > now_ns ? next_ns : now_ns;
}
