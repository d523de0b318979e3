/*
 * What the files of the reader share. Only this folder and tests include it.
 *
 *     reader.c          open, submit, return, close
 *     reader_common.c   the text of the reason, and the reference count
 *     reader_buffers.c  read buffers and the guess of a file's size
 *     reader_op.c       the life of one read, from the queue to on_done()
 *     reader_pool.c     threads for reads that block
 *     reader_pread.c, reader_uring.c, reader_http.c, reader_custom.c   the back ends
 *     lookups.c         what reader_http.c finds in the disk cache
 *
 * A back end's thread calls fm_reader_dequeue_locked() for the next read, reads into op->buffer,
 * calls fm_reader_advance() after each system call, and ends with fm_reader_finish(). There is one
 * lock, reader->lock; functions named _locked must be called with it held, the others without it.
 */
#ifndef FM_READ_READER_IMPL_H
#define FM_READ_READER_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "base/digest.h"
#include "base/histogram.h"
#include "base/thread.h"
#include "read/arena.h"
#include "read/file_cache.h"
#include "read/reader.h"
#include "read/response.h"

/* Longest path with its terminating 0: the kernel's PATH_MAX. */
#define FM_READER_PATH_BYTES 4096
/* Most bytes that one system call requests. The kernel's own limit is 2^31 - 4096. */
#define FM_READER_MAX_READ_BYTES (1u << 30)
/* How often EAGAIN is retried for one file. */
#define FM_READER_MAX_RETRIES 100

/*
 * A read in flight. It holds a copy of the path, and `read` is its only pointer to the caller's
 * memory, so that close() can leave a read that is stuck in the kernel behind.
 */
typedef struct fm_reader_op {
    fm_read *read;             /* under lock; NULL after on_done() or when abandoned by close() */
    struct fm_reader_op *next; /* free list, under lock; the back end's while in use */
    bool cancelled;            /* under lock: fm_reader_cancel_queued() wants it to end */
    /* Only the back end uses these, from fm_reader_dequeue_locked() to fm_reader_finish(). */
    uint8_t *buffer;
    uint64_t capacity; /* of the buffer */
    uint64_t n_bytes;  /* read so far */
    uint64_t expected_bytes;
    uint64_t offset_bytes, range_bytes; /* copies from *read */
    fm_cached_file *cached; /* of a range: its open file, or NULL if it opens one itself */
    uint64_t started_ns;
    fm_read_stages earlier, last; /* see fm_read_times */
    uint32_t index;               /* in reader->ops */
    uint32_t n_retries;           /* after EAGAIN or EINTR */
    int error;
    const char *why; /* goes with FM_READ_REMOTE; the back end's memory */
    bool is_first;   /* of an object: see fm_read.first */
    bool opened;
    /* io_uring: the file is in the ring's file table; it must be opened without O_NONBLOCK. */
    bool in_slot, open_blocking;
    char path[FM_READER_PATH_BYTES];
    char etag[FM_ETAG_BYTES]; /* a copy of read->etag if it is strong; "": any version */
    /* Of an object, with a disk cache (lookups.h). */
    bool has_key;   /* disk_key is set: what is fetched is stored */
    bool replaces;  /* the entry that is there is of another version */
    bool is_kept;   /* the buffer has an entry of the cache; the server is asked if it is current */
    bool from_disk; /* the result is an entry */
    uint64_t kept_bytes, object_bytes; /* of the entry and of its object, which may be not known */
    uint8_t disk_key[FM_DIGEST_BYTES];
    char kept_etag[FM_ETAG_BYTES]; /* the entry's */
} fm_reader_op;

/* Header before a buffer outside the arena; its size keeps the buffer aligned. */
typedef struct fm_heap_buffer {
    _Alignas(FM_MEM_ALIGN) struct fm_heap_buffer *next;
    struct fm_heap_buffer *previous;
    uint64_t bytes; /* of the buffer, without this header */
} fm_heap_buffer;

/* How long the reader has waited for something. */
typedef struct fm_reader_waits {
    uint64_t since_ns; /* when the present wait began; 0: there is none */
    uint64_t ended_ns; /* sum of the earlier ones */
} fm_reader_waits;

/* Fault injection, for tests. */
typedef struct fm_reader_fault {
    uint64_t max_read_bytes; /* limit of one read; 0: none */
    /* May replace the result of a read: a number of bytes or a negative errno. May be NULL. */
    int64_t (*result)(void *user, const char *path, int64_t result);
    void *user;
} fm_reader_fault;

