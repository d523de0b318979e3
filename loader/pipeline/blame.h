/* What a wait for data was made of. Pure arithmetic on the stamps of one sample. */
#ifndef FM_PIPELINE_BLAME_H
#define FM_PIPELINE_BLAME_H

#include "feedmill/stats.h"

/* Time of decode threads, by what it went to. Sums of it only grow. */
typedef struct fm_work {
    uint64_t decode_ns, transform_ns;
    uint64_t starved_ns; /* work to do, and no core */
    uint64_t storage_ns; /* rows of a mapped file: they were being read */
} fm_work;

/* Clock of each point that the sample passed, 0 where there was none; see FM_BLAME_FIELDS. */
typedef struct fm_timeline {
    uint64_t submitted_ns; /* it was asked for */
    uint64_t started_ns;   /* its read began */
    uint64_t short_ns;     /* ... so much later, because files to be decoded held the buffers */
    uint64_t bytes_ns;     /* it had its bytes */
    uint64_t slot_ns;      /* its batch had a slot */
    uint64_t claimed_ns;   /* a decode thread took it */
    uint64_t finished_ns;
    uint64_t returned_ns;  /* the caller finished the samples that nobody else could; 0: none */
    uint64_t queued_ns;    /* its batch's copy to the device was queued; 0: there is none */
    fm_work queued;        /* of all threads, while it waited for buffers and for the claim */
    fm_work own;           /* its own, from the claim to the end */
    uint64_t throttled_ns; /* since since_ns: no thread of the process was allowed a core */
} fm_timeline;

/*
 * Cuts the wait from from_ns to to_ns into pieces, which together are to_ns - from_ns exactly,
 * whatever the stamps say: one that lies before its predecessor counts as equal to it. All 0 where
 * to_ns is not after from_ns.
 *
 * Up to the sample's end they are in proportion to what it passed since since_ns, the end of the
 * step before: a batch is late because of all that, and not of what happened to come last. Where
 * storage is too slow by a little, the wait may begin when the last file is already being decoded.
 *
 * The time in the queue, also in that for read buffers, is divided in proportion to what all
 * threads did meanwhile. Where none of them finished anything, one was idle and had been woken: it
 * waited for a core. The time of the sample itself is divided in proportion to its own work; what
 * that leaves open is unattributed.
 *
 * A quota stops the kernel's threads that read for io_uring as well, so that bytes come late. Of
 * throttled_ns, what the threads did not see themselves is taken from storage.
 */
fm_blame fm_blame_wait(const fm_timeline *line, uint64_t since_ns, uint64_t from_ns,
                       uint64_t to_ns);

/*
 * A thread's time as work: stages' wall times, of which the thread had a core for cpu_ns of
 * wall_ns. Time that belongs to neither stage is left out.
 */
fm_work fm_work_of(uint64_t decode_ns, uint64_t transform_ns, uint64_t wall_ns, uint64_t cpu_ns);

static inline void fm_work_add(fm_work *sum, const fm_work *work) {
    sum->decode_ns += work->decode_ns;
    sum->transform_ns += work->transform_ns;
    sum->starved_ns += work->starved_ns;
    sum->storage_ns += work->storage_ns;
}

/* Of a thread that read a mapped file: where it had no core, it waited for storage. */
static inline void fm_work_read(fm_work *work) {
    work->storage_ns = work->starved_ns;
    work->starved_ns = 0;
}

static inline fm_work fm_work_since(const fm_work *now, const fm_work *then) {
    return (fm_work){now->decode_ns - then->decode_ns, now->transform_ns - then->transform_ns,
                     now->starved_ns - then->starved_ns, now->storage_ns - then->storage_ns};
}

#endif
