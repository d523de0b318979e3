#define _GNU_SOURCE
#include "pipeline/config.h"

#include <string.h>

#include "base/cpu.h"
#include "cache/cache.h"
#include "pipeline/device_stage.h"
#include "pipeline/pixels.h"
#include "pipeline/raw_files.h"
#include "pipeline/rows.h"
#include "pipeline/views.h"
#include "pipeline/virtual_workers.h"
#include "read/disk_cache.h"
#include "read/reader.h"
#include "ring/ring.h"

#define MIB ((uint64_t)1 << 20)

/* Row buffers, coefficient tables and the decoders' working memory (4 MiB) of one decode thread;
 * only large progressive images and WebPs take more, until they are trimmed. */
#define SCRATCH_BYTES_PER_THREAD (6 * MIB)
/* Memory for a sample in flight: its task, label and path. */
#define TASK_BYTES (sizeof(fm_task) + sizeof(int64_t) + FM_PATH_BYTES_GUESS)
/* Memory for a sample in flight of arrays: its index, row and number of uses. */
#define ROW_BYTES 20u
/* Memory for a sample in flight whose parameters are drawn, in an epoch with streams: its share of
 * the copies of generators. */
#define STREAMS_BYTES ((sizeof(fm_streams) + FM_SAMPLES_PER_COPY - 1) / FM_SAMPLES_PER_COPY)
/* Memory for a pending batch, without its samples: its place in the queue, and records. */
#define BATCH_BYTES (sizeof(fm_pending) + 2 * sizeof(fm_delivery))
/* Memory for each sample of the dataset: its number of uses and its file's size. */
#define INDEX_BYTES 8u
/* Memory for the records of steps. */
#define STEPS_BYTES ((uint64_t)FM_N_STEPS * sizeof(fm_step))
#define READ_AHEAD_BYTES (64 * MIB)
#define READ_AHEAD_MIN_BYTES (4 * MIB)
/* From this size of all buffers together on, a buffer's values have left the CPU's cache before
 * they are read, so they are stored past it. */
#define STREAM_BYTES (16 * MIB)
#define MAX_BATCH_SIZE 65536u
#define MAX_THREADS 1024u
#define MAX_PREFETCH 65536u
#define MAX_SAMPLE_RECORDS (1u << 24)
/* The random draws' counter has 40 bits for the index (base/rng.h). */
#define MAX_SAMPLES ((uint64_t)1 << 40)

void fm_config_init(fm_config *config) {
    memset(config, 0, sizeof(*config));
    config->struct_bytes = sizeof(*config);
    config->transform.dtype = FM_FLOAT32;
    for (int c = 0; c < 3; c++) config->transform.std[c] = 1;
    config->batch_size = 64;
    config->prefetch_batches = 4;
    config->max_file_bytes = 256 * MIB;
    config->seek_index_bytes = 512 * MIB;
    config->max_image_pixels = 89478485;
    config->device.convert = true;
}

static int refuse_u64(fm_error *error, const char *field, uint64_t value, uint64_t low,
                      uint64_t high) {
    return fm_error_set(error, FM_ERR_ARGUMENT, "%s is %llu; it must be %llu to %llu", field,
                        (unsigned long long)value, (unsigned long long)low,
                        (unsigned long long)high);
}

static int check_range(const char *field, uint64_t value, uint64_t low, uint64_t high,
                       fm_error *error) {
    return value < low || value > high ? refuse_u64(error, field, value, low, high) : FM_OK;
}

static int check_fields(const fm_config *c, fm_error *error) {
    int status = check_range("n_samples", c->n_samples, 1, MAX_SAMPLES, error);
    if (!status) status = check_range("batch_size", c->batch_size, 1, MAX_BATCH_SIZE, error);
    if (!status) status = check_range("n_threads", c->n_threads, 1, MAX_THREADS, error);
    if (!status)
        status = check_range("prefetch_batches", c->prefetch_batches, 1, MAX_PREFETCH, error);
    if (!status) status = check_range("read_depth", c->read_depth, 0, 4096, error);
    if (!status)
        status = check_range("sample_records", c->sample_records, 0, MAX_SAMPLE_RECORDS, error);
    if (!status) status = check_range("max_file_bytes", c->max_file_bytes, 1, UINT32_MAX, error);
    if (!status)
        status = check_range("max_image_pixels", c->max_image_pixels, 1, UINT32_MAX, error);
    if (status) return status;
    if (!c->allocator.alloc != !c->allocator.free) {
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "allocator: alloc and free must be given together");
    }
    if (c->allocator.handover && !c->allocator.alloc) {
        return fm_error_set(error, FM_ERR_ARGUMENT, "allocator: handover needs alloc and free");
    }
    if (c->device.kind != FM_DEVICE_NONE && c->allocator.alloc) {
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "allocator: with a device, buffers are memory that it can copy from");
    }
    if (c->cache && !fm_cache_is_ours(c->cache)) {
        return fm_error_set(error, FM_ERR_FORKED,
                            "the cache belongs to another process; open one in this process");
    }
    if (c->disk_cache && !fm_disk_cache_is_ours(c->disk_cache))
        return fm_error_set(error, FM_ERR_FORKED,
                            "the disk cache belongs to another process; open one in this process");
    return FM_OK;
}

