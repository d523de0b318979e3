/* Opening, starting, stopping and closing, in strict order; batches going in. */
#define _GNU_SOURCE
#include "pipeline/pipeline.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "pipeline/cut.h"

#define MAX_PATH_BYTES 4096u
/* Of a range's begin and size: far above any file, and their sum is no negative off_t. */
#define MAX_OFFSET ((uint64_t)1 << 61)
#define PATH_BYTES_GUESS 128u
/* Stack of a decode thread: libjpeg and the row loops need a few KiB. */
#define WORKER_STACK_BYTES ((size_t)512 << 10)
#define STOP_LIMIT_NS 100000000u

int fm_loader_check(const fm_loader *loader, fm_error *error) {
    if (!loader) return fm_error_set(error, FM_ERR_ARGUMENT, "loader is NULL");
    if (loader->pid != getpid()) {
        return fm_error_set(error, FM_ERR_FORKED,
                            "this loader was opened by process %ld, before a fork; open one here",
                            (long)loader->pid);
    }
    return FM_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* The arrays, and where a batch holds their rows. */
static int take_arrays(fm_loader *loader, fm_error *error) {
    fm_config *const config = &loader->config;
    fm_arrays *const arrays = &config->arrays;
    loader->batch_bytes = config->batch_size * loader->plan.sample_bytes;
    loader->max_tasks = config->batch_size;
    if (!arrays->n) return FM_OK;
    loader->arrays = fm_mem_alloc(&loader->counter, arrays->n, sizeof(fm_array));
    loader->sections = fm_mem_alloc(&loader->counter, arrays->n, sizeof(fm_section));
    if (!loader->arrays || !loader->sections)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a list of %zu arrays", arrays->n);
    loader->n_rows = UINT64_MAX;
    for (size_t i = 0; i < arrays->n; i++) {
        loader->arrays[i] = arrays->list[i];
        const int status = fm_array_resolve(&loader->arrays[i], i, error);
        if (status) return status;
        if (loader->arrays[i].n_rows < loader->n_rows) loader->n_rows = loader->arrays[i].n_rows;
        loader->mapped = loader->mapped || fm_array_is_mapped(&loader->arrays[i]);
    }
    arrays->list = loader->arrays;
    if (arrays->images) {
        const fm_transform in = {.in_height = loader->plan.in_height,
                                 .in_width = loader->plan.in_width,
                                 .in_channels = loader->plan.in_channels};
        const int status = fm_array_image_init(&loader->image, arrays, &in, error);
        if (status) return status;
    }
    loader->batch_bytes = fm_rows_layout(config, &loader->plan, loader->sections);
    for (size_t i = 0; i < arrays->n; i++) loader->row_bytes += loader->sections[i].row_bytes;
    fm_cpu_tier tier;
    const int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    if (loader->plan.stream) loader->stream = fm_store_stream(tier);
    loader->rows_per_run = fm_rows_per_run(config, &loader->plan);
    loader->max_tasks = (config->batch_size + loader->rows_per_run - 1) / loader->rows_per_run;
    return FM_OK;
}

/* The header of files that are no images. */
static int take_header(fm_loader *loader, fm_error *error) {
    fm_plain *const plain = &loader->config.plain;
    if (!plain->body_bytes) return FM_OK;
    loader->header = fm_mem_alloc(&loader->counter, plain->header_bytes, 1);
    if (!loader->header)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a header of %zu bytes",
                            plain->header_bytes);
    if (plain->header_bytes) memcpy(loader->header, plain->header, plain->header_bytes);
    plain->header = loader->header;
    fm_cpu_tier tier;
    const int status = fm_cpu_tier_get(&tier, error);
    if (!status && loader->plan.stream) loader->stream = fm_store_stream(tier);
    return status;
}

static bool alloc_group(fm_loader *loader, fm_group *group) {
    fm_mem_counter *const counter = &loader->counter;
    const uint32_t batch_size = loader->config.batch_size;
    group->tasks = fm_mem_zalloc(counter, loader->max_tasks, sizeof(fm_task));
    if (loader->arrays) {
        group->indices = fm_mem_zalloc(counter, batch_size, sizeof(int64_t));
        group->rows = fm_mem_zalloc(counter, batch_size, sizeof(int64_t));
        group->uses = fm_mem_zalloc(counter, batch_size, sizeof(uint32_t));
        return group->tasks && group->indices && group->rows && group->uses;
    }
    group->labels = fm_mem_zalloc(counter, batch_size, sizeof(int64_t));
    group->paths_bytes = (size_t)batch_size * PATH_BYTES_GUESS;
    group->paths = fm_mem_alloc(counter, group->paths_bytes, 1);
    return group->tasks && group->labels && group->paths;
}

