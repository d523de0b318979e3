/* PNG and WebP images through fm_decoder. The files are written here, by the libraries' encoders.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decode/decoder.h"
#include "decode/scratch.h"
#include "guarded.h"

#if FM_HAVE_SPNG
#include <spng.h>
#endif
#if FM_HAVE_WEBP
#include <webp/encode.h>
#endif

enum { WIDTH = 61, HEIGHT = 47, SLACK = 64, MOST_ROWS = HEIGHT };

static const fm_limits LIMITS = {.max_file_bytes = 1 << 24, .max_image_pixels = 1 << 20};

/* What the files hold: R G B, row by row. */
static uint8_t image[HEIGHT][WIDTH][3];

static int fill_image(void **state) {
    (void)state;
    srand(3);
    for (int i = 0; i < HEIGHT * WIDTH * 3; i++) (&image[0][0][0])[i] = (uint8_t)(rand() % 200);
    return 0;
}

typedef test_guarded file;
typedef file (*maker)(void);

#if FM_HAVE_SPNG
/* Writes a PNG of some color type with the image's colors, or with its red channel as gray. */
static file make_png_of(uint8_t color, int interlaced) {
    static const int n_samples[] = {[0] = 1, [2] = 3, [4] = 2, [6] = 4};
    const int n = n_samples[color];
    uint8_t *const samples = calloc(WIDTH * HEIGHT, (size_t)n);
    assert_non_null(samples);
    for (int i = 0; i < WIDTH * HEIGHT; i++)
        for (int c = 0; c < n; c++)
            samples[i * n + c] = (&image[0][0][0])[3 * i + (n < 3 ? 0 : c % 3)];
    spng_ctx *const codec = spng_ctx_new(SPNG_CTX_ENCODER);
    struct spng_ihdr header = {WIDTH, HEIGHT, 8, color, 0, 0, (uint8_t)interlaced};
    assert_int_equal(spng_set_ihdr(codec, &header), 0);
    assert_int_equal(spng_set_option(codec, SPNG_ENCODE_TO_BUFFER, 1), 0);
    assert_int_equal(spng_encode_image(codec, samples, (size_t)(WIDTH * HEIGHT * n), SPNG_FMT_PNG,
                                       SPNG_ENCODE_FINALIZE),
                     0);
    size_t n_bytes = 0;
    int error = 0;
    void *const bytes = spng_get_png_buffer(codec, &n_bytes, &error);
    assert_non_null(bytes);
    const file f = test_guarded_open(bytes, n_bytes);
    free(bytes);
    free(samples);
    spng_ctx_free(codec);
    return f;
}

static file make_png(void) { return make_png_of(2, 0); }
static file make_png_alpha(void) { return make_png_of(6, 0); }
static file make_png_interlaced(void) { return make_png_of(2, 1); }
#endif

#if FM_HAVE_WEBP
static file make_webp(void) {
    uint8_t *bytes = NULL;
    const size_t n = WebPEncodeLosslessRGB(&image[0][0][0], WIDTH, HEIGHT, 3 * WIDTH, &bytes);
    assert_true(n > 0);
    const file f = test_guarded_open(bytes, n);
    WebPFree(bytes);
    return f;
}
#endif

static const maker makers[] = {
#if FM_HAVE_SPNG
    make_png, make_png_alpha, make_png_interlaced,
#endif
#if FM_HAVE_WEBP
    make_webp,
#endif
    NULL};

static fm_decoder *open_decoder(fm_mem_counter *counter) {
    fm_decoder *decoder = NULL;
    assert_int_equal(fm_decoder_open(&decoder, &LIMITS, counter, NULL), FM_OK);
    return decoder;
}

