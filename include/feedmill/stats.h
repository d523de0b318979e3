/*
 * Counters and records of one loader.
 *
 * Times are nanoseconds; points in time are values of the monotonic clock. fm_loader_stats(),
 * fm_loader_steps(), fm_loader_slow_samples() and fm_loader_sample_records() fill structures that
 * the caller owns.
 */
#ifndef FEEDMILL_STATS_H
#define FEEDMILL_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "feedmill/status.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The causes of a wait for data: X(name, meaning). They add up to the wait exactly.
 *
 * A wait is attributed by the sample of the batch that was finished last: it is split in proportion
 * to how that sample spent its time since the previous step's end, or since it was submitted if
 * that was later. (A wait may begin when that sample is already being decoded, although slow reads
 * made the batch late.)
 */
#define FM_WAIT_CAUSE_FIELDS(X)                                                                   \
    X(storage_ns, "its file was being read, or waited to be read")                                \
    X(cpu_queue_decode_ns, "it waited for the decode threads, which were decoding other samples") \
    X(cpu_queue_transform_ns, "the same, while they were transforming other samples")             \
    X(decode_ns, "it was being decoded")                                                          \
    X(transform_ns, "it was being resized, flipped, normalized and stored")                       \
    X(slot_wait_ns, "it had its bytes, and all batch buffers were in use by consumer or copies")  \
    X(h2d_ns, "its batch was complete, and the copy to the GPU was not queued yet")               \
    X(starved_ns, "a decode thread had work and waited for a CPU: other threads, or a quota")     \
    X(python_ns, "the caller had not submitted it yet, or finished it itself (by Pillow)")        \
    X(unattributed_ns, "none of these")

typedef struct fm_wait_causes {
#define FM_X(name, meaning) uint64_t name;
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
} fm_wait_causes;

/*
 * What the read of an object on a server did in the storage_ns of a wait: X(name, meaning). The
 * parts add up to storage_ns exactly. If the read was queued because the server had asked for fewer
 * requests, that time is storage_throttled_ns. Other time in the queue is split in proportion to
 * what those reads had done that ended meanwhile.
 */
#define FM_STORAGE_PART_FIELDS(X)                                                                  \
    X(storage_connect_ns, "a connection was made (credentials, address, TCP, TLS)")                \
    X(storage_first_byte_ns, "a request was sent, and its response had not begun")                 \
    X(storage_transfer_ns, "a response was being received")                                        \
    X(storage_retry_ns, "an attempt that failed, and the pause after it")                          \
    X(storage_throttled_ns, "the server refused requests (status 429, 503): fewer and later ones") \
    X(storage_local_ns, "none of these: a file, and whatever else is not an object on a server")

typedef struct fm_storage_parts {
#define FM_X(name, meaning) uint64_t name;
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
} fm_storage_parts;

