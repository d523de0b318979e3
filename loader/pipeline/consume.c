/* What the consumer gets: batches in order, samples to finish himself, step records, counters. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "pipeline/pipeline.h"

/* ---- batches going out ----------------------------------------------------------------------- */

/* Locked. The oldest group leaves the circle. */
static void pop_group(fm_loader *loader) {
    loader->head = (loader->head + 1) % loader->config.prefetch_batches;
    loader->n_groups--;
    loader->n_with_slot--;
    fm_stage_wake(&loader->stage);
    fm_run_assign_slots(loader);
}

/* memory: of the slot; NULL: the batch is on a device. */
static void fill_batch(const fm_loader *loader, const fm_group *group, void *memory,
                       fm_batch *batch) {
    const bool has_images = !loader->arrays || loader->config.arrays.images;
    *batch = (fm_batch){
        .images = memory,
        .n = group->n_samples,
        .channels = has_images ? (uint32_t)loader->plan.channels : 0,
        .height = (uint32_t)loader->plan.out_height,
        .width = (uint32_t)loader->plan.out_width,
        .dtype = loader->result.dtype,
        .layout = loader->result.layout,
        .number = group->number,
    };
    if (loader->arrays || !memory) return;
    batch->labels = (const int64_t *)((const uint8_t *)memory + loader->ring->label_offset);
    memcpy((uint8_t *)memory + loader->ring->label_offset, group->labels,
           group->n_samples * sizeof(int64_t));
}

/* Unlocked: a complete group is the consumer's alone. Its slot is lent, copied or handed over. */
static int hand_out(fm_loader *loader, fm_group *group, fm_batch *batch, fm_error *error) {
    fm_ring *const ring = loader->ring;
    if (loader->stage.calls) {
        fill_batch(loader, group, NULL, batch);
        return fm_stage_hand_out(loader, batch, error);
    }
    fill_batch(loader, group, group->slot->memory, batch);
    fm_ring_lock(ring);
    const bool handover = ring->allocator.handover;
    const bool lend = !handover && fm_ring_may_lend(ring);
    if (lend) batch->loan = fm_ring_lend(ring, group->slot);
    fm_ring_unlock(ring);
    if (lend) return FM_OK;
    if (handover) {
        if (fm_ring_hand_over(ring, group->slot, &batch->images, &batch->memory_handle))
            return fm_error_set(error, FM_ERR_NOMEM,
                                "no memory for a fresh batch slot of %zu bytes", ring->slot_bytes);
        return FM_OK;
    }
    const uint64_t begin_ns = fm_clock_ns();
    const size_t image_bytes =
        loader->arrays ? loader->batch_bytes : group->n_samples * loader->plan.sample_bytes;
    fm_loan *const copy = fm_ring_copy(ring, group->slot, image_bytes);
    if (!copy)
        return fm_error_set(error, FM_ERR_NOMEM,
                            "no memory for a copy of a batch (%zu bytes): %u batches are held "
                            "already; release some",
                            image_bytes, FM_RING_MAX_LENT);
    batch->images = fm_loan_memory(copy, ring);
    if (batch->labels)
        batch->labels = (const int64_t *)((const uint8_t *)batch->images + ring->label_offset);
    batch->loan = copy;
    batch->copied = true;
    fm_ring_lock(ring);
    loader->sums.copied_batches++;
    loader->sums.copied_bytes += image_bytes;
    loader->sums.copy_ns += fm_clock_ns() - begin_ns;
    fm_ring_unlock(ring);
    return FM_OK;
}

/* Locked. The consumer gets the batch later: fm_loader_step_ready() records that step. */
static void note_handed_out(fm_loader *loader, const fm_delivery *delivery) {
    loader->deliveries[delivery->number % loader->n_deliveries] = *delivery;
    loader->n_handed_out = delivery->number + 1;
}

static int deliver(fm_loader *loader, fm_group *group, fm_batch *batch, fm_error *error) {
    const int status = hand_out(loader, group, batch, error);
    if (status) {
        *batch = (fm_batch){0};
        return status;
    }
    fm_ring_lock(loader->ring);
    /* A slot whose copy to the device was queued is not the group's any more. */
    if (loader->stage.calls)
        fm_stage_taken(&loader->stage);
    else if (!batch->loan || batch->copied)
        fm_ring_give_back(loader->ring, group->slot);
    const uint64_t ready_ns = fm_group_ready_ns(group);
    if (group->number == 0) {
        loader->sums.first_batches++;
        loader->sums.first_batch_ns += ready_ns - loader->started_ns;
    }
    const fm_delivery delivery = fm_record_delivery(group);
    pop_group(loader);
    if (loader->ahead) {
        note_handed_out(loader, &delivery);
    } else {
        fm_record_taken(loader, &delivery);
        fm_record_step(loader, &delivery, ready_ns);
    }
    fm_ring_unlock(loader->ring);
    return FM_OK;
}

