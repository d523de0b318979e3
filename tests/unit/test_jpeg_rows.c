/* jpeg_rows.h and jpeg_kernels.h, of every tier: crops of made images of all samplings equal
 * libjpeg's full decode, also with coefficients that no encoder writes. Prints its seed; FM_SEED
 * sets it. */
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
#include "decode/jpeg_codec.h"
#include "decode/jpeg_rows.h"
#include "encode_jpeg.h"
#include "guarded.h"

#ifndef FM_TEST_ROUNDS
#define FM_TEST_ROUNDS 2
#endif

enum { MOST_SIDE = 90, GUARD = 0xA5 };

static const fm_limits LIMITS = {.max_file_bytes = 1 << 24, .max_image_pixels = 1 << 24};

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

/* ---- making files ---------------------------------------------------------------------------- */

typedef struct kind {
    int width, height, n_components;
    int h[3], v[3];
    int most_step;        /* of the quantization tables */
    int most_coefficient; /* of the random coefficients */
    int n_coefficients;   /* of a block */
    unsigned restart;
    bool progressive, split; /* several scans; split: one for each component */
    bool has_extreme;        /* one block of each component is out of range */
} kind;

static const int samplings[][6] = {
    {1, 1, 1, 1, 1, 1}, {2, 2, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1}, {1, 2, 1, 1, 1, 1},
    {4, 1, 1, 1, 1, 1}, {4, 2, 1, 1, 1, 1}, {1, 4, 1, 1, 1, 1}, {2, 4, 1, 1, 1, 1},
    {3, 1, 1, 1, 1, 1}, {1, 3, 1, 1, 1, 1}, {2, 2, 2, 1, 1, 2}, {2, 2, 2, 2, 1, 1},
    {1, 1, 2, 2, 2, 2}, {2, 2, 2, 1, 2, 1}, {4, 1, 2, 1, 1, 1}, {1, 4, 1, 2, 1, 1},
    {2, 2, 1, 2, 1, 2}, {4, 2, 1, 1, 1, 1},
};

static kind random_kind(void) {
    const int32_t sampling = random_below(sizeof(samplings) / sizeof(samplings[0]));
    const int32_t steps[] = {1, 3, 20, 60, 255}, coefficients[] = {2, 20, 150, 1000};
    kind k = {.width = 1 + random_below(random_below(3) ? MOST_SIDE : 12),
              .height = 1 + random_below(random_below(3) ? MOST_SIDE : 12),
              .n_components = random_below(6) ? 3 : 1,
              .most_step = steps[random_below(5)],
              .most_coefficient = coefficients[random_below(4)],
              .n_coefficients = random_below(3) ? random_below(64) : random_below(3),
              .restart = random_below(4) ? 0 : 1 + (unsigned)random_below(9),
              .progressive = random_below(5) == 0};
    k.split = !k.progressive && k.n_components == 3 && random_below(9) == 0;
    for (int c = 0; c < 3; c++) {
        k.h[c] = samplings[sampling][2 * c];
        k.v[c] = samplings[sampling][2 * c + 1];
    }
    return k;
}

/* An image of random coefficients. */
static void fill(struct jpeg_compress_struct *codec, jvirt_barray_ptr *arrays, kind k) {
    const int span = 2 * k.most_coefficient + 1;
    for (int c = 0; c < k.n_components; c++) {
        const int n_x = (int)codec->comp_info[c].width_in_blocks;
        const int n_y = (int)codec->comp_info[c].height_in_blocks;
        const int extreme_x = random_below(n_x), extreme_y = random_below(n_y);
        for (int y = 0; y < n_y; y++) {
            JBLOCKARRAY const row = codec->mem->access_virt_barray((j_common_ptr)codec, arrays[c],
                                                                   (JDIMENSION)y, 1, TRUE);
            for (int x = 0; x < n_x; x++) {
                JCOEF *const block = row[0][x];
                block[0] = (JCOEF)(random_below(span) - k.most_coefficient);
                for (int i = 0; i < k.n_coefficients; i++)
                    block[random_below(64)] = (JCOEF)(random_below(span) - k.most_coefficient);
                if (k.has_extreme && x == extreme_x && y == extreme_y)
                    for (int i = 0; i < 8; i++) block[i] = 1000;
            }
        }
    }
}

