#define _GNU_SOURCE
#include "decode/jpeg_rows.h"

#include <assert.h>
#include <string.h>

#include "decode/jpeg_intervals.h"

/* MCUs whose coefficients are read at a time. The samples of an even number of blocks are computed
 * faster. */
#define BATCH 8
#define NO_MCU UINT32_MAX
/* Bytes before a row of samples, for the sample that repeats the first one. */
#define PAD FM_MEM_ALIGN

enum upsampling {
    NONE,   /* as many samples as pixels */
    REPEAT, /* each sample is repeated */
    FANCY_H,
    FANCY_V,
    FANCY_BOTH
};

/* A component's part of the plan. Columns and rows are those of the component's samples in the
 * whole image; `end` is the one after the last. */
typedef struct plane {
    int32_t h, v;               /* blocks in an MCU */
    int32_t width, height;      /* samples in the image */
    int32_t h_pixels, v_pixels; /* pixels per sample */
    enum upsampling upsampling;
    int32_t column;                  /* of the first sample of samples[] */
    int32_t first_column, n_columns; /* that the box needs, without neighbors */
    int32_t first_block, end_block;  /* columns of blocks that the box needs, with neighbors */
    int32_t top_block, bottom_block; /* the same for rows, from the top to the one after the last */
    int32_t n_rows;                  /* rows of samples that are kept */
    size_t stride;
    uint8_t *samples, *upsampled;
    fm_jpeg_quant quant;
} plane;

struct fm_jpeg_rows {
    fm_jpeg_kernels kernels;
    fm_jpeg_intervals *intervals;
    fm_jpeg_rows_source source;
    int32_t n_planes, n_blocks; /* blocks of an MCU */
    plane planes[FM_JPEG_ROWS_MAX_COMPONENTS];
    int32_t left, width, skip_px; /* of the rows; the box begins skip_px pixels to the right */
    int32_t next_row;             /* of pixels */
    int32_t n_mcus, first_mcu, end_mcu; /* of a row of MCUs: all, and those that the box needs */
    int32_t n_mcu_rows;                 /* of the image */
    int32_t first_mcu_row, next_mcu_row, end_mcu_row; /* end: after the last one that is needed */
    uint32_t mcu;         /* the next one of the Huffman decoder, in the whole image */
    uint32_t n_pending;   /* MCUs before that one that it has not skipped yet */
    fm_jpeg_seek *seek;   /* NULL: not used */
    uint32_t end_mcu_due; /* the MCU that begins where the next seek point will be */
    bool uses_intervals;  /* restart intervals, or those of `seek`, are read several at once */
    int32_t first_read_row, end_read_row; /* rows of MCUs that `intervals` has read */
    _Alignas(FM_MEM_ALIGN) int16_t coefficients[BATCH * FM_HUFFMAN_MAX_BLOCKS * 64];
};

/* ---- plan ------------------------------------------------------------------------------------ */

static int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }
static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

static bool is_fancy_h(const plane *p) {
    return p->upsampling == FANCY_H || p->upsampling == FANCY_BOTH;
}

static bool is_fancy_v(const plane *p) {
    return p->upsampling == FANCY_V || p->upsampling == FANCY_BOTH;
}

/* As jinit_upsampler() in libjpeg-turbo's jdsample.c. */
static enum upsampling choose_upsampling(const plane *p) {
    if (p->h_pixels == 1 && p->v_pixels == 1) return NONE;
    if (p->h_pixels == 1 && p->v_pixels == 2) return FANCY_V;
    if (p->h_pixels == 2 && p->v_pixels == 1 && p->width > 2) return FANCY_H;
    if (p->h_pixels == 2 && p->v_pixels == 2 && p->width > 2) return FANCY_BOTH;
    return REPEAT;
}

/* The rows of samples that a row of pixels depends on. `far` is `near` without fancy upsampling. */
static void sample_rows(const plane *p, int32_t row, int32_t *near, int32_t *far) {
    *near = *far = row / p->v_pixels;
    if (!is_fancy_v(p)) return;
    *far = row % 2 ? least(*near + 1, p->height - 1) : most(*near - 1, 0);
}

