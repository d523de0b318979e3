/*
 * The processor for encoded images of which several views are made. Decodes the smallest box that
 * holds what all views need, once, into memory, and makes each view from it.
 */
#define _GNU_SOURCE
#include "pipeline/state.h"
#include "pipeline/virtual_workers.h"

/* Rows that are decoded between two checks of the cancel flag. */
#define BLOCK_ROWS 16
/* A decoder may write up to 64 bytes after a row's last pixel. */
#define ROW_SLACK_PX 22
/* Limit of the decoded part of an image, of which each thread has one. */
#define MOST_PART_BYTES ((uint64_t)80 << 20)

/* The decoded part of an image. */
typedef struct decoded {
    fm_image_info info;
    fm_image part;
    int32_t divisor;   /* of the image's size; see transform/scaled.h */
    int32_t left, top; /* of the part in the image of that size */
} decoded;

static int open_tools(fm_worker *worker, fm_error *error) {
    fm_loader *const loader = worker->loader;
    const int status = fm_process_image_open_decoder(worker, error);
    return status ? status
                  : fm_view_tools_open(&worker->views, &loader->views, &loader->counter, error);
}

static int32_t lower(int32_t one, int32_t other) { return one < other ? one : other; }
static int32_t higher(int32_t one, int32_t other) { return one > other ? one : other; }

static bool is_empty(const fm_box *box) { return box->width < 1 || box->height < 1; }

/* The smallest box that contains both. */
static fm_box both(const fm_box *one, const fm_box *other) {
    if (is_empty(one)) return *other;
    if (is_empty(other)) return *one;
    const int32_t left = lower(one->left, other->left), top = lower(one->top, other->top);
    return (fm_box){
        .left = left,
        .top = top,
        .width = higher(one->left + one->width, other->left + other->width) - left,
        .height = higher(one->top + one->height, other->top + other->height) - top,
    };
}

/* The box that holds what all views need. *divisor: as of fm_pixels_begin(), of all views. */
static int locate_at(fm_worker *worker, const fm_task *task, const fm_image_info *info,
                     int32_t *divisor, fm_box *box, fm_error *error) {
    fm_loader *const loader = worker->loader;
    *box = (fm_box){0};
    for (size_t i = 0; i < loader->views.n; i++) {
        const fm_draw_key key = fm_task_key(worker, task, i);
        fm_box needed;
        const int status = fm_pixels_begin(fm_view_pixels(worker, i), &key, info->width,
                                           info->height, divisor, &needed, error);
        if (status) return status;
        *box = both(box, &needed);
    }
    return FM_OK;
}

static int locate(fm_worker *worker, const fm_task *task, const fm_image_info *info,
                  int32_t *divisor, fm_box *box, fm_error *error) {
    *divisor = fm_process_image_most_divisor(worker);
    for (;;) {
        const int32_t most = *divisor;
        const int status = locate_at(worker, task, info, divisor, box, error);
        /* Until all views began with the same divisor. */
        if (status || *divisor == most) return status;
    }
}

/* Decodes a box into the scratch memory. */
static int decode_box(fm_worker *worker, const fm_box *box, decoded *out, fm_error *error) {
    int32_t skip_px, row_px;
    if ((uint64_t)box->width * (uint64_t)box->height * 3 > MOST_PART_BYTES)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "the views need %d x %d pixels, which take more than %u MiB",
                            (int)box->width, (int)box->height, (unsigned)(MOST_PART_BYTES >> 20));
    const int status = fm_decoder_start(worker->decoder, box, &skip_px, &row_px, error);
    if (status) return status;
    out->part = (fm_image){NULL, row_px + ROW_SLACK_PX, box->height, 3};
    const size_t row_bytes = fm_image_row_bytes(&out->part);
    uint8_t *const px = fm_scratch_alloc(&worker->views.scratch, fm_image_bytes(&out->part));
    if (!px)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for an image of %d x %d pixels",
                            (int)row_px, (int)box->height);
    out->part.px = px;
    out->left = box->left - skip_px;
    out->top = box->top;
    for (int32_t row = 0; row < box->height;) {
        uint8_t *rows[BLOCK_ROWS];
        const int32_t n_rows = lower(BLOCK_ROWS, box->height - row);
        for (int32_t i = 0; i < n_rows; i++) rows[i] = px + (size_t)(row + i) * row_bytes;
        const int n_decoded = fm_decoder_read(worker->decoder, rows, n_rows, error);
        if (n_decoded < 0) return n_decoded;
        if (fm_is_cancelled(worker->loader)) return FM_ERR_CANCELLED;
        row += n_decoded;
    }
    return FM_OK;
}

static int decode(fm_worker *worker, fm_task *task, decoded *out, fm_stage_timer *timer,
                  fm_error *error) {
    int status = fm_process_image_begin(worker, task, &out->info, error);
    fm_timer_end(timer, &timer->decode_ns);
    fm_box box;
    if (!status) status = fm_virtual_workers_check_size(worker->loader, task, &out->info, error);
    if (!status) status = locate(worker, task, &out->info, &out->divisor, &box, error);
    if (!status && out->divisor > 1) fm_decoder_set_divisor(worker->decoder, out->divisor);
    fm_timer_end(timer, &timer->transform_ns);
    if (!status && !is_empty(&box)) status = decode_box(worker, &box, out, error);
    fm_process_image_end(worker, task);
    fm_timer_end(timer, &timer->decode_ns);
    return status;
}

static int process(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                   fm_error *error) {
    fm_loader *const loader = worker->loader;
    decoded image = {0};
    int status = decode(worker, task, &image, timer, error);
    for (size_t i = 0; !status && i < loader->views.n; i++) {
        const fm_draw_key key = fm_task_key(worker, task, i);
        uint8_t *const out = fm_view_out(&loader->views, i, memory, task->position);
        status =
            fm_pixels_part(fm_view_pixels(worker, i), &key, image.info.width, image.info.height,
                           image.divisor, &image.part, image.left, image.top, out, error);
        if (!status && fm_is_cancelled(loader)) status = FM_ERR_CANCELLED;
    }
    fm_scratch_reset(&worker->views.scratch);
    fm_timer_end(timer, &timer->transform_ns);
    return status;
}

const fm_processor fm_process_views = {fm_process_image_measure, open_tools, process};
