/*
 * The device stage: copies ready batches from page-locked buffers to memory on a device that the
 * caller provides (fm_loader_add_output()), before the caller asks for them.
 *
 * The n-th batch that is delivered goes to the n-th output that was added. Each output takes a
 * copy slot, at its number modulo n_slots. Four counters give the progress of the slots:
 *
 *     n_outputs:  outputs that the caller has added
 *     n_queued:   copies queued on the device, at most n_outputs; until its copy is done, the slot
 *                 owns the batch's buffer, which is COPYING
 *     n_done:     copies done, at most n_queued; their buffers are back in the ring
 *     n_consumed: batches handed out or dropped, at most n_queued
 *
 * Copies are queued and done in order. One thread, "fm-device", queues them and polls which are
 * done. It sleeps until there is something to queue, and polls only while a batch waits for a
 * buffer that a copy holds.
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
    fm_output output;  /* consumer; fixed until the batch is consumed */
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
    uint64_t n_outputs, n_queued, n_done, n_consumed;
    bool has_last; /* slot n_consumed - 1 has the last batch that next() returned */
    bool is_busy;  /* the thread is in a call of the device */
    bool is_stopping;
    fm_error error; /* status 0: it works */
} fm_device_stage;

/* Changes *plan, the plan of the values in buffers, to uint8 values if the device converts them
 * (config->convert). */
int fm_device_stage_plan(const fm_device_config *config, const fm_transform *transform,
                         bool has_arrays, fm_plan *plan, fm_error *error);

/* Opens the device and the ring's allocator, before the ring, which will have n_buffers. */
int fm_device_stage_open(struct fm_loader *loader, uint32_t n_buffers, fm_error *error);
/* Starts the thread, after the ring was opened. */
int fm_device_stage_start(struct fm_loader *loader, fm_error *error);
/* Ends the thread, drops all outputs and waits for all copies, before the ring is closed. */
void fm_device_stage_quiesce(struct fm_loader *loader);
/* Closes the device, after the ring was closed. */
void fm_device_stage_close(struct fm_loader *loader);

/* Return the error that the stage met; FM_OK if it met none, or without a device. */
int fm_device_stage_report(const fm_device_stage *stage, fm_error *error); /* locked */
int fm_device_stage_check(struct fm_loader *loader, fm_error *error);      /* not locked */

/* Locked, while the thread is in no call. Drops all batches: makes the streams of outputs wait for
 * their copies, and returns all outputs to the caller. */
void fm_device_stage_drop(struct fm_loader *loader);

/* Consumer, not locked. Fills in the output of the oldest batch, whose copy is queued, and makes
 * the output's stream wait for the copy. */
int fm_device_stage_deliver(struct fm_loader *loader, fm_batch *batch, fm_error *error);

/* Locked. Wakes the thread after a change that it may be waiting for. */
static inline void fm_device_stage_wake(fm_device_stage *stage) {
    if (stage->calls) pthread_cond_signal(&stage->wake);
}

/* Locked. How many of the oldest pending batches have their copies queued. */
static inline uint32_t fm_device_stage_n_ahead(const fm_device_stage *stage) {
    return (uint32_t)(stage->n_queued - stage->n_consumed);
}

/* Locked. The oldest batch was handed out. */
static inline void fm_device_stage_consumed(fm_device_stage *stage) {
    stage->n_consumed++;
    stage->has_last = true;
}

#endif
