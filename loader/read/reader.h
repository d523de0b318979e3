/*
 * Reads files, whole or a range: one contract, two back ends (reader_uring.c, reader_pread.c).
 *
 * Requests are submitted from any thread, never block the submitter, start in order of submission
 * and finish in any order. Each accepted request ends in exactly one call of on_done(): from a
 * thread of the reader, or, for those that are cancelled, from the thread that calls
 * fm_reader_cancel_queued() or fm_reader_close(). The reader holds no lock in it; on_done() must
 * be short and may call fm_reader_submit() and fm_reader_return().
 *
 * Bytes lie in read buffers that the reader owns, within config.buffer_bytes; a finished request
 * keeps its buffer until fm_reader_return(). When buffers are short, later requests wait for
 * returned ones. A file that is larger than expected, or than all buffers, is read into a block of
 * its own, counted; as long as such blocks exceed buffer_bytes no new read starts. What has started
 * never waits for a buffer, and what waits does so only for buffers of older requests.
 *
 * A range is read whole or is an error, with one read where its bytes are there at once. Files of
 * which ranges are read stay open, the latest of them (shards.h).
 *
 * A whole file's end is where read() returns 0, or where the size remembered by the caller
 * (expected_bytes) says it is; a short read alone is no end. Only what can be read at an offset is
 * read: a FIFO or a terminal is refused (EINVAL) and does not block, except where a size was
 * remembered for a regular file that has become one since.
 */
#ifndef FM_READ_READER_H
#define FM_READ_READER_H

#include "base/error.h"
#include "base/mem.h"

/* As an error: the file ends before the range does. No errno is negative. */
#define FM_READ_ENDS_EARLY (-1)

typedef struct fm_read {
    /* Set by the caller, unchanged until on_done(). */
    const char *path;
    uint64_t expected_bytes; /* the file's size when last read; 0: not known, or a range */
    uint64_t offset_bytes;   /* of the range; below 2^62 */
    uint64_t range_bytes;    /* 0: the whole file */
    void *user;
    /* Set by the reader. */
    uint8_t *bytes; /* the file or range, 64-byte aligned; NULL on error or if it is empty */
    uint64_t n_bytes;
    /* 0, an errno, EFBIG for more than max_file_bytes, FM_READ_ENDS_EARLY, or ECANCELED, which file
     * systems may answer as well. */
    int error;
    uint64_t submitted_ns, started_ns, done_ns;
    uint64_t short_ns;    /* until it started, buffers were short for so long */
    struct fm_read *next; /* see fm_reader_submit(); the reader's until on_done() */
} fm_read;

typedef struct fm_reader_config {
    fm_reader_kind kind; /* as the caller asked; the environment has been considered already */
    uint32_t depth;      /* most files in flight; 0: 64 with io_uring, 32 threads with pread */
    uint64_t buffer_bytes;
    uint64_t max_file_bytes;
    void (*on_done)(void *user, fm_read *read);
    void *user;
    fm_mem_counter *counter;
} fm_reader_config;

typedef struct fm_reader_stats {
    uint64_t n_files, n_opens, n_bytes, n_errors;
    uint64_t read_ns; /* sum over files, start to done */
    uint32_t depth;   /* in effect, after the system's limits */
    uint32_t n_threads;
    const char *name; /* "uring" or "pread" */
    char reason[192]; /* why this one, and what had to be lowered */
} fm_reader_stats;

typedef struct fm_reader fm_reader;

/*
 * Probes and opens. AUTO takes io_uring if it can be had; URING fails without it
 * (FM_ERR_UNAVAILABLE, the message says what the kernel answered).
 */
int fm_reader_open(fm_reader **out, const fm_reader_config *config, fm_error *error);
/* Takes requests, linked through `next`, the last one's NULL; one by one would wake the reader for
 * each. From an on_done() during fm_reader_close() they end at once with ECANCELED. */
void fm_reader_submit(fm_reader *reader, fm_read *list);
/* Ends all requests that have not started with ECANCELED, in on_done() on the calling thread. */
void fm_reader_cancel_queued(fm_reader *reader);
/* Gives the buffer of a finished request back; sets bytes to NULL. Nothing if there is none. */
void fm_reader_return(fm_reader *reader, fm_read *read);
void fm_reader_stats_get(fm_reader *reader, fm_reader_stats *out);
/*
 * Ends the reader. Requests that have not started end with ECANCELED; reads in flight are waited
 * for, and files that stayed open to be closed, at most 50 ms. Then reads stuck in the kernel end
 * with ECANCELED too, and they and stuck closes are left behind with all buffers, to be cleaned up
 * when they return. No on_done() comes after it, and no fm_read
 * is touched. Buffers not returned become invalid. Not from on_done(). Accepts NULL and a pointer
 * to NULL.
 */
void fm_reader_close(fm_reader **reader);

/* FEEDMILL_READER as a kind, else `asked`; FM_ERR_ARGUMENT names an unknown value. */
int fm_reader_kind_from_env(fm_reader_kind asked, fm_reader_kind *out, fm_error *error);

#endif