static uint64_t buffer_bytes_of(const fm_config *c, const fm_plan *plan, const fm_views *views) {
    if (c->arrays.n) return fm_ring_buffer_bytes(fm_rows_layout(c, plan, NULL), 0);
    return fm_ring_buffer_bytes(views->batch_bytes, c->batch_size * sizeof(int64_t));
}

/* Memory of decode threads, of samples in flight and of counters per sample of the dataset. */
static uint64_t scratch_bytes_of(const fm_config *c, const fm_plan *plan, const fm_views *views) {
    const uint64_t n_pending = (uint64_t)c->prefetch_batches * c->batch_size * views->n_files;
    if (c->raw.body_bytes)
        return c->raw.header_bytes + c->n_samples * INDEX_BYTES + n_pending * TASK_BYTES;
    if (!c->arrays.n)
        return c->n_threads * (SCRATCH_BYTES_PER_THREAD + fm_views_scratch_bytes(views)) +
               c->n_samples * INDEX_BYTES * views->n_files +
               n_pending * (TASK_BYTES + STREAMS_BYTES);
    const uint64_t of_images = c->arrays.images ? SCRATCH_BYTES_PER_THREAD +
                                                      fm_rows_scratch_bytes(&c->transform) +
                                                      fm_pixels_scratch_bytes(plan)
                                                : 0;
    const uint64_t n_tasks =
        c->prefetch_batches * (1 + c->batch_size / (uint64_t)fm_rows_per_task(c, plan));
    return c->n_threads * of_images + (plan->n_ops ? c->n_samples * INDEX_BYTES / 2 : 0) +
           n_pending * (ROW_BYTES + (plan->n_ops ? STREAMS_BYTES : 0)) + n_tasks * TASK_BYTES;
}

/* Splits the memory budget: first scratch and read buffers, then as many batch buffers as fit, up
 * to the number that can be in use. */
static int fit_budget(fm_config *c, fm_plan *plan, fm_views *views, uint32_t *n_buffers,
                      fm_error *error) {
    const uint64_t buffer_bytes = buffer_bytes_of(c, plan, views);
    const uint64_t scratch_bytes = scratch_bytes_of(c, plan, views) + STEPS_BYTES +
                                   c->prefetch_batches * BATCH_BYTES +
                                   c->sample_records * sizeof(fm_sample_record);
    const uint64_t buffers_min_bytes = FM_RING_MIN_BUFFERS * buffer_bytes;
    const uint64_t wanted_buffers = c->prefetch_batches + FM_RING_MAX_BORROWED > FM_RING_MIN_BUFFERS
                                        ? c->prefetch_batches + FM_RING_MAX_BORROWED
                                        : FM_RING_MIN_BUFFERS;
    if (c->arrays.n) c->read_ahead_bytes = 0;
    uint64_t read_bytes = c->arrays.n           ? 0
                          : c->read_ahead_bytes ? c->read_ahead_bytes
                                                : READ_AHEAD_BYTES;
    const uint64_t read_min_bytes = read_bytes < READ_AHEAD_MIN_BYTES || c->read_ahead_bytes
                                        ? read_bytes
                                        : READ_AHEAD_MIN_BYTES;
    const uint64_t needed = scratch_bytes + buffers_min_bytes + read_min_bytes;
    if (c->memory_budget_bytes < needed) {
        return fm_error_set(
            error, FM_ERR_BUDGET,
            "memory_budget of %llu bytes is too small: %d batch buffers of %llu bytes, read "
            "buffers of %llu and scratch of %llu need %llu; raise it, or lower the batch size",
            (unsigned long long)c->memory_budget_bytes, FM_RING_MIN_BUFFERS,
            (unsigned long long)buffer_bytes, (unsigned long long)read_min_bytes,
            (unsigned long long)scratch_bytes, (unsigned long long)needed);
    }
    /* Read buffers get at most a quarter of the rest, and leave enough for the minimum of batch
     * buffers; they never get less than their own minimum. */
    const uint64_t left = c->memory_budget_bytes - scratch_bytes;
    if (!c->read_ahead_bytes) {
        if (read_bytes > left / 4)
            read_bytes = left / 4 > read_min_bytes ? left / 4 : read_min_bytes;
        if (read_bytes > left - buffers_min_bytes) read_bytes = left - buffers_min_bytes;
    }
    c->read_ahead_bytes = read_bytes;
    const uint64_t fitting = (left - read_bytes) / buffer_bytes;
    *n_buffers = (uint32_t)(fitting < wanted_buffers ? fitting : wanted_buffers);
    const uint64_t rest = left - read_bytes - *n_buffers * buffer_bytes;
    if (c->seek_index_bytes > rest) c->seek_index_bytes = rest;
    plan->stream = *n_buffers * buffer_bytes >= STREAM_BYTES;
    for (size_t i = 1; i < views->n; i++) views->more[i - 1].stream = plan->stream;
    return FM_OK;
}

