/* Hands ready batches to the caller, and rejected samples that the caller finishes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "pipeline/record.h"
#include "pipeline/schedule.h"
#include "pipeline/submit.h"
#include "pipeline/virtual_workers.h"
#include "read/remote.h"

/* Of a path in a message: leaves room for the reason. */
#define SHOWN_PATH_BYTES 768

/* ---- handing out a batch --------------------------------------------------------------------- */

/* `memory` is that of the batch's buffer; NULL if the batch is on a device. */
static void fill_batch(const fm_loader *loader, const fm_pending *pending, void *memory,
                       fm_batch *batch) {
    *batch = (fm_batch){
        .images = memory,
        .n = pending->n_samples,
        .channels = loader->layout.has_images ? (uint32_t)loader->plan.channels : 0,
        .height = (uint32_t)loader->plan.out_height,
        .width = (uint32_t)loader->plan.out_width,
        .dtype = loader->result.dtype,
        .layout = loader->result.layout,
        .number = pending->number,
    };
    if (!loader->layout.label_bytes || !memory) return;
    int64_t *const labels = fm_buffer_labels(loader->ring, memory);
    memcpy(labels, pending->labels, pending->n_samples * sizeof(*labels));
    batch->labels = labels;
}

/* Hands out a copy of the batch, as the caller has borrowed the maximum of buffers. */
static int deliver_copy(fm_loader *loader, const fm_pending *pending, fm_batch *batch,
                        fm_error *error) {
    const uint64_t begin_ns = fm_clock_ns();
    const size_t image_bytes = fm_layout_bytes(&loader->layout, pending->n_samples);
    fm_buffer *const copy = fm_buffer_clone(pending->buffer, image_bytes);
    if (!copy)
        return fm_error_set(error, FM_ERR_NOMEM,
                            "no memory for a copy of a batch (%zu bytes), needed as %u batches are "
                            "borrowed already; release some",
                            image_bytes, FM_RING_MAX_BORROWED);
    batch->images = copy->memory;
    if (batch->labels) batch->labels = fm_buffer_labels(loader->ring, copy->memory);
    batch->borrowed = copy;
    batch->copied = true;
    fm_loader_lock(loader);
    loader->records.sums.copied_batches++;
    loader->records.sums.copied_bytes += image_bytes;
    loader->records.sums.copy_ns += fm_clock_ns() - begin_ns;
    fm_loader_unlock(loader);
    return FM_OK;
}

/* Passes the buffer's memory to the caller with the batch, for allocators with `handover`. */
static int deliver_memory(const fm_loader *loader, const fm_pending *pending, fm_batch *batch,
                          fm_error *error) {
    if (fm_buffer_hand_over(pending->buffer, &batch->images, &batch->memory_handle))
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a new batch buffer of %zu bytes",
                            loader->ring->buffer_bytes);
    return FM_OK;
}

/* Not locked: no other thread touches a complete batch. */
static int hand_out(fm_loader *loader, const fm_pending *pending, fm_batch *batch,
                    fm_error *error) {
    if (loader->device.calls) {
        fill_batch(loader, pending, NULL, batch);
        return fm_device_stage_deliver(loader, batch, error);
    }
    fill_batch(loader, pending, pending->buffer->memory, batch);
    if (loader->ring->allocator.handover) return deliver_memory(loader, pending, batch, error);
    fm_loader_lock(loader);
    const bool lend = fm_ring_may_lend(loader->ring);
    if (lend) fm_buffer_lend(pending->buffer);
    fm_loader_unlock(loader);
    if (!lend) return deliver_copy(loader, pending, batch, error);
    batch->borrowed = pending->buffer;
    return FM_OK;
}

/* Locked. Keeps the delivery of a batch handed out ahead; fm_loader_step_ready() records its step.
 */
static void note_handed_out(fm_records *records, const fm_delivery *delivery) {
    records->deliveries[delivery->number % records->n_deliveries] = *delivery;
    records->n_handed_out = delivery->number + 1;
}

