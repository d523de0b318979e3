/*
 * Compares the Huffman decoder with libjpeg's: random coefficients are written as JPEG files, and
 * those of each MCU are compared, whether all MCUs are read or some are skipped. Then the same
 * files truncated and damaged: nothing past their end is read, files that libjpeg warns about are
 * refused, and accepted files have libjpeg's coefficients.
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

/* For the instruction sets that FEEDMILL_CPU names; CTest runs this program for several. */
static fm_huffman *open_huffman(void) {
    fm_cpu_tier tier;
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), 0);
    fm_huffman *const huffman = fm_huffman_open(NULL, tier);
    assert_non_null(huffman);
    return huffman;
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

/* A copy, in which there is room for more bytes. */
static made copy(const made *file, size_t room) {
    made copied = {malloc(file->n + room), file->n};
    assert_non_null(copied.bytes);
    memcpy(copied.bytes, file->bytes, file->n);
    return copied;
}

static void insert(made *file, size_t at, uint8_t byte) {
    memmove(file->bytes + at + 1, file->bytes + at, file->n++ - at);
    file->bytes[at] = byte;
}

static kind random_kind(void) {
    const int n_components = random_below(4) ? 3 : 1;
    return (kind){.width = 1 + random_below(120),
                  .height = 1 + random_below(60),
                  .n_components = n_components,
                  .h = n_components == 3 ? 1 << random_below(3) : 1,
                  .v = n_components == 3 ? 1 << random_below(2) : 1,
                  .restart = random_below(3) ? 0 : 1 + random_below(20),
                  .density = random_below(4) ? random_below(100) : 255 * random_below(2),
                  .largest_bits = 1 + random_below(10),
                  .optimized = random_below(2)};
}

/* ---- files of long codes --------------------------------------------------------------------- */

/* What libjpeg does not write: codes of 16 and values of 15 bits, up to 248 bytes a block. */

typedef struct writer {
    made file;
    uint64_t bits;
    int n_bits; /* fewer than 8 between two calls */
} writer;

static void put(writer *w, uint32_t bits, int n) {
    w->bits = w->bits << n | bits;
    for (w->n_bits += n; w->n_bits >= 8;) {
        w->n_bits -= 8;
        const uint8_t byte = (uint8_t)(w->bits >> w->n_bits);
        w->file.bytes[w->file.n++] = byte;
        if (byte == 0xFF) w->file.bytes[w->file.n++] = 0;
    }
}

/* Ones up to a whole byte. */
static void pad(writer *w) {
    if (w->n_bits) put(w, (1u << (8 - w->n_bits)) - 1, 8 - w->n_bits);
}

static void put_bytes(writer *w, const void *bytes, size_t n) {
    memcpy(w->file.bytes + w->file.n, bytes, n);
    w->file.n += n;
}

/* The first n_short symbols have codes of 1, 2, ... bits, the others of 16. */
typedef struct long_code {
    uint8_t n_codes[17], symbols[256];
    int n, n_short;
} long_code;

static long_code make_long_code(bool is_ac, int n_short) {
    long_code code = {.n_short = n_short};
    for (int n_bits = is_ac; n_bits < 16; n_bits++)
        for (int run = 0; run < (is_ac ? 16 : 1); run++)
            code.symbols[code.n++] = (uint8_t)(run << 4 | n_bits);
    if (is_ac) {
        code.symbols[code.n++] = 0xF0;
        code.symbols[code.n++] = 0x00;
    }
    for (int length = 1; length <= n_short; length++) code.n_codes[length] = 1;
    code.n_codes[16] = (uint8_t)(code.n - n_short);
    return code;
}

static void put_table(writer *w, const long_code *code, uint8_t id) {
    const int n_bytes = 19 + code->n;
    const uint8_t head[5] = {0xFF, 0xC4, (uint8_t)(n_bytes >> 8), (uint8_t)n_bytes, id};
    put_bytes(w, head, sizeof(head));
    put_bytes(w, code->n_codes + 1, 16);
    put_bytes(w, code->symbols, (size_t)code->n);
}

