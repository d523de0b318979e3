/*
 * Images in object stores and on web servers.
 *
 * A path that begins with s3://, gs://, http:// or https:// is read from there if fm_config.remote
 * is set; local files and remote objects may be mixed. s3:// names are requested from
 * https://BUCKET.s3.REGION.amazonaws.com, or from endpoint_url, and signed with AWS Signature
 * Version 4; gs:// names from https://storage.googleapis.com, signed alike with an HMAC key, or with
 * an OAuth token.
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

/* Strings are copied by fm_remote_open(). */
typedef struct fm_remote_config {
    size_t struct_bytes;      /* sizeof(fm_remote_config), set by fm_remote_config_init() */
    const char *endpoint_url; /* of s3:// names, such as "http://127.0.0.1:9000", with the bucket as
                                 first part of the path; default NULL: AWS */
    const char *region;       /* default "us-east-1" */
    const char *ca_bundle;    /* a file of certificates; default NULL: those of libcurl */
    uint32_t max_requests;    /* in flight; default 256 */
    uint32_t max_attempts;    /* of one object, the first included; default 10 */
    uint32_t connect_timeout_ms; /* default 10,000 */
    uint32_t stall_timeout_ms;   /* without a byte; a request is then tried again; default 20,000 */
    uint32_t give_up_ms; /* no attempt begins so long after the first one; default 120,000 */
} fm_remote_config;

/* Of the store. Strings are copied. NULL members: none; without a key requests are not signed. */
typedef struct fm_remote_credentials {
    const char *access_key, *secret_key, *session_token;
    const char *bearer_token; /* OAuth, for gs:// only; used in place of the keys */
} fm_remote_credentials;

void fm_remote_config_init(fm_remote_config *config);
/* Opens an object that any number of loaders share. FM_ERR_UNAVAILABLE if feedmill was built
 * without libcurl; FM_ERR_ARGUMENT names a bad setting. */
int fm_remote_open(fm_remote **out, const fm_remote_config *config, fm_error *error);
/* Replaces the credentials, also while loaders read: later requests are signed with them. NULL:
 * none. */
int fm_remote_set_credentials(fm_remote *remote, const fm_remote_credentials *credentials,
                              fm_error *error);
/* Closes the object; all loaders that use it must be closed before. Accepts NULL. */
void fm_remote_close(fm_remote *remote);

#ifdef __cplusplus
}
#endif

#endif
