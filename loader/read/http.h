/*
 * HTTP requests by libcurl: many at once on one thread, which calls all functions but
 * fm_http_wake(). What is requested, and what is done with the response, is for the caller
 * (reader_http.c). Only http.c includes libcurl's headers.
 */
#ifndef FM_READ_HTTP_H
#define FM_READ_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct fm_http fm_http;

/* One request at a time; the memory is kept for later ones. */
typedef struct fm_http_request {
    void *user;
    /* Set by http.c, and zeroed at first. */
    struct fm_http *http;
    void *easy;
    struct curl_slist *headers;
    char *curl_error, *location; /* location: of the last response's header, or NULL */
    bool is_running;
} fm_http_request;

/* What a response brings, in pieces, during fm_http_run(). */
typedef struct fm_http_calls {
    /* A line of the header, not ended by 0. A response that is not the last begins anew. */
    void (*on_header)(fm_http_request *request, const char *line, size_t n_bytes);
    /* A part of the body; false: the rest is not wanted. */
    bool (*on_body)(fm_http_request *request, const char *bytes, size_t n_bytes);
} fm_http_calls;

typedef struct fm_http_settings {
    const char *ca_bundle; /* NULL: libcurl's own; copied */
    uint32_t connect_timeout_ms;
    uint32_t n_connections; /* how many are kept open */
    fm_http_calls calls;
} fm_http_settings;

/* How a request ended. */
typedef enum fm_http_result {
    FM_HTTP_OK,        /* there is a response, of any status, with its whole body */
    FM_HTTP_FAILED,    /* on the way; may pass */
    FM_HTTP_TIMED_OUT, /* may pass */
    FM_HTTP_NO_SERVER, /* no address, or no connection; may pass */
    FM_HTTP_REFUSED,   /* a certificate or a URL that is no good */
    FM_HTTP_NO_MEMORY
} fm_http_result;

/* FM_ERR_UNAVAILABLE (libcurl does not work here), FM_ERR_NOMEM. */
int fm_http_open(fm_http **out, const fm_http_settings *settings, fm_error *error);
/* All requests must be freed. */
void fm_http_close(fm_http *http);
/* libcurl's version. */
const char *fm_http_version(void);

/* Begins a request, on a new connection if is_fresh. Header lines are copied. False: no memory. */
bool fm_http_begin(fm_http *http, fm_http_request *request, const char *url,
                   const char *const *headers, size_t n_headers, bool is_fresh);
/* Ends it, and does nothing if it is not running. Closes its connection unless it is at the end of
 * a response. */
void fm_http_end(fm_http_request *request);
void fm_http_request_free(fm_http_request *request);

/* Reads and writes what can be without waiting. */
void fm_http_run(fm_http *http);
/* A request that has come to its end by itself, and still needs fm_http_end(); or NULL. *code is
 * for fm_http_judge(). */
fm_http_request *fm_http_next(fm_http *http, int *code);
/* Waits until there is something to do, or for the timeout. */
void fm_http_wait(fm_http *http, int timeout_ms);
/* Whether the latest response came by HTTP/2, by which requests share a connection. */
bool fm_http_is_multiplexed(const fm_http *http);
/* Ends the wait. Any thread. */
void fm_http_wake(fm_http *http);

/* Of requests that have ended. */

/* What `code` means, and why in words, without a part of a URL but host and port. is_stalled: the
 * caller has ended it as it heard too little. Nothing is written to `why` if why_bytes is 0. */
fm_http_result fm_http_judge(const fm_http_request *request, int code, bool is_stalled, char *why,
                             size_t why_bytes);
/* Whether a connection was there, also of a running request. */
bool fm_http_is_connected(const fm_http_request *request);
/* The URL that the response leads to, also if its body broke off, if it is http or https, for
 * free(); or NULL. *is_elsewhere: scheme, host or port are others. */
char *fm_http_redirect(const fm_http_request *request, bool *is_elsewhere);
typedef struct fm_http_times {
    uint64_t connect_ns, first_byte_ns, transfer_ns; /* each without the one before */
} fm_http_times;
fm_http_times fm_http_times_of(const fm_http_request *request);

#endif
