#define _GNU_SOURCE
#include "ring/ring.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

/* A clone's block: the fm_buffer, padded so that the images behind it are aligned. */
#define CLONE_HEADER_BYTES FM_MEM_ALIGN
_Static_assert(sizeof(fm_buffer) <= CLONE_HEADER_BYTES, "a buffer must fit before its images");

#define BIT(state) (1u << (state))

size_t fm_ring_buffer_bytes(size_t image_bytes, size_t label_bytes) {
    return fm_mem_round_up(image_bytes) + fm_mem_round_up(label_bytes);
}

/* From this size on, a batch's memory is mapped in huge pages. */
#define MAPPED_BYTES ((size_t)4 << 20)

/* The handle is the size of mapped memory, and NULL if it is not mapped. */
static void *default_alloc(void *user, size_t bytes, void **handle) {
    *handle = bytes < MAPPED_BYTES ? NULL : (void *)(uintptr_t)bytes;
    return *handle ? fm_mem_map_huge(user, bytes) : fm_mem_alloc(user, bytes, 1);
}

static void default_free(void *user, void *memory, void *handle) {
    (void)user;
    if (handle)
        fm_mem_unmap(memory, (size_t)(uintptr_t)handle);
    else
        fm_mem_free(memory);
}

static void destroy(fm_ring *ring) {
    for (uint32_t i = 0; i < ring->n_buffers; i++) {
        fm_buffer *const buffer = &ring->buffers[i];
        if (buffer->memory)
            ring->allocator.free(ring->allocator.user, buffer->memory, buffer->handle);
    }
    pthread_cond_destroy(&ring->work);
    pthread_cond_destroy(&ring->ready);
    pthread_cond_destroy(&ring->idle);
    pthread_mutex_destroy(&ring->mutex);
    fm_mem_free(ring);
}

static int alloc_buffers(fm_ring *ring, uint32_t n_buffers, fm_error *error) {
    for (; ring->n_buffers < n_buffers; ring->n_buffers++) {
        fm_buffer *const buffer = &ring->buffers[ring->n_buffers];
        buffer->ring = ring;
        buffer->number = ring->n_buffers;
        buffer->memory =
            ring->allocator.alloc(ring->allocator.user, ring->buffer_bytes, &buffer->handle);
        if (!buffer->memory) {
            return fm_error_set(error, FM_ERR_NOMEM,
                                "no memory for batch buffer %u of %u (%zu bytes each); lower the "
                                "batch size or the prefetch",
                                ring->n_buffers + 1, n_buffers, ring->buffer_bytes);
        }
    }
    return FM_OK;
}

int fm_ring_open(fm_ring **out, uint32_t n_buffers, size_t image_bytes, size_t label_bytes,
                 const fm_allocator *allocator, fm_mem_counter *counter, fm_error *error) {
    *out = NULL;
    fm_ring *const ring =
        fm_mem_zalloc(counter, 1, sizeof(fm_ring) + n_buffers * sizeof(fm_buffer));
    if (!ring)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u batch buffers", n_buffers);
    ring->allocator = *allocator;
    if (!ring->allocator.alloc) {
        ring->allocator = (fm_allocator){counter, default_alloc, default_free, false};
    }
    ring->buffer_bytes = fm_ring_buffer_bytes(image_bytes, label_bytes);
    ring->label_offset = fm_mem_round_up(image_bytes);
    ring->pid = getpid();
    ring->n_refs = 1;
    ring->counter = counter;
    /* None of these fails on Linux with these attributes. */
    pthread_mutex_init(&ring->mutex, NULL);
    fm_cond_init(&ring->work);
    fm_cond_init(&ring->ready);
    fm_cond_init(&ring->idle);
    const int status = alloc_buffers(ring, n_buffers, error);
    if (status) {
        destroy(ring);
        return status;
    }
    *out = ring;
    return FM_OK;
}

void fm_ring_lock(fm_ring *ring) { pthread_mutex_lock(&ring->mutex); }

void fm_ring_unlock(fm_ring *ring) { pthread_mutex_unlock(&ring->mutex); }

void fm_ring_wait(fm_ring *ring, pthread_cond_t *condition) {
    pthread_cond_wait(condition, &ring->mutex);
}

bool fm_ring_wait_until(fm_ring *ring, pthread_cond_t *condition, uint64_t deadline_ns) {
    return fm_cond_wait_until(condition, &ring->mutex, deadline_ns);
}