/* What is kept for each sample of the dataset. */
static bool alloc_samples(fm_loader *loader) {
    const uint64_t n_samples = loader->config.n_samples;
    if (!loader->arrays || loader->plan.n_ops) {
        loader->occurrences = fm_mem_zalloc(&loader->counter, n_samples, sizeof(uint32_t));
        if (!loader->occurrences) return false;
    }
    if (loader->arrays) return true;
    loader->file_bytes = fm_mem_zalloc(&loader->counter, n_samples, sizeof(uint32_t));
    return loader->file_bytes;
}

static int alloc_groups(fm_loader *loader, fm_error *error) {
    const uint32_t n_groups = loader->config.prefetch_batches;
    const uint32_t batch_size = loader->config.batch_size;
    loader->groups = fm_mem_zalloc(&loader->counter, n_groups, sizeof(fm_group));
    bool ok = loader->groups != NULL;
    for (uint32_t i = 0; ok && i < n_groups; i++) ok = alloc_group(loader, &loader->groups[i]);
    ok = ok && alloc_samples(loader);
    loader->steps = fm_mem_alloc(&loader->counter, FM_N_STEPS, sizeof(fm_step));
    loader->records =
        fm_mem_alloc(&loader->counter, loader->config.sample_records, sizeof(fm_sample_record));
    loader->located = fm_mem_alloc(&loader->counter, batch_size, sizeof(fm_sample));
    /* Batches that were handed out ahead and those still here are prefetch_batches together, but
     * for a large one that was submitted in parts. */
    loader->n_deliveries = 2 * n_groups + 64;
    loader->deliveries = fm_mem_zalloc(&loader->counter, loader->n_deliveries, sizeof(fm_delivery));
    if (!ok || !loader->located || !loader->steps || !loader->records || !loader->deliveries)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u batches of %u samples", n_groups,
                            batch_size);
    return FM_OK;
}

static int open_reader(fm_loader *loader, fm_error *error) {
    const fm_reader_config config = {
        .kind = loader->config.reader,
        .depth = loader->config.read_depth,
        .buffer_bytes = loader->config.read_ahead_bytes,
        .max_file_bytes = loader->config.max_file_bytes,
        .on_done = fm_run_on_read,
        .user = loader,
        .counter = &loader->counter,
    };
    return fm_reader_open(&loader->reader, &config, error);
}

/* What a worker works with. */
static int open_tools(fm_worker *worker, const fm_limits *limits, fm_error *error) {
    fm_loader *const loader = worker->loader;
    const fm_plan *const plan = &loader->plan;
    if (loader->config.arrays.images) {
        const int status = fm_rows_scratch_open(&worker->scratch, plan, &loader->counter, error);
        if (status || !(plan->augments || plan->erases)) return status;
        return fm_pixels_open(&worker->pixels, plan, &loader->counter, error);
    }
    if (loader->arrays || loader->config.plain.body_bytes) return FM_OK;
    const int status = fm_decoder_open(&worker->decoder, limits, &loader->counter, error);
    if (status) return status;
    fm_decoder_watch(worker->decoder, &loader->cancelled);
    return fm_pixels_open(&worker->pixels, plan, &loader->counter, error);
}

static int open_workers(fm_loader *loader, fm_error *error) {
    const uint32_t n_workers = loader->config.n_threads;
    const fm_limits limits = {loader->config.max_file_bytes, loader->config.max_image_pixels,
                              loader->config.rejected_formats};
    loader->workers = fm_mem_zalloc(&loader->counter, n_workers, sizeof(fm_worker));
    if (!loader->workers)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %u decode threads", n_workers);
    loader->n_workers = n_workers;
    for (uint32_t i = 0; i < n_workers; i++) {
        fm_worker *const worker = &loader->workers[i];
        worker->loader = loader;
        worker->number = i;
        int status = open_tools(worker, &limits, error);
        if (!status)
            status = fm_thread_start(&worker->thread, "fm-decode", WORKER_STACK_BYTES,
                                     fm_run_worker, worker, error);
        if (status) return status;
    }
    return FM_OK;
}

/* Not more CPUs than can be busy at once: the decode threads' and one that reads. */
static void open_throttle(fm_loader *loader) {
    const uint32_t n_cpus = fm_cpu_allowed(), n_busy = loader->config.n_threads + 1;
    fm_throttle_open(&loader->throttle, n_cpus < n_busy ? n_cpus : n_busy);
}

