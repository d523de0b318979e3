#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "read/remote_impl.h"
#include "read/response.h"

#define BUFFER_BYTES ((uint64_t)4 << 20)
#define MAX_BYTES ((uint64_t)256 << 20)
#define WHY_BYTES 512

struct fm_fetch {
    fm_read read;
    fm_read_object object; /* of fm_fetch_start_first() */
    fm_reader *reader;
    char *name;
    char etag[FM_ETAG_BYTES];
    uint8_t *bytes; /* a copy: the reader's few buffers must be free for other fetches */
    char why[WHY_BYTES];
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t cond;
    bool is_done;
    bool is_abandoned; /* on_done() frees it */
};

static void free_fetch(fm_fetch *fetch) {
    fm_mem_free(fetch->bytes);
    pthread_cond_destroy(&fetch->cond);
    pthread_mutex_destroy(&fetch->lock);
    fm_mem_free(fetch->name);
    fm_mem_free(fetch);
}

static void on_done(void *user, fm_read *read) {
    (void)user;
    fm_fetch *const fetch = read->user;
    if (read->bytes) {
        fetch->bytes = fm_mem_alloc(NULL, read->n_bytes, 1);
        if (fetch->bytes)
            memcpy(fetch->bytes, read->bytes, read->n_bytes);
        else
            read->error = ENOMEM;
        fm_reader_return(fetch->reader, read);
    }
    pthread_mutex_lock(&fetch->lock);
    fetch->is_done = true;
    const bool is_abandoned = fetch->is_abandoned;
    pthread_cond_signal(&fetch->cond);
    pthread_mutex_unlock(&fetch->lock);
    if (is_abandoned) free_fetch(fetch);
}

/* The remote's reader, opened if there is none; NULL: *error is set. */
static fm_reader *fetcher_of(fm_remote *remote, fm_error *error) {
    const fm_reader_config config = {.kind = FM_READER_AUTO,
                                     .remote = remote,
                                     .depth = remote->config.max_requests,
                                     .buffer_bytes = BUFFER_BYTES,
                                     .max_file_bytes = MAX_BYTES,
                                     .on_done = on_done};
    pthread_mutex_lock(&remote->fetch_lock);
    const bool is_open = remote->fetcher || !fm_reader_open(&remote->fetcher, &config, error);
    fm_reader *const reader = is_open ? remote->fetcher : NULL;
    if (is_open) remote->close_fetcher = fm_reader_close;
    pthread_mutex_unlock(&remote->fetch_lock);
    return reader;
}

static fm_fetch *new_fetch(fm_reader *reader, const char *name) {
    fm_fetch *const fetch = fm_mem_zalloc(NULL, 1, sizeof(*fetch));
    if (!fetch) return NULL;
    fetch->reader = reader;
    fetch->name = fm_mem_strdup(NULL, name);
    const bool has_lock = fetch->name && !pthread_mutex_init(&fetch->lock, NULL);
    if (has_lock && fm_cond_init(&fetch->cond) == FM_OK) return fetch;
    if (has_lock) pthread_mutex_destroy(&fetch->lock);
    fm_mem_free(fetch->name);
    fm_mem_free(fetch);
    return NULL;
}

static int start(fm_fetch **out, fm_remote *remote, const char *name, uint64_t offset_bytes,
                 uint64_t range_bytes, const char *etag, bool is_first, fm_error *error) {
    *out = NULL;
    const int status = fm_remote_check_process(remote, error);
    if (status) return status;
    if (etag && strnlen(etag, FM_ETAG_BYTES) == FM_ETAG_BYTES)
        return fm_error_set(error, FM_ERR_ARGUMENT, "the ETag has %d characters or more",
                            FM_ETAG_BYTES);
    fm_error ignored;
    fm_error *const said = error ? error : &ignored;
    fm_reader *const reader = fetcher_of(remote, said);
    if (!reader) return said->status;
    fm_fetch *const fetch = new_fetch(reader, name);
    if (!fetch) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for a fetch");
    snprintf(fetch->etag, sizeof(fetch->etag), "%s", etag ? etag : "");
    fetch->read = (fm_read){.path = fetch->name,
                            .etag = fetch->etag,
                            .offset_bytes = offset_bytes,
                            .range_bytes = range_bytes,
                            .first = is_first ? &fetch->object : NULL,
                            .user = fetch,
                            .why = fetch->why,
                            .why_bytes = sizeof(fetch->why)};
    fm_reader_submit(reader, &fetch->read);
    *out = fetch;
    return FM_OK;
}

int fm_fetch_start(fm_fetch **out, fm_remote *remote, const char *name, uint64_t offset_bytes,
                   uint64_t range_bytes, const char *etag, fm_error *error) {
    return start(out, remote, name, offset_bytes, range_bytes, etag, false, error);
}

int fm_fetch_start_first(fm_fetch **out, fm_remote *remote, const char *name, uint64_t offset_bytes,
                         uint64_t range_bytes, fm_error *error) {
    return start(out, remote, name, offset_bytes, range_bytes, NULL, true, error);
}

void fm_fetch_object(const fm_fetch *fetch, const char **etag, uint64_t *object_bytes) {
    *etag = fetch->object.etag;
    *object_bytes = fetch->object.object_bytes;
}

static int say_why(const fm_fetch *fetch, fm_error *error) {
    switch (fetch->read.error) {
    case FM_READ_REMOTE:
        return fm_error_set(error, FM_ERR_READ, "%s", fetch->why);
    case FM_READ_ENDS_EARLY:
        return fm_error_set(error, FM_ERR_READ, "the object ends before the range does");
    case EFBIG:
        return fm_error_set(error, FM_ERR_READ, "the object is larger than 256 MiB");
    default:
        return fm_error_set_errno(error, FM_ERR_READ, fetch->read.error, "it can't be read");
    }
}

int fm_fetch_wait(fm_fetch *fetch, int64_t timeout_ns, const uint8_t **bytes, size_t *n_bytes,
                  fm_error *error) {
    const uint64_t deadline_ns = fm_clock_ns() + (timeout_ns > 0 ? (uint64_t)timeout_ns : 0);
    *bytes = NULL;
    *n_bytes = 0;
    pthread_mutex_lock(&fetch->lock);
    bool timed_out = false;
    while (!fetch->is_done && !timed_out) {
        if (timeout_ns < 0)
            pthread_cond_wait(&fetch->cond, &fetch->lock);
        else
            timed_out = fm_cond_wait_until(&fetch->cond, &fetch->lock, deadline_ns);
    }
    const bool is_done = fetch->is_done;
    pthread_mutex_unlock(&fetch->lock);
    if (!is_done) return FM_AGAIN;
    if (fetch->read.error) return say_why(fetch, error);
    *bytes = fetch->bytes;
    *n_bytes = (size_t)fetch->read.n_bytes;
    return FM_OK;
}

void fm_fetch_end(fm_fetch **handle) {
    if (!handle || !*handle) return;
    fm_fetch *const fetch = *handle;
    *handle = NULL;
    pthread_mutex_lock(&fetch->lock);
    fetch->is_abandoned = true;
    const bool is_done = fetch->is_done;
    pthread_mutex_unlock(&fetch->lock);
    if (is_done) free_fetch(fetch);
}
