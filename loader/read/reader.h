/*
 * Reads files, or byte ranges of files, asynchronously. Four back ends serve the same contract:
 * io_uring (reader_uring.c), a pool of threads with pread() (reader_pread.c), for objects on
 * servers HTTP (reader_http.c), and for what the caller reads itself a pool of threads that call it
 * (reader_custom.c). What follows says "file" for all.
 *
 * Requests. Any thread may submit; submitting never blocks. Reads start in order of submission and
 * finish in any order. Each accepted request ends in exactly one call of on_done(), on a thread of
 * the reader, or, if it was cancelled, on the thread that called fm_reader_cancel_queued() or
 * fm_reader_close(). The reader holds no lock during on_done(), which must be short and may call
 * fm_reader_submit() and fm_reader_return().
 *
 * Buffers. The reader owns all read buffers, config.buffer_bytes in total. A finished request keeps
 * its buffer until fm_reader_return(). While buffers are short, later requests wait until buffers
 * are returned. A file that is larger than expected, or than all buffers, is read into a heap
 * buffer, which is counted; while the heap buffers exceed buffer_bytes, no new read starts. A read
 * that has started never waits for a buffer, and a read that waits only waits for the buffers of
 * older requests.
 *
 * Ranges. A range is read completely or is an error; it takes one system call where its bytes are
 * available at once. Files of which ranges are read stay open (file_cache.h).
 *
 * Whole files. A file ends where read() returns 0, or at the size that the caller expects
 * (expected_bytes); a short read alone is not the end. Files that can't be read at an offset, such
 * as FIFOs and terminals, are refused with EINVAL and do not block, unless expected_bytes was given
 * for a regular file that a FIFO has replaced since.
 */
#ifndef FM_READ_READER_H
#define FM_READ_READER_H

#include "base/error.h"
#include "base/mem.h"
#include "feedmill/disk_cache.h"
#include "feedmill/remote.h"
#include "read/stages.h"

/* fm_read.error: the file ends before the range does. No errno is negative. */
#define FM_READ_ENDS_EARLY (-1)
/* fm_read.error: an object that could not be read; fm_read.why says why. */
#define FM_READ_REMOTE (-2)

/* Longest ETag with its terminating 0 and quotes; longer ones are not remembered. */
#define FM_ETAG_BYTES 136

/* An object on a server, as a response describes it. */
typedef struct fm_read_object {
    char etag[FM_ETAG_BYTES]; /* a strong one, with its quotes; "": none */
    uint64_t object_bytes;    /* UINT64_MAX: not known */
} fm_read_object;

typedef struct fm_read {
    /* Set by the caller, which must keep them unchanged until on_done(). */
    const char *path;
    uint64_t expected_bytes; /* the file's size when it was last read; 0: unknown, or a range */
    uint64_t offset_bytes;   /* start of the range; below 2^62 */
    uint64_t range_bytes;    /* 0: the whole file */
    const char *etag; /* of an object: read only this version, see fm_sample; NULL or "": any */
    void *user;
    char *why; /* memory for the reason of FM_READ_REMOTE, in words; may be NULL */
    size_t why_bytes;
    /* Of a range of an object that is the first one: gets what the object is, and the version that
     * earlier ranges had is forgotten. NULL: another range, or a file. */
    fm_read_object *first;
    /* Set by the reader. */
    uint8_t *bytes; /* the file or range, 64-byte aligned; NULL on error or if it is empty */
    uint64_t n_bytes;
    /* 0, an errno, EFBIG for a file of more than max_file_bytes, FM_READ_ENDS_EARLY,
     * FM_READ_REMOTE, or ECANCELED, which a file system may also return. */
    int error;
    uint64_t submitted_ns, started_ns, done_ns;
    uint64_t buffer_wait_ns; /* part of the wait until started_ns in which buffers were short */
    fm_read_times times;     /* of an object: what it, and its wait, consisted of */
    struct fm_read *next;    /* see fm_reader_submit(); the reader uses it until on_done() */
} fm_read;

