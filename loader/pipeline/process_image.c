/*
 * The processor for encoded images of which one view is made. Decoding and transforms are coupled
 * only here: reads the image's header, asks the plan which part of the image the transform needs,
 * decodes only that part, and transforms its rows block by block, straight into the image's place
 * in the batch.
 */
#define _GNU_SOURCE
#include "decode/jpeg_restart.h"
#include "pipeline/state.h"
#include "pipeline/virtual_workers.h"
#include "transform/scaled.h"

/* Rows that are decoded between two checks of the clock and the cancel flag. */
#define BLOCK_ROWS FM_RESAMPLE_ROWS

int fm_process_image_open_decoder(fm_worker *worker, fm_error *error) {
    fm_loader *const loader = worker->loader;
    if (loader->seek_index) {
        worker->seek = fm_mem_zalloc(&loader->counter, 1, sizeof(*worker->seek));
        if (!worker->seek) return fm_error_set(error, FM_ERR_NOMEM, "no memory for seek points");
    }
    const fm_limits limits = {loader->config.max_file_bytes, loader->config.max_image_pixels,
                              loader->config.rejected_formats};
    const int status = fm_decoder_open(&worker->decoder, &limits, &loader->counter, error);
    if (!status) fm_decoder_watch(worker->decoder, &loader->queue.is_cancelled);
    return status;
}

static int image_bytes(fm_task *task, const uint8_t **bytes, size_t *n_bytes, fm_error *error) {
    *bytes = task->data ? task->data : task->read.bytes;
    *n_bytes = task->data ? task->data_bytes : task->read.n_bytes;
    if (*n_bytes == 0) return fm_error_set(error, FM_ERR_FORMAT, "the file is empty");
    if (task->is_partial && !fm_jpeg_restart_end(task->read.bytes, *n_bytes))
        return fm_error_set(error, FM_ERR_DAMAGED,
                            "there is no restart marker where the restart index has one");
    return FM_OK;
}

int fm_process_image_begin(fm_worker *worker, fm_task *task, fm_image_info *info, fm_error *error) {
    fm_decoder *const decoder = worker->decoder;
    const uint8_t *bytes;
    size_t n_bytes;
    const int status = image_bytes(task, &bytes, &n_bytes, error);
    if (status) return status;
    fm_decoder_set_interval_skipping(decoder, task->is_verified, task->is_partial);
    if (worker->seek) {
        const uint64_t number = fm_file_number(worker->loader, task);
        const bool is_of_use = fm_seek_index_get(worker->loader->seek_index, number, worker->seek);
        fm_decoder_set_seek(decoder, is_of_use ? worker->seek : NULL);
    }
    return fm_decoder_begin(decoder, bytes, n_bytes, info, error);
}

void fm_process_image_end(fm_worker *worker, const fm_task *task) {
    fm_decoder_end(worker->decoder);
    if (!worker->seek) return;
    fm_seek_index_put(worker->loader->seek_index, fm_file_number(worker->loader, task),
                      worker->seek);
    fm_counter_add(&worker->n_seeks, worker->seek->n_used > 0);
    /* The next image may not get so far. */
    worker->seek->is_changed = false;
    worker->seek->n_used = 0;
}

int32_t fm_process_image_most_divisor(const fm_worker *worker) {
    const bool is_scaled = worker->loader->config.decodes_scaled;
    return is_scaled && fm_decoder_can_reduce(worker->decoder) ? FM_MAX_DIVISOR : 1;
}

int fm_process_image_measure(fm_worker *worker, fm_task *task, int32_t *width, int32_t *height,
                             fm_error *error) {
    const uint8_t *bytes;
    size_t n_bytes;
    fm_image_info info;
    int status = image_bytes(task, &bytes, &n_bytes, error);
    if (status) return status;
    status = fm_decoder_measure(worker->decoder, bytes, n_bytes, &info, error);
    if (status) return status;
    *width = info.width;
    *height = info.height;
    return FM_OK;
}

static int open_tools(fm_worker *worker, fm_error *error) {
    fm_loader *const loader = worker->loader;
    const int status = fm_process_image_open_decoder(worker, error);
    return status ? status
                  : fm_view_tools_open(&worker->views, &loader->views, &loader->counter, error);
}

/* Decodes and transforms block by block. */
static int run_rows(fm_worker *worker, fm_pixels *pixels, fm_stage_timer *timer, fm_error *error) {
    uint8_t *rows[BLOCK_ROWS];
    fm_resample *const resample = fm_pixels_resample(pixels);
    for (;;) {
        const int32_t n_rows = fm_resample_rows(resample, rows, BLOCK_ROWS);
        if (n_rows == 0) return FM_OK;
        const int n_decoded = fm_decoder_read(worker->decoder, rows, n_rows, error);
        fm_timer_end(timer, &timer->decode_ns);
        if (n_decoded < 0) return n_decoded;
        fm_resample_push(resample, n_decoded);
        fm_timer_end(timer, &timer->transform_ns);
        if (fm_is_cancelled(worker->loader)) return FM_ERR_CANCELLED;
    }
}

static int decode(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                  fm_error *error) {
    const fm_views *const views = &worker->loader->views;
    const size_t view = fm_views_at(views, task->position).begin;
    uint8_t *const out = fm_view_out(views, view, memory, task->position);
    fm_pixels *const pixels = fm_view_pixels(worker, view);
    const fm_draw_key key = fm_task_key(worker, task, view);
    fm_image_info info;
    fm_box needed;
    int32_t skip_px = 0, row_px = 0;
    int status = fm_process_image_begin(worker, task, &info, error);
    fm_timer_end(timer, &timer->decode_ns);
    if (!status) status = fm_virtual_workers_check_size(worker->loader, task, &info, error);
    if (status) return status;
    int32_t divisor = fm_process_image_most_divisor(worker);
    status = fm_pixels_begin(pixels, &key, info.width, info.height, &divisor, &needed, error);
    fm_timer_end(timer, &timer->transform_ns);
    if (status) return status;
    if (divisor > 1) fm_decoder_set_divisor(worker->decoder, divisor);
    if (needed.width > 0 && needed.height > 0)
        status = fm_decoder_start(worker->decoder, &needed, &skip_px, &row_px, error);
    fm_timer_end(timer, &timer->decode_ns);
    if (!status) status = fm_pixels_start(pixels, skip_px, row_px, out, error);
    fm_timer_end(timer, &timer->transform_ns);
    if (!status) status = run_rows(worker, pixels, timer, error);
    if (!status) status = fm_pixels_finish(pixels, error);
    fm_timer_end(timer, &timer->transform_ns);
    return status;
}

static int process(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                   fm_error *error) {
    const int status = decode(worker, task, memory, timer, error);
    fm_process_image_end(worker, task);
    fm_timer_end(timer, &timer->decode_ns);
    return status;
}

const fm_processor fm_process_image = {fm_process_image_measure, open_tools, process};
