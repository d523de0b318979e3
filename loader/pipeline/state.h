/*
 * The state of a loader: pending batches, their tasks, decode threads, the epoch, and records.
 *
 * A pending batch was submitted and is not delivered yet. Pending batches stand in a queue in the
 * order of delivery. Each consists of tasks: a task is one sample or, with arrays, several samples
 * that follow one another. Its way:
 *
 *     reading:   the reader has it. One whose bytes the caller gave, or the cache, is never
 * reading. decodable: it has its bytes and is in its batch's lists, see schedule.h. active:    a
 * decode thread works on it. finished:  its samples are in the batch's buffer, or it was rejected:
 * `cause` says why.
 *
 * Pending batches get buffers in order. Decode threads dequeue from the oldest batch that has a
 * buffer and a decodable task, so that all of them work on the oldest batch first.
 *
 * Threads: everything under "locked" is read and written with the ring's lock held. "Consumer" is
 * touched only by the one thread that calls fm_loader_*(). "Fixed" does not change after open.
 */
#ifndef FM_PIPELINE_STATE_H
#define FM_PIPELINE_STATE_H

#include <stdatomic.h>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "cache/cache.h"
#include "decode/decoder.h"
#include "pipeline/attribution.h"
#include "pipeline/config.h"
#include "pipeline/device_stage.h"
#include "pipeline/pixels.h"
#include "pipeline/rows.h"
#include "read/reader.h"
#include "ring/ring.h"

/* Classes of file sizes, each twice as large as the one before: below 8 KiB, below 16, ... */
#define FM_N_SIZE_CLASSES 16

/* ---- batches --------------------------------------------------------------------------------- */

typedef struct fm_task {
    fm_read read; /* the reader's until on_done, then the decode thread's; unused with `data` */
    /* Bytes in memory, the caller's or the cache's; of a task with arrays, its samples' row
     * numbers. NULL: the file is read. Set before the task is decodable. */
    const void *data;
    size_t data_bytes;
    bool is_cached;       /* data is the cache's */
    bool is_verified;     /* fm_sample.verified */
    bool is_partial;      /* read.range_bytes is less than the image's: a partial read */
    uint64_t range_bytes; /* fm_sample.range_bytes */
    struct fm_pending *batch;
    struct fm_task *next; /* locked: the next decodable one of the same batch and size class */
    int64_t index;        /* with arrays: of the last sample, or of the one that was rejected */
    uint32_t occurrence;  /* uses of this index in this epoch before */
    uint32_t position;    /* of its first sample in the batch */
    uint32_t n_samples;
    uint32_t worker; /* number of the decode thread that had it; UINT32_MAX: none */
    /* Locked: the sum of all threads' work when the task became decodable and when it was dequeued.
     */
    fm_work work_decodable, work_dequeued;
    fm_work own;                       /* what its decode thread spent on it */
    uint64_t dequeued_ns, finished_ns; /* clock; 0: no decode thread had it */
    int cause;                         /* 0, or why it was rejected */
    char why[224];                     /* the same in words */
} fm_task;

typedef struct fm_pending {
    uint64_t number;     /* in its epoch */
    uint64_t number_all; /* since the loader was opened */
    uint32_t n_tasks, n_samples;
    uint32_t n_left;                       /* locked: tasks that are not finished */
    uint32_t n_rejected;                   /* locked: finished tasks with a cause */
    fm_buffer *buffer;                     /* locked: NULL until one is free */
    fm_task *decodable[FM_N_SIZE_CLASSES]; /* locked: lists; see schedule.h */
    uint32_t size_classes;                 /* locked: bit i is set if decodable[i] is not empty */
    fm_task *last;                         /* locked: the task that was finished last */
    uint64_t submitted_ns;                 /* clock: it was submitted, */
    uint64_t buffer_ns, buffer_freed_ns;   /* locked: it got its buffer; that had become free, */
    uint64_t ready_ns;                     /* locked: n_left became 0, */
    uint64_t fallback_ns;    /* locked: the caller finished the last rejected sample, */
    uint64_t copy_queued_ns; /* locked: its copy to the device was queued. 0: not yet */
    fm_work work_at_buffer;  /* locked: the sum of all threads' work at buffer_ns */
    fm_task *tasks;          /* [max_tasks], fixed */
    int64_t *labels;         /* [batch_size], consumer; NULL with arrays */
    /* With arrays, [batch_size]: set before a task is decodable, then read by decode threads. */
    int64_t *indices, *rows;
    uint32_t *occurrences; /* where the arrays hold images; else NULL */
    char *paths;           /* consumer: the tasks' paths, one after the other */
    size_t paths_bytes;
    bool has_failed; /* consumer: the caller could not finish a rejected sample, */
    fm_error error;  /* and why */
} fm_pending;