static int open_ring(fm_loader *loader, uint32_t n_slots, fm_error *error) {
    const size_t label_bytes = loader->arrays ? 0 : loader->config.batch_size * sizeof(int64_t);
    fm_pinned *const pinned = &loader->stage.pinned;
    const fm_allocator allocator =
        loader->stage.calls ? fm_pinned_allocator(pinned) : loader->config.allocator;
    const int status = fm_ring_open(&loader->ring, n_slots, loader->batch_bytes, label_bytes,
                                    &allocator, &loader->counter, error);
    if (!status || !pinned->error.status) return status;
    if (error) *error = pinned->error;
    return pinned->error.status;
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
    uint32_t n_slots = 0;
    int status =
        fm_config_resolve(config, &loader->config, &loader->plan, &loader->result, &n_slots, error);
    if (!status) status = take_arrays(loader, error);
    if (!status) status = take_header(loader, error);
    if (!status) status = alloc_groups(loader, error);
    if (!status) status = fm_stage_open(loader, n_slots, error);
    if (!status) status = open_ring(loader, n_slots, error);
    if (!status) status = fm_stage_start(loader, error);
    if (!status && !loader->arrays) status = open_reader(loader, error);
    if (!status) status = open_workers(loader, error);
    if (!status) open_throttle(loader);
    if (status) {
        fm_loader_close(&loader);
        return status;
    }
    loader->sums.open_ns = fm_clock_ns() - begin_ns;
    *out = loader;
    return FM_OK;
}

static void free_groups(fm_loader *loader) {
    for (uint32_t i = 0; loader->groups && i < loader->config.prefetch_batches; i++) {
        fm_mem_free(loader->groups[i].tasks);
        fm_mem_free(loader->groups[i].labels);
        fm_mem_free(loader->groups[i].paths);
        fm_mem_free(loader->groups[i].indices);
        fm_mem_free(loader->groups[i].rows);
        fm_mem_free(loader->groups[i].uses);
    }
    fm_mem_free(loader->groups);
    fm_mem_free(loader->occurrences);
    fm_mem_free(loader->file_bytes);
    fm_mem_free(loader->steps);
    fm_mem_free(loader->deliveries);
    fm_mem_free(loader->records);
    fm_mem_free(loader->order);
    fm_mem_free(loader->located);
    fm_mem_free(loader->arrays);
    fm_mem_free(loader->sections);
    fm_mem_free(loader->header);
}

