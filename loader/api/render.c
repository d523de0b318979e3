/*
 * render.h: one image, decoded in part, turned, resized and cropped on the caller's thread.
 *
 * Rows stream from the decoder through the resize to the result. Only an image that is turned,
 * other than mirrored left to right, before it is resized is held as a whole in between.
 */
#define _GNU_SOURCE
#include "feedmill/render.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/orientation.h"
#include "decode/decoder.h"
#include "transform/kernels.h"
#include "transform/resample.h"

enum {
    N_FILTERS = FM_FILTER_NEAREST + 1,
    BLOCK_ROWS = FM_RESAMPLE_ROWS, /* rows that are decoded at a time */
    LEAST_BYTES = 1 << 16
};
/* A buffer that is larger is freed after the image. */
#define MOST_KEPT_BYTES ((size_t)8 << 20)

/* Memory that grows. */
typedef struct buffer {
    uint8_t *memory;
    size_t n_bytes;
} buffer;

struct fm_renderer {
    fm_decoder *decoder;
    fm_kernels kernels;
    /* Per filter, made when it is first needed. The plans' sizes are those of the current image. */
    fm_resample *resamples[N_FILTERS];
    fm_plan plans[N_FILTERS];
    buffer block;   /* decoded rows */
    buffer turned;  /* the part of the image, turned */
    buffer resized; /* the resized part, before it is turned or becomes four bytes per pixel */
};

/* Rows to write: RGB in, in the job's format and orientation out. */
typedef struct sink {
    const fm_kernels *kernels;
    uint8_t *out;
    fm_placement at;
    int32_t width;
    int px_bytes;
    bool is_bgr;
    uint8_t fourth_byte;
} sink;

/* ---- open and close -------------------------------------------------------------------------- */

int fm_renderer_open(fm_renderer **out, uint64_t max_image_pixels, fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    fm_config defaults;
    fm_config_init(&defaults);
    const fm_limits limits = {.max_file_bytes = UINT64_MAX,
                              .max_image_pixels =
                                  max_image_pixels ? max_image_pixels : defaults.max_image_pixels};
    fm_cpu_tier tier;
    int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    fm_renderer *renderer = fm_mem_zalloc(NULL, 1, sizeof(*renderer));
    if (!renderer) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a renderer");
    fm_kernels_init(&renderer->kernels, tier);
    status = fm_decoder_open(&renderer->decoder, &limits, NULL, error);
    if (status) {
        fm_renderer_close(&renderer);
        return status;
    }
    *out = renderer;
    return FM_OK;
}

void fm_renderer_close(fm_renderer **pointer) {
    if (!pointer || !*pointer) return;
    fm_renderer *const renderer = *pointer;
    *pointer = NULL;
    for (int i = 0; i < N_FILTERS; i++) fm_resample_close(&renderer->resamples[i]);
    fm_decoder_close(&renderer->decoder);
    fm_mem_free(renderer->block.memory);
    fm_mem_free(renderer->turned.memory);
    fm_mem_free(renderer->resized.memory);
    fm_mem_free(renderer);
}

static int reserve(buffer *held, size_t n_bytes, fm_error *error) {
    if (n_bytes <= held->n_bytes) return FM_OK;
    fm_mem_free(held->memory);
    held->n_bytes = n_bytes > MOST_KEPT_BYTES ? n_bytes : fm_capacity(LEAST_BYTES, n_bytes);
    held->memory = fm_mem_alloc(NULL, held->n_bytes, 1);
    if (held->memory) return FM_OK;
    held->n_bytes = 0;
    return fm_error_set(error, FM_ERR_NOMEM, "no memory for %zu bytes of pixels", n_bytes);
}

static void release_if_large(buffer *held) {
    if (held->n_bytes <= MOST_KEPT_BYTES) return;
    fm_mem_free(held->memory);
    *held = (buffer){0};
}

/* ---- the result ------------------------------------------------------------------------------ */

