/*
 * One io_uring, as the reader needs it: setting it up, queueing operations, submitting, reaping.
 * uring.c is the only file that includes liburing.h.
 *
 * One thread owns a ring: the thread that calls fm_uring_open() makes all other calls, too. The
 * ring has a table of reader->n_ops file slots, one for each read in flight.
 *
 * The fm_uring_queue_*() functions put an entry into the submission queue, and submit when the
 * queue is full. `data` comes back in the entry's completion. Buffers and paths must stay until
 * then; the kernel copies paths when it takes the entry.
 */
#ifndef FM_READ_URING_H
#define FM_READ_URING_H

#include "read/reader_impl.h"

typedef struct fm_uring fm_uring;

#define FM_URING_REAP_BATCH 64

typedef struct fm_uring_completion {
    uint64_t data;
    int result; /* as of the system call; a failure is a negative errno */
} fm_uring_completion;

/*
 * Creates a ring and checks that the kernel has all operations, and that reading a file through
 * the ring works. Where limits of the system require it, lowers reader->n_ops and calls
 * fm_reader_note(). FM_ERR_NOMEM, or FM_ERR_UNAVAILABLE with what the kernel returned.
 */
int fm_uring_open(fm_uring **out, fm_reader *reader, fm_error *error);
/* Accepts NULL and a pointer to NULL. */
void fm_uring_close(fm_uring **ring);

/* Makes sure that n entries fit into the queue, so that a chain of n links is not split. */
void fm_uring_reserve(fm_uring *ring, unsigned n);
/*
 * Opens a file into a slot, on a helper thread of the kernel. A chain: the operations queued next,
 * up to the first one that does not link, run one after the other. There is no completion unless
 * the open fails; then the rest of the chain is dropped without completions.
 */
void fm_uring_queue_open_in_slot(fm_uring *ring, const char *path, uint32_t slot, int flags,
                                 uint64_t data);
/* The next link of such a chain: fails with ESPIPE for a FIFO, and changes nothing. */
void fm_uring_queue_refuse_fifo(fm_uring *ring, uint32_t slot, uint64_t data);
/* Frees a slot, when it is submitted. No completion. */
void fm_uring_queue_close_slot(fm_uring *ring, uint32_t slot);
/* Opens a file to an ordinary descriptor, on a helper thread of the kernel. */
void fm_uring_queue_open(fm_uring *ring, const char *path, int flags, uint64_t data);
/* Closes an ordinary descriptor. */
void fm_uring_queue_close(fm_uring *ring, int file, uint64_t data);

enum { FM_URING_SLOT = 1, FM_URING_ON_HELPER = 2 };
/* Reads up to n_bytes at `offset`. `file` is a descriptor, or a slot with FM_URING_SLOT; with
 * FM_URING_ON_HELPER a helper thread of the kernel reads. */
void fm_uring_queue_read(fm_uring *ring, int file, unsigned flags, void *buffer, unsigned n_bytes,
                         uint64_t offset, uint64_t data);
/* Cancels all operations in flight: those waiting for a helper end at once, as do interruptible
 * sleeps. */
void fm_uring_queue_cancel_all(fm_uring *ring, uint64_t data);

/* Submits the queue and waits for at least one completion. Returns early after a signal, or for
 * 1 ms when the kernel is short of memory. */
void fm_uring_submit_and_wait(fm_uring *ring);
/* Moves up to n completions, at most FM_URING_REAP_BATCH, to `out` without waiting, and returns
 * their number. */
unsigned fm_uring_reap(fm_uring *ring, fm_uring_completion *out, unsigned n);

#endif
