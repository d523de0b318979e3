/*
 * The HTTP back end: objects in stores and on web servers, by libcurl.
 *
 * One thread runs all requests, on connections that are kept. Each read is a transfer, which makes
 * one attempt after the other (retry.h) until it has the object or range: the body goes into the
 * read's buffer as it comes. An attempt that breaks off is resumed behind the bytes that came if
 * the object has an ETag, by which the server knows whether it is still the same, and otherwise
 * starts at the beginning.
 *
 * Redirects are followed here rather than by libcurl, which would send the store's session token on
 * to another host.
 */
#define _GNU_SOURCE
#include <curl/curl.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "read/etags.h"
#include "read/reader_impl.h"
#include "read/remote.h"
#include "read/response.h"
#include "read/retry.h"

/* TLS handshakes and certificates need most of it. */
#define STACK_BYTES ((size_t)512 << 10)
#define MS_NS 1000000u
#define RETRY_BASE_NS (200u * (uint64_t)MS_NS)
#define RETRY_CAP_NS (20000u * (uint64_t)MS_NS)
#define MAX_REDIRECTS 5
/* An error's body of more bytes is not worth keeping the connection for. */
#define MAX_ERROR_BYTES (64u << 10)
/* How long leave() waits for connections to be closed. */
#define LEAVE_LIMIT_NS (50u * (uint64_t)MS_NS)
/* Poll without anything to do; wake-ups end it. */
#define IDLE_MS 10000
#define RECEIVE_BYTES (128L << 10)
#define WHY_BYTES 224

/* How an attempt went. */
typedef enum fm_http_end {
    FM_HTTP_DONE,      /* the bytes are in the buffer */
    FM_HTTP_AGAIN,     /* may pass */
    FM_HTTP_NO_SERVER, /* may pass, and nobody has answered */
    FM_HTTP_REFUSED,   /* may pass, and the server wants fewer requests */
    FM_HTTP_FAILED     /* for good; op->error is set */
} fm_http_end;

/* One read in flight, at the place of its op in fm_http.transfers. */
typedef struct fm_http_transfer {
    fm_reader *reader;
    fm_reader_op *op;              /* NULL: not in use */
    struct fm_http_transfer *next; /* of those that wait for their next attempt */
    CURL *easy;                    /* kept for later reads */
    struct curl_slist *headers;
    bool is_running;
    fm_retry retry;
    uint64_t at_ns; /* when it waits: when the next attempt begins */
    char etag[FM_ETAG_BYTES];
    uint64_t n_total; /* the bytes wanted; FM_RESPONSE_UNKNOWN until a response says */
    char *redirect;   /* the URL that the next attempt goes to; NULL: the object's own */
    uint32_t n_redirects;
    bool is_elsewhere; /* the redirect leads to another origin */
    bool is_fresh;     /* the next attempt needs a new connection */
    char why[WHY_BYTES];
    /* Of the attempt. */
    uint64_t begun_ns, heard_ns;
    fm_response response;
    bool has_begun;  /* the response was found to have the bytes */
    bool has_failed; /* op->error or `why` is set: the transfer was broken off here */
    bool is_wrong;   /* the response has other bytes than requested */
    uint64_t skip_bytes, n_error_bytes, n_fetched;
    char curl_error[CURL_ERROR_SIZE];
} fm_http_transfer;

typedef struct fm_http {
    fm_reader *reader;
    fm_remote *remote; /* not used any more once the reader is closing */
    CURLM *multi;
    fm_thread thread;
    bool waits, has_ended; /* under the reader's lock */
    bool any_cancelled;    /* under the reader's lock */
    /* The thread's. */
    char *ca_bundle;
    uint64_t stall_ns, connect_ns;
    fm_retry_policy policy;
    fm_flow flow;
    fm_etags etags;
    fm_http_transfer *waiting;
    uint32_t n_running;
    uint64_t random, stall_check_ns;
    fm_http_transfer transfers[]; /* [reader->n_ops] */
} fm_http;

