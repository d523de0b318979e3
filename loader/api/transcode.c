/* The transcoder of feedmill/pack.h: decides what is transcoded, gives the reason if an image is
 * not, and verifies the output. pack/rewrite.c does the rewriting. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "decode/jpeg.h"
#include "decode/jpeg_scan.h"
#include "feedmill/pack.h"
#include "pack/rewrite.h"

/* Rows that are decoded at a time, and what fm_jpeg_read() may write after each. */
#define BLOCK_ROWS 16
#define ROW_PAD_BYTES 64
#define MAX_INTERVAL 65535

struct fm_transcoder {
    fm_transcoder_config config;
    fm_limits limits;
    fm_rewrite *rewrite;
    fm_jpeg *jpegs[2]; /* decoders of source and output; NULL without config.verify */
    uint8_t *rows;     /* of both images */
    size_t n_rows_bytes;
};

/* ---- reasons --------------------------------------------------------------------------------- */

/* Returns the frame header's marker and body, or NULL. Segments may be truncated. */
static const uint8_t *find_frame(const uint8_t *bytes, size_t n_bytes) {
    for (size_t at = 2; at + 10 <= n_bytes && bytes[at] == 0xFF;) {
        const uint8_t marker = bytes[at + 1];
        if (marker == 0xFF) {
            at++;
            continue;
        }
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC)
            return bytes + at;
        if (marker == 0xDA) return NULL;
        at += 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
    }
    return NULL;
}

/* The reason for a JPEG that fm_jpeg_scan_file() refuses with FM_ERR_KIND. */
static fm_pack_reason reason_by_kind(const uint8_t *bytes, size_t n_bytes) {
    const uint8_t *const frame = find_frame(bytes, n_bytes);
    if (!frame) return FM_PACK_UNUSUAL;
    if (frame[1] >= 0xC9) return FM_PACK_ARITHMETIC;
    if (frame[1] >= 0xC3) return FM_PACK_LOSSLESS;
    if (frame[4] != 8) return FM_PACK_PRECISION;
    if (frame[5] == 0 && frame[6] == 0) return FM_PACK_NO_HEIGHT;
    return FM_PACK_UNUSUAL;
}

static int reason_of_status(int status, const uint8_t *bytes, size_t n_bytes) {
    switch (status) {
    case FM_OK:
        return FM_PACK_TRANSCODED;
    case FM_ERR_FORMAT:
        return FM_PACK_NOT_JPEG;
    case FM_ERR_KIND:
        return reason_by_kind(bytes, n_bytes);
    case FM_ERR_DAMAGED:
        return FM_PACK_DAMAGED;
    case FM_ERR_LIMIT:
        return FM_PACK_LIMIT;
    default:
        return status;
    }
}

/* ---- verification ---------------------------------------------------------------------------- */

/* Makes sure that t->rows has n_bytes. */
static int reserve_rows(fm_transcoder *t, size_t n_bytes, fm_error *error) {
    if (t->n_rows_bytes >= n_bytes) return FM_OK;
    fm_mem_free(t->rows);
    t->rows = fm_mem_alloc(NULL, n_bytes, 1);
    t->n_rows_bytes = t->rows ? n_bytes : 0;
    return t->rows ? FM_OK : fm_error_set(error, FM_ERR_NOMEM, "no memory for rows of pixels");
}

/* Compares all rows of both images. Both decoders have been started. */
static int compare_rows(fm_transcoder *t, int32_t width, int32_t height, fm_error *error) {
    const size_t row_bytes = 3 * (size_t)width;
    /* Rows begin 16 bytes after a multiple of 32; see fm_jpeg_read(). */
    const size_t stride = fm_mem_round_up(row_bytes + ROW_PAD_BYTES);
    int status = reserve_rows(t, 2 * BLOCK_ROWS * stride + FM_MEM_ALIGN, error);
    if (status) return status;
    uint8_t *rows[2][BLOCK_ROWS];
    for (size_t i = 0; i < 2 * BLOCK_ROWS; i++)
        rows[i / BLOCK_ROWS][i % BLOCK_ROWS] = t->rows + 16 + i * stride;
    for (int32_t y = 0; y < height;) {
        int n = 0;
        for (int k = 0; k < 2; k++) {
            n = fm_jpeg_read(t->jpegs[k], rows[k], BLOCK_ROWS, error);
            if (n < 0) return reason_of_status(n, NULL, 0);
        }
        for (int i = 0; i < n; i++, y++)
            if (memcmp(rows[0][i], rows[1][i], row_bytes) != 0) {
                fm_error_set(error, FM_ERR_DAMAGED, "pixels of row %d differ", y);
                return FM_PACK_DIFFERS;
            }
    }
    return FM_PACK_TRANSCODED;
}

static int begin_decoding(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                          fm_error *error) {
    int status = fm_jpeg_begin(jpeg, bytes, n_bytes, info, error);
    if (status) return status;
    const fm_box box = {0, 0, info->width, info->height};
    int32_t skip_px, row_px;
    return fm_jpeg_start(jpeg, &box, &skip_px, &row_px, error);
}

