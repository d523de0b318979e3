#define _GNU_SOURCE
#include "decode/png.h"

#include <assert.h>
#include <string.h>

#include <spng.h>

#include "decode/scratch.h"

/* Limit of an interlaced image's rows in the file's format. */
#define MAX_IMAGE_BYTES ((size_t)80 << 20)
/* Limit of a decompressed color profile: Pillow's. */
#define MAX_PROFILE_BYTES ((size_t)1 << 20)
/* Limit of the texts that libspng keeps. png_scan.c has a lower one. */
#define MAX_KEPT_BYTES ((size_t)32 << 20)

enum state {
    STATE_IDLE,    /* between images */
    STATE_BEGUN,   /* the header is read */
    STATE_STARTED, /* rows can be read */
    STATE_FAILED   /* only fm_png_end() may be called */
};

struct fm_png {
    spng_ctx *codec; /* of this image, or NULL */
    fm_scratch scratch;
    fm_limits limits;
    const _Atomic bool *cancelled; /* NULL: never */
    fm_png_scan scan;
    const uint8_t *bytes;
    size_t n_bytes;
    enum state state;
    int32_t next_row, end_row; /* rows of the image: the next one to decode, the box's end */
    size_t stored_bytes;       /* size of a row in the file's format */
    uint8_t *stored;           /* one such row, or all of an interlaced image */
    uint8_t colors[256][3];    /* by sample or index, for files with up to 8 bits per pixel */
};

/* ---- libspng's memory ------------------------------------------------------------------------ */

/* libspng passes no user pointer to these functions. So each call sets the memory to use. */
static _Thread_local fm_scratch *scratch_in_use;

static void *on_malloc(size_t n_bytes) { return fm_scratch_alloc(scratch_in_use, n_bytes); }

static void *on_realloc(void *piece, size_t n_bytes) {
    return fm_scratch_resize(scratch_in_use, piece, n_bytes);
}

static void *on_calloc(size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) return NULL;
    void *const piece = fm_scratch_alloc(scratch_in_use, n * size);
    if (piece) memset(piece, 0, n * size);
    return piece;
}

/* fm_png_end() frees all pieces at once. */
static void on_free(void *piece) { (void)piece; }

/* ---- open, close ----------------------------------------------------------------------------- */

int fm_png_open(fm_png **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error) {
    fm_png *const png = fm_mem_zalloc(counter, 1, sizeof(*png));
    *out = png;
    if (!png) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a PNG decoder");
    png->limits = *limits;
    fm_scratch_init(&png->scratch, counter);
    return FM_OK;
}

void fm_png_watch(fm_png *png, const _Atomic bool *cancelled) { png->cancelled = cancelled; }

void fm_png_end(fm_png *png) {
    scratch_in_use = &png->scratch;
    spng_ctx_free(png->codec);
    png->codec = NULL;
    fm_scratch_reset(&png->scratch);
    png->state = STATE_IDLE;
}

void fm_png_close(fm_png **png) {
    if (!png || !*png) return;
    fm_png_end(*png);
    fm_scratch_fini(&(*png)->scratch);
    fm_mem_free(*png);
    *png = NULL;
}

bool fm_png_has_palette(const fm_png *png) { return png->scan.color == FM_PNG_PALETTE; }

bool fm_png_is_large(const fm_png *png) { return fm_scratch_is_large(&png->scratch); }

void fm_png_trim(fm_png *png) { fm_scratch_trim(&png->scratch); }

/* ---- conversion to RGB ----------------------------------------------------------------------- */

/* Sets the colors of all samples or indices. */
static void fill_colors(fm_png *png) {
    const fm_png_scan *const scan = &png->scan;
    const bool has_palette = scan->color == FM_PNG_PALETTE;
    const int32_t n_values = scan->bits >= 8 ? 256 : 1 << scan->bits;
    for (int32_t value = 0; value < n_values; value++) {
        memset(png->colors[value], value * 255 / (n_values - 1), 3);
    }
    if (has_palette) memcpy(png->colors, scan->palette, 3 * (size_t)scan->n_palette);
}

