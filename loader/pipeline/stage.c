#define _GNU_SOURCE
#include "pipeline/stage.h"

#include <string.h>

#include "base/clock.h"
#include "pipeline/pipeline.h"

/* How long a slot may be free on the device's side before anybody here notices. */
#define POLL_NS 500000u
#define STACK_BYTES ((size_t)512 << 10)

static fm_lane *lane_at(fm_stage *stage, uint64_t number) {
    return &stage->lanes[number % stage->n_lanes];
}

static uint32_t index_of(const fm_stage *stage, uint64_t number) {
    return (uint32_t)(number % stage->n_lanes);
}

/* ---- open ------------------------------------------------------------------------------------ */

int fm_stage_plan(const fm_device_config *config, const fm_transform *transform, bool has_arrays,
                  fm_plan *plan, fm_error *error) {
    const bool converts = config->kind != FM_DEVICE_NONE && config->convert && !has_arrays &&
                          plan->dtype != FM_UINT8 && !plan->erases;
    if (!converts) return FM_OK;
    fm_transform bytes = *transform;
    bytes.dtype = FM_UINT8;
    bytes.layout = FM_NHWC;
    return fm_plan_init(plan, &bytes, error);
}

static void set_format(const fm_loader *loader, fm_device_format *format) {
    const fm_plan *const result = &loader->result;
    *format = (fm_device_format){
        .convert = loader->stage.converts,
        .dtype = result->dtype,
        .layout = result->layout,
        .channels = (uint32_t)result->channels,
        .n_px = (uint64_t)result->out_width * (uint64_t)result->out_height,
    };
    memcpy(format->bits, result->bits, sizeof(format->bits));
}

static int open_device(fm_loader *loader, fm_error *error) {
    fm_stage *const stage = &loader->stage;
    fm_device_options options = {
        .index = loader->config.device.index,
        .n_lanes = stage->n_lanes,
        .max_bytes = loader->batch_bytes,
    };
    set_format(loader, &options.format);
    int status = stage->calls->open(&stage->device, &options, error);
    if (!status)
        status = fm_pinned_init(&stage->pinned, stage->calls, stage->device,
                                fm_ring_slot_bytes(loader->batch_bytes, stage->label_bytes),
                                &loader->counter, error);
    return status;
}

