/*
 * What the threads do. The one real coupling between stages lives here: read the image's header,
 * ask the plan for the crop, then decode only that part, straight into the sample's place.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "pipeline/cut.h"
#include "pipeline/pipeline.h"
#include "pipeline/plain.h"

/* Rows decoded between two looks at the clock and at the cancel flag. */
#define BLOCK_ROWS FM_RESAMPLE_ROWS

/* The worker is the only writer of its cells: no read-modify-write is needed. */
static void add(_Atomic uint64_t *cell, uint64_t value) {
    atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + value,
                          memory_order_relaxed);
}

void fm_run_assign_slots(fm_loader *loader) {
    bool any_work = false;
    while (loader->n_with_slot < loader->n_groups) {
        fm_group *const group = fm_group_at(loader, loader->n_with_slot);
        const bool wanted = loader->ring->wanted;
        group->slot = fm_ring_acquire(loader->ring);
        /* Copies that hold slots may be done. */
        if (!group->slot && !wanted) fm_stage_wake(&loader->stage);
        if (!group->slot) break;
        group->slot_ns = fm_clock_ns();
        group->released_ns = group->slot->free_ns;
        group->slot_work = loader->work;
        loader->n_with_slot++;
        any_work = any_work || group->sizes;
        /* All of its samples were rejected before it had a slot. */
        if (group->n_left == 0) pthread_cond_signal(&loader->ring->ready);
    }
    if (any_work) pthread_cond_broadcast(&loader->ring->work);
}

/* Locked. The next task to work on, or NULL. */
static fm_task *claim(fm_loader *loader) {
    if (atomic_load_explicit(&loader->cancelled, memory_order_relaxed)) return NULL;
    fm_run_assign_slots(loader);
    for (uint32_t i = 0; i < loader->n_with_slot; i++) {
        fm_task *const task = fm_group_pop(fm_group_at(loader, i));
        if (!task) continue;
        task->claimed = loader->work;
        task->claimed_ns = fm_clock_ns();
        return task;
    }
    return NULL;
}

/* Locked. A task that a worker ran ends now; what passed since was a wait for the lock, whose
 * holder or this thread had no core. */
static void end_task(fm_task *task) {
    const uint64_t now_ns = fm_clock_ns();
    task->own.starved_ns += now_ns - task->finished_ns;
    task->finished_ns = now_ns;
}

/* Locked. A task is done, or rejected where cause is not 0. */
static void finish(fm_loader *loader, fm_task *task) {
    fm_group *const group = task->group;
    fm_record_sample(loader, task);
    if (task->cause) group->n_rejected++;
    if (--group->n_left) return;
    group->last = task;
    group->ready_ns = task->finished_ns ? task->finished_ns : fm_clock_ns();
    if (group == fm_group_at(loader, 0)) pthread_cond_signal(&loader->ring->ready);
    fm_stage_wake(&loader->stage);
}

/* Locked. */
static void signal_if_idle(fm_loader *loader) {
    if (loader->n_reading == 0 && loader->n_active == 0)
        pthread_cond_broadcast(&loader->ring->idle);
}

/* Why a task is rejected before its decoding. It is not in a list: nobody else looks at it. */
static void reject(const fm_loader *loader, fm_task *task, int sys_errno) {
    fm_error why;
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

/* Locked. The task's bytes are there: the next worker may take it. */
static void offer(fm_loader *loader, fm_task *task) {
    task->offered = loader->work;
    fm_group_push(task->group, task, task->data ? task->data_bytes : task->read.n_bytes);
    pthread_cond_signal(&loader->ring->work);
}

void fm_run_at_once(fm_loader *loader, fm_group *group) {
    fm_task *const task = &group->tasks[0];
    task->offered = task->claimed = loader->work;
    task->claimed_ns = fm_clock_ns();
    fm_ring_unlock(loader->ring);
    fm_rows_copy(loader, task);
    fm_ring_lock(loader->ring);
    task->finished_ns = fm_clock_ns();
    task->own.transform_ns = task->finished_ns - task->claimed_ns;
    loader->sums.transform_ns += task->own.transform_ns;
    loader->sums.native_samples += task->n_samples;
    finish(loader, task);
}

void fm_run_offer_all(fm_loader *loader, fm_group *group) {
    /* Backwards, so that they are taken in order. */
    for (uint32_t i = group->n_tasks; i-- > 0;) {
        fm_task *const task = &group->tasks[i];
        task->offered = loader->work;
        fm_group_push(group, task, 0);
    }
    if (group->n_tasks > 1)
        pthread_cond_broadcast(&loader->ring->work);
    else
        pthread_cond_signal(&loader->ring->work);
}

void fm_run_take_data(fm_loader *loader, fm_task *task) {
    if (task->data_bytes <= loader->config.max_file_bytes) {
        offer(loader, task);
        return;
    }
    reject(loader, task, EFBIG);
    finish(loader, task);
}

void fm_run_on_read(void *user, fm_read *read) {
    fm_loader *const loader = user;
    fm_task *const task = read->user;
    if (read->error) reject(loader, task, read->error);
    fm_ring_lock(loader->ring);
    loader->n_reading--;
    if (!read->error && !read->range_bytes)
        loader->file_bytes[task->index] =
            read->n_bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)read->n_bytes;
    /* Not by the error: the reader cancels while this flag is set only, and a file system may
     * answer ECANCELED as well. */
    if (atomic_load_explicit(&loader->cancelled, memory_order_relaxed)) {
        signal_if_idle(loader);
    } else if (read->error) {
        finish(loader, task);
    } else {
        offer(loader, task);
    }
    fm_ring_unlock(loader->ring);
}

