/* jpeg.h: crops equal libjpeg's own full decode; which files are refused, and with which status.
 * The comparison with Pillow is tests/prop/check_jpeg_pillow.py. */
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

#include "allocations.h"
#include "decode/jpeg.h"
#include "decode/jpeg_mem.h"
#include "encode_jpeg.h"
#include "guarded.h"
#include "resident.h"

/* Damage as the Huffman decoder names it, or libjpeg where that decodes alone. */
#if FM_HAVE_JPEG_INTERNALS
#define MESSAGE(ours, libjpegs) ours
#else
#define MESSAGE(ours, libjpegs) libjpegs
#endif

enum { SLACK = 64, GUARD = 0xA5 };

static const fm_limits LIMITS = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 20};
static const fm_limits LARGE = {.max_file_bytes = 64 << 20, .max_image_pixels = 16 << 20};

/* A file in memory that ends at an unreadable page. */
typedef test_guarded file;

typedef struct kind {
    int width, height, h, v;
    bool gray, cmyk, progressive, split, arithmetic;
    unsigned restart;
} kind;

/* ---- making files ---------------------------------------------------------------------------- */

static file make(kind k) {
    const int n_components = k.gray ? 1 : k.cmyk ? 4 : 3;
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, k.width, k.height, n_components,
                    k.gray   ? JCS_GRAYSCALE
                    : k.cmyk ? JCS_CMYK
                             : JCS_RGB);
    struct jpeg_compress_struct *const codec = &jpeg.codec;
    if (k.h) {
        codec->comp_info[0].h_samp_factor = k.h;
        codec->comp_info[0].v_samp_factor = k.v;
    }
    codec->restart_interval = k.restart;
    codec->arith_code = k.arithmetic;
    if (k.split) test_split_jpeg(&jpeg);
    if (k.progressive) jpeg_simple_progression(codec);
    jpeg_start_compress(codec, TRUE);
    JSAMPLE *const row = test_malloc((size_t)k.width * 4);
    uint32_t noise = 12345;
    for (int y = 0; y < k.height; y++) {
        for (int i = 0; i < k.width * n_components; i++) {
            noise = noise * 1664525u + 1013904223u;
            row[i] = (JSAMPLE)(((i / 29 + y / 17) % 2 ? 200 : i + y) ^ (noise >> 27));
        }
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(codec, rows, 1);
    }
    test_free(row);
    test_end_jpeg(&jpeg);
    const file f = test_guarded_open(jpeg.bytes, jpeg.n_bytes);
    free(jpeg.bytes);
    return f;
}

/* Position of the nth (from 0) marker FF xx behind `from`; fails the test if there is none. */
static size_t find_marker(const file *f, uint8_t marker, size_t from) {
    for (size_t i = from; i + 1 < f->n; i++)
        if (f->bytes[i] == 0xFF && f->bytes[i + 1] == marker) return i;
    fail_msg("no marker %02X", marker);
    return 0;
}

static file with_inserted(const file *f, size_t at, const void *bytes, size_t n) {
    const file g = test_guarded_open(NULL, f->n + n);
    memcpy(g.bytes, f->bytes, at);
    memcpy(g.bytes + at, bytes, n);
    memcpy(g.bytes + at + n, f->bytes + at, f->n - at);
    return g;
}

static file without(const file *f, size_t at, size_t n) {
    const file g = test_guarded_open(NULL, f->n - n);
    memcpy(g.bytes, f->bytes, at);
    memcpy(g.bytes + at, f->bytes + at + n, f->n - at - n);
    return g;
}

/* The file without all segments of one kind before its first scan. */
static file without_segments(const file *f, uint8_t marker) {
    file g = test_guarded_open(f->bytes, f->n);
    for (size_t at = 2; g.bytes[at + 1] != 0xDA;) {
        const size_t n = 2 + ((size_t)g.bytes[at + 2] << 8 | g.bytes[at + 3]);
        if (g.bytes[at + 1] != marker) {
            at += n;
            continue;
        }
        const file shorter = without(&g, at, n);
        test_guarded_close(&g);
        g = shorter;
    }
    return g;
}

/* ---- decoding -------------------------------------------------------------------------------- */

static fm_jpeg *open_jpeg(void) {
    fm_jpeg *jpeg = NULL;
    assert_int_equal(fm_jpeg_open(&jpeg, &LIMITS, NULL, NULL), FM_OK);
    return jpeg;
}

/* A row of inks as libjpeg gives them, 4 bytes a pixel, as RGB in its first 3 bytes a pixel: what
 * Pillow makes of them, by its formula. */
static void inks_to_rgb(uint8_t *row, int width) {
    for (int x = 0; x < width; x++) {
        const int light = row[4 * x + 3];
        for (int c = 0; c < 3; c++) {
            const int product = (255 - row[4 * x + c]) * light + 128;
            row[3 * x + c] = (uint8_t)(light - (((product >> 8) + product) >> 8));
        }
    }
}

/* All pixels by libjpeg, as Pillow asks it for them. */
static uint8_t *full_decode(const file *f, int *width, int *height) {
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct codec = {.err = jpeg_std_error(&errors)};
    jpeg_create_decompress(&codec);
    jpeg_mem_src(&codec, f->bytes, f->n);
    jpeg_read_header(&codec, TRUE);
    const bool has_inks = codec.num_components == 4;
    codec.out_color_space = has_inks ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&codec);
    *width = (int)codec.output_width;
    *height = (int)codec.output_height;
    /* One byte a pixel more for the last row of inks. */
    uint8_t *const pixels = test_calloc((size_t)*width * ((size_t)*height + 1), 3);
    while (codec.output_scanline < codec.output_height) {
        JSAMPROW rows[1] = {pixels + (size_t)codec.output_scanline * (size_t)*width * 3};
        jpeg_read_scanlines(&codec, rows, 1);
        if (has_inks) inks_to_rgb(rows[0], *width);
    }
    jpeg_finish_decompress(&codec);
    jpeg_destroy_decompress(&codec);
    return pixels;
}

