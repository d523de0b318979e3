#define _GNU_SOURCE
#include "read/reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "read/reader_impl.h"

/* The contract's limit for reads in flight at close. */
#define CLOSE_LIMIT_NS 50000000u
/* Sizes seen are forgotten by halves, so that the guess follows the data set. */
#define MOST_SIZES 1024
/* The guess covers nine files in ten; the tenth costs one more read and perhaps a copy. */
#define COVERED_PERCENT 90
/* ImageNet's mean is 110 KB, and 90 % of its files are below this. */
#define FIRST_GUESS_BYTES (192u << 10)
#define LEAST_GUESS_BYTES (4u << 10)

/* ---- file sizes ------------------------------------------------------------------------------ */

/* Class c holds sizes up to (5 + c % 4) << (c / 4): four steps to an octave. */
static uint64_t class_bytes(uint32_t class) { return (uint64_t)(5 + class % 4) << class / 4; }

static uint32_t class_of(uint64_t bytes) {
    uint32_t class = 0;
    if (bytes > 8) class = 4 * (61 - (uint32_t)__builtin_clzll(bytes - 1));
    if (class >= FM_READER_SIZE_CLASSES - 4) class = FM_READER_SIZE_CLASSES - 4;
    while (class < FM_READER_SIZE_CLASSES - 1 && class_bytes(class) < bytes) class ++;
    return class;
}

static void remember_size_locked(fm_reader *reader, uint64_t bytes) {
    reader->size_counts[class_of(bytes)]++;
    if (++reader->n_sizes < MOST_SIZES) return;
    reader->n_sizes = 0;
    for (int i = 0; i < FM_READER_SIZE_CLASSES; i++) reader->n_sizes += reader->size_counts[i] /= 2;
}

/* Never a large share of the buffers: a guess must not keep other files from starting. */
static uint64_t guess_size_locked(const fm_reader *reader) {
    uint64_t guess = FIRST_GUESS_BYTES;
    if (reader->n_sizes >= 8) {
        uint32_t left = reader->n_sizes * COVERED_PERCENT / 100, class = 0;
        while (left > reader->size_counts[class]) left -= reader->size_counts[class ++];
        guess = class_bytes(class);
    }
    const uint64_t most = reader->arena.block_bytes / 16;
    if (guess > most) guess = most;
    return guess < LEAST_GUESS_BYTES ? LEAST_GUESS_BYTES : guess;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint8_t *own_alloc_locked(fm_reader *reader, uint64_t bytes) {
    fm_reader_own *const own = fm_mem_alloc(reader->counter, sizeof(*own) + bytes, 1);
    if (!own) return NULL;
    own->bytes = bytes;
    own->previous = NULL;
    own->next = reader->own;
    if (own->next) own->next->previous = own;
    reader->own = own;
    reader->own_bytes += bytes;
    return (uint8_t *)(own + 1);
}

static void own_free_locked(fm_reader *reader, fm_reader_own *own) {
    if (own->next) own->next->previous = own->previous;
    if (own->previous)
        own->previous->next = own->next;
    else
        reader->own = own->next;
    reader->own_bytes -= own->bytes;
    fm_mem_free(own);
}

static void release_locked(fm_reader *reader, uint8_t *buffer) {
    if (!buffer) return;
    if (fm_arena_owns(&reader->arena, buffer))
        fm_arena_free(&reader->arena, buffer);
    else
        own_free_locked(reader, (fm_reader_own *)(void *)buffer - 1);
}

/*
 * A buffer for the head of the queue. False: it must wait. All buffers out belong to requests that
 * are older, so waiting comes to an end without this one.
 */
static bool acquire_locked(fm_reader *reader) {
    const uint64_t most = reader->config.max_file_bytes;
    const uint64_t expected = reader->queue->expected_bytes, range = reader->queue->range_bytes;
    if (range > most) {
        reader->next_error = EFBIG;
        return true;
    }
    /* One byte more than expected, so that the same read shows whether the file has grown. */
    uint64_t wanted = expected && expected <= most ? expected : guess_size_locked(reader);
    if (wanted > most) wanted = most;
    wanted = range ? range : wanted + 1;
    if (reader->own_bytes > reader->arena.block_bytes) return false;
    if (wanted <= fm_arena_limit(&reader->arena)) {
        reader->next_buffer = fm_arena_alloc(&reader->arena, wanted, &reader->next_capacity);
        return reader->next_buffer != NULL;
    }
    reader->next_buffer = own_alloc_locked(reader, wanted);
    reader->next_capacity = wanted;
    reader->next_error = reader->next_buffer ? 0 : ENOMEM;
    return true;
}

/* Makes the buffer larger, outside of the arena if need be: what has started never waits. */
static bool grow(fm_reader *reader, fm_reader_op *op) {
    const uint64_t most = reader->config.max_file_bytes + 1;
    uint64_t wanted = op->capacity * 2;
    if (wanted < 65536) wanted = 65536;
    if (wanted > most) wanted = most;
    pthread_mutex_lock(&reader->lock);
    if (!op->read) { /* disowned: not worth another byte */
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
            buffer = own_alloc_locked(reader, wanted);
            op->capacity = wanted;
        }
    }
    pthread_mutex_unlock(&reader->lock);
    if (!buffer) return false;
    if (!moved) return true;
    memcpy(buffer, op->buffer, op->n_bytes);
    pthread_mutex_lock(&reader->lock);
    release_locked(reader, op->buffer);
    pthread_mutex_unlock(&reader->lock);
    op->buffer = buffer;
    return true;
}

