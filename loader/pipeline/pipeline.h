/*
 * The loader's inside: samples on their way through reader, workers and ring.
 *
 * A group is a batch on its way; its samples are tasks. Groups stand in a circle in the order of
 * delivery. A task is reading (the reader has it), then in its group's list of those with bytes,
 * then with a worker, then done or rejected. One whose bytes the caller gave is never reading: it
 * begins in the list, or rejected where they are too many. Groups get slots in order, and workers
 * take from the oldest group that has a slot and a task with bytes, so that all of them finish the
 * oldest batch first. Of its tasks they take the largest files first, which take the longest: with
 * a large one at the end, all workers but one would have nothing left to do for this batch.
 *
 * With arrays in place of files a task is a run of samples (rows.h), and all of a batch's begin in
 * the list.
 *
 * Locks: everything marked "locked" is under the ring's lock. "consumer" is touched only by the
 * one thread that uses the loader.
 */
#ifndef FM_PIPELINE_PIPELINE_H
#define FM_PIPELINE_PIPELINE_H

#include <stdatomic.h>

#include "base/cgroup.h"
#include "base/thread.h"
#include "cache/cache.h"
#include "decode/decoder.h"
#include "pipeline/blame.h"
#include "pipeline/config.h"
#include "pipeline/pixels.h"
#include "pipeline/rows.h"
#include "pipeline/stage.h"
#include "read/reader.h"
#include "ring/ring.h"

/* Classes of file sizes, an octave each: below 8 KiB, below 16, ... Finer ones gain nothing. */
#define FM_N_SIZES 16
#define FM_SMALLEST_SIZE_LOG2 12

struct fm_group;

typedef struct fm_task {
    fm_read read; /* the reader's from submit to on_done, then the worker's; with data: no one's */
    /* The caller's bytes, or NULL. Set by the consumer before the task is in a list; read by the
     * worker until it finishes the task, and by nobody once the epoch is stopped. */
    const void *data; /* of a run: the rows' numbers */
    size_t data_bytes;
    bool cached;   /* data is the cache's, not the caller's */
    bool verified; /* see fm_sample */
    bool is_cut;   /* read.range_bytes is less than the image's */
    uint64_t range_bytes;
    struct fm_group *group;
    struct fm_task *next; /* locked: of the same group and size, with bytes as well */
    int64_t index;        /* of a run: its last sample's, or that of the one that was rejected */
    uint32_t occurrence;
    uint32_t position;                /* in its batch; of a run: its first sample's */
    uint32_t n_samples;               /* 1, or those of the run */
    uint32_t worker;                  /* the worker's number; UINT32_MAX: none had it */
    fm_work offered, claimed;         /* locked: the loader's sum when it was offered, claimed */
    fm_work own;                      /* the worker's, then locked: what it took */
    uint64_t claimed_ns, finished_ns; /* the worker's, then locked; 0: no worker had it */
    int cause;                        /* locked once finished: 0, or why it was rejected */
    char why[224];                    /* ... in words */
} fm_task;

typedef struct fm_group {
    uint64_t number; /* in its epoch */
    uint64_t batch;  /* since open */
    uint32_t n_tasks, n_samples;
    uint32_t n_left;                 /* locked: tasks neither done nor rejected */
    uint32_t n_rejected;             /* locked */
    fm_slot *slot;                   /* locked: NULL until one is free */
    fm_task *with_bytes[FM_N_SIZES]; /* locked: lists by class of size; see fm_group_push() */
    uint32_t sizes;                  /* locked: bit i is set where with_bytes[i] has tasks */
    uint64_t ready_ns;               /* locked: when n_left became 0 */
    fm_task *last;                   /* locked: the task that made it so */
    uint64_t returned_ns;            /* locked: when the caller finished the last rejected one */
    uint64_t queued_ns;              /* locked: when its copy to the device was queued; 0: not */
    uint64_t submitted_ns;           /* when it came */
    uint64_t slot_ns, released_ns;   /* locked: when it got the slot; when that became free */
    fm_work slot_work;               /* locked: the loader's sum when it got the slot */
    fm_task *tasks;                  /* [batch_size], fixed */
    int64_t *labels;                 /* [batch_size], consumer; NULL with arrays */
    /* With arrays, [batch_size]; set before a task is in a list, and read by the workers. */
    int64_t *indices, *rows;
    uint32_t *uses; /* of the indices in this epoch before, where images are; else NULL */
    char *paths;    /* consumer: the tasks' paths, one after the other */
    size_t paths_bytes;
    bool failed;    /* consumer: a rejected task could not be finished */
    fm_error error; /* consumer: ... and why */
} fm_group;

/*
 * What the record of a step needs of the batch that it got. It is taken when next() hands the batch
 * out, as the group is then used for another one.
 */