/* A sample's time from the claim on: what has passed since last_ns goes to whichever stage ran. */
typedef struct lap {
    uint64_t last_ns, decode_ns, transform_ns;
} lap;

static void end_lap(lap *laps, uint64_t *stage_ns) {
    const uint64_t now_ns = fm_clock_ns();
    *stage_ns += now_ns - laps->last_ns;
    laps->last_ns = now_ns;
}

/* Decodes and transforms block by block. */
static int run_rows(fm_worker *worker, lap *laps, fm_error *error) {
    uint8_t *rows[BLOCK_ROWS];
    fm_resample *const resample = fm_pixels_resample(worker->pixels);
    for (;;) {
        const int32_t n_rows = fm_resample_rows(resample, rows, BLOCK_ROWS);
        if (n_rows == 0) return FM_OK;
        const int n_decoded = fm_decoder_read(worker->decoder, rows, n_rows, error);
        end_lap(laps, &laps->decode_ns);
        if (n_decoded < 0) return n_decoded;
        fm_resample_push(resample, n_decoded);
        end_lap(laps, &laps->transform_ns);
        if (atomic_load_explicit(&worker->loader->cancelled, memory_order_relaxed))
            return FM_ERR_CANCELLED;
    }
}

/* Where a task's first sample goes. */
static uint8_t *place_of(const fm_loader *loader, const fm_task *task) {
    return (uint8_t *)task->group->slot->memory + task->position * loader->plan.sample_bytes;
}

/* One sample from its bytes to its place in the batch. */
static int decode_sample(fm_worker *worker, const fm_task *task, const uint8_t *bytes,
                         size_t n_bytes, lap *laps, fm_error *error) {
    fm_loader *const loader = worker->loader;
    uint8_t *const out = place_of(loader, task);
    const fm_draw_key key = {loader->seed, loader->epoch_number, task->occurrence, task->index};
    fm_image_info info;
    fm_box needed;
    int32_t skip_px = 0, row_px = 0;
    fm_decoder_set_leaps(worker->decoder, task->verified, task->is_cut);
    int status = fm_decoder_begin(worker->decoder, bytes, n_bytes, &info, error);
    end_lap(laps, &laps->decode_ns);
    if (status) return status;
    status = fm_pixels_begin(worker->pixels, &key, info.width, info.height, &needed, error);
    end_lap(laps, &laps->transform_ns);
    if (status) return status;
    if (needed.width > 0 && needed.height > 0)
        status = fm_decoder_start(worker->decoder, &needed, &skip_px, &row_px, error);
    end_lap(laps, &laps->decode_ns);
    if (!status) status = fm_pixels_start(worker->pixels, skip_px, row_px, out, error);
    end_lap(laps, &laps->transform_ns);
    if (!status) status = run_rows(worker, laps, error);
    if (!status) status = fm_pixels_finish(worker->pixels, error);
    end_lap(laps, &laps->transform_ns);
    return status;
}

