#define _GNU_SOURCE
#include "read/transfer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "read/lookups.h"

#define MAX_REDIRECTS 5
/* An error's body of more bytes is not worth keeping the connection for. */
#define MAX_ERROR_BYTES (64u << 10)
/* Fewer bytes within the stall timeout are as good as none. */
#define MIN_PROGRESS_BYTES 1024

void fm_transfer_say(fm_transfer *transfer, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(transfer->why, sizeof(transfer->why), format, arguments);
    va_end(arguments);
}

fm_attempt fm_transfer_fail(fm_transfer *transfer) {
    transfer->op->error = FM_READ_REMOTE;
    transfer->has_failed = true;
    return FM_ATTEMPT_FAILED;
}

fm_attempt fm_transfer_fail_code(fm_transfer *transfer, int error) {
    transfer->op->error = error;
    transfer->has_failed = true;
    return FM_ATTEMPT_FAILED;
}

/* ---- the response ---------------------------------------------------------------------------- */

/* Counts a part of the body. Its first byte is progress, and then each MIN_PROGRESS_BYTES, so that
 * a server that sends a byte now and then does not keep an attempt alive. */
static void note_body(fm_transfer *transfer, size_t n) {
    const bool is_first = transfer->n_fetched == 0;
    transfer->n_fetched += n;
    if (!is_first && transfer->n_fetched - transfer->counted_bytes < MIN_PROGRESS_BYTES) return;
    transfer->counted_bytes = transfer->n_fetched;
    transfer->progress_ns = fm_clock_ns();
}

static void on_header(fm_http_request *request, const char *line, size_t n_bytes) {
    fm_transfer *const transfer = request->user;
    /* Of the header only the first line, for the same reason. */
    if (!transfer->has_header) {
        transfer->progress_ns = transfer->answered_ns = fm_clock_ns();
        transfer->has_header = true;
        transfer->request = request;
    }
    if (request != transfer->request) return;
    fm_response_line(&transfer->response, line, n_bytes);
}

/* Whether the read has all its bytes. */
static bool is_complete(const fm_transfer *transfer) {
    return transfer->has_begun && transfer->op->n_bytes == transfer->n_total;
}

uint64_t fm_transfer_object_bytes(const fm_response *response) {
    return response->status == 206 ? response->total : response->length;
}

/* The next attempt starts at the beginning, with whatever version the server has then. */
static void start_over(fm_transfer *transfer) {
    *transfer->etag = 0;
    transfer->is_other = true;
    fm_transfer_say(transfer, "the object may have changed while it was read");
}

/* Whether the response is of another version than the read's earlier responses, or than the other
 * reads of the pack. The table is looked up again here: reads of a pack that begin together find
 * nothing in it at first. */
static bool is_of_other_version(const fm_transfer *transfer) {
    const char *const now = transfer->response.etag;
    if (!*now) return false;
    pthread_mutex_lock(&transfer->reader->lock);
    const char *const others = fm_etags_find(transfer->etags, transfer->op->path);
    const bool differs = others && strcmp(others, now);
    pthread_mutex_unlock(&transfer->reader->lock);
    return (*transfer->etag && strcmp(transfer->etag, now)) || differs;
}

/* The ETag becomes that of all ranges of the object. */
static void pin_version(const fm_transfer *transfer) {
    if (!transfer->op->range_bytes || !*transfer->etag) return;
    pthread_mutex_lock(&transfer->reader->lock);
    fm_etags_add(transfer->etags, transfer->op->path, transfer->etag);
    pthread_mutex_unlock(&transfer->reader->lock);
}

/* A range of the object is of another version than those before it. */
static void say_changed(fm_transfer *transfer) {
    fm_transfer_say(transfer, "the object has changed since it was first read%s",
                    transfer->reader->config.disk_cache
                        ? ", perhaps into the disk cache; clear that by `feedmill cache DIR "
                          "--clear`, or let it ask the server (:check)"
                        : "");
}

/* The read fails: the caller asked for another version of the object. */
static fm_attempt fail_changed(fm_transfer *transfer) {
    fm_transfer_say(transfer, "the object has changed since it was indexed; index it again");
    return fm_transfer_fail(transfer);
}

/* Compares the response's version of the object with the one that was seen first. False: they
 * differ, and the read has failed or must start over. */