static void put_symbol(writer *w, const long_code *code, int symbol) {
    int i = 0;
    while (code->symbols[i] != symbol) i++;
    if (i < code->n_short)
        put(w, (2u << i) - 2, i + 1);
    else
        put(w, 0x10000u - (0x10000u >> code->n_short) + (uint32_t)(i - code->n_short), 16);
}

/* A symbol and the bits of its value. */
static void put_value(writer *w, const long_code *code, int run, int n_bits) {
    put_symbol(w, code, run << 4 | n_bits);
    put(w, (uint32_t)random_below(1 << n_bits), n_bits);
}

static void put_block(writer *w, const long_code *dc, const long_code *ac) {
    const bool full = random_below(4) > 0;
    put_value(w, dc, 0, full ? 15 : random_below(16));
    int k = 0;
    while (k < 63 && (full || random_below(8))) {
        const int most = 63 - k - 1 < 15 ? 63 - k - 1 : 15;
        const int run = full ? 0 : random_below(most + 1);
        put_value(w, ac, run, full ? 15 : 1 + random_below(15));
        k += run + 1;
    }
    if (k < 63) put_symbol(w, ac, 0);
}

/* 4:1:0 with MCUs of 10 blocks, `wide` by `high` of them. */
static made make_long_codes(int wide, int high, int restart, int n_short) {
    const long_code dc = make_long_code(false, n_short), ac = make_long_code(true, n_short);
    writer w = {.file.bytes = malloc((size_t)(wide * high) * 5000 + 1000)};
    assert_non_null(w.file.bytes);
    const uint8_t quantization[] = {0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0};
    put_bytes(&w, quantization, sizeof(quantization));
    for (int i = 0; i < 64; i++) put_bytes(&w, "\1", 1);
    const uint8_t frame[] = {
        0xFF, 0xC1, 0, 17, 8,    0, (uint8_t)(16 * high), 0, (uint8_t)(32 * wide), 3, 1, 0x42, 0,
        2,    0x11, 0, 3,  0x11, 0};
    put_bytes(&w, frame, sizeof(frame));
    put_table(&w, &dc, 0x00);
    put_table(&w, &ac, 0x10);
    const uint8_t scan[] = {
        0xFF, 0xDD, 0, 4, 0, (uint8_t)restart, 0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0};
    put_bytes(&w, scan, sizeof(scan));
    for (int i = 0; i < wide * high; i++) {
        if (restart && i && i % restart == 0) {
            pad(&w);
            const uint8_t marker[2] = {0xFF, (uint8_t)(0xD0 + (i / restart - 1) % 8)};
            put_bytes(&w, marker, 2);
        }
        for (int block = 0; block < 10; block++) put_block(&w, &dc, &ac);
    }
    pad(&w);
    put_bytes(&w, "\xff\xd9", 2);
    return w.file;
}

/* ---- libjpeg's view -------------------------------------------------------------------------- */

typedef struct view {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
    jvirt_barray_ptr *arrays; /* NULL: libjpeg gave up */
    int n_warnings;           /* about the data up to the last MCU; the decoder sees no more */
    int n_mcus_wide, n_mcus_high;
    fm_huffman_scan scan;
} view;

static bool is_past_the_data(const struct jpeg_decompress_struct *codec) {
    return codec->input_iMCU_row == codec->total_iMCU_rows;
}

static void on_message(j_common_ptr codec, int level) {
    view *const v = codec->client_data;
    if (level < 0 && !is_past_the_data(&v->codec)) v->n_warnings++;
}

static void on_error(j_common_ptr codec) {
    view *const v = codec->client_data;
    if (!is_past_the_data(&v->codec)) v->n_warnings++;
    longjmp(v->escape, 1);
}

