/* The streams of the stub CUDA runtime (stub_cudart.h): queued operations, the threads that run
 * them, and the order of memory accesses. `mutex` guards everything, except where a function says
 * otherwise. */
#ifndef FM_TEST_STUB_STREAMS_H
#define FM_TEST_STUB_STREAMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/cuda/convert.h"

#define MAX_DEVICES 2
#define MAX_STREAMS 32
#define MAX_OPS 256
#define MAX_BLOCKS 512
#define MAX_ACCESSES 8192
#define COMPLAINT_BYTES 16384

typedef struct clocks {
    uint64_t of[MAX_STREAMS]; /* the known progress of each stream */
} clocks;

typedef enum op_kind { OP_COPY, OP_CONVERT, OP_USE, OP_SPIN, OP_HOLD, OP_RECORD, OP_WAIT } op_kind;

typedef struct stream_op {
    op_kind kind;
    const void *from;
    void *to;
    size_t n_bytes;
    uint64_t before; /* OP_COPY: checksum of `from` when it was queued */
    uint64_t *sum;
    uint64_t time_ns;
    cudaEvent_t event;
    uint64_t version; /* of the event */
    fm_device_format format;
    fm_device_job job;
} stream_op;

/* Everything is under `mutex`; a stream's thread runs its ops without it. */
struct CUstream_st {
    bool used, own, nonblocking, capturing, ending;
    int number, device;
    pthread_t thread;
    stream_op *ops; /* [MAX_OPS], a circle */
    uint64_t n_queued, n_run;
    clocks known;
};

struct CUevent_st {
    int device;
    bool own;
    uint64_t n_recorded, n_done;
    clocks known;
    int n_waiting; /* ops that wait for it */
};

typedef struct block {
    const char *start;
    size_t n_bytes;
    bool own; /* the plug-in's, not the test's */
} block;

typedef struct access_note {
    const char *start, *end;
    int stream;
    uint64_t at;
    bool writes;
} access_note;

extern pthread_mutex_t mutex;
extern pthread_cond_t changed;
extern struct CUstream_st streams[MAX_STREAMS];
extern block device_blocks[MAX_BLOCKS], registered[MAX_BLOCKS];
extern access_note accesses[MAX_ACCESSES];
extern size_t n_accesses;
extern uint64_t op_delay_ns;
extern bool is_held; /* an OP_HOLD runs until this is false */
extern char complaint_text[COMPLAINT_BYTES];
extern __thread int context_stack[8];
extern __thread int context_depth;
extern __thread clocks known_here; /* progress that this thread itself has waited for */

void add_complaint(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t sum_of(const void *bytes, size_t n_bytes);
bool is_within(const block *list, const void *start, size_t n_bytes);
block *place_for(block *list, const void *start);
/* Locked. Whether a copy that has not ended reads from this memory. */
bool is_being_read(const char *start, size_t n_bytes);
/* Locked. */
struct CUstream_st *open_stream(int number, int device);
struct CUstream_st *any_stream(int device);
/* Called with the lock held; drops it while waiting. Waits until all queued operations have run. */
void close_stream(struct CUstream_st *stream);
int context_here(void);
/* Locked. The stream of a handle; NULL is the current context's default stream. */
struct CUstream_st *stream_of(cudaStream_t handle);
void merge(clocks *into, const clocks *other);
/* Called with the lock held; drops it while the stream is full. */
void push(struct CUstream_st *stream, const stream_op *new_op);
/* Locked. Records that the next operation in `stream` accesses these bytes. */
void note_access(struct CUstream_st *stream, const void *start, size_t n_bytes, bool writes);

#endif
