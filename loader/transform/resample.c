#define _GNU_SOURCE
#include "transform/resample.h"

#include "base/number.h"
#include "transform/float_pixels.h"
#include "transform/float_resize.h"
#include "transform/kernels.h"
#include "transform/passes.h"
#include "transform/row_set.h"
#include "transform/store.h"

/* Scratch memory is allocated at open for images of this side, at most RESERVE_BYTES. */
#define RESERVE_PX 4096
#define RESERVE_BYTES ((size_t)1 << 20)

struct fm_resample {
    const fm_plan *plan;
    fm_mem_counter *counter;
    fm_kernels kernels;
    fm_float_kernels float_kernels; /* if the plan resizes floats */
    fm_store store;
    fm_passes column_passes, row_passes;

    /* Set by begin. */
    fm_filter filter;
    const fm_coeffs *columns, *rows; /* if the pass is needed */
    bool resize_columns, resize_rows;
    bool vertical_first;       /* if both passes are needed */
    bool floats;               /* the passes resize floats */
    bool mirror_in;            /* if so: decoded rows are mirrored */
    bool mirror;               /* rows are mirrored before the store */
    fm_box visible;            /* the part of the output that shows the image */
    int32_t n_rows, row_width; /* needed rows and pixels of each */

    /* Set by start. */
    uint8_t *out;
    size_t skip_bytes;
    int32_t n_received, n_stored; /* needed rows received, visible output rows stored */

    fm_row_set blocks;  /* decoded rows, if the horizontal pass is first */
    fm_row_set ring;    /* input of the vertical pass: decoded or horizontally resized rows */
    fm_row_set between; /* output of the vertical pass */
    fm_row_set last; /* rows after the horizontal pass, if it is second; mirrored or rounded rows */
    fm_row_set line; /* a decoded row as floats */
    const uint8_t *gathered[FM_RESAMPLE_ROWS]; /* FM_FILTER_NEAREST: rows of the ring, as output */
};

/* ---- begin ----------------------------------------------------------------------------------- */

/* The range of a window that is within `size` pixels. */
static void clip_window(int32_t start, int32_t length, int32_t size, int32_t *first, int32_t *n) {
    *first = fm_max_i32(start, 0);
    *n = fm_max_i32(fm_min_i32(start + length, size) - *first, 0);
}

/* Whether the pass changes anything: it resizes `size` pixels, or takes only the part `span` of
 * them (fm_pass_key). */
static bool is_scaled(int32_t size, const float span[2], int32_t out_size) {
    const bool is_part = span[0] > 0.0f || (span[1] > 0.0f && span[1] != (float)size);
    return out_size != size || is_part;
}

/* Whether torch resizes a float32 image of the source's size, which it does by both passes. */
static bool resizes_floats(const fm_resample *resample, const fm_geometry *geometry) {
    return resample->plan->resizes_floats &&
           (is_scaled(geometry->source.width, geometry->resized_columns, geometry->resized_width) ||
            is_scaled(geometry->source.height, geometry->resized_rows, geometry->resized_height));
}

static bool has_short_weights(const fm_resample *resample) {
    return resample->plan->resize_order == FM_RESIZE_TORCH;
}

/* Sets up the horizontal pass, and the needed columns, relative to the stored source's left edge.
 */
static int begin_columns(fm_resample *resample, const fm_geometry *geometry, int32_t first,
                         int32_t n, int32_t *left, int32_t *width, fm_error *error) {
    const int32_t in_size = geometry->source.width;
    resample->resize_columns =
        resample->floats || is_scaled(in_size, geometry->resized_columns, geometry->resized_width);
    if (!resample->resize_columns) {
        *left = geometry->mirror_source ? in_size - first - n : first;
        *width = n;
        resample->mirror = geometry->flip != geometry->mirror_source;
        return FM_OK;
    }
    const fm_pass_key key = {.filter = resample->filter,
                             .in_size = in_size,
                             .out_size = geometry->resized_width,
                             .first = first,
                             .n = n,
                             .span = {geometry->resized_columns[0], geometry->resized_columns[1]},
                             .short_weights = has_short_weights(resample),
                             .floats = resample->floats,
                             .mirror_input = geometry->mirror_source,
                             .mirror_output = geometry->flip};
    const fm_pass *pass;
    const int status = fm_passes_get(&resample->column_passes, &key, &pass, error);
    if (status) return status;
    resample->columns = &pass->coeffs;
    resample->mirror = resample->floats && geometry->flip;
    resample->mirror_in = geometry->mirror_source;
    *left = pass->begin;
    *width = pass->length;
    return FM_OK;
}

