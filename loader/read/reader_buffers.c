/* Read buffers: an arena, with the heap as fallback, and a guess of sizes that are unknown. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "read/reader_impl.h"

/* At so many sizes the histogram is halved, so that the guess follows the data set. */
#define MAX_SIZES 1024
/* The guess covers nine files in ten. The others cost one more read and perhaps a copy. */
#define COVERED_PERCENT 90
/* ImageNet's mean is 110 KB, and 90% of its files are below this. */
#define FIRST_GUESS_BYTES (192u << 10)
#define MIN_GUESS_BYTES (4u << 10)

/* ---- file sizes ------------------------------------------------------------------------------ */

void fm_reader_record_size_locked(fm_reader *reader, uint64_t bytes) {
    fm_histogram_add(&reader->sizes, bytes, MAX_SIZES);
}

/* At most a sixteenth of the buffers: a guess must not keep other files from starting. */
static uint64_t guess_size_locked(const fm_reader *reader) {
    uint64_t guess = FIRST_GUESS_BYTES;
    if (reader->sizes.n >= 8) guess = fm_histogram_percentile(&reader->sizes, COVERED_PERCENT);
    const uint64_t most = reader->arena.block_bytes / 16;
    if (guess > most) guess = most;
    return guess < MIN_GUESS_BYTES ? MIN_GUESS_BYTES : guess;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint8_t *heap_alloc_locked(fm_reader *reader, uint64_t bytes) {
    fm_heap_buffer *const header = fm_mem_alloc(reader->counter, sizeof(*header) + bytes, 1);
    if (!header) return NULL;
    header->bytes = bytes;
    header->previous = NULL;
    header->next = reader->heap_buffers;
    if (header->next) header->next->previous = header;
    reader->heap_buffers = header;
    reader->heap_bytes += bytes;
    return (uint8_t *)(header + 1);
}

static void heap_free_locked(fm_reader *reader, fm_heap_buffer *header) {
    if (header->next) header->next->previous = header->previous;
    if (header->previous)
        header->previous->next = header->next;
    else
        reader->heap_buffers = header->next;
    reader->heap_bytes -= header->bytes;
    fm_mem_free(header);
}

void fm_reader_free_buffer_locked(fm_reader *reader, uint8_t *buffer) {
    if (!buffer) return;
    if (fm_arena_owns(&reader->arena, buffer))
        fm_arena_free(&reader->arena, buffer);
    else
        heap_free_locked(reader, (fm_heap_buffer *)(void *)buffer - 1);
}

bool fm_reader_reserve_locked(fm_reader *reader) {
    const uint64_t most = reader->config.max_file_bytes;
    const uint64_t expected = reader->queue->expected_bytes, range = reader->queue->range_bytes;
    if (range > most) {
        reader->next_error = EFBIG;
        return true;
    }
    /* One byte more than expected: the same read then shows whether the file has grown. */
    uint64_t wanted = expected && expected <= most ? expected : guess_size_locked(reader);
    if (wanted > most) wanted = most;
    wanted = range ? range : wanted + 1;
    if (reader->heap_bytes > reader->arena.block_bytes) return false;
    if (wanted <= fm_arena_limit(&reader->arena)) {
        reader->next_buffer = fm_arena_alloc(&reader->arena, wanted, &reader->next_capacity);
        return reader->next_buffer != NULL;
    }
    reader->next_buffer = heap_alloc_locked(reader, wanted);
    reader->next_capacity = wanted;
    reader->next_error = reader->next_buffer ? 0 : ENOMEM;
    return true;
}

bool fm_reader_grow_buffer(fm_reader *reader, fm_reader_op *op, uint64_t least_bytes) {
    const uint64_t most = reader->config.max_file_bytes + 1;
    uint64_t wanted = op->capacity * 2;
    if (wanted < 65536) wanted = 65536;
    if (wanted < least_bytes) wanted = least_bytes;
    if (wanted > most) wanted = most;
    pthread_mutex_lock(&reader->lock);
    if (!op->read) { /* abandoned by close() */
        pthread_mutex_unlock(&reader->lock);
        return false;
    }
    uint8_t *buffer = op->buffer;
    bool moved = false;
    if (!fm_arena_owns(&reader->arena, buffer) ||
        !fm_arena_grow(&reader->arena, buffer, wanted, &op->capacity)) {
        moved = true;
        buffer = fm_arena_alloc(&reader->arena, wanted, &op->capacity);
        if (!buffer) {
            buffer = heap_alloc_locked(reader, wanted);
            op->capacity = wanted;
        }
    }
    pthread_mutex_unlock(&reader->lock);
    if (!buffer) return false;
    if (!moved) return true;
    memcpy(buffer, op->buffer, op->n_bytes);
    pthread_mutex_lock(&reader->lock);
    fm_reader_free_buffer_locked(reader, op->buffer);
    pthread_mutex_unlock(&reader->lock);
    op->buffer = buffer;
    return true;
}

void fm_reader_buffers_fini(fm_reader *reader) {
    while (reader->heap_buffers) heap_free_locked(reader, reader->heap_buffers);
    fm_arena_fini(&reader->arena);
}