/* Decodes a box, n rows per call, and compares it with the image. */
static int decode(fm_decoder *decoder, const file *f, fm_box box, int n_rows, fm_error *error) {
    fm_image_info info, measured;
    const bool has_size = fm_decoder_measure(decoder, f->bytes, f->n, &measured, NULL) == FM_OK;
    fm_error_clear(error);
    int status = fm_decoder_begin(decoder, f->bytes, f->n, &info, error);
    assert_true(status || (has_size && measured.width == WIDTH && measured.height == HEIGHT));
    int32_t skip = -1, row_px = 0;
    if (!status) status = fm_decoder_start(decoder, &box, &skip, &row_px, error);
    if (!status) {
        assert_in_range(skip, 0, row_px - box.width);
        assert_int_equal(info.width, WIDTH);
        assert_int_equal(info.height, HEIGHT);
    }
    static uint8_t memory[MOST_ROWS][3 * WIDTH + SLACK];
    for (int y = 0; y < box.height && status >= 0; y += status) {
        uint8_t *rows[MOST_ROWS];
        for (int i = 0; i < n_rows; i++) rows[i] = memory[i];
        status = fm_decoder_read(decoder, rows, n_rows, error);
        if (status < 0) break;
        assert_int_equal(status, n_rows < box.height - y ? n_rows : box.height - y);
        for (int i = 0; i < status; i++)
            assert_memory_equal(memory[i] + 3 * skip, image[box.top + y + i][box.left],
                                3 * (size_t)box.width);
    }
    if (status >= 0) {
        uint8_t *row = memory[0];
        assert_int_equal(fm_decoder_read(decoder, &row, 1, error), FM_ERR_STATE);
        status = FM_OK;
    }
    fm_decoder_end(decoder);
    return status;
}

static const fm_box ALL = {0, 0, WIDTH, HEIGHT};

static void boxes_equal_the_image(void **state) {
    (void)state;
    fm_decoder *decoder = open_decoder(NULL);
    fm_error error;
    for (const maker *make = makers; *make; make++) {
        const file f = (*make)();
        assert_int_equal(decode(decoder, &f, ALL, MOST_ROWS, &error), FM_OK);
        for (int k = 0; k < 100; k++) {
            fm_box box = {.width = 1 + rand() % WIDTH, .height = 1 + rand() % HEIGHT};
            box.left = rand() % (WIDTH - box.width + 1);
            box.top = rand() % (HEIGHT - box.height + 1);
            assert_int_equal(decode(decoder, &f, box, 1 + rand() % 16, &error), FM_OK);
        }
        const fm_box outside = {1, 0, WIDTH, HEIGHT};
        assert_int_equal(decode(decoder, &f, outside, 1, &error), FM_ERR_ARGUMENT);
        test_guarded_close(&f);
    }
    fm_decoder_close(&decoder);
}

/* A file truncated at any byte: each box is refused, and the decoder can decode the next file. */
static void cut_files_are_refused(void **state) {
    (void)state;
    fm_decoder *decoder = open_decoder(NULL);
    fm_error error;
    const fm_box top = {0, 0, WIDTH, 1};
    for (const maker *make = makers; *make; make++) {
        const file whole = (*make)();
        for (size_t n = 0; n < whole.n; n += 1 + n / 37) {
            const file f = test_guarded_open(whole.bytes, n);
            const int status = decode(decoder, &f, top, 1, &error);
            assert_true(status == FM_ERR_DAMAGED || status == FM_ERR_FORMAT);
            assert_int_equal(error.status, status);
            assert_true(error.message[0] != '\0');
            test_guarded_close(&f);
        }
        assert_int_equal(decode(decoder, &whole, top, 1, &error), FM_OK);
        test_guarded_close(&whole);
    }
    fm_decoder_close(&decoder);
}

static void the_second_image_takes_no_memory(void **state) {
    (void)state;
    fm_mem_counter counter = {0};
    fm_decoder *decoder = open_decoder(&counter);
    fm_error error;
    for (const maker *make = makers; *make; make++) {
        const file f = (*make)();
        assert_int_equal(decode(decoder, &f, ALL, 16, &error), FM_OK);
        const uint64_t n_blocks = counter.n_blocks;
        for (int i = 0; i < 5; i++) assert_int_equal(decode(decoder, &f, ALL, 16, &error), FM_OK);
        assert_int_equal(counter.n_blocks, n_blocks);
        test_guarded_close(&f);
    }
    fm_decoder_close(&decoder);
}

