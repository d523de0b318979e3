#define _GNU_SOURCE
#include "pipeline/submit.h"

#include <errno.h>
#include <string.h>

#include "decode/jpeg_restart.h"
#include "pipeline/schedule.h"
#include "pipeline/virtual_workers.h"
#include "read/remote.h"
#include "read/response.h"
#include "transform/geometry.h"
#include "transform/scaled.h"

#define MAX_PATH_BYTES 4096u
/* Limit of a range's start and of its size: above any file's size, and their sum fits off_t. */
#define MAX_OFFSET ((uint64_t)1 << 61)

/* ---- checks ---------------------------------------------------------------------------------- */

static int check_range(const fm_sample *sample, fm_error *error) {
    if (sample->data ? sample->offset_bytes || sample->range_bytes
                     : sample->offset_bytes && !sample->range_bytes)
        return fm_error_set(
            error, FM_ERR_ARGUMENT,
            "index %lld: a range needs range_bytes above 0, and a path instead of data",
            (long long)sample->index);
    if (sample->offset_bytes > MAX_OFFSET || sample->range_bytes > MAX_OFFSET)
        return fm_error_set(
            error, FM_ERR_ARGUMENT,
            "index %lld: the range at byte %llu of %llu bytes is above any file's size",
            (long long)sample->index, (unsigned long long)sample->offset_bytes,
            (unsigned long long)sample->range_bytes);
    return FM_OK;
}

static int check_index(const fm_loader *loader, int64_t index, fm_error *error) {
    if (index >= 0 && (uint64_t)index < loader->config.n_samples) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "index %lld is outside the dataset of %llu samples",
                        (long long)index, (unsigned long long)loader->config.n_samples);
}

static int check_batch_size(const fm_loader *loader, const void *samples, size_t n,
                            fm_error *error) {
    const size_t n_files = loader->views.n_files, most = loader->config.batch_size * n_files;
    if (n > 0 && n <= most && n % n_files == 0 && samples) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "the batch has %zu samples; it must have %zu to %zu, and %zu of each index",
                        n, n_files, most, n_files);
}

/* Sets *path_bytes to the length of the sample's path, without the terminating 0. */
static int check_sample(const fm_loader *loader, const fm_sample *sample, size_t *path_bytes,
                        fm_error *error) {
    const int status = check_index(loader, sample->index, error);
    if (status) return status;
    *path_bytes = sample->path ? strnlen(sample->path, MAX_PATH_BYTES) : 0;
    if ((*path_bytes == 0 && !sample->data) || *path_bytes == MAX_PATH_BYTES)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the path of index %lld is empty or has %u bytes or more",
                            (long long)sample->index, MAX_PATH_BYTES);
    if (!sample->data && sample->data_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the data of index %lld is NULL, yet has %zu bytes",
                            (long long)sample->index, sample->data_bytes);
    if (sample->etag && strnlen(sample->etag, FM_ETAG_BYTES) == FM_ETAG_BYTES)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the ETag of index %lld has %d characters or more",
                            (long long)sample->index, FM_ETAG_BYTES);
    return check_range(sample, error);
}

/* Bytes that the sample's ETag takes behind its path. */
static size_t etag_bytes(const fm_sample *sample) {
    return sample->etag ? strlen(sample->etag) + 1 : 0;
}

/* The files of a sample have one index. */
static int check_files(const fm_loader *loader, const fm_sample *samples, size_t number,
                       fm_error *error) {
    const int64_t index = samples[number].index;
    const int64_t first = samples[number - number % loader->views.n_files].index;
    if (index == first) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "the files of one sample have the indices %lld and %lld", (long long)first,
                        (long long)index);
}

static int check_samples(const fm_loader *loader, const fm_sample *samples, size_t n_samples,
                         size_t *path_bytes, fm_error *error) {
    *path_bytes = 0;
    if (loader->rows.arrays)
        return fm_error_set(error, FM_ERR_STATE, "this loader has arrays: submit their rows");
    int status = check_batch_size(loader, samples, n_samples, error);
    for (size_t i = 0; !status && i < n_samples; i++) {
        size_t n_bytes = 0;
        status = check_sample(loader, &samples[i], &n_bytes, error);
        if (!status) status = check_files(loader, samples, i, error);
        if (!status) *path_bytes += n_bytes + 1 + etag_bytes(&samples[i]);
    }
    return status;
}

