#define _GNU_SOURCE
#include "pipeline/virtual_workers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/schedule.h"
#include "transform/geometry.h"

/* ---- epochs ---------------------------------------------------------------------------------- */

static bool is_valid(const fm_streams *streams) {
    return streams->torch.next <= FM_MT19937_N && streams->python.next <= FM_MT19937_N &&
           streams->numpy.next <= FM_MT19937_N && streams->has_torch_normal <= 1 &&
           streams->has_python_normal <= 1 && isfinite(streams->torch_normal) &&
           isfinite(streams->python_normal);
}

int fm_virtual_workers_check(const fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    if (!epoch->n_streams) return FM_OK;
    if (!epoch->streams) return fm_error_set(error, FM_ERR_ARGUMENT, "streams is NULL");
    if (epoch->order)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "an epoch with streams takes no order: submit its batches");
    if (!loader->layout.has_images || loader->config.raw.body_bytes > 0)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "an epoch with streams needs a loader whose samples are images");
    for (uint32_t i = 0; i < epoch->n_streams; i++)
        if (!is_valid(&epoch->streams[i]))
            return fm_error_set(error, FM_ERR_ARGUMENT, "streams[%u] is no state of generators", i);
    return FM_OK;
}

static bool reserve_copies(fm_loader *loader) {
    const size_t n_drawn = (size_t)loader->config.batch_size * loader->views.n_files;
    const size_t n = (n_drawn + FM_SAMPLES_PER_COPY - 1) / FM_SAMPLES_PER_COPY;
    for (uint32_t i = 0; i < loader->queue.capacity; i++) {
        fm_pending *const batch = &loader->queue.entries[i];
        if (!batch->copies) batch->copies = fm_mem_alloc(&loader->counter, n, sizeof(fm_streams));
        if (!batch->copies) return false;
    }
    return true;
}

int fm_virtual_workers_start(fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    fm_virtual_workers *const all = &loader->virtual;
    all->n = 0;
    all->chosen = 0;
    all->chosen_waits = false;
    if (!epoch->n_streams) return FM_OK;
    if (epoch->n_streams > all->capacity) {
        fm_mem_free(all->list);
        all->capacity = 0;
        all->list = fm_mem_alloc(&loader->counter, epoch->n_streams, sizeof(fm_virtual_worker));
        if (all->list) all->capacity = epoch->n_streams;
    }
    if (!all->list || !reserve_copies(loader))
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for the states of %u generators",
                            epoch->n_streams);
    for (uint32_t i = 0; i < epoch->n_streams; i++) {
        all->list[i].now = all->list[i].delivered = epoch->streams[i];
        all->list[i].n_given = 0;
    }
    all->n = epoch->n_streams;
    return FM_OK;
}

void fm_virtual_workers_close(fm_loader *loader) {
    for (uint32_t i = 0; loader->queue.entries && i < loader->queue.capacity; i++)
        fm_mem_free(loader->queue.entries[i].copies);
    fm_mem_free(loader->virtual.list);
}

