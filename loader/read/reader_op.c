/* The life of one read: from the queue to a back end, its progress, and its end in on_done(). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "read/reader_impl.h"

void fm_reader_wait_locked(fm_reader_waits *waits, bool is_waiting) {
    if (is_waiting == (waits->since_ns != 0)) return;
    const uint64_t now_ns = fm_clock_ns();
    if (!is_waiting) waits->ended_ns += now_ns - waits->since_ns;
    waits->since_ns = is_waiting ? now_ns : 0;
}

uint64_t fm_reader_waits_ns_locked(const fm_reader_waits *waits, uint64_t now_ns) {
    const uint64_t since_ns = waits->since_ns;
    return waits->ended_ns + (since_ns && now_ns > since_ns ? now_ns - since_ns : 0);
}

bool fm_reader_ready_locked(fm_reader *reader) {
    const bool may_start = reader->queue && reader->free_ops;
    const bool ready = may_start && (reader->next_buffer || reader->next_error ||
                                     fm_reader_reserve_locked(reader));
    fm_reader_wait_locked(&reader->buffer_waits, may_start && !ready);
    return ready;
}

fm_reader_op *fm_reader_dequeue_locked(fm_reader *reader) {
    if (!fm_reader_ready_locked(reader)) return NULL;
    fm_read *const read = reader->queue;
    reader->queue = read->next;
    if (!reader->queue) reader->queue_end = &reader->queue;
    reader->n_queued--;
    fm_reader_op *const op = reader->free_ops;
    reader->free_ops = op->next;
    reader->n_active++;
    op->read = read;
    op->next = NULL;
    op->buffer = reader->next_buffer;
    op->capacity = reader->next_capacity;
    op->error = reader->next_error;
    reader->next_buffer = NULL;
    reader->next_error = 0;
    op->n_bytes = 0;
    op->expected_bytes = read->expected_bytes;
    op->offset_bytes = read->offset_bytes;
    op->range_bytes = read->range_bytes;
    op->cached = NULL;
    op->cancelled = false;
    op->is_first = read->first != NULL;
    op->why = NULL;
    op->n_retries = 0;
    op->has_key = op->replaces = op->is_kept = op->from_disk = false;
    op->earlier = op->last = (fm_read_stages){0};
    op->opened = op->in_slot = op->open_blocking = false;
    const size_t path_bytes = strnlen(read->path, sizeof(op->path)) + 1;
    if (path_bytes > sizeof(op->path))
        op->error = ENAMETOOLONG;
    else
        memcpy(op->path, read->path, path_bytes);
    /* If-Match compares strongly: a weak ETag would never match. */
    const bool is_strong = read->etag && read->etag[0] == '"';
    snprintf(op->etag, sizeof(op->etag), "%s", is_strong ? read->etag : "");
    op->started_ns = fm_clock_ns();
    read->buffer_wait_ns = reader->buffer_waits.ended_ns - read->buffer_wait_ns;
    read->times.held_ns =
        fm_reader_waits_ns_locked(&reader->held_waits, op->started_ns) - read->times.held_ns;
    read->times.queue = fm_read_stages_since(&reader->ended, &read->times.queue);
    return op;
}

uint64_t fm_reader_request_bytes(const fm_reader *reader, const fm_reader_op *op) {
    uint64_t ask = op->range_bytes ? op->range_bytes : op->capacity;
    if (ask > reader->config.max_file_bytes + 1) ask = reader->config.max_file_bytes + 1;
    ask -= op->n_bytes;
    if (ask > FM_READER_MAX_READ_BYTES) ask = FM_READER_MAX_READ_BYTES;
    const uint64_t limit = reader->fault.max_read_bytes;
    return limit && ask > limit ? limit : ask;
}

bool fm_reader_advance(fm_reader *reader, fm_reader_op *op, uint64_t n) {
    if (n == 0 && op->range_bytes) op->error = FM_READ_ENDS_EARLY;
    if (n == 0) return false;
    op->n_bytes += n;
    if (op->range_bytes) return op->n_bytes < op->range_bytes;
    if (op->n_bytes > reader->config.max_file_bytes) {
        op->error = EFBIG;
        return false;
    }
    if (op->n_bytes == op->expected_bytes) return false;
    if (op->n_bytes < op->capacity || fm_reader_grow_buffer(reader, op, 0)) return true;
    op->error = ENOMEM;
    return false;
}