/* Locked. Removes the oldest batch, which was handed out or has failed, and records its step. */
static void leave_queue(fm_loader *loader, const fm_pending *pending) {
    const uint64_t ready_ns = fm_pending_ready_ns(pending);
    const fm_delivery delivery = fm_record_delivery(pending);
    fm_schedule_pop(loader);
    if (loader->epoch.is_ahead) {
        note_handed_out(&loader->records, &delivery);
        return;
    }
    fm_record_received(loader, &delivery);
    if (delivery.has_failed)
        fm_record_failed_wait(loader, &delivery, fm_clock_ns());
    else
        fm_record_step(loader, &delivery, ready_ns);
}

static int deliver(fm_loader *loader, fm_pending *pending, fm_batch *batch, fm_error *error) {
    const int status = hand_out(loader, pending, batch, error);
    if (status) {
        *batch = (fm_batch){0};
        return status;
    }
    fm_loader_lock(loader);
    if (loader->device.calls)
        fm_device_stage_consumed(&loader->device);
    else if (pending->buffer->state == FM_BUFFER_READY) /* copied, or its memory handed over */
        fm_buffer_recycle(pending->buffer);
    if (pending->number == 0) {
        loader->records.sums.first_batches++;
        loader->records.sums.first_batch_ns +=
            fm_pending_ready_ns(pending) - loader->epoch.started_ns;
    }
    fm_virtual_workers_delivered(loader, pending);
    leave_queue(loader, pending);
    fm_loader_unlock(loader);
    return FM_OK;
}

/* ---- rejected samples ------------------------------------------------------------------------ */

/* The batch's first rejected task, by position. */
static fm_task *first_rejected(const fm_pending *pending) {
    for (uint32_t i = 0; i < pending->n_tasks; i++)
        if (pending->tasks[i].cause) return &pending->tasks[i];
    return NULL;
}

static void describe(const fm_task *task, fm_error *error) {
    const fm_read *const read = &task->read;
    char path[SHOWN_PATH_BYTES];
    fm_remote_name_shown(read->path, path, sizeof(path));
    if (task->range_bytes)
        fm_error_set(error, task->cause, "sample %lld (bytes %llu to %llu of %s): %s",
                     (long long)task->index, (unsigned long long)read->offset_bytes,
                     (unsigned long long)(read->offset_bytes + task->range_bytes - 1), path,
                     task->why);
    else
        fm_error_set(error, task->cause, "sample %lld (%s): %s", (long long)task->index,
                     *path ? path : "in memory", task->why);
    fm_error_set_index(error, task->index);
}

/* Drops the oldest batch; its error is returned in its place. */
static int drop_failed(fm_loader *loader, fm_pending *pending, fm_error *error) {
    if (error) *error = pending->error;
    const int status = pending->error.status;
    fm_loader_lock(loader);
    fm_buffer_recycle(pending->buffer);
    leave_queue(loader, pending);
    fm_loader_unlock(loader);
    return status;
}

/* The oldest batch has rejected samples. Passes the first one to the caller, who finishes it, or
 * returns its error in place of the batch. */
static int handle_rejected(fm_loader *loader, fm_pending *pending, fm_error *error) {
    fm_task *const task = first_rejected(pending);
    if (loader->config.fallback && !loader->rows.arrays && !pending->has_failed) {
        loader->fallback = task;
        loader->fallback_since_ns = fm_clock_ns();
        describe(task, error);
        return FM_FALLBACK;
    }
    if (!pending->has_failed) describe(task, &pending->error);
    if (fm_has_streams(loader)) {
        /* Other threads may still work on the batch, and what was drawn behind it is not what torch
         * would draw: the caller starts another epoch. */
        if (error) *error = pending->error;
        return pending->error.status;
    }
    return drop_failed(loader, pending, error);
}

/* ---- next() ---------------------------------------------------------------------------------- */

/* Locked. Whether next() has something to return: the oldest batch, a rejected sample of it, or an
 * error of the device. */