void fm_virtual_workers_begin(const fm_loader *loader, fm_pending *batch) {
    batch->virtual_worker = loader->virtual.chosen;
    batch->waits = loader->virtual.chosen_waits;
    batch->n_drawn = 0;
    batch->held = NULL;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void size_of(const fm_loader *loader, const fm_pending *batch, uint32_t position,
                    int32_t *width, int32_t *height) {
    if (loader->rows.arrays) {
        *width = loader->rows.image.width;
        *height = loader->rows.image.height;
    } else {
        *width = batch->tasks[position].width;
        *height = batch->tasks[position].height;
    }
}

static fm_task *task_at(const fm_loader *loader, const fm_pending *batch, uint32_t position) {
    return &batch->tasks[loader->rows.arrays ? position / loader->rows.rows_per_task : position];
}

/* Draws the parameters of one view, to draws[]. */
static int draw_view(const fm_loader *loader, size_t view, fm_streams *streams, int32_t width,
                     int32_t height, fm_draw *draws, fm_error *error) {
    const fm_plan *const plan = loader->rows.arrays ? &loader->plan : loader->views.list[view].plan;
    const fm_draw_key key = {.streams = streams};
    return fm_geometry_draw(plan->ops, plan->n_ops, &key, width, height, draws, error);
}

static fm_view_range views_at(const fm_loader *loader, uint32_t position) {
    return loader->rows.arrays ? (fm_view_range){0, 1} : fm_views_at(&loader->views, position);
}

/* How many times parameters are drawn for a batch: once per sample, or once per file if samples
 * have several. */
static uint32_t n_to_draw(const fm_loader *loader, const fm_pending *batch) {
    return loader->rows.arrays ? batch->n_samples : batch->n_tasks;
}

/* The streams before a view of a sample was drawn. `draws` is scratch. */
static void replay(const fm_loader *loader, const fm_pending *batch, uint32_t position, size_t view,
                   fm_streams *streams, fm_draw *draws) {
    const uint32_t first = position / FM_SAMPLES_PER_COPY * FM_SAMPLES_PER_COPY;
    *streams = batch->copies[position / FM_SAMPLES_PER_COPY];
    for (uint32_t i = first; i <= position; i++) {
        const fm_view_range views = views_at(loader, i);
        const size_t end = i < position ? views.end : view;
        int32_t width, height;
        size_of(loader, batch, i, &width, &height);
        for (size_t k = views.begin; k < end; k++) {
            const int drawn = draw_view(loader, k, streams, width, height, draws, NULL);
            (void)drawn; /* it succeeded before */
        }
    }
}

fm_draw_key fm_virtual_workers_key(fm_worker *thread, const fm_pending *batch, uint32_t position,
                                   size_t view, fm_draw_key key) {
    if (!fm_has_streams(thread->loader)) return key;
    replay(thread->loader, batch, position, view, &thread->streams, thread->draws);
    key.streams = &thread->streams;
    return key;
}

fm_draw_key fm_virtual_workers_key_ahead(fm_loader *loader, const fm_task *task, size_t view) {
    fm_virtual_workers *const all = &loader->virtual;
    fm_draw_key key = fm_view_key(loader, task, view);
    replay(loader, task->batch, task->position, view, &all->ahead, all->draws_ahead);
    key.streams = &all->ahead;
    return key;
}

int fm_virtual_workers_check_size(const fm_loader *loader, const fm_task *task,
                                  const fm_image_info *info, fm_error *error) {
    if (!fm_has_streams(loader) || (task->width == info->width && task->height == info->height))
        return FM_OK;
    return fm_error_set(error, FM_ERR_DAMAGED,
                        "the image has %d x %d pixels, but its restart index says %d x %d",
                        (int)info->width, (int)info->height, (int)task->width, (int)task->height);
}

/* Locked. Draws for the next sample of a batch, whose size is known. If that fails, the virtual
 * worker's streams stay as they were. */
static int draw_sample(fm_loader *loader, fm_virtual_worker *worker, fm_pending *batch,
                       fm_error *error) {
    const uint32_t position = batch->n_drawn;
    fm_virtual_workers *const all = &loader->virtual;
    int32_t width, height;
    size_of(loader, batch, position, &width, &height);
    all->scratch = worker->now;
    const fm_view_range views = views_at(loader, position);
    for (size_t view = views.begin; view < views.end; view++) {
        const int status = draw_view(loader, view, &all->scratch, width, height, all->draws, error);
        if (status) return status;
    }
    if (position % FM_SAMPLES_PER_COPY == 0)
        batch->copies[position / FM_SAMPLES_PER_COPY] = worker->now;
    worker->now = all->scratch;
    if (++batch->n_drawn == n_to_draw(loader, batch)) batch->after = worker->now;
    return FM_OK;
}

/* Locked. The caller must find out the size of the sample that is next. */
static void hold(fm_loader *loader, fm_pending *batch, fm_task *task) {
    batch->held = task;
    pthread_cond_signal(&loader->ring->ready);
    fm_device_stage_wake(&loader->device);
}

/* Locked. A task whose samples are drawn becomes decodable, unless it was rejected before, or is
 * still to be read. */
static void note_drawn(fm_loader *loader, fm_pending *batch, fm_task *task) {
    const bool is_drawn = batch->n_drawn == task->position + task->n_samples;
    if (is_drawn && task->has_bytes && !task->is_finished) fm_schedule_decodable(loader, task);
    if (batch->n_drawn < n_to_draw(loader, batch) || batch->n_left > 0) return;
    /* The last samples of the batch could not be read, and were drawn for after that. */
    pthread_cond_signal(&loader->ring->ready);
    fm_device_stage_wake(&loader->device);
}

void fm_virtual_workers_has_bytes(fm_loader *loader, fm_task *task) {
    task->has_bytes = true;
    /* To be measured, or drawn. */
    if (!fm_has_streams(loader) || task->width == 0 || task->position < task->batch->n_drawn)
        fm_schedule_decodable(loader, task);
}

/* Locked. The image is too large to be drawn for: the caller gets the sample. */
static void reject(fm_loader *loader, fm_task *task, const fm_error *why) {
    if (!task->data) fm_readers_return(&loader->readers, &task->read);
    task->width = task->height = 0;
    task->cause = why->status;
    snprintf(task->why, sizeof(task->why), "%.*s", (int)sizeof(task->why) - 1, why->message);
    fm_schedule_finish(loader, task);
}

/* Locked. Returns whether the next batch of the same virtual worker may begin. */
static bool advance_batch(fm_loader *loader, fm_virtual_worker *worker, fm_pending *batch) {
    if (batch->waits && worker->n_given == 0) return false;
    if (batch->waits) worker->n_given--;
    batch->waits = false;
    while (batch->n_drawn < n_to_draw(loader, batch)) {
        fm_task *const task = task_at(loader, batch, batch->n_drawn);
        fm_error error;
        int32_t width, height;
        size_of(loader, batch, batch->n_drawn, &width, &height);
        if (width > 0) {
            const int status = draw_sample(loader, worker, batch, &error);
            if (!status) {
                note_drawn(loader, batch, task);
                continue;
            }
            /* What its restart index says may be wrong: it is measured when it is read. */
            if (task->has_bytes)
                reject(loader, task, &error);
            else
                task->width = task->height = 0;
        }
        if (task->is_finished && !batch->held) hold(loader, batch, task);
        return false;
    }
    return true;
}

void fm_virtual_workers_advance(fm_loader *loader, uint32_t number) {
    fm_queue *const queue = &loader->queue;
    if (fm_is_cancelled(loader)) return;
    for (uint32_t i = 0; i < queue->n; i++) {
        fm_pending *const batch = fm_queue_at(queue, i);
        if (batch->virtual_worker != number || batch->n_drawn == n_to_draw(loader, batch)) continue;
        if (!advance_batch(loader, &loader->virtual.list[number], batch)) return;
    }
}

void fm_virtual_workers_rejected(fm_loader *loader, const fm_task *task) {
    if (fm_has_streams(loader)) fm_virtual_workers_advance(loader, task->batch->virtual_worker);
}

bool fm_virtual_workers_is_ready(const fm_loader *loader, const fm_pending *batch) {
    if (!batch->held)
        return batch->n_drawn == n_to_draw(loader, batch) &&
               batch->buffer->state == FM_BUFFER_READY;
    for (const fm_task *task = batch->tasks; task < batch->held; task++)
        if (!task->is_finished) return false;
    return true;
}

void fm_virtual_workers_delivered(fm_loader *loader, const fm_pending *batch) {
    if (fm_has_streams(loader))
        loader->virtual.list[batch->virtual_worker].delivered = batch->after;
}

/* ---- the caller ------------------------------------------------------------------------------ */

static int check_worker(const fm_loader *loader, uint32_t worker, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status) return status;
    if (worker < loader->virtual.n) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "there is no virtual worker %u: the epoch has streams of %u", worker,
                        loader->virtual.n);
}

