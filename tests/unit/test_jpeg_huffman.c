/*
 * The Huffman decoder against libjpeg's: random coefficients are written as JPEG files, and each
 * MCU's are compared, whether it was read or others were skipped before it. Then the same files cut
 * short and damaged: nothing past their end is read, and what libjpeg would warn about is refused.
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

#include "decode/jpeg_huffman.h"
#include "guarded.h"

static uint32_t lcg_state = 1;
static int random_below(int n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct kind {
    int width, height, n_components;
    int h, v;         /* sampling factors of the first component; the others have 1 */
    int restart;      /* interval in MCUs, or 0 */
    int density;      /* of 256: how often a coefficient is not zero */
    int largest_bits; /* of a coefficient, up to 10 */
    bool optimized;
} kind;

typedef struct made {
    uint8_t *bytes;
    size_t n;
} made;

static int random_value(int largest_bits) {
    const int bits = 1 + random_below(largest_bits);
    const int value = 1 + random_below((1 << bits) - 1);
    return random_below(2) ? value : -value;
}

static void fill_block(JCOEFPTR block, const kind *k) {
    memset(block, 0, sizeof(JBLOCK));
    block[0] = (JCOEF)(random_below(4) ? random_value(k->largest_bits) : 0);
    for (int i = 1; i < DCTSIZE2; i++)
        if (random_below(256) < k->density) block[i] = (JCOEF)random_value(k->largest_bits);
    if (random_below(4) == 0) block[63] = 1; /* no end of block */
}

static made make(const kind *k) {
    struct jpeg_compress_struct codec;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long n = 0;
    codec.err = jpeg_std_error(&errors);
    jpeg_create_compress(&codec);
    jpeg_mem_dest(&codec, &bytes, &n);
    codec.image_width = (JDIMENSION)k->width;
    codec.image_height = (JDIMENSION)k->height;
    codec.input_components = k->n_components;
    codec.in_color_space = k->n_components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
    jpeg_set_defaults(&codec);
    codec.optimize_coding = k->optimized;
    codec.restart_interval = (unsigned)k->restart;
    for (int c = 0; c < k->n_components; c++) {
        codec.comp_info[c].h_samp_factor = c ? 1 : k->h;
        codec.comp_info[c].v_samp_factor = c ? 1 : k->v;
    }
    jvirt_barray_ptr arrays[3];
    JDIMENSION wide[3], high[3];
    const int mcu_width = 8 * k->h, mcu_height = 8 * k->v;
    for (int c = 0; c < k->n_components; c++) {
        const jpeg_component_info *const info = &codec.comp_info[c];
        wide[c] = (JDIMENSION)((k->width + mcu_width - 1) / mcu_width * info->h_samp_factor);
        high[c] = (JDIMENSION)((k->height + mcu_height - 1) / mcu_height * info->v_samp_factor);
        arrays[c] = codec.mem->request_virt_barray((j_common_ptr)&codec, JPOOL_IMAGE, TRUE, wide[c],
                                                   high[c], (JDIMENSION)info->v_samp_factor);
    }
    jpeg_write_coefficients(&codec, arrays);
    for (int c = 0; c < k->n_components; c++)
        for (JDIMENSION row = 0; row < high[c]; row++) {
            JBLOCKARRAY rows =
                codec.mem->access_virt_barray((j_common_ptr)&codec, arrays[c], row, 1, TRUE);
            for (JDIMENSION column = 0; column < wide[c]; column++) fill_block(rows[0][column], k);
        }
    jpeg_finish_compress(&codec);
    jpeg_destroy_compress(&codec);
    return (made){bytes, n};
}

static kind random_kind(void) {
    const int n_components = random_below(4) ? 3 : 1;
    return (kind){.width = 1 + random_below(120),
                  .height = 1 + random_below(60),
                  .n_components = n_components,
                  .h = n_components == 3 ? 1 + random_below(2) : 1,
                  .v = n_components == 3 ? 1 + random_below(2) : 1,
                  .restart = random_below(3) ? 0 : 1 + random_below(20),
                  .density = random_below(4) ? random_below(100) : 255 * random_below(2),
                  .largest_bits = 1 + random_below(10),
                  .optimized = random_below(2)};
}

/* ---- libjpeg's view -------------------------------------------------------------------------- */

typedef struct view {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    jvirt_barray_ptr *arrays;
    int n_mcus_wide, n_mcus_high;
    fm_huffman_scan scan;
} view;