/* Decodes the box, `n_rows` rows a call, and compares it with the full image. */
static void check_box(fm_jpeg *jpeg, const file *f, fm_box box, int n_rows, const uint8_t *full,
                      int width) {
    fm_image_info info;
    fm_error error;
    assert_int_equal(fm_jpeg_begin(jpeg, f->bytes, f->n, &info, &error), FM_OK);
    int32_t skip = -1, row_px = 0;
    assert_int_equal(fm_jpeg_start(jpeg, &box, &skip, &row_px, &error), FM_OK);
    assert_in_range(skip, 0, row_px - box.width);
    const size_t stride = ((size_t)row_px * 3 + SLACK + 63) / 32 * 32;
    uint8_t *const memory = test_malloc(stride * (size_t)box.height + 64);
    memset(memory, GUARD, stride * (size_t)box.height + 64);
    uint8_t *rows[600];
    for (int y = 0; y < box.height; y++)
        rows[y] = memory + (16 + 32 - (uintptr_t)memory % 32) % 32 + stride * (size_t)y;
    for (int y = 0; y < box.height;) {
        const int got = fm_jpeg_read(jpeg, rows + y, n_rows, &error);
        assert_int_equal(got, n_rows < box.height - y ? n_rows : box.height - y);
        y += got;
    }
    assert_int_equal(fm_jpeg_read(jpeg, rows, 1, &error), FM_ERR_STATE);
    for (int y = 0; y < box.height; y++) {
        const size_t at = ((size_t)(box.top + y) * (size_t)width + (size_t)box.left) * 3;
        assert_memory_equal(rows[y] + 3 * skip, full + at, (size_t)box.width * 3);
        assert_int_equal(rows[y][3 * row_px + SLACK], GUARD);
    }
    fm_jpeg_end(jpeg);
    test_free(memory);
}

/* The status of the whole image: from begin, start or read, whichever refuses first. */
static int status_of(fm_jpeg *jpeg, const file *f, fm_error *error) {
    fm_image_info info, measured;
    const bool has_size = fm_jpeg_measure(jpeg, f->bytes, f->n, &measured, NULL) == FM_OK;
    fm_error_clear(error);
    int status = fm_jpeg_begin(jpeg, f->bytes, f->n, &info, error);
    if (!status) {
        assert_true(has_size && measured.width == info.width && measured.height == info.height);
        const fm_box all = {0, 0, info.width, info.height};
        int32_t skip, row_px;
        status = fm_jpeg_start(jpeg, &all, &skip, &row_px, error);
        uint8_t *const row = test_malloc((size_t)info.width * 3 + SLACK);
        for (int y = 0; y < info.height && status >= 0; y++)
            status = fm_jpeg_read(jpeg, &row, 1, error);
        test_free(row);
    }
    fm_jpeg_end(jpeg);
    assert_true(status >= 0 || error->status == status);
    return status < 0 ? status : FM_OK;
}

static void check_status(file f, int status, const char *text) {
    fm_jpeg *jpeg = open_jpeg();
    fm_error error;
    assert_int_equal(status_of(jpeg, &f, &error), status);
    if (!strstr(error.message, text)) fail_msg("\"%s\" lacks \"%s\"", error.message, text);
    fm_jpeg_close(&jpeg);
    test_guarded_close(&f);
}

/* ---- pixels ---------------------------------------------------------------------------------- */

static void crops_equal_the_full_decode(void **state) {
    (void)state;
    static const kind kinds[] = {
        {.width = 200, .height = 150, .h = 1, .v = 1},
        {.width = 201, .height = 149, .h = 2, .v = 1},
        {.width = 199, .height = 151, .h = 2, .v = 2},
        {.width = 200, .height = 150, .h = 1, .v = 2},
        {.width = 203, .height = 90, .h = 4, .v = 1},
        {.width = 97, .height = 120, .h = 4, .v = 2},
        {.width = 100, .height = 75, .h = 3, .v = 1},
        {.width = 100, .height = 75, .gray = true},
        {.width = 5, .height = 5, .h = 2, .v = 2},
        {.width = 1, .height = 1, .h = 2, .v = 2},
        {.width = 150, .height = 100, .h = 2, .v = 2, .progressive = true},
        {.width = 150, .height = 100, .h = 2, .v = 1, .split = true},
        {.width = 150, .height = 100, .h = 2, .v = 2, .restart = 3},
        {.width = 90, .height = 60, .gray = true, .h = 2, .v = 2},
        {.width = 120, .height = 80, .cmyk = true},
        {.width = 121, .height = 79, .cmyk = true, .h = 2, .v = 2},
        {.width = 120, .height = 80, .cmyk = true, .h = 2, .v = 1, .progressive = true},
    };
    fm_jpeg *jpeg = open_jpeg();
    srand(7);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const file f = make(kinds[i]);
        int width, height;
        uint8_t *const full = full_decode(&f, &width, &height);
        for (int k = 0; k < 150; k++) {
            fm_box box = {.width = 1 + rand() % width, .height = 1 + rand() % height};
            if (k % 7 == 0) box.width = 1;
            if (k % 5 == 0) box.height = 1;
            box.left = k % 3 == 0 ? width - box.width : rand() % (width - box.width + 1);
            box.top = k % 4 == 0 ? 0 : rand() % (height - box.height + 1);
            check_box(jpeg, &f, box, 1 + rand() % 20, full, width);
        }
        check_box(jpeg, &f, (fm_box){0, 0, width, height}, height, full, width);
        test_free(full);
        test_guarded_close(&f);
    }
    fm_jpeg_close(&jpeg);
}

