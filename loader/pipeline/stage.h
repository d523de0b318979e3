/*
 * The device stage: batches from page-locked slots to memory that the consumer offers, ahead of
 * his asking for them.
 *
 * A target that is offered gets a lane, the number of which counts on: the n-th batch that is
 * delivered goes to the n-th target. Four counters say how far lanes have come, done and taken each
 * behind queued, queued behind offered: a copy was queued; it is done, on the device; the batch was
 * handed out or dropped. Copies are queued and done in order. A slot belongs to its lane
 * from the queueing of its copy until that is done, and only then returns to the ring, whatever
 * became of the batch meanwhile.
 *
 * One thread, "fm-device", queues copies and looks at which are done. It sleeps until there is
 * something to queue, and wakes up by itself only while a batch wants a slot that a copy holds.
 * Locked, consumer: as in pipeline.h. A stage that met an error stays failed, until close.
 */
#ifndef FM_PIPELINE_STAGE_H
#define FM_PIPELINE_STAGE_H

#include "base/thread.h"
#include "device/device.h"
#include "device/pinned.h"
#include "ring/ring.h"
#include "transform/plan.h"

#define FM_STAGE_MAX_OFFERED 32u

struct fm_loader;
struct fm_group;

typedef struct fm_lane {
    fm_target target; /* the consumer's, then fixed until the lane is taken */
    fm_slot *slot;    /* locked: of a copy that is queued and not done */
} fm_lane;

typedef struct fm_stage {
    /* Fixed after open. */
    const fm_device_calls *calls; /* NULL: there is no device, nor anything else here */
    fm_device *device;            /* NULL: not open */
    bool converts, defer_wait;
    size_t target_bytes, label_bytes; /* of a target */
    uint32_t max_offered, n_lanes;
    fm_lane *lanes; /* [n_lanes] */
    fm_pinned pinned;
    pthread_cond_t wake; /* with the ring's lock: there is something to do */
    fm_thread thread;

    /* Locked. */
    uint64_t n_offered, n_queued, n_done, n_taken;
    bool has_last; /* the lane before n_taken is that of the batch that was returned last */
    bool busy;     /* the thread is in a call */
    bool stopping;
    fm_error error; /* status 0: it works */
} fm_stage;

/* What a loader's slots hold, and what comes out: with convert the plan becomes one of uint8. */
int fm_stage_plan(const fm_device_config *config, const fm_transform *transform, bool has_arrays,
                  fm_plan *plan, fm_error *error);

/* The error that the stage met, if it did. FM_OK without a device. */
int fm_stage_report(const fm_stage *stage, fm_error *error);   /* locked */
int fm_stage_check(struct fm_loader *loader, fm_error *error); /* not locked */

/* Before the ring, which will have so many slots: the device, and an allocator for the ring's
 * slots. */
int fm_stage_open(struct fm_loader *loader, uint32_t n_slots, fm_error *error);
/* Behind it: the thread. */
int fm_stage_start(struct fm_loader *loader, fm_error *error);
/* Ends the thread, drops all targets and waits for all copies. Before the ring is closed. */
void fm_stage_quiesce(struct fm_loader *loader);
/* Behind it. */
void fm_stage_close(struct fm_loader *loader);

/* Locked. Something has happened that it may be waiting for. */
static inline void fm_stage_wake(fm_stage *stage) {
    if (stage->calls) pthread_cond_signal(&stage->wake);
}
/* Locked. How many of the oldest groups have their copies queued. */
static inline uint32_t fm_stage_n_ahead(const fm_stage *stage) {
    return (uint32_t)(stage->n_queued - stage->n_taken);
}
/* Locked. All groups go: their targets are the consumer's again, whose streams wait for copies that
 * run; those not used, too. No call is in progress. */
void fm_stage_drop(struct fm_loader *loader);

/* Consumer, unlocked: the oldest group's copy is queued. Makes the consumer's stream wait. */
int fm_stage_hand_out(struct fm_loader *loader, fm_batch *batch, fm_error *error);
/* Locked: it has been handed out. */
static inline void fm_stage_taken(fm_stage *stage) {
    stage->n_taken++;
    stage->has_last = true;
}

#endif