int fm_stage_open(fm_loader *loader, uint32_t n_slots, fm_error *error) {
    fm_stage *const stage = &loader->stage;
    const fm_config *const config = &loader->config;
    if (config->device.kind == FM_DEVICE_NONE) return FM_OK;
    const fm_device_calls *calls;
    const int status = fm_device_find(config->device.kind, &calls, error);
    if (status) return status;
    stage->converts = loader->plan.dtype != loader->result.dtype;
    stage->defer_wait = config->device.defer_wait;
    stage->label_bytes = loader->arrays ? 0 : config->batch_size * sizeof(int64_t);
    stage->target_bytes =
        loader->arrays ? loader->batch_bytes : config->batch_size * loader->result.sample_bytes;
    stage->max_offered = config->prefetch_batches + FM_RING_MAX_LENT;
    if (stage->max_offered > FM_STAGE_MAX_OFFERED) stage->max_offered = FM_STAGE_MAX_OFFERED;
    /* Each copy that is not done has a slot, also of batches that were dropped; and one lane is
     * that of the last batch, which may still be waited for. So an offer always finds a lane. */
    stage->n_lanes = stage->max_offered + n_slots + 1;
    stage->lanes = fm_mem_zalloc(&loader->counter, stage->n_lanes, sizeof(fm_lane));
    if (!stage->lanes)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u lanes", stage->n_lanes);
    if (fm_cond_init(&stage->wake))
        return fm_error_set(error, FM_ERR_THREAD, "no condition variable for the device's thread");
    stage->calls = calls;
    return open_device(loader, error);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Locked. The first error stays; everybody who waits for a batch gets to know. */
static void fail_stage(fm_loader *loader, const fm_error *error) {
    if (!loader->stage.error.status) loader->stage.error = *error;
    pthread_cond_signal(&loader->ring->ready);
}

/* Locked, but not within the call. */
static void begin_call(fm_loader *loader) {
    loader->stage.busy = true;
    fm_ring_unlock(loader->ring);
}

static void end_call(fm_loader *loader) {
    fm_ring_lock(loader->ring);
    loader->stage.busy = false;
    if (atomic_load_explicit(&loader->cancelled, memory_order_relaxed))
        pthread_cond_broadcast(&loader->ring->idle);
}

/* Locked. The oldest copy that is not known to be done is: its slot returns. */
static void retire(fm_loader *loader) {
    fm_stage *const stage = &loader->stage;
    fm_lane *const lane = lane_at(stage, stage->n_done++);
    fm_ring_give_back(loader->ring, lane->slot);
    lane->slot = NULL;
}

/* Locked, but not meanwhile. Looks which copies are done. */
static void reap(fm_loader *loader) {
    fm_stage *const stage = &loader->stage;
    while (stage->n_done < stage->n_queued && !stage->error.status) {
        const uint32_t lane = index_of(stage, stage->n_done);
        fm_error error;
        begin_call(loader);
        const int status = stage->calls->poll(stage->device, lane, &error);
        end_call(loader);
        if (status == FM_AGAIN) return;
        if (status)
            fail_stage(loader, &error);
        else
            retire(loader);
    }
}

/* Locked. The next group to copy, if it can be done now. */
static fm_group *next_group(fm_loader *loader) {
    const fm_stage *const stage = &loader->stage;
    const uint32_t n_ahead = fm_stage_n_ahead(stage);
    if (stage->n_queued == stage->n_offered || n_ahead >= loader->n_groups || stage->error.status ||
        atomic_load_explicit(&loader->cancelled, memory_order_relaxed))
        return NULL;
    fm_group *const group = fm_group_at(loader, n_ahead);
    return group->n_left || group->n_rejected || group->failed ? NULL : group;
}

static fm_device_job job_of(const fm_loader *loader, const fm_group *group, const fm_lane *lane) {
    uint8_t *const memory = group->slot->memory;
    const bool has_labels = !loader->arrays;
    return (fm_device_job){
        .from = memory,
        .to = lane->target.images,
        .n_bytes =
            loader->arrays ? loader->batch_bytes : group->n_samples * loader->plan.sample_bytes,
        .n_samples = group->n_samples,
        .labels_from = has_labels ? (int64_t *)(memory + loader->ring->label_offset) : NULL,
        .labels_to = lane->target.labels,
        .label_bytes = has_labels ? group->n_samples * sizeof(int64_t) : 0,
    };
}

/* Locked, but not meanwhile. Queues the copy of a group, which is nobody else's now. */
static void queue_copy(fm_loader *loader, fm_group *group) {
    fm_stage *const stage = &loader->stage;
    fm_lane *const lane = lane_at(stage, stage->n_queued);
    const fm_device_job job = job_of(loader, group, lane);
    fm_error error;
    begin_call(loader);
    if (job.labels_from)
        memcpy((uint8_t *)group->slot->memory + loader->ring->label_offset, group->labels,
               job.label_bytes);
    const int status =
        stage->calls->copy(stage->device, index_of(stage, stage->n_queued), &job, &error);
    end_call(loader);
    if (status) {
        fail_stage(loader, &error);
        return;
    }
    lane->slot = group->slot;
    group->slot = NULL;
    group->queued_ns = fm_clock_ns();
    stage->n_queued++;
    loader->sums.h2d_batches++;
    loader->sums.h2d_bytes += job.n_bytes + job.label_bytes;
    pthread_cond_signal(&loader->ring->ready);
}

/* Locked. Until something happens, or a slot that somebody wants may have become free. */
static void wait_for_work(fm_loader *loader) {
    fm_stage *const stage = &loader->stage;
    if (loader->ring->wanted && stage->n_done < stage->n_queued && !stage->error.status)
        fm_cond_wait_until(&stage->wake, &loader->ring->mutex, fm_clock_ns() + POLL_NS);
    else
        pthread_cond_wait(&stage->wake, &loader->ring->mutex);
}

static void *run_stage(void *argument) {
    fm_loader *const loader = argument;
    fm_stage *const stage = &loader->stage;
    fm_ring_lock(loader->ring);
    while (!stage->stopping) {
        reap(loader);
        fm_group *const group = next_group(loader);
        if (group)
            queue_copy(loader, group);
        else if (!stage->stopping)
            wait_for_work(loader);
    }
    fm_ring_unlock(loader->ring);
    return NULL;
}

int fm_stage_start(fm_loader *loader, fm_error *error) {
    if (!loader->stage.calls) return FM_OK;
    return fm_thread_start(&loader->stage.thread, "fm-device", STACK_BYTES, run_stage, loader,
                           error);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Locked. Makes the consumer's stream wait for a copy whose batch nobody gets, so that the target's
 * memory can be used for something else in that stream's order. */
static void let_go(fm_loader *loader, uint64_t number) {
    fm_stage *const stage = &loader->stage;
    const uint32_t lane = index_of(stage, number);
    fm_error error;
    const int waits =
        stage->calls->wait(stage->device, lane, stage->lanes[lane].target.stream, &error);
    if (!waits) return;
    if (waits != FM_ERR_STATE) fail_stage(loader, &error);
    /* It can't wait while it is captured: this thread does. */
    if (stage->calls->sync(stage->device, lane, &error)) fail_stage(loader, &error);
}

void fm_stage_drop(fm_loader *loader) {
    fm_stage *const stage = &loader->stage;
    if (!stage->calls) return;
    for (; stage->n_taken < stage->n_queued; stage->n_taken++) let_go(loader, stage->n_taken);
    stage->n_offered = stage->n_queued;
    stage->has_last = false;
}

void fm_stage_quiesce(fm_loader *loader) {
    fm_stage *const stage = &loader->stage;
    if (!stage->calls || !loader->ring) return;
    fm_ring_lock(loader->ring);
    stage->stopping = true;
    fm_stage_wake(stage);
    fm_ring_unlock(loader->ring);
    fm_thread_join(&stage->thread);
    fm_ring_lock(loader->ring);
    fm_stage_drop(loader);
    while (stage->n_done < stage->n_queued) {
        /* Where this fails the device is lost, and what was queued there with it. */
        const int status = stage->calls->sync(stage->device, index_of(stage, stage->n_done), NULL);
        (void)status;
        retire(loader);
    }
    fm_ring_unlock(loader->ring);
}

void fm_stage_close(fm_loader *loader) {
    fm_stage *const stage = &loader->stage;
    /* Nobody is left who could be told what fails now. */
    if (stage->device) (void)stage->calls->close(&stage->device, NULL);
    if (stage->calls) pthread_cond_destroy(&stage->wake);
    fm_mem_free(stage->lanes);
}

/* ---- the consumer ---------------------------------------------------------------------------- */

int fm_stage_report(const fm_stage *stage, fm_error *error) {
    if (error && stage->error.status) *error = stage->error;
    return stage->error.status;
}

int fm_stage_check(fm_loader *loader, fm_error *error) {
    if (!loader->stage.calls) return FM_OK;
    fm_ring_lock(loader->ring);
    const int status = fm_stage_report(&loader->stage, error);
    fm_ring_unlock(loader->ring);
    return status;
}

int fm_stage_hand_out(fm_loader *loader, fm_batch *batch, fm_error *error) {
    fm_stage *const stage = &loader->stage;
    const uint32_t lane = index_of(stage, stage->n_taken);
    const fm_target *const target = &stage->lanes[lane].target;
    if (!stage->defer_wait) {
        fm_error why;
        const int status = stage->calls->wait(stage->device, lane, target->stream, &why);
        if (status && error) *error = why;
        if (status && status != FM_ERR_STATE) {
            fm_ring_lock(loader->ring);
            fail_stage(loader, &why);
            fm_ring_unlock(loader->ring);
        }
        if (status) return status;
    }
    batch->images = target->images;
    batch->labels = loader->arrays ? NULL : target->labels;
    batch->target_user = target->user;
    return FM_OK;
}

void fm_loader_target_bytes(const fm_loader *loader, size_t *image_bytes, size_t *label_bytes) {
    if (image_bytes) *image_bytes = loader ? loader->stage.target_bytes : 0;
    if (label_bytes) *label_bytes = loader ? loader->stage.label_bytes : 0;
}

static int check_stage(const fm_loader *loader, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status || loader->stage.calls) return status;
    return fm_error_set(error, FM_ERR_STATE, "this loader has no device: its batches are on loan");
}

static int check_target(const fm_loader *loader, const fm_target *target, fm_error *error) {
    const fm_stage *const stage = &loader->stage;
    if (!target) return fm_error_set(error, FM_ERR_ARGUMENT, "target is NULL");
    if (!target->images || target->image_bytes < stage->target_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "a target with %zu bytes at %p for images, which need %zu",
                            target->image_bytes, target->images, stage->target_bytes);
    if (stage->label_bytes && (!target->labels || target->label_bytes < stage->label_bytes))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "a target with %zu bytes at %p for labels, which need %zu",
                            target->label_bytes, (void *)target->labels, stage->label_bytes);
    if ((uintptr_t)target->images % sizeof(float) ||
        (uintptr_t)target->labels % sizeof(*target->labels))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "a target at %p and %p, which are not multiples of a value's size",
                            target->images, (void *)target->labels);
    return FM_OK;
}