static test_guarded make(kind k) {
    const J_COLOR_SPACE colors = k.n_components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, k.width, k.height, k.n_components, colors);
    struct jpeg_compress_struct *const codec = &jpeg.codec;
    jpeg_set_colorspace(codec, colors);
    codec->restart_interval = k.restart;
    for (int t = 0; t < 2; t++) {
        unsigned steps[64];
        for (int i = 0; i < 64; i++) steps[i] = 1 + (unsigned)random_below(k.most_step);
        jpeg_add_quant_table(codec, t, steps, 100, TRUE);
    }
    int max_h = 1, max_v = 1;
    for (int c = 0; c < k.n_components; c++) {
        codec->comp_info[c].h_samp_factor = k.h[c];
        codec->comp_info[c].v_samp_factor = k.v[c];
        if (k.h[c] > max_h) max_h = k.h[c];
        if (k.v[c] > max_v) max_v = k.v[c];
    }
    if (k.split) test_split_jpeg(&jpeg);
    if (k.progressive) jpeg_simple_progression(codec);
    jvirt_barray_ptr arrays[3];
    for (int c = 0; c < k.n_components; c++)
        arrays[c] = codec->mem->request_virt_barray(
            (j_common_ptr)codec, JPOOL_IMAGE, TRUE,
            (JDIMENSION)((k.width + 8 * max_h - 1) / (8 * max_h) * k.h[c]),
            (JDIMENSION)((k.height + 8 * max_v - 1) / (8 * max_v) * k.v[c]), (JDIMENSION)k.v[c]);
    jpeg_write_coefficients(codec, arrays);
    fill(codec, arrays, k);
    test_end_jpeg(&jpeg);
    const test_guarded f = test_guarded_open(jpeg.bytes, jpeg.n_bytes);
    free(jpeg.bytes);
    return f;
}

/* All pixels by libjpeg, as Pillow asks it for them. */
static uint8_t *full_decode(const test_guarded *f, bool bgr) {
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct codec = {.err = jpeg_std_error(&errors)};
    jpeg_create_decompress(&codec);
    jpeg_mem_src(&codec, f->bytes, f->n);
    jpeg_read_header(&codec, TRUE);
    codec.out_color_space = bgr ? JCS_EXT_BGR : JCS_RGB;
    jpeg_start_decompress(&codec);
    const size_t stride = 3 * (size_t)codec.output_width;
    uint8_t *const pixels = test_calloc(stride * codec.output_height + 64, 1);
    while (codec.output_scanline < codec.output_height) {
        JSAMPROW rows[1] = {pixels + stride * codec.output_scanline};
        jpeg_read_scanlines(&codec, rows, 1);
    }
    jpeg_finish_decompress(&codec);
    jpeg_destroy_decompress(&codec);
    return pixels;
}

/* ---- decoding -------------------------------------------------------------------------------- */

static fm_box random_box(int width, int height) {
    fm_box box = {.width = 1 + random_below(width), .height = 1 + random_below(height)};
    if (random_below(8) == 0) box.width = 1;
    if (random_below(8) == 0) box.height = 1;
    if (random_below(8) == 0) box.width = width;
    if (random_below(8) == 0) box.height = height;
    box.left = random_below(3) ? random_below(width - box.width + 1) : width - box.width;
    box.top = random_below(3) ? random_below(height - box.height + 1) : 0;
    return box;
}

/* Rows of a box, each with its slack and a guard byte. */
typedef struct target {
    uint8_t *memory, *rows[MOST_SIDE];
    int32_t skip_px, row_px;
} target;

static void open_target(target *t, int32_t height) {
    const size_t stride = 3 * (size_t)t->row_px + FM_JPEG_SLACK + 1;
    t->memory = test_malloc(stride * (size_t)height);
    memset(t->memory, GUARD, stride * (size_t)height);
    for (int32_t y = 0; y < height; y++) t->rows[y] = t->memory + stride * (size_t)y;
}

static void check_target(target *t, const uint8_t *full, const kind *k, const fm_box *box,
                         const char *what) {
    for (int32_t y = 0; y < box->height; y++) {
        const uint8_t *const wanted =
            full + 3 * ((size_t)(box->top + y) * (size_t)k->width + (size_t)box->left);
        if (memcmp(t->rows[y] + 3 * t->skip_px, wanted, 3 * (size_t)box->width))
            fail_msg("%s: %dx%d, %d components, %dx%d %dx%d %dx%d, box %d,%d %dx%d, row %d", what,
                     k->width, k->height, k->n_components, k->h[0], k->v[0], k->h[1], k->v[1],
                     k->h[2], k->v[2], box->left, box->top, box->width, box->height, y);
        assert_int_equal(t->rows[y][3 * t->row_px + FM_JPEG_SLACK], GUARD);
    }
    test_free(t->memory);
}