/* The file's tables and its entropy-coded data, and libjpeg's coefficients. */
static void open_view(view *v, const made *file) {
    v->codec.err = jpeg_std_error(&v->errors);
    jpeg_create_decompress(&v->codec);
    jpeg_mem_src(&v->codec, file->bytes, file->n);
    jpeg_read_header(&v->codec, TRUE);
    v->scan = (fm_huffman_scan){.bytes = v->codec.src->next_input_byte,
                                .n_bytes = v->codec.src->bytes_in_buffer,
                                .restart_interval = v->codec.restart_interval};
    v->arrays = jpeg_read_coefficients(&v->codec);
    for (int c = 0; c < v->codec.num_components; c++) {
        const jpeg_component_info *const info = &v->codec.comp_info[c];
        const int n = v->codec.num_components == 1 ? 1 : info->h_samp_factor * info->v_samp_factor;
        for (int i = 0; i < n; i++)
            v->scan.blocks[v->scan.n_blocks++] =
                (fm_huffman_block){(uint8_t)c, (uint8_t)info->dc_tbl_no, (uint8_t)info->ac_tbl_no};
        const JHUFF_TBL *const dc = v->codec.dc_huff_tbl_ptrs[info->dc_tbl_no];
        const JHUFF_TBL *const ac = v->codec.ac_huff_tbl_ptrs[info->ac_tbl_no];
        v->scan.dc[info->dc_tbl_no] = (fm_huffman_code){dc->bits, dc->huffval};
        v->scan.ac[info->ac_tbl_no] = (fm_huffman_code){ac->bits, ac->huffval};
    }
    const int h = v->codec.max_h_samp_factor * 8, w = v->codec.max_v_samp_factor * 8;
    v->n_mcus_wide = ((int)v->codec.image_width + h - 1) / h;
    v->n_mcus_high = ((int)v->codec.image_height + w - 1) / w;
}

static void close_view(view *v) { jpeg_destroy_decompress(&v->codec); }

/* Compares an MCU's blocks with libjpeg's. */
static void compare(view *v, int x, int y, int16_t blocks[][64]) {
    int at = 0;
    for (int c = 0; c < v->codec.num_components; c++) {
        const jpeg_component_info *const info = &v->codec.comp_info[c];
        const int h = info->h_samp_factor, n_v = info->v_samp_factor;
        for (int row = 0; row < n_v; row++) {
            JBLOCKARRAY rows = v->codec.mem->access_virt_barray(
                (j_common_ptr)&v->codec, v->arrays[c], (JDIMENSION)(y * n_v + row), 1, FALSE);
            for (int column = 0; column < h; column++)
                assert_memory_equal(blocks[at++], rows[0][x * h + column], sizeof(JBLOCK));
        }
    }
    assert_int_equal(at, v->scan.n_blocks);
}