int fm_loader_offer(fm_loader *loader, const fm_target *target, fm_error *error) {
    int status = check_stage(loader, error);
    if (!status) status = check_target(loader, target, error);
    if (status) return status;
    fm_stage *const stage = &loader->stage;
    if (loader->epoch_state == FM_EPOCH_NONE)
        return fm_error_set(error, FM_ERR_STATE, "no epoch is running: start one first");
    if (stage->n_offered - stage->n_taken >= stage->max_offered) return FM_AGAIN;
    status = fm_stage_check(loader, error);
    if (status) return status;
    /* Nobody looks at this lane before it is counted. */
    const uint32_t lane = index_of(stage, stage->n_offered);
    stage->lanes[lane].target = *target;
    status = stage->calls->mark(stage->device, lane, target->stream, error);
    if (status) return status;
    fm_ring_lock(loader->ring);
    stage->n_offered++;
    fm_stage_wake(stage);
    fm_ring_unlock(loader->ring);
    return FM_OK;
}

size_t fm_loader_n_offered(const fm_loader *loader) {
    return loader ? loader->stage.n_offered - loader->stage.n_taken : 0;
}

int fm_loader_wait(fm_loader *loader, void *stream, fm_error *error) {
    const int status = check_stage(loader, error);
    if (status) return status;
    fm_stage *const stage = &loader->stage;
    if (!stage->has_last)
        return fm_error_set(error, FM_ERR_STATE,
                            "no batch was taken in this epoch: call next() first");
    return stage->calls->wait(stage->device, index_of(stage, stage->n_taken - 1), stream, error);
}

bool fm_loader_converts(const fm_loader *loader) { return loader && loader->stage.converts; }