static uint64_t least_rows(const fm_arrays *arrays) {
    uint64_t n = UINT64_MAX;
    for (size_t i = 0; i < arrays->n; i++)
        if (arrays->list[i].n_rows < n) n = arrays->list[i].n_rows;
    return n;
}

static int check_arrays(const fm_arrays *arrays, const fm_transform *transform, fm_error *error) {
    const bool sized = transform->in_height || transform->in_width || transform->in_channels;
    if (sized && !arrays->images)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "in_height, in_width and in_channels are for arrays of images only");
    if (!arrays->n) {
        if (!arrays->images) return FM_OK;
        return fm_error_set(error, FM_ERR_ARGUMENT, "arrays.images is set, but arrays.n is 0");
    }
    if (arrays->n > FM_MAX_ARRAYS || !arrays->list)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "arrays.list has %zu arrays at %p; it must have 1 to %d", arrays->n,
                            (const void *)arrays->list, FM_MAX_ARRAYS);
    if (!arrays->images) return FM_OK;
    fm_array_image image;
    return fm_array_image_init(&image, arrays, transform, error);
}

int fm_config_resolve(const fm_config *config, fm_config *out, fm_plan *plan, fm_plan *result,
                      fm_views *views, uint32_t *n_buffers, fm_mem_counter *counter,
                      fm_error *error) {
    if (!config) return fm_error_set(error, FM_ERR_ARGUMENT, "config is NULL");
    if (config->struct_bytes != sizeof(*config)) {
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "config.struct_bytes is %zu, not %zu: call fm_config_init() first, "
                            "with the header of this library's version (%s)",
                            config->struct_bytes, sizeof(*config), FM_VERSION_STRING);
    }
    *out = *config;
    int status = check_arrays(&out->arrays, &out->transform, error);
    if (status) return status;
    if (out->n_samples == 0)
        out->n_samples = out->arrays.n ? least_rows(&out->arrays) : out->source.n_samples;
    if (out->n_threads == 0) {
        const uint32_t usable = fm_cpu_usable();
        out->n_threads = usable > 1 ? usable - 1 : 1;
    }
    if (out->memory_budget_bytes == 0) out->memory_budget_bytes = fm_cpu_memory_bytes() / 4;
    status = check_fields(out, error);
    if (!status) status = fm_reader_kind_from_env(out->reader, &out->reader, error);
    fm_cpu_tier tier; /* only checks FEEDMILL_CPU; the decode threads read it again */
    if (!status) status = fm_cpu_tier_get(&tier, error);
    *plan = (fm_plan){0};
    if (!status && out->raw.body_bytes)
        status = fm_raw_plan(plan, out, error);
    else if (!status && (!out->arrays.n || out->arrays.images))
        status = fm_plan_init(plan, &out->transform, error);
    *result = *plan;
    const bool has_sections = out->arrays.n > 0 || out->n_more_views > 0;
    if (!status)
        status = fm_device_stage_plan(&out->device, &out->transform, has_sections, plan, error);
    if (!status) status = fm_views_open(views, out, plan, counter, error);
    if (!status) status = fit_budget(out, plan, views, n_buffers, error);
    /* The plans hold copies, so the caller may free the transforms' arrays. */
    out->transform = (fm_transform){0};
    out->more_views = NULL;
    return status;
}