static bool plan_components(fm_jpeg_rows *rows, const fm_jpeg_frame *frame, int32_t *max_h,
                            int32_t *max_v) {
    *max_h = *max_v = 1;
    rows->n_planes = frame->n_components;
    if (frame->n_components != 1 && frame->n_components != 3) return false;
    rows->n_blocks = 0;
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const fm_jpeg_component *const given = &frame->components[c];
        plane *const p = &rows->planes[c];
        /* In a scan of a single component an MCU is one block. */
        p->h = rows->n_planes == 1 ? 1 : given->h;
        p->v = rows->n_planes == 1 ? 1 : given->v;
        if (p->h < 1 || p->h > 4 || p->v < 1 || p->v > 4) return false;
        *max_h = most(*max_h, p->h);
        *max_v = most(*max_v, p->v);
        rows->n_blocks += p->h * p->v;
        for (int i = 0; i < 64; i++)
            if (given->steps[i] > FM_JPEG_MAX_STEP) return false;
        fm_jpeg_quant_set(&p->quant, given->steps);
    }
    if (rows->n_blocks > FM_HUFFMAN_MAX_BLOCKS) return false;
    for (int32_t c = 0; c < rows->n_planes; c++) {
        plane *const p = &rows->planes[c];
        if (*max_h % p->h || *max_v % p->v) return false;
        p->h_pixels = *max_h / p->h;
        p->v_pixels = *max_v / p->v;
        p->width = ceil_div(frame->width, p->h_pixels);
        p->height = ceil_div(frame->height, p->v_pixels);
        p->upsampling = choose_upsampling(p);
    }
    return true;
}

/* Finds the samples and blocks of a component that the box needs. */
static void plan_plane(const fm_jpeg_rows *rows, plane *p, const fm_box *box) {
    const int32_t end = ceil_div(rows->left + rows->width, p->h_pixels);
    p->first_column = rows->left / p->h_pixels;
    p->n_columns = end - p->first_column;
    const int32_t border = is_fancy_h(p);
    p->first_block = most(p->first_column - border, 0) / 8;
    p->end_block = ceil_div(least(end + border, p->width), 8);
    int32_t near, far;
    sample_rows(p, box->top, &near, &far);
    p->top_block = least(near, far) / 8;
    sample_rows(p, box->top + box->height - 1, &near, &far);
    p->bottom_block = most(near, far) / 8 + 1;
}

/* Finds the MCUs that the box needs. */
static void plan_mcus(fm_jpeg_rows *rows) {
    rows->first_mcu = rows->first_mcu_row = INT32_MAX;
    rows->end_mcu = rows->end_mcu_row = 0;
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const plane *const p = &rows->planes[c];
        rows->first_mcu = least(rows->first_mcu, p->first_block / p->h);
        rows->end_mcu = most(rows->end_mcu, ceil_div(p->end_block, p->h));
        rows->first_mcu_row = least(rows->first_mcu_row, p->top_block / p->v);
        rows->end_mcu_row = most(rows->end_mcu_row, ceil_div(p->bottom_block, p->v));
    }
}

/* Sets the place of a plane's samples at `at` bytes of the memory. Returns the place after them. */
static size_t place_samples(const fm_jpeg_rows *rows, plane *p, bool keeps_two, uint8_t *memory,
                            size_t at) {
    const size_t n_bytes = 8 * (size_t)p->h * (size_t)(rows->end_mcu - rows->first_mcu);
    p->column = 8 * p->h * rows->first_mcu;
    p->n_rows = 8 * p->v * (keeps_two ? 2 : 1);
    p->stride = fm_mem_round_up(n_bytes + PAD);
    const size_t upsampled_at = at + PAD + (size_t)p->n_rows * p->stride + PAD;
    const size_t n_upsampled = (size_t)p->n_columns * (size_t)p->h_pixels + FM_JPEG_SLACK;
    if (memory) {
        p->samples = memory + at + PAD;
        p->upsampled = memory + upsampled_at;
    }
    if (p->upsampling == NONE) return upsampled_at;
    return upsampled_at + fm_mem_round_up(n_upsampled) + FM_MEM_ALIGN;
}