static bool check_version(fm_transfer *transfer) {
    const fm_reader_op *const op = transfer->op;
    const char *const now = transfer->response.etag;
    const uint64_t now_bytes = fm_transfer_object_bytes(&transfer->response);
    const bool is_same = *now && !strcmp(transfer->etag, now);
    /* A server may ignore If-Match. */
    if (*op->etag && *now && strcmp(op->etag, now)) return fail_changed(transfer), false;
    if (op->range_bytes && is_of_other_version(transfer)) {
        say_changed(transfer);
        return fm_transfer_fail(transfer), false;
    }
    if (!op->n_bytes) {
        /* Without an ETag of the response its bytes can't be told from those of another version. */
        memcpy(transfer->etag, now, sizeof(transfer->etag));
        return true;
    }
    const bool fits =
        op->range_bytes || now_bytes == FM_RESPONSE_UNKNOWN || now_bytes == transfer->n_total;
    if (is_same && fits) return true;
    start_over(transfer);
    return false;
}

/* How many bytes the attempt brings for the ranges behind its own. */
static uint64_t behind_bytes(const fm_transfer *transfer) {
    const fm_transfer *last = transfer;
    while (last->behind) last = last->behind;
    const fm_reader_op *const op = transfer->op, *const end = last->op;
    return end->offset_bytes + end->range_bytes - (op->offset_bytes + op->range_bytes);
}

/* Makes room for the whole body, if its size is known. */
static bool reserve(fm_transfer *transfer, uint64_t n_bytes) {
    fm_reader_op *const op = transfer->op;
    fm_reader *const reader = transfer->reader;
    if (n_bytes > reader->config.max_file_bytes)
        return fm_transfer_fail_code(transfer, EFBIG), false;
    if (n_bytes <= op->capacity || fm_reader_grow_buffer(reader, op, n_bytes)) return true;
    return fm_transfer_fail_code(transfer, ENOMEM), false;
}

/* The header of a response of status 200 or 206 is complete. False: its body is of no use. */
static bool begin_body(fm_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    const bool is_known = transfer->n_total != FM_RESPONSE_UNKNOWN;
    const fm_response_wish wish = {
        .offset_bytes = op->offset_bytes + op->n_bytes,
        .range_bytes = is_known ? transfer->n_total - op->n_bytes + behind_bytes(transfer) : 0,
    };
    if (!check_version(transfer)) return false;
    uint64_t left_bytes;
    switch (fm_response_fits(&transfer->response, &wish, &transfer->skip_bytes, &left_bytes)) {
    case FM_FIT_OK:
        break;
    case FM_FIT_ENDS_EARLY:
        if (transfer->behind) return transfer->is_too_long = true, false;
        return fm_transfer_fail_code(transfer, FM_READ_ENDS_EARLY), false;
    case FM_FIT_WRONG:
        transfer->is_wrong = true;
        return false;
    }
    transfer->has_begun = true;
    op->replaces = op->replaces || op->is_kept;
    op->is_kept = false; /* the body overwrites it */
    pin_version(transfer);
    if (is_known || left_bytes == FM_RESPONSE_UNKNOWN) return true;
    transfer->n_total = op->n_bytes + left_bytes;
    return reserve(transfer, transfer->n_total);
}

/* Keeps the begin of an error's body, and reads the rest for the connection's sake. */
static bool take_error(fm_transfer *transfer, const char *bytes, size_t n) {
    fm_response_error_body(&transfer->response, bytes, n);
    transfer->n_error_bytes += n;
    return transfer->n_error_bytes <= MAX_ERROR_BYTES;
}

/* Copies to the ranges behind the transfer's own. Returns how many of the bytes they had use for.
 */
static size_t take_behind(fm_transfer *transfer, const char *bytes, size_t n) {
    size_t used = 0;
    for (fm_transfer *next = transfer->behind; next && used < n; next = next->behind) {
        fm_reader_op *const op = next->op;
        const uint64_t wanted_bytes = op->range_bytes - op->n_bytes;
        if (!wanted_bytes) continue;
        if (!reserve(next, op->range_bytes)) break;
        const uint64_t gap_bytes = op->offset_bytes + op->n_bytes - transfer->behind_offset_bytes;
        const size_t skipped = gap_bytes < n - used ? (size_t)gap_bytes : n - used;
        const size_t left = n - used - skipped;
        const size_t taken = wanted_bytes < left ? (size_t)wanted_bytes : left;
        if (taken) memcpy(op->buffer + op->n_bytes, bytes + used + skipped, taken);
        op->n_bytes += taken;
        transfer->behind_offset_bytes += skipped + taken;
        used += skipped + taken;
    }
    return used;
}