int fm_loader_choose_worker(fm_loader *loader, uint32_t worker, bool waits, fm_error *error) {
    const int status = check_worker(loader, worker, error);
    if (status) return status;
    loader->virtual.chosen = worker;
    loader->virtual.chosen_waits = waits;
    return FM_OK;
}

int fm_loader_streams(const fm_loader *loader, uint32_t worker, fm_streams *out, fm_error *error) {
    const int status = check_worker(loader, worker, error);
    if (status) return status;
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = loader->virtual.list[worker].delivered;
    return FM_OK;
}

/* Locked. Whether the virtual worker is between two batches. */
static bool is_between(fm_loader *loader, uint32_t worker) {
    for (uint32_t i = 0; i < loader->queue.n; i++) {
        const fm_pending *const batch = fm_queue_at(&loader->queue, i);
        if (batch->virtual_worker == worker && batch->n_drawn < n_to_draw(loader, batch))
            return batch->waits;
    }
    return true;
}

int fm_loader_give_streams(fm_loader *loader, uint32_t worker, const fm_streams *streams,
                           fm_error *error) {
    int status = check_worker(loader, worker, error);
    if (status) return status;
    if (!streams || !is_valid(streams))
        return fm_error_set(error, FM_ERR_ARGUMENT, "streams is no state of generators");
    fm_loader_lock(loader);
    if (is_between(loader, worker)) {
        loader->virtual.list[worker].now = *streams;
        loader->virtual.list[worker].n_given = 1;
        fm_virtual_workers_advance(loader, worker);
    } else {
        status =
            fm_error_set(error, FM_ERR_STATE,
                         "virtual worker %u has not drawn for all samples of its batch", worker);
    }
    fm_loader_unlock(loader);
    return status;
}