static bool is_resized(const fm_render *job) { return job->resized_width || job->resized_height; }

static int turn_of(fm_orientation orientation) { return orientation ? (int)orientation : 1; }

void fm_render_size(const fm_render *job, int32_t *width, int32_t *height) {
    const fm_rect part = is_resized(job) ? job->window : job->box;
    const int turn = turn_of(is_resized(job) ? job->window_orientation : job->orientation);
    const bool swaps = fm_orientation_swaps(turn);
    *width = swaps ? part.height : part.width;
    *height = swaps ? part.width : part.height;
}

static sink sink_of(const fm_renderer *renderer, const fm_render *job, uint8_t *out, int turn,
                    int32_t width, int32_t height) {
    const int px_bytes = job->format == FM_PIXEL_RGBX ? 4 : 3;
    return (sink){.kernels = &renderer->kernels,
                  .out = out,
                  .at = fm_orientation_place(turn, width, height, px_bytes),
                  .width = width,
                  .px_bytes = px_bytes,
                  .is_bgr = job->format == FM_PIXEL_BGR,
                  .fourth_byte = job->fourth_byte};
}

/* Copies pixels in reverse order of their bytes. */
static void reverse_pixels(uint8_t *restrict px, const uint8_t *restrict row, int32_t width) {
    /* Four bytes at a time; the last pixel alone, as nothing may be written after it. */
    for (int32_t x = 0; x < width - 1; x++) {
        uint32_t four; /* on little-endian machines, which feedmill needs */
        memcpy(&four, row + 3 * (size_t)x, 4);
        four = __builtin_bswap32(four) >> 8;
        memcpy(px + 3 * (size_t)x, &four, 4);
    }
    const size_t last = 3 * ((size_t)width - 1);
    for (size_t i = 0; i < 3; i++) px[last + i] = row[last + 2 - i];
}

/* Writes row y, of which FM_ROW_SLACK bytes after its end may be read. */
static void put_row(const sink *to, const uint8_t *row, int32_t y) {
    uint8_t *px = to->out + to->at.origin + y * to->at.row_bytes;
    if (to->at.column_bytes == 4) {
        to->kernels->widen(px, row, to->width, to->fourth_byte);
        return;
    }
    if (to->is_bgr && to->at.column_bytes == 3) {
        reverse_pixels(px, row, to->width);
        return;
    }
    fm_placement_put_row(&to->at, to->out, row, to->width, y);
    if (to->is_bgr) {
        for (int32_t x = 0; x < to->width; x++, px += to->at.column_bytes) {
            const uint8_t first = px[0];
            px[0] = px[2];
            px[2] = first;
        }
        return;
    }
    if (to->px_bytes == 3) return;
    for (int32_t x = 0; x < to->width; x++, px += to->at.column_bytes) px[3] = to->fourth_byte;
}

/* ---- the part of the image ------------------------------------------------------------------- */

/* Where rows come from: the decoder, or the caller's pixels. */
typedef struct rows_in {
    fm_decoder *decoder;
    const uint8_t *pixels; /* the next row of the box; NULL: the decoder is asked */
    size_t stride_bytes, px_bytes;
    int32_t width;
    int32_t skip_px, row_px; /* decoded rows have row_px pixels, the box begins at skip_px */
} rows_in;

static int open_rows(rows_in *in, fm_renderer *renderer, const fm_render *job, const fm_box *box,
                     fm_error *error) {
    *in = (rows_in){.decoder = renderer->decoder, .width = box->width, .row_px = box->width};
    if (job->data) {
        fm_image_info info;
        const int status = fm_decoder_begin(in->decoder, job->data, job->data_bytes, &info, error);
        return status ? status
                      : fm_decoder_start(in->decoder, box, &in->skip_px, &in->row_px, error);
    }
    in->px_bytes = job->pixels_format == FM_PIXEL_RGBX ? 4 : 3;
    in->stride_bytes = in->px_bytes * (size_t)job->pixels_width;
    in->pixels =
        job->pixels + (size_t)box->top * in->stride_bytes + in->px_bytes * (size_t)box->left;
    return FM_OK;
}

