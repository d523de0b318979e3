/*
 * The state of a loader: pending batches, their tasks, decode threads, the epoch, and records.
 *
 * A pending batch was submitted and is not delivered yet. Pending batches form a queue in the order
 * of delivery. Each consists of tasks. A task is one sample or, with arrays, several consecutive
 * samples of the batch. Its states:
 *
 *     reading:   the reader has it; left out if the caller or the cache provides the bytes
 *     decodable: it has its bytes and is in one of its batch's lists (schedule.h)
 *     active:    a decode thread works on it
 *     finished:  its samples are in the batch's buffer, or it was rejected; then `cause` is set
 *
 * Pending batches get buffers in order. Decode threads dequeue from the oldest batch that has a
 * buffer and a decodable task, so that all of them work on the oldest batch first.
 *
 * Threads: members marked "locked" are read and written with the ring's lock held, those marked
 * "consumer" only by the one thread that calls fm_loader_*(). "Fixed" ones do not change after
 * open.
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
#include "pipeline/seek_index.h"
#include "pipeline/views.h"
#include "read/readers.h"
#include "ring/ring.h"

/* Classes of file sizes, each twice as large as the one before: below 8 KiB, below 16, ... */
#define FM_N_SIZE_CLASSES 16
/* Of a path, for which memory is reserved at open. Batches with longer ones get more. */
#define FM_PATH_BYTES_GUESS 128u

/* ---- batches --------------------------------------------------------------------------------- */

typedef struct fm_task {
    fm_read read; /* used by the reader until on_done(), then by the decode thread; unused with
                     `data` */
    /* Bytes in memory, owned by the caller or the cache; with arrays, the samples' row numbers.
     * NULL: the file is read. Set before the task is decodable. */
    const void *data;
    size_t data_bytes;
    bool is_cached;       /* the cache owns `data` */
    bool is_verified;     /* fm_sample.verified */
    bool is_partial;      /* a partial read: read.range_bytes is below range_bytes */
    uint64_t range_bytes; /* fm_sample.range_bytes */
    struct fm_pending *batch;
    struct fm_task *next; /* locked: the next decodable one of the same batch and size class */
    int64_t index;        /* with arrays: of the last sample, or of the one that was rejected */
    uint32_t occurrence;  /* earlier uses of this index in this epoch */
    uint32_t position;    /* of the task's first sample in the batch */
    uint32_t n_samples;
    uint32_t worker;  /* number of the decode thread that had it; UINT32_MAX: none */
    bool is_finished; /* locked: the samples are made, or rejected */
    /* With streams (virtual_workers.h): of the image; locked until the sample is decodable, then
     * fixed. 0: not measured. */
    int32_t width, height;
    bool has_bytes; /* locked: they are in memory, so that it may become decodable */
    /* Locked: the sum of all threads' work when the task became decodable and when it was dequeued.
     */
    fm_work work_decodable, work_dequeued;
    fm_work own;                       /* time that its decode thread spent on it */
    uint64_t dequeued_ns, finished_ns; /* clock; 0: no decode thread had it */
    int cause;                         /* 0, or the status for which it was rejected */
    char why[224];                     /* the message for `cause` */
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
    uint64_t submitted_ns;                 /* clock */
    /* Clock, locked; 0: not yet. */
    uint64_t buffer_ns;       /* when the batch got its buffer */
    uint64_t buffer_freed_ns; /* when that buffer had become free; 0: it was never used before */
    uint64_t ready_ns;        /* when n_left became 0, or at fallback_ns */
    uint64_t fallback_ns;     /* when the caller finished the last rejected sample */
    uint64_t copy_queued_ns;  /* when the copy to the device was queued */
    fm_work work_at_buffer;   /* locked: the sum of all threads' work at buffer_ns */
    fm_task *tasks;           /* [max_tasks], fixed */
    int64_t *labels;          /* [batch_size], consumer; NULL with arrays */
    /* With arrays, [batch_size]: set before a task is decodable, then read by decode threads. */
    int64_t *indices, *rows;
    uint32_t *occurrences; /* earlier uses of each index in this epoch */
    char *paths; /* consumer: the tasks' paths, each followed by its ETag, one after the other */
    size_t paths_bytes;
    bool has_failed; /* consumer: the caller could not finish a rejected sample */
    fm_error error;  /* consumer: returned in place of the batch */
    /* With streams (virtual_workers.h), locked. */
    uint32_t virtual_worker;
    bool waits;         /* for fm_loader_give_streams() */
    uint32_t n_drawn;   /* samples whose parameters are drawn */
    fm_task *held;      /* the rejected sample whose size the caller must find out; NULL: none */
    fm_streams *copies; /* before every eighth sample; fixed once these are drawn */
    fm_streams after;   /* behind the last sample */
} fm_pending;