/* Sets up the vertical pass, and the needed rows, relative to the source's top. */
static int begin_rows(fm_resample *resample, const fm_geometry *geometry, int32_t first, int32_t n,
                      int32_t *top, int32_t *height, fm_error *error) {
    const int32_t in_size = geometry->source.height;
    resample->resize_rows =
        resample->floats || is_scaled(in_size, geometry->resized_rows, geometry->resized_height);
    if (!resample->resize_rows) {
        *top = first;
        *height = n;
        return FM_OK;
    }
    const fm_pass_key key = {.filter = resample->filter,
                             .in_size = in_size,
                             .out_size = geometry->resized_height,
                             .first = first,
                             .n = n,
                             .span = {geometry->resized_rows[0], geometry->resized_rows[1]},
                             .short_weights = has_short_weights(resample),
                             .floats = resample->floats};
    const fm_pass *pass;
    const int status = fm_passes_get(&resample->row_passes, &key, &pass, error);
    if (status) return status;
    resample->rows = &pass->coeffs;
    *top = pass->begin;
    *height = pass->length;
    return FM_OK;
}

/*
 * Whether the vertical pass runs first, by Pillow's rules; never in torch. They depend on the size
 * of the cropped image, as torchvision crops before it resizes. With FM_FILTER_NEAREST the order
 * does not change the result, and the faster one is used.
 */
static bool rows_first(const fm_resample *resample, const fm_geometry *geometry) {
    const fm_resize_order order = resample->plan->resize_order;
    const int64_t width = geometry->source.width, height = geometry->source.height;
    const int64_t fewer_rows = height - geometry->resized_height;
    const int64_t fewer_columns = width - geometry->resized_width;
    if (fewer_rows <= 0) return false;
    if (resample->filter == FM_FILTER_NEAREST) return true;
    if (order == FM_RESIZE_PILLOW_13) return fewer_rows > 2 * fewer_columns;
    return order == FM_RESIZE_PILLOW_12_2 && height > 100 * width;
}