/* ---- for the back ends ----------------------------------------------------------------------- */

void fm_reader_note(fm_reader *reader, const char *format, ...) {
    char *const reason = reader->stats.reason;
    size_t used = strlen(reason);
    const size_t room = sizeof(reader->stats.reason);
    if (used) used += (size_t)snprintf(reason + used, room - used, "; ");
    if (used >= room) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason + used, room - used, format, arguments);
    va_end(arguments);
}

static void set_short_locked(fm_reader *reader, bool is_short) {
    if (is_short == (reader->short_since_ns != 0)) return;
    const uint64_t now_ns = fm_clock_ns();
    if (!is_short) reader->short_ns += now_ns - reader->short_since_ns;
    reader->short_since_ns = is_short ? now_ns : 0;
}

static uint64_t short_until_locked(const fm_reader *reader, uint64_t now_ns) {
    const uint64_t since_ns = reader->short_since_ns;
    return reader->short_ns + (since_ns && now_ns > since_ns ? now_ns - since_ns : 0);
}

bool fm_reader_ready_locked(fm_reader *reader) {
    const bool may_start = reader->queue && reader->free_ops;
    const bool ready =
        may_start && (reader->next_buffer || reader->next_error || acquire_locked(reader));
    set_short_locked(reader, may_start && !ready);
    return ready;
}

fm_reader_op *fm_reader_take_locked(fm_reader *reader) {
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
    op->shard = NULL;
    op->n_again = 0;
    op->opened = op->in_slot = op->plain = false;
    const size_t path_bytes = strnlen(read->path, sizeof(op->path)) + 1;
    if (path_bytes > sizeof(op->path))
        op->error = ENAMETOOLONG;
    else
        memcpy(op->path, read->path, path_bytes);
    op->started_ns = fm_clock_ns();
    read->short_ns = reader->short_ns - read->short_ns;
    return op;
}

uint64_t fm_reader_ask(const fm_reader *reader, const fm_reader_op *op) {
    uint64_t ask = op->range_bytes ? op->range_bytes : op->capacity;
    if (ask > reader->config.max_file_bytes + 1) ask = reader->config.max_file_bytes + 1;
    ask -= op->n_bytes;
    if (ask > FM_READER_MOST_BYTES) ask = FM_READER_MOST_BYTES;
    const uint64_t limit = reader->fault.most_bytes;
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
    if (op->n_bytes < op->capacity || grow(reader, op)) return true;
    op->error = ENOMEM;
    return false;
}

int fm_reader_release_shard(fm_reader *reader, fm_reader_op *op) {
    fm_shard *const shard = op->shard;
    op->shard = NULL;
    if (!shard) return -1;
    pthread_mutex_lock(&reader->lock);
    /* The file may have been replaced, or the server may not know it any more. */
    if (op->error) fm_shards_unlist(&reader->shards, shard);
    const int file = fm_shards_release(&reader->shards, shard);
    pthread_mutex_unlock(&reader->lock);
    return file;
}

bool fm_reader_close_a_shard(fm_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    const int file = fm_shards_evict(&reader->shards);
    pthread_mutex_unlock(&reader->lock);
    return file >= 0 && (close(file), true);
}