static int check_rows(const fm_loader *loader, const int64_t *indices, const int64_t *rows,
                      size_t n, fm_error *error) {
    if (!loader->rows.arrays)
        return fm_error_set(error, FM_ERR_STATE, "this loader has no arrays: submit paths or data");
    int status = check_batch_size(loader, indices, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        const int64_t index = indices[i], row = rows ? rows[i] : index;
        status = check_index(loader, index, error);
        if (!status && (row < 0 || (uint64_t)row >= loader->rows.n_rows))
            status = fm_error_set(
                error, FM_ERR_ARGUMENT, "index %lld has row %lld, outside the arrays' %llu rows",
                (long long)index, (long long)row, (unsigned long long)loader->rows.n_rows);
        if (!status) continue;
        fm_error_set_index(error, index);
        return status;
    }
    return FM_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int reserve_paths(fm_loader *loader, fm_pending *batch, size_t path_bytes, fm_error *error) {
    if (path_bytes <= batch->paths_bytes) return FM_OK;
    char *const grown = fm_mem_alloc(&loader->counter, path_bytes * 2, 1);
    if (!grown) return fm_error_set(error, FM_ERR_NOMEM, "no memory for the paths of a batch");
    fm_mem_free(batch->paths);
    batch->paths = grown;
    batch->paths_bytes = path_bytes * 2;
    return FM_OK;
}

/* How many bytes of a verified JPEG with a restart index to read: up to the bottom of the lowest
 * crop, which is drawn here, before the file is read. */
static uint64_t partial_bytes(fm_loader *loader, const fm_task *task, const fm_sample *sample) {
    const fm_restart_index *const index = sample->rows;
    const fm_view_range views = fm_views_at(&loader->views, task->position);
    int64_t bottom = 0;
    for (size_t i = views.begin; i < views.end; i++) {
        const fm_plan *const plan = loader->views.list[i].plan;
        const fm_draw_key key = fm_has_streams(loader)
                                    ? fm_virtual_workers_key_ahead(loader, task, i)
                                    : fm_view_key(loader, task, i);
        fm_geometry geometry;
        if (fm_geometry_locate(plan->ops, plan->n_ops, plan->n_front, &key, index->width,
                               index->height, &geometry, NULL, NULL))
            return sample->range_bytes;
        int64_t last = (int64_t)geometry.source.top + geometry.source.height - 1;
        /* A row of the reduced image, and one more for upsampling. */
        if (loader->config.decodes_scaled) last += 2 * FM_MAX_DIVISOR;
        if (last > bottom) bottom = last;
    }
    return fm_jpeg_restart_bytes(index, bottom, sample->range_bytes);
}

/* Whether a sample may be read in part. With a cache it is not: later epochs need other parts. */
static bool may_be_partial(const fm_loader *loader, const fm_sample *sample) {
    const bool is_cached =
        loader->config.cache || (loader->config.disk_cache && fm_remote_is_name(sample->path));
    if (!sample->range_bytes || !sample->verified || !sample->rows || is_cached) return false;
    /* libjpeg-turbo's own decoder reads up to four more rows of blocks than a box needs. */
    return fm_jpeg_own_huffman() && fm_jpeg_restart_is_sane(sample->rows);
}

/* Decides on a partial read, once the sample's parameters can be drawn. */
static void choose_bytes(fm_loader *loader, fm_task *task, const fm_sample *sample) {
    if (!may_be_partial(loader, sample)) return;
    task->read.range_bytes = partial_bytes(loader, task, sample);
    task->is_partial = task->read.range_bytes < sample->range_bytes;
}

/* Plans to read the sample's whole range, which choose_bytes() may shorten. With streams, the width
 * and height of a sample that may be read in part are those of its restart index. */
static void set_range(const fm_loader *loader, fm_task *task, const fm_sample *sample) {
    task->range_bytes = task->read.range_bytes = sample->range_bytes;
    task->is_verified = sample->verified;
    task->is_partial = false;
    if (!fm_has_streams(loader) || !may_be_partial(loader, sample)) return;
    task->width = sample->rows->width;
    task->height = sample->rows->height;
}

/* Resets a task. */
static void begin_task(fm_pending *batch, fm_task *task, uint32_t position, uint32_t n_samples) {
    task->batch = batch;
    task->is_cached = false;
    task->occurrence = 0;
    task->position = position;
    task->n_samples = n_samples;
    task->worker = UINT32_MAX;
    task->dequeued_ns = task->finished_ns = 0;
    task->own = (fm_work){0};
    task->cause = 0;
    task->is_finished = task->has_bytes = false;
    task->width = task->height = 0;
    task->read = (fm_read){.path = ""};
}

/* Consumer, not locked: no other thread uses a batch that is not in the queue yet. */
static void fill_with_files(fm_loader *loader, fm_pending *batch, const fm_sample *samples,
                            uint32_t n_samples) {
    char *path = batch->paths;
    fm_pending_begin(loader, batch);
    fm_virtual_workers_begin(loader, batch);
    const uint32_t n_files = loader->views.n_files;
    uint32_t *const occurrences = loader->epoch.occurrences;
    batch->n_tasks = batch->n_left = n_samples;
    batch->n_samples = n_samples / n_files;
    for (uint32_t i = 0; i < n_samples; i++) {
        fm_task *const task = &batch->tasks[i];
        const char *const name = samples[i].path ? samples[i].path : "";
        const size_t n_bytes = strlen(name) + 1, n_etag = etag_bytes(&samples[i]);
        memcpy(path, name, n_bytes);
        if (n_etag) memcpy(path + n_bytes, samples[i].etag, n_etag);
        begin_task(batch, task, i, 1);
        task->data = samples[i].data;
        task->data_bytes = samples[i].data_bytes;
        task->index = samples[i].index;
        const bool is_last = i % n_files == n_files - 1; /* of its sample */
        task->occurrence = is_last ? occurrences[task->index]++ : occurrences[task->index];
        task->read = (fm_read){.path = path,
                               .offset_bytes = samples[i].offset_bytes,
                               .etag = n_etag ? path + n_bytes : NULL,
                               .why = task->why,
                               .why_bytes = sizeof(task->why),
                               .user = task};
        set_range(loader, task, &samples[i]);
        if (!fm_has_streams(loader)) choose_bytes(loader, task, &samples[i]);
        if (i % n_files == 0) batch->labels[i / n_files] = samples[i].label;
        path += n_bytes + n_etag;
    }
}

static void look_into_cache(const fm_loader *loader, fm_pending *batch) {
    for (uint32_t i = 0; i < batch->n_tasks; i++) {
        fm_task *const task = &batch->tasks[i];
        if (task->data) continue;
        const fm_cache_key key = fm_task_cache_key(task);
        task->data = fm_cache_get(loader->config.cache, &key, &task->data_bytes);
        task->is_cached = task->data != NULL;
    }
}

/* Locked. A task with its bytes in memory becomes decodable, or is rejected if they exceed
 * max_file_bytes. */
static void start_with_data(fm_loader *loader, fm_task *task) {
    if (task->data_bytes <= loader->config.max_file_bytes) {
        fm_virtual_workers_has_bytes(loader, task);
        return;
    }
    fm_schedule_reject(loader, task, EFBIG);
    fm_schedule_finish(loader, task);
    fm_virtual_workers_rejected(loader, task);
}

void fm_submit_on_read(void *user, fm_read *read) {
    fm_loader *const loader = user;
    fm_task *const task = read->user;
    if (read->error) fm_schedule_reject(loader, task, read->error);
    fm_loader_lock(loader);
    loader->queue.n_reading--;
    if (!read->error && !read->range_bytes)
        *fm_file_bytes_of(loader, task) =
            read->n_bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)read->n_bytes;
    /* Checks the flag rather than the error ECANCELED, which a file system may also return. The
     * reader cancels only while the flag is set. */
    if (fm_is_cancelled(loader)) {
        fm_schedule_signal_idle(loader);
    } else if (read->error) {
        fm_schedule_finish(loader, task);
        fm_virtual_workers_rejected(loader, task);
    } else {
        fm_virtual_workers_has_bytes(loader, task);
    }
    fm_loader_unlock(loader);
}