static void say(fm_http_transfer *transfer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say(fm_http_transfer *transfer, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(transfer->why, sizeof(transfer->why), format, arguments);
    va_end(arguments);
}

/* The read has failed for good, with the reason in transfer->why. */
static fm_http_end fail(fm_http_transfer *transfer) {
    transfer->op->error = FM_READ_REMOTE;
    transfer->has_failed = true;
    return FM_HTTP_FAILED;
}

/* The same with an error that needs no text. */
static fm_http_end fail_code(fm_http_transfer *transfer, int error) {
    transfer->op->error = error;
    transfer->has_failed = true;
    return FM_HTTP_FAILED;
}

/* ---- the response ---------------------------------------------------------------------------- */

static size_t on_header(char *line, size_t size, size_t n, void *user) {
    fm_http_transfer *const transfer = user;
    transfer->heard_ns = fm_clock_ns();
    fm_response_line(&transfer->response, line, size * n);
    return size * n;
}

/* Whether the read has all its bytes. */
static bool is_complete(const fm_http_transfer *transfer) {
    return transfer->has_begun && transfer->op->n_bytes == transfer->n_total;
}

/* Another version of the object than the one that was seen first? */
static bool has_changed(fm_http_transfer *transfer) {
    const char *const now = transfer->response.etag;
    if (*transfer->etag) return *now && strcmp(transfer->etag, now);
    memcpy(transfer->etag, now, sizeof(transfer->etag));
    return false;
}

/* Makes room for the whole body, if its size is known. */
static bool reserve(fm_http_transfer *transfer, uint64_t n_bytes) {
    fm_reader_op *const op = transfer->op;
    fm_reader *const reader = transfer->reader;
    if (n_bytes > reader->config.max_file_bytes) return fail_code(transfer, EFBIG), false;
    if (n_bytes <= op->capacity || fm_reader_grow_buffer(reader, op, n_bytes)) return true;
    return fail_code(transfer, ENOMEM), false;
}

/* The header of a response of status 200 or 206 is complete. False: its body is of no use. */
static bool begin_body(fm_http_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    const bool is_known = transfer->n_total != FM_RESPONSE_UNKNOWN;
    const fm_response_wish wish = {
        .offset_bytes = op->offset_bytes + op->n_bytes,
        .range_bytes = is_known ? transfer->n_total - op->n_bytes : 0,
    };
    if (has_changed(transfer)) {
        say(transfer, "the object has changed since it was first read");
        return fail(transfer), false;
    }
    uint64_t left_bytes;
    switch (fm_response_fits(&transfer->response, &wish, &transfer->skip_bytes, &left_bytes)) {
    case FM_FIT_OK:
        break;
    case FM_FIT_ENDS_EARLY:
        return fail_code(transfer, FM_READ_ENDS_EARLY), false;
    case FM_FIT_WRONG:
        transfer->is_wrong = true;
        return false;
    }
    transfer->has_begun = true;
    if (is_known || left_bytes == FM_RESPONSE_UNKNOWN) return true;
    transfer->n_total = op->n_bytes + left_bytes;
    return reserve(transfer, transfer->n_total);
}

/* Keeps the begin of an error's body, and reads the rest for the connection's sake. */
static size_t take_error(fm_http_transfer *transfer, const char *bytes, size_t n) {
    fm_response_error_body(&transfer->response, bytes, n);
    transfer->n_error_bytes += n;
    return transfer->n_error_bytes > MAX_ERROR_BYTES ? 0 : n;
}

/* Bytes of a body. Any other result than their number ends the attempt. */
static size_t on_body(char *bytes, size_t size, size_t n_items, void *user) {
    fm_http_transfer *const transfer = user;
    fm_reader_op *const op = transfer->op;
    const size_t n = size * n_items;
    transfer->heard_ns = fm_clock_ns();
    transfer->n_fetched += n;
    if (!op) return 0;
    if (transfer->response.status != 200 && transfer->response.status != 206)
        return take_error(transfer, bytes, n);
    if (!transfer->has_begun && !begin_body(transfer)) return 0;
    const size_t skipped = n < transfer->skip_bytes ? n : (size_t)transfer->skip_bytes;
    transfer->skip_bytes -= skipped;
    size_t taken = n - skipped;
    if (transfer->n_total != FM_RESPONSE_UNKNOWN) {
        const uint64_t left = transfer->n_total - op->n_bytes;
        if (taken > left) taken = (size_t)left;
    }
    if (!reserve(transfer, op->n_bytes + taken)) return 0;
    memcpy(op->buffer + op->n_bytes, bytes + skipped, taken);
    op->n_bytes += taken;
    /* More follows if the server has ignored the range; is_complete() then says that all is well.
     */
    return skipped + taken == n ? n : 0;
}

/* ---- what went wrong ------------------------------------------------------------------------- */

/* "host:port" of the request, without what else a URL may hold. */
static void describe_server(fm_http_transfer *transfer, char *out, size_t out_bytes) {
    const char *address = NULL;
    char *host = NULL, *port = NULL;
    CURLU *const url = curl_url();
    snprintf(out, out_bytes, "the server");
    if (url && !curl_easy_getinfo(transfer->easy, CURLINFO_EFFECTIVE_URL, &address) && address &&
        !curl_url_set(url, CURLUPART_URL, address, 0) &&
        !curl_url_get(url, CURLUPART_HOST, &host, 0) &&
        !curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT))
        snprintf(out, out_bytes, "%s:%s", host, port);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(url);
}