/* The file's tables and its entropy-coded data, and libjpeg's coefficients. */
static void open_view(view *v, const made *file) {
    v->codec.err = jpeg_std_error(&v->errors);
    v->errors.emit_message = on_message;
    v->errors.error_exit = on_error;
    v->codec.client_data = v;
    jpeg_create_decompress(&v->codec);
    jpeg_mem_src(&v->codec, file->bytes, file->n);
    if (setjmp(v->escape)) {
        assert_int_not_equal(v->scan.n_blocks, 0);
        return;
    }
    jpeg_read_header(&v->codec, TRUE);
    v->scan = (fm_huffman_scan){.bytes = v->codec.src->next_input_byte,
                                .n_bytes = v->codec.src->bytes_in_buffer,
                                .restart_interval = v->codec.restart_interval};
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
    const int w = v->codec.max_h_samp_factor * 8, h = v->codec.max_v_samp_factor * 8;
    v->n_mcus_wide = ((int)v->codec.image_width + w - 1) / w;
    v->n_mcus_high = ((int)v->codec.image_height + h - 1) / h;
    v->arrays = jpeg_read_coefficients(&v->codec);
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

/* Each MCU is accepted; those that are read, `read_share` of 256, have libjpeg's coefficients. */
static void check_file(fm_huffman *huffman, const made *file, int read_share) {
    view v = {0};
    open_view(&v, file);
    assert_non_null(v.arrays);
    assert_int_equal(v.n_warnings, 0);
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
    assert_null(fm_huffman_damage(huffman));
    test_guarded_close(&data);
    close_view(&v);
}

static void coefficients_equal_libjpegs(void **state) {
    (void)state;
    fm_huffman *huffman = open_huffman();
    for (int i = 0; i < 3000; i++) {
        const kind k = random_kind();
        const int read_shares[] = {256, 128, 30};
        const made file = make(&k);
        check_file(huffman, &file, read_shares[i % 3]);
        free(file.bytes);
    }
    fm_huffman_close(&huffman);
}

static void large_scans_pass_the_window(void **state) {
    (void)state;
    fm_huffman *huffman = open_huffman();
    for (int i = 0; i < 18; i++) {
        const kind k = {.width = 800,
                        .height = 400,
                        .n_components = 3,
                        .h = 1 << i % 3,
                        .v = 1 << i / 3 % 2,
                        .restart = i % 5 == 2 ? 70 : 0,
                        .density = 40 + 30 * i % 200,
                        .largest_bits = 4 + i % 6};
        const made file = make(&k);
        check_file(huffman, &file, i % 2 ? 256 : 20);
        free(file.bytes);
    }
    fm_huffman_close(&huffman);
}

/* The largest MCUs that there are, wherever they lie in the window. */
static void the_longest_codes_pass_the_window(void **state) {
    (void)state;
    fm_huffman *huffman = open_huffman();
    for (int i = 0; i < 54; i++) {
        const made file = make_long_codes(7, 5 + i % 9, i % 3 ? 0 : 1 + i, i % 9);
        check_file(huffman, &file, i % 2 ? 256 : 20);
        free(file.bytes);
    }
    fm_huffman_close(&huffman);
}

/* More FF before a restart marker are padding to both. */
static void fill_bytes_are_passed(void **state) {
    (void)state;
    fm_huffman *huffman = open_huffman();
    int n_fill = 0;
    for (int i = 0; i < 300; i++) {
        const kind k = random_kind();
        const made file = i % 10 ? make(&k) : make_long_codes(2, 2, i % 3, 8);
        view v = {0};
        open_view(&v, &file);
        made filled = copy(&file, file.n);
        for (size_t at = (size_t)(v.scan.bytes - file.bytes); at + 2 < filled.n; at++) {
            if (filled.bytes[at] != 0xFF || filled.bytes[at + 1] == 0 || random_below(2)) continue;
            const int n = 1 + (random_below(8) ? 0 : random_below(40));
            for (int left = n; left > 0 && filled.n < 2 * file.n; left--, at++, n_fill++)
                insert(&filled, at, 0xFF);
        }
        check_file(huffman, &filled, 128);
        close_view(&v);
        free(filled.bytes);
        free(file.bytes);
    }
    assert_true(n_fill > 500);
    fm_huffman_close(&huffman);
}

/* Passes n MCUs; true if all are sane. */
static bool pass(fm_huffman *huffman, int n, bool read) {
    int16_t blocks[FM_HUFFMAN_MAX_BLOCKS][64];
    for (int i = 0; i < n; i++)
        if (!(read ? read_mcu(huffman, blocks) : fm_huffman_skip(huffman))) return false;
    return true;
}

static void check_cuts(fm_huffman *huffman, const made *file) {
    view v = {0};
    open_view(&v, file);
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
            const char *const damage = fm_huffman_damage(huffman);
            /* A cut between two intervals leaves no marker. */
            if (!v.scan.restart_interval) assert_string_equal(damage, "the data ends early");
            assert_non_null(damage);
        }
        test_guarded_close(&data);
    }
    close_view(&v);
}