int fm_reader_release_file(fm_reader *reader, fm_reader_op *op) {
    fm_cached_file *const cached = op->cached;
    op->cached = NULL;
    if (!cached) return -1;
    pthread_mutex_lock(&reader->lock);
    /* The file may have been replaced, or a server may have forgotten its handle. */
    if (op->error) fm_file_cache_unlist(&reader->file_cache, cached);
    const int file = fm_file_cache_release(&reader->file_cache, cached);
    pthread_mutex_unlock(&reader->lock);
    return file;
}

bool fm_reader_evict_file(fm_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    const int file = fm_file_cache_evict(&reader->file_cache);
    pthread_mutex_unlock(&reader->lock);
    return file >= 0 && (close(file), true);
}

int64_t fm_reader_result(const fm_reader *reader, const fm_reader_op *op, int64_t result) {
    if (!reader->fault.result) return result;
    return reader->fault.result(reader->fault.user, op->path, result);
}

bool fm_reader_is_quiet_locked(const fm_reader *reader) {
    return !reader->n_active && !reader->n_callbacks && !reader->n_closing &&
           !reader->file_cache.oldest;
}

void fm_reader_signal_if_quiet_locked(fm_reader *reader) {
    if (reader->closing && fm_reader_is_quiet_locked(reader))
        pthread_cond_broadcast(&reader->quiet);
}

int fm_reader_begin_close_locked(fm_reader *reader) {
    const int file = reader->abandoned ? -1 : fm_file_cache_evict(&reader->file_cache);
    reader->n_closing += file >= 0;
    return file;
}

void fm_reader_end_close_locked(fm_reader *reader) {
    reader->n_closing--;
    fm_reader_signal_if_quiet_locked(reader);
}

/* Writes the result of op to *read and counts it. */
static void set_result_locked(fm_reader *reader, fm_reader_op *op, fm_read *read) {
    read->bytes = op->buffer;
    read->n_bytes = op->error ? 0 : op->n_bytes;
    read->error = op->error;
    if (op->why && read->why) snprintf(read->why, read->why_bytes, "%s", op->why);
    read->started_ns = op->started_ns;
    read->done_ns = fm_clock_ns();
    read->times.earlier = op->earlier;
    read->times.last = op->last;
    fm_read_stages_add(&reader->ended, &op->earlier);
    fm_read_stages_add(&reader->ended, &op->last);
    reader->stats.n_opens += op->opened;
    reader->stats.read_ns += read->done_ns - op->started_ns;
    if (op->error) {
        if (op->error != ECANCELED || !reader->closing) reader->stats.n_errors++;
        return;
    }
    reader->stats.n_files++;
    reader->stats.n_bytes += op->n_bytes;
    reader->stats.n_disk_hits += op->from_disk;
    reader->stats.n_disk_misses += op->has_key && !op->from_disk;
    reader->stats.disk_bytes += op->from_disk ? op->n_bytes : 0;
    if (!op->range_bytes) fm_reader_record_size_locked(reader, op->n_bytes);
}

void fm_reader_finish(fm_reader *reader, fm_reader_op *op) {
    pthread_mutex_lock(&reader->lock);
    fm_read *const read = op->read;
    op->read = NULL;
    if (op->error || op->n_bytes == 0 || !read) {
        fm_reader_free_buffer_locked(reader, op->buffer);
        op->buffer = NULL;
    } else if (fm_arena_owns(&reader->arena, op->buffer)) {
        fm_arena_trim(&reader->arena, op->buffer, op->n_bytes);
    }
    if (read) set_result_locked(reader, op, read);
    op->next = reader->free_ops;
    reader->free_ops = op;
    reader->n_active--;
    reader->n_callbacks += read != NULL;
    fm_reader_signal_if_quiet_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (!read) return;
    reader->config.on_done(reader->config.user, read);
    pthread_mutex_lock(&reader->lock);
    reader->n_callbacks--;
    fm_reader_signal_if_quiet_locked(reader);
    pthread_mutex_unlock(&reader->lock);
}