/* Decodes a box by jpeg_rows.h alone. Returns false if it is out of range. */
static bool check_rows(fm_jpeg_rows *rows, fm_huffman *huffman, const test_guarded *f,
                       const kind *k, const uint8_t *full, const fm_box *box, bool bgr,
                       const char *what) {
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct codec = {.err = jpeg_std_error(&errors)};
    jpeg_create_decompress(&codec);
    jpeg_mem_src(&codec, f->bytes, f->n);
    jpeg_read_header(&codec, TRUE);
    fm_jpeg_frame frame;
    size_t n_bytes = 0;
    assert_true(fm_jpeg_codec_frame(&codec, &frame));
    assert_true(fm_jpeg_rows_plan(rows, &frame, box, &n_bytes));
    assert_true(fm_jpeg_codec_begin_huffman(&codec, huffman));
    target t = {0};
    fm_jpeg_rows_layout(rows, &t.skip_px, &t.row_px);
    assert_true(t.skip_px >= 0 && t.skip_px + box->width <= t.row_px && t.row_px <= k->width);
    uint8_t *const memory = fm_mem_alloc(NULL, n_bytes, 1);
    memset(memory, GUARD, n_bytes);
    const fm_jpeg_rows_source source = {
        .huffman = huffman, .bgr = bgr, .skips_intervals = random_below(2)};
    assert_int_equal(fm_jpeg_rows_start(rows, memory, &source), FM_JPEG_ROWS_OK);
    open_target(&t, box->height);
    fm_jpeg_rows_status status = FM_JPEG_ROWS_OK;
    for (int32_t y = 0, n; y < box->height && !status; y += n) {
        n = 1 + random_below(box->height - y);
        status = fm_jpeg_rows_read(rows, t.rows + y, n);
    }
    if (status == FM_JPEG_ROWS_OK) check_target(&t, full, k, box, what);
    if (status != FM_JPEG_ROWS_OK) {
        assert_int_equal(status, FM_JPEG_ROWS_OUT_OF_RANGE);
        test_free(t.memory);
    }
    fm_mem_free(memory);
    jpeg_destroy_decompress(&codec);
    return status == FM_JPEG_ROWS_OK;
}