static void data_cut_short_is_refused(void **state) {
    (void)state;
    fm_huffman *huffman = open_huffman();
    for (int i = 0; i < 36; i++) {
        const kind k = random_kind();
        const made file = i % 6 ? make(&k) : make_long_codes(2, 4, i % 4, i % 9);
        check_cuts(huffman, &file);
        free(file.bytes);
    }
    fm_huffman_close(&huffman);
}

/* A bit, a byte, one too many or too few, often one that stands in a marker. */
static void damage(made *file, size_t first) {
    static const uint8_t values[] = {0xFF, 0x00, 0xD0, 0xD7, 0x55};
    const size_t n_data = file->n - 2 - first;
    if (n_data < 2) return;
    const size_t at = first + (size_t)random_below((int)n_data);
    const uint8_t value = values[random_below(5)];
    switch (random_below(6)) {
    case 0:
        file->bytes[at] = value;
        break;
    case 1:
        insert(file, at, value);
        break;
    case 2:
        memmove(file->bytes + at, file->bytes + at + 1, --file->n - at);
        break;
    default:
        file->bytes[at] ^= (uint8_t)(1 << random_below(8));
    }
}

/* A damaged file that is accepted: libjpeg has no warning and the same coefficients. */
static void check_accepted(fm_huffman *huffman, view *v) {
    assert_int_equal(v->n_warnings, 0);
    if (!v->arrays) return; /* the damage is after the last MCU */
    int16_t blocks[FM_HUFFMAN_MAX_BLOCKS][64];
    assert_true(fm_huffman_begin(huffman, &v->scan));
    for (int y = 0; y < v->n_mcus_high; y++)
        for (int x = 0; x < v->n_mcus_wide; x++) {
            assert_true(read_mcu(huffman, blocks));
            compare(v, x, y, blocks);
        }
}

/* What reading takes, skipping takes, and the other way round; the same next MCU follows. */
static void damage_is_that_of_libjpeg(void **state) {
    (void)state;
    fm_huffman *a = open_huffman(), *b = open_huffman();
    int n_accepted = 0, n_refused = 0, n_stricter = 0;
    for (int i = 0; i < 6000; i++) {
        const kind k = random_kind();
        const made file = i % 50 ? make(&k) : make_long_codes(1, 2, i % 3, i / 50 % 9);
        view whole = {0}, v = {0};
        open_view(&whole, &file);
        made damaged = copy(&file, 8);
        for (int n = 1 + random_below(3); n > 0; n--)
            damage(&damaged, (size_t)(whole.scan.bytes - file.bytes));
        open_view(&v, &damaged);
        test_guarded data = test_guarded_open(v.scan.bytes, v.scan.n_bytes);
        v.scan.bytes = data.bytes;
        assert_true(fm_huffman_begin(a, &v.scan));
        assert_true(fm_huffman_begin(b, &v.scan));
        bool sane = true;
        for (int m = 0; sane && m < v.n_mcus_wide * v.n_mcus_high; m++) {
            sane = pass(a, 1, true);
            assert_int_equal(pass(b, 1, false), sane);
        }
        assert_ptr_equal(fm_huffman_damage(a), fm_huffman_damage(b));
        assert_int_equal(fm_huffman_damage(a) == NULL, sane);
        if (sane) check_accepted(a, &v);
        n_accepted += sane;
        n_refused += !sane;
        n_stricter += !sane && v.n_warnings == 0;
        test_guarded_close(&data);
        close_view(&v);
        close_view(&whole);
        free(damaged.bytes);
        free(file.bytes);
    }
    print_message("%d accepted, %d refused, %d of them without a warning of libjpeg's\n",
                  n_accepted, n_refused, n_stricter);
    assert_true(n_accepted > 500);
    assert_true(n_refused > 500);
    fm_huffman_close(&a);
    fm_huffman_close(&b);
}

