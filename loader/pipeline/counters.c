/* A loader's counters, sizes and random parameters, for its caller. */
#define _GNU_SOURCE
#include <stdio.h>

#include "pipeline/state.h"
#include "transform/geometry.h"

/* ---- counters -------------------------------------------------------------------------------- */

/* The sum of all decode threads' idle times, up to now. */
static uint64_t idle_ns(const fm_loader *loader, uint64_t now_ns) {
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

static void add_workers(const fm_loader *loader, fm_stats *out) {
    out->worker_idle_ns = idle_ns(loader, fm_clock_ns());
    for (uint32_t i = 0; i < loader->n_workers; i++) {
        fm_worker *const worker = &loader->workers[i];
        out->native_samples += atomic_load_explicit(&worker->n_samples, memory_order_relaxed);
        out->decode_ns += atomic_load_explicit(&worker->decode_ns, memory_order_relaxed);
        out->transform_ns += atomic_load_explicit(&worker->transform_ns, memory_order_relaxed);
        out->seek_samples += atomic_load_explicit(&worker->n_seeks, memory_order_relaxed);
    }
}

static void add_reader(const fm_reader_stats *reader, fm_stats *out) {
    out->read_files = reader->n_files;
    out->read_opens = reader->n_opens;
    out->read_bytes = reader->n_bytes;
    out->read_ns = reader->read_ns;
    out->read_depth = reader->depth;
    out->http_requests = reader->n_requests;
    out->http_retries = reader->n_retries;
    out->http_refused = reader->n_refused;
    out->http_hedged = reader->n_hedged;
    out->http_shared = reader->n_shared;
    out->http_bytes = reader->fetched_bytes;
    out->http_connect_ns = reader->connect_ns;
    out->http_first_byte_ns = reader->first_byte_ns;
    out->http_transfer_ns = reader->transfer_ns;
    out->http_retry_ns = reader->retry_ns;
    snprintf(out->reader, sizeof(out->reader), "%s", reader->name);
    snprintf(out->reader_reason, sizeof(out->reader_reason), "%s", reader->reason);
    out->disk_hits = reader->n_disk_hits;
    out->disk_hit_bytes = reader->disk_bytes;
    out->disk_misses = reader->n_disk_misses;
}

static void add_caches(const fm_config *config, fm_stats *out) {
    if (config->cache) {
        fm_cache_usage usage;
        fm_cache_usage_get(config->cache, &usage);
        out->cache_files = usage.n_files;
        out->cache_bytes = usage.used_bytes;
    }
    if (config->disk_cache) {
        fm_disk_cache_usage usage;
        fm_disk_cache_usage_get(config->disk_cache, &usage);
        out->disk_entries = usage.n_entries;
        out->disk_bytes = usage.used_bytes;
        out->disk_stored = usage.n_stored;
        out->disk_refused = usage.n_refused;
        out->disk_failed = usage.n_failed;
    }
}

/* The SIMD level of the kernels that the decode threads use. */
static fm_cpu_tier tier_of(const fm_loader *loader) {
    const fm_worker *const worker = &loader->workers[0];
    fm_pixels *const pixels = worker->pixels ? worker->pixels : worker->views.pixels[0];
    const fm_resample *const resample =
        pixels ? fm_pixels_resample(pixels) : worker->scratch.resample;
    if (resample) return fm_resample_tier(resample);
    fm_cpu_tier tier;
    return fm_cpu_tier_get(&tier, NULL) ? FM_CPU_SCALAR : tier;
}

void fm_loader_stats(fm_loader *loader, fm_stats *out) {
    if (!out) return;
    *out = (fm_stats){0};
    if (fm_loader_check(loader, NULL)) return;
    fm_reader_stats reader = {.name = "none", .reason = "the samples are in memory"};
    if (loader->readers.files) fm_readers_stats_get(&loader->readers, &reader);
    fm_loader_lock(loader);
    *out = loader->records.sums;
    add_workers(loader, out); /* locked, so that no thread ends an idle time between two loads */
    fm_loader_unlock(loader);
    /* Without the lock, as each of these is a system call and decode threads wait for the lock. */
    for (uint32_t i = 0; i < loader->n_workers; i++)
        out->worker_cpu_ns += fm_thread_cpu_ns(&loader->workers[i].thread);
    add_reader(&reader, out);
    add_caches(&loader->config, out);
    if (loader->seek_index)
        fm_seek_index_usage(loader->seek_index, &out->seek_images, &out->seek_bytes);
    out->threads_created = loader->n_workers + reader.n_threads + loader->device.thread.running;
    out->allocations = atomic_load_explicit(&loader->counter.n_blocks, memory_order_relaxed);
    out->allocated_bytes = atomic_load_explicit(&loader->counter.n_bytes, memory_order_relaxed);
    out->n_threads = loader->n_workers;
    out->n_slots = loader->ring->n_buffers;
    out->slot_bytes = loader->ring->buffer_bytes;
    if (loader->device.calls) out->pinned_bytes = out->n_slots * out->slot_bytes;
    snprintf(out->cpu, sizeof(out->cpu), "%s", fm_cpu_tier_name(tier_of(loader)));
}

/* ---- sizes ----------------------------------------------------------------------------------- */

void fm_loader_out_size(const fm_loader *loader, int *height, int *width) {
    if (height) *height = loader ? loader->plan.out_height : 0;
    if (width) *width = loader ? loader->plan.out_width : 0;
}

int fm_loader_out_channels(const fm_loader *loader) { return loader ? loader->plan.channels : 0; }

int fm_loader_section(const fm_loader *loader, size_t number, size_t *offset, size_t *row_bytes) {
    if (!loader || number >= loader->config.arrays.n) return FM_ERR_ARGUMENT;
    if (offset) *offset = loader->rows.sections[number].offset;
    if (row_bytes) *row_bytes = loader->rows.sections[number].row_bytes;
    return FM_OK;
}

size_t fm_loader_n_views(const fm_loader *loader) {
    return loader && !loader->rows.arrays ? loader->views.n : 0;
}

int fm_loader_view(const fm_loader *loader, size_t number, fm_view *out) {
    if (!out || number >= fm_loader_n_views(loader)) return FM_ERR_ARGUMENT;
    const fm_plan *const plan = loader->views.list[number].plan;
    *out = (fm_view){.offset = loader->views.list[number].offset,
                     .channels = (uint32_t)plan->channels,
                     .height = (uint32_t)plan->out_height,
                     .width = (uint32_t)plan->out_width};
    return FM_OK;
}

/* ---- random parameters ----------------------------------------------------------------------- */

int fm_loader_draws(const fm_loader *loader, size_t view, uint64_t seed, uint32_t epoch,
                    int64_t index, uint32_t occurrence, int32_t width, int32_t height, fm_draw *out,
                    fm_error *error) {
    if (!loader || !out) return fm_error_set(error, FM_ERR_ARGUMENT, "loader or out is NULL");
    if (view >= loader->views.n)
        return fm_error_set(error, FM_ERR_ARGUMENT, "there is no view %zu; the loader has %zu",
                            view, loader->views.n);
    if (index < 0 || (uint64_t)index >= loader->config.n_samples || width < 1 || height < 1)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "index %lld is outside the dataset, or %d x %d pixels are no size",
                            (long long)index, width, height);
    const fm_plan *const plan = loader->views.list[view].plan;
    const uint32_t first_op = loader->views.list[view].first_op;
    const fm_draw_key key = {seed, epoch, occurrence, index, first_op, NULL, NULL};
    return fm_geometry_draw(plan->ops, plan->n_ops, &key, width, height, out, error);
}

