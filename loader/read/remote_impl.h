/* What remote.c, remote_request.c and fetch.c share. */
#ifndef FM_READ_REMOTE_IMPL_H
#define FM_READ_REMOTE_IMPL_H

#include <sys/types.h>

#include "base/thread.h"
#include "read/reader.h"
#include "read/remote.h"
#include "read/sigv4.h"

/* Where a store's objects are requested. */
typedef struct fm_remote_endpoint {
    char
        *origin; /* "https://host:port", without the scheme's own port; NULL: the store's default */
    char *host;  /* "host:port" */
    char *prefix; /* path before the bucket, percent-encoded: "" or "/a/b" */
} fm_remote_endpoint;

/* The strings are owned; NULL: none. */
typedef struct fm_remote_keys {
    char *access_key, *secret_key, *session_token, *bearer_token, *gs_access_key, *gs_secret_key;
    fm_sigv4_key signing, gs_signing; /* of secret_key and gs_secret_key */
} fm_remote_keys;

struct fm_remote {
    /* Constant after open. */
    fm_remote_config config;
    char *endpoint_url, *gs_endpoint_url, *region, *ca_bundle; /* config points to these */
    fm_remote_endpoint s3, gs;
    pthread_mutex_t lock; /* guards `keys` */
    fm_remote_keys keys;
    pid_t pid;                  /* constant after open */
    pthread_mutex_t fetch_lock; /* guards `fetcher` */
    fm_reader *fetcher;         /* of fm_fetch_start(); opened by its first call */
    /* Closes the fetcher; NULL: there is none. A pointer, as readers need this file's functions. */
    void (*close_fetcher)(fm_reader **fetcher);
};

/* Copies the credentials. FM_OK or FM_ERR_NOMEM, with *out empty. */
int fm_remote_keys_get(fm_remote *remote, fm_remote_keys *out, fm_error *error);
/* Keeps the signing keys of a copy, unless the credentials have been replaced since. */
void fm_remote_keys_keep(fm_remote *remote, const fm_remote_keys *keys);
/* Overwrites and frees the strings. */
void fm_remote_keys_fini(fm_remote_keys *keys);

#endif
