/*
 * The ring of batch buffers, and the life of one buffer.
 *
 * A buffer holds the images of one batch and, behind them, its labels. It is always in one state,
 * which says who may touch its memory:
 *
 *     FREE -> FILLING -> READY -> BORROWED -> FREE    handed to the caller, who releases it
 *                             \-> COPYING  -> FREE    copied to a device
 *                             \-> FREE                copied out or handed over, or dropped
 *     FREE -> FILLING -> FREE                         dropped
 *
 * Each arrow is one function below, which asserts the state that it starts from. So a READY
 * buffer always has memory.
 *
 * The ring's lock is the lock of the whole pipeline: buffers, batches and samples change state
 * together, and one lock that is held for a microsecond a few times per sample costs less than two
 * that must be kept in order. "Locked" at a function means that the caller holds it.
 *
 * The ring is on the heap and counts references: one for its owner, and one for each borrowed
 * buffer. So its memory outlives the loader until the last borrowed buffer is released.
 */
#ifndef FM_RING_RING_H
#define FM_RING_RING_H

#include <pthread.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/mem.h"

/* A caller that trains on one batch while it fetches the next one holds two. */
#define FM_RING_MAX_BORROWED 2
#define FM_RING_MIN_BUFFERS 3

typedef enum fm_buffer_state {
    FM_BUFFER_FREE,    /* not in use */
    FM_BUFFER_FILLING, /* owned by a pending batch: decode threads write its samples */
    FM_BUFFER_READY,   /* owned by a pending batch: every sample is finished or rejected. The
                          caller's thread may write rejected ones */
    FM_BUFFER_COPYING, /* owned by a copy slot: the device reads it */
    FM_BUFFER_BORROWED /* owned by the caller, until it is released */
} fm_buffer_state;

typedef struct fm_ring fm_ring;

typedef struct fm_buffer {
    fm_ring *ring; /* fixed; NULL: a copy outside of the ring, see fm_buffer_clone() */
    uint32_t number;
    fm_buffer_state state; /* locked */
    void *memory;          /* changes only in fm_buffer_hand_over() */
    void *handle;          /* of the allocator, for this memory */
    uint64_t free_ns;      /* locked: when it last became free; 0: never used */
} fm_buffer;

struct fm_ring {
    pthread_mutex_t mutex;
    /* What each condition wakes, and when. */
    pthread_cond_t work;  /* decode threads: a sample can be dequeued, or they must stop */
    pthread_cond_t ready; /* the caller: the oldest batch is ready */
    pthread_cond_t idle;  /* fm_loader_stop(): no read and no decode thread is active */
    fm_allocator allocator;
    size_t buffer_bytes; /* of images and labels together */
    size_t label_offset;
    pid_t pid; /* the process that opened the ring; only it may use it */
    uint32_t n_buffers;
    uint32_t n_borrowed;     /* locked */
    uint32_t n_refs;         /* locked */
    bool wanted;             /* locked: a batch waits for a buffer */
    fm_mem_counter *counter; /* NULL once the owner is gone */
    fm_buffer buffers[];
};

/* Images of image_bytes and labels of label_bytes per buffer; all buffers are allocated here.
 * FM_ERR_NOMEM. */
int fm_ring_open(fm_ring **out, uint32_t n_buffers, size_t image_bytes, size_t label_bytes,
                 const fm_allocator *allocator, fm_mem_counter *counter, fm_error *error);

/* Bytes of one buffer with images of image_bytes and labels of label_bytes. */
size_t fm_ring_buffer_bytes(size_t image_bytes, size_t label_bytes);

void fm_ring_lock(fm_ring *ring);
void fm_ring_unlock(fm_ring *ring);
/* Called with the lock held; drops it while waiting for a condition. The second returns whether the
 * clock has reached deadline_ns. */
void fm_ring_wait(fm_ring *ring, pthread_cond_t *condition);
bool fm_ring_wait_until(fm_ring *ring, pthread_cond_t *condition, uint64_t deadline_ns);

/* Locked. FREE -> FILLING. Returns NULL and sets `wanted` if no buffer is free. */
fm_buffer *fm_ring_acquire(fm_ring *ring);
/* Locked. FILLING -> READY. */
void fm_buffer_set_ready(fm_buffer *buffer);
/* Locked. READY -> COPYING. */
void fm_buffer_begin_copy(fm_buffer *buffer);
/* Locked. Whether the caller may borrow another buffer: below the limit, and one stays to fill. */
bool fm_ring_may_lend(const fm_ring *ring);
/* Locked. READY -> BORROWED. */
void fm_buffer_lend(fm_buffer *buffer);
/* Locked. FILLING, READY or COPYING -> FREE. */
void fm_buffer_recycle(fm_buffer *buffer);
/* Not locked; any thread, also after the ring was closed. BORROWED -> FREE. Does nothing in a
 * forked child, for NULL, and for a buffer that is not borrowed. Frees a clone. */
void fm_buffer_release(fm_buffer *buffer);

/* Not locked. Returns a BORROWED copy of a READY buffer, in separate heap memory. NULL when out of
 * memory. */
fm_buffer *fm_buffer_clone(const fm_buffer *buffer, size_t image_bytes);

/*
 * Not locked; called on the caller's thread. Passes ownership of a READY buffer's memory and handle
 * to the caller, and replaces them by new memory from the allocator. On FM_ERR_NOMEM the buffer is
 * unchanged.
 */
int fm_buffer_hand_over(fm_buffer *buffer, void **memory, void **handle);

/* The labels in a buffer's memory. */
int64_t *fm_buffer_labels(const fm_ring *ring, void *memory);

/* Drops the owner's reference. Accepts NULL. */
void fm_ring_close(fm_ring *ring);

#endif