void fm_loader_close(fm_loader **pointer) {
    if (!pointer || !*pointer) return;
    fm_loader *const loader = *pointer;
    *pointer = NULL;
    /* The threads that would have to be stopped do not exist in a child; its copy stays. */
    if (loader->pid != getpid()) return;
    if (loader->ring) {
        fm_ring_lock(loader->ring);
        atomic_store(&loader->cancelled, true);
        loader->stopping = true;
        pthread_cond_broadcast(&loader->ring->work);
        fm_ring_unlock(loader->ring);
    }
    for (uint32_t i = 0; i < loader->n_workers; i++) fm_thread_join(&loader->workers[i].thread);
    fm_reader_close(&loader->reader);
    for (uint32_t i = 0; i < loader->n_workers; i++) {
        fm_decoder_close(&loader->workers[i].decoder);
        fm_pixels_close(&loader->workers[i].pixels);
        fm_rows_scratch_close(&loader->workers[i].scratch);
    }
    fm_mem_free(loader->workers);
    fm_throttle_close(&loader->throttle);
    fm_stage_quiesce(loader);
    fm_ring_close(loader->ring);
    fm_stage_close(loader);
    free_groups(loader);
    fm_mem_free(loader);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

/* Locked. Nothing is in flight: forgets all batches on their way. */
static void drop_groups(fm_loader *loader) {
    for (uint32_t i = 0; i < loader->n_groups; i++) {
        fm_group *const group = fm_group_at(loader, i);
        for (uint32_t t = 0; t < group->n_tasks; t++)
            if (!group->tasks[t].data) fm_reader_return(loader->reader, &group->tasks[t].read);
        if (group->slot) fm_ring_give_back(loader->ring, group->slot);
    }
    loader->n_groups = loader->n_with_slot = 0;
    loader->fallback_task = NULL;
}

int fm_loader_stop(fm_loader *loader, fm_error *error) {
    int status = fm_loader_check(loader, error);
    if (status) return status;
    if (loader->broken)
        return fm_error_set(error, FM_ERR_READ,
                            "reads of an earlier epoch are stuck; close this loader");
    if (loader->epoch_state == FM_EPOCH_NONE) return FM_OK;
    loader->epoch_state = FM_EPOCH_NONE;
    fm_ring_lock(loader->ring);
    const bool busy = loader->n_reading > 0 || loader->n_active > 0;
    atomic_store(&loader->cancelled, true);
    fm_ring_unlock(loader->ring);
    if (busy && loader->reader) fm_reader_cancel_queued(loader->reader);
    fm_ring_lock(loader->ring);
    /* A worker leaves at its next rows, in the decoder as well; only reads may be stuck for good.
     */
    const uint64_t deadline_ns = fm_clock_ns() + STOP_LIMIT_NS;
    while (loader->n_active > 0 || loader->stage.busy ||
           (loader->n_reading > 0 && fm_clock_ns() < deadline_ns))
        fm_cond_wait_until(&loader->ring->idle, &loader->ring->mutex,
                           fm_clock_ns() + STOP_LIMIT_NS / 20);
    fm_stage_drop(loader);
    if (loader->n_reading > 0) {
        loader->broken = true;
        status = fm_error_set(error, FM_ERR_READ,
                              "%u reads are stuck in the kernel; close this "
                              "loader and open another",
                              loader->n_reading);
    } else {
        drop_groups(loader);
        atomic_store(&loader->cancelled, false);
    }
    fm_ring_unlock(loader->ring);
    return status ? status : fm_stage_check(loader, error);
}

/* Whether the epoch can be started at all. Changes nothing: the one that runs goes on. */
static int check_epoch(const fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    if (!epoch) return fm_error_set(error, FM_ERR_ARGUMENT, "epoch is NULL");
    if (epoch->ahead && (epoch->order || loader->stage.calls))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "an epoch with `ahead` takes no order, and no device");
    if (!epoch->order) return FM_OK;
    if (!loader->config.source.locate && !loader->arrays)
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

static int take_order(fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    loader->n_order = loader->order_next = 0;
    loader->drop_last = epoch->drop_last;
    loader->has_order = epoch->order != NULL;
    if (!epoch->order) return FM_OK;
    if (epoch->n_order > loader->order_capacity) {
        fm_mem_free(loader->order);
        loader->order_capacity = 0;
        loader->order = fm_mem_alloc(&loader->counter, epoch->n_order, sizeof(int64_t));
        if (!loader->order)
            return fm_error_set(error, FM_ERR_NOMEM, "no memory for an order of %zu indices",
                                epoch->n_order);
        loader->order_capacity = epoch->n_order;
    }
    if (epoch->n_order) memcpy(loader->order, epoch->order, epoch->n_order * sizeof(int64_t));
    loader->n_order = epoch->n_order;
    return FM_OK;
}

int fm_loader_start(fm_loader *loader, const fm_epoch *epoch, fm_error *error) {
    const uint64_t now_ns = fm_clock_ns();
    int status = fm_loader_check(loader, error);
    if (!status) status = check_epoch(loader, epoch, error);
    if (!status) status = fm_loader_stop(loader, error);
    if (!status) status = fm_stage_check(loader, error);
    if (!status) status = take_order(loader, epoch, error);
    if (status) return status;
    if (loader->occurrences)
        memset(loader->occurrences, 0, loader->config.n_samples * sizeof(uint32_t));
    loader->seed = epoch->seed;
    loader->epoch_number = epoch->number;
    loader->n_submitted = 0;
    loader->started_ns = now_ns;
    fm_ring_lock(loader->ring);
    loader->ahead = epoch->ahead;
    loader->woken = false;
    loader->n_handed_out = loader->n_taken = 0;
    loader->last_return_ns = 0;
    loader->request_ns = 0;
    loader->sums.epochs++;
    fm_ring_unlock(loader->ring);
    loader->epoch_state = FM_EPOCH_OPEN;
    if (!epoch->order) return FM_OK;
    /* What the source does not find is an error of next(), which asks for it again. */
    const int fed = fm_loader_feed(loader, NULL);
    (void)fed;
    return FM_OK;
}

int fm_loader_finish(fm_loader *loader, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    if (status) return status;
    if (loader->epoch_state == FM_EPOCH_NONE)
        return fm_error_set(error, FM_ERR_STATE, "no epoch is running");
    loader->epoch_state = FM_EPOCH_FINISHED;
    return FM_OK;
}

/* ---- batches going in ------------------------------------------------------------------------ */

static int check_range(const fm_sample *sample, fm_error *error) {
    if (sample->data ? sample->offset_bytes || sample->range_bytes
                     : sample->offset_bytes && !sample->range_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "index %lld has a range without bytes, or one of an image in memory",
                            (long long)sample->index);
    if (sample->offset_bytes > MAX_OFFSET || sample->range_bytes > MAX_OFFSET)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "index %lld begins at byte %llu and has %llu: no file is so large",
                            (long long)sample->index, (unsigned long long)sample->offset_bytes,
                            (unsigned long long)sample->range_bytes);
    return FM_OK;
}