/* The rejected task that comes first in its batch. */
static fm_task *first_rejected(const fm_group *group) {
    for (uint32_t i = 0; i < group->n_tasks; i++)
        if (group->tasks[i].cause) return &group->tasks[i];
    return NULL;
}

static void describe(const fm_task *task, fm_error *error) {
    const fm_read *const read = &task->read;
    if (task->range_bytes)
        fm_error_set(error, task->cause, "sample %lld (bytes %llu to %llu of %s): %s",
                     (long long)task->index, (unsigned long long)read->offset_bytes,
                     (unsigned long long)(read->offset_bytes + task->range_bytes - 1), read->path,
                     task->why);
    else
        fm_error_set(error, task->cause, "sample %lld (%s): %s", (long long)task->index,
                     *read->path ? read->path : "in memory", task->why);
    fm_error_set_index(error, task->index);
}

static int drop_failed(fm_loader *loader, fm_group *group, fm_error *error) {
    if (error) *error = group->error;
    const int status = group->error.status;
    fm_ring_lock(loader->ring);
    fm_ring_give_back(loader->ring, group->slot);
    const fm_delivery delivery = fm_record_delivery(group);
    pop_group(loader);
    if (loader->ahead) {
        note_handed_out(loader, &delivery);
    } else {
        fm_record_taken(loader, &delivery);
        fm_record_failed_wait(loader, &delivery, fm_clock_ns());
    }
    fm_ring_unlock(loader->ring);
    return status;
}

/* The oldest group is complete but for rejected samples. */
static int handle_rejected(fm_loader *loader, fm_group *group, fm_error *error) {
    fm_task *const task = first_rejected(group);
    if (loader->config.fallback && !loader->arrays && !group->failed) {
        loader->fallback_task = task;
        loader->fallback_since_ns = fm_clock_ns();
        describe(task, error);
        return FM_FALLBACK;
    }
    if (!group->failed) describe(task, &group->error);
    return drop_failed(loader, group, error);
}

/* Locked. There is something to do for the consumer: a batch, a sample to finish, an error. A batch
 * whose samples are all rejected before decoding may have no slot yet, as copies to the device hold
 * them all. It then waits for one: the caller finishes samples in the slot. */
static bool is_settled(const fm_loader *loader, const fm_group *group) {
    const fm_stage *const stage = &loader->stage;
    const bool is_finished = group->n_left == 0 && group->slot;
    if (!stage->calls) return is_finished;
    return stage->error.status || fm_stage_n_ahead(stage) > 0 ||
           (is_finished && group->n_rejected > 0);
}

/* Locked. Whether there is an oldest group, and it is settled. */
static bool is_next_settled(fm_loader *loader) {
    return loader->n_groups > 0 && is_settled(loader, fm_group_at(loader, 0));
}

/* Locked. Waits until the oldest group is settled; false: the time is over, or fm_loader_wake() was
 * called. */
static bool wait_for_group(fm_loader *loader, int64_t timeout_ns) {
    const uint64_t deadline_ns = fm_clock_ns() + (uint64_t)(timeout_ns < 0 ? 0 : timeout_ns);
    bool timed_out = false;
    while (!is_next_settled(loader) && !loader->woken && !timed_out) {
        if (timeout_ns < 0)
            pthread_cond_wait(&loader->ring->ready, &loader->ring->mutex);
        else
            timed_out = fm_cond_wait_until(&loader->ring->ready, &loader->ring->mutex, deadline_ns);
    }
    const bool settled = is_next_settled(loader) && !loader->woken;
    loader->woken = false;
    return settled;
}

int fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error) {
    int status = fm_loader_check(loader, error);
    if (!status && !batch) status = fm_error_set(error, FM_ERR_ARGUMENT, "batch is NULL");
    if (status) return status;
    *batch = (fm_batch){0};
    if (loader->epoch_state == FM_EPOCH_NONE)
        return fm_error_set(error, FM_ERR_STATE, "no epoch is running: start one first");
    if (loader->fallback_task)
        return fm_error_set(error, FM_ERR_STATE, "a fallback is pending: end it first");
    /* The order is fed here, on the consumer's thread, since its source is called here only. */
    if (loader->has_order && loader->epoch_state == FM_EPOCH_OPEN) {
        status = fm_loader_feed(loader, error);
        /* What the source does not find is an error at its batch's turn; it ends the epoch. */
        if (status && loader->n_groups == 0) {
            loader->epoch_state = FM_EPOCH_FINISHED;
            return status;
        }
    }
    if (!loader->ahead && loader->n_groups == 0) {
        if (loader->epoch_state != FM_EPOCH_FINISHED) return FM_AGAIN;
        loader->request_ns = 0;
        return FM_END;
    }
    if (loader->stage.calls && fm_loader_n_offered(loader) == 0)
        return fm_error_set(error, FM_ERR_STATE,
                            "no target is on offer for the next batch: offer one first");
    fm_ring_lock(loader->ring);
    if (!loader->ahead) fm_record_request(loader);
    const bool settled = wait_for_group(loader, timeout_ns);
    if (!loader->ahead) loader->waited_until_ns = fm_clock_ns();
    status = fm_stage_report(&loader->stage, error);
    fm_group *const group = fm_group_at(loader, 0);
    fm_ring_unlock(loader->ring);
    if (status) return status;
    if (!settled) return FM_AGAIN;
    status = group->n_rejected ? handle_rejected(loader, group, error)
                               : deliver(loader, group, batch, error);
    return status;
}

void fm_loader_wake(fm_loader *loader) {
    if (fm_loader_check(loader, NULL)) return;
    fm_ring_lock(loader->ring);
    loader->woken = true;
    pthread_cond_broadcast(&loader->ring->ready);
    fm_ring_unlock(loader->ring);
}

void fm_batch_release(fm_batch *batch) {
    if (!batch) return;
    fm_loan_release(batch->loan);
    *batch = (fm_batch){0};
}

/* ---- samples that the caller finishes -------------------------------------------------------- */

int fm_loader_fallback(fm_loader *loader, fm_fallback *out) {
    const int status = fm_loader_check(loader, NULL);
    if (status || !out) return status ? status : FM_ERR_ARGUMENT;
    const fm_task *const task = loader->fallback_task;
    if (!task) return FM_ERR_STATE;
    const fm_plan *const plan = &loader->plan;
    *out = (fm_fallback){
        .index = task->index,
        .occurrence = task->occurrence,
        .position = task->position,
        .cause = task->cause,
        .path = task->read.path,
        .offset_bytes = task->read.offset_bytes,
        .range_bytes = task->range_bytes,
        .data = task->cached ? NULL : task->data,
        .data_bytes = task->cached ? 0 : task->data_bytes,
        .out = (uint8_t *)task->group->slot->memory + task->position * plan->sample_bytes,
        .out_bytes = plan->sample_bytes,
        .dtype = plan->dtype,
        .layout = plan->layout,
    };
    describe(task, &out->error);
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
    fm_task *const task = loader->fallback_task;
    if (!task) return fm_error_set(error, FM_ERR_STATE, "no fallback is pending");
    loader->fallback_task = NULL;
    fm_group *const group = task->group;
    if (status) {
        group->failed = true;
        describe(task, &group->error);
        group->error.status = status < 0 ? status : task->cause;
    }
    fm_ring_lock(loader->ring);
    const uint64_t now_ns = fm_clock_ns();
    loader->sums.fallback_ns += now_ns - loader->fallback_since_ns;
    if (!status) {
        count_fallback(&loader->sums, task->cause);
        task->cause = 0;
        if (--group->n_rejected == 0) group->ready_ns = group->returned_ns = now_ns;
        fm_stage_wake(&loader->stage);
    }
    fm_ring_unlock(loader->ring);
    return FM_OK;
}

size_t fm_loader_n_pending(const fm_loader *loader) { return loader ? loader->n_groups : 0; }

void fm_loader_out_size(const fm_loader *loader, int *height, int *width) {
    if (height) *height = loader ? loader->plan.out_height : 0;
    if (width) *width = loader ? loader->plan.out_width : 0;
}

int fm_loader_section(const fm_loader *loader, size_t number, size_t *offset, size_t *row_bytes) {
    if (!loader || number >= loader->config.arrays.n) return FM_ERR_ARGUMENT;
    if (offset) *offset = loader->sections[number].offset;
    if (row_bytes) *row_bytes = loader->sections[number].row_bytes;
    return FM_OK;
}

