#define _GNU_SOURCE
#include "pipeline/device_stage.h"

#include <string.h>

#include "pipeline/schedule.h"

/* Interval between two polls for finished copies while a batch waits for a buffer. */
#define POLL_NS 500000u
#define STACK_BYTES ((size_t)512 << 10)

static uint32_t slot_of(const fm_device_stage *stage, uint64_t number) {
    return (uint32_t)(number % stage->n_slots);
}

static fm_copy_slot *slot_at(fm_device_stage *stage, uint64_t number) {
    return &stage->slots[slot_of(stage, number)];
}

/* ---- open ------------------------------------------------------------------------------------ */

int fm_device_stage_plan(const fm_device_config *config, const fm_transform *transform,
                         bool has_sections, fm_plan *plan, fm_error *error) {
    const bool converts = config->kind != FM_DEVICE_NONE && config->convert && !has_sections &&
                          plan->dtype != FM_UINT8 && !plan->erases && !plan->keeps_floats;
    if (!converts) return FM_OK;
    fm_transform bytes = *transform;
    bytes.dtype = FM_UINT8;
    bytes.layout = FM_NHWC;
    return fm_plan_init(plan, &bytes, error);
}

static void set_format(const fm_loader *loader, fm_device_format *format) {
    const fm_plan *const result = &loader->result;
    *format = (fm_device_format){
        .convert = loader->device.converts,
        .dtype = result->dtype,
        .layout = result->layout,
        .channels = (uint32_t)result->channels,
        .n_px = (uint64_t)result->out_width * (uint64_t)result->out_height,
    };
    memcpy(format->bits, result->bits, sizeof(format->bits));
}

static int open_device(fm_loader *loader, fm_error *error) {
    fm_device_stage *const stage = &loader->device;
    fm_device_options options = {
        .index = loader->config.device.index,
        .n_slots = stage->n_slots,
        .max_bytes = loader->layout.batch_bytes,
    };
    set_format(loader, &options.format);
    int status = stage->calls->open(&stage->device, &options, error);
    if (!status)
        status =
            fm_pinned_init(&stage->pinned, stage->calls, stage->device,
                           fm_ring_buffer_bytes(loader->layout.batch_bytes, stage->label_bytes),
                           &loader->counter, error);
    return status;
}