static int check_samples(const fm_loader *loader, const fm_sample *samples, size_t n_samples,
                         size_t *path_bytes, fm_error *error) {
    *path_bytes = 0;
    if (loader->arrays)
        return fm_error_set(error, FM_ERR_STATE, "this loader has arrays: submit their rows");
    if (n_samples == 0 || n_samples > loader->config.batch_size || !samples)
        return fm_error_set(error, FM_ERR_ARGUMENT, "a batch of %zu samples; it must be 1 to %u",
                            n_samples, loader->config.batch_size);
    for (size_t i = 0; i < n_samples; i++) {
        const fm_sample *const sample = &samples[i];
        if (sample->index < 0 || (uint64_t)sample->index >= loader->config.n_samples)
            return fm_error_set(
                error, FM_ERR_ARGUMENT, "index %lld is outside the dataset of %llu samples",
                (long long)sample->index, (unsigned long long)loader->config.n_samples);
        const size_t bytes = sample->path ? strnlen(sample->path, MAX_PATH_BYTES) : 0;
        if ((bytes == 0 && !sample->data) || bytes == MAX_PATH_BYTES)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "the path of index %lld is empty or has %u bytes or more",
                                (long long)sample->index, MAX_PATH_BYTES);
        if (!sample->data && sample->data_bytes)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "the data of index %lld is NULL, yet has %zu bytes",
                                (long long)sample->index, sample->data_bytes);
        const int status = check_range(sample, error);
        if (status) return status;
        *path_bytes += bytes + 1;
    }
    return FM_OK;
}

static int reserve_paths(fm_loader *loader, fm_group *group, size_t path_bytes, fm_error *error) {
    if (path_bytes <= group->paths_bytes) return FM_OK;
    char *const grown = fm_mem_alloc(&loader->counter, path_bytes * 2, 1);
    if (!grown) return fm_error_set(error, FM_ERR_NOMEM, "no memory for the paths of a batch");
    fm_mem_free(group->paths);
    group->paths = grown;
    group->paths_bytes = path_bytes * 2;
    return FM_OK;
}

void fm_group_begin(fm_loader *loader, fm_group *group) {
    group->number = loader->n_submitted++;
    group->batch = loader->n_batches++;
    group->n_rejected = 0;
    group->slot = NULL;
    group->sizes = 0;
    group->ready_ns = group->returned_ns = group->slot_ns = group->queued_ns = 0;
    group->submitted_ns = fm_clock_ns();
    group->failed = false;
}

/* A verified range may be read in part. With a cache it is not: later epochs need other parts. */
static void set_range(const fm_loader *loader, fm_task *task, const fm_sample *sample) {
    task->range_bytes = task->read.range_bytes = sample->range_bytes;
    task->verified = sample->verified;
    task->is_cut = false;
    if (!sample->range_bytes || !sample->verified || !sample->rows || loader->config.cache) return;
    /* libjpeg's decodes rows of blocks that no box needs, up to four at once. */
    if (!fm_jpeg_own_huffman()) return;
    const fm_draw_key key = {loader->seed, loader->epoch_number, task->occurrence, task->index};
    task->read.range_bytes = fm_cut_bytes(&loader->plan, sample, &key);
    task->is_cut = task->read.range_bytes < sample->range_bytes;
}