/* Sets the places in the memory, unless that is NULL. Returns the bytes that are needed. */
static size_t place_planes(fm_jpeg_rows *rows, uint8_t *memory) {
    bool keeps_two = false; /* rows of MCUs */
    for (int32_t c = 0; c < rows->n_planes; c++)
        keeps_two = keeps_two || is_fancy_v(&rows->planes[c]);
    size_t at = 0;
    for (int32_t c = 0; c < rows->n_planes; c++)
        at = place_samples(rows, &rows->planes[c], keeps_two, memory, at);
    return at;
}

bool fm_jpeg_rows_plan(fm_jpeg_rows *rows, const fm_jpeg_frame *frame, const fm_box *box,
                       size_t *n_bytes) {
    int32_t max_h, max_v;
    if (!plan_components(rows, frame, &max_h, &max_v)) return false;
    rows->n_mcus = ceil_div(frame->width, 8 * max_h);
    rows->n_mcu_rows = ceil_div(frame->height, 8 * max_v);
    rows->left = box->left - box->left % max_h; /* where a sample of each component begins */
    rows->skip_px = box->left - rows->left;
    rows->width = box->width + rows->skip_px;
    rows->next_row = box->top;
    for (int32_t c = 0; c < rows->n_planes; c++) plan_plane(rows, &rows->planes[c], box);
    plan_mcus(rows);
    *n_bytes = place_planes(rows, NULL);
    return true;
}

void fm_jpeg_rows_layout(const fm_jpeg_rows *rows, int32_t *skip_px, int32_t *row_px) {
    *skip_px = rows->skip_px;
    *row_px = rows->width;
}

/* ---- samples --------------------------------------------------------------------------------- */

static uint8_t *samples_at(const plane *p, int32_t row, int32_t column) {
    return p->samples + (size_t)(row % p->n_rows) * p->stride + (column - p->column);
}

static uint32_t first_mcu_of_interval(const fm_jpeg_rows *rows, uint32_t interval) {
    return fm_jpeg_seek_mcu(rows->seek, interval, (uint32_t)rows->n_mcus);
}

/* Adds a seek point where the Huffman decoder is. */
static void add_seek_point(fm_jpeg_rows *rows) {
    fm_huffman_point point;
    fm_huffman_tell_mcu(rows->source.huffman, &point);
    rows->end_mcu_due = fm_jpeg_seek_add(rows->seek, &point)
                            ? first_mcu_of_interval(rows, rows->seek->head.n + 1)
                            : NO_MCU;
}

static void pass_mcu(fm_jpeg_rows *rows) {
    if (++rows->mcu == rows->end_mcu_due) add_seek_point(rows);
}

/* Goes to an MCU, as far as possible by a seek point. */
static bool skip_to(fm_jpeg_rows *rows, uint32_t mcu) {
    fm_huffman *const huffman = rows->source.huffman;
    if (rows->source.skips_intervals) {
        rows->n_pending += mcu - rows->mcu;
        rows->mcu = mcu;
        return true;
    }
    if (rows->seek) {
        const uint32_t interval = fm_jpeg_seek_last(rows->seek, mcu, (uint32_t)rows->n_mcus);
        const uint32_t first = first_mcu_of_interval(rows, interval);
        if (first > rows->mcu) {
            fm_huffman_point point;
            fm_jpeg_seek_get(rows->seek, interval, &point);
            fm_huffman_seek_mcu(huffman, &point);
            rows->mcu = first;
        }
    }
    while (rows->mcu < mcu) {
        if (!fm_huffman_skip(huffman)) return false;
        pass_mcu(rows);
    }
    return true;
}