int fm_device_stage_open(fm_loader *loader, uint32_t n_buffers, fm_error *error) {
    fm_device_stage *const stage = &loader->device;
    const fm_config *const config = &loader->config;
    if (config->device.kind == FM_DEVICE_NONE) return FM_OK;
    const fm_device_calls *calls;
    const int status = fm_device_find(config->device.kind, &calls, error);
    if (status) return status;
    stage->converts = loader->plan.dtype != loader->result.dtype;
    stage->defer_wait = config->device.defer_wait;
    stage->label_bytes = loader->layout.label_bytes;
    stage->output_bytes = loader->layout.sample_bytes
                              ? config->batch_size * loader->result.sample_bytes
                              : loader->layout.batch_bytes;
    stage->max_outputs = config->prefetch_batches + FM_RING_MAX_BORROWED;
    if (stage->max_outputs > FM_MAX_OUTPUTS) stage->max_outputs = FM_MAX_OUTPUTS;
    /* One slot for each added output, one for each buffer whose copy is not done (also of dropped
     * batches), and one for the last batch, for whose copy fm_loader_wait() may still wait. So a
     * new output always finds a free slot. */
    stage->n_slots = stage->max_outputs + n_buffers + 1;
    stage->slots = fm_mem_zalloc(&loader->counter, stage->n_slots, sizeof(fm_copy_slot));
    if (!stage->slots)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u copy slots", stage->n_slots);
    if (fm_cond_init(&stage->wake))
        return fm_error_set(error, FM_ERR_THREAD, "no condition variable for the device's thread");
    stage->calls = calls;
    return open_device(loader, error);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Locked. Keeps the first error and wakes the caller: next() returns it. */
static void fail_stage(fm_loader *loader, const fm_error *error) {
    if (!loader->device.error.status) loader->device.error = *error;
    pthread_cond_signal(&loader->ring->ready);
}

/* Called with the lock held. Drops it for a call of the device; end_call() takes it again. */
static void begin_call(fm_loader *loader) {
    loader->device.is_busy = true;
    fm_loader_unlock(loader);
}

static void end_call(fm_loader *loader) {
    fm_loader_lock(loader);
    loader->device.is_busy = false;
    if (fm_is_cancelled(loader)) pthread_cond_broadcast(&loader->ring->idle);
}

/* Locked. Counts the oldest copy as done, and recycles its buffer. */
static void retire(fm_loader *loader) {
    fm_device_stage *const stage = &loader->device;
    fm_copy_slot *const slot = slot_at(stage, stage->n_done++);
    fm_buffer_recycle(slot->buffer);
    slot->buffer = NULL;
}

/* Called with the lock held; drops it while asking the device. Recycles the buffers of copies that
 * are done. */
static void reap(fm_loader *loader) {
    fm_device_stage *const stage = &loader->device;
    while (stage->n_done < stage->n_queued && !stage->error.status) {
        const uint32_t slot = slot_of(stage, stage->n_done);
        fm_error error;
        begin_call(loader);
        const int status = stage->calls->poll(stage->device, slot, &error);
        end_call(loader);
        if (status == FM_AGAIN) return;
        if (status)
            fail_stage(loader, &error);
        else
            retire(loader);
    }
}

/* Locked. The next batch to copy; NULL: none is complete, or there is no output for it. */
static fm_pending *next_batch(fm_loader *loader) {
    const fm_device_stage *const stage = &loader->device;
    const uint32_t n_ahead = fm_device_stage_n_ahead(stage);
    if (stage->n_queued == stage->n_outputs || n_ahead >= loader->queue.n || stage->error.status ||
        fm_is_cancelled(loader))
        return NULL;
    fm_pending *const batch = fm_queue_at(&loader->queue, n_ahead);
    return fm_pending_is_complete(batch) && !batch->has_failed ? batch : NULL;
}

static fm_device_job job_of(const fm_loader *loader, const fm_pending *batch,
                            const fm_copy_slot *slot) {
    uint8_t *const memory = batch->buffer->memory;
    const bool has_labels = loader->layout.label_bytes > 0;
    return (fm_device_job){
        .from = memory,
        .to = slot->output.images,
        .n_bytes = fm_layout_bytes(&loader->layout, batch->n_samples),
        .n_samples = batch->n_samples,
        .labels_from = has_labels ? fm_buffer_labels(loader->ring, memory) : NULL,
        .labels_to = slot->output.labels,
        .label_bytes = has_labels ? batch->n_samples * sizeof(int64_t) : 0,
    };
}

/* Called with the lock held; drops it while calling the device. Queues the copy of a complete
 * batch, whose buffer no other thread uses. */
static void queue_copy(fm_loader *loader, fm_pending *batch) {
    fm_device_stage *const stage = &loader->device;
    fm_copy_slot *const slot = slot_at(stage, stage->n_queued);
    const fm_device_job job = job_of(loader, batch, slot);
    fm_error error;
    begin_call(loader);
    if (job.labels_from)
        memcpy(fm_buffer_labels(loader->ring, batch->buffer->memory), batch->labels,
               job.label_bytes);
    const int status =
        stage->calls->copy(stage->device, slot_of(stage, stage->n_queued), &job, &error);
    end_call(loader);
    if (status) {
        fail_stage(loader, &error);
        return;
    }
    fm_buffer_begin_copy(batch->buffer);
    slot->buffer = batch->buffer;
    batch->buffer = NULL;
    batch->copy_queued_ns = fm_clock_ns();
    stage->n_queued++;
    loader->records.sums.h2d_batches++;
    loader->records.sums.h2d_bytes += job.n_bytes + job.label_bytes;
    pthread_cond_signal(&loader->ring->ready);
}

/* Called with the lock held; drops it while waiting. Waits until it is woken or, while a batch
 * needs a buffer that a copy holds, for POLL_NS. */
static void wait_for_work(fm_loader *loader) {
    fm_device_stage *const stage = &loader->device;
    if (loader->ring->wanted && stage->n_done < stage->n_queued && !stage->error.status)
        fm_ring_wait_until(loader->ring, &stage->wake, fm_clock_ns() + POLL_NS);
    else
        fm_ring_wait(loader->ring, &stage->wake);
}

static void *run_stage(void *argument) {
    fm_loader *const loader = argument;
    fm_device_stage *const stage = &loader->device;
    fm_loader_lock(loader);
    while (!stage->is_stopping) {
        reap(loader);
        fm_pending *const batch = next_batch(loader);
        if (batch)
            queue_copy(loader, batch);
        else if (!stage->is_stopping)
            wait_for_work(loader);
    }
    fm_loader_unlock(loader);
    return NULL;
}

int fm_device_stage_start(fm_loader *loader, fm_error *error) {
    if (!loader->device.calls) return FM_OK;
    return fm_thread_start(&loader->device.thread, "fm-device", STACK_BYTES, run_stage, loader,
                           error);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Locked. Makes the output's stream wait for the copy of a dropped batch, so that the caller can
 * reuse the output's memory in that stream. */
static void return_output(fm_loader *loader, uint64_t number) {
    fm_device_stage *const stage = &loader->device;
    const uint32_t slot = slot_of(stage, number);
    fm_error error;
    const int status =
        stage->calls->wait(stage->device, slot, stage->slots[slot].output.stream, &error);
    if (!status) return;
    if (status != FM_ERR_STATE) fail_stage(loader, &error);
    /* A stream that is being captured can't wait, so this thread waits. */
    if (stage->calls->sync(stage->device, slot, &error)) fail_stage(loader, &error);
}

void fm_device_stage_drop(fm_loader *loader) {
    fm_device_stage *const stage = &loader->device;
    if (!stage->calls) return;
    for (; stage->n_consumed < stage->n_queued; stage->n_consumed++)
        return_output(loader, stage->n_consumed);
    stage->n_outputs = stage->n_queued;
    stage->has_last = false;
}

void fm_device_stage_quiesce(fm_loader *loader) {
    fm_device_stage *const stage = &loader->device;
    if (!stage->calls || !loader->ring) return;
    fm_loader_lock(loader);
    stage->is_stopping = true;
    fm_device_stage_wake(stage);
    fm_loader_unlock(loader);
    fm_thread_join(&stage->thread);
    fm_loader_lock(loader);
    fm_device_stage_drop(loader);
    while (stage->n_done < stage->n_queued) {
        /* If this fails, the device is lost and so are the copies queued on it. */
        const int status = stage->calls->sync(stage->device, slot_of(stage, stage->n_done), NULL);
        (void)status;
        retire(loader);
    }
    fm_loader_unlock(loader);
}

void fm_device_stage_close(fm_loader *loader) {
    fm_device_stage *const stage = &loader->device;
    /* An error can't be reported any more. */
    if (stage->device) (void)stage->calls->close(&stage->device, NULL);
    if (stage->calls) pthread_cond_destroy(&stage->wake);
    fm_mem_free(stage->slots);
}

/* ---- the consumer ---------------------------------------------------------------------------- */

int fm_device_stage_report(const fm_device_stage *stage, fm_error *error) {
    if (error && stage->error.status) *error = stage->error;
    return stage->error.status;
}

int fm_device_stage_check(fm_loader *loader, fm_error *error) {
    if (!loader->device.calls) return FM_OK;
    fm_loader_lock(loader);
    const int status = fm_device_stage_report(&loader->device, error);
    fm_loader_unlock(loader);
    return status;
}

int fm_device_stage_deliver(fm_loader *loader, fm_batch *batch, fm_error *error) {
    fm_device_stage *const stage = &loader->device;
    const uint32_t slot = slot_of(stage, stage->n_consumed);
    const fm_output *const output = &stage->slots[slot].output;
    if (!stage->defer_wait) {
        fm_error why;
        const int status = stage->calls->wait(stage->device, slot, output->stream, &why);
        if (status && error) *error = why;
        if (status && status != FM_ERR_STATE) {
            fm_loader_lock(loader);
            fail_stage(loader, &why);
            fm_loader_unlock(loader);
        }
        if (status) return status;
    }
    batch->images = output->images;
    batch->labels = stage->label_bytes ? output->labels : NULL;
    batch->output_user = output->user;
    return FM_OK;
}

void fm_loader_output_bytes(const fm_loader *loader, size_t *image_bytes, size_t *label_bytes) {
    if (image_bytes) *image_bytes = loader ? loader->device.output_bytes : 0;
    if (label_bytes) *label_bytes = loader ? loader->device.label_bytes : 0;
}

static int check_stage(const fm_loader *loader, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status || loader->device.calls) return status;
    return fm_error_set(error, FM_ERR_STATE,
                        "this loader has no device: its batches are in host memory");
}

static int check_output(const fm_loader *loader, const fm_output *output, fm_error *error) {
    const fm_device_stage *const stage = &loader->device;
    if (!output) return fm_error_set(error, FM_ERR_ARGUMENT, "output is NULL");
    if (!output->images || output->image_bytes < stage->output_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "output.images has %zu bytes at %p; a batch needs %zu",
                            output->image_bytes, output->images, stage->output_bytes);
    if (stage->label_bytes && (!output->labels || output->label_bytes < stage->label_bytes))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "output.labels has %zu bytes at %p; a batch needs %zu",
                            output->label_bytes, (void *)output->labels, stage->label_bytes);
    if ((uintptr_t)output->images % sizeof(float) ||
        (uintptr_t)output->labels % sizeof(*output->labels))
        return fm_error_set(
            error, FM_ERR_ARGUMENT,
            "output.images at %p or output.labels at %p is not aligned to its values' size",
            output->images, (void *)output->labels);
    return FM_OK;
}