/* Copies pixels of four bytes without the fourth. Writes one byte past the row's end. */
static void narrow(uint8_t *restrict row, const uint8_t *restrict px, int32_t width) {
    for (int32_t x = 0; x < width; x++) memcpy(row + 3 * (size_t)x, px + 4 * (size_t)x, 4);
}

/* Fills rows[0 .. n-1] and returns how many it filled, at least one, or a negative status. */
static int32_t read_rows(rows_in *in, uint8_t *const *rows, int32_t n, fm_error *error) {
    if (!in->pixels) return fm_decoder_read(in->decoder, rows, n, error);
    for (int32_t i = 0; i < n; i++, in->pixels += in->stride_bytes) {
        if (in->px_bytes == 4)
            narrow(rows[i], in->pixels, in->width);
        else
            memcpy(rows[i], in->pixels, 3 * (size_t)in->width);
    }
    return n;
}

/* Decodes the box to the sink. */
static int decode_box(fm_renderer *renderer, const fm_render *job, const sink *to,
                      fm_error *error) {
    const fm_box box = {job->box.left, job->box.top, job->box.width, job->box.height};
    rows_in in;
    int status = open_rows(&in, renderer, job, &box, error);
    if (status) return status;
    /* Rows begin 16 bytes after a multiple of 32; see fm_jpeg_read(). */
    const size_t stride = fm_mem_round_up(3 * (size_t)in.row_px + FM_ROW_SLACK);
    status = reserve(&renderer->block, BLOCK_ROWS * stride + FM_MEM_ALIGN, error);
    if (status) return status;
    uint8_t *rows[BLOCK_ROWS];
    for (int i = 0; i < BLOCK_ROWS; i++) rows[i] = renderer->block.memory + 16 + i * stride;
    for (int32_t y = 0; y < box.height;) {
        const int32_t n = read_rows(&in, rows, fm_min_i32(BLOCK_ROWS, box.height - y), error);
        if (n < 0) return n;
        for (int32_t i = 0; i < n; i++, y++) put_row(to, rows[i] + 3 * (size_t)in.skip_px, y);
    }
    return FM_OK;
}

/* Turns the box, and replaces it in *job by a whole image in memory. */
static int turn_box(fm_renderer *renderer, fm_render *job, fm_error *error) {
    const int turn = turn_of(job->orientation);
    const fm_rect box = job->box;
    int status = reserve(&renderer->turned,
                         3 * (size_t)box.width * (size_t)box.height + FM_ROW_SLACK, error);
    if (status) return status;
    fm_render part = *job;
    part.format = FM_PIXEL_RGB;
    const sink to = sink_of(renderer, &part, renderer->turned.memory, turn, box.width, box.height);
    status = decode_box(renderer, &part, &to, error);
    const bool swaps = fm_orientation_swaps(turn);
    job->data = NULL;
    job->pixels = renderer->turned.memory;
    job->pixels_format = FM_PIXEL_RGB;
    job->pixels_width = swaps ? box.height : box.width;
    job->pixels_height = swaps ? box.width : box.height;
    job->box = (fm_rect){0, 0, job->pixels_width, job->pixels_height};
    job->orientation = FM_UPRIGHT;
    return status;
}

/* ---- resize ---------------------------------------------------------------------------------- */

/* The resampler of the job's filter, for a result of the window's size. */
static int resampler(fm_renderer *renderer, const fm_render *job, fm_resample **out,
                     fm_error *error) {
    fm_plan *const plan = &renderer->plans[job->filter];
    *plan = (fm_plan){.channels = 3,
                      .in_channels = 3,
                      .dtype = FM_UINT8,
                      .layout = FM_NHWC,
                      .filter = job->filter,
                      .resize_order = job->resize_order,
                      .out_width = job->window.width,
                      .out_height = job->window.height,
                      .sample_bytes = 3 * (size_t)job->window.width * (size_t)job->window.height};
    *out = renderer->resamples[job->filter];
    if (*out) return FM_OK;
    const int status = fm_resample_open(out, plan, NULL, error);
    renderer->resamples[job->filter] = *out;
    return status;
}