/* Locked. Starts a task whose bytes are in memory; appends others to the list of files to read. */
static void start_task(fm_loader *loader, fm_task *task, fm_read ***end) {
    loader->records.sums.cache_hits += task->is_cached;
    if (task->data) {
        start_with_data(loader, task);
        return;
    }
    loader->records.sums.cache_misses += loader->config.cache != NULL;
    if (!task->read.range_bytes) task->read.expected_bytes = *fm_file_bytes_of(loader, task);
    loader->queue.n_reading++;
    **end = &task->read;
    *end = &task->read.next;
}

/* Called with the lock held; drops it while choosing. Draws the parameters of a new batch's
 * samples, as far as it is their turn and their sizes are known, and chooses which bytes of them to
 * read. None of them was started. Samples that wait for others to be drawn are read whole. */
static void draw_ahead(fm_loader *loader, fm_pending *batch, const fm_sample *samples) {
    if (!fm_has_streams(loader)) return;
    fm_virtual_workers_advance(loader, batch->virtual_worker);
    const uint32_t n_drawn = batch->n_drawn;
    if (n_drawn == 0) return;
    fm_loader_unlock(loader);
    for (uint32_t i = 0; i < n_drawn; i++) choose_bytes(loader, &batch->tasks[i], &samples[i]);
    fm_loader_lock(loader);
}