static fm_http_end judge_status(fm_http_transfer *transfer) {
    const int status = transfer->response.status;
    char code[64];
    fm_response_code(&transfer->response, code, sizeof(code));
    say(transfer, "HTTP %d%s%s", status, *code ? " " : "", code);
    if (status == 429 || status == 503) return FM_HTTP_REFUSED;
    if (status == 408 || status >= 500) return FM_HTTP_AGAIN;
    if (status == 416) return fail_code(transfer, FM_READ_ENDS_EARLY);
    if (status == 412) say(transfer, "the object has changed since it was first read");
    if (status >= 300 && status < 400)
        say(transfer, "HTTP %d: a redirect that can't be followed", status);
    return fail(transfer);
}

static bool is_connected(const fm_http_transfer *transfer) {
    double seconds = 0; /* until the request was about to be sent */
    curl_easy_getinfo(transfer->easy, CURLINFO_PRETRANSFER_TIME, &seconds);
    return seconds > 0;
}

static fm_http_end judge_connect(fm_http_transfer *transfer, const char *server) {
    long os_errno = 0;
    curl_easy_getinfo(transfer->easy, CURLINFO_OS_ERRNO, &os_errno);
    if (os_errno == ECONNREFUSED)
        say(transfer, "connection refused by %s", server);
    else if (os_errno)
        say(transfer, "can't connect to %s: %s", server, strerror((int)os_errno));
    else
        say(transfer, "can't connect to %s", server);
    return FM_HTTP_NO_SERVER;
}

/* The attempt ended with a failure of the connection, or of the URL. */
static fm_http_end judge_code(fm_http_transfer *transfer, CURLcode code) {
    char server[160];
    describe_server(transfer, server, sizeof(server));
    transfer->is_fresh = true;
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        say(transfer, "the address of %s can't be found",
            code == CURLE_COULDNT_RESOLVE_HOST ? server : "the proxy");
        return FM_HTTP_NO_SERVER;
    case CURLE_COULDNT_CONNECT:
        return judge_connect(transfer, server);
    case CURLE_OPERATION_TIMEDOUT:
        if (!is_connected(transfer)) {
            say(transfer, "no connection to %s in time", server);
            return FM_HTTP_NO_SERVER;
        }
        say(transfer, "%s has stopped sending", server);
        return FM_HTTP_AGAIN;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
        /* libcurl's text names the certificate's flaw, or the file, and no URL. */
        say(transfer, "the certificate of %s: %.100s", server,
            *transfer->curl_error ? transfer->curl_error : curl_easy_strerror(code));
        return fail(transfer);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        say(transfer, "no URL of an object");
        return fail(transfer);
    case CURLE_OUT_OF_MEMORY:
        return fail_code(transfer, ENOMEM);
    default:
        if (transfer->has_begun)
            say(transfer, "%s broke off after %llu bytes", server,
                (unsigned long long)transfer->op->n_bytes);
        else
            say(transfer, "%s: %s", server, curl_easy_strerror(code));
        return FM_HTTP_AGAIN;
    }
}

