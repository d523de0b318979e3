/*
 * What a server's response says: its header lines, which bytes of the object its body holds, and
 * the store's error code in the body of an error. No input and output here.
 */
#ifndef FM_READ_RESPONSE_H
#define FM_READ_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "read/reader.h"

/* How much is kept of the body of an error. */
#define FM_RESPONSE_ERROR_BYTES 1024

#define FM_RESPONSE_UNKNOWN UINT64_MAX

typedef struct fm_response {
    int status;
    uint64_t length;                    /* Content-Length; or FM_RESPONSE_UNKNOWN */
    bool has_range;                     /* Content-Range was sent and understood */
    uint64_t first, last, total;        /* of Content-Range; total may be FM_RESPONSE_UNKNOWN */
    uint64_t retry_after_s;             /* 0: none */
    char etag[FM_ETAG_BYTES];           /* only strong ones, with their quotes; "": none */
    char body[FM_RESPONSE_ERROR_BYTES]; /* the begin of an error's body */
    size_t body_bytes;
} fm_response;

/* Takes one header line, which need not end in 0. A status line begins a new response, as those
 * after a redirect do. */
void fm_response_line(fm_response *response, const char *line, size_t n_bytes);
/* Keeps the begin of an error's body. */
void fm_response_error_body(fm_response *response, const char *bytes, size_t n_bytes);
/* The store's error code, such as "AccessDenied", in that body: XML of S3 or JSON of GCS. "" if
 * there is none. Only letters, digits, '.', '_' and '-'. */
void fm_response_code(const fm_response *response, char *out, size_t out_bytes);

/* The bytes that were requested. */
typedef struct fm_response_wish {
    uint64_t offset_bytes;
    uint64_t range_bytes; /* 0: all from offset_bytes */
} fm_response_wish;

typedef enum fm_response_fit {
    FM_FIT_OK,         /* the body holds the bytes after *skip_bytes others */
    FM_FIT_ENDS_EARLY, /* the object ends before they do */
    FM_FIT_WRONG,      /* other bytes */
} fm_response_fit;

/* Whether the body of a response of status 200 or 206 has the bytes. *left_bytes: from the first of
 * them to the body's end; or FM_RESPONSE_UNKNOWN. */
fm_response_fit fm_response_fits(const fm_response *response, const fm_response_wish *wish,
                                 uint64_t *skip_bytes, uint64_t *left_bytes);

#endif