int fm_loader_submit(fm_loader *loader, const fm_sample *samples, size_t n_samples,
                     fm_error *error) {
    size_t path_bytes;
    int status = fm_loader_check(loader, error);
    if (!status) status = fm_loader_check_open(loader, error);
    if (!status) status = check_samples(loader, samples, n_samples, &path_bytes, error);
    if (status) return status;
    fm_queue *const queue = &loader->queue;
    if (queue->n == queue->capacity) return FM_AGAIN;
    fm_pending *const batch = fm_queue_at(queue, queue->n);
    status = reserve_paths(loader, batch, path_bytes, error);
    if (status) return status;
    fill_with_files(loader, batch, samples, (uint32_t)n_samples);
    if (loader->config.cache) look_into_cache(loader, batch);
    fm_read *reads, **end = &reads;
    fm_loader_lock(loader);
    queue->n++;
    fm_schedule_assign_buffers(loader);
    draw_ahead(loader, batch, samples);
    for (uint32_t i = 0; i < batch->n_tasks; i++) start_task(loader, &batch->tasks[i], &end);
    *end = NULL;
    fm_loader_unlock(loader);
    if (reads) fm_readers_submit(&loader->readers, reads);
    return FM_OK;
}

/* ---- rows of arrays -------------------------------------------------------------------------- */

static void fill_row_task(fm_loader *loader, fm_pending *batch, uint32_t number) {
    fm_task *const task = &batch->tasks[number];
    const uint32_t per_task = loader->rows.rows_per_task, first = number * per_task;
    const uint32_t left = batch->n_samples - first;
    begin_task(batch, task, first, left < per_task ? left : per_task);
    task->data = batch->rows + first;
    task->data_bytes = task->n_samples * loader->rows.row_bytes;
    task->has_bytes = true;
    task->index = batch->indices[first + task->n_samples - 1];
}

/* Locked. */
static void fill_with_rows(fm_loader *loader, fm_pending *batch, const int64_t *indices,
                           const int64_t *rows, uint32_t n) {
    const uint32_t per_task = loader->rows.rows_per_task;
    uint32_t *const occurrences = loader->epoch.occurrences;
    fm_pending_begin(loader, batch);
    fm_virtual_workers_begin(loader, batch);
    batch->n_samples = n;
    batch->n_tasks = batch->n_left = (n + per_task - 1) / per_task;
    memcpy(batch->indices, indices, n * sizeof(*indices));
    memcpy(batch->rows, rows ? rows : indices, n * sizeof(*rows));
    if (occurrences)
        for (uint32_t i = 0; i < n; i++) batch->occurrences[i] = occurrences[indices[i]]++;
    for (uint32_t i = 0; i < batch->n_tasks; i++) fill_row_task(loader, batch, i);
}