static void header_is_reported(void **state) {
    (void)state;
    fm_jpeg *jpeg = open_jpeg();
    file f = make((kind){.width = 33, .height = 21, .progressive = true});
    fm_image_info info;
    assert_int_equal(fm_jpeg_begin(jpeg, f.bytes, f.n, &info, NULL), FM_OK);
    assert_int_equal(info.width, 33);
    assert_int_equal(info.height, 21);
    assert_int_equal(info.n_components, 3);
    assert_true(info.progressive);
    fm_jpeg_end(jpeg);
    test_guarded_close(&f);
    fm_jpeg_close(&jpeg);
    fm_jpeg_close(&jpeg);
    fm_jpeg_close(NULL);
}

static void box_outside_is_an_argument_error(void **state) {
    (void)state;
    static const fm_box boxes[] = {{-1, 0, 5, 5},  {0, -1, 5, 5},        {0, 0, 0, 5},
                                   {0, 0, 5, 0},   {28, 0, 5, 5},        {0, 18, 5, 5},
                                   {0, 0, 33, 20}, {0, 0, 5, 21},        {31, 19, 2, 1},
                                   {1, 1, 1, 20},  {INT32_MAX, 0, 5, 5}, {5, 5, -1, 3}};
    fm_jpeg *jpeg = open_jpeg();
    file f = make((kind){.width = 32, .height = 20});
    for (size_t i = 0; i < sizeof(boxes) / sizeof(boxes[0]); i++) {
        fm_image_info info;
        int32_t skip, row_px;
        assert_int_equal(fm_jpeg_begin(jpeg, f.bytes, f.n, &info, NULL), FM_OK);
        assert_int_equal(fm_jpeg_start(jpeg, &boxes[i], &skip, &row_px, NULL), FM_ERR_ARGUMENT);
        fm_jpeg_end(jpeg);
    }
    test_guarded_close(&f);
    fm_jpeg_close(&jpeg);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Decodes a box row by row, without taking memory itself; sums up its pixels. */
static int decode_box(fm_jpeg *jpeg, const file *f, fm_box box, uint64_t *sum, fm_error *error) {
    static uint8_t row[8192 * 3 + SLACK];
    uint8_t *const rows[1] = {row};
    fm_image_info info;
    int32_t skip = 0, row_px = 0;
    *sum = 0;
    fm_error_clear(error);
    int status = fm_jpeg_begin(jpeg, f->bytes, f->n, &info, error);
    if (!status) status = fm_jpeg_start(jpeg, &box, &skip, &row_px, error);
    for (int y = 0; y < box.height && status >= 0; y++) {
        status = fm_jpeg_read(jpeg, rows, 1, error);
        for (int i = 3 * skip; status == 1 && i < 3 * (skip + box.width); i++)
            *sum = (*sum ^ row[i]) * 0x100000001B3u;
    }
    fm_jpeg_end(jpeg);
    return status < 0 ? status : FM_OK;
}

static const kind memory_kinds[] = {
    {.width = 300, .height = 200, .h = 1, .v = 1},
    {.width = 301, .height = 199, .h = 2, .v = 2},
    {.width = 299, .height = 210, .h = 4, .v = 2},
    {.width = 180, .height = 320, .gray = true},
    {.width = 320, .height = 240, .h = 2, .v = 2, .restart = 3},
    {.width = 500, .height = 370, .h = 1, .v = 1, .progressive = true},
    {.width = 310, .height = 205, .h = 2, .v = 1, .progressive = true},
    {.width = 400, .height = 300, .h = 2, .v = 2, .split = true},
};
enum { N_MEMORY_KINDS = sizeof(memory_kinds) / sizeof(memory_kinds[0]) };

static fm_box whole(kind k) { return (fm_box){0, 0, k.width, k.height}; }

/* Images of every kind in any order, any crops of them, and damaged ones in between. */
static void images_allocate_nothing(void **state) {
    (void)state;
    fm_mem_counter counter = {0};
    fm_jpeg *jpeg = NULL;
    fm_error error;
    uint64_t sum, expected[N_MEMORY_KINDS];
    assert_int_equal(fm_jpeg_open(&jpeg, &LIMITS, &counter, NULL), FM_OK);
    file files[N_MEMORY_KINDS], smaller[N_MEMORY_KINDS], bad[N_MEMORY_KINDS];
    for (int i = 0; i < N_MEMORY_KINDS; i++) {
        kind k = memory_kinds[i];
        files[i] = make(k);
        k.width -= 37, k.height -= 51;
        smaller[i] = make(k);
        bad[i] = test_guarded_open(files[i].bytes, files[i].n);
        memcpy(bad[i].bytes + bad[i].n * 2 / 3, "\xff\xd7", 2); /* a restart that is not due */
        assert_int_equal(decode_box(jpeg, &files[i], whole(memory_kinds[i]), &expected[i], &error),
                         FM_OK);
    }
    const uint64_t n_blocks = counter.n_blocks, n_bytes = counter.n_bytes;
    srand(3);
    for (int round = 0; round < 400; round++) {
        const int i = rand() % N_MEMORY_KINDS;
        const kind k = memory_kinds[i];
        fm_box box = {rand() % 100, rand() % 100, 1 + rand() % 43, 1 + rand() % 49};
        test_allocations_begin(0);
        const int of_whole = decode_box(jpeg, &files[i], whole(k), &sum, &error);
        const bool equal = sum == expected[i];
        const int of_bad = decode_box(jpeg, &bad[i], whole(k), &sum, &error);
        const int of_box = decode_box(jpeg, &smaller[i], box, &sum, &error);
        assert_int_equal(test_allocations_end(), 0);
        assert_int_equal(of_whole, FM_OK);
        assert_true(equal);
        assert_int_equal(of_bad, FM_ERR_DAMAGED);
        if (of_box) fail_msg("kind %d: %s", i, error.message);
    }
    assert_int_equal(counter.n_blocks, n_blocks);
    assert_int_equal(counter.n_bytes, n_bytes);
    fm_jpeg_close(&jpeg);
    for (int i = 0; i < N_MEMORY_KINDS; i++) {
        test_guarded_close(&files[i]);
        test_guarded_close(&smaller[i]);
        test_guarded_close(&bad[i]);
    }
}

/* The memory reserved at open suffices for any height, and rows of up to 8,192 pixels. */
static void one_scan_takes_memory_by_its_width(void **state) {
    (void)state;
    static const kind kinds[] = {
        {.width = 4000, .height = 3000, .h = 1, .v = 1},
        {.width = 4000, .height = 3000, .h = 2, .v = 2},
        {.width = 8192, .height = 20, .h = 1, .v = 1},
        {.width = 8192, .height = 20, .h = 2, .v = 1},
        {.width = 8192, .height = 40, .h = 2, .v = 2},
        {.width = 8192, .height = 40, .h = 1, .v = 2},
        {.width = 8192, .height = 80, .h = 1, .v = 4},
        {.width = 8192, .height = 40, .h = 4, .v = 2},
        {.width = 8192, .height = 20, .gray = true},
    };
    fm_mem_counter counter = {0};
    fm_jpeg *jpeg = NULL;
    fm_error error;
    assert_int_equal(fm_jpeg_open(&jpeg, &LARGE, &counter, NULL), FM_OK);
    const uint64_t n_blocks = counter.n_blocks;
    assert_in_range(counter.n_bytes, 1 << 20, (1 << 20) + (900 << 10));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const file f = make(kinds[i]);
        uint64_t sum;
        test_allocations_begin(0);
        const int status = decode_box(jpeg, &f, whole(kinds[i]), &sum, &error);
        assert_int_equal(test_allocations_end(), 0);
        assert_int_equal(status, FM_OK);
        test_guarded_close(&f);
    }
    assert_int_equal(counter.n_blocks, n_blocks);
    fm_jpeg_close(&jpeg);
}