/* Resizes the box to contiguous rows of three bytes per pixel. */
static int resize_box(fm_renderer *renderer, const fm_render *job, uint8_t *out, fm_error *error) {
    const fm_geometry geometry = {
        .source = {job->box.left, job->box.top, job->box.width, job->box.height},
        .resized_width = job->resized_width,
        .resized_height = job->resized_height,
        .resized_columns = {job->resize_box[0], job->resize_box[2]},
        .resized_rows = {job->resize_box[1], job->resize_box[3]},
        .window = {job->window.left, job->window.top, job->window.width, job->window.height},
        .mirror_source = turn_of(job->orientation) == FM_MIRRORED};
    fm_resample *resample;
    fm_box needed;
    rows_in in;
    int status = resampler(renderer, job, &resample, error);
    if (!status) status = fm_resample_begin(resample, &geometry, &needed, error);
    if (!status) status = open_rows(&in, renderer, job, &needed, error);
    if (!status) status = fm_resample_start(resample, in.skip_px, in.row_px, out, error);
    if (status) return status;
    uint8_t *rows[FM_RESAMPLE_ROWS];
    for (int32_t n; (n = fm_resample_rows(resample, rows, FM_RESAMPLE_ROWS)) > 0;) {
        n = read_rows(&in, rows, n, error);
        if (n < 0) return n;
        fm_resample_push(resample, n);
    }
    return FM_OK;
}