/* Decodes source and output as the loader does, and compares. A reason, or FM_ERR_NOMEM. */
static int verify(fm_transcoder *t, const uint8_t *bytes, size_t n_bytes, const fm_transcoded *out,
                  fm_error *error) {
    fm_image_info source, result;
    int reason = reason_of_status(begin_decoding(t->jpegs[0], bytes, n_bytes, &source, error),
                                  bytes, n_bytes);
    if (!reason) {
        const int status = begin_decoding(t->jpegs[1], out->bytes, out->n_bytes, &result, error);
        if (status)
            reason = status == FM_ERR_NOMEM ? status : FM_PACK_DIFFERS;
        else if (source.width != result.width || source.height != result.height)
            reason = FM_PACK_DIFFERS;
        else
            reason = compare_rows(t, source.width, source.height, error);
    }
    fm_jpeg_end(t->jpegs[0]);
    fm_jpeg_end(t->jpegs[1]);
    return reason;
}

/* ---- one image ------------------------------------------------------------------------------- */

static int transcode(fm_transcoder *t, const uint8_t *bytes, size_t n_bytes, fm_transcoded *out,
                     fm_error *error) {
    if (n_bytes > t->limits.max_file_bytes) {
        fm_error_set(error, FM_ERR_LIMIT, "%zu bytes; max_file_bytes allows %llu", n_bytes,
                     (unsigned long long)t->limits.max_file_bytes);
        return FM_PACK_LIMIT;
    }
    fm_jpeg_scan scan;
    int reason = reason_of_status(fm_jpeg_scan_file(&scan, bytes, n_bytes, &t->limits, error),
                                  bytes, n_bytes);
    if (reason) return reason;
    out->width = scan.info.width;
    out->height = scan.info.height;
    const fm_rewrite_options options = {t->config.interval, t->config.max_cost_ppm,
                                        (size_t)t->limits.max_file_bytes};
    reason = fm_rewrite_run(t->rewrite, bytes, scan.n_bytes, &options, out, error);
    if (!reason && t->config.verify) reason = verify(t, bytes, n_bytes, out, error);
    return reason;
}

/* Clears all fields of an image that is not transcoded, except its size. */
static void clear_result(fm_transcoded *out, int reason, const char *why) {
    const int32_t width = out->width, height = out->height;
    *out = (fm_transcoded){.reason = reason, .width = width, .height = height};
    snprintf(out->why, sizeof(out->why), "%.*s", (int)sizeof(out->why) - 1, why);
}

int fm_transcoder_run(fm_transcoder *t, const void *bytes, size_t n_bytes, fm_transcoded *out,
                      fm_error *error) {
    fm_error_clear(error);
    if (!t || !out || (!bytes && n_bytes))
        return fm_error_set(error, FM_ERR_ARGUMENT, "transcoder, out or bytes is NULL");
    *out = (fm_transcoded){0};
    fm_error why;
    fm_error_clear(&why);
    const int reason = transcode(t, bytes, n_bytes, out, &why);
    if (reason < 0) {
        clear_result(out, FM_PACK_TRANSCODED, "");
        if (error) *error = why;
        return reason;
    }
    if (reason) clear_result(out, reason, why.message);
    return FM_OK;
}

/* ---- open, close ----------------------------------------------------------------------------- */

void fm_transcoder_config_init(fm_transcoder_config *config) {
    *config = (fm_transcoder_config){.struct_bytes = sizeof(*config),
                                     .interval = 4,
                                     .max_cost_ppm = 3000,
                                     .verify = true,
                                     .max_image_pixels = (uint64_t)1 << 27,
                                     .max_file_bytes = (uint64_t)1 << 30};
}

static int open_parts(fm_transcoder *t, fm_error *error) {
    t->rewrite = fm_rewrite_open();
    if (!t->rewrite) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a transcoder");
    int status = FM_OK;
    for (int k = 0; k < 2 && t->config.verify && !status; k++)
        status = fm_jpeg_open(&t->jpegs[k], &t->limits, NULL, error);
    return status;
}

int fm_transcoder_open(fm_transcoder **out, const fm_transcoder_config *config, fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!config || config->struct_bytes != sizeof(*config))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the configuration was not made by fm_transcoder_config_init()");
    if (config->interval < 1 || config->interval > MAX_INTERVAL)
        return fm_error_set(error, FM_ERR_ARGUMENT, "interval is %u; it must be 1 to %d",
                            config->interval, MAX_INTERVAL);
    fm_transcoder *t = fm_mem_zalloc(NULL, 1, sizeof(*t));
    if (!t) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a transcoder");
    t->config = *config;
    t->limits = (fm_limits){.max_file_bytes = config->max_file_bytes,
                            .max_image_pixels = config->max_image_pixels};
    const int status = open_parts(t, error);
    if (status) fm_transcoder_close(&t);
    *out = t;
    return status;
}

void fm_transcoder_close(fm_transcoder **transcoder) {
    if (!transcoder || !*transcoder) return;
    fm_transcoder *const t = *transcoder;
    *transcoder = NULL;
    for (int k = 0; k < 2; k++) fm_jpeg_close(&t->jpegs[k]);
    fm_rewrite_close(t->rewrite);
    fm_mem_free(t->rows);
    fm_mem_free(t);
}