/* Sample or index `x` of a row with up to 8 bits per pixel, the first in the upper bits. */
static uint32_t value_at(const uint8_t *stored, size_t x, uint32_t bits) {
    const size_t at = x * bits;
    return (uint32_t)stored[at / 8] >> (8 - bits - at % 8) & ((1u << bits) - 1);
}

/* Whether a row has an index beyond the palette, whose color depends on Pillow's version. */
static bool lacks_color(const fm_png *png, const uint8_t *stored) {
    const uint32_t bits = (uint32_t)png->scan.bits, n_palette = (uint32_t)png->scan.n_palette;
    if (png->scan.color != FM_PNG_PALETTE || n_palette == 1u << bits) return false;
    const size_t width = (size_t)png->scan.info.width;
    uint32_t most = 0;
    for (size_t x = 0; x < width; x++) {
        const uint32_t value = bits == 8 ? stored[x] : value_at(stored, x, bits);
        most = value > most ? value : most;
    }
    return most >= n_palette;
}

static void expand_indices(const fm_png *png, const uint8_t *stored, uint8_t *row) {
    const uint32_t bits = (uint32_t)png->scan.bits;
    const size_t width = (size_t)png->scan.info.width;
    for (size_t x = 0; x < width; x++)
        memcpy(row + 3 * x, png->colors[value_at(stored, x, bits)], 3);
}

/* Samples of whole bytes: takes the first, upper byte of each channel except alpha. */
static void expand_samples(const fm_png *png, const uint8_t *stored, uint8_t *row) {
    const size_t sample_bytes = (size_t)png->scan.bits / 8;
    const size_t pixel_bytes = sample_bytes * (size_t)png->scan.info.n_components;
    /* A gray value is used for all three channels. */
    const size_t green = png->scan.color == FM_PNG_GRAY_ALPHA ? 0 : sample_bytes;
    const size_t width = (size_t)png->scan.info.width;
    for (size_t x = 0; x < width; x++) {
        const uint8_t *const pixel = stored + x * pixel_bytes;
        row[3 * x] = pixel[0];
        row[3 * x + 1] = pixel[green];
        row[3 * x + 2] = pixel[2 * green];
    }
}

static bool is_indexed(const fm_png *png) {
    return png->scan.color == FM_PNG_PALETTE || png->scan.color == FM_PNG_GRAY;
}

static bool is_stored_as_rgb(const fm_png *png) {
    return png->scan.color == FM_PNG_RGB && png->scan.bits == 8;
}

static void expand_row(const fm_png *png, const uint8_t *stored, uint8_t *row) {
    if (is_stored_as_rgb(png))
        memcpy(row, stored, png->stored_bytes);
    else if (is_indexed(png))
        expand_indices(png, stored, row);
    else
        expand_samples(png, stored, row);
}

/* ---- statuses -------------------------------------------------------------------------------- */

static int check_state(const fm_png *png, enum state wanted, const char *call, fm_error *error) {
    assert(png->state == wanted || png->state == STATE_FAILED);
    if (png->state == wanted) return FM_OK;
    return fm_error_set(error, FM_ERR_STATE, "%s called in the wrong state", call);
}

static int no_memory(fm_png *png, fm_error *error) {
    png->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_NOMEM, "no memory for a PNG of %d x %d pixels",
                        png->scan.info.width, png->scan.info.height);
}

/*
 * Turns libspng's error into a status. If zlib gets no memory, libspng reports the same errors as
 * for damaged data, hence ran_out.
 */
static int fail(fm_png *png, int code, fm_error *error) {
    if (code == SPNG_EMEM || png->scratch.ran_out) return no_memory(png, error);
    png->state = STATE_FAILED;
    return fm_error_set(error, code == SPNG_ECHUNK_LIMITS ? FM_ERR_LIMIT : FM_ERR_DAMAGED,
                        "libspng: %s", spng_strerror(code));
}