static uint32_t first_mcu_of_row(const fm_jpeg_rows *rows, int32_t row) {
    return (uint32_t)row * (uint32_t)rows->n_mcus;
}

/* Reads the coefficients of n MCUs. Each row of blocks of a component lies in one piece: the blocks
 * of all n MCUs side by side. */
static bool read_batch(fm_jpeg_rows *rows, int32_t n) {
    int16_t *blocks[FM_HUFFMAN_MAX_BLOCKS];
    int32_t n_after[FM_HUFFMAN_MAX_BLOCKS]; /* from an MCU's block to the next one's, in blocks */
    int16_t *next = rows->coefficients;
    int32_t i = 0;
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const plane *const p = &rows->planes[c];
        for (int32_t v = 0; v < p->v; v++, next += 64 * BATCH * p->h)
            for (int32_t h = 0; h < p->h; h++, i++) {
                blocks[i] = next + 64 * (ptrdiff_t)h;
                n_after[i] = p->h;
            }
    }
    memset(rows->coefficients, 0, (size_t)(next - rows->coefficients) * sizeof(*next));
    if (rows->n_pending && !fm_huffman_skip_intervals(rows->source.huffman, rows->n_pending))
        return false;
    rows->n_pending = 0;
    for (; n > 0; n--) {
        if (!fm_huffman_read(rows->source.huffman, blocks)) return false;
        pass_mcu(rows);
        for (i = 0; i < rows->n_blocks; i++) blocks[i] += 64 * (ptrdiff_t)n_after[i];
    }
    return true;
}

/*
 * Computes the samples of n MCUs from `mcu` on. Each row of blocks of a component begins n_apart
 * MCUs' blocks after the one before it. false if a block is out of range.
 */
static bool compute_batch(fm_jpeg_rows *rows, const int16_t *blocks, int32_t n_apart, int32_t mcu,
                          int32_t n) {
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const plane *const p = &rows->planes[c];
        const int32_t first = most(mcu * p->h, p->first_block);
        const int32_t end = least((mcu + n) * p->h, p->end_block);
        for (int32_t v = 0; v < p->v; v++, blocks += 64 * n_apart * p->h) {
            const int32_t row = rows->next_mcu_row * p->v + v;
            if (row < p->top_block || row >= p->bottom_block || first >= end) continue;
            if (!rows->kernels.idct(samples_at(p, 8 * row, 8 * first), p->stride,
                                    blocks + 64 * (ptrdiff_t)(first - mcu * p->h), &p->quant,
                                    end - first))
                return false;
        }
    }
    return true;
}

/* Whether n blocks have a coefficient that is too small for the kernels. */
static bool has_smallest(const int16_t *blocks, int32_t n) {
    int is_smallest = 0;
    for (size_t i = 0; i < 64 * (size_t)n; i++) is_smallest |= blocks[i] == INT16_MIN;
    return is_smallest;
}

/* Computes the samples of a row of MCUs whose coefficients the caller has. */
static bool compute_given(fm_jpeg_rows *rows) {
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const plane *const p = &rows->planes[c];
        for (int32_t v = 0; v < p->v; v++) {
            const int32_t row = rows->next_mcu_row * p->v + v;
            if (row < p->top_block || row >= p->bottom_block) continue;
            const int16_t *const blocks =
                rows->source.blocks(rows->source.owner, c, row) + 64 * (ptrdiff_t)p->first_block;
            const int32_t n = p->end_block - p->first_block;
            if (has_smallest(blocks, n) ||
                !rows->kernels.idct(samples_at(p, 8 * row, 8 * p->first_block), p->stride, blocks,
                                    &p->quant, n))
                return false;
        }
    }
    return true;
}

/* Repeats the samples at the image's left and right edge, for fancy upsampling. */
static void extend_edges(const fm_jpeg_rows *rows, const plane *p) {
    for (int32_t y = 0; y < 8 * p->v; y++) {
        uint8_t *const row = samples_at(p, 8 * p->v * rows->next_mcu_row + y, p->column);
        if (p->first_block == 0) row[-1] = row[0];
        if (p->end_block * 8 >= p->width) row[p->width - p->column] = row[p->width - 1 - p->column];
    }
}

