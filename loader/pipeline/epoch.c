/* Starts, stops and finishes an epoch. */
#define _GNU_SOURCE
#include <string.h>

#include "pipeline/schedule.h"
#include "pipeline/submit.h"
#include "pipeline/virtual_workers.h"

#define STOP_LIMIT_NS 100000000u

/* Locked. Drops all pending batches. No reader or decode thread has a task of them. */
static void drop_batches(fm_loader *loader) {
    fm_queue *const queue = &loader->queue;
    for (uint32_t i = 0; i < queue->n; i++) {
        fm_pending *const batch = fm_queue_at(queue, i);
        for (uint32_t t = 0; t < batch->n_tasks; t++)
            if (!batch->tasks[t].data) fm_readers_return(&loader->readers, &batch->tasks[t].read);
        if (batch->buffer) fm_buffer_recycle(batch->buffer);
    }
    queue->n = queue->n_with_buffer = 0;
    loader->fallback = NULL;
}

/* Called with the lock held; drops it while waiting. Waits for decode threads and the device's
 * thread, which stop at their next rows or call, and for reads at most STOP_LIMIT_NS, as they may
 * be stuck for good. */
static void wait_until_idle(fm_loader *loader) {
    const fm_queue *const queue = &loader->queue;
    const uint64_t deadline_ns = fm_clock_ns() + STOP_LIMIT_NS;
    while (queue->n_active > 0 || loader->device.is_busy ||
           (queue->n_reading > 0 && fm_clock_ns() < deadline_ns))
        fm_ring_wait_until(loader->ring, &loader->ring->idle, fm_clock_ns() + STOP_LIMIT_NS / 20);
}

int fm_loader_stop(fm_loader *loader, fm_error *error) {
    fm_queue *queue;
    int status = fm_loader_check(loader, error);
    if (status) return status;
    if (loader->is_broken)
        return fm_error_set(error, FM_ERR_READ,
                            "reads of an earlier epoch are stuck; close this loader");
    if (loader->epoch.state == FM_EPOCH_NONE) return FM_OK;
    loader->epoch.state = FM_EPOCH_NONE;
    queue = &loader->queue;
    fm_loader_lock(loader);
    const bool is_busy = queue->n_reading > 0 || queue->n_active > 0;
    atomic_store(&queue->is_cancelled, true);
    fm_loader_unlock(loader);
    if (is_busy) fm_readers_cancel_queued(&loader->readers);
    fm_loader_lock(loader);
    wait_until_idle(loader);
    fm_device_stage_drop(loader);
    if (queue->n_reading > 0) {
        loader->is_broken = true;
        status = fm_error_set(error, FM_ERR_READ,
                              "%u reads are stuck in the kernel; close this loader and open "
                              "another",
                              queue->n_reading);
    } else {
        drop_batches(loader);
        atomic_store(&queue->is_cancelled, false);
    }
    fm_loader_unlock(loader);
    return status ? status : fm_device_stage_check(loader, error);
}

/* Checks the arguments before the current epoch is stopped. */
static int check_epoch(const fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    if (!epoch) return fm_error_set(error, FM_ERR_ARGUMENT, "epoch is NULL");
    if (epoch->ahead && (epoch->order || loader->device.calls))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "an epoch with `ahead` takes no order, and no device");
    const int status = fm_virtual_workers_check(loader, epoch, error);
    if (status || !epoch->order) return status;
    if (!loader->config.source.locate && !loader->rows.arrays)
        return fm_error_set(error, FM_ERR_STATE,
                            "an epoch with an order needs config.source to find its files");
    for (size_t i = 0; i < epoch->n_order; i++) {
        const int64_t index = epoch->order[i];
        if (index < 0 || (uint64_t)index >= loader->config.n_samples)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "order[%zu] is %lld, outside the dataset of %llu samples", i,
                                (long long)index, (unsigned long long)loader->config.n_samples);
    }
    return FM_OK;
}

static int copy_order(fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    fm_epoch_run *const run = &loader->epoch;
    run->n_order = run->order_next = 0;
    run->drop_last = epoch->drop_last;
    run->has_order = epoch->order != NULL;
    if (!epoch->order) return FM_OK;
    if (epoch->n_order > run->order_capacity) {
        fm_mem_free(run->order);
        run->order_capacity = 0;
        run->order = fm_mem_alloc(&loader->counter, epoch->n_order, sizeof(int64_t));
        if (!run->order)
            return fm_error_set(error, FM_ERR_NOMEM, "no memory for an order of %zu indices",
                                epoch->n_order);
        run->order_capacity = epoch->n_order;
    }
    if (epoch->n_order) memcpy(run->order, epoch->order, epoch->n_order * sizeof(int64_t));
    run->n_order = epoch->n_order;
    return FM_OK;
}

int fm_loader_start(fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    const uint64_t now_ns = fm_clock_ns();
    int status = fm_loader_check(loader, error);
    if (!status) status = check_epoch(loader, epoch, error);
    if (!status) status = fm_loader_stop(loader, error);
    if (!status) status = fm_device_stage_check(loader, error);
    if (!status) status = copy_order(loader, epoch, error);
    if (!status) status = fm_virtual_workers_start(loader, epoch, error);
    if (status) return status;
    fm_epoch_run *const run = &loader->epoch;
    fm_records *const records = &loader->records;
    const size_t used_bytes = loader->config.n_samples * sizeof(uint32_t);
    if (run->occurrences && epoch->used) memcpy(run->occurrences, epoch->used, used_bytes);
    if (run->occurrences && !epoch->used) memset(run->occurrences, 0, used_bytes);
    run->seed = epoch->seed;
    run->number = epoch->number;
    run->n_submitted = 0;
    run->started_ns = now_ns;
    fm_loader_lock(loader);
    run->is_ahead = epoch->ahead;
    loader->queue.is_woken = false;
    records->n_handed_out = records->n_recorded = 0;
    records->last_return_ns = 0;
    records->request_ns = 0;
    records->sums.epochs++;
    fm_loader_unlock(loader);
    run->state = FM_EPOCH_OPEN;
    if (!epoch->order) return FM_OK;
    /* An error of the source is reported by next(), which calls the source again. */
    const int submitted = fm_submit_order(loader, NULL);
    (void)submitted;
    return FM_OK;
}

int fm_loader_finish(fm_loader *loader, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status) return status;
    if (loader->epoch.state == FM_EPOCH_NONE)
        return fm_error_set(error, FM_ERR_STATE, "no epoch is running");
    loader->epoch.state = FM_EPOCH_FINISHED;
    return FM_OK;
}
