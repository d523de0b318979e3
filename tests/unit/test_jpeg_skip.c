/*
 * Skipping of restart intervals that a box does not need (fm_jpeg_set_interval_skipping()): the
 * pixels equal those of libjpeg's full decode, for any sampling, size, interval and box. The same
 * with damage: between two markers, the box's pixels equal libjpeg's of the damaged file, or the
 * file is refused; with damaged markers, the result is the one without skipping.
 */
#define _GNU_SOURCE
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

static file copy_of(const file *f, size_t n) {
    const file g = test_guarded_open(NULL, n);
    memcpy(g.bytes, f->bytes, n < f->n ? n : f->n);
    return g;
}

/* Where the image data begins. */
static size_t data_of(const file *f) {
    size_t at = 2;
    while (f->bytes[at + 1] != 0xDA) at += 2 + ((size_t)f->bytes[at + 2] << 8 | f->bytes[at + 3]);
    return at + 2 + ((size_t)f->bytes[at + 2] << 8 | f->bytes[at + 3]);
}

/* The n-th restart marker (from 0); the file's size: there are fewer. */
static size_t restart_of(const file *f, size_t n) {
    for (size_t i = data_of(f); i + 1 < f->n; i++)
        if (f->bytes[i] == 0xFF && (f->bytes[i + 1] & 0xF8) == 0xD0 && n-- == 0) return i;
    return f->n;
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

static fm_jpeg *open_jpeg(bool skips) {
    fm_jpeg *jpeg = NULL;
    assert_int_equal(fm_jpeg_open(&jpeg, &LIMITS, NULL, NULL), FM_OK);
    fm_jpeg_set_interval_skipping(jpeg, skips, false);
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

/* ---- tests ----------------------------------------------------------------------------------- */

static const kind SAMPLINGS[] = {
    {.h = 1, .v = 1, .n_components = 3}, {.h = 2, .v = 1, .n_components = 3},
    {.h = 2, .v = 2, .n_components = 3}, {.h = 1, .v = 2, .n_components = 3},
    {.h = 4, .v = 1, .n_components = 3}, {.h = 4, .v = 2, .n_components = 3},
    {.h = 3, .v = 1, .n_components = 3}, {.h = 1, .v = 1, .n_components = 1},
    {.h = 2, .v = 2, .n_components = 1},
};
enum { N_SAMPLINGS = sizeof(SAMPLINGS) / sizeof(SAMPLINGS[0]) };

/* 1: none; a row of MCUs, two, and more than the image has; those that divide a row and not. */
static unsigned random_interval(const kind *k) {
    const int mcu = k->n_components == 1 ? 8 : 8 * k->h;
    const unsigned n_columns = (unsigned)((k->width + mcu - 1) / mcu);
    const unsigned choices[] = {1, 2, 3, 4, 5, 8, n_columns, 2 * n_columns, 60000};
    return choices[random_below(sizeof(choices) / sizeof(choices[0]))];
}

static kind random_kind(uint32_t number) {
    kind k = SAMPLINGS[number % N_SAMPLINGS];
    k.width = 1 + (int)random_below(number % 5 ? 300 : 40);
    k.height = 1 + (int)random_below(number % 5 ? 200 : 40);
    k.interval = random_interval(&k);
    k.optimized = random_below(2);
    return k;
}

static void boxes_equal_the_full_decode(void **state) {
    (void)state;
    fm_jpeg *jpeg = open_jpeg(true);
    for (uint32_t i = 0; i < 40 * N_SAMPLINGS; i++) {
        const kind k = random_kind(i);
        const file f = make(&k);
        uint8_t *const full = full_decode(&f);
        for (int n = 0; n < 20; n++) {
            const fm_box box = random_box(&k);
            assert_int_equal(decode(jpeg, &f, &box, pixels), FM_OK);
            check_pixels(&k, &box, pixels, full);
        }
        free(full);
        test_guarded_close(&f);
    }
    fm_jpeg_close(&jpeg);
}

/* Other bytes in the data, but for FF, which may stand for a marker. */
static void injure(const file *f, uint32_t n) {
    const size_t from = data_of(f);
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = from + random_below((uint32_t)(f->n - 2 - from));
        if (f->bytes[at] != 0xFF && f->bytes[at - 1] != 0xFF)
            f->bytes[at] = (uint8_t)random_below(255);
    }
}

/* An accepted file has libjpeg's pixels of the damaged file, and files accepted without skipping
 * are accepted with it. */
static void damage_between_markers_changes_no_pixel(void **state) {
    (void)state;
    fm_jpeg *skipping = open_jpeg(true), *plain = open_jpeg(false);
    int n_accepted = 0, n_more = 0;
    for (uint32_t i = 0; i < 30 * N_SAMPLINGS; i++) {
        const kind k = random_kind(i);
        const file f = make(&k);
        injure(&f, 1 + random_below(3));
        uint8_t *const full = full_decode(&f);
        for (int n = 0; n < 20; n++) {
            const fm_box box = random_box(&k);
            const int status = decode(skipping, &f, &box, pixels);
            assert_true(status == FM_OK || status == FM_ERR_DAMAGED);
            if (!status) check_pixels(&k, &box, pixels, full);
            const bool is_accepted = decode(plain, &f, &box, pixels) == FM_OK;
            if (is_accepted) assert_int_equal(status, FM_OK);
            n_accepted += !status;
            n_more += !status && !is_accepted;
        }
        free(full);
        test_guarded_close(&f);
    }
    assert_true(n_accepted > 500);
#if FM_HAVE_JPEG_INTERNALS
    assert_true(n_more > 100); /* so intervals were skipped */
#else
    assert_int_equal(n_more, 0);
#endif
    fm_jpeg_close(&skipping);
    fm_jpeg_close(&plain);
}

/* For every box both have the same outcome, which is not FM_OK for the whole image. */
static void check_same(const kind *k, const file *f, bool is_sane) {
    fm_jpeg *skipping = open_jpeg(true), *plain = open_jpeg(false);
    static uint8_t others[sizeof(pixels)];
    for (int n = 0; n < 20; n++) {
        const fm_box all = {0, 0, k->width, k->height};
        const fm_box box = n ? random_box(k) : all;
        const int status = decode(skipping, f, &box, pixels);
        assert_int_equal(status, decode(plain, f, &box, others));
        if (!n) assert_int_equal(status == FM_OK, is_sane);
        if (!status)
            assert_memory_equal(pixels, others, 3 * (size_t)box.width * (size_t)box.height);
    }
    fm_jpeg_close(&skipping);
    fm_jpeg_close(&plain);
    test_guarded_close(f);
}

static const kind PLAIN = {
    .width = 200, .height = 120, .h = 2, .v = 2, .n_components = 3, .interval = 4};

static void markers_must_be_complete_and_in_order(void **state) {
    (void)state;
    const file whole = make(&PLAIN);
    const size_t marker = restart_of(&whole, 11);
    file f = copy_of(&whole, whole.n); /* another number */
    f.bytes[marker + 1] = 0xD0 + 5;
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n); /* one is missing */
    memset(f.bytes + marker, 0, 2);
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n); /* one too many */
    f.bytes[marker - 2] = 0xFF;
    f.bytes[marker - 1] = 0xD0 + 3;
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n); /* eight are missing: the others are in order */
    memmove(f.bytes + marker, f.bytes + restart_of(&whole, 19), whole.n - restart_of(&whole, 19));
    f.n = marker + whole.n - restart_of(&whole, 19);
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n - 1); /* no EOI */
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, marker); /* cut short */
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n + 1); /* FF as padding before a marker */
    memmove(f.bytes + marker + 1, whole.bytes + marker, whole.n - marker);
    check_same(&PLAIN, &f, true);
    f = copy_of(&whole, whole.n); /* the header names another interval */
    for (size_t i = 2; i < data_of(&whole); i++)
        if (f.bytes[i] == 0xFF && f.bytes[i + 1] == 0xDD) f.bytes[i + 5] = 5;
    check_same(&PLAIN, &f, false);
    test_guarded_close(&whole);
}

static void files_without_intervals_are_decoded_as_ever(void **state) {
    (void)state;
    kind k = PLAIN;
    k.interval = 0;
    const file f = make(&k);
    check_same(&k, &f, true);
    const file damaged = make(&k);
    injure(&damaged, 3);
    damaged.bytes[data_of(&damaged) + 500] = 0xFF;
    damaged.bytes[data_of(&damaged) + 501] = 0xD0;
    check_same(&k, &damaged, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_equal_the_full_decode),
        cmocka_unit_test(damage_between_markers_changes_no_pixel),
        cmocka_unit_test(markers_must_be_complete_and_in_order),
        cmocka_unit_test(files_without_intervals_are_decoded_as_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