/* What the record of a step needs to know of its batch after the batch has left the queue. */
typedef struct fm_delivery {
    uint64_t number; /* of the batch in its epoch */
    uint32_t n_samples;
    bool has_failed; /* next() returned an error in its place */
    uint64_t submitted_ns, buffer_ns, ready_ns, fallback_ns, copy_queued_ns;
    fm_work work_at_buffer;
    /* Of the task that was finished last. */
    int64_t index;
    uint64_t read_begin_ns, read_delay_ns, bytes_ns, dequeued_ns, finished_ns;
    fm_work work_decodable, work_dequeued, own;
} fm_delivery;

/* Batches that were submitted, oldest first, and what is shared by the threads that work on them.
 */
typedef struct fm_queue {
    fm_pending *entries; /* [capacity], used in a circle; fixed */
    uint32_t capacity;   /* prefetch_batches; fixed */
    uint32_t max_tasks;  /* of one batch; fixed */

    /* Locked. */
    uint32_t head, n;             /* the oldest entry, and how many are in use */
    uint32_t n_with_buffer;       /* that many of the oldest have a buffer */
    uint32_t n_reading, n_active; /* tasks that the reader has, that decode threads have */
    bool is_stopping;             /* decode threads shall end */
    bool is_woken;                /* fm_loader_wake() was called: next() returns FM_AGAIN */
    fm_work work;                 /* of all tasks that decode threads have finished */
    _Atomic bool is_cancelled;    /* the epoch's work is dropped; also read without the lock */
} fm_queue;

/* ---- decode threads -------------------------------------------------------------------------- */

/* Wall times of the stages of the task that a thread works on. */
typedef struct fm_stage_timer {
    uint64_t last_ns; /* clock: up to here the time is accounted for */
    uint64_t decode_ns, transform_ns;
} fm_stage_timer;

typedef struct fm_worker {
    _Alignas(FM_MEM_ALIGN) fm_thread thread;
    struct fm_loader *loader;
    uint32_t number;
    /* What the loader's processor opened; the others are NULL or zero. */
    fm_decoder *decoder;
    fm_pixels *pixels;
    fm_rows_scratch scratch;
    fm_core_clock core_clock;
    /* Written by this thread alone (relaxed), read by fm_loader_stats(). */
    _Atomic uint64_t n_samples, decode_ns, transform_ns, idle_ns;
    _Atomic uint64_t idle_since_ns; /* 0: it works */
} fm_worker;

/*
 * How the samples of one kind of dataset are made: encoded images (process_image.c), files of raw
 * values (process_raw.c), rows of arrays (process_rows.c). All run on decode threads, without the
 * lock. A failed process() leaves its reason in *error; its samples are rejected.
 */
typedef struct fm_processor {
    /* Opens what one decode thread needs, before that starts. What a failed call leaves is closed.
     */
    int (*open)(fm_worker *worker, fm_error *error);
    /* From the task's bytes to its samples' places in `memory`, that of the batch's buffer. */
    int (*process)(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                   fm_error *error);
} fm_processor;

extern const fm_processor fm_process_image, fm_process_raw, fm_process_rows;

/* ---- the loader ------------------------------------------------------------------------------ */

/* What a batch's memory holds. */
typedef struct fm_batch_layout {
    size_t batch_bytes;  /* of a full batch, without labels */
    size_t sample_bytes; /* from one sample to the next; 0: the samples are in sections, rows.h */
    size_t label_bytes;  /* of a full batch's labels; 0: it has none */
    bool has_images;
} fm_batch_layout;

/* Arrays whose rows are samples. */
typedef struct fm_rows_input {
    fm_array *arrays;     /* [config.arrays.n], what config.arrays.list is; NULL: no arrays */
    fm_section *sections; /* [config.arrays.n] */
    fm_array_image image; /* how the first one's rows hold images, if they do */
    uint64_t n_rows;      /* that all of them have */
    size_t row_bytes;     /* of a sample's rows together */
    uint32_t rows_per_task;
    bool is_mapped; /* rows may have to be read from storage */
} fm_rows_input;

typedef enum fm_epoch_state { FM_EPOCH_NONE, FM_EPOCH_OPEN, FM_EPOCH_FINISHED } fm_epoch_state;

/* The epoch that runs. Consumer, but for what is marked. */
typedef struct fm_epoch_run {
    fm_epoch_state state;
    uint64_t seed;       /* also read by decode threads; fixed from start to stop */
    uint32_t number;     /* likewise */
    bool is_ahead;       /* fm_epoch.ahead; likewise */
    uint64_t started_ns; /* clock */
    uint64_t n_submitted;
    bool has_order, drop_last;
    int64_t *order; /* [order_capacity]: the epoch's indices, if it was started with an order */
    size_t n_order, order_next, order_capacity;
    fm_sample *located;    /* [batch_size]: scratch for a batch of the order */
    uint32_t *occurrences; /* [n_samples]: uses of each index; NULL where nothing is drawn */
} fm_epoch_run;