/* See virtual_workers.h. Locked, unless marked. */
typedef struct fm_virtual_worker {
    fm_streams now;       /* behind the last sample that was drawn */
    fm_streams delivered; /* consumer: behind the last batch that was delivered */
    uint32_t n_given;     /* how many more batches with `waits` may begin: 0 or 1 */
} fm_virtual_worker;

typedef struct fm_virtual_workers {
    fm_virtual_worker *list; /* [capacity]; fixed while an epoch runs */
    uint32_t n, capacity;    /* n, fixed while an epoch runs: 0: the epoch has no streams */
    uint32_t chosen;         /* consumer: of the batches that are submitted next */
    bool chosen_waits;       /* consumer: fm_pending.waits of these */
    fm_streams scratch;
    fm_draw draws[FM_MAX_OPS]; /* scratch */
    /* Consumer: scratch for choosing what to read. */
    fm_streams ahead;
    fm_draw draws_ahead[FM_MAX_OPS];
} fm_virtual_workers;

/* What the record of a step needs to know of its batch after the batch has left the queue. */
typedef struct fm_delivery {
    uint64_t number; /* of the batch in its epoch */
    uint32_t n_samples;
    bool has_failed; /* next() returned an error in place of the batch */
    uint64_t submitted_ns, buffer_ns, ready_ns, fallback_ns, copy_queued_ns;
    fm_work work_at_buffer;
    /* Of the task that was finished last. */
    int64_t index;
    uint64_t read_begin_ns, read_delay_ns, bytes_ns, dequeued_ns, finished_ns;
    fm_work work_decodable, work_dequeued, own;
    fm_read_times read;
} fm_delivery;

/* The pending batches, oldest first, and the counters of the threads that work on them. */
typedef struct fm_queue {
    fm_pending *entries; /* [capacity], a circular buffer; fixed */
    uint32_t capacity;   /* prefetch_batches; fixed */
    uint32_t max_tasks;  /* of one batch; fixed */

    /* Locked. */
    uint32_t head, n;             /* the oldest entry, and how many are in use */
    uint32_t n_with_buffer;       /* how many of the oldest have a buffer */
    uint32_t n_reading, n_active; /* tasks with the reader, and tasks on decode threads */
    bool is_stopping;             /* decode threads must end */
    bool is_woken;                /* fm_loader_wake() was called: next() returns FM_AGAIN */
    fm_work work;                 /* of all tasks that decode threads have finished */
    _Atomic bool is_cancelled;    /* the epoch's work is dropped; also read without the lock */
} fm_queue;

/* ---- decode threads -------------------------------------------------------------------------- */

/* Wall times of the stages of one task, measured by the thread that works on it. */
typedef struct fm_stage_timer {
    uint64_t last_ns; /* clock: the end of the time that is accounted for */
    uint64_t decode_ns, transform_ns;
} fm_stage_timer;

typedef struct fm_worker {
    _Alignas(FM_MEM_ALIGN) fm_thread thread;
    struct fm_loader *loader;
    uint32_t number;
    /* Opened by the loader's processor if it uses them; the others are NULL or zero. */
    fm_decoder *decoder;
    fm_pixels *pixels;
    fm_view_tools views;
    fm_rows_scratch scratch;
    fm_jpeg_seek *seek; /* of the image that is being decoded; NULL: the loader has no seek_index */
    fm_core_clock core_clock;
    fm_streams streams; /* scratch of virtual_workers.c, as the next one */
    fm_draw draws[FM_MAX_OPS];
    /* Written by this thread alone (relaxed), read by fm_loader_stats(). */
    _Atomic uint64_t n_samples, n_seeks, decode_ns, transform_ns, idle_ns;
    _Atomic uint64_t idle_since_ns; /* 0: it works */
} fm_worker;

/*
 * Makes the samples of one kind of dataset: encoded images (process_image.c; process_views.c for
 * several views of one file), files of raw values (process_raw.c) or rows of arrays
 * (process_rows.c).
 * process() runs on decode threads, without the lock. If it fails, *error holds the reason and the
 * task's samples are rejected.
 */
typedef struct fm_processor {
    /*
     * For an epoch with streams: reads the size of a task's image from its header. Runs as
     * process(), and leaves nothing behind. NULL: the size is known.
     */
    int (*measure)(fm_worker *worker, fm_task *task, int32_t *width, int32_t *height,
                   fm_error *error);
    /* Opens what one decode thread needs, before the thread starts. fm_workers_close() closes it,
     * also after a failure. */
    int (*open)(fm_worker *worker, fm_error *error);
    /* Makes the task's samples from its bytes, at their places in `memory`, the batch's buffer. */
    int (*process)(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                   fm_error *error);
} fm_processor;