static int check_colors(fm_png *png, const uint8_t *stored, fm_error *error) {
    if (!lacks_color(png, stored)) return FM_OK;
    png->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_DAMAGED, "a PNG whose palette lacks a color");
}

static int check_cancelled(fm_png *png, fm_error *error) {
    if (!png->cancelled || !atomic_load_explicit(png->cancelled, memory_order_relaxed))
        return FM_OK;
    png->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_CANCELLED, "decoding was cancelled");
}

/* ---- one image ------------------------------------------------------------------------------- */

int fm_png_begin(fm_png *png, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                 fm_error *error) {
    const int wrong = check_state(png, STATE_IDLE, "fm_png_begin()", error);
    if (wrong) return wrong;
    png->state = STATE_FAILED;
    const int status = fm_png_scan_file(&png->scan, bytes, n_bytes, &png->limits, error);
    if (status) return status;
    png->bytes = bytes;
    png->n_bytes = n_bytes;
    *info = png->scan.info;
    png->state = STATE_BEGUN;
    return FM_OK;
}

static int open_codec(fm_png *png, fm_error *error) {
    struct spng_alloc memory = {on_malloc, on_realloc, on_calloc, on_free};
    png->codec = spng_ctx_new2(&memory, 0);
    if (!png->codec) return no_memory(png, error);
    int code = spng_set_crc_action(png->codec, SPNG_CRC_ERROR, SPNG_CRC_ERROR);
    if (!code) code = spng_set_chunk_limits(png->codec, MAX_PROFILE_BYTES, MAX_KEPT_BYTES);
    if (!code) code = spng_set_png_buffer(png->codec, png->bytes, png->n_bytes);
    /* In the file's format; expand_row() converts as Pillow does. */
    if (!code) code = spng_decode_image(png->codec, NULL, 0, SPNG_FMT_RAW, SPNG_DECODE_PROGRESSIVE);
    return code ? fail(png, code, error) : FM_OK;
}

/* Pillow refuses a profile that is too large, and ignores a damaged one. libspng does not tell them
 * apart, so both are refused. */
static int check_profile(fm_png *png, fm_error *error) {
    struct spng_iccp profile;
    if (!png->scan.has_large_profile || !spng_get_iccp(png->codec, &profile)) return FM_OK;
    png->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_DAMAGED, "a PNG with a bad color profile");
}

/* Decodes one row of an image that is not interlaced to `row`, in the file's format. */
static int decode_row(fm_png *png, uint8_t *row, fm_error *error) {
    const int code = spng_decode_row(png->codec, row, png->stored_bytes);
    png->next_row++;
    if (code && code != SPNG_EOI) return fail(png, code, error);
    return check_colors(png, row, error);
}

/* Decodes and discards the rows before `row` of an image that is not interlaced. */
static int skip_to(fm_png *png, int32_t row, fm_error *error) {
    int status = FM_OK;
    while (!status && png->next_row < row) {
        status = decode_row(png, png->stored, error);
        if (!status && png->next_row % 16 == 0) status = check_cancelled(png, error);
    }
    return status;
}

/* Decodes the file to its end, to check all of it. */
static int check_rest(fm_png *png, fm_error *error) {
    const bool is_interlaced = png->scan.info.progressive;
    const int status = is_interlaced ? FM_OK : skip_to(png, png->scan.info.height, error);
    if (status) return status;
    const int code = spng_decode_chunks(png->codec);
    return code ? fail(png, code, error) : FM_OK;
}