static fm_http_end judge(fm_http_transfer *transfer, CURLcode code) {
    fm_reader_op *const op = transfer->op;
    const int status = transfer->response.status;
    const bool has_object = status == 200 || status == 206;
    /* Of an empty object there is no body. */
    if (code == CURLE_OK && has_object && !transfer->has_begun && !transfer->has_failed)
        begin_body(transfer);
    if (transfer->has_failed) return FM_HTTP_FAILED;
    if (is_complete(transfer)) return FM_HTTP_DONE;
    if (transfer->is_wrong) {
        say(transfer, "the server has sent other bytes than requested");
        return FM_HTTP_AGAIN;
    }
    if (status >= 300) return judge_status(transfer);
    if (code != CURLE_OK) return judge_code(transfer, code);
    /* Without Content-Length the object ends where the body does. */
    if (transfer->has_begun && transfer->n_total == FM_RESPONSE_UNKNOWN && !transfer->skip_bytes)
        return FM_HTTP_DONE;
    if (transfer->has_begun && op->range_bytes) return fail_code(transfer, FM_READ_ENDS_EARLY);
    say(transfer, "the response (HTTP %d) can't be understood", status);
    return FM_HTTP_AGAIN;
}

/* ---- attempts -------------------------------------------------------------------------------- */

/* What is requested: all, or what is left of it. */
static fm_remote_wish wish_of(const fm_http_transfer *transfer) {
    const fm_reader_op *const op = transfer->op;
    fm_remote_wish wish = {.name = op->path};
    if (*transfer->etag) wish.etag = transfer->etag;
    if (op->range_bytes || op->n_bytes) {
        wish.offset_bytes = op->offset_bytes + op->n_bytes;
        wish.range_bytes = transfer->n_total - op->n_bytes;
    }
    return wish;
}

/* What may be sent to an origin that the credentials are not for. */
static bool is_public(const char *header) {
    return !strncasecmp(header, "range:", 6) || !strncasecmp(header, "if-match:", 9);
}

static bool set_headers(fm_http_transfer *transfer, const fm_remote_request *request) {
    for (size_t i = 0; i < request->n_headers; i++) {
        if (transfer->is_elsewhere && !is_public(request->headers[i])) continue;
        struct curl_slist *const longer = curl_slist_append(transfer->headers, request->headers[i]);
        if (!longer) return false;
        transfer->headers = longer;
    }
    return true;
}

static void set_protocols(CURL *easy) {
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    /* A look-up that hangs is left to its thread, rather than waited for. */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
}

static void set_options(const fm_http *self, fm_http_transfer *transfer, const char *url) {
    CURL *const easy = transfer->easy;
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->curl_error);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L); /* keys may contain "..", and are signed */
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, RECEIVE_BYTES);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(self->connect_ns / MS_NS));
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "feedmill/" FM_VERSION_STRING);
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, (long)transfer->is_fresh);
    if (self->ca_bundle) curl_easy_setopt(easy, CURLOPT_CAINFO, self->ca_bundle);
    const bool is_secure = !strncasecmp(url, "https:", 6);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION,
                     is_secure ? (long)CURL_HTTP_VERSION_2TLS : (long)CURL_HTTP_VERSION_1_1);
    /* Waits for the first connection to say whether it serves several requests at once. */
    curl_easy_setopt(easy, CURLOPT_PIPEWAIT, (long)is_secure);
    set_protocols(easy);
}

