/*
 * Images in object stores and on web servers.
 *
 * A path that begins with s3://, gs://, http:// or https:// is read from there if fm_config.remote
 * is set; local files and remote objects may be mixed. s3:// names are requested from
 * https://BUCKET.s3.REGION.amazonaws.com, or from endpoint_url, and signed with AWS Signature
 * Version 4; gs:// names from https://storage.googleapis.com, signed alike with an HMAC key, or
 * with an OAuth token.
 *
 * Threads: any thread may call these functions. Fork: a child opens an object of its own.
 */
#ifndef FEEDMILL_REMOTE_H
#define FEEDMILL_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_remote fm_remote;

/* Strings are copied by fm_remote_open(); empty ones are as NULL. */
typedef struct fm_remote_config {
    size_t struct_bytes;      /* sizeof(fm_remote_config), set by fm_remote_config_init() */
    const char *endpoint_url; /* of s3:// names, such as "http://127.0.0.1:9000", with the bucket as
                                 first part of the path; default NULL: AWS */
    const char *region;       /* default "us-east-1" */
    const char *ca_bundle;    /* a file of certificates; default NULL: those of libcurl */
    uint32_t max_requests;    /* in flight, for each loader; default 256 */
    uint32_t max_attempts;    /* of one object, the first included; default 10 */
    uint32_t connect_timeout_ms; /* default 10,000 */
    uint32_t stall_timeout_ms;   /* without 1 KiB of the body; then tried again; default 20,000 */
    uint32_t give_up_ms;    /* no attempt begins so long after the first one; default 120,000 */
    uint32_t hedge_percent; /* of the requests, which may be sent a second time if no answer has
                               begun after a time in which 99% of answers do; default 2, 0: none */
    const char *gs_endpoint_url; /* of gs:// names, for tests; default NULL: Google's */
} fm_remote_config;

/*
 * Secrets, each of which is used for its own store only; http:// and https:// names are requested
 * without. Strings are copied. NULL or empty members: none; without a key requests are not signed.
 */
typedef struct fm_remote_credentials {
    const char *access_key, *secret_key, *session_token; /* for s3:// */
    const char *bearer_token;                            /* OAuth, for gs:// */
    const char *gs_access_key, *gs_secret_key; /* HMAC, for gs:// without a bearer token */
} fm_remote_credentials;

FM_API void fm_remote_config_init(fm_remote_config *config);
/* Opens an object that any number of loaders share. FM_ERR_UNAVAILABLE if feedmill was built
 * without libcurl; FM_ERR_ARGUMENT names a bad setting. */
FM_API FM_CHECK_RESULT int fm_remote_open(fm_remote **out, const fm_remote_config *config,
                                          fm_error *error);
/* Replaces the credentials, also while loaders read: later requests are signed with them. NULL:
 * none. Any thread. FM_ERR_ARGUMENT: a key without its secret, or a character that no header may
 * have; FM_ERR_NOMEM; FM_ERR_FORKED. After an error the earlier ones stay. */
FM_API FM_CHECK_RESULT int fm_remote_set_credentials(fm_remote *remote,
                                                     const fm_remote_credentials *credentials,
                                                     fm_error *error);
/* Closes the object; all loaders that use it must be closed before, and all its fetches ended.
 * Sets *remote to NULL. Does nothing else in a forked child. Accepts NULL and a pointer to NULL. */
FM_API void fm_remote_close(fm_remote **remote);

/* Version of libcurl, such as "7.88.1"; "" if feedmill was built without it. */
FM_API const char *fm_libcurl_version(void);

/* One object that is being read, apart from a loader. Each fetch is used by one thread at a time.
 */
typedef struct fm_fetch fm_fetch;

/*
 * Begins to read an object, or range_bytes of it from offset_bytes on (0: all of it, at most
 * 256 MiB). etag: only the version with this ETag, as fm_sample.etag; NULL: any. The first call
 * starts a thread, which the remote keeps, with its connections. *out is ended by fm_fetch_end();
 * NULL after an error. FM_ERR_NOMEM, FM_ERR_THREAD, FM_ERR_FORKED, FM_ERR_ARGUMENT (the ETag is too
 * long).
 *
 * The name may also be "s3://BUCKET?list-type=2&..." or "gs://BUCKET?list-type=2&...", with the
 * percent-encoded parameters of S3's ListObjectsV2, under 4,096 bytes in all: then the response,
 * in XML, is read.
 */
FM_API FM_CHECK_RESULT int fm_fetch_start(fm_fetch **out, fm_remote *remote, const char *name,
                                          uint64_t offset_bytes, uint64_t range_bytes,
                                          const char *etag, fm_error *error);
/*
 * As fm_fetch_start(), for the first range of an object of which others will be read: takes the
 * version that the server has now, whatever earlier fetches have seen. Later ranges of another
 * version fail.
 */
FM_API FM_CHECK_RESULT int fm_fetch_start_first(fm_fetch **out, fm_remote *remote, const char *name,
                                                uint64_t offset_bytes, uint64_t range_bytes,
                                                fm_error *error);
/*
 * Waits at most timeout_ns. FM_OK: *bytes is the object, valid until fm_fetch_end(); NULL if it is
 * empty. FM_AGAIN: a timeout. FM_ERR_READ: the message says why it can't be read, without the name.
 */
FM_API FM_CHECK_RESULT int fm_fetch_wait(fm_fetch *fetch, int64_t timeout_ns, const uint8_t **bytes,
                                         size_t *n_bytes, fm_error *error);
/* Of a fetch by fm_fetch_start_first() that has ended with FM_OK: the object's strong ETag with its
 * quotes, or "", valid until fm_fetch_end(); and its size, UINT64_MAX if the server did not say. */
FM_API void fm_fetch_object(const fm_fetch *fetch, const char **etag, uint64_t *object_bytes);
/* Ends a fetch, also one that is not complete, and sets *fetch to NULL. Accepts NULL and a pointer
 * to NULL. */
FM_API void fm_fetch_end(fm_fetch **fetch);

#ifdef __cplusplus
}
#endif

#endif