/* 12 million pixels at 4:4:4 are decoded. Their memory is kept while such images follow, and
 * returned after a number of other images, or at once by a trim. It is allocated only once. */
static void large_images_do_not_keep_their_memory(void **state) {
    (void)state;
    const kind large = {.width = 4000, .height = 3000, .h = 1, .v = 1, .progressive = true};
    const kind small = {.width = 60, .height = 40, .h = 2, .v = 2};
    const file f = make(large), g = make(small);
    fm_mem_counter counter = {0};
    fm_jpeg *jpeg = NULL;
    fm_error error;
    uint64_t sum;
    assert_int_equal(fm_jpeg_open(&jpeg, &LARGE, &counter, NULL), FM_OK);
    const fm_box strip = {1000, 2990, 500, 10};
    assert_int_equal(decode_box(jpeg, &f, strip, &sum, &error), FM_OK);
    const uint64_t n_blocks = counter.n_blocks, first = sum;
    /* The coefficients in blocks of their own; then one for the largest image that is decoded. */
    assert_in_range(counter.n_bytes, 72000000 + (80 << 20), 72000000 + (90 << 20));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(decode_box(jpeg, &f, strip, &sum, &error), FM_OK);
        assert_true(sum == first);
        const size_t before = resident_bytes();
        for (int i = 0; i < FM_JPEG_MEM_PATIENCE; i++) {
            assert_true(resident_bytes() + (8 << 20) > before);
            assert_int_equal(decode_box(jpeg, &g, whole(small), &sum, &error), FM_OK);
        }
        assert_true(resident_bytes() + (60 << 20) < before);
        assert_false(fm_jpeg_is_large(jpeg));
    }
    for (int round = 0; round < 2; round++) {
        assert_int_equal(decode_box(jpeg, &f, strip, &sum, &error), FM_OK);
        assert_true(sum == first);
        assert_true(fm_jpeg_is_large(jpeg));
        const size_t before = resident_bytes();
        fm_jpeg_trim(jpeg);
        assert_true(resident_bytes() + (60 << 20) < before);
        assert_false(fm_jpeg_is_large(jpeg));
        fm_jpeg_trim(jpeg);
        assert_int_equal(decode_box(jpeg, &g, whole(small), &sum, &error), FM_OK);
    }
    assert_int_equal(counter.n_blocks, n_blocks);
    fm_jpeg_close(&jpeg);
    test_guarded_close(&f);
    test_guarded_close(&g);
}

/* The block that would stay with the decoder can't be had: there is none to give pages back of. */
static void a_block_that_failed_is_not_trimmed(void **state) {
    (void)state;
    const kind large = {.width = 1500, .height = 1000, .h = 1, .v = 1, .progressive = true};
    const kind small = {.width = 8, .height = 8, .h = 1, .v = 1};
    const file f = make(large), g = make(small);
    int n_images = 0;
    bool failed = true;
    for (long fail_at = 1; failed; fail_at++) {
        fm_jpeg *jpeg = NULL;
        fm_error error;
        uint64_t sum;
        assert_int_equal(fm_jpeg_open(&jpeg, &LARGE, NULL, NULL), FM_OK);
        test_allocations_begin(fail_at);
        const int status = decode_box(jpeg, &f, whole(large), &sum, &error);
        test_allocations_end();
        failed = test_allocations_failed();
        if (failed && status == FM_OK) {
            assert_false(fm_jpeg_is_large(jpeg));
            n_images++;
        }
        for (int i = 0; i < 2 * FM_JPEG_MEM_PATIENCE; i++)
            assert_int_equal(decode_box(jpeg, &g, whole(small), &sum, &error), FM_OK);
        fm_jpeg_close(&jpeg);
    }
    assert_int_equal(n_images, 1);
    test_guarded_close(&f);
    test_guarded_close(&g);
}

/* More than 80 MiB of coefficients are refused before they are allocated, unless the box needs
 * less.
 */
