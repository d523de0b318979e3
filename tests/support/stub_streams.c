#define _GNU_SOURCE
#include "stub_streams.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct CUstream_st streams[MAX_STREAMS];
block device_blocks[MAX_BLOCKS], registered[MAX_BLOCKS];
access_note accesses[MAX_ACCESSES];
size_t n_accesses;
uint64_t op_delay_ns;
bool is_held;
char complaint_text[COMPLAINT_BYTES];
__thread int context_stack[8] = {-1};
__thread int context_depth;
__thread clocks known_here; /* what this thread has waited for itself */

void add_complaint(const char *format, ...) {
    const size_t used = strlen(complaint_text);
    if (used + 256 > sizeof(complaint_text)) return;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(complaint_text + used, 250, format, args);
    va_end(args);
    if (n >= 0) strcat(complaint_text, "\n");
}

uint64_t sum_of(const void *bytes, size_t n_bytes) {
    const unsigned char *const b = bytes;
    uint64_t sum = 1469598103934665603u;
    for (size_t i = 0; i < n_bytes; i++) sum = (sum ^ b[i]) * 1099511628211u;
    return sum;
}

static void sleep_ns(uint64_t ns) {
    const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&time, NULL);
}

bool is_within(const block *list, const void *start, size_t n_bytes) {
    const char *const from = start;
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (list[i].start && from >= list[i].start &&
            from + n_bytes <= list[i].start + list[i].n_bytes)
            return true;
    return false;
}

block *place_for(block *list, const void *start) {
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (list[i].start == start) return &list[i];
    return NULL;
}