/* A file's bytes, which are given or were read. */
static int run_file(fm_worker *worker, fm_task *task, lap *laps, fm_error *error) {
    const uint8_t *const bytes = task->data ? task->data : task->read.bytes;
    const size_t n_bytes = task->data ? task->data_bytes : task->read.n_bytes;
    int status;
    if (n_bytes == 0) {
        status = fm_error_set(error, FM_ERR_FORMAT, "the file is empty");
    } else if (worker->loader->config.plain.body_bytes) {
        status = fm_plain_copy(&worker->loader->config.plain, bytes, n_bytes,
                               place_of(worker->loader, task), worker->loader->stream, error);
        end_lap(laps, &laps->transform_ns);
    } else if (task->is_cut && !fm_cut_end(task->read.bytes, n_bytes)) {
        status = fm_error_set(error, FM_ERR_DAMAGED, "its rows are not where the table has them");
    } else {
        status = decode_sample(worker, task, bytes, n_bytes, laps, error);
        fm_decoder_end(worker->decoder);
    }
    if (!status && !task->data && worker->loader->config.cache) {
        const fm_cache_key key = fm_task_cache_key(task);
        fm_cache_put(worker->loader->config.cache, &key, bytes, n_bytes);
    }
    if (!task->data) fm_reader_return(worker->loader->reader, &task->read);
    end_lap(laps, &laps->decode_ns);
    return status;
}

static void run_task(fm_worker *worker, fm_task *task) {
    fm_error error = {.message = ""};
    lap laps = {.last_ns = task->claimed_ns};
    task->worker = worker->number;
    int status;
    if (worker->loader->arrays) {
        status = fm_rows_run(worker, task, &error);
        end_lap(&laps, &laps.transform_ns);
    } else {
        status = run_file(worker, task, &laps, &error);
    }
    task->cause = status;
    if (status)
        snprintf(task->why, sizeof(task->why), "%.*s", (int)sizeof(task->why) - 1, error.message);
    task->finished_ns = laps.last_ns;
    /* Behind the end: the core is often lost at the end of a system call. */
    const uint64_t cpu_ns =
        fm_core_clock_span(&worker->core_clock, task->claimed_ns, task->finished_ns);
    task->own =
        fm_work_of(laps.decode_ns, laps.transform_ns, task->finished_ns - task->claimed_ns, cpu_ns);
    if (worker->loader->mapped) fm_work_read(&task->own);
    add(&worker->decode_ns, laps.decode_ns);
    add(&worker->transform_ns, laps.transform_ns);
    if (!status) add(&worker->n_samples, task->n_samples);
}

/* Locked, but not meanwhile. Nobody needs a large image's memory while its thread waits. */
static bool give_memory_back(fm_worker *worker) {
    if (!worker->decoder || !fm_decoder_is_large(worker->decoder)) return false;
    fm_ring_unlock(worker->loader->ring);
    fm_decoder_trim(worker->decoder);
    fm_ring_lock(worker->loader->ring);
    return true;
}

/* Locked. Waits for a task; NULL: the loader stops. */
static fm_task *wait_for_task(fm_worker *worker) {
    fm_loader *const loader = worker->loader;
    fm_task *task = NULL;
    while (!loader->stopping && !(task = claim(loader))) {
        if (give_memory_back(worker)) continue;
        const uint64_t since_ns = fm_clock_ns();
        atomic_store_explicit(&worker->idle_since_ns, since_ns, memory_order_relaxed);
        pthread_cond_wait(&loader->ring->work, &loader->ring->mutex);
        atomic_store_explicit(&worker->idle_since_ns, 0, memory_order_relaxed);
        add(&worker->idle_ns, fm_clock_ns() - since_ns);
    }
    return loader->stopping ? NULL : task;
}

void *fm_run_worker(void *argument) {
    fm_worker *const worker = argument;
    fm_loader *const loader = worker->loader;
    const uint64_t now_ns = fm_clock_ns();
    fm_core_clock_span(&worker->core_clock, now_ns, now_ns);
    fm_ring_lock(loader->ring);
    for (fm_task *task; (task = wait_for_task(worker));) {
        loader->n_active++;
        fm_ring_unlock(loader->ring);
        run_task(worker, task);
        fm_ring_lock(loader->ring);
        loader->n_active--;
        if (atomic_load_explicit(&loader->cancelled, memory_order_relaxed)) {
            signal_if_idle(loader);
        } else {
            end_task(task);
            finish(loader, task);
        }
    }
    fm_ring_unlock(loader->ring);
    return NULL;
}