static void too_many_coefficients_are_refused(void **state) {
    (void)state;
    file f = make((kind){.width = 64, .height = 64, .h = 1, .v = 1, .progressive = true});
    uint8_t *const size = f.bytes + find_marker(&f, 0xC2, 0) + 5;
    const fm_limits limits = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 30};
    fm_mem_counter counter = {0};
    fm_jpeg *jpeg = NULL;
    fm_error error;
    uint64_t sum;
    memcpy(size, "\x10\0\x0e\0", 4); /* 4,096 rows of 3,584 pixels: 84 MiB */
    assert_int_equal(fm_jpeg_open(&jpeg, &limits, &counter, NULL), FM_OK);
    const uint64_t n_blocks = counter.n_blocks;
    assert_int_equal(decode_box(jpeg, &f, (fm_box){0, 0, 10, 4096}, &sum, &error), FM_ERR_LIMIT);
    assert_non_null(strstr(error.message, "3584x4096 pixels and several scans"));
    assert_non_null(strstr(error.message, "take 84 MB, the limit is 80"));
    assert_int_equal(counter.n_blocks, n_blocks);
    /* Its data are those of 64 rows: there is damage everywhere, but no limit. */
    assert_int_equal(decode_box(jpeg, &f, (fm_box){0, 0, 10, 3000}, &sum, &error), FM_ERR_DAMAGED);
    fm_jpeg_close(&jpeg);
    test_guarded_close(&f);
}

/* In the midst of its rows, or of the scans before the first row. */
static void cancelling_leaves_a_sound_decoder(void **state) {
    (void)state;
    _Atomic bool cancelled = false;
    fm_jpeg *jpeg = open_jpeg();
    fm_jpeg_watch(jpeg, &cancelled);
    for (int i = 0; i < N_MEMORY_KINDS; i++) {
        const kind k = memory_kinds[i];
        const file f = make(k);
        const fm_box all = whole(k);
        fm_image_info info;
        fm_error error;
        int32_t skip, row_px;
        uint64_t sum, expected;
        uint8_t *const row = test_malloc((size_t)k.width * 3 + SLACK);
        assert_int_equal(decode_box(jpeg, &f, all, &expected, &error), FM_OK);
        assert_int_equal(fm_jpeg_begin(jpeg, f.bytes, f.n, &info, &error), FM_OK);
        atomic_store(&cancelled, k.progressive || k.split);
        int status = fm_jpeg_start(jpeg, &all, &skip, &row_px, &error);
        assert_int_equal(status, cancelled ? FM_ERR_CANCELLED : FM_OK);
        atomic_store(&cancelled, true);
        for (int y = 0; status >= 0 && y < k.height; y++)
            status = fm_jpeg_read(jpeg, &row, 1, &error);
        assert_int_equal(status, FM_ERR_CANCELLED);
        fm_jpeg_end(jpeg);
        atomic_store(&cancelled, false);
        assert_int_equal(decode_box(jpeg, &f, all, &sum, &error), FM_OK);
        assert_true(sum == expected);
        test_free(row);
        test_guarded_close(&f);
    }
    fm_jpeg_close(&jpeg);
}

/* Each allocation of a decoder's life fails once: opening or decoding says so, or does without; the
 * next image is decoded. Run under AddressSanitizer it finds leaks. */
static void every_allocation_fails_once(void **state) {
    (void)state;
    file files[N_MEMORY_KINDS];
    uint64_t expected[N_MEMORY_KINDS], sum = 0;
    fm_error error;
    fm_jpeg *jpeg = open_jpeg();
    for (int i = 0; i < N_MEMORY_KINDS; i++) {
        files[i] = make(memory_kinds[i]);
        assert_int_equal(decode_box(jpeg, &files[i], whole(memory_kinds[i]), &expected[i], &error),
                         FM_OK);
    }
    fm_jpeg_close(&jpeg);
    int n_refused_open = 0, n_refused_images = 0;
    bool failed = true;
    for (long fail_at = 1; failed; fail_at++) {
        int n_refused = 0;
        test_allocations_begin(fail_at);
        const int status = fm_jpeg_open(&jpeg, &LIMITS, NULL, &error);
        for (int i = 0; !status && i < 2 * N_MEMORY_KINDS; i++) {
            const int k = i % N_MEMORY_KINDS;
            const int of_image = decode_box(jpeg, &files[k], whole(memory_kinds[k]), &sum, &error);
            n_refused += of_image == FM_ERR_NOMEM;
            if (of_image ? of_image != FM_ERR_NOMEM : sum != expected[k])
                fail_msg("allocation %ld, image %d: %d %s", fail_at, k, of_image, error.message);
        }
        test_allocations_end();
        failed = test_allocations_failed();
        if (status) {
            assert_int_equal(status, FM_ERR_NOMEM);
            assert_int_equal(error.status, FM_ERR_NOMEM);
            assert_null(jpeg);
        }
        assert_in_range(n_refused, 0, failed);
        n_refused_open += status != FM_OK;
        n_refused_images += n_refused;
        fm_jpeg_close(&jpeg);
    }
    assert_in_range(n_refused_open, 4, 20);
    assert_in_range(n_refused_images, 2, 20);
    for (int i = 0; i < N_MEMORY_KINDS; i++) test_guarded_close(&files[i]);
}

/* A byte of the file changed, or its end cut off, anywhere: whatever libjpeg jumps out of, the
 * decoder neither leaks nor carries anything over into the next image. */