typedef struct fm_reader_backend {
    const char *name;
    uint32_t default_depth, max_depth;
    /*
     * Starts the threads, each of which holds a reference to the reader. May lower reader->n_ops
     * and must then call fm_reader_note(). Leaves nothing behind after a failure.
     */
    int (*open)(fm_reader *reader, fm_error *error);
    /* A read can start. True: the caller must call notify() after it has released the lock. */
    bool (*wake_locked)(fm_reader *reader);
    void (*notify)(fm_reader *reader);
    /* All reads in flight are to end soon with ECANCELED, where that is possible. Marks those that
     * the back end ends, for which the caller must call notify() after it has released the lock.
     * Returns a list of those that the caller must end: their ops have let go of them. NULL: it is
     * not possible. */
    fm_read *(*cancel_locked)(fm_reader *reader);
    /* reader->closing was set: wakes all threads. */
    void (*stop_locked)(fm_reader *reader);
    /* Joins the threads that end, and detaches those that are stuck. */
    void (*leave)(fm_reader *reader);
    /* Frees reader->impl. No thread runs any more. */
    void (*destroy)(fm_reader *reader);
} fm_reader_backend;

struct fm_reader {
    /* Constant after open. */
    fm_reader_config config;
    const fm_reader_backend *backend;
    fm_reader_fault fault;
    void *impl;
    struct fm_reader_pool *pool; /* NULL: the back end has none */
    fm_reader_op *ops;
    uint32_t n_ops;

    pthread_mutex_t lock;  /* guards all that follows, and members of back ends as noted there */
    pthread_cond_t quiet;  /* a thread has started, or nothing is in flight or open any more */
    uint32_t n_references; /* the owner's, and one for each thread */
    bool closing;
    /* The caller's counter. NULL once `closing` is set: threads that close() leaves behind must not
     * touch the caller's memory. */
    fm_mem_counter *counter;

    fm_read *queue, **queue_end; /* reads that have not started, in order */
    uint32_t n_queued;
    fm_reader_op *free_ops;
    uint32_t n_active;    /* ops in use */
    uint32_t n_callbacks; /* threads in on_done() */
    uint32_t n_closing;   /* cached files that are being closed */
    bool abandoned;       /* close() no longer waits: threads must not begin another close(2) */

    fm_arena arena;
    uint8_t *next_buffer; /* reserved for the head of the queue, or NULL */
    uint64_t next_capacity;
    int next_error; /* errno: why no buffer could be reserved; or 0 */
    /* The head of the queue waits only for a buffer; or only as the server wants fewer requests. */
    fm_reader_waits buffer_waits, held_waits;
    fm_read_stages ended;         /* sums over all reads that have ended */
    fm_heap_buffer *heap_buffers; /* buffers outside the arena, and their bytes */
    uint64_t heap_bytes;
    fm_file_cache file_cache;
    fm_histogram sizes; /* of files, from which those that are not known are guessed */

    fm_reader_stats stats;
    uint64_t n_completions; /* of reads, by io_uring */
};

extern const fm_reader_backend fm_reader_pread_backend, fm_reader_custom_backend;
#if FM_HAVE_URING
extern const fm_reader_backend fm_reader_uring_backend;
#endif
extern const fm_reader_backend fm_reader_http_backend; /* where there is libcurl */

/* fm_reader_open() with fault injection; `fault` may be NULL. */
int fm_reader_open_faulty(fm_reader **out, const fm_reader_config *config,
                          const fm_reader_fault *fault, fm_error *error);

/* ---- open and close (reader.c) --------------------------------------------------------------- */