static int run_resized(fm_renderer *renderer, const fm_render *job, uint8_t *out, fm_error *error) {
    fm_render part = *job;
    const int turn = turn_of(job->orientation), window_turn = turn_of(job->window_orientation);
    int status = FM_OK;
    if (turn != FM_UPRIGHT && turn != FM_MIRRORED) {
        status = turn_box(renderer, &part, error);
        fm_decoder_end(renderer->decoder);
    }
    if (status) return status;
    const int32_t width = job->window.width, height = job->window.height;
    if (window_turn == FM_UPRIGHT && job->format == FM_PIXEL_RGB)
        return resize_box(renderer, &part, out, error);
    const size_t n_bytes = 3 * (size_t)width * (size_t)height;
    status = reserve(&renderer->resized, n_bytes + FM_ROW_SLACK, error);
    if (!status) status = resize_box(renderer, &part, renderer->resized.memory, error);
    if (status) return status;
    const sink to = sink_of(renderer, job, out, window_turn, width, height);
    for (int32_t y = 0; y < height; y++)
        put_row(&to, renderer->resized.memory + (size_t)y * 3 * (size_t)width, y);
    return FM_OK;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool is_within(const fm_rect *part, int32_t width, int32_t height) {
    const fm_box box = {part->left, part->top, part->width, part->height};
    const fm_image_info whole = {.width = width, .height = height};
    return fm_box_is_within(&box, &whole);
}

/* Whether the part that is resized is all of the box, or within it. */
static bool is_resize_box(const fm_render *job) {
    const float *const box = job->resize_box;
    if (box[0] == 0.0f && box[1] == 0.0f && box[2] == 0.0f && box[3] == 0.0f) return true;
    const bool swaps = fm_orientation_swaps(turn_of(job->orientation));
    const float width = (float)(swaps ? job->box.height : job->box.width);
    const float height = (float)(swaps ? job->box.width : job->box.height);
    return job->filter != FM_FILTER_NEAREST && box[0] >= 0.0f && box[0] < box[2] &&
           box[2] <= width && box[1] >= 0.0f && box[1] < box[3] && box[3] <= height;
}

static int check(const fm_render *job, const uint8_t *out, fm_error *error) {
    if (!job || !out) return fm_error_set(error, FM_ERR_ARGUMENT, "job or out is NULL");
    if (job->struct_bytes != sizeof(*job))
        return fm_error_set(error, FM_ERR_ARGUMENT, "job.struct_bytes is %zu, not %zu",
                            job->struct_bytes, sizeof(*job));
    if (!job->data == !job->pixels)
        return fm_error_set(error, FM_ERR_ARGUMENT, "a job needs either data or pixels");
    if (job->pixels && !is_within(&job->box, job->pixels_width, job->pixels_height))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the box is not within the pixels");
    if ((unsigned)job->orientation > FM_ROTATED_LEFT ||
        (unsigned)job->window_orientation > FM_ROTATED_LEFT)
        return fm_error_set(error, FM_ERR_ARGUMENT, "an orientation must be from 0 to 8");
    if ((unsigned)job->format > FM_PIXEL_BGR || (unsigned)job->pixels_format > FM_PIXEL_RGBX)
        return fm_error_set(error, FM_ERR_ARGUMENT, "the pixel format is unknown");
    if (!is_resized(job)) return FM_OK;
    if ((unsigned)job->filter >= N_FILTERS || (unsigned)job->resize_order > FM_RESIZE_TORCH)
        return fm_error_set(error, FM_ERR_ARGUMENT, "the filter or the resize order is unknown");
    if (job->resized_width < 1 || job->resized_width > FM_MAX_SIDE || job->resized_height < 1 ||
        job->resized_height > FM_MAX_SIDE)
        return fm_error_set(error, FM_ERR_ARGUMENT, "resized to %d x %d; sides are 1 to %d",
                            (int)job->resized_width, (int)job->resized_height, FM_MAX_SIDE);
    if (!is_resize_box(job))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the resized part is not within the box, or the filter is nearest");
    if (!is_within(&job->window, job->resized_width, job->resized_height))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the window is not within the resized image");
    return FM_OK;
}

int fm_renderer_run(fm_renderer *renderer, const fm_render *job, uint8_t *out, fm_error *error) {
    fm_error_clear(error);
    if (!renderer) return fm_error_set(error, FM_ERR_ARGUMENT, "renderer is NULL");
    int status = check(job, out, error);
    if (status) return status;
    if (is_resized(job)) {
        status = run_resized(renderer, job, out, error);
    } else {
        const sink to =
            sink_of(renderer, job, out, turn_of(job->orientation), job->box.width, job->box.height);
        status = decode_box(renderer, job, &to, error);
    }
    fm_decoder_end(renderer->decoder);
    if (fm_decoder_is_large(renderer->decoder)) fm_decoder_trim(renderer->decoder);
    release_if_large(&renderer->block);
    release_if_large(&renderer->turned);
    release_if_large(&renderer->resized);
    return status;
}

int fm_renderer_header(fm_renderer *renderer, const void *data, size_t data_bytes,
                       fm_image_header *header, fm_error *error) {
    fm_error_clear(error);
    if (!renderer || !data || !header)
        return fm_error_set(error, FM_ERR_ARGUMENT, "renderer, data or header is NULL");
    fm_image_info info;
    int status = fm_decoder_begin(renderer->decoder, data, data_bytes, &info, error);
    if (!status && !info.progressive) {
        /* Tables that can't be used are found when decoding starts. A progressive image would be
         * decoded as a whole. */
        const fm_box first = {0, 0, 1, 1};
        int32_t skip_px, row_px;
        status = fm_decoder_start(renderer->decoder, &first, &skip_px, &row_px, error);
    }
    fm_decoder_end(renderer->decoder);
    if (status) return status;
    *header = (fm_image_header){.format = fm_decoder_format(renderer->decoder),
                                .width = info.width,
                                .height = info.height,
                                .n_components = info.n_components,
                                .progressive = info.progressive,
                                .n_bytes = info.n_bytes};
    return FM_OK;
}