/* Decodes a box by jpeg.h, which goes on by libjpeg if it is out of range. */
static void check_jpeg(fm_jpeg *jpeg, const test_guarded *f, const kind *k, const uint8_t *full,
                       const fm_box *box, bool bgr) {
    fm_image_info info;
    fm_error error;
    target t = {0};
    fm_jpeg_set_bgr(jpeg, bgr);
    assert_int_equal(fm_jpeg_begin(jpeg, f->bytes, f->n, &info, &error), FM_OK);
    assert_int_equal(fm_jpeg_start(jpeg, box, &t.skip_px, &t.row_px, &error), FM_OK);
    open_target(&t, box->height);
    for (int32_t y = 0; y < box->height;) {
        const int got = fm_jpeg_read(jpeg, t.rows + y, 1 + random_below(20), &error);
        assert_in_range(got, 1, box->height - y);
        y += got;
    }
    fm_jpeg_end(jpeg);
    check_target(&t, full, k, box, "jpeg.h");
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void crops_equal_libjpegs(void **state) {
    (void)state;
    fm_jpeg_rows *rows[FM_CPU_N_TIERS] = {0};
    const int best = (int)fm_cpu_best_tier();
    for (int tier = 0; tier <= best; tier++)
        assert_non_null(rows[tier] = fm_jpeg_rows_open(NULL, (fm_cpu_tier)tier));
    fm_huffman *huffman = fm_huffman_open(NULL, fm_cpu_best_tier());
    fm_jpeg *jpeg = NULL;
    assert_int_equal(fm_jpeg_open(&jpeg, &LIMITS, NULL, NULL), FM_OK);
    int n_out_of_range = 0, n_boxes = 0;
    for (int i = 0; i < 250 * FM_TEST_ROUNDS; i++) {
        const kind k = random_kind();
        const test_guarded f = make(k);
        const bool bgr = random_below(4) == 0;
        uint8_t *const full = full_decode(&f, bgr);
        for (int b = 0; b < 12; b++, n_boxes++) {
            const fm_box box = random_box(k.width, k.height);
            check_jpeg(jpeg, &f, &k, full, &box, bgr);
            if (k.progressive || k.split) continue;
            const bool in_range = check_rows(rows[0], huffman, &f, &k, full, &box, bgr, "scalar");
            n_out_of_range += !in_range;
            for (int tier = 1; tier <= best; tier++)
                assert_int_equal(check_rows(rows[tier], huffman, &f, &k, full, &box, bgr,
                                            fm_cpu_tier_name((fm_cpu_tier)tier)),
                                 in_range);
        }
        test_free(full);
        test_guarded_close(&f);
    }
    print_message("%d boxes, %d of them out of range\n", n_boxes, n_out_of_range);
    assert_in_range(n_out_of_range, n_boxes / 20, n_boxes / 2);
    fm_jpeg_close(&jpeg);
    fm_huffman_close(&huffman);
    for (int tier = 0; tier <= best; tier++) fm_jpeg_rows_close(&rows[tier]);
}

/* Images of which one block of each component is out of range: the rows above come from
 * jpeg_rows.h, the others from libjpeg. */
static void libjpeg_goes_on_anywhere(void **state) {
    (void)state;
    fm_jpeg *jpeg = NULL;
    assert_int_equal(fm_jpeg_open(&jpeg, &LIMITS, NULL, NULL), FM_OK);
    for (size_t s = 0; s < sizeof(samplings) / sizeof(samplings[0]); s++) {
        kind k = {.width = 70, .height = 83, .n_components = 3, .most_step = 20};
        k.most_coefficient = 3;
        k.n_coefficients = 9;
        k.has_extreme = true;
        for (int c = 0; c < 3; c++) {
            k.h[c] = samplings[s][2 * c];
            k.v[c] = samplings[s][2 * c + 1];
        }
        for (int i = 0; i < 12; i++) {
            k.progressive = i % 3 == 1;
            k.split = i % 3 == 2;
            const test_guarded f = make(k);
            uint8_t *const full = full_decode(&f, false);
            for (int b = 0; b < 6; b++) {
                const fm_box box = random_box(k.width, k.height);
                check_jpeg(jpeg, &f, &k, full, &box, false);
            }
            test_free(full);
            test_guarded_close(&f);
        }
    }
    fm_jpeg_close(&jpeg);
}

static const int16_t *given_blocks(void *owner, int32_t component, int32_t row) {
    assert_int_equal(component, 0);
    return (const int16_t *)owner + (size_t)row * 9 * 64;
}

/* Progressive files can have the smallest 16-bit number as any coefficient, for which SIMD has no
 * absolute value. */
static void smallest_coefficients_are_out_of_range(void **state) {
    (void)state;
    uint16_t steps[64];
    for (int i = 0; i < 64; i++) steps[i] = 1;
    const fm_jpeg_frame frame = {72, 8, 1, {{.h = 1, .v = 1, .steps = steps}}};
    const fm_box box = {.left = 8, .top = 0, .width = 56, .height = 8};
    for (int tier = 0; tier <= (int)fm_cpu_best_tier(); tier++) {
        fm_jpeg_rows *rows = fm_jpeg_rows_open(NULL, (fm_cpu_tier)tier);
        for (int at = 0; at < 9 * 64; at++) {
            int16_t blocks[9 * 64] = {0};
            blocks[at] = INT16_MIN;
            size_t n_bytes = 0;
            assert_true(fm_jpeg_rows_plan(rows, &frame, &box, &n_bytes));
            target t = {0};
            fm_jpeg_rows_layout(rows, &t.skip_px, &t.row_px);
            uint8_t *const memory = fm_mem_alloc(NULL, n_bytes, 1);
            const fm_jpeg_rows_source source = {.blocks = given_blocks, .owner = blocks};
            assert_int_equal(fm_jpeg_rows_start(rows, memory, &source), FM_JPEG_ROWS_OK);
            open_target(&t, box.height);
            const bool is_needed = at >= 64 && at < 8 * 64;
            assert_int_equal(fm_jpeg_rows_read(rows, t.rows, box.height),
                             is_needed ? FM_JPEG_ROWS_OUT_OF_RANGE : FM_JPEG_ROWS_OK);
            test_free(t.memory);
            fm_mem_free(memory);
        }
        fm_jpeg_rows_close(&rows);
    }
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 20240607u;
    printf("seed %u\n", lcg_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crops_equal_libjpegs),
        cmocka_unit_test(libjpeg_goes_on_anywhere),
        cmocka_unit_test(smallest_coefficients_are_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