int64_t fm_reader_result(const fm_reader *reader, const fm_reader_op *op, int64_t result) {
    if (!reader->fault.result) return result;
    return reader->fault.result(reader->fault.user, op->path, result);
}

static bool is_quiet_locked(const fm_reader *reader) {
    return !reader->n_active && !reader->n_calling && !reader->n_closing && !reader->shards.oldest;
}

static void signal_if_quiet_locked(fm_reader *reader) {
    if (reader->closing && is_quiet_locked(reader)) pthread_cond_broadcast(&reader->quiet);
}

int fm_reader_begin_close_locked(fm_reader *reader) {
    const int file = reader->abandoned ? -1 : fm_shards_evict(&reader->shards);
    reader->n_closing += file >= 0;
    return file;
}

void fm_reader_end_close_locked(fm_reader *reader) {
    reader->n_closing--;
    signal_if_quiet_locked(reader);
}

/* Counts a file that has ended and hands it to *read. */
static void hand_back_locked(fm_reader *reader, fm_reader_op *op, fm_read *read) {
    read->bytes = op->buffer;
    read->n_bytes = op->error ? 0 : op->n_bytes;
    read->error = op->error;
    read->started_ns = op->started_ns;
    read->done_ns = fm_clock_ns();
    reader->stats.n_opens += op->opened;
    reader->stats.read_ns += read->done_ns - op->started_ns;
    if (op->error) {
        if (op->error != ECANCELED || !reader->closing) reader->stats.n_errors++;
        return;
    }
    reader->stats.n_files++;
    reader->stats.n_bytes += op->n_bytes;
    if (!op->range_bytes) remember_size_locked(reader, op->n_bytes);
}

void fm_reader_finish(fm_reader *reader, fm_reader_op *op) {
    pthread_mutex_lock(&reader->lock);
    fm_read *const read = op->read;
    op->read = NULL;
    if (op->error || op->n_bytes == 0 || !read) {
        release_locked(reader, op->buffer);
        op->buffer = NULL;
    } else if (fm_arena_owns(&reader->arena, op->buffer)) {
        fm_arena_trim(&reader->arena, op->buffer, op->n_bytes);
    }
    if (read) hand_back_locked(reader, op, read);
    op->next = reader->free_ops;
    reader->free_ops = op;
    reader->n_active--;
    reader->n_calling += read != NULL;
    signal_if_quiet_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (!read) return;
    reader->config.on_done(reader->config.user, read);
    pthread_mutex_lock(&reader->lock);
    reader->n_calling--;
    signal_if_quiet_locked(reader);
    pthread_mutex_unlock(&reader->lock);
}

void fm_reader_unref(fm_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    const bool last = --reader->n_references == 0;
    pthread_mutex_unlock(&reader->lock);
    if (!last) return;
    if (reader->backend) reader->backend->destroy(reader);
    while (reader->own) own_free_locked(reader, reader->own);
    fm_arena_fini(&reader->arena);
    fm_shards_fini(&reader->shards);
    fm_mem_free(reader->ops);
    pthread_cond_destroy(&reader->quiet);
    pthread_mutex_destroy(&reader->lock);
    fm_mem_free(reader);
}

/* ---- open ------------------------------------------------------------------------------------ */

int fm_reader_kind_from_env(fm_reader_kind asked, fm_reader_kind *out, fm_error *error) {
    *out = asked;
    const char *const text = getenv("FEEDMILL_READER");
    if (!text || !*text) return FM_OK;
    if (!strcmp(text, "uring"))
        *out = FM_READER_URING;
    else if (!strcmp(text, "pread"))
        *out = FM_READER_PREAD;
    else if (!strcmp(text, "auto"))
        *out = FM_READER_AUTO;
    else
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "FEEDMILL_READER is '%.100s': it must be uring, pread or auto", text);
    return FM_OK;
}