static bool on_body(fm_http_request *request, const char *bytes, size_t n) {
    fm_transfer *const transfer = request->user;
    fm_reader_op *const op = transfer->op;
    if (!op || request != transfer->request) return false;
    note_body(transfer, n);
    if (transfer->response.status != 200 && transfer->response.status != 206)
        return take_error(transfer, bytes, n);
    if (!transfer->has_begun && !begin_body(transfer)) return false;
    const size_t skipped = n < transfer->skip_bytes ? n : (size_t)transfer->skip_bytes;
    transfer->skip_bytes -= skipped;
    size_t taken = n - skipped;
    if (transfer->n_total != FM_RESPONSE_UNKNOWN) {
        const uint64_t left = transfer->n_total - op->n_bytes;
        if (taken > left) taken = (size_t)left;
    }
    if (!reserve(transfer, op->n_bytes + taken)) return false;
    memcpy(op->buffer + op->n_bytes, bytes + skipped, taken);
    op->n_bytes += taken;
    const size_t used = skipped + taken;
    /* More follows if the server has ignored the range; is_complete() then says that all is well.
     */
    return used + take_behind(transfer, bytes + used, n - used) == n;
}

const fm_http_calls fm_transfer_calls = {on_header, on_body};

/* ---- what went wrong ------------------------------------------------------------------------- */

static fm_attempt judge_status(fm_transfer *transfer) {
    const int status = transfer->response.status;
    char code[64];
    fm_response_code(&transfer->response, code, sizeof(code));
    fm_transfer_say(transfer, "HTTP %d%s%s", status, *code ? " " : "", code);
    if (status == 429 || status == 503) return FM_ATTEMPT_FEWER;
    if (status == 408 || status >= 500) return FM_ATTEMPT_AGAIN;
    if (status == 412 && *transfer->op->etag) return fail_changed(transfer);
    /* The rest of an object that was requested whole is not there, or is of another version. */
    if ((status == 412 || status == 416) && !transfer->op->range_bytes && transfer->op->n_bytes) {
        start_over(transfer);
        return FM_ATTEMPT_AGAIN;
    }
    if (status == 416) return fm_transfer_fail_code(transfer, FM_READ_ENDS_EARLY);
    if (status == 412 && *transfer->etag) say_changed(transfer);
    /* S3's answer where a bucket is in another region has a code, and no URL. */
    if (status >= 300 && status < 400 && !*code)
        fm_transfer_say(transfer, "HTTP %d: a redirect that can't be followed", status);
    return fm_transfer_fail(transfer);
}

/* The attempt ended with a failure of the connection, or of the URL. */
static fm_attempt judge_result(fm_transfer *transfer, fm_http_result result) {
    transfer->is_fresh = true;
    if (result == FM_HTTP_NO_SERVER) return FM_ATTEMPT_NO_SERVER;
    if (result == FM_HTTP_NO_MEMORY) return fm_transfer_fail_code(transfer, ENOMEM);
    if (result == FM_HTTP_REFUSED) return fm_transfer_fail(transfer);
    const size_t n = strlen(transfer->why);
    if (transfer->has_begun)
        snprintf(transfer->why + n, sizeof(transfer->why) - n, ", after %llu bytes",
                 (unsigned long long)transfer->op->n_bytes);
    return FM_ATTEMPT_AGAIN;
}

/* The entry of the disk cache, which is in the buffer, is of the server's version. */
static fm_attempt take_kept(fm_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    memcpy(transfer->response.etag, op->kept_etag, sizeof(op->kept_etag));
    if (op->range_bytes && is_of_other_version(transfer)) {
        say_changed(transfer);
        return fm_transfer_fail(transfer);
    }
    memcpy(transfer->etag, op->kept_etag, sizeof(transfer->etag));
    pin_version(transfer);
    fm_lookup_confirm(op);
    return FM_ATTEMPT_DONE;
}