typedef struct fm_reader_config {
    fm_reader_kind kind; /* after fm_reader_kind_from_env() */
    uint32_t depth; /* maximum of reads in flight; 0: 64 with io_uring, 32 threads with pread */
    uint64_t buffer_bytes;
    uint64_t max_file_bytes;
    fm_remote *remote; /* all paths are names of objects, and `kind` has no effect; NULL: files */
    fm_disk_cache *disk_cache; /* of objects; NULL: none */
    fm_custom_reader custom;   /* likewise, all paths are for its read(), unless that is NULL */
    void (*on_done)(void *user, fm_read *read);
    void *user;
    fm_mem_counter *counter;
} fm_reader_config;

typedef struct fm_reader_stats {
    uint64_t n_files, n_opens, n_bytes, n_errors;
    uint64_t read_ns; /* sum over files, start to done */
    uint32_t depth;   /* actual maximum of reads in flight, after the system's limits */
    uint32_t n_threads;
    /* Of objects: all attempts, redirects included; those after a failure; those that were answered
     * with 429 or 503; second requests for what was not answered; reads that came with the request
     * of another one; bytes of bodies, whether of use or not. Then sums over attempts: until the
     * connection was ready, until the response began, until it ended; and the pauses. */
    uint64_t n_requests, n_retries, n_refused, n_hedged, n_shared, fetched_bytes;
    uint64_t connect_ns, first_byte_ns, transfer_ns, retry_ns;
    /* Of objects, with a disk cache: read from there, those that the server has confirmed included;
     * their bytes; and those that were fetched. */
    uint64_t n_disk_hits, disk_bytes, n_disk_misses;
    const char *name; /* "uring", "pread", "http" or "custom" */
    char reason[192]; /* why this back end was chosen, and which limits lowered the depth */
} fm_reader_stats;

typedef struct fm_reader fm_reader;

/*
 * Opens a reader. FM_READER_AUTO tries io_uring and falls back to pread; FM_READER_URING fails with
 * FM_ERR_UNAVAILABLE where io_uring does not work, and the message says what the kernel returned.
 */
int fm_reader_open(fm_reader **out, const fm_reader_config *config, fm_error *error);
/*
 * Submits a list of requests linked through `next`, NULL at the end. One call for many requests
 * wakes the reader once. Requests submitted by an on_done() during fm_reader_close() end at once
 * with ECANCELED.
 */
void fm_reader_submit(fm_reader *reader, fm_read *list);
/* Ends all requests that have not started with ECANCELED; on_done() runs on the calling thread.
 * Requests of objects that have started also end so, soon, on the reader's thread; those that a
 * custom reader has started at once, on the calling thread, while its calls go on. */
void fm_reader_cancel_queued(fm_reader *reader);
/* Returns the buffer of a finished request to the reader and sets read->bytes to NULL. Does nothing
 * if the request has no buffer. */
void fm_reader_return(fm_reader *reader, fm_read *read);
void fm_reader_stats_get(fm_reader *reader, fm_reader_stats *out);
/*
 * Closes the reader. Requests that have not started end with ECANCELED. Waits up to 50 ms for the
 * reads in flight and for cached files to be closed. Reads that are stuck in the kernel then end
 * with ECANCELED as well; the reader leaves them, stuck close() calls and all buffers behind, and
 * the last thread to return frees them. After fm_reader_close() no on_done() is called and no
 * fm_read is touched. Buffers that were not returned become invalid. Must not be called from
 * on_done(). Accepts NULL and a pointer to NULL.
 */
void fm_reader_close(fm_reader **reader);

/* Whether a path is a name for a custom reader, unless it is one of an object (remote.h): it begins
 * with a scheme. */
bool fm_custom_is_name(const char *path);

/* Sets *out to the kind that the environment variable FEEDMILL_READER names, or to `asked` if it is
 * not set. FM_ERR_ARGUMENT names an unknown value. */
int fm_reader_kind_from_env(fm_reader_kind asked, fm_reader_kind *out, fm_error *error);

#endif