/* Decides whether intervals are read several at once. */
static void begin_intervals(fm_jpeg_rows *rows) {
    fm_huffman *const huffman = rows->source.huffman;
    rows->uses_intervals = false;
    rows->end_read_row = 0;
    const int32_t n_mcus = rows->end_mcu - rows->first_mcu;
    if (!huffman || n_mcus > UINT16_MAX / FM_HUFFMAN_MAX_BLOCKS) return;
    if (!rows->source.skips_intervals && (!rows->seek || rows->seek->head.n == 0)) return;
    fm_jpeg_interval_part part = {.row_mcus = rows->n_mcus,
                                  .first_mcu = rows->first_mcu,
                                  .end_mcu = rows->end_mcu,
                                  .n_blocks = rows->n_blocks,
                                  .seek = rows->seek};
    /* Here, too, each row of blocks of a component lies in one piece. */
    int32_t next = 0, i = 0;
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const plane *const p = &rows->planes[c];
        for (int32_t v = 0; v < p->v; v++, next += n_mcus * p->h)
            for (int32_t h = 0; h < p->h; h++, i++) {
                part.blocks[i].first = (uint16_t)(next + h);
                part.blocks[i].step = (uint16_t)p->h;
                part.blocks[i].component = (uint8_t)c;
            }
    }
    rows->uses_intervals = fm_jpeg_intervals_begin(rows->intervals, huffman, &part);
}

/* Reads the restart intervals of the next rows of MCUs, several at once. *n_rows is 0 if they have
 * to be read one by one. false: they are damaged. */
static bool read_restart_intervals(fm_jpeg_rows *rows, int32_t *n_rows) {
    fm_huffman *const huffman = rows->source.huffman;
    const uint32_t row_begin = first_mcu_of_row(rows, rows->next_mcu_row);
    const int32_t interval = (int32_t)fm_huffman_interval(huffman);
    const int32_t first_mcu = rows->first_mcu - rows->first_mcu % interval;
    if (!fm_huffman_skip_intervals(huffman, rows->n_pending + (uint32_t)first_mcu)) return false;
    rows->n_pending = 0;
    rows->mcu = row_begin + (uint32_t)first_mcu;
    *n_rows = fm_jpeg_intervals_read(rows->intervals, rows->end_mcu_row - rows->next_mcu_row);
    if (*n_rows == 0) return true;
    rows->n_pending = (uint32_t)(rows->n_mcus - ceil_div(rows->end_mcu, interval) * interval);
    rows->mcu = first_mcu_of_row(rows, rows->next_mcu_row + *n_rows);
    return true;
}

/* Reads the intervals of the next rows of MCUs, several at once, if they are not read yet and can
 * be read so. false: they are damaged. */
static bool read_intervals(fm_jpeg_rows *rows) {
    if (!rows->uses_intervals || rows->next_mcu_row < rows->end_read_row) return true;
    int32_t n_rows;
    if (rows->seek)
        n_rows = fm_jpeg_intervals_read_known(rows->intervals, rows->next_mcu_row,
                                              rows->end_mcu_row - rows->next_mcu_row);
    else if (!read_restart_intervals(rows, &n_rows))
        return false;
    rows->first_read_row = rows->next_mcu_row;
    rows->end_read_row = rows->next_mcu_row + n_rows;
    rows->uses_intervals = n_rows > 0;
    return true;
}