static void errors_anywhere_leave_a_sound_decoder(void **state) {
    (void)state;
    static const uint8_t values[] = {0x00, 0xFF, 0x7F};
    static const kind kinds[] = {
        {.width = 70, .height = 50, .h = 1, .v = 1},
        {.width = 70, .height = 50, .h = 2, .v = 2, .restart = 2},
        {.width = 70, .height = 50, .h = 2, .v = 1, .split = true},
        {.width = 70, .height = 50, .h = 2, .v = 2, .progressive = true},
    };
    fm_mem_counter counter = {0};
    fm_jpeg *jpeg = NULL;
    fm_error error;
    assert_int_equal(fm_jpeg_open(&jpeg, &LARGE, &counter, NULL), FM_OK);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const file good = make(kinds[i]);
        uint64_t expected, sum;
        assert_int_equal(decode_box(jpeg, &good, whole(kinds[i]), &expected, &error), FM_OK);
        const uint64_t n_blocks = counter.n_blocks;
        for (size_t at = 2; at + 2 < good.n; at += 3) {
            const bool cut = at % 4 == 0;
            const file bad = test_guarded_open(good.bytes, cut ? at + 2 : good.n);
            if (cut)
                memcpy(bad.bytes + at, "\xff\xd9", 2);
            else
                bad.bytes[at] = values[at % sizeof(values)];
            /* Damaged data can be valid data of other pixels, even of an image of another size. */
            const int status = decode_box(jpeg, &bad, whole(kinds[i]), &sum, &error);
            assert_true(status == FM_OK || error.status == status);
            assert_int_equal(decode_box(jpeg, &good, whole(kinds[i]), &sum, &error), FM_OK);
            assert_true(sum == expected);
            test_guarded_close(&bad);
        }
        assert_in_range(counter.n_blocks, n_blocks, n_blocks + 30);
        test_guarded_close(&good);
    }
    fm_jpeg_close(&jpeg);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void other_formats(void **state) {
    (void)state;
    check_status(test_guarded_open("\x89PNG\r\n\x1a\n....", 12), FM_ERR_FORMAT, "a PNG image");
    check_status(test_guarded_open("RIFF....WEBPVP8 ", 16), FM_ERR_FORMAT, "a WebP image");
    check_status(test_guarded_open("GIF89a", 6), FM_ERR_FORMAT, "a GIF image");
    check_status(test_guarded_open("<html>", 6), FM_ERR_FORMAT, "an HTML or XML text");
    check_status(test_guarded_open("", 0), FM_ERR_FORMAT, "an empty file");
    check_status(test_guarded_open("\xff\xd8", 2), FM_ERR_FORMAT, "a damaged JPEG");
    check_status(test_guarded_open("\xff\xd8\0\0", 4), FM_ERR_FORMAT, "a damaged JPEG");
    check_status(test_guarded_open("abcdefgh", 8), FM_ERR_FORMAT, "an unknown format");
}

static void kinds_that_pillow_decodes(void **state) {
    (void)state;
    check_status(make((kind){.width = 20, .height = 20, .arithmetic = true}), FM_ERR_KIND,
                 "arithmetic");
    file f = make((kind){.width = 20, .height = 20});
    const size_t sof = find_marker(&f, 0xC0, 0);
    f.bytes[sof + 4] = 12;
    check_status(test_guarded_open(f.bytes, f.n), FM_ERR_KIND, "12 bits");
    f.bytes[sof + 4] = 8;
    f.bytes[sof + 1] = 0xC3;
    check_status(test_guarded_open(f.bytes, f.n), FM_ERR_KIND, "lossless");
    f.bytes[sof + 1] = 0xC0;
    f.bytes[sof + 5] = f.bytes[sof + 6] = 0; /* height */
    check_status(test_guarded_open(f.bytes, f.n), FM_ERR_KIND, "height");
    f.bytes[sof + 6] = 20;
    test_guarded_close(&f);
}

static void limits_hold_before_decoding(void **state) {
    (void)state;
    file f = make((kind){.width = 20, .height = 20});
    const size_t sof = find_marker(&f, 0xC0, 0);
    f.bytes[sof + 5] = f.bytes[sof + 7] = 0x10; /* 4116 x 4116 */
    check_status(test_guarded_open(f.bytes, f.n), FM_ERR_LIMIT, "max_image_pixels allows 1048576");
    f.bytes[sof + 5] = 0;
    f.bytes[sof + 7] = f.bytes[sof + 8] = 0xFF;
    check_status(f, FM_ERR_LIMIT, "65500");

    file p = make((kind){.width = 20, .height = 20, .progressive = true});
    const size_t last = find_marker(&p, 0xD9, p.n - 2);
    size_t scan = 0;
    for (size_t at = 0; at < last; at++)
        if (p.bytes[at] == 0xFF && p.bytes[at + 1] == 0xDA) scan = at;
    for (int i = 0; i < 200; i++) {
        const file longer = with_inserted(&p, last, p.bytes + scan, last - scan);
        test_guarded_close(&p);
        p = longer;
    }
    check_status(p, FM_ERR_LIMIT, "scans");
}

/* Whatever is cut off, even where all rows could still be decoded. */
static void every_truncation_is_refused(void **state) {
    (void)state;
    const kind kinds[] = {{.width = 40, .height = 30},
                          {.width = 40, .height = 30, .progressive = true},
                          {.width = 40, .height = 30, .restart = 1}};
    fm_jpeg *jpeg = open_jpeg();
    for (size_t i = 0; i < 3; i++) {
        file f = make(kinds[i]);
        fm_image_info info;
        for (size_t n = 0; n < f.n; n++) {
            const file cut = test_guarded_open(f.bytes, n);
            const int status = fm_jpeg_begin(jpeg, cut.bytes, n, &info, NULL);
            assert_int_equal(status, n < 3 ? FM_ERR_FORMAT : FM_ERR_DAMAGED);
            fm_jpeg_end(jpeg);
            test_guarded_close(&cut);
        }
        test_guarded_close(&f);
    }
    fm_jpeg_close(&jpeg);
}

static void a_size_needs_the_header_only(void **state) {
    (void)state;
    const kind kinds[] = {{.width = 40, .height = 30},
                          {.width = 40, .height = 30, .progressive = true},
                          {.width = 40, .height = 30, .gray = true}};
    fm_jpeg *jpeg = open_jpeg();
    for (size_t i = 0; i < 3; i++) {
        file f = make(kinds[i]);
        const size_t scan = find_marker(&f, 0xDA, 0);
        const size_t end = scan + 2 + (size_t)(f.bytes[scan + 2] << 8 | f.bytes[scan + 3]);
        for (size_t n = 0; n <= f.n; n++) {
            const file cut = test_guarded_open(f.bytes, n);
            fm_image_info info;
            const int status = fm_jpeg_measure(jpeg, cut.bytes, n, &info, NULL);
            assert_int_equal(status, n < 3 ? FM_ERR_FORMAT : n < end ? FM_ERR_DAMAGED : FM_OK);
            if (!status) assert_true(info.width == 40 && info.height == 30);
            test_guarded_close(&cut);
        }
        test_guarded_close(&f);
    }
    fm_jpeg_close(&jpeg);
}

