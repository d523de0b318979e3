/*
 * The processor for rows of arrays in memory. A task has several samples of a batch, enough that
 * handing it to a decode thread costs little in comparison.
 */
#define _GNU_SOURCE
#include "pipeline/rows.h"

#include <string.h>

#include "pipeline/state.h"
#include "pipeline/virtual_workers.h"

/* Most bytes that one task writes, unless a single sample has more. */
#define TASK_BYTES ((size_t)512 << 10)
/* A batch of at most this many bytes is made by the thread that submits it. */
#define FEW_BYTES ((size_t)64 << 10)
/* Fixed cost of a sample, as a number of bytes that are copied in the same time. */
#define SAMPLE_COST_BYTES 64u

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t row_bytes_of(const fm_config *config, const fm_plan *plan, size_t number) {
    const bool is_image = number == 0 && config->arrays.images;
    return is_image ? plan->sample_bytes : config->arrays.list[number].row_bytes;
}

size_t fm_rows_layout(const fm_config *config, const fm_plan *plan, fm_section *sections) {
    size_t offset = 0;
    for (size_t i = 0; i < config->arrays.n; i++) {
        const size_t row_bytes = row_bytes_of(config, plan, i);
        if (sections) sections[i] = (fm_section){offset, row_bytes};
        offset += fm_mem_round_up(config->batch_size * row_bytes);
    }
    return offset;
}

uint32_t fm_rows_per_task(const fm_config *config, const fm_plan *plan) {
    size_t sample_bytes = SAMPLE_COST_BYTES;
    for (size_t i = 0; i < config->arrays.n; i++) sample_bytes += row_bytes_of(config, plan, i);
    const size_t n = TASK_BYTES / sample_bytes;
    return n < 1 ? 1 : n < config->batch_size ? (uint32_t)n : config->batch_size;
}

bool fm_rows_are_few(const fm_loader *loader, uint32_t n_samples) {
    const size_t n_bytes = n_samples * (loader->rows.row_bytes + SAMPLE_COST_BYTES);
    return n_bytes <= FEW_BYTES && !loader->layout.has_images && !loader->rows.is_mapped;
}

/* ---- images ---------------------------------------------------------------------------------- */

static size_t image_bytes(const fm_transform *transform) {
    return 3 * (size_t)transform->in_height * (size_t)transform->in_width + FM_ROW_SLACK;
}

uint64_t fm_rows_scratch_bytes(const fm_transform *transform) {
    return 2 * (uint64_t)image_bytes(transform);
}

int fm_rows_scratch_open(fm_rows_scratch *scratch, const fm_plan *plan, fm_mem_counter *counter,
                         fm_error *error) {
    const fm_transform in = {.in_height = plan->in_height, .in_width = plan->in_width};
    fm_cpu_tier tier;
    int status = fm_cpu_tier_get(&tier, error);
    if (!status) status = fm_resample_open(&scratch->resample, plan, counter, error);
    if (status) return status;
    fm_kernels_init(&scratch->kernels, tier);
    fm_store_init(&scratch->store, plan, tier);
    for (int i = 0; i < 2; i++) {
        scratch->px[i] = fm_mem_zalloc(counter, image_bytes(&in), 1);
        if (!scratch->px[i])
            return fm_error_set(error, FM_ERR_NOMEM, "no memory for an image of %d x %d pixels",
                                (int)in.in_width, (int)in.in_height);
    }
    return FM_OK;
}

void fm_rows_scratch_close(fm_rows_scratch *scratch) {
    fm_resample_close(&scratch->resample);
    for (int i = 0; i < 2; i++) {
        fm_mem_free(scratch->px[i]);
        scratch->px[i] = NULL;
    }
}

/* Whether the ops only crop and mirror the image: no resize, no padding. */
static bool only_crops(const fm_geometry *geometry) {
    const fm_box *const source = &geometry->source, *const window = &geometry->window;
    return geometry->resized_width == source->width && geometry->resized_height == source->height &&
           window->left >= 0 && window->top >= 0 && window->left + window->width <= source->width &&
           window->top + window->height <= source->height;
}