/* Records of steps and samples, and sums. Written with the lock held: those of steps by the
 * consumer, those of samples by any thread. */
typedef struct fm_records {
    fm_step *steps; /* [FM_N_STEPS], used in a circle */
    uint64_t n_steps;
    fm_sample_record *samples; /* [config.sample_records], used in a circle */
    uint64_t n_samples;
    fm_slow_sample slow[FM_N_SLOW]; /* in no order */
    uint32_t n_slow;
    uint64_t slow_limit_ns; /* a sample that costs more becomes one of them */
    /* With fm_epoch.ahead: the latest batches that next() handed out, each at its number modulo
     * n_deliveries; how many next() handed out in this epoch, and how many of those the step
     * records have reached. */
    fm_delivery *deliveries;
    uint32_t n_deliveries;
    uint64_t n_handed_out, n_recorded;
    /* The step that waits for its batch. */
    uint64_t request_ns; /* clock; 0: none */
    uint32_t request_ready;
    uint64_t since_ns;        /* clock: the end of the step before, if it was of this epoch */
    fm_work since_work;       /* the sum of all threads' work then */
    uint64_t throttled_ns;    /* fm_throttle_ns() then */
    uint64_t waited_until_ns; /* clock: when the wait was last looked at */
    uint64_t last_return_ns;  /* clock: sums reach up to here; 0: no request in this epoch yet */
    fm_stats sums;
} fm_records;

struct fm_loader {
    /* Fixed. */
    fm_config config;
    fm_plan plan;   /* of what buffers hold */
    fm_plan result; /* of what is delivered: the same, unless the device converts */
    fm_batch_layout layout;
    const fm_processor *processor;
    fm_rows_input rows;
    uint8_t *header;            /* of raw files: config.raw.header */
    fm_store_copy *stream_copy; /* copies rows and raw files past the CPU's cache; NULL: it isn't
                                   worth it */
    pid_t pid;
    fm_mem_counter counter;
    fm_ring *ring;
    fm_reader *reader;  /* NULL with arrays */
    fm_worker *workers; /* [n_workers] */
    uint32_t n_workers;
    fm_throttle throttle;

    fm_queue queue;
    fm_device_stage device;
    fm_epoch_run epoch;
    fm_records records;

    /* Consumer. */
    uint64_t n_batches; /* submitted since open */
    bool is_broken;     /* reads are stuck: only close is left */
    fm_task *fallback;  /* the rejected sample that next() handed to the caller; NULL: none */
    uint64_t fallback_since_ns;

    uint32_t
        *file_bytes; /* locked: [n_samples], a file's size when last read, 0 unknown; or NULL */
};

/* Lock and unlock the ring, and with it all that is "locked". */
static inline void fm_loader_lock(fm_loader *loader) { fm_ring_lock(loader->ring); }
static inline void fm_loader_unlock(fm_loader *loader) { fm_ring_unlock(loader->ring); }

/* Locked, or the consumer's of an entry's fixed parts. The nth oldest pending batch. */
static inline fm_pending *fm_queue_at(fm_queue *queue, uint32_t nth) {
    const uint32_t i = queue->head + nth; /* no division: this runs several times a sample */
    return &queue->entries[i < queue->capacity ? i : i - queue->capacity];
}

static inline bool fm_is_cancelled(const fm_loader *loader) {
    return atomic_load_explicit(&loader->queue.is_cancelled, memory_order_relaxed);
}

/* Bytes of a batch of n samples, without labels. */
static inline size_t fm_layout_bytes(const fm_batch_layout *layout, uint32_t n_samples) {
    return layout->sample_bytes ? n_samples * layout->sample_bytes : layout->batch_bytes;
}

/* The key of a task's random parameters: of one whose samples have one index. */
static inline fm_draw_key fm_task_key(const fm_loader *loader, const fm_task *task) {
    return (fm_draw_key){loader->epoch.seed, loader->epoch.number, task->occurrence, task->index};
}

/* How the cache identifies a task's file. */
static inline fm_cache_key fm_task_cache_key(const fm_task *task) {
    return (fm_cache_key){task->read.path, task->read.offset_bytes, task->read.range_bytes};
}

/* Adds the time since the last call to a stage's. */
static inline void fm_timer_end(fm_stage_timer *timer, uint64_t *stage_ns) {
    const uint64_t now_ns = fm_clock_ns();
    *stage_ns += now_ns - timer->last_ns;
    timer->last_ns = now_ns;
}

/* FM_ERR_ARGUMENT or FM_ERR_FORKED where no call is allowed at all. In check.c. */
int fm_loader_check(const fm_loader *loader, fm_error *error);
/* FM_ERR_STATE where no epoch runs that takes batches. */
int fm_loader_check_open(const fm_loader *loader, fm_error *error);

#endif