/* Random bytes in the image data may confuse libjpeg, but it must not read beyond the end, where a
 * page can't be read; with data that ends early it arrives there sooner. */
static void damaged_data_is_not_read_past_its_end(void **state) {
    (void)state;
    const kind kinds[] = {{.width = 200, .height = 90, .h = 1, .v = 1},
                          {.width = 200, .height = 90, .h = 4, .v = 2},
                          {.width = 200, .height = 90, .gray = true},
                          {.width = 200, .height = 90, .h = 2, .v = 2, .split = true},
                          {.width = 200, .height = 90, .h = 2, .v = 2, .restart = 2},
                          {.width = 200, .height = 90, .h = 2, .v = 2, .progressive = true}};
    fm_jpeg *jpeg = open_jpeg();
    srand(11);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const file good = make(kinds[i]);
        const size_t data = find_marker(&good, 0xDA, 0) + 14, n_data = good.n - 2 - data;
        for (int round = 0; round < 300; round++) {
            const size_t n = data + (size_t)rand() % n_data + 2;
            const file bad = test_guarded_open(good.bytes, n);
            for (int k = round % 8; k > 0; k--)
                bad.bytes[data + (size_t)rand() % (n - data)] = (uint8_t)(rand() % 255);
            memcpy(bad.bytes + n - 2, "\xff\xd9", 2);
            fm_error error;
            const int status = status_of(jpeg, &bad, &error);
            assert_true(status == FM_OK || status == FM_ERR_DAMAGED || status == FM_ERR_KIND);
            test_guarded_close(&bad);
        }
        test_guarded_close(&good);
    }
    fm_jpeg_close(&jpeg);
}

static void damaged_structure(void **state) {
    (void)state;
    file f = make((kind){.width = 40, .height = 30});
    const size_t sof = find_marker(&f, 0xC0, 0), sos = find_marker(&f, 0xDA, 0);
    const size_t sof_bytes = 19, data = sos + 14, eoi = f.n - 2;
    check_status(with_inserted(&f, f.n, "trailing", 8), FM_OK, "");
    check_status(with_inserted(&f, eoi, "\xff\xff", 2), FM_OK, "");
    check_status(with_inserted(&f, 2, "\xff\xff", 2), FM_OK, "");
    check_status(with_inserted(&f, sof, "x", 1), FM_ERR_DAMAGED, "no marker");
    check_status(with_inserted(&f, 2, "\xff\xd8", 2), FM_ERR_DAMAGED, "unexpected marker D8");
    check_status(with_inserted(&f, 2, "\xff\xd9", 2), FM_ERR_DAMAGED, "no image data");
    check_status(with_inserted(&f, 2, "\xff\xe0\0\x01", 4), FM_ERR_DAMAGED, "segment length");
    check_status(with_inserted(&f, 2, "\xff\xe0\0\x06JFIF", 8), FM_ERR_DAMAGED, "JFIF");
    check_status(with_inserted(&f, 2,
                               "\xff\xee\0\x08"
                               "Adobe1",
                               10),
                 FM_ERR_DAMAGED, "Adobe");
    check_status(with_inserted(&f, 2,
                               "\xff\xed\0\x16Photoshop 3.0\0"
                               "8BIM\1\1",
                               24),
                 FM_ERR_DAMAGED, "Photoshop");
    check_status(with_inserted(&f, sof, f.bytes + sof, sof_bytes), FM_ERR_DAMAGED, "second frame");
    check_status(without(&f, sof, sof_bytes), FM_ERR_DAMAGED, "before the frame");
    check_status(with_inserted(&f, data + 9, "\xff\xdc\0\4\0\x1e", 6), FM_ERR_KIND, "DC");
    check_status(with_inserted(&f, data + 9, "\xff\x02", 2), FM_ERR_DAMAGED, "marker 02");
    check_status(with_inserted(&f, eoi, f.bytes + sos, eoi - sos), FM_ERR_DAMAGED, "one scan");
    check_status(with_inserted(&f, data + 9, "\xff\xd0", 2), FM_ERR_DAMAGED,
                 MESSAGE("data ends early", "premature end"));
    test_guarded_close(&f);
}

/* Pillow refuses a file whose EXIF resolution is not a number. */
static void exif_that_pillow_refuses(void **state) {
    (void)state;
    uint8_t exif[] = {0xFF, 0xE1, 0, 34,   'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8,
                      0,    1,    1, 0x1A, 0,   5,   0,   0,   0, 1, 0,   0,   0, 0,  0, 0, 0, 0};
    enum { TYPE = 23, COUNT = 27 };
    file f = make((kind){.width = 20, .height = 20});
    check_status(with_inserted(&f, 2, exif, sizeof(exif)), FM_OK, "");
    file twice = with_inserted(&f, 2, exif, sizeof(exif));
    check_status(with_inserted(&twice, 2, exif, sizeof(exif)), FM_ERR_DAMAGED, "EXIF");
    exif[TYPE] = 2; /* a text */
    check_status(with_inserted(&f, 2, exif, sizeof(exif)), FM_ERR_DAMAGED, "EXIF");
    exif[TYPE] = 5;
    exif[COUNT] = 2;
    check_status(with_inserted(&f, 2, exif, sizeof(exif)), FM_ERR_DAMAGED, "EXIF");
    test_guarded_close(&twice);
    test_guarded_close(&f);
}