static void mirror_rows(fm_rows_scratch *scratch, fm_box box) {
    const size_t row_bytes = 3 * (size_t)box.width;
    uint8_t *const mirrored = scratch->px[1];
    for (size_t y = 0; y < (size_t)box.height; y++)
        scratch->kernels.mirror(mirrored + y * row_bytes, scratch->px[0] + y * row_bytes,
                                box.width);
    scratch->px[1] = scratch->px[0];
    scratch->px[0] = mirrored;
}

/* Stores a crop of the image, by one call for all of its pixels. */
static void store_part(fm_rows_scratch *scratch, const fm_array_image *image, const uint8_t *row,
                       const fm_geometry *geometry, void *out) {
    fm_box box = geometry->window;
    if (geometry->mirror_source) box.left = geometry->source.width - box.left - box.width;
    box.left += geometry->source.left;
    box.top += geometry->source.top;
    fm_array_pixels(image, row, box, scratch->px[0]);
    if (geometry->mirror_source != geometry->flip) mirror_rows(scratch, box);
    scratch->store.row(&scratch->store, out, scratch->px[0], box.width * box.height);
}

static void store_planes(const fm_store *store, const fm_array_image *image, const uint8_t *row,
                         uint8_t *out) {
    const size_t n = (size_t)image->width * (size_t)image->height;
    for (int channel = 0; channel < image->channels; channel++) {
        store->one_channel(store, channel, out, row, n);
        row += image->channel_stride;
        out += n * store->px_bytes;
    }
}

/* Stores a whole image. Reads its bytes in place if their layout allows it. */
static void store_whole(fm_rows_scratch *scratch, const fm_array_image *image, const uint8_t *row,
                        bool has_slack, void *out) {
    const fm_store *const store = &scratch->store;
    const fm_box box = {.width = image->width, .height = image->height};
    const bool one_by_one = store->plan->layout == FM_NCHW || image->channels == 1;
    if (one_by_one && fm_array_image_is_planar(image)) {
        store_planes(store, image, row, out);
        return;
    }
    const uint8_t *px = row;
    if (!fm_array_image_is_packed(image) || !has_slack) {
        fm_array_pixels(image, row, box, scratch->px[0]);
        px = scratch->px[0];
    }
    store->row(store, out, px, box.width * box.height);
}

/* Stores an image that is resized or padded: its rows go through the resample like decoded ones. */
static int store_resampled(fm_rows_scratch *scratch, const fm_array_image *image,
                           const uint8_t *row, const fm_geometry *geometry, void *out,
                           fm_error *error) {
    uint8_t *rows[FM_RESAMPLE_ROWS];
    fm_box needed;
    int status = fm_resample_begin(scratch->resample, geometry, &needed, error);
    if (!status) status = fm_resample_start(scratch->resample, 0, needed.width, out, error);
    if (status) return status;
    fm_box line = {.left = needed.left, .top = needed.top, .width = needed.width, .height = 1};
    for (int32_t n; (n = fm_resample_rows(scratch->resample, rows, FM_RESAMPLE_ROWS)) > 0;) {
        for (int32_t i = 0; i < n; i++, line.top++) fm_array_pixels(image, row, line, rows[i]);
        fm_resample_push(scratch->resample, n);
    }
    return FM_OK;
}

/* Applies a plan with augmentations or RandomErasing. Contiguous pixels are read in place; others
 * are copied first. */
static int augment_image(fm_worker *worker, const uint8_t *row, const fm_draw_key *key, void *out,
                         fm_error *error) {
    const fm_array_image *const image = &worker->loader->rows.image;
    const bool dense =
        image->channels == 1 ? fm_array_image_is_planar(image) : fm_array_image_is_packed(image);
    int32_t channels = image->channels;
    if (!dense) {
        const fm_box box = {.width = image->width, .height = image->height};
        fm_array_pixels(image, row, box, worker->scratch.px[0]);
        row = worker->scratch.px[0];
        channels = 3;
    }
    return fm_pixels_array(worker->pixels, key, row, image->width, image->height, channels, out,
                           error);
}