int fm_loader_before_pixels(const fm_loader *loader, size_t view, fm_streams *streams,
                            int32_t width, int32_t height, fm_error *error) {
    if (!loader || !streams)
        return fm_error_set(error, FM_ERR_ARGUMENT, "loader or streams is NULL");
    if (view >= loader->views.n || width < 1 || height < 1)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "there is no view %zu, or %d x %d pixels are no size", view, width,
                            height);
    const fm_plan *const plan = loader->views.list[view].plan;
    fm_draw draws[FM_MAX_OPS];
    fm_streams before;
    const fm_draw_key key = {.streams = streams, .before_pixels = &before};
    const int status = fm_geometry_draw(plan->ops, plan->n_ops, &key, width, height, draws, error);
    const size_t last = plan->n_ops - 1;
    if (!status && plan->erases && draws[last].flip && plan->ops[last].values[3] == 2)
        *streams = before;
    return status;
}

int fm_loader_draws_torch(const fm_loader *loader, size_t view, fm_streams *streams, int32_t width,
                          int32_t height, fm_draw *out, fm_error *error) {
    if (!loader || !streams || !out)
        return fm_error_set(error, FM_ERR_ARGUMENT, "loader, streams or out is NULL");
    if (view >= loader->views.n || width < 1 || height < 1)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "there is no view %zu, or %d x %d pixels are no size", view, width,
                            height);
    const fm_plan *const plan = loader->views.list[view].plan;
    const fm_draw_key key = {.streams = streams};
    return fm_geometry_draw(plan->ops, plan->n_ops, &key, width, height, out, error);
}