bool is_being_read(const char *start, size_t n_bytes) {
    for (int s = 0; s < MAX_STREAMS; s++) {
        const struct CUstream_st *const stream = &streams[s];
        for (uint64_t i = stream->n_run; stream->used && i < stream->n_queued; i++) {
            const stream_op *const op = &stream->ops[i % MAX_OPS];
            const char *const from = op->from;
            if ((op->kind == OP_COPY || op->kind == OP_CONVERT) && from < start + n_bytes &&
                start < from + op->n_bytes)
                return true;
        }
    }
    return false;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Locked, as memory can't be unregistered meanwhile. Whether it is what it was. */
static bool is_unchanged(const struct CUstream_st *stream, const stream_op *op) {
    if (!is_within(registered, op->from, op->n_bytes)) {
        add_complaint("slot reused: memory was unregistered before the end of its copy");
        return false;
    }
    if (sum_of(op->from, op->n_bytes) == op->before) return true;
    add_complaint("slot reused: memory was written before the end of its copy by stream %d",
                  stream->number);
    return false;
}

/* Unlocked. */
static void run_copy(const struct CUstream_st *stream, const stream_op *op) {
    sleep_ns(op_delay_ns);
    pthread_mutex_lock(&mutex);
    const bool unchanged = is_unchanged(stream, op);
    if (unchanged) memcpy(op->to, op->from, op->n_bytes);
    pthread_mutex_unlock(&mutex);
    if (!unchanged) return;
    sleep_ns(op_delay_ns / 4);
    pthread_mutex_lock(&mutex);
    is_unchanged(stream, op);
    pthread_mutex_unlock(&mutex);
}

static void run_use(const stream_op *op) {
    sleep_ns(op_delay_ns / 8);
    if (op->sum) *op->sum = sum_of(op->from, op->n_bytes);
    memset(op->to, 0xee, op->n_bytes);
}

/* Unlocked. */
static void run_op(const struct CUstream_st *stream, stream_op *op) {
    switch (op->kind) {
    case OP_COPY:
        run_copy(stream, op);
        return;
    case OP_CONVERT:
        sleep_ns(op_delay_ns / 8);
        fm_device_convert(&op->format, &op->job);
        return;
    case OP_USE:
        run_use(op);
        return;
    case OP_SPIN:
        sleep_ns(op->time_ns);
        return;
    case OP_HOLD:
        pthread_mutex_lock(&mutex);
        while (is_held) pthread_cond_wait(&changed, &mutex);
        break;
    case OP_RECORD:
        pthread_mutex_lock(&mutex);
        if (op->event->n_done < op->version) op->event->n_done = op->version;
        break;
    case OP_WAIT:
        pthread_mutex_lock(&mutex);
        while (op->event->n_done < op->version) pthread_cond_wait(&changed, &mutex);
        op->event->n_waiting--;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void *run_stream(void *argument) {
    struct CUstream_st *const stream = argument;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (stream->n_run == stream->n_queued && !stream->ending)
            pthread_cond_wait(&changed, &mutex);
        if (stream->n_run == stream->n_queued) break;
        stream_op *const op = &stream->ops[stream->n_run % MAX_OPS];
        pthread_mutex_unlock(&mutex);
        run_op(stream, op);
        pthread_mutex_lock(&mutex);
        stream->n_run++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

struct CUstream_st *open_stream(int number, int device) {
    struct CUstream_st *const stream = &streams[number];
    /* An earlier stream with this number may have recorded accesses. */
    const clocks known = stream->known;
    *stream =
        (struct CUstream_st){.used = true, .number = number, .device = device, .known = known};
    stream->ops = calloc(MAX_OPS, sizeof(stream_op));
    if (!stream->ops || pthread_create(&stream->thread, NULL, run_stream, stream)) abort();
    return stream;
}

struct CUstream_st *any_stream(int device) {
    for (int i = MAX_DEVICES; i < MAX_STREAMS; i++)
        if (!streams[i].used) return open_stream(i, device);
    abort();
}

void close_stream(struct CUstream_st *stream) {
    stream->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&mutex);
    free(stream->ops);
    stream->ops = NULL;
    stream->used = false;
}

int context_here(void) { return context_depth ? context_stack[context_depth] : context_stack[0]; }

struct CUstream_st *stream_of(cudaStream_t handle) {
    if (handle) return handle;
    const int device = context_here();
    if (device >= 0) return &streams[device];
    add_complaint("context: the default stream without a current context");
    return &streams[0];
}

void merge(clocks *into, const clocks *other) {
    for (int i = 0; i < MAX_STREAMS; i++)
        if (into->of[i] < other->of[i]) into->of[i] = other->of[i];
}

void push(struct CUstream_st *stream, const stream_op *new_op) {
    if (stream->capturing)
        add_complaint("capture: stream %d is being captured, and something was queued there",
                      stream->number);
    while (stream->n_queued - stream->n_run == MAX_OPS) pthread_cond_wait(&changed, &mutex);
    stream_op *const place = &stream->ops[stream->n_queued++ % MAX_OPS];
    *place = *new_op;
    merge(&stream->known, &known_here);
    stream->known.of[stream->number]++;
    pthread_cond_broadcast(&changed);
}

/* ---- the order of accesses ------------------------------------------------------------------- */

void note_access(struct CUstream_st *stream, const void *start, size_t n_bytes, bool writes) {
    const char *const from = start, *const end = from + n_bytes;
    size_t kept = 0;
    merge(&stream->known, &known_here);
    for (size_t i = 0; i < n_accesses; i++) {
        const access_note *const old = &accesses[i];
        const bool overlaps = old->start < end && from < old->end;
        const bool ordered = stream->known.of[old->stream] >= old->at;
        if (overlaps && (writes || old->writes) && !ordered)
            add_complaint(
                "unordered: stream %d %s %zu bytes that stream %d %s; no event orders them",
                stream->number, writes ? "writes" : "reads", n_bytes, old->stream,
                old->writes ? "writes" : "reads");
        /* Whatever follows this access also follows the old one. */
        if (overlaps && writes && ordered && old->start >= from && old->end <= end) continue;
        accesses[kept++] = *old;
    }
    n_accesses = kept;
    if (n_accesses == MAX_ACCESSES) abort();
    accesses[n_accesses++] =
        (access_note){from, end, stream->number, stream->known.of[stream->number] + 1, writes};
}