fm_attempt fm_transfer_judge(fm_transfer *transfer, fm_http_result result) {
    fm_reader_op *const op = transfer->op;
    const int status = transfer->response.status;
    const bool has_object = status == 200 || status == 206;
    /* Of an empty object there is no body. */
    if (result == FM_HTTP_OK && has_object && !transfer->has_begun && !transfer->has_failed)
        begin_body(transfer);
    if (transfer->has_failed) return FM_ATTEMPT_FAILED;
    if (status == 304 && op->is_kept && result == FM_HTTP_OK) return take_kept(transfer);
    if (is_complete(transfer)) return FM_ATTEMPT_DONE;
    if (transfer->is_too_long) return FM_ATTEMPT_ALONE;
    if (transfer->is_other) {
        start_over(transfer);
        return FM_ATTEMPT_AGAIN;
    }
    if (transfer->is_wrong) {
        fm_transfer_say(transfer, "the server has sent other bytes than requested");
        return FM_ATTEMPT_AGAIN;
    }
    if (status >= 300) return judge_status(transfer);
    if (result != FM_HTTP_OK) return judge_result(transfer, result);
    /* Without Content-Length the object ends where the body does. */
    if (transfer->has_begun && transfer->n_total == FM_RESPONSE_UNKNOWN && !transfer->skip_bytes)
        return FM_ATTEMPT_DONE;
    if (transfer->has_begun && op->range_bytes)
        return fm_transfer_fail_code(transfer, FM_READ_ENDS_EARLY);
    fm_transfer_say(transfer, "the response (HTTP %d) can't be understood", status);
    return FM_ATTEMPT_AGAIN;
}

/* ---- attempts -------------------------------------------------------------------------------- */

fm_remote_wish fm_transfer_wish(const fm_transfer *transfer) {
    const fm_reader_op *const op = transfer->op;
    fm_remote_wish wish = {.name = op->path};
    if (*transfer->etag) wish.etag = transfer->etag;
    if (op->is_kept) wish.unless_etag = op->kept_etag;
    if (op->range_bytes || op->n_bytes) {
        wish.offset_bytes = op->offset_bytes + op->n_bytes;
        wish.range_bytes = transfer->n_total - op->n_bytes + behind_bytes(transfer);
    }
    return wish;
}

void fm_transfer_reset(fm_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    /* Only an ETag tells that the bytes so far belong to those that will come. */
    const bool resumes = *transfer->etag && transfer->n_total != FM_RESPONSE_UNKNOWN;
    if (!resumes) op->n_bytes = 0;
    if (!op->range_bytes && !op->n_bytes) {
        /* Nothing is kept, so any version will do, unless the caller wants a certain one. */
        transfer->n_total = FM_RESPONSE_UNKNOWN;
        memcpy(transfer->etag, op->etag, sizeof(transfer->etag));
    }
    transfer->response = (fm_response){.length = FM_RESPONSE_UNKNOWN};
    transfer->has_begun = transfer->has_failed = false;
    transfer->is_wrong = transfer->is_other = transfer->is_too_long = false;
    transfer->skip_bytes = transfer->n_error_bytes = 0;
    transfer->n_fetched = transfer->counted_bytes = 0;
    transfer->has_header = transfer->is_hedged = false;
    transfer->hedged_ns = 0;
    transfer->request = &transfer->requests[0];
    transfer->behind_offset_bytes = op->offset_bytes + op->range_bytes;
}

fm_http_request *fm_transfer_other(fm_transfer *transfer, const fm_http_request *request) {
    return &transfer->requests[request == &transfer->requests[0]];
}

void fm_transfer_forget_redirect(fm_transfer *transfer) {
    free(transfer->redirect);
    transfer->redirect = NULL;
    transfer->n_redirects = 0;
    transfer->is_elsewhere = false;
}

bool fm_transfer_follow(fm_transfer *transfer) {
    const int status = transfer->response.status;
    if (status != 301 && status != 302 && status != 303 && status != 307 && status != 308)
        return false;
    if (transfer->n_redirects == MAX_REDIRECTS) return false;
    bool is_elsewhere = false;
    char *const url = fm_http_redirect(transfer->request, &is_elsewhere);
    if (!url) return false;
    /* Once elsewhere, nothing says that a further redirect leads back to a trusted server. */
    transfer->is_elsewhere = transfer->is_elsewhere || is_elsewhere;
    free(transfer->redirect);
    transfer->redirect = url;
    transfer->n_redirects++;
    return true;
}