static bool has_result(fm_loader *loader) {
    const fm_device_stage *const stage = &loader->device;
    if (loader->queue.n == 0) return false;
    const fm_pending *const pending = fm_queue_at(&loader->queue, 0);
    const bool is_ready =
        pending->buffer && (fm_has_streams(loader) ? fm_virtual_workers_is_ready(loader, pending)
                                                   : pending->buffer->state == FM_BUFFER_READY);
    if (!stage->calls) return is_ready;
    return stage->error.status || fm_device_stage_n_ahead(stage) > 0 ||
           (is_ready && pending->n_rejected > 0);
}

/* Called with the lock held; drops it while waiting. Returns false on a timeout and after
 * fm_loader_wake(). */
static bool wait_for_result(fm_loader *loader, int64_t timeout_ns) {
    const uint64_t deadline_ns = fm_clock_ns() + (uint64_t)(timeout_ns < 0 ? 0 : timeout_ns);
    bool timed_out = false;
    while (!has_result(loader) && !loader->queue.is_woken && !timed_out) {
        if (timeout_ns < 0)
            fm_ring_wait(loader->ring, &loader->ring->ready);
        else
            timed_out = fm_ring_wait_until(loader->ring, &loader->ring->ready, deadline_ns);
    }
    const bool found = has_result(loader) && !loader->queue.is_woken;
    loader->queue.is_woken = false;
    return found;
}

/* FM_OK if there is a batch to wait for. */
static int check_next(fm_loader *loader, fm_error *error) {
    fm_epoch_run *const epoch = &loader->epoch;
    if (epoch->state == FM_EPOCH_NONE)
        return fm_error_set(error, FM_ERR_STATE, "no epoch is running: start one first");
    if (loader->fallback)
        return fm_error_set(error, FM_ERR_STATE,
                            "a fallback is pending: call fm_loader_fallback_done() first");
    /* Batches of the order are submitted here, so that the source is only called on this thread. */
    if (epoch->has_order && epoch->state == FM_EPOCH_OPEN) {
        const int status = fm_submit_order(loader, error);
        /* A sample that the source does not find is an error when its batch is due. It ends the
         * epoch. */
        if (status && loader->queue.n == 0) {
            epoch->state = FM_EPOCH_FINISHED;
            return status;
        }
    }
    if (!epoch->is_ahead && loader->queue.n == 0) {
        if (epoch->state != FM_EPOCH_FINISHED) return FM_AGAIN;
        loader->records.request_ns = 0;
        return FM_END;
    }
    if (loader->device.calls && fm_loader_n_outputs(loader) == 0)
        return fm_error_set(
            error, FM_ERR_STATE,
            "there is no output for the next batch: call fm_loader_add_output() first");
    return FM_OK;
}

int fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error) {
    int status = fm_loader_check(loader, error);
    if (!status && !batch) status = fm_error_set(error, FM_ERR_ARGUMENT, "batch is NULL");
    if (status) return status;
    *batch = (fm_batch){0};
    status = check_next(loader, error);
    if (status) return status;
    fm_loader_lock(loader);
    if (!loader->epoch.is_ahead) fm_record_request(loader);
    const bool found = wait_for_result(loader, timeout_ns);
    if (!loader->epoch.is_ahead) loader->records.waited_until_ns = fm_clock_ns();
    status = fm_device_stage_report(&loader->device, error);
    fm_pending *const pending = fm_queue_at(&loader->queue, 0);
    const bool is_rejected = pending->n_rejected > 0;
    fm_loader_unlock(loader);
    if (status) return status;
    if (!found) return FM_AGAIN;
    return is_rejected ? handle_rejected(loader, pending, error)
                       : deliver(loader, pending, batch, error);
}

void fm_loader_wake(fm_loader *loader) {
    if (fm_loader_check(loader, NULL)) return;
    fm_loader_lock(loader);
    loader->queue.is_woken = true;
    pthread_cond_broadcast(&loader->ring->ready);
    fm_loader_unlock(loader);
}

