/*
 * Counters and per-step records of one loader.
 *
 * Times are nanoseconds of the monotonic clock. A structure is filled by fm_loader_stats() or
 * fm_loader_steps() and belongs to the caller.
 */
#ifndef FEEDMILL_STATS_H
#define FEEDMILL_STATS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One field list, so that the structure and every binding of it stay the same: X(name, meaning). */
#define FM_STATS_FIELDS(X)                                                                     \
    X(batches, "batches handed to the consumer")                                               \
    X(samples, "samples in those batches")                                                     \
    X(epochs, "epochs started")                                                                \
    X(native_samples, "samples decoded and transformed natively")                              \
    X(fallback_samples, "samples finished by the caller's fallback (Pillow, from Python)")     \
    X(fallback_format, "... because the bytes are not a JPEG")                                 \
    X(fallback_kind, "... because of a JPEG kind that is not decoded natively (CMYK, 12 bit)") \
    X(fallback_damaged, "... because the file is damaged or cut short")                        \
    X(fallback_read, "... because the file could not be read")                                 \
    X(fallback_limit, "... because a limit (pixels, bytes) or an unusual geometry was met")    \
    X(errors, "batches that ended in an error")                                                \
    X(copied_batches, "batches copied out because the caller held too many")                   \
    X(copied_bytes, "bytes of those copies")                                                   \
    X(copy_ns, "time spent in those copies")                                                   \
    X(read_files, "files read")                                                                \
    X(read_opens, "files opened")                                                              \
    X(read_bytes, "bytes read")                                                                \
    X(read_ns, "sum over files of the time from the start of the read to its last byte")       \
    X(decode_ns, "sum over samples of the wall time in the decoder")                           \
    X(transform_ns, "sum over samples of the wall time in resize, flip, normalize and store")  \
    X(worker_cpu_ns, "CPU time of the decode threads")                                         \
    X(worker_idle_ns, "sum over decode threads of the time without work")                      \
    X(wait_idle_ns, "... as far as a step waited for data meanwhile")                          \
    X(fallback_ns, "time spent in the caller's fallback")                                      \
    X(host_wait_ns, "sum over steps of the time inside next()")                                \
    X(data_wait_ns, "sum over steps of the part of host_wait_ns before the batch was ready")   \
    X(wall_ns, "time from the first request of each epoch to its last return, summed")         \
    X(first_batches, "epochs whose first batch was delivered")                                 \
    X(first_batch_ns,                                                                          \
      "sum over them of the time from the epoch's start to that batch's being ready")          \
    X(open_ns, "time that opening took")                                                       \
    X(threads_created, "threads created since open")                                           \
    X(allocations, "blocks of memory taken since open")                                        \
    X(allocated_bytes, "bytes in those blocks")                                                \
    X(n_threads, "decode threads")                                                             \
    X(n_slots, "batch slots in the ring")                                                      \
    X(slot_bytes, "bytes of one slot")                                                         \
    X(read_depth, "files the reader may have in flight")

typedef struct fm_stats {
#define FM_X(name, meaning) uint64_t name;
    FM_STATS_FIELDS(FM_X)
#undef FM_X
    char reader[16];         /* "uring" or "pread" */
    char reader_reason[192]; /* why that one */
    char cpu[16]; /* instructions of the kernels: "scalar", "sse41", "avx2" or "avx512" */
} fm_stats;

/* One training step: the wait for one batch. */
typedef struct fm_step {
    uint64_t step;          /* counts from 0 since open */
    uint32_t epoch;         /* epochs started before this one's */
    uint32_t ready_batches; /* batches that were ready when the step asked */
    uint64_t request_ns;    /* clock at the request */
    uint64_t host_wait_ns;  /* request to return */
    uint64_t data_wait_ns;  /* request to the batch being ready; 0 if it was ready already */
} fm_step;

#ifdef __cplusplus
}
#endif
#endif