/* Decodes all passes of an interlaced image. */
static int decode_passes(fm_png *png, fm_error *error) {
    /* libspng combines pixels of less than 8 bits with the row's contents by OR. */
    memset(png->stored, 0, png->stored_bytes * (size_t)png->scan.info.height);
    struct spng_row_info row;
    int code;
    while (!(code = spng_get_row_info(png->codec, &row))) {
        code = spng_decode_row(png->codec, png->stored + row.row_num * png->stored_bytes,
                               png->stored_bytes);
        if (code && code != SPNG_EOI) return fail(png, code, error);
        const int status = check_cancelled(png, error);
        if (status) return status;
    }
    if (code != SPNG_EOI) return fail(png, code, error);
    int status = FM_OK;
    for (int32_t y = 0; !status && y < png->scan.info.height; y++)
        status = check_colors(png, png->stored + (size_t)y * png->stored_bytes, error);
    return status;
}

/* Allocates png->stored. */
static int alloc_rows(fm_png *png, fm_error *error) {
    const fm_image_info *const info = &png->scan.info;
    const int32_t n_samples = png->scan.color == FM_PNG_PALETTE ? 1 : info->n_components;
    png->stored_bytes = ((size_t)info->width * (size_t)(n_samples * png->scan.bits) + 7) / 8;
    const size_t n_rows = info->progressive ? (size_t)info->height : 1;
    if (n_rows > 1 && png->stored_bytes > MAX_IMAGE_BYTES / n_rows) {
        png->state = STATE_FAILED;
        return fm_error_set(error, FM_ERR_LIMIT,
                            "an interlaced PNG of %d x %d pixels, which takes more than %zu MB",
                            info->width, info->height, MAX_IMAGE_BYTES >> 20);
    }
    png->stored = fm_scratch_alloc(&png->scratch, png->stored_bytes * n_rows);
    return png->stored ? FM_OK : no_memory(png, error);
}

int fm_png_start(fm_png *png, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                 fm_error *error) {
    const int wrong = check_state(png, STATE_BEGUN, "fm_png_start()", error);
    if (wrong) return wrong;
    const fm_image_info *const info = &png->scan.info;
    if (!fm_box_is_within(box, info))
        return fm_error_set(error, FM_ERR_ARGUMENT, "box %d,%d %dx%d is not within %dx%d pixels",
                            box->left, box->top, box->width, box->height, info->width,
                            info->height);
    scratch_in_use = &png->scratch;
    png->next_row = 0;
    png->end_row = box->top + box->height;
    if (is_indexed(png)) fill_colors(png);
    int status = alloc_rows(png, error);
    if (!status) status = open_codec(png, error);
    if (!status) status = check_profile(png, error);
    if (!status && info->progressive) status = decode_passes(png, error);
    if (!status && info->progressive) status = check_rest(png, error);
    if (!status && !info->progressive) status = skip_to(png, box->top, error);
    if (status) return status;
    png->next_row = box->top;
    *skip_px = box->left;
    *row_px = info->width;
    png->state = STATE_STARTED;
    return FM_OK;
}

/* Reads the next row of the box, in RGB. */
static int read_row(fm_png *png, uint8_t *row, fm_error *error) {
    if (png->scan.info.progressive) {
        expand_row(png, png->stored + (size_t)png->next_row++ * png->stored_bytes, row);
        return FM_OK;
    }
    if (is_stored_as_rgb(png)) return decode_row(png, row, error);
    const int status = decode_row(png, png->stored, error);
    if (!status) expand_row(png, png->stored, row);
    return status;
}

int fm_png_read(fm_png *png, uint8_t *const *rows, int32_t n_rows, fm_error *error) {
    const int wrong = check_state(png, STATE_STARTED, "fm_png_read()", error);
    if (wrong) return wrong;
    const int32_t n_left = png->end_row - png->next_row;
    const int32_t n = n_rows < n_left ? n_rows : n_left;
    if (n < 1) return fm_error_set(error, FM_ERR_STATE, "fm_png_read(): no rows are left");
    scratch_in_use = &png->scratch;
    int status = FM_OK;
    for (int32_t i = 0; !status && i < n; i++) status = read_row(png, rows[i], error);
    if (!status && n == n_left && !png->scan.info.progressive) status = check_rest(png, error);
    /* check_rest() has read beyond the box. */
    if (n == n_left) png->next_row = png->end_row;
    return status ? status : n;
}
