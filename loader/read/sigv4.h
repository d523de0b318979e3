/*
 * AWS Signature Version 4 in the Authorization header, as S3 wants it: the path is signed as it is
 * sent, without any normalization. For requests without a body. Any thread.
 */
#ifndef FM_READ_SIGV4_H
#define FM_READ_SIGV4_H

#include <stddef.h>

#include "base/digest.h"
#include "base/error.h"

/* Hash of an empty body, for the header x-amz-content-sha256. */
#define FM_SIGV4_NO_BODY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

typedef struct fm_sigv4_header {
    const char *name; /* in lower case */
    const char *value;
} fm_sigv4_header;

typedef struct fm_sigv4_request {
    const char *method;  /* "GET" or "HEAD" */
    const char *path;    /* percent-encoded, begins with "/" */
    const char *query;   /* percent-encoded, without the "?", at most 64 parameters; NULL: none */
    const char *date;    /* "20150830T123600Z" */
    const char *region;  /* "us-east-1" */
    const char *service; /* "s3" */
    const char *body_hash;
    /* Headers to sign, in any order, at most 32: at least host, and all x-amz-*. */
    const fm_sigv4_header *headers;
    size_t n_headers;
} fm_sigv4_request;

/* What a secret key becomes for one day, one region and one service: the caller keeps it between
 * requests, and overwrites it in the end. Zeroed at first. */
typedef struct fm_sigv4_key {
    char day[9]; /* "20150830"; "": there is none */
    uint8_t bytes[FM_DIGEST_BYTES];
} fm_sigv4_key;

/*
 * Makes the value of the Authorization header, which the caller frees by fm_mem_free(). FM_OK;
 * FM_ERR_ARGUMENT for a date of another form; FM_ERR_NOMEM; FM_ERR_UNAVAILABLE if libcrypto fails
 * or is missing. *out is NULL after an error. *key must be of that secret key, region and service;
 * it is renewed for another day.
 */
int fm_sigv4_sign(const fm_sigv4_request *request, const char *access_key, const char *secret_key,
                  fm_sigv4_key *key, char **out, fm_error *error);
/* The canonical request of the specification, whose hash is signed; to be freed by fm_mem_free().
 * NULL when out of memory. */
char *fm_sigv4_canonical(const fm_sigv4_request *request);

#endif
