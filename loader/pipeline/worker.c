#define _GNU_SOURCE
#include "pipeline/worker.h"

#include <stdio.h>

#include "pipeline/schedule.h"
#include "pipeline/virtual_workers.h"

/* Stack of a decode thread: libjpeg and the row loops need a few KiB. */
#define STACK_BYTES ((size_t)512 << 10)

/* Returns the read buffer. Before that, puts the bytes of a sample that was made into the cache. */
static void end_read(fm_worker *worker, fm_task *task, int status) {
    fm_loader *const loader = worker->loader;
    if (!status && loader->config.cache) {
        const fm_cache_key key = fm_task_cache_key(task);
        fm_cache_put(loader->config.cache, &key, task->read.bytes, task->read.n_bytes);
    }
    fm_readers_return(&loader->readers, &task->read);
}

static void run_task(fm_worker *worker, fm_task *task) {
    fm_loader *const loader = worker->loader;
    fm_error error = {.message = ""};
    fm_stage_timer timer = {.last_ns = task->dequeued_ns};
    task->worker = worker->number;
    const int status =
        loader->processor->process(worker, task, task->batch->buffer->memory, &timer, &error);
    if (!task->data) {
        end_read(worker, task, status);
        fm_timer_end(&timer, &timer.decode_ns);
    }
    task->cause = status;
    if (status)
        snprintf(task->why, sizeof(task->why), "%.*s", (int)sizeof(task->why) - 1, error.message);
    task->finished_ns = timer.last_ns;
    /* Read last: a thread often loses its CPU at the end of a system call. */
    const uint64_t cpu_ns =
        fm_core_clock_span(&worker->core_clock, task->dequeued_ns, task->finished_ns);
    task->own = fm_work_of(timer.decode_ns, timer.transform_ns,
                           task->finished_ns - task->dequeued_ns, cpu_ns);
    if (loader->rows.is_mapped) fm_work_read(&task->own);
    fm_counter_add(&worker->decode_ns, timer.decode_ns);
    fm_counter_add(&worker->transform_ns, timer.transform_ns);
    if (!status) fm_counter_add(&worker->n_samples, task->n_samples);
}

/* Locked. Counts the wait for the lock as waiting for a CPU: this thread or the lock's holder
 * lacked one. */
static void end_task(fm_task *task) {
    const uint64_t now_ns = fm_clock_ns();
    task->own.starved_ns += now_ns - task->finished_ns;
    task->finished_ns = now_ns;
}

/* Called with the lock held before the thread waits; drops it while running. Frees the memory that
 * a large image needed. Returns whether there was any. */
static bool trim_memory(fm_worker *worker) {
    const bool is_large = (worker->decoder && fm_decoder_is_large(worker->decoder)) ||
                          fm_scratch_is_large(&worker->views.scratch);
    if (!is_large) return false;
    fm_loader_unlock(worker->loader);
    fm_decoder_trim(worker->decoder);
    fm_scratch_trim(&worker->views.scratch);
    fm_loader_lock(worker->loader);
    return true;
}

/* Called with the lock held; drops it while waiting. NULL: the thread must end. */
static fm_task *wait_for_task(fm_worker *worker) {
    fm_loader *const loader = worker->loader;
    fm_task *task = NULL;
    while (!loader->queue.is_stopping && !(task = fm_schedule_dequeue(loader))) {
        if (trim_memory(worker)) continue;
        const uint64_t since_ns = fm_clock_ns();
        atomic_store_explicit(&worker->idle_since_ns, since_ns, memory_order_relaxed);
        fm_ring_wait(loader->ring, &loader->ring->work);
        atomic_store_explicit(&worker->idle_since_ns, 0, memory_order_relaxed);
        fm_counter_add(&worker->idle_ns, fm_clock_ns() - since_ns);
    }
    return loader->queue.is_stopping ? NULL : task;
}

/* Called with the lock held; drops it while reading the image's header. The task then waits until
 * its parameters are drawn, which makes it decodable again. */
static void measure(fm_worker *worker, fm_task *task) {
    fm_loader *const loader = worker->loader;
    fm_error error = {.message = ""};
    int32_t width = 0, height = 0;
    fm_loader_unlock(loader);
    const int status = loader->processor->measure(worker, task, &width, &height, &error);
    if (status && !task->data) end_read(worker, task, status);
    const uint64_t now_ns = fm_clock_ns();
    fm_counter_add(&worker->decode_ns, now_ns - task->dequeued_ns);
    fm_loader_lock(loader);
    if (fm_is_cancelled(loader)) return;
    if (status) {
        task->worker = worker->number;
        task->cause = status;
        task->finished_ns = now_ns;
        snprintf(task->why, sizeof(task->why), "%.*s", (int)sizeof(task->why) - 1, error.message);
        fm_schedule_finish(loader, task);
    } else {
        task->width = width;
        task->height = height;
    }
    fm_virtual_workers_advance(loader, task->batch->virtual_worker);
}

static void *run_worker(void *argument) {
    fm_worker *const worker = argument;
    fm_loader *const loader = worker->loader;
    const uint64_t now_ns = fm_clock_ns();
    fm_core_clock_span(&worker->core_clock, now_ns, now_ns);
    fm_loader_lock(loader);
    for (fm_task *task; (task = wait_for_task(worker));) {
        loader->queue.n_active++;
        if (fm_must_measure(loader, task)) {
            measure(worker, task);
            loader->queue.n_active--;
            if (fm_is_cancelled(loader)) fm_schedule_signal_idle(loader);
            continue;
        }
        fm_loader_unlock(loader);
        run_task(worker, task);
        fm_loader_lock(loader);
        loader->queue.n_active--;
        if (fm_is_cancelled(loader)) {
            fm_schedule_signal_idle(loader);
        } else {
            end_task(task);
            fm_schedule_finish(loader, task);
        }
    }
    fm_loader_unlock(loader);
    return NULL;
}

int fm_workers_open(fm_loader *loader, fm_error *error) {
    const uint32_t n_workers = loader->config.n_threads;
    loader->workers = fm_mem_zalloc(&loader->counter, n_workers, sizeof(fm_worker));
    if (!loader->workers)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u decode threads", n_workers);
    loader->n_workers = n_workers;
    for (uint32_t i = 0; i < n_workers; i++) {
        fm_worker *const worker = &loader->workers[i];
        worker->loader = loader;
        worker->number = i;
        int status = loader->processor->open(worker, error);
        if (!status)
            status = fm_thread_start(&worker->thread, "fm-decode", STACK_BYTES, run_worker, worker,
                                     error);
        if (status) return status;
    }
    return FM_OK;
}

void fm_workers_join(fm_loader *loader) {
    for (uint32_t i = 0; i < loader->n_workers; i++) fm_thread_join(&loader->workers[i].thread);
}

void fm_workers_close(fm_loader *loader) {
    for (uint32_t i = 0; i < loader->n_workers; i++) {
        fm_decoder_close(&loader->workers[i].decoder);
        fm_pixels_close(&loader->workers[i].pixels);
        fm_view_tools_close(&loader->workers[i].views);
        fm_mem_free(loader->workers[i].seek);
        fm_rows_scratch_close(&loader->workers[i].scratch);
    }
    fm_mem_free(loader->workers);
}