/* Forgets what the last attempt left. */
static void reset_attempt(fm_http_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    curl_slist_free_all(transfer->headers);
    transfer->headers = NULL;
    /* Only an ETag tells that the bytes so far belong to those that will come. */
    const bool resumes = *transfer->etag && transfer->n_total != FM_RESPONSE_UNKNOWN;
    if (!resumes) op->n_bytes = 0;
    if (!resumes && !op->range_bytes) transfer->n_total = FM_RESPONSE_UNKNOWN;
    transfer->response = (fm_response){.length = FM_RESPONSE_UNKNOWN};
    transfer->has_begun = transfer->has_failed = transfer->is_wrong = false;
    transfer->skip_bytes = transfer->n_error_bytes = transfer->n_fetched = 0;
    *transfer->curl_error = 0;
}

static void end_read(fm_http *self, fm_http_transfer *transfer);

/* Begins the next attempt, or ends the read if there can be none. */
static void begin_attempt(fm_http *self, fm_http_transfer *transfer) {
    fm_remote_request request;
    fm_error error;
    reset_attempt(transfer);
    const fm_remote_wish wish = wish_of(transfer);
    if (!transfer->easy) transfer->easy = curl_easy_init();
    const int status = fm_remote_request_make(self->remote, &wish, &request, &error);
    bool ok = !status && transfer->easy && set_headers(transfer, &request);
    if (ok) {
        set_options(self, transfer, transfer->redirect ? transfer->redirect : request.url);
        ok = !curl_multi_add_handle(self->multi, transfer->easy);
    }
    fm_remote_request_free(&request);
    if (ok) {
        transfer->is_running = true;
        transfer->begun_ns = transfer->heard_ns = fm_clock_ns();
        if (!transfer->retry.first_ns) transfer->retry.first_ns = transfer->begun_ns;
        self->n_running++;
        return;
    }
    if (status == FM_ERR_ARGUMENT) {
        say(transfer, "%s", error.message);
        fail(transfer);
    } else {
        fail_code(transfer, ENOMEM);
    }
    end_read(self, transfer);
}

static bool is_same_origin(const char *from, const char *to) {
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *const a = curl_url(), *const b = curl_url();
    bool same = a && b && from && !curl_url_set(a, CURLUPART_URL, from, 0) &&
                !curl_url_set(b, CURLUPART_URL, to, 0);
    for (size_t i = 0; same && i < sizeof(parts) / sizeof(*parts); i++) {
        char *left = NULL, *right = NULL;
        same = !curl_url_get(a, parts[i], &left, CURLU_DEFAULT_PORT) &&
               !curl_url_get(b, parts[i], &right, CURLU_DEFAULT_PORT) && !strcasecmp(left, right);
        curl_free(left);
        curl_free(right);
    }
    curl_url_cleanup(a);
    curl_url_cleanup(b);
    return same;
}

static void forget_redirect(fm_http_transfer *transfer) {
    free(transfer->redirect);
    transfer->redirect = NULL;
    transfer->n_redirects = 0;
    transfer->is_elsewhere = false;
}

/* Whether the response leads to another URL, which the next attempt then goes to. */
static bool follow(fm_http_transfer *transfer) {
    const int status = transfer->response.status;
    const char *from = NULL, *to = NULL;
    if (status != 301 && status != 302 && status != 303 && status != 307 && status != 308)
        return false;
    if (transfer->n_redirects == MAX_REDIRECTS) return false;
    curl_easy_getinfo(transfer->easy, CURLINFO_EFFECTIVE_URL, &from);
    curl_easy_getinfo(transfer->easy, CURLINFO_REDIRECT_URL, &to);
    if (!to || (strncasecmp(to, "http://", 7) && strncasecmp(to, "https://", 8))) return false;
    char *const copy = strdup(to);
    if (!copy) return false;
    /* Once elsewhere, nothing says that a further redirect leads back to a trusted server. */
    transfer->is_elsewhere = transfer->is_elsewhere || !is_same_origin(from, to);
    free(transfer->redirect);
    transfer->redirect = copy;
    transfer->n_redirects++;
    return true;
}