/* Passes MCUs of one block until one is refused, and tells why. */
static const char *why_refused(fm_huffman *huffman, const fm_huffman_scan *scan, bool read) {
    assert_true(fm_huffman_begin(huffman, scan));
    while (pass(huffman, 1, read)) {
    }
    return fm_huffman_damage(huffman);
}

/* Codes 0 and 10: DC differences of 15 bits and of 0; the end of a block, and a 1 or -1 behind 14
 * zeros. So 100 is a black block. */
static void damage_is_named(void **state) {
    (void)state;
    static const uint8_t n_codes[17] = {0, 1, 1}, dc[256] = {15, 0}, ac[256] = {0, 0xE1};
    static const struct {
        uint8_t bytes[8], n_bytes;
        const char *damage;
    } cases[] = {
        {{0x9F, 0xFF, 0xD0, 0x9F, 0xFF, 0xD9}, 6, "not the restart marker that is due"},
        {{0x9F, 0xFF, 0xD1, 0x9F, 0xFF, 0xD9}, 6, "not the restart marker that is due"},
        {{0x9F, 0x55, 0xFF, 0xD0, 0x9F, 0xFF, 0xD9}, 7, "data is left before a restart marker"},
        {{0xFF, 0xD0, 0x9F, 0xFF, 0xD9}, 5, "the data ends early"},
        {{0}, 0, "the data ends early"},
        {{0xAD, 0xB6, 0xFF, 0xFF, 0x00, 0x00}, 6, "the data ends early"},
        {{0xC0, 0x00, 0x00, 0x00}, 4, "bad Huffman code"},
        {{0x98, 0x00, 0x00, 0x00}, 4, "data is left before a restart marker"},
        {{0xAD, 0xB6, 0xFF, 0x00, 0x00}, 5, "a run past the end of its block"},
    };
    fm_huffman *huffman = open_huffman();
    fm_huffman_scan scan = {.n_blocks = 1, .restart_interval = 1};
    scan.dc[0] = (fm_huffman_code){n_codes, dc};
    scan.ac[0] = (fm_huffman_code){n_codes, ac};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        scan.bytes = cases[i].bytes;
        scan.n_bytes = cases[i].n_bytes;
        for (int read = 0; read < 2; read++)
            assert_string_equal(why_refused(huffman, &scan, read), cases[i].damage);
    }
    writer w = {.file.bytes = malloc(200000)};
    assert_non_null(w.file.bytes);
    for (int i = 0; i < 20000; i++) put(&w, 0xFFFE, 17); /* each difference is 32,767 */
    scan.bytes = w.file.bytes;
    scan.n_bytes = w.file.n;
    scan.restart_interval = 0;
    for (int read = 0; read < 2; read++)
        assert_string_equal(why_refused(huffman, &scan, read), "a DC coefficient out of range");
    free(w.file.bytes);
    fm_huffman_close(&huffman);
}

static void bad_tables_are_refused(void **state) {
    (void)state;
    fm_huffman *huffman = open_huffman();
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
        cmocka_unit_test(the_longest_codes_pass_the_window),
        cmocka_unit_test(fill_bytes_are_passed),
        cmocka_unit_test(data_cut_short_is_refused),
        cmocka_unit_test(damage_is_that_of_libjpeg),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(bad_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