static bool read_mcu(fm_huffman *huffman, int16_t blocks[][64]) {
    int16_t *pointers[FM_HUFFMAN_MAX_BLOCKS];
    memset(blocks, 0, sizeof(int16_t[FM_HUFFMAN_MAX_BLOCKS][64]));
    for (int i = 0; i < FM_HUFFMAN_MAX_BLOCKS; i++) pointers[i] = blocks[i];
    return fm_huffman_read(huffman, pointers);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_file(fm_huffman *huffman, const kind *k, int read_share) {
    made file = make(k);
    view v = {0};
    open_view(&v, &file);
    /* Nothing but the data, at the end of readable memory. */
    test_guarded data = test_guarded_open(v.scan.bytes, v.scan.n_bytes);
    v.scan.bytes = data.bytes;
    assert_true(fm_huffman_begin(huffman, &v.scan));
    int16_t blocks[FM_HUFFMAN_MAX_BLOCKS][64];
    for (int y = 0; y < v.n_mcus_high; y++)
        for (int x = 0; x < v.n_mcus_wide; x++) {
            if (random_below(256) < read_share) {
                assert_true(read_mcu(huffman, blocks));
                compare(&v, x, y, blocks);
            } else {
                assert_true(fm_huffman_skip(huffman));
            }
        }
    test_guarded_close(&data);
    close_view(&v);
    free(file.bytes);
}

static void coefficients_equal_libjpegs(void **state) {
    (void)state;
    fm_huffman *huffman = fm_huffman_open(NULL);
    for (int i = 0; i < 3000; i++) {
        const kind k = random_kind();
        const int read_shares[] = {256, 128, 30};
        check_file(huffman, &k, read_shares[i % 3]);
    }
    fm_huffman_close(&huffman);
}

static void large_scans_pass_the_window(void **state) {
    (void)state;
    fm_huffman *huffman = fm_huffman_open(NULL);
    for (int i = 0; i < 12; i++) {
        const kind k = {.width = 800,
                        .height = 400,
                        .n_components = 3,
                        .h = 1 + i % 2,
                        .v = 1 + i / 2 % 2,
                        .restart = i % 3 == 2 ? 700 : 0,
                        .density = 40 + 30 * i % 200,
                        .largest_bits = 4 + i % 6};
        check_file(huffman, &k, i % 2 ? 256 : 20);
    }
    fm_huffman_close(&huffman);
}

/* Passes n MCUs; true if all are sane. */
static bool pass(fm_huffman *huffman, int n, bool read) {
    int16_t blocks[FM_HUFFMAN_MAX_BLOCKS][64];
    for (int i = 0; i < n; i++)
        if (!(read ? read_mcu(huffman, blocks) : fm_huffman_skip(huffman))) return false;
    return true;
}

static void data_cut_short_is_refused(void **state) {
    (void)state;
    fm_huffman *huffman = fm_huffman_open(NULL);
    for (int i = 0; i < 30; i++) {
        const kind k = random_kind();
        made file = make(&k);
        view v = {0};
        open_view(&v, &file);
        const int n_mcus = v.n_mcus_wide * v.n_mcus_high;
        const size_t n_data = v.scan.n_bytes - 2; /* without EOI */
        const size_t step = 1 + n_data / 200;
        /* The last byte may be all padding. */
        for (size_t n = 0; n + 1 < n_data; n += step) {
            test_guarded data = test_guarded_open(v.scan.bytes, n);
            fm_huffman_scan scan = v.scan;
            scan.bytes = data.bytes;
            scan.n_bytes = n;
            for (int read = 0; read < 2; read++) {
                assert_true(fm_huffman_begin(huffman, &scan));
                assert_false(pass(huffman, n_mcus, read));
            }
            test_guarded_close(&data);
        }
        close_view(&v);
        free(file.bytes);
    }
    fm_huffman_close(&huffman);
}

/* What reading takes, skipping takes, and the other way round; the same next MCU follows. */
static void damage_is_the_same_to_both(void **state) {
    (void)state;
    fm_huffman *a = fm_huffman_open(NULL), *b = fm_huffman_open(NULL);
    int n_refused = 0;
    for (int i = 0; i < 4000; i++) {
        const kind k = random_kind();
        made file = make(&k);
        view v = {0};
        open_view(&v, &file);
        test_guarded data = test_guarded_open(v.scan.bytes, v.scan.n_bytes);
        for (int n = 1 + random_below(4); n > 0; n--)
            data.bytes[random_below((int)data.n)] ^= (uint8_t)(1 << random_below(8));
        v.scan.bytes = data.bytes;
        assert_true(fm_huffman_begin(a, &v.scan));
        assert_true(fm_huffman_begin(b, &v.scan));
        bool sane = true;
        for (int m = 0; sane && m < v.n_mcus_wide * v.n_mcus_high; m++) {
            sane = pass(a, 1, true);
            assert_int_equal(pass(b, 1, false), sane);
        }
        n_refused += !sane;
        test_guarded_close(&data);
        close_view(&v);
        free(file.bytes);
    }
    assert_true(n_refused > 100);
    fm_huffman_close(&a);
    fm_huffman_close(&b);
}

static void bad_tables_are_refused(void **state) {
    (void)state;
    fm_huffman *huffman = fm_huffman_open(NULL);
    uint8_t symbols[256] = {0}, fine[17] = {0, 1, 1}, too_many[17] = {0, 3}, none[17] = {0};
    const uint8_t data[2] = {0, 0};
    fm_huffman_scan scan = {.bytes = data, .n_bytes = 2, .n_blocks = 1};
    scan.dc[0] = scan.ac[0] = (fm_huffman_code){fine, symbols};
    assert_true(fm_huffman_begin(huffman, &scan));
    scan.ac[0].n_codes = too_many;
    assert_false(fm_huffman_begin(huffman, &scan));
    scan.ac[0].n_codes = none; /* no code at all: any bit is damage */
    assert_true(fm_huffman_begin(huffman, &scan));
    assert_false(pass(huffman, 1, true));
    scan.ac[0].n_codes = fine;
    symbols[1] = 16; /* no number of bits of a DC difference */
    assert_false(fm_huffman_begin(huffman, &scan));
    symbols[1] = 0;
    scan.n_blocks = FM_HUFFMAN_MAX_BLOCKS + 1;
    assert_false(fm_huffman_begin(huffman, &scan));
    scan.n_blocks = 1;
    scan.blocks[0].ac_table = FM_HUFFMAN_N_TABLES;
    assert_false(fm_huffman_begin(huffman, &scan));
    fm_huffman_close(&huffman);
    fm_huffman_close(&huffman);
    fm_huffman_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coefficients_equal_libjpegs),
        cmocka_unit_test(large_scans_pass_the_window),
        cmocka_unit_test(data_cut_short_is_refused),
        cmocka_unit_test(damage_is_the_same_to_both),
        cmocka_unit_test(bad_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
