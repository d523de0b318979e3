/*
 * What is requested from object stores and web servers: turns a name, such as "s3://bucket/key" or
 * "https://host/path", into the URL and the headers of a GET request, signed where the store asks
 * for it. No input and output here: reader_http.c sends the requests.
 *
 * fm_remote (feedmill/remote.h) holds the settings and the credentials. All calls are thread-safe.
 */
#ifndef FM_READ_REMOTE_H
#define FM_READ_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "feedmill/remote.h"

/* Most header lines of one request. */
#define FM_REMOTE_MAX_HEADERS 16

/* What to request. */
typedef struct fm_remote_wish {
    const char *name;      /* s3://, gs://, http:// or https://; or s3://BUCKET?list-type=2&... */
    uint64_t offset_bytes; /* of the range */
    uint64_t range_bytes;  /* 0: to the end of the object */
    const char *etag; /* only this version of the object (If-Match); NULL, or a weak one: any */
    const char *unless_etag; /* only another version (If-None-Match); NULL, or with `etag`: any */
    const char *date;        /* "20150830T123600Z", for tests; NULL: now */
} fm_remote_wish;

/* One request: freed by fm_remote_request_free(). */
typedef struct fm_remote_request {
    char *url;
    /* Whole lines, such as "Range: bytes=0-99". */
    char *headers[FM_REMOTE_MAX_HEADERS];
    size_t n_headers;
} fm_remote_request;

/* Whether a path is a name of this kind, by its scheme; otherwise it is a file's path. */
bool fm_remote_is_name(const char *path);

/* A path or name as messages and reports show it: a name without a user, which may be a secret, as
 * may a URL's query and fragment. One that is too long loses its begin. */
void fm_remote_name_shown(const char *name, char *out, size_t out_bytes);

/*
 * Makes a request. FM_OK; FM_ERR_ARGUMENT for a name that can't be requested (no bucket, no host,
 * control characters); FM_ERR_NOMEM; FM_ERR_UNAVAILABLE. *out is zeroed after an error. No message
 * holds a secret, nor the query or the user of a URL, which may be one.
 */
int fm_remote_request_make(fm_remote *remote, const fm_remote_wish *wish, fm_remote_request *out,
                           fm_error *error);
void fm_remote_request_free(fm_remote_request *request);

/* FM_OK, or FM_ERR_FORKED in a child of the process that opened it. */
int fm_remote_check_process(const fm_remote *remote, fm_error *error);

/* The settings, constant since fm_remote_open(). */
const fm_remote_config *fm_remote_settings(const fm_remote *remote);

#endif