/* One list of fields for the structure and all bindings: X(name, meaning). */
#define FM_STATS_FIELDS(X)                                                                     \
    X(batches, "batches handed to the consumer")                                               \
    X(samples, "samples in those batches")                                                     \
    X(epochs, "epochs started")                                                                \
    X(native_samples, "samples decoded and transformed natively")                              \
    X(fallback_samples, "samples finished by the caller's fallback (Pillow, from Python)")     \
    X(fallback_format, "those of a format that is not decoded natively")                       \
    X(fallback_kind, "those of a kind that is not decoded natively (JPEGs with 12 bit)")       \
    X(fallback_damaged, "those whose file is damaged or truncated")                            \
    X(fallback_read, "those whose file could not be read")                                     \
    X(fallback_limit, "those that exceed a limit (pixels, bytes) or have an unusual geometry") \
    X(errors, "batches that ended in an error")                                                \
    X(copied_batches, "batches that were copied, as the caller held two already")              \
    X(copied_bytes, "bytes of those copies")                                                   \
    X(copy_ns, "time spent in those copies")                                                   \
    X(read_files, "files read")                                                                \
    X(read_opens, "files opened")                                                              \
    X(read_bytes, "bytes read")                                                                \
    X(read_ns, "sum over files of the time from the start of the read to its last byte")       \
    X(http_requests, "requests for objects that have ended, each attempt and redirect")        \
    X(http_retries, "those that followed a failure")                                           \
    X(http_refused, "those that were answered with status 429 or 503: too many")               \
    X(http_hedged, "second requests for what was not answered for long")                       \
    X(http_shared, "ranges of packs that came with another one's request")                     \
    X(http_bytes, "bytes of the bodies of responses, whether of use or not")                   \
    X(http_connect_ns, "sum over requests of the time until the connection was ready")         \
    X(http_first_byte_ns, "sum over requests of the time from then to the response")           \
    X(http_transfer_ns, "sum over requests of the time from then to its end")                  \
    X(http_retry_ns, "sum over failures of the pause before the next attempt")                 \
    X(cache_hits, "files that came from the cache, and were not read")                         \
    X(cache_misses, "files that were not in the cache")                                        \
    X(seek_samples, "JPEGs that were decoded with seek points of an earlier time")             \
    X(disk_hits, "objects that came from the disk cache")                                      \
    X(disk_hit_bytes, "their bytes")                                                           \
    X(disk_misses, "objects that were fetched, as the disk cache did not have them")           \
    X(decode_ns, "sum over samples of the wall time in the decoder")                           \
    X(transform_ns, "sum over samples of the wall time in resize, flip, normalize and store")  \
    X(starved_ns, "sum over samples of the time their decode thread waited for a CPU")         \
    X(worker_cpu_ns, "CPU time of the decode threads")                                         \
    X(worker_idle_ns, "sum over decode threads of the time without work")                      \
    X(fallback_ns, "time spent in the caller's fallback")                                      \
    X(host_wait_ns, "sum over steps of the time inside next()")                                \
    X(data_wait_ns, "sum over steps of the part of host_wait_ns before the batch was ready")   \
    X(wall_ns, "time from the first request of each epoch to its last return, summed")         \
    X(first_batches, "epochs whose first batch was delivered")                                 \
    X(first_batch_ns,                                                                          \
      "sum over them of the time from the epoch's start until that batch was ready")           \
    X(open_ns, "time that fm_loader_open() took")                                              \
    X(threads_created, "threads created since open")                                           \
    X(allocations, "blocks of memory allocated since open")                                    \
    X(allocated_bytes, "bytes in those blocks")                                                \
    X(n_threads, "decode threads")                                                             \
    X(n_slots, "batch buffers in the ring")                                                    \
    X(slot_bytes, "bytes of one batch buffer")                                                 \
    X(read_depth, "files the reader may have in flight")                                       \
    X(h2d_batches, "batches whose copy to the device was queued")                              \
    X(h2d_bytes, "bytes of those copies")                                                      \
    X(pinned_bytes, "bytes of batch buffers that are page-locked")                             \
    X(cache_files, "files in the cache")                                                       \
    X(cache_bytes, "memory that the cache uses")                                               \
    X(seek_images, "images that have seek points")                                             \
    X(seek_bytes, "memory that these use")                                                     \
    X(disk_entries, "objects in the folder of the disk cache, of all processes")               \
    X(disk_bytes, "bytes of disk that they use")                                               \
    X(disk_stored, "objects that this process has stored there since the cache was opened")    \
    X(disk_refused, "those that were not stored, as the cache was full or the disk too slow")  \
    X(disk_failed, "those that could not be written: the disk was full, for example")

typedef struct fm_stats {
#define FM_X(name, meaning) uint64_t name;
    FM_STATS_FIELDS(FM_X)
#undef FM_X
    fm_wait_causes causes;    /* of data_wait_ns */
    fm_storage_parts storage; /* of causes.storage_ns */
    char reader[24];          /* "uring" or "pread"; then "+http" with objects, and "+custom" with a
                                 custom reader */
    char reader_reason[192];  /* why this reader was chosen */
    char cpu[16]; /* instructions of the kernels: "scalar", "sse41", "avx2", "avx512", "neon" */
} fm_stats;

typedef enum fm_phase {
    FM_PHASE_FIRST,    /* the first step since the loader was opened */
    FM_PHASE_BOUNDARY, /* the first step of a later epoch */
    FM_PHASE_STEADY    /* any other */
} fm_phase;

/* One training step, the wait for one batch: X(type, name, meaning); then FM_WAIT_CAUSE_FIELDS and
 * FM_STORAGE_PART_FIELDS. */
#define FM_STEP_FIELDS(X)                                                                    \
    X(uint64_t, step, "counts from 0 since open")                                            \
    X(uint32_t, epoch, "epochs started before this one's")                                   \
    X(uint32_t, phase, "an fm_phase")                                                        \
    X(uint32_t, ready_batches, "batches that were ready when the step asked")                \
    X(uint32_t, n_samples, "samples in the batch")                                           \
    X(uint64_t, request_ns, "clock at the request")                                          \
    X(uint64_t, host_wait_ns, "request to return")                                           \
    X(uint64_t, data_wait_ns, "request until the batch was ready; 0 if it was ready before") \
    X(uint64_t, overhead_ns, "host_wait_ns - data_wait_ns: waking up, copying, the binding") \
    X(uint64_t, compute_ns, "return to the next request of the epoch; 0 until that comes")   \
    X(int64_t, last_index, "index of the sample that was finished last")