static int open_backend(fm_reader *reader, const fm_reader_backend *backend, fm_error *error) {
    uint32_t depth = reader->config.depth ? reader->config.depth : backend->default_depth;
    if (depth > backend->most_depth) {
        fm_reader_note(reader, "depth %u lowered to %u, the most there is", depth,
                       backend->most_depth);
        depth = backend->most_depth;
    }
    reader->ops = fm_mem_alloc(reader->config.counter, depth, sizeof(*reader->ops));
    if (!reader->ops)
        return fm_error_set(error, FM_ERR_NOMEM, "out of memory for %u reads in flight", depth);
    reader->n_ops = depth;
    reader->backend = backend;
    int status = backend->open(reader, error);
    if (status) {
        fm_mem_free(reader->ops);
        reader->ops = NULL;
        reader->backend = NULL;
        return status;
    }
    /* The threads run already, but nothing is queued: they have not looked at the ops. */
    pthread_mutex_lock(&reader->lock);
    for (uint32_t i = reader->n_ops; i-- > 0;) {
        fm_reader_op *const op = &reader->ops[i];
        op->read = NULL;
        op->index = i;
        op->next = reader->free_ops;
        reader->free_ops = op;
    }
    reader->stats.name = backend->name;
    reader->stats.depth = reader->n_ops;
    pthread_mutex_unlock(&reader->lock);
    return FM_OK;
}

static int open_uring(fm_reader *reader, fm_error *error) {
#if FM_HAVE_URING
    return open_backend(reader, &fm_reader_uring_backend, error);
#else
    (void)reader;
    return fm_error_set(error, FM_ERR_UNAVAILABLE,
                        "this build has no io_uring: liburing 2.2 or "
                        "newer was missing when it was compiled");
#endif
}

static int open_kind(fm_reader *reader, fm_error *error) {
    const fm_reader_kind kind = reader->config.kind;
    if (kind == FM_READER_PREAD) {
        fm_reader_note(reader, "asked for");
        return open_backend(reader, &fm_reader_pread_backend, error);
    }
    fm_reader_note(reader, kind == FM_READER_URING ? "asked for" : "io_uring works here");
    fm_error why;
    const int status = open_uring(reader, &why);
    if (!status) return FM_OK;
    if (kind == FM_READER_URING) {
        if (error) *error = why;
        return status;
    }
    reader->stats.reason[0] = 0;
    fm_reader_note(reader, "%s", why.message);
    return open_backend(reader, &fm_reader_pread_backend, error);
}

static int check_config(const fm_reader_config *config, fm_error *error) {
    if (!config->on_done || !config->buffer_bytes || !config->max_file_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "a reader needs on_done, buffer_bytes and max_file_bytes");
    if (config->kind != FM_READER_AUTO && config->kind != FM_READER_URING &&
        config->kind != FM_READER_PREAD)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%d is no kind of reader", (int)config->kind);
    return FM_OK;
}

int fm_reader_open_faulty(fm_reader **out, const fm_reader_config *config,
                          const fm_reader_fault *fault, fm_error *error) {
    *out = NULL;
    int status = check_config(config, error);
    if (status) return status;
    fm_reader *const reader = fm_mem_zalloc(config->counter, 1, sizeof(*reader));
    if (!reader) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for a reader");
    reader->config = *config;
    /* Far above any file, and low enough that sums of sizes cannot overflow. */
    if (reader->config.max_file_bytes > INT64_MAX / 4)
        reader->config.max_file_bytes = INT64_MAX / 4;
    if (fault) reader->fault = *fault;
    reader->queue_end = &reader->queue;
    reader->n_references = 1;
    reader->counter = config->counter;
    if (pthread_mutex_init(&reader->lock, NULL)) {
        fm_mem_free(reader);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    }
    if (fm_cond_init(&reader->quiet)) {
        pthread_mutex_destroy(&reader->lock);
        fm_mem_free(reader);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a condition variable");
    }
    status = fm_arena_init(&reader->arena, config->buffer_bytes, config->counter);
    if (!status) status = fm_shards_init(&reader->shards, config->counter);
    if (status)
        fm_error_set(error, status, "out of memory for %llu bytes of read buffers",
                     (unsigned long long)config->buffer_bytes);
    else
        status = open_kind(reader, error);
    if (status) {
        fm_reader_unref(reader);
        return status;
    }
    *out = reader;
    return FM_OK;
}

int fm_reader_open(fm_reader **out, const fm_reader_config *config, fm_error *error) {
    return fm_reader_open_faulty(out, config, NULL, error);
}

/* ---- for the caller -------------------------------------------------------------------------- */