/* Locked. The one place where a state changes. */
static void change_state(fm_buffer *buffer, unsigned from, fm_buffer_state to) {
    assert(from & BIT(buffer->state));
    (void)from;
    buffer->state = to;
}

/* Locked. */
static void set_free(fm_buffer *buffer, unsigned from) {
    fm_ring *const ring = buffer->ring;
    change_state(buffer, from, FM_BUFFER_FREE);
    buffer->free_ns = fm_clock_ns();
    /* A batch of several samples may have waited for it, so all idle workers are woken. */
    if (ring->wanted) pthread_cond_broadcast(&ring->work);
    ring->wanted = false;
}

fm_buffer *fm_ring_acquire(fm_ring *ring) {
    if (ring->wanted) return NULL; /* none has become free since the last search */
    /* The lowest free buffer, so that a short epoch touches little memory. */
    for (uint32_t i = 0; i < ring->n_buffers; i++) {
        fm_buffer *const buffer = &ring->buffers[i];
        if (buffer->state != FM_BUFFER_FREE) continue;
        change_state(buffer, BIT(FM_BUFFER_FREE), FM_BUFFER_FILLING);
        return buffer;
    }
    ring->wanted = true;
    return NULL;
}

void fm_buffer_set_ready(fm_buffer *buffer) {
    change_state(buffer, BIT(FM_BUFFER_FILLING), FM_BUFFER_READY);
}

void fm_buffer_begin_copy(fm_buffer *buffer) {
    change_state(buffer, BIT(FM_BUFFER_READY), FM_BUFFER_COPYING);
}

bool fm_ring_may_lend(const fm_ring *ring) {
    return ring->n_borrowed < FM_RING_MAX_BORROWED && ring->n_borrowed + 1 < ring->n_buffers;
}

void fm_buffer_lend(fm_buffer *buffer) {
    change_state(buffer, BIT(FM_BUFFER_READY), FM_BUFFER_BORROWED);
    buffer->ring->n_borrowed++;
    buffer->ring->n_refs++;
}

void fm_buffer_recycle(fm_buffer *buffer) {
    set_free(buffer, BIT(FM_BUFFER_FILLING) | BIT(FM_BUFFER_READY) | BIT(FM_BUFFER_COPYING));
}

fm_buffer *fm_buffer_clone(const fm_buffer *buffer, size_t image_bytes) {
    const fm_ring *const ring = buffer->ring;
    assert(buffer->state == FM_BUFFER_READY);
    uint8_t *const block = fm_mem_alloc(ring->counter, CLONE_HEADER_BYTES + ring->buffer_bytes, 1);
    if (!block) return NULL;
    const uint8_t *const from = buffer->memory;
    uint8_t *const memory = block + CLONE_HEADER_BYTES;
    memcpy(memory, from, image_bytes);
    memcpy(memory + ring->label_offset, from + ring->label_offset,
           ring->buffer_bytes - ring->label_offset);
    fm_buffer *const clone = (fm_buffer *)block;
    *clone = (fm_buffer){.state = FM_BUFFER_BORROWED, .memory = memory};
    return clone;
}

int fm_buffer_hand_over(fm_buffer *buffer, void **memory, void **handle) {
    fm_ring *const ring = buffer->ring;
    assert(buffer->state == FM_BUFFER_READY);
    void *fresh_handle = NULL;
    void *const fresh =
        ring->allocator.alloc(ring->allocator.user, ring->buffer_bytes, &fresh_handle);
    if (!fresh) return FM_ERR_NOMEM;
    *memory = buffer->memory;
    *handle = buffer->handle;
    buffer->memory = fresh;
    buffer->handle = fresh_handle;
    return FM_OK;
}

int64_t *fm_buffer_labels(const fm_ring *ring, void *memory) {
    return (int64_t *)((uint8_t *)memory + ring->label_offset);
}

void fm_buffer_release(fm_buffer *buffer) {
    if (!buffer) return;
    fm_ring *const ring = buffer->ring;
    if (!ring) {
        fm_mem_free(buffer);
        return;
    }
    /* A child's copy of the mutex may be locked by a thread that does not exist there. */
    if (ring->pid != getpid()) return;
    fm_ring_lock(ring);
    bool is_last = false;
    if (buffer->state == FM_BUFFER_BORROWED) {
        ring->n_borrowed--;
        is_last = --ring->n_refs == 0;
        set_free(buffer, BIT(FM_BUFFER_BORROWED));
    }
    fm_ring_unlock(ring);
    if (is_last) destroy(ring);
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