/* What processors for encoded images have in common, in process_image.c: the thread's decoder, and
 * begin and end of an image. An empty file is refused, and a partial read that does not end where
 * the restart index says; an end marker is written after it. end() also follows a failed begin().
 */
int fm_process_image_open_decoder(fm_worker *worker, fm_error *error);
int fm_process_image_begin(fm_worker *worker, fm_task *task, fm_image_info *info, fm_error *error);
void fm_process_image_end(fm_worker *worker, const fm_task *task);
/* The largest divisor of the size of the image that was begun (transform/scaled.h). */
int32_t fm_process_image_most_divisor(const fm_worker *worker);
int fm_process_image_measure(fm_worker *worker, fm_task *task, int32_t *width, int32_t *height,
                             fm_error *error);

extern const fm_processor fm_process_image, fm_process_views, fm_process_raw, fm_process_rows;

/* ---- the loader ------------------------------------------------------------------------------ */

/* What a batch's memory holds. */
typedef struct fm_batch_layout {
    size_t batch_bytes;  /* of a full batch, without labels */
    size_t sample_bytes; /* from one sample to the next; 0: the samples are in sections (rows.h), or
                            have several views */
    size_t label_bytes;  /* of a full batch's labels; 0: it has none */
    bool has_images;
} fm_batch_layout;

/* Arrays whose rows are samples. */
typedef struct fm_rows_input {
    fm_array *arrays;     /* [config.arrays.n], also config.arrays.list; NULL: no arrays */
    fm_section *sections; /* [config.arrays.n] */
    fm_array_image image; /* the layout of images in the first array's rows, if they are images */
    uint64_t n_rows;      /* of the shortest array */
    size_t row_bytes;     /* of one sample, over all arrays */
    uint32_t rows_per_task;
    bool is_mapped; /* rows may have to be read from storage */
} fm_rows_input;

typedef enum fm_epoch_state { FM_EPOCH_NONE, FM_EPOCH_OPEN, FM_EPOCH_FINISHED } fm_epoch_state;

/* The current epoch. Consumer, unless marked. */
typedef struct fm_epoch_run {
    fm_epoch_state state;
    /* Also read by decode threads; fixed from start to stop. */
    uint64_t seed;
    uint32_t number;
    bool is_ahead;       /* fm_epoch.ahead */
    uint64_t started_ns; /* clock */
    uint64_t n_submitted;
    bool has_order, drop_last;
    int64_t *order; /* [order_capacity]: the epoch's indices, if it was started with an order */
    size_t n_order, order_next, order_capacity;
    fm_sample *located;    /* [batch_size]: scratch for a batch of the order */
    uint32_t *occurrences; /* [n_samples]: uses of each index; NULL without random parameters */
} fm_epoch_run;

/* Records of steps and samples, and sums. Written with the lock held: those of steps by the
 * consumer, those of samples by any thread. */
typedef struct fm_records {
    fm_step *steps; /* [FM_N_STEPS], a circular buffer */
    uint64_t n_steps;
    fm_sample_record *samples; /* [config.sample_records], a circular buffer */
    uint64_t n_samples;
    fm_slow_sample slow[FM_N_SLOW]; /* the slowest samples, unsorted */
    uint32_t n_slow;
    uint64_t slow_limit_ns; /* a sample that costs more is added to `slow` */
    /* With fm_epoch.ahead: the latest batches that next() handed out, each at its number modulo
     * n_deliveries; how many next() handed out in this epoch, and how many of those the step
     * records have reached. */
    fm_delivery *deliveries;
    uint32_t n_deliveries;
    uint64_t n_handed_out, n_recorded;
    /* The step that waits for its batch. */
    uint64_t request_ns;      /* clock: when the wait began; 0: no step waits */
    uint32_t request_ready;   /* batches that were ready then */
    uint64_t since_ns;        /* clock: the previous step's end, or request_ns in a new epoch */
    fm_work since_work;       /* the sum of all threads' work at since_ns */
    uint64_t throttled_ns;    /* fm_throttle_ns() when it was last read */
    uint64_t waited_until_ns; /* clock: the end of the last call that waited for this step */
    uint64_t last_return_ns;  /* clock: the end of the time in the sums; 0: new epoch */
    fm_stats sums;
} fm_records;