/* Reads the next row of MCUs, which the box needs, and computes its samples. */
static fm_jpeg_rows_status decode_needed_row(fm_jpeg_rows *rows) {
    if (!read_intervals(rows)) return FM_JPEG_ROWS_DAMAGED;
    if (rows->next_mcu_row < rows->end_read_row) {
        const int32_t n = rows->end_mcu - rows->first_mcu;
        const int16_t *const blocks =
            fm_jpeg_intervals_row(rows->intervals, rows->next_mcu_row - rows->first_read_row);
        return compute_batch(rows, blocks, n, rows->first_mcu, n) ? FM_JPEG_ROWS_OK
                                                                  : FM_JPEG_ROWS_OUT_OF_RANGE;
    }
    const uint32_t row_begin = first_mcu_of_row(rows, rows->next_mcu_row);
    if (!skip_to(rows, row_begin + (uint32_t)rows->first_mcu)) return FM_JPEG_ROWS_DAMAGED;
    for (int32_t mcu = rows->first_mcu, n; mcu < rows->end_mcu; mcu += n) {
        n = least(rows->end_mcu - mcu, BATCH);
        if (!read_batch(rows, n)) return FM_JPEG_ROWS_DAMAGED;
        if (!compute_batch(rows, rows->coefficients, BATCH, mcu, n))
            return FM_JPEG_ROWS_OUT_OF_RANGE;
    }
    return skip_to(rows, row_begin + (uint32_t)rows->n_mcus) ? FM_JPEG_ROWS_OK
                                                             : FM_JPEG_ROWS_DAMAGED;
}

/* Reads the next row of MCUs, and computes its samples if the box needs them. */
static fm_jpeg_rows_status decode_mcu_row(fm_jpeg_rows *rows) {
    if (rows->next_mcu_row >= rows->first_mcu_row) return decode_needed_row(rows);
    return skip_to(rows, first_mcu_of_row(rows, rows->next_mcu_row + 1)) ? FM_JPEG_ROWS_OK
                                                                         : FM_JPEG_ROWS_DAMAGED;
}

static fm_jpeg_rows_status next_mcu_row(fm_jpeg_rows *rows) {
    if (rows->source.cancelled &&
        atomic_load_explicit(rows->source.cancelled, memory_order_relaxed))
        return FM_JPEG_ROWS_CANCELLED;
    if (rows->source.huffman) {
        const fm_jpeg_rows_status status = decode_mcu_row(rows);
        if (status) return status;
    } else if (!compute_given(rows)) {
        return FM_JPEG_ROWS_OUT_OF_RANGE;
    }
    const bool is_needed = rows->next_mcu_row >= rows->first_mcu_row;
    for (int32_t c = 0; is_needed && c < rows->n_planes; c++)
        if (is_fancy_h(&rows->planes[c])) extend_edges(rows, &rows->planes[c]);
    rows->next_mcu_row++;
    return FM_JPEG_ROWS_OK;
}

/* ---- pixels ---------------------------------------------------------------------------------- */

static void repeat(uint8_t *out, const uint8_t *in, int32_t n, int32_t times) {
    for (int32_t i = 0; i < n; i++, out += times) memset(out, in[i], (size_t)times);
}

/* A component's samples for a row of pixels, from rows->left on. */
static const uint8_t *upsample(const fm_jpeg_rows *rows, const plane *p, int32_t row) {
    int32_t near_row, far_row;
    sample_rows(p, row, &near_row, &far_row);
    const uint8_t *const near = samples_at(p, near_row, p->first_column);
    const uint8_t *const far = samples_at(p, far_row, p->first_column);
    switch (p->upsampling) {
    case REPEAT:
        if (p->h_pixels == 1) return near;
        repeat(p->upsampled, near, p->n_columns, p->h_pixels);
        break;
    case FANCY_H:
        rows->kernels.upsample_h2(p->upsampled, near, p->n_columns);
        break;
    case FANCY_V:
        rows->kernels.upsample_v2(p->upsampled, near, far, p->n_columns, row % 2);
        break;
    case FANCY_BOTH:
        rows->kernels.upsample_h2v2(p->upsampled, near, far, p->n_columns);
        break;
    case NONE:
    default:
        return near;
    }
    return p->upsampled;
}