int fm_loader_out_channels(const fm_loader *loader) { return loader ? loader->plan.channels : 0; }

/* ---- counters -------------------------------------------------------------------------------- */

/* Time without work of all decode threads together, up to now. */
static uint64_t idle_ns(fm_loader *loader, uint64_t now_ns) {
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; i < loader->n_workers; i++) {
        fm_worker *const worker = &loader->workers[i];
        sum_ns += atomic_load_explicit(&worker->idle_ns, memory_order_relaxed);
        const uint64_t since_ns =
            atomic_load_explicit(&worker->idle_since_ns, memory_order_relaxed);
        if (since_ns && since_ns < now_ns) sum_ns += now_ns - since_ns;
    }
    return sum_ns;
}

static void add_workers(fm_loader *loader, fm_stats *out) {
    out->worker_idle_ns = idle_ns(loader, fm_clock_ns());
    for (uint32_t i = 0; i < loader->n_workers; i++) {
        fm_worker *const worker = &loader->workers[i];
        out->native_samples += atomic_load_explicit(&worker->n_samples, memory_order_relaxed);
        out->decode_ns += atomic_load_explicit(&worker->decode_ns, memory_order_relaxed);
        out->transform_ns += atomic_load_explicit(&worker->transform_ns, memory_order_relaxed);
    }
}

void fm_loader_stats(fm_loader *loader, fm_stats *out) {
    if (!out) return;
    *out = (fm_stats){0};
    if (fm_loader_check(loader, NULL)) return;
    fm_reader_stats reader = {.name = "none", .reason = "the samples are in memory"};
    if (loader->reader) fm_reader_stats_get(loader->reader, &reader);
    fm_ring_lock(loader->ring);
    *out = loader->sums;
    add_workers(loader, out); /* under the lock, so that no idle time is between two counters */
    fm_ring_unlock(loader->ring);
    /* A system call each: not while the workers wait for the lock. */
    for (uint32_t i = 0; i < loader->n_workers; i++)
        out->worker_cpu_ns += fm_thread_cpu_ns(&loader->workers[i].thread);
    out->read_files = reader.n_files;
    out->read_opens = reader.n_opens;
    out->read_bytes = reader.n_bytes;
    out->read_ns = reader.read_ns;
    out->read_depth = reader.depth;
    if (loader->config.cache) {
        fm_cache_usage usage;
        fm_cache_usage_get(loader->config.cache, &usage);
        out->cache_files = usage.n_files;
        out->cache_bytes = usage.used_bytes;
    }
    out->threads_created = loader->n_workers + reader.n_threads + loader->stage.thread.running;
    out->allocations = atomic_load_explicit(&loader->counter.n_blocks, memory_order_relaxed);
    out->allocated_bytes = atomic_load_explicit(&loader->counter.n_bytes, memory_order_relaxed);
    out->n_threads = loader->n_workers;
    out->n_slots = loader->ring->n_slots;
    out->slot_bytes = loader->ring->slot_bytes;
    if (loader->stage.calls) out->pinned_bytes = out->n_slots * out->slot_bytes;
    snprintf(out->reader, sizeof(out->reader), "%s", reader.name);
    snprintf(out->reader_reason, sizeof(out->reader_reason), "%s", reader.reason);
    const fm_worker *const worker = &loader->workers[0];
    const fm_resample *const resample =
        worker->pixels ? fm_pixels_resample(worker->pixels) : worker->scratch.resample;
    fm_cpu_tier tier = FM_CPU_SCALAR;
    const int status = resample ? FM_OK : fm_cpu_tier_get(&tier, NULL);
    if (resample) tier = fm_resample_tier(resample);
    snprintf(out->cpu, sizeof(out->cpu), "%s", fm_cpu_tier_name(status ? FM_CPU_SCALAR : tier));
}

int fm_loader_draws(const fm_loader *loader, uint64_t seed, uint32_t epoch, int64_t index,
                    uint32_t occurrence, int32_t width, int32_t height, fm_draw *out,
                    fm_error *error) {
    if (!loader || !out) return fm_error_set(error, FM_ERR_ARGUMENT, "loader or out is NULL");
    if (index < 0 || (uint64_t)index >= loader->config.n_samples || width < 1 || height < 1)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "index %lld, %d x %d pixels: outside the dataset or not a size",
                            (long long)index, width, height);
    const fm_draw_key key = {seed, epoch, occurrence, index};
    return fm_geometry_draw(loader->plan.ops, loader->plan.n_ops, &key, width, height, out, error);
}