typedef struct fm_delivery {
    uint64_t number; /* of the batch in its epoch */
    uint32_t n_samples;
    bool failed; /* next() returned an error in its place */
    uint64_t submitted_ns, slot_ns, ready_ns, returned_ns, queued_ns;
    fm_work slot_work;
    /* Of the sample that was finished last. */
    int64_t index;
    bool in_memory; /* its bytes were never read */
    uint64_t started_ns, short_ns, bytes_ns, claimed_ns, finished_ns;
    fm_work offered, claimed, own;
} fm_delivery;

/* One decode thread and its own counters, read by fm_loader_stats(). */
typedef struct fm_worker {
    _Alignas(FM_MEM_ALIGN) fm_thread thread;
    struct fm_loader *loader;
    uint32_t number;
    fm_decoder *decoder;
    fm_pixels *pixels;        /* also with arrays whose images have operations to go through */
    fm_rows_scratch scratch;  /* with arrays that hold images, in place of the decoder */
    fm_core_clock core_clock; /* the worker's */
    /* The worker adds (relaxed), stats read. */
    _Atomic uint64_t n_samples, decode_ns, transform_ns, idle_ns;
    _Atomic uint64_t idle_since_ns; /* 0: working */
} fm_worker;

typedef enum fm_epoch_state { FM_EPOCH_NONE, FM_EPOCH_OPEN, FM_EPOCH_FINISHED } fm_epoch_state;

struct fm_loader {
    /* Fixed after open. */
    fm_config config;
    fm_plan plan;   /* of what slots hold */
    fm_plan result; /* of what is delivered: the same, unless the device converts */
    pid_t pid;
    fm_mem_counter counter;
    fm_ring *ring;
    fm_reader *reader;
    fm_worker *workers; /* [config.n_threads] */
    fm_throttle throttle;
    /* With arrays; there is no reader then. */
    fm_array *arrays;     /* [config.arrays.n], what config.arrays.list is */
    fm_section *sections; /* [config.arrays.n] */
    fm_array_image image; /* that the first one's rows hold, if they do */
    uint64_t n_rows;      /* that all of them have */
    size_t row_bytes;     /* of a sample's rows together */
    uint32_t rows_per_run, max_tasks;
    bool mapped;           /* one of them may have to be read from storage */
    uint8_t *header;       /* of files that are no images: config.plain.header */
    fm_store_copy *stream; /* how rows and such files are copied past the cache; NULL: not */
    size_t batch_bytes;    /* of a batch's images or sections */
    uint32_t n_workers;
    bool broken; /* consumer: reads are stuck; only close is left */
    fm_stage stage;

    /* Locked. */
    fm_group *groups; /* [config.prefetch_batches], a circle */
    uint32_t head, n_groups;
    uint32_t n_with_slot;         /* so many of the oldest groups have a slot */
    uint32_t n_reading, n_active; /* tasks with the reader, with workers */
    bool stopping;                /* workers end */
    bool woken;                   /* fm_loader_wake() was called: next() returns FM_AGAIN */
    fm_work work;                 /* of all samples that workers finished */
    _Atomic bool cancelled;       /* the epoch's work is dropped; also read without the lock */

    /* Consumer. */
    fm_epoch_state epoch_state;
    uint64_t seed;
    uint32_t epoch_number;
    bool ahead;           /* fm_epoch.ahead; fixed from start to stop */
    uint64_t started_ns;  /* when the epoch was */
    uint64_t n_submitted; /* batches of this epoch */
    int64_t *order;       /* the epoch's indices, if it was started with an order */
    bool has_order;
    size_t n_order, order_next, order_capacity;
    fm_sample *located; /* [batch_size], room for a batch of the order */
    bool drop_last;
    /* [n_samples]: uses of each index in this epoch; NULL where nothing is drawn */
    uint32_t *occurrences;
    /* [n_samples]: file's size when last read, 0 unknown; locked; NULL with arrays */
    uint32_t *file_bytes;
    fm_task *fallback_task; /* handed to the caller by next() */
    uint64_t fallback_since_ns;

    /* Records: written under lock, by the consumer those of steps and by all those of samples. */
    fm_step *steps; /* [FM_N_STEPS] */
    uint64_t n_steps;
    /* With `ahead`: locked. The batches that next() handed out last, each at its number modulo
     * n_deliveries. */
    fm_delivery *deliveries;
    uint32_t n_deliveries;
    uint64_t n_handed_out, n_taken; /* in this epoch: by next(), and of those by the consumer */
    fm_sample_record *records;      /* [config.sample_records] */
    uint64_t n_records;
    fm_slow_sample slow[FM_N_SLOW]; /* in no order */
    uint32_t n_slow;
    uint64_t slow_limit_ns; /* what a sample must exceed to be one of them */
    uint64_t n_batches;     /* submitted since open */

