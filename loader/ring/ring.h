/*
 * The ring of batch slots, and loans of them.
 *
 * A slot is free, filling (it belongs to a batch on its way, or to the consumer who is about to
 * hand it over) or lent. Its memory holds the images and, behind them, the labels.
 *
 * The ring's lock is the lock of the whole pipeline: slots, batches and samples change state
 * together, and one lock held for a microsecond a few times per sample costs less than keeping two
 * in order. "Locked" at a function says that the caller holds it.
 *
 * The ring lives on the heap and counts references: its owner's, and one per lent slot. So memory
 * outlives the loader until the last loan comes back.
 */
#ifndef FM_RING_RING_H
#define FM_RING_RING_H

#include <pthread.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/mem.h"

/* A consumer who is training on one batch while he fetches the next holds two. */
#define FM_RING_MAX_LENT 2
#define FM_RING_MIN_SLOTS 3

typedef enum fm_slot_state { FM_SLOT_FREE, FM_SLOT_FILLING, FM_SLOT_LENT } fm_slot_state;

typedef struct fm_ring fm_ring;

/* What a consumer holds: a slot, or a copy of one. */
typedef struct fm_loan {
    fm_ring *ring; /* NULL: this loan heads a copy's block */
    uint32_t slot;
} fm_loan;

typedef struct fm_slot {
    fm_loan loan;        /* fixed */
    fm_slot_state state; /* under lock */
    void *memory;        /* changes only while filling, by the consumer (handover) */
    void *handle;        /* the allocator's, goes with memory */
    uint64_t free_ns;    /* under lock: when it became free; 0: it always was */
} fm_slot;

struct fm_ring {
    pthread_mutex_t mutex;
    pthread_cond_t work;  /* workers: a sample can be taken, or stop */
    pthread_cond_t ready; /* consumer: the oldest batch is ready */
    pthread_cond_t idle;  /* whoever stops: no read and no worker is active */
    fm_allocator allocator;
    size_t slot_bytes; /* of images and labels together */
    size_t label_offset;
    pid_t pid; /* the process that may use it */
    uint32_t n_slots;
    uint32_t n_lent;         /* under lock */
    uint32_t n_refs;         /* under lock */
    bool wanted;             /* under lock: a batch waits for a slot */
    fm_mem_counter *counter; /* NULL once the owner is gone */
    fm_slot slots[];
};

/* Images of image_bytes and labels of label_bytes per slot; all slots are allocated here. */
int fm_ring_open(fm_ring **out, uint32_t n_slots, size_t image_bytes, size_t label_bytes,
                 const fm_allocator *allocator, fm_mem_counter *counter, fm_error *error);

/* Bytes that one slot of that content takes. */
size_t fm_ring_slot_bytes(size_t image_bytes, size_t label_bytes);

void fm_ring_lock(fm_ring *ring);
void fm_ring_unlock(fm_ring *ring);

/* Locked. A free slot, now filling, or NULL; NULL also notes that one is wanted. */
fm_slot *fm_ring_acquire(fm_ring *ring);
/* Locked. A filling slot becomes free. */
void fm_ring_give_back(fm_ring *ring, fm_slot *slot);
/* Locked. May this slot be lent and still leave room for batches to come? */
bool fm_ring_may_lend(const fm_ring *ring);
/* Locked. A filling slot becomes lent. */
fm_loan *fm_ring_lend(fm_ring *ring, fm_slot *slot);

/* Unlocked. A copy of a filling slot, in a block of its own; NULL when out of memory. */
fm_loan *fm_ring_copy(fm_ring *ring, const fm_slot *slot, size_t image_bytes);
void *fm_loan_memory(fm_loan *loan, const fm_ring *ring);

/*
 * Unlocked, consumer. Hands a filling slot's memory and handle out and takes fresh memory for it.
 * On FM_ERR_NOMEM the slot is as before.
 */
int fm_ring_hand_over(fm_ring *ring, fm_slot *slot, void **memory, void **handle);

/* Any thread, unlocked: returns a loan. Nothing in a forked child, or if it is not lent. */
void fm_loan_release(fm_loan *loan);

/* The owner lets go. Accepts NULL. */
void fm_ring_close(fm_ring *ring);

#endif