static void convert_row(const fm_jpeg_rows *rows, uint8_t *out, int32_t row) {
    const uint8_t *in[FM_JPEG_ROWS_MAX_COMPONENTS];
    for (int32_t c = 0; c < rows->n_planes; c++) in[c] = upsample(rows, &rows->planes[c], row);
    if (rows->n_planes == 1)
        rows->kernels.gray_to_rgb(out, in[0], rows->width);
    else
        rows->kernels.ycc_to_rgb(out, in[0], in[1], in[2], rows->width, rows->source.bgr);
}

/* The last row of MCUs that a row of pixels depends on. */
static int32_t last_mcu_row(const fm_jpeg_rows *rows, int32_t row) {
    int32_t last = 0;
    for (int32_t c = 0; c < rows->n_planes; c++) {
        const plane *const p = &rows->planes[c];
        int32_t near, far;
        sample_rows(p, row, &near, &far);
        last = most(last, most(near, far) / (8 * p->v));
    }
    return last;
}

/* Decides whether seek points are used and added, and passes the rows that they pass. */
static void begin_seek(fm_jpeg_rows *rows) {
    fm_huffman *const huffman = rows->source.huffman;
    rows->seek = NULL;
    rows->end_mcu_due = NO_MCU;
    if (!huffman || !rows->source.seek || fm_huffman_interval(huffman)) return;
    const fm_jpeg_seek_image image = {.row_mcus = (uint32_t)rows->n_mcus,
                                      .n_rows = (uint32_t)rows->n_mcu_rows,
                                      .mcu_blocks = (uint32_t)rows->n_blocks,
                                      .n_bytes = rows->source.n_bytes};
    if (!fm_jpeg_seek_begin(rows->source.seek, &image)) return;
    rows->seek = rows->source.seek;
    const fm_jpeg_seek_head *const head = &rows->seek->head;
    if (head->n < head->n_all) {
        rows->end_mcu_due = first_mcu_of_interval(rows, head->n + 1);
        fm_huffman_track(huffman);
    }
    rows->next_mcu_row = least((int32_t)(head->n / head->row_intervals), rows->first_mcu_row);
}

fm_jpeg_rows_status fm_jpeg_rows_start(fm_jpeg_rows *rows, uint8_t *memory,
                                       const fm_jpeg_rows_source *source) {
    rows->source = *source;
    rows->next_mcu_row = source->huffman ? 0 : rows->first_mcu_row;
    rows->mcu = rows->n_pending = 0;
    place_planes(rows, memory);
    begin_seek(rows);
    begin_intervals(rows);
    while (rows->next_mcu_row < rows->first_mcu_row) {
        const fm_jpeg_rows_status status = next_mcu_row(rows);
        if (status) return status;
    }
    return FM_JPEG_ROWS_OK;
}

fm_jpeg_rows_status fm_jpeg_rows_read(fm_jpeg_rows *rows, uint8_t *const *out, int32_t n) {
    for (int32_t i = 0; i < n; i++, rows->next_row++) {
        const int32_t last = last_mcu_row(rows, rows->next_row);
        while (rows->next_mcu_row <= last) {
            const fm_jpeg_rows_status status = next_mcu_row(rows);
            if (status) return status;
        }
        convert_row(rows, out[i], rows->next_row);
    }
    return FM_JPEG_ROWS_OK;
}

/* ---- open, close ----------------------------------------------------------------------------- */

fm_jpeg_rows *fm_jpeg_rows_open(fm_mem_counter *counter, fm_cpu_tier tier) {
    fm_jpeg_rows *rows = fm_mem_zalloc(counter, 1, sizeof(*rows));
    if (!rows) return NULL;
    fm_jpeg_kernels_init(&rows->kernels, tier);
    rows->intervals = fm_jpeg_intervals_open(counter, tier);
    if (!rows->intervals) fm_jpeg_rows_close(&rows);
    return rows;
}

void fm_jpeg_rows_close(fm_jpeg_rows **rows) {
    if (!rows || !*rows) return;
    fm_jpeg_intervals_close(&(*rows)->intervals);
    fm_mem_free(*rows);
    *rows = NULL;
}