/* Ends requests that have not been started, or were disowned. Not locked. */
static void cancel(fm_reader *reader, fm_read *list) {
    while (list) {
        fm_read *const read = list;
        list = read->next;
        read->bytes = NULL;
        read->n_bytes = 0;
        read->error = ECANCELED;
        read->started_ns = read->done_ns = fm_clock_ns();
        read->short_ns = 0;
        reader->config.on_done(reader->config.user, read);
    }
}

void fm_reader_submit(fm_reader *reader, fm_read *list) {
    const uint64_t now_ns = fm_clock_ns();
    pthread_mutex_lock(&reader->lock);
    if (reader->closing) {
        pthread_mutex_unlock(&reader->lock);
        for (fm_read *read = list; read; read = read->next) read->submitted_ns = now_ns;
        cancel(reader, list);
        return;
    }
    const uint64_t short_ns = short_until_locked(reader, now_ns);
    *reader->queue_end = list;
    for (fm_read *read = list; read; read = read->next) {
        read->bytes = NULL;
        read->submitted_ns = now_ns;
        read->short_ns = short_ns; /* for now; see take */
        reader->queue_end = &read->next;
        reader->n_queued++;
    }
    const bool notify = fm_reader_ready_locked(reader) && reader->backend->wake_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (notify) reader->backend->notify(reader);
}

static fm_read *drain_locked(fm_reader *reader) {
    fm_read *const list = reader->queue;
    reader->queue = NULL;
    reader->queue_end = &reader->queue;
    reader->n_queued = 0;
    release_locked(reader, reader->next_buffer);
    reader->next_buffer = NULL;
    reader->next_error = 0;
    return list;
}

void fm_reader_cancel_queued(fm_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    fm_read *const list = drain_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    cancel(reader, list);
}

void fm_reader_return(fm_reader *reader, fm_read *read) {
    uint8_t *const bytes = read->bytes;
    if (!bytes) return;
    read->bytes = NULL;
    pthread_mutex_lock(&reader->lock);
    release_locked(reader, bytes);
    const bool notify =
        !reader->closing && fm_reader_ready_locked(reader) && reader->backend->wake_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    if (notify) reader->backend->notify(reader);
}

void fm_reader_stats_get(fm_reader *reader, fm_reader_stats *out) {
    pthread_mutex_lock(&reader->lock);
    *out = reader->stats;
    pthread_mutex_unlock(&reader->lock);
}

/* Files that stayed open are left, and a thread that is in no file will come to close them. */
static bool has_closer_locked(const fm_reader *reader) {
    const uint32_t n_threads = reader->n_references - 1;
    return reader->shards.oldest && n_threads > reader->n_active + reader->n_closing;
}

/* Waits for the reads in flight and for files to be closed, and takes what is stuck away from its
 * threads. */
static fm_read *settle_locked(fm_reader *reader) {
    const uint64_t deadline_ns = fm_clock_ns() + CLOSE_LIMIT_NS;
    /* A thread that has only been slow to wake up is waited for: what nobody else closes this
     * thread would have to. */
    while (!is_quiet_locked(reader) && (fm_clock_ns() < deadline_ns || has_closer_locked(reader)))
        fm_cond_wait_until(&reader->quiet, &reader->lock, fm_clock_ns() + CLOSE_LIMIT_NS / 10);
    reader->abandoned = true;
    fm_read *stuck = NULL;
    for (uint32_t i = 0; reader->n_active && i < reader->n_ops; i++) {
        fm_read *const read = reader->ops[i].read;
        if (!read) continue;
        reader->ops[i].read = NULL;
        read->next = stuck;
        stuck = read;
    }
    /* on_done() is short: its end is always waited for. */
    while (reader->n_calling) {
        const uint64_t later_ns = fm_clock_ns() + CLOSE_LIMIT_NS;
        fm_cond_wait_until(&reader->quiet, &reader->lock, later_ns);
    }
    return stuck;
}

void fm_reader_close(fm_reader **handle) {
    if (!handle || !*handle) return;
    fm_reader *const reader = *handle;
    *handle = NULL;
    pthread_mutex_lock(&reader->lock);
    reader->closing = true;
    reader->counter = NULL;
    fm_read *const queued = drain_locked(reader);
    reader->backend->stop_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    cancel(reader, queued);
    pthread_mutex_lock(&reader->lock);
    fm_read *const stuck = settle_locked(reader);
    pthread_mutex_unlock(&reader->lock);
    cancel(reader, stuck);
    reader->backend->leave(reader);
    fm_reader_unref(reader);
}