int fm_resample_begin(fm_resample *resample, const fm_geometry *geometry, fm_box *needed,
                      fm_error *error) {
    const fm_plan *const plan = resample->plan;
    const fm_box window = geometry->window;
    *needed = (fm_box){0};
    resample->n_rows = resample->row_width = 0;
    resample->visible = (fm_box){0};
    resample->out = NULL;
    resample->filter = geometry->second_filter ? plan->second_filter : plan->filter;
    if (window.width != plan->out_width || window.height != plan->out_height)
        return fm_error_set(
            error, FM_ERR_ARGUMENT, "window of %d x %d pixels; the plan's result has %d x %d",
            (int)window.width, (int)window.height, (int)plan->out_width, (int)plan->out_height);

    int32_t first_column, n_columns, first_row, n_rows; /* of the resized source */
    clip_window(window.left, window.width, geometry->resized_width, &first_column, &n_columns);
    clip_window(window.top, window.height, geometry->resized_height, &first_row, &n_rows);
    if (n_columns == 0 || n_rows == 0) return FM_OK;

    resample->floats = resizes_floats(resample, geometry);
    fm_box part; /* of the source */
    int status =
        begin_columns(resample, geometry, first_column, n_columns, &part.left, &part.width, error);
    if (!status)
        status = begin_rows(resample, geometry, first_row, n_rows, &part.top, &part.height, error);
    if (status) return status;
    resample->vertical_first = resample->resize_columns && resample->resize_rows &&
                               !resample->floats && rows_first(resample, geometry);
    const int32_t left = first_column - window.left;
    resample->visible = (fm_box){.left = geometry->flip ? window.width - left - n_columns : left,
                                 .top = first_row - window.top,
                                 .width = n_columns,
                                 .height = n_rows};
    resample->n_rows = part.height;
    resample->row_width = part.width;
    *needed = part;
    needed->left += geometry->source.left;
    needed->top += geometry->source.top;
    return FM_OK;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Whether the horizontal pass runs first. */
static bool columns_first(const fm_resample *resample) {
    return resample->resize_columns && !resample->vertical_first;
}

static int prepare_scratch(fm_resample *resample, int32_t row_px, fm_error *error) {
    fm_mem_counter *const counter = resample->counter;
    const size_t in_bytes = 3 * (size_t)row_px;
    const size_t part_bytes = 3 * (size_t)resample->row_width;
    const size_t px_bytes = resample->floats ? 4 * sizeof(float) : 3; /* after the first pass */
    const size_t out_bytes = px_bytes * (size_t)resample->visible.width;
    const int32_t n_taps = resample->resize_rows ? resample->rows->max_taps : 1;
    /* The rows that an incomplete output needs, and a block that is being filled. */
    const int32_t n_ring = n_taps + FM_RESAMPLE_ROWS;
    int status;
    if (columns_first(resample)) {
        status = fm_row_set_prepare(&resample->blocks, FM_RESAMPLE_ROWS, in_bytes,
                                    resample->skip_bytes, counter, error);
        if (!status)
            status = fm_row_set_prepare(&resample->ring, n_ring, out_bytes, 0, counter, error);
    } else {
        status = fm_row_set_prepare(&resample->ring, n_ring, in_bytes, resample->skip_bytes,
                                    counter, error);
    }
    const size_t between_bytes = resample->vertical_first ? part_bytes : out_bytes;
    if (!status && resample->resize_rows)
        status = fm_row_set_prepare(&resample->between, FM_RESAMPLE_ROWS, between_bytes, 0, counter,
                                    error);
    if (!status && resample->floats)
        status = fm_row_set_prepare(
            &resample->line, 1, 4 * sizeof(float) * (size_t)resample->row_width, 0, counter, error);
    if (!status && (resample->vertical_first || resample->mirror || resample->floats))
        status =
            fm_row_set_prepare(&resample->last, FM_RESAMPLE_ROWS, out_bytes, 0, counter, error);
    return status;
}

/* Stores n pixels to the output at a row and column. */
static void store(const fm_resample *resample, const uint8_t *px, size_t row, size_t column,
                  size_t n) {
    const size_t offset = row * (size_t)resample->plan->out_width + column;
    resample->store.row(&resample->store, resample->out + offset * resample->store.px_bytes, px,
                        (int32_t)n);
}

/* Black pixels are stored in pieces of this many. */
#define BLACK_PX 256

static void store_black(const fm_resample *resample, size_t row, size_t column, size_t n) {
    static const uint8_t black[3 * BLACK_PX + FM_ROW_SLACK];
    for (size_t i = 0; i < n; i += BLACK_PX)
        store(resample, black, row, column + i, n - i < BLACK_PX ? n - i : BLACK_PX);
}

/* Fills the output around the image with black. */
static void store_padding(const fm_resample *resample) {
    const fm_box visible = resample->visible;
    const size_t width = (size_t)resample->plan->out_width;
    const size_t height = (size_t)resample->plan->out_height;
    const size_t left = (size_t)visible.left, top = (size_t)visible.top;
    const size_t right = left + (size_t)visible.width, bottom = top + (size_t)visible.height;
    for (size_t row = 0; row < height; row++) {
        if (row < top || row >= bottom) {
            store_black(resample, row, 0, width);
        } else {
            store_black(resample, row, 0, left);
            store_black(resample, row, right, width - right);
        }
    }
}

int fm_resample_start(fm_resample *resample, int32_t skip_px, int32_t row_px, void *out,
                      fm_error *error) {
    resample->n_received = resample->n_stored = 0;
    resample->out = out;
    if (resample->n_rows > 0) {
        if (skip_px < 0 || row_px < skip_px || row_px - skip_px < resample->row_width)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "rows of %d pixels, %d of them to skip, are narrower than the %d "
                                "pixels needed",
                                (int)row_px, (int)skip_px, (int)resample->row_width);
        resample->skip_bytes = 3 * (size_t)skip_px;
        const int status = prepare_scratch(resample, row_px, error);
        if (status) return status;
    }
    store_padding(resample);
    fm_store_drain(&resample->store);
    return FM_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

int32_t fm_resample_rows(fm_resample *resample, uint8_t **rows, int32_t max_rows) {
    int32_t n = fm_min_i32(resample->n_rows - resample->n_received, FM_RESAMPLE_ROWS);
    n = fm_min_i32(n, max_rows);
    if (n == 0) return 0;
    uint8_t *const *const pointers = columns_first(resample)
                                         ? fm_row_set_rows(&resample->blocks, 0)
                                         : fm_row_set_rows(&resample->ring, resample->n_received);
    for (int32_t i = 0; i < n; i++) rows[i] = pointers[i] - resample->skip_bytes;
    return n;
}

/* How many outputs, at most FM_RESAMPLE_ROWS, the received rows complete. */
static int32_t count_complete(const fm_resample *resample) {
    const int32_t limit =
        fm_min_i32(resample->visible.height - resample->n_stored, FM_RESAMPLE_ROWS);
    if (!resample->resize_rows) return fm_min_i32(limit, resample->n_received - resample->n_stored);
    const int32_t *const first = resample->rows->first + resample->n_stored;
    const int32_t *const n_taps = resample->rows->n_taps + resample->n_stored;
    int32_t n = 0;
    while (n < limit && first[n] + n_taps[n] <= resample->n_received) n++;
    return n;
}

/* A row as floats; rows begin at multiples of 16 bytes. */
static float *floats_of(uint8_t *row) { return (float *)(void *)row; }
static const float *const *read_floats_of(const uint8_t *const *rows) {
    return (const float *const *)(const void *)rows;
}

/* Resizes n rows of bytes to rows of floats of the output's width. */
static void float_columns(const fm_resample *resample, uint8_t *const *out,
                          const uint8_t *const *in, int32_t n) {
    float *const line = floats_of(resample->line.pointers[0]);
    for (int32_t i = 0; i < n; i++) {
        fm_float_pixels(line, in[i], resample->row_width, resample->plan, resample->mirror_in);
        resample->float_kernels.columns(floats_of(out[i]), line, resample->columns,
                                        resample->plan->run_taps);
    }
}

/* The rest for the next n outputs: the vertical pass, rounding or conversion, and the store. */
static void finish_floats(fm_resample *resample, int32_t n) {
    const fm_plan *const plan = resample->plan;
    const fm_coeffs *const coeffs = resample->rows;
    const int32_t width = resample->visible.width;
    uint8_t *const row = resample->last.pointers[0], *const mirrored = resample->last.pointers[1];
    float *const floats = floats_of(resample->between.pointers[0]);
    for (int32_t i = 0; i < n; i++) {
        const int32_t output = resample->n_stored + i;
        const size_t y = (size_t)(resample->visible.top + output);
        const size_t x = (size_t)resample->visible.left;
        const uint8_t *const *const taps = fm_row_set_read(&resample->ring, coeffs->first[output]);
        resample->float_kernels.rows(floats, read_floats_of(taps), coeffs, output, plan->run_taps,
                                     4 * (size_t)width);
        if (plan->keeps_floats) {
            fm_float_store(plan, floats_of(resample->out), y, x, floats, width, resample->mirror);
            continue;
        }
        fm_float_round(row, floats, width);
        if (resample->mirror) resample->kernels.mirror(mirrored, row, width);
        store(resample, resample->mirror ? mirrored : row, y, x, (size_t)width);
    }
}

/* Resizes n rows to the output's width. */
static void horizontal_pass(const fm_resample *resample, uint8_t *const *out,
                            const uint8_t *const *in, int32_t n) {
    const fm_kernels *const kernels = &resample->kernels;
    const fm_coeffs *const columns = resample->columns;
    if (resample->floats) {
        float_columns(resample, out, in, n);
        return;
    }
    if (resample->filter != FM_FILTER_NEAREST) {
        kernels->horizontal(out, in, n, columns);
        return;
    }
    for (int32_t i = 0; i < n; i++) kernels->gather(out[i], in[i], columns->first, columns->n);
}

/* The vertical pass of FM_FILTER_NEAREST, which copies no rows. */
static const uint8_t *const *gather_rows(fm_resample *resample, int32_t n) {
    const int32_t *const first = resample->rows->first + resample->n_stored;
    for (int32_t i = 0; i < n; i++)
        resample->gathered[i] = *fm_row_set_read(&resample->ring, first[i]);
    return resample->gathered;
}

/* Runs the vertical pass for the next n outputs. Returns their rows. */
static const uint8_t *const *vertical_pass(fm_resample *resample, int32_t n) {
    if (!resample->resize_rows) return fm_row_set_read(&resample->ring, resample->n_stored);
    if (resample->filter == FM_FILTER_NEAREST) return gather_rows(resample, n);
    const fm_coeffs *const coeffs = resample->rows;
    const int32_t width = resample->vertical_first || !resample->resize_columns
                              ? resample->row_width
                              : resample->visible.width;
    for (int32_t i = 0; i < n; i++) {
        const int32_t output = resample->n_stored + i;
        resample->kernels.vertical(resample->between.pointers[i],
                                   fm_row_set_read(&resample->ring, coeffs->first[output]), coeffs,
                                   output, 3 * (size_t)width);
    }
    return fm_row_set_read(&resample->between, 0);
}

void fm_resample_push(fm_resample *resample, int32_t n_rows) {
    const fm_kernels *const kernels = &resample->kernels;
    if (columns_first(resample))
        horizontal_pass(resample, fm_row_set_rows(&resample->ring, resample->n_received),
                        fm_row_set_read(&resample->blocks, 0), n_rows);
    resample->n_received += n_rows;
    for (int32_t n; (n = count_complete(resample)) > 0; resample->n_stored += n) {
        if (resample->floats) {
            finish_floats(resample, n);
            continue;
        }
        const uint8_t *const *rows = vertical_pass(resample, n);
        if (resample->vertical_first) {
            horizontal_pass(resample, resample->last.pointers, rows, n);
            rows = fm_row_set_read(&resample->last, 0);
        }
        for (int32_t i = 0; i < n; i++) {
            const uint8_t *row = rows[i];
            if (resample->mirror) {
                kernels->mirror(resample->last.pointers[0], row, resample->visible.width);
                row = resample->last.pointers[0];
            }
            store(resample, row, (size_t)(resample->visible.top + resample->n_stored + i),
                  (size_t)resample->visible.left, (size_t)resample->visible.width);
        }
    }
    fm_store_drain(&resample->store);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Whether each sample is resized from another size. */
static bool has_random_sizes(const fm_plan *plan) {
    for (size_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == FM_OP_RANDOM_RESIZED_CROP) return true;
    return false;
}

/*
 * Allocates scratch memory for images of up to RESERVE_PX per side, or less if it would exceed
 * RESERVE_BYTES, so that usual samples never allocate.
 */
static int reserve(fm_resample *resample, fm_error *error) {
    const fm_plan *const plan = resample->plan;
    fm_mem_counter *const counter = resample->counter;
    const int32_t n_kept = has_random_sizes(plan) ? 1 : FM_PASSES_KEPT;
    const fm_filter widest = fm_coeffs_wider(plan->filter, plan->second_filter);
    int status =
        fm_passes_init(&resample->column_passes, widest, true, resample->kernels.prepare_columns,
                       n_kept, RESERVE_PX, plan->out_width, counter, error);
    if (!status)
        status =
            fm_passes_init(&resample->row_passes, widest, false, resample->kernels.prepare_rows,
                           n_kept, RESERVE_PX, plan->out_height, counter, error);
    const int32_t n_ring = resample->row_passes.kept[0].coeffs.stride + FM_RESAMPLE_ROWS;
    size_t row_bytes = 3 * (size_t)fm_max_i32(RESERVE_PX, plan->out_width);
    while ((size_t)n_ring * row_bytes > RESERVE_BYTES) row_bytes /= 2;
    if (!status) status = fm_row_set_prepare(&resample->ring, n_ring, row_bytes, 0, counter, error);
    fm_row_set *const sets[] = {&resample->blocks, &resample->between, &resample->last};
    for (int i = 0; !status && i < 3; i++)
        status = fm_row_set_prepare(sets[i], FM_RESAMPLE_ROWS, row_bytes, 0, counter, error);
    return status;
}

int fm_resample_open(fm_resample **out, const fm_plan *plan, fm_mem_counter *counter,
                     fm_error *error) {
    fm_cpu_tier tier;
    *out = NULL;
    int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    fm_resample *const resample = fm_mem_zalloc(counter, 1, sizeof(*resample));
    *out = resample;
    if (!resample) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a resampler");
    resample->plan = plan;
    resample->counter = counter;
    fm_kernels_init(&resample->kernels, tier);
    fm_float_kernels_init(&resample->float_kernels, tier);
    fm_store_init(&resample->store, plan, tier);
    status = reserve(resample, error);
    if (status) fm_resample_close(out);
    return status;
}

fm_cpu_tier fm_resample_tier(const fm_resample *resample) { return resample->kernels.tier; }

void fm_resample_close(fm_resample **resample) {
    if (!resample || !*resample) return;
    fm_passes_fini(&(*resample)->column_passes);
    fm_passes_fini(&(*resample)->row_passes);
    fm_row_set_free(&(*resample)->blocks);
    fm_row_set_free(&(*resample)->ring);
    fm_row_set_free(&(*resample)->between);
    fm_row_set_free(&(*resample)->last);
    fm_row_set_free(&(*resample)->line);
    fm_mem_free(*resample);
    *resample = NULL;
}