static void limits_hold_before_decoding(void **state) {
    (void)state;
    const fm_limits few = {.max_file_bytes = 1 << 24, .max_image_pixels = WIDTH * HEIGHT - 1};
    fm_decoder *decoder = NULL;
    assert_int_equal(fm_decoder_open(&decoder, &few, NULL, NULL), FM_OK);
    for (const maker *make = makers; *make; make++) {
        const file f = (*make)();
        fm_image_info info;
        fm_error error;
        assert_int_equal(fm_decoder_measure(decoder, f.bytes, f.n, &info, NULL), FM_ERR_LIMIT);
        assert_int_equal(fm_decoder_begin(decoder, f.bytes, f.n, &info, &error), FM_ERR_LIMIT);
        assert_non_null(strstr(error.message, "61 x 47 pixels"));
        fm_decoder_end(decoder);
        test_guarded_close(&f);
    }
    fm_decoder_close(&decoder);
}

static void rejected_formats_are_named(void **state) {
    (void)state;
    const fm_format all[] = {FM_FORMAT_JPEG, FM_FORMAT_PNG, FM_FORMAT_WEBP};
    for (const maker *make = makers; *make; make++) {
        const file f = (*make)();
        int n_accepted = 0;
        for (int i = 0; i < 3; i++) {
            const fm_limits limits = {1 << 24, 1 << 20, (uint32_t)all[i]};
            fm_decoder *decoder = NULL;
            assert_int_equal(fm_decoder_open(&decoder, &limits, NULL, NULL), FM_OK);
            fm_error error;
            const int status = decode(decoder, &f, ALL, 16, &error);
            assert_true(status == FM_OK || status == FM_ERR_KIND);
            assert_int_equal(status != FM_OK, fm_decoder_format(decoder) == all[i]);
            n_accepted += status == FM_OK;
            fm_decoder_close(&decoder);
        }
        assert_int_equal(n_accepted, 2);
        test_guarded_close(&f);
    }
}

static void a_cancelled_image_ends(void **state) {
    (void)state;
    fm_decoder *decoder = open_decoder(NULL);
    _Atomic bool cancelled = true;
    fm_decoder_watch(decoder, &cancelled);
    fm_error error;
    for (const maker *make = makers; *make; make++) {
        const file f = (*make)();
        assert_int_equal(decode(decoder, &f, (fm_box){0, 20, WIDTH, 20}, 16, &error),
                         FM_ERR_CANCELLED);
        test_guarded_close(&f);
    }
    fm_decoder_close(&decoder);
}

/* ---- scratch --------------------------------------------------------------------------------- */

static void scratch_keeps_what_the_largest_image_took(void **state) {
    (void)state;
    fm_mem_counter counter = {0};
    fm_scratch scratch;
    fm_scratch_init(&scratch, &counter);
    for (int round = 0; round < 4; round++) {
        uint8_t *const a = fm_scratch_alloc(&scratch, 1000);
        uint8_t *b = fm_scratch_alloc(&scratch, 10);
        assert_true(a && b && (uintptr_t)a % FM_MEM_ALIGN == 0 && (uintptr_t)b % FM_MEM_ALIGN == 0);
        memset(a, 1, 1000);
        memset(b, 2, 10);
        b = fm_scratch_resize(&scratch, b, 3 << 20);
        assert_non_null(b);
        assert_int_equal(b[9], 2);
        memset(b, 3, 3 << 20);
        assert_int_equal(a[999], 1);
        fm_scratch_reset(&scratch);
        if (round == 1) assert_int_equal(counter.n_blocks, 4);
    }
    assert_int_equal(counter.n_blocks, 4);
    assert_true(fm_scratch_is_large(&scratch));
    fm_scratch_trim(&scratch);
    assert_false(fm_scratch_is_large(&scratch));
    assert_null(fm_scratch_alloc(&scratch, SIZE_MAX - 5));
    fm_scratch_fini(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_equal_the_image),
        cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(the_second_image_takes_no_memory),
        cmocka_unit_test(limits_hold_before_decoding),
        cmocka_unit_test(rejected_formats_are_named),
        cmocka_unit_test(a_cancelled_image_ends),
        cmocka_unit_test(scratch_keeps_what_the_largest_image_took),
    };
    return cmocka_run_group_tests(tests, fill_image, NULL);
}