typedef struct fm_step {
#define FM_X(type, name, meaning) type name;
    FM_STEP_FIELDS(FM_X)
#undef FM_X
    fm_wait_causes causes;    /* of data_wait_ns */
    fm_storage_parts storage; /* of causes.storage_ns */
} fm_step;

/* When one sample passed each stage: X(type, name, meaning). The time of a skipped stage is 0. */
#define FM_SAMPLE_RECORD_FIELDS(X)                                                       \
    X(int64_t, index, "its index")                                                       \
    X(uint64_t, batch, "its batch, counted since open")                                  \
    X(uint32_t, epoch, "as in fm_step")                                                  \
    X(uint32_t, worker, "which decode thread, from 0; UINT32_MAX: none")                 \
    X(uint32_t, slot, "which batch buffer, from 0")                                      \
    X(int32_t, status, "0, or the status for which it was rejected")                     \
    X(uint64_t, file_bytes, "bytes of the encoded image")                                \
    X(uint64_t, submitted_ns, "clock when it was submitted")                             \
    X(uint64_t, read_begin_ns, "clock when its read began")                              \
    X(uint64_t, read_end_ns, "clock when its last byte was read")                        \
    X(uint64_t, released_ns, "clock when the buffer's previous batch was released")      \
    X(uint64_t, slot_ns, "clock when its batch got the buffer")                          \
    X(uint64_t, work_begin_ns, "clock when a decode thread dequeued it")                 \
    X(uint64_t, work_end_ns, "clock when it was finished")                               \
    X(uint64_t, decode_ns, "CPU time of decoding it, estimated from the thread's share") \
    X(uint64_t, transform_ns, "the same of transforming it")                             \
    X(uint64_t, starved_ns, "the part of work_begin_ns to work_end_ns spent waiting for a CPU")

typedef struct fm_sample_record {
#define FM_X(type, name, meaning) type name;
    FM_SAMPLE_RECORD_FIELDS(FM_X)
#undef FM_X
} fm_sample_record;

#define FM_N_SLOW 16u
#define FM_SLOW_PATH_BYTES 256u

/* One of the samples that took longest to read, decode and transform, without waits for a CPU. */
typedef struct fm_slow_sample {
    fm_sample_record record;
    char path[FM_SLOW_PATH_BYTES]; /* the end of a longer path; "" for bytes in memory */
} fm_slow_sample;

/* See feedmill/loader.h. */
typedef struct fm_loader fm_loader;

/* Snapshot of the counters. */
FM_API void fm_loader_stats(fm_loader *loader, fm_stats *out);

/*
 * Per-step records, oldest first: those numbered `from` and later, as far as they are still kept
 * (the last 65,536). Returns how many were written to out[capacity].
 */
FM_API size_t fm_loader_steps(fm_loader *loader, uint64_t from, fm_step *out, size_t capacity);

/*
 * Records of the samples that were finished or rejected, in that order: those numbered `from`
 * (counted since open) and later, as far as they are still kept (the last config.sample_records).
 * Returns how many were written to out[capacity], at most 1,024; *first gets the number of out[0].
 */
FM_API size_t fm_loader_sample_records(fm_loader *loader, uint64_t from, fm_sample_record *out,
                                       size_t capacity, uint64_t *first);

/*
 * The samples that took longest since open, each index at most once, the slowest first: at most
 * FM_N_SLOW. Returns how many were written to out[capacity].
 */
FM_API size_t fm_loader_slow_samples(fm_loader *loader, fm_slow_sample *out, size_t capacity);

/*
 * For a binding that does work before and after next(): set the step's request, or the last step's
 * return, to now. Without these calls, the start and the end of next() count.
 */
FM_API void fm_loader_step_request(fm_loader *loader);
FM_API void fm_loader_step_return(fm_loader *loader);

/*
 * With fm_epoch.ahead: records a step. Its consumer gets batch `number` of this epoch now, which
 * next() returned before, or an error in place of it. ready_ns: when the caller's own work on it
 * was done, on the monotonic clock; the wait for that work is python_ns. n_ready: batches that were
 * ready when the consumer asked. Consumer's thread. FM_ERR_ARGUMENT: there is no such batch.
 */
FM_API FM_CHECK_RESULT int fm_loader_step_ready(fm_loader *loader, uint64_t number,
                                                uint64_t ready_ns, uint32_t n_ready,
                                                fm_error *error);

#ifdef __cplusplus
}
#endif
#endif
