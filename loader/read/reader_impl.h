/*
 * What the reader's core (reader.c) and its back ends share. Only files of this folder and tests
 * include it.
 *
 * A back end's threads call fm_reader_take() for the next file to read, read it into op->buffer,
 * asking fm_reader_advance() after each read, and end with fm_reader_finish(). Locks: there is one,
 * reader->lock; functions named _locked are called with it held.
 */
#ifndef FM_READ_READER_IMPL_H
#define FM_READ_READER_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "base/thread.h"
#include "read/arena.h"
#include "read/reader.h"
#include "read/shards.h"

/* Longest path with its 0, the kernel's PATH_MAX. */
#define FM_READER_PATH_BYTES 4096
/* One read asks for no more: the kernel stops at 2^31 - 4096 anyway. */
#define FM_READER_MOST_BYTES (1u << 30)
/* Refusals (EAGAIN) of one file that are tried again. */
#define FM_READER_MOST_AGAIN 100
/* Classes of file sizes: four to an octave, up to 2^40 bytes. */
#define FM_READER_SIZE_CLASSES 160

/*
 * A file being read. The path is a copy, and `read` is the only way to the caller's memory, so
 * that a file stuck in the kernel can be left behind at close.
 */
typedef struct fm_reader_op {
    fm_read *read;             /* under lock; NULL: handed back or disowned */
    struct fm_reader_op *next; /* under lock: the free ones; the back end's while it is taken */
    /* From fm_reader_take() to fm_reader_finish() the back end's alone. */
    uint8_t *buffer;
    uint64_t capacity; /* of the buffer, at most max_file_bytes + 1 */
    uint64_t n_bytes;  /* read so far */
    uint64_t expected_bytes;
    uint64_t offset_bytes, range_bytes; /* as of fm_read */
    fm_shard *shard;                    /* of a range: the open file, or NULL for one of its own */
    uint64_t started_ns;
    uint32_t index;   /* its place in reader->ops */
    uint32_t n_again; /* refusals so far */
    int error;
    bool opened;
    /* io_uring: the file lies in the ring's table; it is opened without O_NONBLOCK. */
    bool in_slot, plain;
    char path[FM_READER_PATH_BYTES];
} fm_reader_op;

/* In front of a buffer outside of the arena; as long as its alignment. */
typedef struct fm_reader_own {
    _Alignas(FM_MEM_ALIGN) struct fm_reader_own *next;
    struct fm_reader_own *previous;
    uint64_t bytes; /* of the buffer, without this and the pad */
} fm_reader_own;

/* Makes reads misbehave, for tests. */
typedef struct fm_reader_fault {
    uint64_t most_bytes; /* one read asks for no more; 0: no limit */
    /* Sees and may replace what a read returned: bytes or a negative errno. May be NULL. */
    int64_t (*result)(void *user, const char *path, int64_t result);
    void *user;
} fm_reader_fault;

typedef struct fm_reader_backend {
    const char *name;
    uint32_t default_depth, most_depth;
    /*
     * Starts the threads, each with a reference to the reader. May lower reader->n_ops, saying so
     * with fm_reader_note(). After a failure nothing is left.
     */
    int (*open)(fm_reader *reader, fm_error *error);
    /* Locked: a file can be started. True: notify() is wanted, after the lock is released. */
    bool (*wake_locked)(fm_reader *reader);
    void (*notify)(fm_reader *reader);
    /* Locked: reader->closing was set; all threads are to see it. */
    void (*stop_locked)(fm_reader *reader);
    /* Joins the threads that have ended or are about to, and detaches the stuck ones. */
    void (*leave)(fm_reader *reader);
    /* Frees reader->impl; no thread is left. */
    void (*destroy)(fm_reader *reader);
} fm_reader_backend;

struct fm_reader {
    /* Fixed after open. */
    fm_reader_config config;
    const fm_reader_backend *backend;
    fm_reader_fault fault;
    void *impl;
    fm_reader_op *ops;
    uint32_t n_ops;