/* libjpeg would use the tables of the previous image. */
static void tables_of_another_image_are_not_used(void **state) {
    (void)state;
    fm_jpeg *jpeg = open_jpeg();
    fm_error error;
    file f = make((kind){.width = 40, .height = 30});
    file no_huffman = without_segments(&f, 0xC4), no_quant = without_segments(&f, 0xDB);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(status_of(jpeg, &no_huffman, &error), FM_ERR_KIND);
        assert_int_equal(status_of(jpeg, &no_quant, &error), FM_ERR_DAMAGED);
        assert_int_equal(status_of(jpeg, &f, &error), FM_OK);
    }
    test_guarded_close(&f);
    test_guarded_close(&no_huffman);
    test_guarded_close(&no_quant);
    fm_jpeg_close(&jpeg);
}

static void incomplete_scans_are_refused(void **state) {
    (void)state;
    file p = make((kind){.width = 40, .height = 30, .progressive = true});
    size_t last = 0;
    for (size_t at = 0; at + 1 < p.n; at++)
        if (p.bytes[at] == 0xFF && p.bytes[at + 1] == 0xDA) last = at;
    check_status(without(&p, last, p.n - 2 - last), FM_ERR_DAMAGED, "lacks some scans");
    test_guarded_close(&p);
    file s = make((kind){.width = 40, .height = 30, .split = true});
    for (size_t at = 0; at + 1 < s.n; at++)
        if (s.bytes[at] == 0xFF && s.bytes[at + 1] == 0xDA) last = at;
    check_status(without(&s, last, s.n - 2 - last), FM_ERR_DAMAGED, "component without data");
    test_guarded_close(&s);
}

/* The message describes the damage; the next image's message does not depend on it. */
static void damaged_data_is_described(void **state) {
    (void)state;
    const file f = make((kind){.width = 64, .height = 64, .restart = 4});
    const size_t marker = find_marker(&f, 0xD2, 0), eoi = f.n - 2;
    check_status(without(&f, marker + 9, eoi - marker - 9), FM_ERR_DAMAGED,
                 MESSAGE("damaged image data: the data ends early", "premature end"));
    check_status(without(&f, eoi - 9, 9), FM_ERR_DAMAGED,
                 MESSAGE("the data ends early", "premature end"));
#if FM_HAVE_JPEG_INTERNALS
    /* libjpeg says nothing of it. */
    check_status(with_inserted(&f, marker, "\x55", 1), FM_ERR_DAMAGED,
                 "data is left before a restart marker");
#endif
    const file g = test_guarded_open(f.bytes, f.n);
    g.bytes[marker + 1] = 0xD6;
    fm_jpeg *jpeg = open_jpeg();
    fm_error error;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(status_of(jpeg, &g, &error), FM_ERR_DAMAGED);
        assert_non_null(
            strstr(error.message, MESSAGE("not the restart marker that is due", "of RST2")));
        file p = make((kind){.width = 64, .height = 64, .progressive = true, .restart = 4});
        p.bytes[find_marker(&p, 0xD2, 0) + 1] = 0xD6;
        assert_int_equal(status_of(jpeg, &p, &error), FM_ERR_DAMAGED);
        assert_non_null(strstr(error.message, "libjpeg"));
        assert_non_null(strstr(error.message, "of RST2"));
        test_guarded_close(&p);
    }
    fm_jpeg_close(&jpeg);
    test_guarded_close(&g);
    test_guarded_close(&f);
}

/* Rows above damage are delivered; the call that meets it refuses the image. */
static void warnings_refuse_the_image(void **state) {
    (void)state;
    fm_jpeg *jpeg = open_jpeg();
    file f = make((kind){.width = 64, .height = 64, .restart = 4});
    f.bytes[find_marker(&f, 0xD2, 0) + 1] = 0xD6;
    fm_image_info info;
    fm_error error;
    int32_t skip, row_px;
    uint8_t *row = test_malloc(64 * 3 + SLACK);
    assert_int_equal(fm_jpeg_begin(jpeg, f.bytes, f.n, &info, &error), FM_OK);
    assert_int_equal(fm_jpeg_start(jpeg, &(fm_box){0, 0, 64, 64}, &skip, &row_px, &error), FM_OK);
    for (int y = 0; y < 40; y++) assert_int_equal(fm_jpeg_read(jpeg, &row, 1, &error), 1);
    int status = 1;
    for (int y = 40; y < 64 && status == 1; y++) status = fm_jpeg_read(jpeg, &row, 1, &error);
    assert_int_equal(status, FM_ERR_DAMAGED);
    assert_int_equal(fm_jpeg_read(jpeg, &row, 1, &error), FM_ERR_STATE);
    fm_jpeg_end(jpeg);
    test_free(row);
    test_guarded_close(&f);
    fm_jpeg_close(&jpeg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crops_equal_the_full_decode),
        cmocka_unit_test(header_is_reported),
        cmocka_unit_test(box_outside_is_an_argument_error),
        cmocka_unit_test(images_allocate_nothing),
        cmocka_unit_test(one_scan_takes_memory_by_its_width),
        cmocka_unit_test(large_images_do_not_keep_their_memory),
        cmocka_unit_test(a_block_that_failed_is_not_trimmed),
        cmocka_unit_test(too_many_coefficients_are_refused),
        cmocka_unit_test(cancelling_leaves_a_sound_decoder),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(errors_anywhere_leave_a_sound_decoder),
        cmocka_unit_test(other_formats),
        cmocka_unit_test(kinds_that_pillow_decodes),
        cmocka_unit_test(limits_hold_before_decoding),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(a_size_needs_the_header_only),
        cmocka_unit_test(damaged_data_is_not_read_past_its_end),
        cmocka_unit_test(damaged_structure),
        cmocka_unit_test(exif_that_pillow_refuses),
        cmocka_unit_test(tables_of_another_image_are_not_used),
        cmocka_unit_test(incomplete_scans_are_refused),
        cmocka_unit_test(damaged_data_is_described),
        cmocka_unit_test(warnings_refuse_the_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
