#define _GNU_SOURCE
#include "ring/ring.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

/* A copy's block: this header, padded so that the images behind it are aligned. */
#define COPY_HEADER_BYTES FM_MEM_ALIGN
_Static_assert(sizeof(fm_loan) <= COPY_HEADER_BYTES, "a loan must fit before a copy's images");

static size_t align_up(size_t bytes) {
    return (bytes + FM_MEM_ALIGN - 1) / FM_MEM_ALIGN * FM_MEM_ALIGN;
}

size_t fm_ring_slot_bytes(size_t image_bytes, size_t label_bytes) {
    return align_up(image_bytes) + align_up(label_bytes);
}

static void *default_alloc(void *user, size_t bytes, void **handle) {
    (void)handle;
    return fm_mem_alloc(user, bytes, 1);
}

static void default_free(void *user, void *memory, void *handle) {
    (void)user, (void)handle;
    fm_mem_free(memory);
}

static void destroy(fm_ring *ring) {
    for (uint32_t i = 0; i < ring->n_slots; i++) {
        fm_slot *const slot = &ring->slots[i];
        if (slot->memory) ring->allocator.free(ring->allocator.user, slot->memory, slot->handle);
    }
    pthread_cond_destroy(&ring->work);
    pthread_cond_destroy(&ring->ready);
    pthread_cond_destroy(&ring->idle);
    pthread_mutex_destroy(&ring->mutex);
    fm_mem_free(ring);
}

static int alloc_slots(fm_ring *ring, uint32_t n_slots, fm_error *error) {
    for (; ring->n_slots < n_slots; ring->n_slots++) {
        fm_slot *const slot = &ring->slots[ring->n_slots];
        slot->loan = (fm_loan){.ring = ring, .slot = ring->n_slots};
        slot->memory = ring->allocator.alloc(ring->allocator.user, ring->slot_bytes, &slot->handle);
        if (!slot->memory) {
            return fm_error_set(error, FM_ERR_NOMEM,
                                "no memory for batch slot %u of %u (%zu bytes each); lower the "
                                "batch size or the prefetch",
                                ring->n_slots + 1, n_slots, ring->slot_bytes);
        }
    }
    return FM_OK;
}

int fm_ring_open(fm_ring **out, uint32_t n_slots, size_t image_bytes, size_t label_bytes,
                 const fm_allocator *allocator, fm_mem_counter *counter, fm_error *error) {
    *out = NULL;
    fm_ring *const ring = fm_mem_zalloc(counter, 1, sizeof(fm_ring) + n_slots * sizeof(fm_slot));
    if (!ring) return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u batch slots", n_slots);
    ring->allocator = *allocator;
    if (!ring->allocator.alloc) {
        ring->allocator = (fm_allocator){counter, default_alloc, default_free, false};
    }
    ring->slot_bytes = fm_ring_slot_bytes(image_bytes, label_bytes);
    ring->label_offset = align_up(image_bytes);
    ring->pid = getpid();
    ring->n_refs = 1;
    ring->counter = counter;
    /* With these attributes none of them fails on Linux. */
    pthread_mutex_init(&ring->mutex, NULL);
    fm_cond_init(&ring->work);
    fm_cond_init(&ring->ready);
    fm_cond_init(&ring->idle);
    const int status = alloc_slots(ring, n_slots, error);
    if (status) {
        destroy(ring);
        return status;
    }
    *out = ring;
    return FM_OK;
}

void fm_ring_lock(fm_ring *ring) { pthread_mutex_lock(&ring->mutex); }

void fm_ring_unlock(fm_ring *ring) { pthread_mutex_unlock(&ring->mutex); }

fm_slot *fm_ring_acquire(fm_ring *ring) {
    if (ring->wanted) return NULL; /* since the last search none has become free */
    /* The lowest free slot, so that a short epoch touches little memory. */
    for (uint32_t i = 0; i < ring->n_slots; i++) {
        fm_slot *const slot = &ring->slots[i];
        if (slot->state != FM_SLOT_FREE) continue;
        slot->state = FM_SLOT_FILLING;
        return slot;
    }
    ring->wanted = true;
    return NULL;
}

static void set_free(fm_ring *ring, fm_slot *slot) {
    slot->state = FM_SLOT_FREE;
    slot->free_ns = fm_clock_ns();
    /* Several samples may have waited for it: every idle worker has something to look for. */
    if (ring->wanted) pthread_cond_broadcast(&ring->work);
    ring->wanted = false;
}

void fm_ring_give_back(fm_ring *ring, fm_slot *slot) { set_free(ring, slot); }

bool fm_ring_may_lend(const fm_ring *ring) {
    return ring->n_lent < FM_RING_MAX_LENT && ring->n_lent + 1 < ring->n_slots;
}

fm_loan *fm_ring_lend(fm_ring *ring, fm_slot *slot) {
    slot->state = FM_SLOT_LENT;
    ring->n_lent++;
    ring->n_refs++;
    return &slot->loan;
}

fm_loan *fm_ring_copy(fm_ring *ring, const fm_slot *slot, size_t image_bytes) {
    uint8_t *const block = fm_mem_alloc(ring->counter, COPY_HEADER_BYTES + ring->slot_bytes, 1);
    if (!block) return NULL;
    const uint8_t *const from = slot->memory;
    memcpy(block + COPY_HEADER_BYTES, from, image_bytes);
    memcpy(block + COPY_HEADER_BYTES + ring->label_offset, from + ring->label_offset,
           ring->slot_bytes - ring->label_offset);
    fm_loan *const loan = (fm_loan *)block;
    *loan = (fm_loan){.ring = NULL};
    return loan;
}

void *fm_loan_memory(fm_loan *loan, const fm_ring *ring) {
    return loan->ring ? ring->slots[loan->slot].memory : (uint8_t *)loan + COPY_HEADER_BYTES;
}

int fm_ring_hand_over(fm_ring *ring, fm_slot *slot, void **memory, void **handle) {
    void *fresh_handle = NULL;
    void *const fresh =
        ring->allocator.alloc(ring->allocator.user, ring->slot_bytes, &fresh_handle);
    if (!fresh) return FM_ERR_NOMEM;
    *memory = slot->memory;
    *handle = slot->handle;
    slot->memory = fresh;
    slot->handle = fresh_handle;
    return FM_OK;
}

void fm_loan_release(fm_loan *loan) {
    if (!loan) return;
    fm_ring *const ring = loan->ring;
    if (!ring) {
        fm_mem_free(loan);
        return;
    }
    /* A child's copy of the mutex may be locked by a thread that does not exist there. */
    if (ring->pid != getpid()) return;
    fm_ring_lock(ring);
    fm_slot *const slot = &ring->slots[loan->slot];
    bool last = false;
    if (slot->state == FM_SLOT_LENT) {
        ring->n_lent--;
        last = --ring->n_refs == 0;
        set_free(ring, slot);
    }
    fm_ring_unlock(ring);
    if (last) destroy(ring);
}

void fm_ring_close(fm_ring *ring) {
    if (!ring) return;
    fm_ring_lock(ring);
    ring->counter = NULL;
    if (!ring->allocator.handover && ring->allocator.alloc == default_alloc)
        ring->allocator.user = NULL;
    const bool last = --ring->n_refs == 0;
    fm_ring_unlock(ring);
    if (last) destroy(ring);
}
