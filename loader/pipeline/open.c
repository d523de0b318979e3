/* Opens and closes a loader. The order of both is fixed: each part uses the ones opened before it.
 */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "pipeline/raw_files.h"
#include "pipeline/submit.h"
#include "pipeline/virtual_workers.h"
#include "pipeline/worker.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Copies the list of arrays and checks each array. */
static int copy_arrays(fm_loader *loader, fm_error *error) {
    fm_arrays *const arrays = &loader->config.arrays;
    fm_rows_input *const rows = &loader->rows;
    rows->arrays = fm_mem_alloc(&loader->counter, arrays->n, sizeof(fm_array));
    rows->sections = fm_mem_alloc(&loader->counter, arrays->n, sizeof(fm_section));
    if (!rows->arrays || !rows->sections)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a list of %zu arrays", arrays->n);
    rows->n_rows = UINT64_MAX;
    for (size_t i = 0; i < arrays->n; i++) {
        fm_array *const array = &rows->arrays[i];
        *array = arrays->list[i];
        const int status = fm_array_resolve(array, i, error);
        if (status) return status;
        if (array->n_rows < rows->n_rows) rows->n_rows = array->n_rows;
        rows->is_mapped = rows->is_mapped || fm_array_is_mapped(array);
    }
    arrays->list = rows->arrays;
    if (!arrays->images) return FM_OK;
    const fm_transform in = {.in_height = loader->plan.in_height,
                             .in_width = loader->plan.in_width,
                             .in_channels = loader->plan.in_channels};
    return fm_array_image_init(&rows->image, arrays, &in, error);
}

static int open_arrays(fm_loader *loader, fm_error *error) {
    const fm_config *const config = &loader->config;
    fm_rows_input *const rows = &loader->rows;
    const int status = copy_arrays(loader, error);
    if (status) return status;
    loader->processor = &fm_process_rows;
    loader->layout = (fm_batch_layout){
        .batch_bytes = fm_rows_layout(config, &loader->plan, rows->sections),
        .has_images = config->arrays.images,
    };
    for (size_t i = 0; i < config->arrays.n; i++) rows->row_bytes += rows->sections[i].row_bytes;
    rows->rows_per_task = fm_rows_per_task(config, &loader->plan);
    loader->queue.max_tasks = (config->batch_size + rows->rows_per_task - 1) / rows->rows_per_task;
    return FM_OK;
}

static int copy_header(fm_loader *loader, fm_error *error) {
    fm_raw_format *const raw = &loader->config.raw;
    loader->header = fm_mem_alloc(&loader->counter, raw->header_bytes, 1);
    if (!loader->header)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a header of %zu bytes",
                            raw->header_bytes);
    if (raw->header_bytes) memcpy(loader->header, raw->header, raw->header_bytes);
    raw->header = loader->header;
    return FM_OK;
}