static int store_image(fm_worker *worker, const fm_task *task, uint32_t nth, void *out,
                       fm_error *error) {
    fm_loader *const loader = worker->loader;
    fm_rows_scratch *const scratch = &worker->scratch;
    const fm_plan *const plan = &loader->plan;
    const fm_pending *const batch = task->batch;
    const fm_array *const array = &loader->rows.arrays[0];
    const fm_array_image *const image = &loader->rows.image;
    const int64_t number = batch->rows[nth];
    const uint8_t *const row = fm_array_row(array, number);
    if (plan->n_ops == 0) {
        const size_t n_after = (array->n_rows - (size_t)number - 1) * array->stride_bytes;
        store_whole(scratch, image, row, n_after >= FM_ROW_SLACK, out);
        return FM_OK;
    }
    const fm_draw_key own_key = {loader->epoch.seed,
                                 loader->epoch.number,
                                 batch->occurrences[nth],
                                 batch->indices[nth],
                                 0,
                                 NULL,
                                 NULL};
    const fm_draw_key key = fm_virtual_workers_key(worker, batch, nth, 0, own_key);
    if (worker->pixels) return augment_image(worker, row, &key, out, error);
    fm_geometry geometry;
    const int status = fm_geometry_locate(plan->ops, plan->n_ops, plan->n_ops, &key, image->width,
                                          image->height, &geometry, NULL, error);
    if (status) return status;
    if (!only_crops(&geometry)) return store_resampled(scratch, image, row, &geometry, out, error);
    store_part(scratch, image, row, &geometry, out);
    return FM_OK;
}

static int store_images(fm_worker *worker, fm_task *task, uint8_t *out, fm_error *error) {
    const size_t sample_bytes = worker->loader->plan.sample_bytes;
    int status = FM_OK;
    for (uint32_t i = task->position; !status && i < task->position + task->n_samples; i++) {
        status = store_image(worker, task, i, out + i * sample_bytes, error);
        if (status) task->index = task->batch->indices[i];
    }
    fm_store_drain(&worker->scratch.store);
    return status;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void copy_section(const fm_loader *loader, const fm_task *task, size_t number,
                         uint8_t *memory) {
    const fm_rows_input *const in = &loader->rows;
    const fm_section *const section = &in->sections[number];
    uint8_t *const out = memory + section->offset + task->position * section->row_bytes;
    fm_array_gather(&in->arrays[number], task->batch->rows + task->position, task->n_samples, out,
                    loader->stream_copy);
}

void fm_rows_copy(const fm_loader *loader, const fm_task *task, uint8_t *memory) {
    for (size_t i = 0; i < loader->config.arrays.n; i++) copy_section(loader, task, i, memory);
}

static int open_tools(fm_worker *worker, fm_error *error) {
    fm_loader *const loader = worker->loader;
    const fm_plan *const plan = &loader->plan;
    if (!loader->layout.has_images) return FM_OK;
    const int status = fm_rows_scratch_open(&worker->scratch, plan, &loader->counter, error);
    if (status || !(plan->augments || plan->erases)) return status;
    return fm_pixels_open(&worker->pixels, plan, &loader->counter, error);
}

static int process(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                   fm_error *error) {
    const fm_loader *const loader = worker->loader;
    int status = FM_OK;
    if (!loader->layout.has_images) {
        fm_rows_copy(loader, task, memory);
    } else {
        status = store_images(worker, task, memory, error);
        for (size_t i = 1; !status && i < loader->config.arrays.n; i++)
            copy_section(loader, task, i, memory);
    }
    fm_timer_end(timer, &timer->transform_ns);
    return status;
}

const fm_processor fm_process_rows = {NULL, open_tools, process};