/* Called with the lock held; drops it while copying. Makes a small batch on the calling thread,
 * which is faster than waking a decode thread. */
static void run_inline(fm_loader *loader, fm_pending *batch) {
    fm_task *const task = &batch->tasks[0];
    task->work_decodable = task->work_dequeued = loader->queue.work;
    task->dequeued_ns = fm_clock_ns();
    fm_loader_unlock(loader);
    fm_rows_copy(loader, task, batch->buffer->memory);
    fm_loader_lock(loader);
    task->finished_ns = fm_clock_ns();
    task->own.transform_ns = task->finished_ns - task->dequeued_ns;
    loader->records.sums.transform_ns += task->own.transform_ns;
    loader->records.sums.native_samples += task->n_samples;
    fm_schedule_finish(loader, task);
}

int fm_loader_submit_rows(fm_loader *loader, const int64_t *indices, const int64_t *rows,
                          size_t n_samples, fm_error *error) {
    int status = fm_loader_check(loader, error);
    if (!status) status = fm_loader_check_open(loader, error);
    if (!status) status = check_rows(loader, indices, rows, n_samples, error);
    if (status) return status;
    fm_queue *const queue = &loader->queue;
    if (queue->n == queue->capacity) return FM_AGAIN;
    fm_pending *const batch = fm_queue_at(queue, queue->n);
    fm_loader_lock(loader);
    fill_with_rows(loader, batch, indices, rows, (uint32_t)n_samples);
    queue->n++;
    fm_schedule_assign_buffers(loader);
    if (fm_has_streams(loader))
        fm_virtual_workers_advance(loader, batch->virtual_worker);
    else if (batch->buffer && fm_rows_are_few(loader, batch->n_samples))
        run_inline(loader, batch);
    else
        fm_schedule_all_decodable(loader, batch);
    fm_loader_unlock(loader);
    return FM_OK;
}

/* ---- the epoch's order ----------------------------------------------------------------------- */

/* The error for a sample that the source did not find. */
static int describe_missing(int status, int64_t index, fm_error *error) {
    if (status < 0)
        fm_error_set(error, status, "the source has no sample %lld", (long long)index);
    else
        status = fm_error_set(error, FM_ERR_ARGUMENT,
                              "config.source returned status %d for sample %lld; it must return "
                              "FM_OK or an error, which is negative",
                              status, (long long)index);
    fm_error_set_index(error, index);
    return status;
}

/* Submits a batch of the n indices at `order`. */
static int submit_indices(fm_loader *loader, const int64_t *order, size_t n, fm_error *error) {
    const fm_source *const source = &loader->config.source;
    fm_sample *const located = loader->epoch.located;
    if (loader->rows.arrays) return fm_loader_submit_rows(loader, order, NULL, n, error);
    for (size_t i = 0; i < n; i++) {
        located[i] = (fm_sample){0};
        const int status = source->locate(source->user, order[i], &located[i]);
        if (status) return describe_missing(status, order[i], error);
    }
    return fm_loader_submit(loader, located, n, error);
}

int fm_submit_order(fm_loader *loader, fm_error *error) {
    const uint32_t batch_size = loader->config.batch_size;
    fm_epoch_run *const epoch = &loader->epoch;
    while (loader->queue.n < loader->queue.capacity) {
        const size_t left = epoch->n_order - epoch->order_next;
        const size_t n = left < batch_size ? left : batch_size;
        if (n == 0 || (n < batch_size && epoch->drop_last)) {
            epoch->state = FM_EPOCH_FINISHED;
            return FM_OK;
        }
        const int status = submit_indices(loader, epoch->order + epoch->order_next, n, error);
        if (status) return status;
        epoch->order_next += n;
    }
    return FM_OK;
}