static uint64_t info_ns(CURL *easy, CURLINFO info) {
    double seconds = 0;
    curl_easy_getinfo(easy, info, &seconds);
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

static void count(fm_http *self, fm_http_transfer *transfer, fm_http_end end) {
    const uint64_t connect_ns = info_ns(transfer->easy, CURLINFO_PRETRANSFER_TIME);
    const uint64_t first_ns = info_ns(transfer->easy, CURLINFO_STARTTRANSFER_TIME);
    const uint64_t total_ns = info_ns(transfer->easy, CURLINFO_TOTAL_TIME);
    fm_reader *const reader = self->reader;
    pthread_mutex_lock(&reader->lock);
    reader->stats.n_requests++;
    reader->stats.n_refused += end == FM_HTTP_REFUSED;
    reader->stats.fetched_bytes += transfer->n_fetched;
    reader->stats.connect_ns += connect_ns;
    if (first_ns > connect_ns) reader->stats.first_byte_ns += first_ns - connect_ns;
    if (first_ns && total_ns > first_ns) reader->stats.transfer_ns += total_ns - first_ns;
    pthread_mutex_unlock(&reader->lock);
}

/* The attempt has failed. Queues the next one, or ends the read. */
static void try_again(fm_http *self, fm_http_transfer *transfer, bool no_server) {
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    const fm_retry_failure failure = {
        .now_ns = fm_clock_ns(),
        .wait_ns = transfer->response.retry_after_s < 86400
                       ? transfer->response.retry_after_s * 1000 * MS_NS
                       : UINT64_MAX / 4,
        .random = (uint32_t)(self->random >> 32),
        .no_server = no_server,
    };
    forget_redirect(transfer);
    if (fm_retry_next(&self->policy, &transfer->retry, &failure, &transfer->at_ns)) {
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
    fail(transfer);
    end_read(self, transfer);
}

/* Takes a request off libcurl; its connection is closed unless it is at the response's end. */
static void detach(fm_http *self, fm_http_transfer *transfer) {
    if (!transfer->is_running) return;
    transfer->is_running = false;
    self->n_running--;
    curl_multi_remove_handle(self->multi, transfer->easy);
}

static void end_attempt(fm_http *self, fm_http_transfer *transfer, CURLcode code) {
    detach(self, transfer);
    const bool is_redirect = code == CURLE_OK && follow(transfer);
    const fm_http_end end = is_redirect ? FM_HTTP_DONE : judge(transfer, code);
    count(self, transfer, end);
    if (end == FM_HTTP_REFUSED)
        fm_flow_refused(&self->flow, transfer->begun_ns, fm_clock_ns());
    else if (end == FM_HTTP_DONE)
        fm_flow_answered(&self->flow);
    if (is_redirect)
        begin_attempt(self, transfer);
    else if (end == FM_HTTP_DONE || end == FM_HTTP_FAILED)
        end_read(self, transfer);
    else
        try_again(self, transfer, end == FM_HTTP_NO_SERVER);
}

/* ---- reads ----------------------------------------------------------------------------------- */

static void begin_read(fm_http *self, fm_reader_op *op) {
    fm_http_transfer *const transfer = &self->transfers[op->index];
    transfer->op = op;
    transfer->retry = (fm_retry){0};
    const char *const etag = op->range_bytes ? fm_etags_find(&self->etags, op->path) : NULL;
    snprintf(transfer->etag, sizeof(transfer->etag), "%s", etag ? etag : "");
    *transfer->why = 0;
    transfer->n_total = op->range_bytes ? op->range_bytes : FM_RESPONSE_UNKNOWN;
    transfer->is_fresh = false;
    if (op->error)
        end_read(self, transfer);
    else
        begin_attempt(self, transfer);
}

static void end_read(fm_http *self, fm_http_transfer *transfer) {
    fm_reader_op *const op = transfer->op;
    if (!op->error && op->range_bytes && *transfer->etag)
        fm_etags_add(&self->etags, op->path, transfer->etag);
    op->why = op->error == FM_READ_REMOTE ? transfer->why : NULL;
    op->opened = !op->error;
    forget_redirect(transfer);
    transfer->op = NULL;
    fm_reader_finish(self->reader, op);
}

static void unlist(fm_http *self, const fm_http_transfer *transfer) {
    fm_http_transfer **link = &self->waiting;
    while (*link && *link != transfer) link = &(*link)->next;
    if (*link) *link = transfer->next;
}

/* Ends reads that fm_reader_cancel_queued() has marked; or all. */
static void end_cancelled(fm_http *self, bool all) {
    for (uint32_t i = 0; i < self->reader->n_ops; i++) {
        fm_http_transfer *const transfer = &self->transfers[i];
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
        if (!self->transfers[i].op) detach(self, &self->transfers[i]);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Begins all attempts whose pause is over, as far as the limit allows. */
static void begin_due(fm_http *self) {
    const uint64_t now_ns = fm_clock_ns();
    fm_http_transfer *list = self->waiting, *next;
    self->waiting = NULL;
    for (; list; list = next) {
        next = list->next;
        if (list->at_ns <= now_ns && self->n_running < fm_flow_limit(&self->flow)) {
            begin_attempt(self, list);
        } else {
            list->next = self->waiting;
            self->waiting = list;
        }
    }
}

/* Begins all reads that can start. False: the reader is closing. */
static bool begin_new(fm_http *self) {
    fm_reader *const reader = self->reader;
    for (;;) {
        fm_reader_op *op = NULL;
        pthread_mutex_lock(&reader->lock);
        const bool closing = reader->closing, any_cancelled = self->any_cancelled;
        const bool has_room = self->n_running < fm_flow_limit(&self->flow);
        self->any_cancelled = false;
        if (!closing && !any_cancelled && has_room) op = fm_reader_dequeue_locked(reader);
        self->waits = !op && has_room;
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

/* Ends all attempts that libcurl has finished. Returns whether there were any. */
static bool reap(fm_http *self) {
    bool any = false;
    int n_left;
    for (CURLMsg *message; (message = curl_multi_info_read(self->multi, &n_left));) {
        fm_http_transfer *transfer = NULL;
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)(void *)&transfer);
        end_attempt(self, transfer, code);
        any = true;
    }
    return any;
}

/* Ends attempts that have heard nothing for too long. One that waits for a connection has the time
 * that a connection may take on top. */
static void end_stalled(fm_http *self) {
    const uint64_t now_ns = fm_clock_ns();
    if (now_ns < self->stall_check_ns) return;
    self->stall_check_ns = now_ns + self->stall_ns / 8;
    for (uint32_t i = 0; i < self->reader->n_ops; i++) {
        fm_http_transfer *const transfer = &self->transfers[i];
        if (!transfer->is_running || now_ns - transfer->heard_ns < self->stall_ns) continue;
        const uint64_t extra_ns = is_connected(transfer) ? 0 : self->connect_ns;
        if (now_ns - transfer->heard_ns >= self->stall_ns + extra_ns)
            end_attempt(self, transfer, CURLE_OPERATION_TIMEDOUT);
    }
}

/* How long to wait for sockets; libcurl's own timers end the wait as well. */
static int wait_ms(const fm_http *self) {
    const uint64_t now_ns = fm_clock_ns();
    uint64_t until_ns = now_ns + IDLE_MS * (uint64_t)MS_NS;
    if (self->n_running && self->stall_check_ns < until_ns) until_ns = self->stall_check_ns;
    const bool has_room = self->n_running < fm_flow_limit(&self->flow);
    for (const fm_http_transfer *one = self->waiting; has_room && one; one = one->next)
        if (one->at_ns < until_ns) until_ns = one->at_ns;
    return until_ns > now_ns ? (int)((until_ns - now_ns) / MS_NS) + 1 : 0;
}

static void serve(fm_http *self) {
    for (;;) {
        begin_due(self);
        if (!begin_new(self)) break;
        int n_running;
        curl_multi_perform(self->multi, &n_running);
        if (reap(self)) continue;
        end_stalled(self);
        curl_multi_poll(self->multi, NULL, 0, wait_ms(self), NULL);
    }
    end_cancelled(self, true);
}

static void close_curl(fm_http *self, uint32_t n_ops) {
    for (uint32_t i = 0; i < n_ops; i++) {
        if (self->transfers[i].easy) curl_easy_cleanup(self->transfers[i].easy);
        curl_slist_free_all(self->transfers[i].headers);
    }
    curl_multi_cleanup(self->multi);
}

static void *http_main(void *argument) {
    fm_http *const self = argument;
    fm_reader *const reader = self->reader;
    serve(self);
    close_curl(self, reader->n_ops);
    pthread_mutex_lock(&reader->lock);
    self->has_ended = true;
    pthread_cond_broadcast(&reader->quiet);
    pthread_mutex_unlock(&reader->lock);
    fm_reader_unref(reader);
    return NULL;
}

/* ---- the back end ---------------------------------------------------------------------------- */

static bool http_wake_locked(fm_reader *reader) {
    fm_http *const self = reader->impl;
    const bool waits = self->waits;
    self->waits = false;
    return waits;
}

static void http_notify(fm_reader *reader) {
    const fm_http *const self = reader->impl;
    curl_multi_wakeup(self->multi);
}

static void http_cancel_locked(fm_reader *reader) {
    fm_http *const self = reader->impl;
    for (uint32_t i = 0; i < reader->n_ops; i++)
        reader->ops[i].cancelled = reader->ops[i].read != NULL;
    self->any_cancelled = true;
}

static void http_stop_locked(fm_reader *reader) { http_notify(reader); }

/* Waits for connections to be closed, but not for long. */
static void http_leave(fm_reader *reader) {
    fm_http *const self = reader->impl;
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
}

static void http_destroy(fm_reader *reader) {
    fm_http *const self = reader->impl;
    free(self->ca_bundle);
    fm_mem_free(self);
}

static CURLcode curl_status;
static void init_curl(void) { curl_status = curl_global_init(CURL_GLOBAL_DEFAULT); }

static int open_curl(fm_http *self, fm_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
    if (curl_status)
        return fm_error_set(error, FM_ERR_UNAVAILABLE, "libcurl can't be used: %s",
                            curl_easy_strerror(curl_status));
    self->multi = curl_multi_init();
    if (!self->multi) return fm_error_set(error, FM_ERR_NOMEM, "no memory for libcurl");
    curl_multi_setopt(self->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    curl_multi_setopt(self->multi, CURLMOPT_MAXCONNECTS, (long)self->reader->n_ops);
    return FM_OK;
}

static int copy_settings(fm_http *self, const fm_remote_config *settings, fm_error *error) {
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
    if (!settings->ca_bundle) return FM_OK;
    self->ca_bundle = strdup(settings->ca_bundle);
    return self->ca_bundle ? FM_OK : fm_error_set(error, FM_ERR_NOMEM, "no memory for a path");
}

static int http_open(fm_reader *reader, fm_error *error) {
    fm_http *const self = fm_mem_zalloc(reader->config.counter, 1,
                                        sizeof(*self) + reader->n_ops * sizeof(*self->transfers));
    if (!self)
        return fm_error_set(error, FM_ERR_NOMEM, "out of memory for %u requests", reader->n_ops);
    self->reader = reader;
    self->remote = reader->config.remote;
    reader->impl = self;
    for (uint32_t i = 0; i < reader->n_ops; i++) self->transfers[i].reader = reader;
    int status = copy_settings(self, fm_remote_settings(self->remote), error);
    if (!status) status = open_curl(self, error);
    if (!status) {
        pthread_mutex_lock(&reader->lock);
        status = fm_thread_start(&self->thread, "fm-http", STACK_BYTES, http_main, self, error);
        if (!status) reader->n_references++;
        pthread_mutex_unlock(&reader->lock);
        if (status) curl_multi_cleanup(self->multi);
    }
    if (status) {
        http_destroy(reader);
        reader->impl = NULL;
        return status;
    }
    fm_reader_note(reader, "%s", curl_version_info(CURLVERSION_NOW)->version);
    reader->stats.n_threads = 1;
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