/* Fills the tasks of a group that is not in the circle yet: nobody else looks at it. */
static void fill_group(fm_loader *loader, fm_group *group, const fm_sample *samples,
                       uint32_t n_samples) {
    char *path = group->paths;
    fm_group_begin(loader, group);
    group->n_tasks = group->n_left = group->n_samples = n_samples;
    for (uint32_t i = 0; i < n_samples; i++) {
        fm_task *const task = &group->tasks[i];
        const char *const name = samples[i].path ? samples[i].path : "";
        const size_t bytes = strlen(name) + 1;
        memcpy(path, name, bytes);
        task->group = group;
        task->data = samples[i].data;
        task->data_bytes = samples[i].data_bytes;
        task->cached = false;
        task->index = samples[i].index;
        task->occurrence = loader->occurrences[task->index]++;
        task->position = i;
        task->n_samples = 1;
        task->worker = UINT32_MAX;
        task->claimed_ns = task->finished_ns = 0;
        task->own = (fm_work){0};
        task->cause = 0;
        task->read = (fm_read){.path = path, .offset_bytes = samples[i].offset_bytes, .user = task};
        set_range(loader, task, &samples[i]);
        group->labels[i] = samples[i].label;
        path += bytes;
    }
}

/* Files of the group that the cache has need no reading. */
static void look_into_cache(const fm_loader *loader, fm_group *group) {
    for (uint32_t i = 0; i < group->n_tasks; i++) {
        fm_task *const task = &group->tasks[i];
        if (task->data) continue;
        const fm_cache_key key = fm_task_cache_key(task);
        task->data = fm_cache_get(loader->config.cache, &key, &task->data_bytes);
        task->cached = task->data != NULL;
    }
}

/* Locked. A task's bytes are there, or it is one of those to read. */
static void begin_task(fm_loader *loader, fm_task *task, fm_read ***end) {
    loader->sums.cache_hits += task->cached;
    if (task->data) {
        fm_run_take_data(loader, task);
        return;
    }
    loader->sums.cache_misses += loader->config.cache != NULL;
    if (!task->read.range_bytes) task->read.expected_bytes = loader->file_bytes[task->index];
    loader->n_reading++;
    **end = &task->read;
    *end = &task->read.next;
}

int fm_loader_check_open(const fm_loader *loader, fm_error *error) {
    if (loader->epoch_state == FM_EPOCH_OPEN) return FM_OK;
    return fm_error_set(error, FM_ERR_STATE,
                        loader->epoch_state == FM_EPOCH_NONE
                            ? "no epoch is running: start one first"
                            : "the epoch is finished: start another");
}

int fm_loader_submit(fm_loader *loader, const fm_sample *samples, size_t n_samples,
                     fm_error *error) {
    int status = fm_loader_check(loader, error);
    if (!status) status = fm_loader_check_open(loader, error);
    if (status) return status;
    size_t path_bytes;
    status = check_samples(loader, samples, n_samples, &path_bytes, error);
    if (status) return status;
    if (loader->n_groups == loader->config.prefetch_batches) return FM_AGAIN;
    fm_group *const group = fm_group_at(loader, loader->n_groups);
    status = reserve_paths(loader, group, path_bytes, error);
    if (status) return status;
    fill_group(loader, group, samples, (uint32_t)n_samples);
    if (loader->config.cache) look_into_cache(loader, group);
    fm_read *reads, **end = &reads;
    fm_ring_lock(loader->ring);
    loader->n_groups++;
    fm_run_assign_slots(loader);
    for (uint32_t i = 0; i < group->n_tasks; i++) begin_task(loader, &group->tasks[i], &end);
    *end = NULL;
    fm_ring_unlock(loader->ring);
    if (reads) fm_reader_submit(loader->reader, reads);
    return FM_OK;
}

/* What the source said of a sample that it did not find. */
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

/* Submits the batch of order[n]. */
static int feed_batch(fm_loader *loader, const int64_t *order, size_t n, fm_error *error) {
    const fm_source *const source = &loader->config.source;
    if (loader->arrays) return fm_loader_submit_rows(loader, order, NULL, n, error);
    for (size_t i = 0; i < n; i++) {
        loader->located[i] = (fm_sample){0};
        const int status = source->locate(source->user, order[i], &loader->located[i]);
        if (status) return describe_missing(status, order[i], error);
    }
    return fm_loader_submit(loader, loader->located, n, error);
}

int fm_loader_feed(fm_loader *loader, fm_error *error) {
    const uint32_t batch_size = loader->config.batch_size;
    while (loader->n_groups < loader->config.prefetch_batches) {
        const size_t left = loader->n_order - loader->order_next;
        const size_t n = left < batch_size ? left : batch_size;
        if (n == 0 || (n < batch_size && loader->drop_last)) {
            loader->epoch_state = FM_EPOCH_FINISHED;
            return FM_OK;
        }
        const int status = feed_batch(loader, loader->order + loader->order_next, n, error);
        if (status) return status;
        loader->order_next += n;
    }
    return FM_OK;
}