void fm_batch_release(fm_batch *batch) {
    if (!batch) return;
    fm_buffer_release(batch->borrowed);
    *batch = (fm_batch){0};
}

size_t fm_loader_n_pending(const fm_loader *loader) { return loader ? loader->queue.n : 0; }

/* ---- samples that the caller finishes -------------------------------------------------------- */

int fm_loader_fallback(fm_loader *loader, fm_fallback *out) {
    const int status = fm_loader_check(loader, NULL);
    if (status || !out) return status ? status : FM_ERR_ARGUMENT;
    const fm_task *const task = loader->fallback;
    if (!task) return FM_ERR_STATE;
    const size_t view = fm_views_at(&loader->views, task->position).begin;
    const fm_plan *const plan = loader->views.list[view].plan;
    *out = (fm_fallback){
        .index = task->index,
        .occurrence = task->occurrence,
        .position = task->position,
        .cause = task->cause,
        .path = task->read.path,
        .offset_bytes = task->read.offset_bytes,
        .range_bytes = task->range_bytes,
        .data = task->is_cached ? NULL : task->data,
        .data_bytes = task->is_cached ? 0 : task->data_bytes,
        .out = fm_view_out(&loader->views, view, task->batch->buffer->memory, task->position),
        .out_bytes = plan->sample_bytes,
        .dtype = plan->dtype,
        .layout = plan->layout,
    };
    describe(task, &out->error);
    return FM_OK;
}

int fm_loader_fallback_view(fm_loader *loader, size_t number, void **out, size_t *out_bytes) {
    const int status = fm_loader_check(loader, NULL);
    if (status || !out || !out_bytes) return status ? status : FM_ERR_ARGUMENT;
    const fm_task *const task = loader->fallback;
    if (!task) return FM_ERR_STATE;
    const fm_view_range views = fm_views_at(&loader->views, task->position);
    if (number < views.begin || number >= views.end) return FM_ERR_ARGUMENT;
    *out_bytes = loader->views.list[number].plan->sample_bytes;
    *out = fm_view_out(&loader->views, number, task->batch->buffer->memory, task->position);
    return FM_OK;
}

/* Locked. */
static void count_fallback(fm_stats *sums, int cause) {
    sums->fallback_samples++;
    switch (cause) {
    case FM_ERR_FORMAT:
        sums->fallback_format++;
        break;
    case FM_ERR_KIND:
        sums->fallback_kind++;
        break;
    case FM_ERR_DAMAGED:
        sums->fallback_damaged++;
        break;
    case FM_ERR_READ:
        sums->fallback_read++;
        break;
    default:
        sums->fallback_limit++;
    }
}

int fm_loader_fallback_done(fm_loader *loader, int status, fm_error *error) {
    const int checked = fm_loader_check(loader, error);
    if (checked) return checked;
    fm_task *const task = loader->fallback;
    if (!task) return fm_error_set(error, FM_ERR_STATE, "no fallback is pending");
    fm_pending *const pending = task->batch;
    fm_loader_lock(loader);
    const bool is_held = pending->held == task; /* decode threads may hold another sample */
    fm_loader_unlock(loader);
    if (!status && is_held)
        return fm_error_set(error, FM_ERR_STATE,
                            "the sample's random parameters are not drawn: call "
                            "fm_loader_fallback_draws() first");
    loader->fallback = NULL;
    if (status) {
        pending->has_failed = true;
        describe(task, &pending->error);
        pending->error.status = status < 0 ? status : task->cause;
    }
    fm_loader_lock(loader);
    const uint64_t now_ns = fm_clock_ns();
    loader->records.sums.fallback_ns += now_ns - loader->fallback_since_ns;
    if (!status) {
        count_fallback(&loader->records.sums, task->cause);
        task->cause = 0;
        if (--pending->n_rejected == 0) pending->ready_ns = pending->fallback_ns = now_ns;
        fm_device_stage_wake(&loader->device);
    }
    fm_loader_unlock(loader);
    return FM_OK;
}