    pthread_mutex_t lock;  /* guards what follows, and what back ends say it does */
    pthread_cond_t quiet;  /* a thread started, or nothing is in flight or open any more */
    uint32_t n_references; /* the owner's, and one for each thread */
    bool closing;
    /* Of the caller, whose memory it is; NULL once closing is set: threads that are left behind
     * allocate uncounted. */
    fm_mem_counter *counter;

    fm_read *queue, **queue_end; /* not started, in order */
    uint32_t n_queued;
    fm_reader_op *free_ops;
    uint32_t n_active;  /* ops taken */
    uint32_t n_calling; /* threads in on_done() */
    uint32_t n_closing; /* files that had stayed open and are being closed */
    bool abandoned;     /* close() waits no longer: threads start no more closes */

    fm_arena arena;
    uint8_t *next_buffer; /* already acquired for the head of the queue, or NULL */
    uint64_t next_capacity;
    int next_error; /* why it could not be acquired, or 0 */
    /* Since when the head of the queue has waited for nothing but a buffer, 0: it does not; and how
     * long heads did before. */
    uint64_t short_since_ns, short_ns;
    fm_reader_own *own; /* buffers outside the arena, and the bytes in them */
    uint64_t own_bytes;
    fm_shards shards;
    uint32_t size_counts[FM_READER_SIZE_CLASSES];
    uint32_t n_sizes;

    fm_reader_stats stats;
    uint64_t n_completions; /* reads that came back through the ring */
};

extern const fm_reader_backend fm_reader_pread_backend;
#if FM_HAVE_URING
extern const fm_reader_backend fm_reader_uring_backend;
#endif

/* fm_reader_open() with faults; `fault` may be NULL. */
int fm_reader_open_faulty(fm_reader **out, const fm_reader_config *config,
                          const fm_reader_fault *fault, fm_error *error);

/* Appends to stats.reason. Locked, or during open. */
void fm_reader_note(fm_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether a file can be started now: one is queued, an op is free, and there is a buffer. */
bool fm_reader_ready_locked(fm_reader *reader);
/* The next file, or NULL. Where op->error is set already there is nothing to read. */
fm_reader_op *fm_reader_take_locked(fm_reader *reader);
/* Bytes that the next read is to ask for. */
uint64_t fm_reader_ask(const fm_reader *reader, const fm_reader_op *op);
/*
 * A read returned n bytes, 0 at the end. True: read on at offset op->n_bytes. False: the file is
 * complete, or op->error is set.
 */
bool fm_reader_advance(fm_reader *reader, fm_reader_op *op, uint64_t n);
/* Ends a range's use of op->shard, if it has one. A file to be closed, not locked, or -1. */
int fm_reader_release_shard(fm_reader *reader, fm_reader_op *op);
/* Closes the shard that was used least recently; false: all are in use. Not locked. */
bool fm_reader_close_a_shard(fm_reader *reader);
/*
 * At the end, while reader->closing: a file that stayed open, which the calling thread is to close;
 * it then calls fm_reader_end_close_locked(). -1: there is none that nobody reads, or close() waits
 * no longer. close() may take a round trip to the storage, which may be gone: so it is a thread's,
 * and waited for as reads are.
 */
int fm_reader_begin_close_locked(fm_reader *reader);
void fm_reader_end_close_locked(fm_reader *reader);
/* What a read returned, as the fault injection wants it. */
int64_t fm_reader_result(const fm_reader *reader, const fm_reader_op *op, int64_t result);
/* Ends a file: calls on_done(), unless it was disowned. Not locked. */
void fm_reader_finish(fm_reader *reader, fm_reader_op *op);
/* Reads a file or range from start to end with blocking system calls (reader_pread.c). */
void fm_reader_read_file(fm_reader *reader, fm_reader_op *op);
/* Drops a reference; the last one frees the reader. */
void fm_reader_unref(fm_reader *reader);

#endif