/* Appends to stats.reason. Called with the lock held, or during open. */
void fm_reader_note(fm_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- buffers (reader_buffers.c) -------------------------------------------------------------- */

/* Adds the size of a file to the histogram from which unknown sizes are guessed. */
void fm_reader_record_size_locked(fm_reader *reader, uint64_t bytes);
/*
 * Reserves a buffer for the head of the queue in next_buffer, or sets next_error. False: the head
 * must wait until a buffer is returned. That always ends, as all buffers in use belong to older
 * requests.
 */
bool fm_reader_reserve_locked(fm_reader *reader);
/* Frees a buffer of the arena or the heap. Accepts NULL. */
void fm_reader_free_buffer_locked(fm_reader *reader, uint8_t *buffer);
/* Enlarges op->buffer to twice its size, or to least_bytes if that is more; on the heap if the
 * arena is full: a read that has started never waits. Never to more than max_file_bytes + 1. False
 * without memory, or if close() has abandoned the read. */
bool fm_reader_grow_buffer(fm_reader *reader, fm_reader_op *op, uint64_t least_bytes);
/* Frees all buffers. No thread runs any more. */
void fm_reader_buffers_fini(fm_reader *reader);

/* ---- one read (reader_op.c) ------------------------------------------------------------------ */

/* Whether a read can start now: one is queued, an op is free, and there is a buffer. */
bool fm_reader_ready_locked(fm_reader *reader);
/* The next read, or NULL. If op->error is set, there is nothing to read. */
fm_reader_op *fm_reader_dequeue_locked(fm_reader *reader);
/* How many bytes the next system call must request. */
uint64_t fm_reader_request_bytes(const fm_reader *reader, const fm_reader_op *op);
/*
 * Counts n bytes that a system call has read, 0 at the end of the file. True: read on at offset
 * op->n_bytes. False: the read is complete, or op->error is set.
 */
bool fm_reader_advance(fm_reader *reader, fm_reader_op *op, uint64_t n);
/* Releases op->cached, if any. Returns a file that the caller must close, or -1. */
int fm_reader_release_file(fm_reader *reader, fm_reader_op *op);
/* Closes the least recently used file of the cache; false: all are in use. */
bool fm_reader_evict_file(fm_reader *reader);
/*
 * While reader->closing: returns a cached file that the calling thread must close, after which it
 * calls fm_reader_end_close_locked(). -1: no unused file is left, or close() no longer waits.
 * close(2) may block on storage that does not answer, so the reader's threads call it, and
 * fm_reader_close() waits for them as for reads.
 */
int fm_reader_begin_close_locked(fm_reader *reader);
void fm_reader_end_close_locked(fm_reader *reader);
/* The result of a read after fault injection. */
int64_t fm_reader_result(const fm_reader *reader, const fm_reader_op *op, int64_t result);
/* Ends a read: calls on_done(), unless close() has abandoned it. */
void fm_reader_finish(fm_reader *reader, fm_reader_op *op);
/* Reads a whole file or range with blocking system calls (reader_pread.c). */
void fm_reader_read_file(fm_reader *reader, fm_reader_op *op);
/* Signals `quiet` if the reader is closing and nothing is in flight or open any more. */
void fm_reader_signal_if_quiet_locked(fm_reader *reader);
bool fm_reader_is_quiet_locked(const fm_reader *reader);
/* A wait begins or ends; or goes on. */
void fm_reader_wait_locked(fm_reader_waits *waits, bool is_waiting);
/* How long all waits took, up to now_ns. */
uint64_t fm_reader_waits_ns_locked(const fm_reader_waits *waits, uint64_t now_ns);

/* Drops a reference; the last one frees the reader. */
void fm_reader_unref(fm_reader *reader);

/* ---- threads for reads that block (reader_pool.c) -------------------------------------------- */

typedef struct fm_reader_pool_config {
    uint32_t n_threads; /* at most; there may be fewer, which is noted */
    size_t stack_bytes;
    /* Makes a read whose op->error is not set; not locked. True: it has ended. False: it was handed
     * to another thread, and must not be touched any more. */
    bool (*read)(fm_reader *reader, fm_reader_op *op);
} fm_reader_pool_config;

/* Opens reader->pool. A back end's own functions of fm_reader_backend call those that follow. */
int fm_reader_pool_open(fm_reader *reader, const fm_reader_pool_config *config, fm_error *error);
uint32_t fm_reader_pool_n_threads(const fm_reader *reader);
bool fm_reader_pool_wake_locked(fm_reader *reader);
/* A read has ended that was handed to another thread: another one may start. Does nothing if there
 * is no pool. Not locked. */
void fm_reader_pool_wake(fm_reader *reader);
void fm_reader_pool_notify(fm_reader *reader);
void fm_reader_pool_stop_locked(fm_reader *reader);
void fm_reader_pool_leave(fm_reader *reader);
/* Does nothing if there is no pool. */
void fm_reader_pool_destroy(fm_reader *reader);

#endif
