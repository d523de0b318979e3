#define _GNU_SOURCE
#include "pipeline/schedule.h"

#include <errno.h>
#include <stdio.h>

#include "pipeline/record.h"

#define SMALLEST_SIZE_LOG2 12

void fm_pending_begin(fm_loader *loader, fm_pending *batch) {
    batch->number = loader->epoch.n_submitted++;
    batch->number_all = loader->n_batches++;
    batch->n_rejected = 0;
    batch->buffer = NULL;
    batch->size_classes = 0;
    batch->ready_ns = batch->fallback_ns = batch->buffer_ns = batch->copy_queued_ns = 0;
    batch->submitted_ns = fm_clock_ns();
    batch->has_failed = false;
}

/* ---- decodable tasks ------------------------------------------------------------------------- */

void fm_pending_push(fm_pending *batch, fm_task *task, uint64_t n_bytes) {
    const int log2 = 63 - __builtin_clzll(n_bytes | 1) - SMALLEST_SIZE_LOG2;
    const int size = log2 < 0 ? 0 : log2 < FM_N_SIZE_CLASSES ? log2 : FM_N_SIZE_CLASSES - 1;
    task->next = batch->size_classes >> size & 1 ? batch->decodable[size] : NULL;
    batch->decodable[size] = task;
    batch->size_classes |= 1u << size;
}

fm_task *fm_pending_pop(fm_pending *batch) {
    if (!batch->size_classes) return NULL;
    const int size = 31 - __builtin_clz(batch->size_classes);
    fm_task *const task = batch->decodable[size];
    batch->decodable[size] = task->next;
    if (!task->next) batch->size_classes &= ~(1u << size);
    return task;
}

void fm_schedule_decodable(fm_loader *loader, fm_task *task) {
    task->work_decodable = loader->queue.work;
    fm_pending_push(task->batch, task, task->data ? task->data_bytes : task->read.n_bytes);
    pthread_cond_signal(&loader->ring->work);
}

void fm_schedule_all_decodable(fm_loader *loader, fm_pending *batch) {
    /* A pushed task is dequeued first, so the last task is pushed first. */
    for (uint32_t i = batch->n_tasks; i-- > 0;) {
        fm_task *const task = &batch->tasks[i];
        task->work_decodable = loader->queue.work;
        fm_pending_push(batch, task, 0);
    }
    if (batch->n_tasks > 1)
        pthread_cond_broadcast(&loader->ring->work);
    else
        pthread_cond_signal(&loader->ring->work);
}

/* ---- buffers --------------------------------------------------------------------------------- */

void fm_schedule_assign_buffers(fm_loader *loader) {
    fm_queue *const queue = &loader->queue;
    bool any_work = false;
    while (queue->n_with_buffer < queue->n) {
        fm_pending *const batch = fm_queue_at(queue, queue->n_with_buffer);
        const bool was_wanted = loader->ring->wanted;
        batch->buffer = fm_ring_acquire(loader->ring);
        /* Copies to the device may be done by now; the stage then frees their buffers. */
        if (!batch->buffer && !was_wanted) fm_device_stage_wake(&loader->device);
        if (!batch->buffer) break;
        batch->buffer_ns = fm_clock_ns();
        batch->buffer_freed_ns = batch->buffer->free_ns;
        batch->work_at_buffer = queue->work;
        queue->n_with_buffer++;
        any_work = any_work || batch->size_classes;
        /* All samples of the batch were rejected before it had a buffer. */
        if (batch->n_left == 0) {
            fm_buffer_set_ready(batch->buffer);
            pthread_cond_signal(&loader->ring->ready);
        }
    }
    if (any_work) pthread_cond_broadcast(&loader->ring->work);
}

fm_task *fm_schedule_dequeue(fm_loader *loader) {
    fm_queue *const queue = &loader->queue;
    if (fm_is_cancelled(loader)) return NULL;
    fm_schedule_assign_buffers(loader);
    for (uint32_t i = 0; i < queue->n_with_buffer; i++) {
        fm_task *const task = fm_pending_pop(fm_queue_at(queue, i));
        if (!task) continue;
        task->work_dequeued = queue->work;
        task->dequeued_ns = fm_clock_ns();
        return task;
    }
    return NULL;
}

/* ---- finished tasks -------------------------------------------------------------------------- */

void fm_schedule_finish(fm_loader *loader, fm_task *task) {
    fm_pending *const batch = task->batch;
    fm_record_sample(loader, task);
    task->is_finished = true;
    if (task->cause) batch->n_rejected++;
    if (--batch->n_left && !batch->held) return;
    if (batch->n_left == 0) {
        batch->last = task;
        batch->ready_ns = task->finished_ns ? task->finished_ns : fm_clock_ns();
        if (batch->buffer) fm_buffer_set_ready(batch->buffer);
    }
    if (batch == fm_queue_at(&loader->queue, 0)) pthread_cond_signal(&loader->ring->ready);
    fm_device_stage_wake(&loader->device);
}

void fm_schedule_reject(const fm_loader *loader, fm_task *task, int sys_errno) {
    fm_error why;
    if (sys_errno == FM_READ_REMOTE) { /* task->why is set */
        task->cause = FM_ERR_READ;
        return;
    }
    if (sys_errno == EFBIG) {
        fm_error_set(&why, FM_ERR_LIMIT, "the %s is larger than max_file_bytes (%llu)",
                     task->read.range_bytes ? "image" : "file",
                     (unsigned long long)loader->config.max_file_bytes);
    } else if (sys_errno == FM_READ_ENDS_EARLY) {
        fm_error_set(&why, FM_ERR_READ, "the file ends before these bytes do");
    } else {
        fm_error_set_errno(&why, FM_ERR_READ, sys_errno, "can't read the file");
    }
    task->cause = why.status;
    snprintf(task->why, sizeof(task->why), "%.*s", (int)sizeof(task->why) - 1, why.message);
}

void fm_schedule_pop(fm_loader *loader) {
    fm_queue *const queue = &loader->queue;
    queue->head = (queue->head + 1) % queue->capacity;
    queue->n--;
    queue->n_with_buffer--;
    fm_device_stage_wake(&loader->device);
    fm_schedule_assign_buffers(loader);
}

void fm_schedule_signal_idle(fm_loader *loader) {
    if (loader->queue.n_reading == 0 && loader->queue.n_active == 0)
        pthread_cond_broadcast(&loader->ring->idle);
}