int fm_loader_add_output(fm_loader *loader, const fm_output *output, fm_error *error) {
    int status = check_stage(loader, error);
    if (!status) status = check_output(loader, output, error);
    if (status) return status;
    fm_device_stage *const stage = &loader->device;
    if (loader->epoch.state == FM_EPOCH_NONE)
        return fm_error_set(error, FM_ERR_STATE, "no epoch is running: start one first");
    if (stage->n_outputs - stage->n_consumed >= stage->max_outputs) return FM_AGAIN;
    status = fm_device_stage_check(loader, error);
    if (status) return status;
    /* No other thread uses the slot before n_outputs counts it. */
    const uint32_t slot = slot_of(stage, stage->n_outputs);
    stage->slots[slot].output = *output;
    status = stage->calls->mark(stage->device, slot, output->stream, error);
    if (status) return status;
    fm_loader_lock(loader);
    stage->n_outputs++;
    fm_device_stage_wake(stage);
    fm_loader_unlock(loader);
    return FM_OK;
}

size_t fm_loader_n_outputs(const fm_loader *loader) {
    return loader ? loader->device.n_outputs - loader->device.n_consumed : 0;
}

int fm_loader_wait(fm_loader *loader, void *stream, fm_error *error) {
    const int status = check_stage(loader, error);
    if (status) return status;
    fm_device_stage *const stage = &loader->device;
    if (!stage->has_last)
        return fm_error_set(error, FM_ERR_STATE,
                            "no batch was returned in this epoch: call fm_loader_next() first");
    return stage->calls->wait(stage->device, slot_of(stage, stage->n_consumed - 1), stream, error);
}

bool fm_loader_converts(const fm_loader *loader) { return loader && loader->device.converts; }