    /* Sums: the consumer writes, under lock, stats read. */
    uint64_t request_ns; /* of the step that runs, 0: none */
    uint32_t request_ready;
    uint64_t since_ns;        /* the end of the step before, if it was of this epoch */
    fm_work since_work;       /* the sum of work then */
    uint64_t throttled_ns;    /* fm_throttle_ns() then */
    uint64_t waited_until_ns; /* when that wait was last looked at */
    uint64_t last_return_ns;  /* up to which the sums reach; 0: no request in this epoch yet */
    fm_stats sums;
};

/* pipeline.c */
/* FM_ERR_ARGUMENT or FM_ERR_FORKED where a call is not allowed at all. */
int fm_loader_check(const fm_loader *loader, fm_error *error);
/* FM_ERR_STATE where no epoch runs that takes batches. */
int fm_loader_check_open(const fm_loader *loader, fm_error *error);
/* Submits batches of the epoch's order while there is room. */
int fm_loader_feed(fm_loader *loader, fm_error *error);
/* A group that is not in the circle begins anew, with everything but its tasks. */
void fm_group_begin(fm_loader *loader, fm_group *group);

/* rows.c */
/* A run from the arrays to its place in the batch. What it returns concerns task->index. */
int fm_rows_run(fm_worker *worker, fm_task *task, fm_error *error);
/* The same for rows that are copied, on any thread. */
void fm_rows_copy(const fm_loader *loader, const fm_task *task);

/* record.c: steps, samples, sums of waits */
/* Locked. The clock of the wait for one batch starts, unless it runs already. */
void fm_record_request(fm_loader *loader);
/* What the record of a step needs of a group that is complete. */
fm_delivery fm_record_delivery(const fm_group *group);
/* Locked. Counts a batch that the consumer got, or an error in its place. */
void fm_record_taken(fm_loader *loader, const fm_delivery *delivery);
/* Locked. A step got its batch, which was ready at ready_ns: when its copy to the device was queued
 * or, with `ahead`, when its collate function was done. */
void fm_record_step(fm_loader *loader, const fm_delivery *delivery, uint64_t ready_ns);
/* Locked. A wait brought no batch: an error (of that batch), a time-out or an interrupt (NULL). It
 * is part of the sums, but no step. */
void fm_record_failed_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns);
/* Locked. A task is done or rejected. */
void fm_record_sample(fm_loader *loader, const fm_task *task);

/* run.c */
/* A worker thread's body; argument: fm_worker. */
void *fm_run_worker(void *argument);
/* The reader's on_done; user: fm_loader. */
void fm_run_on_read(void *user, fm_read *read);
/* Locked, but not meanwhile. A group that has a slot and one run, of rows that are copied: the
 * caller does it here and now. */
void fm_run_at_once(fm_loader *loader, fm_group *group);
/* Locked. All runs of a group go to the workers. */
void fm_run_offer_all(fm_loader *loader, fm_group *group);
/* Locked. A task with data, of a group in the circle, goes to the workers or is rejected. */
void fm_run_take_data(fm_loader *loader, fm_task *task);
/* Locked. Gives free slots to the oldest groups that have none, and wakes the workers if there are
 * tasks with bytes in them. */
void fm_run_assign_slots(fm_loader *loader);

/* By what the cache knows a task's file. */
static inline fm_cache_key fm_task_cache_key(const fm_task *task) {
    return (fm_cache_key){task->read.path, task->read.offset_bytes, task->read.range_bytes};
}

/* Locked. A task has its bytes, so many. */
static inline void fm_group_push(fm_group *group, fm_task *task, uint64_t n_bytes) {
    const int log2 = 63 - __builtin_clzll(n_bytes | 1) - FM_SMALLEST_SIZE_LOG2;
    const int size = log2 < 0 ? 0 : log2 < FM_N_SIZES ? log2 : FM_N_SIZES - 1;
    task->next = group->sizes >> size & 1 ? group->with_bytes[size] : NULL;
    group->with_bytes[size] = task;
    group->sizes |= 1u << size;
}

/* Locked. Takes one of the largest tasks with bytes out; NULL: there is none. */
static inline fm_task *fm_group_pop(fm_group *group) {
    if (!group->sizes) return NULL;
    const int size = 31 - __builtin_clz(group->sizes);
    fm_task *const task = group->with_bytes[size];
    group->with_bytes[size] = task->next;
    if (!task->next) group->sizes &= ~(1u << size);
    return task;
}

/* Locked. When a batch could be handed out. */
static inline uint64_t fm_group_ready_ns(const fm_group *group) {
    return group->queued_ns > group->ready_ns ? group->queued_ns : group->ready_ns;
}

static inline fm_group *fm_group_at(fm_loader *loader, uint32_t nth) {
    const uint32_t i = loader->head + nth; /* no division: this runs several times a sample */
    const uint32_t n = loader->config.prefetch_batches;
    return &loader->groups[i < n ? i : i - n];
}

#endif
