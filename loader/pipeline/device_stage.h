/*
 * The device stage: copies ready batches from page-locked buffers to memory on a device that the
 * caller provides (fm_loader_add_output()), before the caller asks for them.
 *
 * The n-th batch that is delivered goes to the n-th output that was added. Each output takes a
 * copy slot, at its number modulo n_slots. Four counters say how far the slots have come; done and
 * taken are each at most queued, and queued at most n_outputs:
 *
 *     n_outputs: the caller has added the memory.
 *     queued:  the copy was queued on the device. The batch's buffer is COPYING and the slot's.
 *     done:    the copy is done. The buffer went back to the ring, whatever became of the batch.
 *     taken:   the batch was handed out or dropped.
 *
 * Copies are queued and done in order. One thread, "fm-device", queues them and looks at which are
 * done. It sleeps until there is something to queue, and wakes up by itself only while a batch
 * waits for a buffer that a copy holds.
 *
 * "Locked" and "consumer" are as in state.h. A stage that met an error stays failed until close.
 */
#ifndef FM_PIPELINE_DEVICE_STAGE_H
#define FM_PIPELINE_DEVICE_STAGE_H

#include "base/thread.h"
#include "device/device.h"
#include "device/pinned.h"
#include "ring/ring.h"
#include "transform/plan.h"

#define FM_MAX_OUTPUTS 32u

struct fm_loader;

typedef struct fm_copy_slot {
    fm_output output;  /* the consumer's; fixed until the batch is taken */
    fm_buffer *buffer; /* locked: COPYING, from queued to done */
} fm_copy_slot;

typedef struct fm_device_stage {
    /* Fixed. */
    const fm_device_calls *calls; /* NULL: there is no device, and nothing else here is used */
    fm_device *device;            /* NULL: not open */
    bool converts, defer_wait;
    size_t output_bytes, label_bytes; /* of one output */
    uint32_t max_outputs, n_slots;
    fm_copy_slot *slots; /* [n_slots] */
    fm_pinned pinned;
    pthread_cond_t wake; /* with the ring's lock: there is something to do */
    fm_thread thread;

    /* Locked. */
    uint64_t n_outputs, n_queued, n_done, n_taken;
    bool has_last; /* the slot before n_taken is that of the batch that was returned last */
    bool is_busy;  /* the thread is in a call of the device */
    bool is_stopping;
    fm_error error; /* status 0: it works */
} fm_device_stage;

/* The plan of what buffers hold: with config->convert that of uint8 values, which the device
 * converts; else *plan stays. */
int fm_device_stage_plan(const fm_device_config *config, const fm_transform *transform,
                         bool has_arrays, fm_plan *plan, fm_error *error);

/* Before the ring, which will have n_buffers: opens the device, and the ring's allocator. */
int fm_device_stage_open(struct fm_loader *loader, uint32_t n_buffers, fm_error *error);
/* After the ring: starts the thread. */
int fm_device_stage_start(struct fm_loader *loader, fm_error *error);
/* Ends the thread, drops all outputs and waits for all copies. Before the ring is closed. */
void fm_device_stage_quiesce(struct fm_loader *loader);
/* After the ring was closed. */
void fm_device_stage_close(struct fm_loader *loader);

/* The error that the stage met; FM_OK: none, or no device. */
int fm_device_stage_report(const fm_device_stage *stage, fm_error *error); /* locked */
int fm_device_stage_check(struct fm_loader *loader, fm_error *error);      /* not locked */

/* Locked. Drops all batches: streams of the outputs whose copies still run are made to wait for
 * them, and all outputs are the caller's again. The thread is in no call. */
void fm_device_stage_drop(struct fm_loader *loader);

/* Consumer, not locked. The oldest batch's copy is queued: fills in its output, and makes the
 * output's stream wait for the copy. */
int fm_device_stage_deliver(struct fm_loader *loader, fm_batch *batch, fm_error *error);

/* Locked. Wakes the thread: something has happened that it may be waiting for. */
static inline void fm_device_stage_wake(fm_device_stage *stage) {
    if (stage->calls) pthread_cond_signal(&stage->wake);
}

/* Locked. How many of the oldest pending batches have their copies queued. */
static inline uint32_t fm_device_stage_n_ahead(const fm_device_stage *stage) {
    return (uint32_t)(stage->n_queued - stage->n_taken);
}

/* Locked. The oldest batch was handed out. */
static inline void fm_device_stage_taken(fm_device_stage *stage) {
    stage->n_taken++;
    stage->has_last = true;
}

#endif