struct fm_loader {
    /* Fixed. */
    fm_config config;
    fm_plan plan;   /* of the values in buffers */
    fm_plan result; /* of the values delivered: the same, unless the device converts */
    fm_views views;
    fm_batch_layout layout;
    const fm_processor *processor;
    fm_rows_input rows;
    uint8_t *header;            /* of raw files; also config.raw.header */
    fm_store_copy *stream_copy; /* non-temporal copy of rows and raw files; NULL: memcpy() */
    pid_t pid;
    fm_mem_counter counter;
    fm_ring *ring;
    fm_readers readers;        /* not open with arrays */
    fm_seek_index *seek_index; /* NULL: seek points are not kept */
    fm_worker *workers;        /* [n_workers] */
    uint32_t n_workers;
    fm_throttle throttle;

    fm_queue queue;
    fm_virtual_workers virtual;
    fm_device_stage device;
    fm_epoch_run epoch;
    fm_records records;

    /* Consumer. */
    uint64_t n_batches; /* submitted since open */
    bool is_broken;     /* reads are stuck: the loader can only be closed */
    fm_task *fallback;  /* the rejected sample that next() handed to the caller; NULL: none */
    uint64_t fallback_since_ns;

    /* Locked, [n_samples * views.n_files]: each file's size when it was last read; 0: unknown. NULL
     * with arrays. */
    uint32_t *file_bytes;
};

/* Lock and unlock the ring's lock, which guards everything marked "locked". */
static inline void fm_loader_lock(fm_loader *loader) { fm_ring_lock(loader->ring); }
static inline void fm_loader_unlock(fm_loader *loader) { fm_ring_unlock(loader->ring); }

/* Locked; the consumer needs no lock for fixed members. Returns the nth oldest pending batch. */
static inline fm_pending *fm_queue_at(fm_queue *queue, uint32_t nth) {
    const uint32_t i = queue->head + nth; /* no division: this runs several times a sample */
    return &queue->entries[i < queue->capacity ? i : i - queue->capacity];
}

/* The number of a task's file among those of the dataset. */
static inline uint64_t fm_file_number(const struct fm_loader *loader, const fm_task *task) {
    const uint32_t n_files = loader->views.n_files;
    return (uint64_t)task->index * n_files + task->position % n_files;
}

/* Locked. The size of a task's file when it was last read. */
static inline uint32_t *fm_file_bytes_of(struct fm_loader *loader, const fm_task *task) {
    return &loader->file_bytes[fm_file_number(loader, task)];
}

static inline bool fm_is_cancelled(const fm_loader *loader) {
    return atomic_load_explicit(&loader->queue.is_cancelled, memory_order_relaxed);
}

/* Bytes of a batch of n samples, without labels. */
static inline size_t fm_layout_bytes(const fm_batch_layout *layout, uint32_t n_samples) {
    return layout->sample_bytes ? n_samples * layout->sample_bytes : layout->batch_bytes;
}

/* The key of the random parameters of a view of a task with one sample. */
static inline fm_draw_key fm_view_key(const fm_loader *loader, const fm_task *task, size_t view) {
    return (fm_draw_key){loader->epoch.seed,
                         loader->epoch.number,
                         task->occurrence,
                         task->index,
                         loader->views.list[view].first_op,
                         NULL,
                         NULL};
}

/* What a decode thread makes a view with. */
static inline fm_pixels *fm_view_pixels(const fm_worker *worker, size_t view) {
    return worker->views.pixels[worker->loader->views.list[view].tools];
}

/* How the cache identifies a task's file. */
static inline fm_cache_key fm_task_cache_key(const fm_task *task) {
    return (fm_cache_key){task->read.path, task->read.offset_bytes, task->read.range_bytes};
}

/* Adds to a counter of which this thread is the only writer: no read-modify-write is needed. */
static inline void fm_counter_add(_Atomic uint64_t *counter, uint64_t value) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + value,
                          memory_order_relaxed);
}

/* Adds the time since the timer's last call to *stage_ns. */
static inline void fm_timer_end(fm_stage_timer *timer, uint64_t *stage_ns) {
    const uint64_t now_ns = fm_clock_ns();
    *stage_ns += now_ns - timer->last_ns;
    timer->last_ns = now_ns;
}

/* Every call on a loader starts with this check: FM_ERR_ARGUMENT for NULL, FM_ERR_FORKED in a
 * forked child. In check.c. */
int fm_loader_check(const fm_loader *loader, fm_error *error);
/* FM_ERR_STATE unless an epoch runs that accepts batches. */
int fm_loader_check_open(const fm_loader *loader, fm_error *error);

#endif
