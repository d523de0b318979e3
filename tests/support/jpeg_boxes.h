/*
 * JPEGs of any sampling, size and restart interval, made by libjpeg; random boxes of them, decoded
 * by jpeg.h; and libjpeg's pixels of the whole image. For tests that compare the two.
 */
#ifndef TEST_JPEG_BOXES_H
#define TEST_JPEG_BOXES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jpeglib.h>

#include "decode/jpeg.h"
#include "encode_jpeg.h"
#include "guarded.h"

enum { SLACK = 64, ROWS = 16 };

static const fm_limits LIMITS = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 20};

typedef test_guarded file;

typedef struct kind {
    int width, height, h, v, n_components;
    unsigned interval; /* MCUs */
    bool optimized;
} kind;

static uint32_t random_state = 2463534242u;
static uint32_t random_below(uint32_t n) {
    random_state ^= random_state << 13, random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

/* ---- files ----------------------------------------------------------------------------------- */

static file make(const kind *k) {
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, k->width, k->height, k->n_components,
                    k->n_components == 1   ? JCS_GRAYSCALE
                    : k->n_components == 3 ? JCS_RGB
                                           : JCS_CMYK);
    struct jpeg_compress_struct *const codec = &jpeg.codec;
    codec->comp_info[0].h_samp_factor = k->h;
    codec->comp_info[0].v_samp_factor = k->v;
    codec->restart_interval = k->interval;
    codec->optimize_coding = k->optimized;
    jpeg_start_compress(codec, TRUE);
    JSAMPLE row[4 * 512];
    for (int y = 0; y < k->height; y++) {
        for (int i = 0; i < k->width * k->n_components; i++)
            row[i] = (JSAMPLE)(((i / 29 + y / 17) % 2 ? 200 : i + y) ^ random_below(32));
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(codec, rows, 1);
    }
    test_end_jpeg(&jpeg);
    const file f = test_guarded_open(jpeg.bytes, jpeg.n_bytes);
    free(jpeg.bytes);
    return f;
}

/* Where the image data begins. */
static size_t data_of(const file *f) {
    size_t at = 2;
    while (f->bytes[at + 1] != 0xDA) at += 2 + ((size_t)f->bytes[at + 2] << 8 | f->bytes[at + 3]);
    return at + 2 + ((size_t)f->bytes[at + 2] << 8 | f->bytes[at + 3]);
}

static const kind SAMPLINGS[] = {
    {.h = 1, .v = 1, .n_components = 3}, {.h = 2, .v = 1, .n_components = 3},
    {.h = 2, .v = 2, .n_components = 3}, {.h = 1, .v = 2, .n_components = 3},
    {.h = 4, .v = 1, .n_components = 3}, {.h = 4, .v = 2, .n_components = 3},
    {.h = 3, .v = 1, .n_components = 3}, {.h = 1, .v = 1, .n_components = 1},
    {.h = 2, .v = 2, .n_components = 1},
};
enum { N_SAMPLINGS = sizeof(SAMPLINGS) / sizeof(SAMPLINGS[0]) };

/* Other bytes in the data, but for FF, which may stand for a marker. */
static void injure(const file *f, uint32_t n) {
    const size_t from = data_of(f);
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = from + random_below((uint32_t)(f->n - 2 - from));
        if (f->bytes[at] != 0xFF && f->bytes[at - 1] != 0xFF)
            f->bytes[at] = (uint8_t)random_below(255);
    }
}

/* All pixels by libjpeg, which warns and goes on where it can, as Pillow has it. */
static void be_silent(j_common_ptr codec, int level) {
    (void)codec;
    (void)level;
}

static uint8_t *full_decode(const file *f) {
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct codec = {.err = jpeg_std_error(&errors)};
    errors.emit_message = be_silent;
    jpeg_create_decompress(&codec);
    jpeg_mem_src(&codec, f->bytes, f->n);
    jpeg_read_header(&codec, TRUE);
    codec.out_color_space = JCS_RGB;
    jpeg_start_decompress(&codec);
    const size_t row_bytes = 3 * (size_t)codec.output_width;
    uint8_t *const pixels = calloc(codec.output_height, row_bytes);
    assert_non_null(pixels);
    while (codec.output_scanline < codec.output_height) {
        JSAMPROW rows[1] = {pixels + codec.output_scanline * row_bytes};
        jpeg_read_scanlines(&codec, rows, 1);
    }
    jpeg_finish_decompress(&codec);
    jpeg_destroy_decompress(&codec);
    return pixels;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

static fm_jpeg *open_decoder(void) {
    fm_jpeg *jpeg = NULL;
    assert_int_equal(fm_jpeg_open(&jpeg, &LIMITS, NULL, NULL), FM_OK);
    return jpeg;
}

/* The box's pixels to out, densely; a status. */
static int decode(fm_jpeg *jpeg, const file *f, const fm_box *box, uint8_t *out) {
    static _Alignas(32) uint8_t memory[ROWS][16 + 3 * 600 + SLACK + 32];
    fm_image_info info;
    fm_error error;
    int32_t skip = 0, row_px = 0;
    int status = fm_jpeg_begin(jpeg, f->bytes, f->n, &info, &error);
    if (!status) status = fm_jpeg_start(jpeg, box, &skip, &row_px, &error);
    for (int32_t y = 0; status >= 0 && y < box->height; y += status) {
        uint8_t *rows[ROWS];
        for (int i = 0; i < ROWS; i++) rows[i] = memory[i] + 16;
        status = fm_jpeg_read(jpeg, rows, ROWS, &error);
        for (int32_t i = 0; i < status; i++)
            memcpy(out + 3 * (size_t)(y + i) * (size_t)box->width, rows[i] + 3 * skip,
                   3 * (size_t)box->width);
    }
    fm_jpeg_end(jpeg);
    return status < 0 ? status : FM_OK;
}

static fm_box random_box(const kind *k) {
    fm_box box = {.width = 1 + (int32_t)random_below((uint32_t)k->width),
                  .height = 1 + (int32_t)random_below((uint32_t)k->height)};
    if (random_below(4) == 0) box.width = 1 + (int32_t)random_below(3);
    if (random_below(4) == 0) box.height = 1 + (int32_t)random_below(3);
    if (box.width > k->width) box.width = k->width;
    if (box.height > k->height) box.height = k->height;
    box.left = (int32_t)random_below((uint32_t)(k->width - box.width + 1));
    box.top = (int32_t)random_below((uint32_t)(k->height - box.height + 1));
    return box;
}

static void check_pixels(const kind *k, const fm_box *box, const uint8_t *got,
                         const uint8_t *full) {
    for (int32_t y = 0; y < box->height; y++) {
        const size_t at = 3 * ((size_t)(box->top + y) * (size_t)k->width + (size_t)box->left);
        if (memcmp(got + 3 * (size_t)y * (size_t)box->width, full + at, 3 * (size_t)box->width))
            fail_msg("%dx%d, %dx%d, %d components, interval %u: row %d of the box %d,%d %dx%d",
                     k->width, k->height, k->h, k->v, k->n_components, k->interval, y, box->left,
                     box->top, box->width, box->height);
    }
}

static uint8_t pixels[3 * 512 * 512];

#endif