/* Sets the processor, and the layout of a batch's memory. */
static int open_input(fm_loader *loader, fm_error *error) {
    const fm_config *const config = &loader->config;
    const bool is_raw = config->raw.body_bytes > 0;
    int status = FM_OK;
    if (config->arrays.n) {
        status = open_arrays(loader, error);
    } else {
        const bool has_views = loader->views.n > 1;
        const uint32_t n_files = loader->views.n_files;
        loader->processor = is_raw                     ? &fm_process_raw
                            : has_views && n_files < 2 ? &fm_process_views
                                                       : &fm_process_image;
        loader->layout = (fm_batch_layout){
            .batch_bytes = loader->views.batch_bytes,
            .sample_bytes = has_views ? 0 : loader->plan.sample_bytes,
            .label_bytes = config->batch_size * sizeof(int64_t),
            .has_images = true, /* raw files are treated as images of one row */
        };
        loader->queue.max_tasks = config->batch_size * n_files;
        if (is_raw) status = copy_header(loader, error);
    }
    if (status || !loader->plan.stream || !(is_raw || config->arrays.n)) return status;
    fm_cpu_tier tier;
    status = fm_cpu_tier_get(&tier, error);
    if (!status) loader->stream_copy = fm_store_stream(tier);
    return status;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static bool alloc_pending(fm_loader *loader, fm_pending *batch) {
    fm_mem_counter *const counter = &loader->counter;
    const uint32_t batch_size = loader->config.batch_size;
    batch->tasks = fm_mem_zalloc(counter, loader->queue.max_tasks, sizeof(fm_task));
    if (loader->rows.arrays) {
        batch->indices = fm_mem_zalloc(counter, batch_size, sizeof(int64_t));
        batch->rows = fm_mem_zalloc(counter, batch_size, sizeof(int64_t));
        batch->occurrences = fm_mem_zalloc(counter, batch_size, sizeof(uint32_t));
        return batch->tasks && batch->indices && batch->rows && batch->occurrences;
    }
    batch->labels = fm_mem_zalloc(counter, batch_size, sizeof(int64_t));
    batch->paths_bytes = (size_t)loader->queue.max_tasks * FM_PATH_BYTES_GUESS;
    batch->paths = fm_mem_alloc(counter, batch->paths_bytes, 1);
    return batch->tasks && batch->labels && batch->paths;
}

/* Allocates the counters per sample of the dataset. */
static bool alloc_samples(fm_loader *loader) {
    const uint64_t n_samples = loader->config.n_samples;
    if (!loader->rows.arrays || loader->plan.n_ops) {
        loader->epoch.occurrences = fm_mem_zalloc(&loader->counter, n_samples, sizeof(uint32_t));
        if (!loader->epoch.occurrences) return false;
    }
    if (loader->rows.arrays) return true;
    loader->file_bytes =
        fm_mem_zalloc(&loader->counter, n_samples * loader->views.n_files, sizeof(uint32_t));
    return loader->file_bytes;
}

static bool alloc_records(fm_loader *loader) {
    fm_mem_counter *const counter = &loader->counter;
    fm_records *const records = &loader->records;
    records->steps = fm_mem_alloc(counter, FM_N_STEPS, sizeof(fm_step));
    records->samples =
        fm_mem_alloc(counter, loader->config.sample_records, sizeof(fm_sample_record));
    /* Batches handed out ahead and pending ones are prefetch_batches in total, or more if a large
     * batch was submitted in parts. */
    records->n_deliveries = 2 * loader->queue.capacity + 64;
    records->deliveries = fm_mem_zalloc(counter, records->n_deliveries, sizeof(fm_delivery));
    return records->steps && records->samples && records->deliveries;
}

static int alloc_tables(fm_loader *loader, fm_error *error) {
    fm_queue *const queue = &loader->queue;
    const uint32_t batch_size = loader->config.batch_size;
    queue->capacity = loader->config.prefetch_batches;
    queue->entries = fm_mem_zalloc(&loader->counter, queue->capacity, sizeof(fm_pending));
    bool ok = queue->entries != NULL;
    for (uint32_t i = 0; ok && i < queue->capacity; i++)
        ok = alloc_pending(loader, &queue->entries[i]);
    ok = ok && alloc_samples(loader) && alloc_records(loader);
    loader->epoch.located = fm_mem_alloc(&loader->counter, batch_size, sizeof(fm_sample));
    if (!ok || !loader->epoch.located)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u batches of %u samples",
                            queue->capacity, batch_size);
    return FM_OK;
}

