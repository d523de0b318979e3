/* Wait attribution: splits a wait for data by cause, from the times of one sample. Pure functions.
 */
#ifndef FM_PIPELINE_ATTRIBUTION_H
#define FM_PIPELINE_ATTRIBUTION_H

#include "feedmill/stats.h"
#include "read/stages.h"

/* Time of decode threads, by what it was spent on. */
typedef struct fm_work {
    uint64_t decode_ns, transform_ns;
    uint64_t starved_ns; /* the thread had work, and waited for a CPU */
    uint64_t storage_ns; /* the thread waited for pages of a mapped file to be read */
} fm_work;

/* When a sample passed each stage; 0 for a stage that it skipped. See FM_WAIT_CAUSE_FIELDS. */
typedef struct fm_timeline {
    uint64_t submitted_ns;
    uint64_t read_begin_ns;  /* its read began */
    uint64_t read_delay_ns;  /* part of the time before that in which no read buffer was free */
    uint64_t bytes_ns;       /* it had its bytes */
    uint64_t buffer_ns;      /* its batch got a buffer */
    uint64_t dequeued_ns;    /* a decode thread dequeued it */
    uint64_t finished_ns;    /* its pixels were in the buffer */
    uint64_t fallback_ns;    /* the caller finished the batch's last rejected sample; 0: none */
    uint64_t copy_queued_ns; /* its batch's copy to the device was queued; 0: there is none */
    fm_work queue_work;      /* of all threads while it waited for read buffers and for a thread */
    fm_work own;             /* of its decode thread, from dequeued_ns to finished_ns */
    uint64_t throttled_ns;   /* time since since_ns in which a CPU quota stopped the process */
    fm_read_times read;      /* what its read, and the wait for it, consisted of */
} fm_timeline;

/*
 * Splits the wait from from_ns to to_ns by cause. The parts add up to to_ns - from_ns exactly, even
 * if clock values are out of order: one before its predecessor counts as equal to it. All 0 if
 * to_ns is not after from_ns.
 *
 * The wait until the sample was finished is split in proportion to how the sample spent its time
 * since since_ns, the previous step's end: all of that delayed the batch, not only its last part.
 * If storage is a little too slow, the wait may begin when the last file is already being decoded.
 *
 * Time in the queue for a thread, and for read buffers, is split in proportion to what all threads
 * did meanwhile. If none of them finished a sample, the time counts as waiting for a CPU: a thread
 * was idle and had been woken. The time of the sample's own decoding is split in proportion to its
 * own work; the rest is unattributed.
 *
 * A CPU quota also stops the kernel's threads that read for io_uring, which delays bytes. The part
 * of throttled_ns that decode threads did not see themselves is moved from storage to starved.
 */
fm_wait_causes fm_attribute_wait(const fm_timeline *line, uint64_t since_ns, uint64_t from_ns,
                                 uint64_t to_ns);

/*
 * Splits storage_ns, which fm_attribute_wait() has found for the same other arguments. The parts
 * add up to it exactly. The read's own time is known by its latest stages, as what came before
 * since_ns is left out; of what came before its last attempt only the sums are known.
 */
fm_storage_parts fm_attribute_storage(const fm_timeline *line, uint64_t since_ns, uint64_t from_ns,
                                      uint64_t to_ns, uint64_t storage_ns);

/* Converts the wall times of a thread's stages to fm_work. The thread had a CPU for cpu_ns of
 * wall_ns. CPU time outside of the two stages is left out. */
fm_work fm_work_of(uint64_t decode_ns, uint64_t transform_ns, uint64_t wall_ns, uint64_t cpu_ns);

static inline void fm_work_add(fm_work *sum, const fm_work *work) {
    sum->decode_ns += work->decode_ns;
    sum->transform_ns += work->transform_ns;
    sum->starved_ns += work->starved_ns;
    sum->storage_ns += work->storage_ns;
}

/* For a thread that read a mapped file: counts its time without a CPU as waiting for storage. */
static inline void fm_work_read(fm_work *work) {
    work->storage_ns = work->starved_ns;
    work->starved_ns = 0;
}

static inline fm_work fm_work_since(const fm_work *now, const fm_work *then) {
    return (fm_work){now->decode_ns - then->decode_ns, now->transform_ns - then->transform_ns,
                     now->starved_ns - then->starved_ns, now->storage_ns - then->storage_ns};
}

#endif