int fm_loader_fallback_streams(fm_loader *loader, fm_streams *out, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status) return status;
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    const fm_task *const task = loader->fallback;
    if (!task || !fm_has_streams(loader))
        return fm_error_set(error, FM_ERR_STATE, "no fallback is pending that has streams");
    fm_loader_lock(loader);
    if (task->batch->held == task)
        *out = loader->virtual.list[task->batch->virtual_worker].now;
    else
        replay(loader, task->batch, task->position, 0, out, loader->virtual.draws);
    fm_loader_unlock(loader);
    return FM_OK;
}

/* Locked. Draws for the sample that holds up its virtual worker, and for those behind it. */
static int draw_held(fm_loader *loader, fm_task *task, int32_t width, int32_t height,
                     fm_error *error) {
    fm_pending *const batch = task->batch;
    fm_virtual_worker *const worker = &loader->virtual.list[batch->virtual_worker];
    task->width = width;
    task->height = height;
    const int status = draw_sample(loader, worker, batch, error);
    if (status) {
        task->width = task->height = 0;
        return status;
    }
    batch->held = NULL;
    fm_virtual_workers_advance(loader, batch->virtual_worker);
    return FM_OK;
}

int fm_loader_fallback_draws(fm_loader *loader, size_t view, int32_t width, int32_t height,
                             fm_draw *out, fm_error *error) {
    int status = fm_loader_check(loader, error);
    if (status) return status;
    if (!out || view >= loader->views.n || width < 1 || height < 1)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "out is NULL, there is no view %zu, or %d x %d pixels are no size",
                            view, (int)width, (int)height);
    fm_task *const task = loader->fallback;
    if (!task || !fm_has_streams(loader))
        return fm_error_set(error, FM_ERR_STATE, "no fallback is pending that has streams");
    const fm_view_range views = fm_views_at(&loader->views, task->position);
    if (view < views.begin || view >= views.end)
        return fm_error_set(error, FM_ERR_ARGUMENT, "view %zu is made from another file", view);
    fm_loader_lock(loader);
    if (task->batch->held == task) status = draw_held(loader, task, width, height, error);
    if (!status && (task->width != width || task->height != height))
        status = fm_error_set(error, FM_ERR_STATE,
                              "the image has %d x %d pixels, but its header or restart index "
                              "says %d x %d, for which its random parameters were drawn",
                              (int)width, (int)height, (int)task->width, (int)task->height);
    if (!status) {
        fm_streams *const scratch = &loader->virtual.scratch;
        replay(loader, task->batch, task->position, view, scratch, loader->virtual.draws);
        status = draw_view(loader, view, scratch, width, height, out, error);
    }
    fm_loader_unlock(loader);
    return status;
}