static void free_tables(fm_loader *loader) {
    fm_queue *const queue = &loader->queue;
    for (uint32_t i = 0; queue->entries && i < queue->capacity; i++) {
        fm_mem_free(queue->entries[i].tasks);
        fm_mem_free(queue->entries[i].labels);
        fm_mem_free(queue->entries[i].paths);
        fm_mem_free(queue->entries[i].indices);
        fm_mem_free(queue->entries[i].rows);
        fm_mem_free(queue->entries[i].occurrences);
    }
    fm_virtual_workers_close(loader);
    fm_mem_free(queue->entries);
    fm_mem_free(loader->epoch.occurrences);
    fm_mem_free(loader->epoch.order);
    fm_mem_free(loader->epoch.located);
    fm_mem_free(loader->file_bytes);
    fm_mem_free(loader->records.steps);
    fm_mem_free(loader->records.deliveries);
    fm_mem_free(loader->records.samples);
    fm_mem_free(loader->rows.arrays);
    fm_mem_free(loader->rows.sections);
    fm_mem_free(loader->header);
    fm_views_close(&loader->views);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int open_ring(fm_loader *loader, uint32_t n_buffers, fm_error *error) {
    fm_pinned *const pinned = &loader->device.pinned;
    const fm_allocator allocator =
        loader->device.calls ? fm_pinned_allocator(pinned) : loader->config.allocator;
    const int status =
        fm_ring_open(&loader->ring, n_buffers, loader->layout.batch_bytes,
                     loader->layout.label_bytes, &allocator, &loader->counter, error);
    if (!status || !pinned->error.status) return status;
    if (error) *error = pinned->error;
    return pinned->error.status;
}

static int open_reader(fm_loader *loader, fm_error *error) {
    const fm_reader_config config = {
        .kind = loader->config.reader,
        .depth = loader->config.read_depth,
        .buffer_bytes = loader->config.read_ahead_bytes,
        .max_file_bytes = loader->config.max_file_bytes,
        .remote = loader->config.remote,
        .disk_cache = loader->config.disk_cache,
        .custom = loader->config.custom_reader,
        .on_done = fm_submit_on_read,
        .user = loader,
        .counter = &loader->counter,
    };
    return fm_readers_open(&loader->readers, &config, error);
}

/* The process keeps at most as many CPUs busy as it has decode threads, and one for reading. */
static void open_throttle(fm_loader *loader) {
    const uint32_t n_cpus = fm_cpu_allowed(), n_busy = loader->config.n_threads + 1;
    fm_throttle_open(&loader->throttle, n_cpus < n_busy ? n_cpus : n_busy);
}

static bool decodes_images(const fm_loader *loader) {
    return loader->processor == &fm_process_image || loader->processor == &fm_process_views;
}

static int open_seek_index(fm_loader *loader, fm_error *error) {
    fm_config *const config = &loader->config;
    const char *const path = config->seek_index_path;
    const uint64_t n_files = config->n_samples * loader->views.n_files;
    config->seek_index_path = NULL; /* the caller may free it */
    if (path) return fm_seek_index_open_file(&loader->seek_index, path, n_files, error);
    return fm_seek_index_open(&loader->seek_index, n_files, config->seek_index_bytes, error);
}

static int open_parts(fm_loader *loader, const fm_config *config, fm_error *error) {
    uint32_t n_buffers = 0;
    int status = fm_config_resolve(config, &loader->config, &loader->plan, &loader->result,
                                   &loader->views, &n_buffers, &loader->counter, error);
    if (!status) status = open_input(loader, error);
    if (!status) status = alloc_tables(loader, error);
    if (!status) status = fm_device_stage_open(loader, n_buffers, error);
    if (!status) status = open_ring(loader, n_buffers, error);
    if (!status) status = fm_device_stage_start(loader, error);
    if (!status && !loader->rows.arrays) status = open_reader(loader, error);
    if (!status && decodes_images(loader)) status = open_seek_index(loader, error);
    if (!status) status = fm_workers_open(loader, error);
    if (!status) open_throttle(loader);
    return status;
}

int fm_loader_open(fm_loader **out, const fm_config *config, fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    const uint64_t begin_ns = fm_clock_ns();
    fm_mem_counter counter = {0};
    fm_loader *loader = fm_mem_zalloc(&counter, 1, sizeof(*loader));
    if (!loader) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a loader");
    loader->pid = getpid();
    const int status = open_parts(loader, config, error);
    if (status) {
        fm_loader_close(&loader);
        return status;
    }
    loader->records.sums.open_ns = fm_clock_ns() - begin_ns;
    *out = loader;
    return FM_OK;
}

void fm_loader_close(fm_loader **pointer) {
    if (!pointer || !*pointer) return;
    fm_loader *const loader = *pointer;
    *pointer = NULL;
    /* A forked child has none of the threads that must be stopped first, so its copy stays. */
    if (loader->pid != getpid()) return;
    if (loader->ring) {
        fm_loader_lock(loader);
        atomic_store(&loader->queue.is_cancelled, true);
        loader->queue.is_stopping = true;
        pthread_cond_broadcast(&loader->ring->work);
        fm_loader_unlock(loader);
    }
    fm_workers_join(loader);
    fm_readers_close(&loader->readers);
    fm_workers_close(loader);
    fm_throttle_close(&loader->throttle);
    fm_device_stage_quiesce(loader);
    fm_ring_close(loader->ring);
    fm_device_stage_close(loader);
    fm_seek_index_close(&loader->seek_index);
    free_tables(loader);
    fm_mem_free(loader);
}
