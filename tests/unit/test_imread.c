/* fm_imread: pixels in both channel orders and all EXIF orientations; refused images. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "decode/exif.h"
#include "encode_jpeg.h"
#include "feedmill/feedmill.h"
#include "guarded.h"

enum { WIDTH = 37, HEIGHT = 22 };

/* ---- making files ---------------------------------------------------------------------------- */

/* A JPEG; the caller must free() its bytes. */
static size_t make_jpeg(uint8_t **out) {
    static uint8_t pixels[WIDTH * HEIGHT * 3];
    for (int y = 0; y < HEIGHT; y++)
        for (int i = 0; i < 3 * WIDTH; i++)
            pixels[y * 3 * WIDTH + i] = (uint8_t)(i * 2 + y * 5 + (i % 3) * 40);
    return test_encode_jpeg(out, pixels, WIDTH, HEIGHT);
}

/* The JPEG with an APP1 segment of `n` bytes of EXIF data after its SOI, at a guard page. */
static test_guarded with_exif(const uint8_t *tiff, size_t n) {
    uint8_t *bytes;
    const size_t n_bytes = make_jpeg(&bytes);
    const size_t length = 2 + 6 + n;
    const test_guarded f = test_guarded_open(NULL, n_bytes + 2 + length);
    memcpy(f.bytes, bytes, 2);
    const uint8_t head[] = {0xFF, 0xE1, (uint8_t)(length >> 8), (uint8_t)length, 'E', 'x', 'i', 'f',
                            0,    0};
    memcpy(f.bytes + 2, head, sizeof(head));
    memcpy(f.bytes + 2 + sizeof(head), tiff, n);
    memcpy(f.bytes + 2 + sizeof(head) + n, bytes + 2, n_bytes - 2);
    free(bytes);
    return f;
}

/* A TIFF header with one directory of one orientation. */
static test_guarded with_orientation(int orientation, bool little_endian) {
    const uint8_t little[] = {
        'I', 'I', 0x2A, 0, 8, 0, 0, 0, 1, 0, 0x12, 0x01, 3, 0, 1, 0, 0, 0, (uint8_t)orientation,
        0,   0,   0,    0, 0, 0, 0};
    const uint8_t big[] = {'M',  'M',  0, 0x2A, 0, 0, 0, 8, 0, 1,
                           0x01, 0x12, 0, 3,    0, 0, 0, 1, 0, (uint8_t)orientation,
                           0,    0,    0, 0,    0, 0};
    return little_endian ? with_exif(little, sizeof(little)) : with_exif(big, sizeof(big));
}

/* ---- reading them ---------------------------------------------------------------------------- */

static uint8_t *read_data(const test_guarded *f, fm_channels channels, bool upright,
                          int32_t *height, int32_t *width) {
    const fm_sample sample = {.data = f->bytes, .data_bytes = f->n};
    fm_imread *image;
    fm_error error;
    if (fm_imread_open(&image, &sample, 0, &error)) fail_msg("%s", error.message);
    fm_imread_size(image, upright, height, width);
    uint8_t *const out = test_malloc((size_t)*height * (size_t)*width * 3);
    if (fm_imread_pixels(image, channels, upright, out, &error)) fail_msg("%s", error.message);
    assert_int_equal(fm_imread_pixels(image, channels, upright, out, &error), FM_ERR_STATE);
    fm_imread_close(&image);
    assert_null(image);
    return out;
}

/* The column and row in the file of pixel (x, y) of the image after applying the orientation. */
static void source_of(int orientation, int x, int y, int *from_x, int *from_y) {
    const int last_x = WIDTH - 1, last_y = HEIGHT - 1;
    const bool on_side = orientation >= 5;
    const bool mirror_x =
        orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool mirror_y =
        orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    *from_x = on_side ? y : x;
    *from_y = on_side ? x : y;
    if (mirror_x) *from_x = last_x - *from_x;
    if (mirror_y) *from_y = last_y - *from_y;
}

static void every_orientation_is_turned(void **state) {
    (void)state;
    for (int orientation = 1; orientation <= 8; orientation++) {
        for (int little = 0; little < 2; little++) {
            test_guarded f = with_orientation(orientation, little);
            assert_int_equal(fm_exif_orientation(f.bytes, f.n), orientation);
            int32_t h, w, height, width;
            uint8_t *const plain = read_data(&f, FM_RGB, false, &h, &w);
            uint8_t *const turned = read_data(&f, FM_BGR, true, &height, &width);
            assert_int_equal(h, HEIGHT);
            assert_int_equal(w, WIDTH);
            assert_int_equal(height, orientation >= 5 ? WIDTH : HEIGHT);
            for (int y = 0; y < height; y++)
                for (int x = 0; x < width; x++) {
                    int from_x, from_y;
                    source_of(orientation, x, y, &from_x, &from_y);
                    for (int c = 0; c < 3; c++)
                        assert_int_equal(turned[3 * (y * width + x) + c],
                                         plain[3 * (from_y * WIDTH + from_x) + 2 - c]);
                }
            test_free(plain);
            test_free(turned);
            test_guarded_close(&f);
        }
    }
}

/* ---- EXIF data that is not as it should be --------------------------------------------------- */

static int orientation_of(const uint8_t *tiff, size_t n) {
    test_guarded f = with_exif(tiff, n);
    const int orientation = fm_exif_orientation(f.bytes, f.n);
    test_guarded_close(&f);
    return orientation;
}

static void odd_exif_data_turns_nothing(void **state) {
    (void)state;
    const uint8_t good[] = {'I', 'I', 0x2A, 0, 8, 0, 0, 0, 1, 0, 0x12, 0x01, 3,
                            0,   1,   0,    0, 0, 6, 0, 0, 0, 0, 0,    0,    0};
    assert_int_equal(orientation_of(good, sizeof(good)), 6);
    /* Cut anywhere before the value's end. */
    for (size_t n = 1; n < 20; n++) assert_int_equal(orientation_of(good, n), 1);
    assert_int_equal(orientation_of(good, 20), 6);
    const struct {
        size_t at;
        uint8_t value;
    } changes[] = {{0, 'M'}, {1, 'X'}, {2, 0x2B}, {4, 0xFF}, {7, 0xFF}, {18, 0}, {18, 9}, {19, 1}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        uint8_t odd[sizeof(good)];
        memcpy(odd, good, sizeof(good));
        odd[changes[i].at] = changes[i].value;
        assert_int_equal(orientation_of(odd, sizeof(odd)), 1);
    }
}

static void an_orientation_behind_a_broken_tag_does_not_count(void **state) {
    (void)state;
    /* Two entries: Make, whose text of 9 bytes begins at the byte named, then the orientation. */
    uint8_t data[50] = {'I', 'I', 0x2A, 0, 8, 0,    0, 0, 2, 0, 0x0F, 0x01, 2, 0, 9, 0, 0,
                        0,   38,  0,    0, 0, 0x12, 1, 3, 0, 1, 0,    0,    0, 3, 0, 0, 0};
    assert_int_equal(orientation_of(data, sizeof(data)), 3);
    data[18] = 45; /* its last four bytes are beyond the end */
    assert_int_equal(orientation_of(data, sizeof(data)), 1);
    data[10] = 0x1A; /* XResolution: 8 bytes, which do not lie there either */
    assert_int_equal(orientation_of(data, sizeof(data)), 1);
    data[18] = 42;
    assert_int_equal(orientation_of(data, sizeof(data)), 3);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int open_status(const char *path, const void *data, size_t n_bytes) {
    const fm_sample sample = {.path = path, .data = data, .data_bytes = n_bytes};
    fm_imread *image = (fm_imread *)&sample;
    fm_error error;
    const int status = fm_imread_open(&image, &sample, 0, &error);
    assert_null(image);
    assert_true(error.message[0] != 0);
    return status;
}

static void what_is_no_jpeg_is_refused(void **state) {
    (void)state;
    assert_int_equal(open_status(NULL, NULL, 0), FM_ERR_ARGUMENT);
    assert_int_equal(open_status("/nowhere/x.jpg", NULL, 0), FM_ERR_READ);
    assert_int_equal(open_status("/", NULL, 0), FM_ERR_READ);
    assert_int_equal(open_status("/dev/null", NULL, 0), FM_ERR_READ);
    assert_int_equal(open_status(NULL, "", 0), FM_ERR_FORMAT);
    assert_int_equal(open_status(NULL, "no image at all", 15), FM_ERR_FORMAT);
    uint8_t *bytes;
    const size_t n_bytes = make_jpeg(&bytes);
    assert_int_equal(open_status(NULL, bytes, n_bytes / 2), FM_ERR_DAMAGED);
    free(bytes);
    fm_imread_close(NULL);
}

static void a_fifo_does_not_block(void **state) {
    (void)state;
    char path[] = "/tmp/fm_imreadXXXXXX";
    assert_non_null(mkdtemp(path));
    char fifo[64];
    snprintf(fifo, sizeof(fifo), "%s/fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(open_status(fifo, NULL, 0), FM_ERR_READ);
    unlink(fifo);
    rmdir(path);
}

static void files_are_as_their_bytes(void **state) {
    (void)state;
    char path[] = "/tmp/fm_imreadXXXXXX";
    const int file = mkstemp(path);
    test_guarded f = with_orientation(6, true);
    assert_int_equal(write(file, f.bytes, f.n), (ssize_t)f.n);
    close(file);
    const fm_sample sample = {.path = path};
    fm_imread *image;
    assert_int_equal(fm_imread_open(&image, &sample, WIDTH * HEIGHT - 1, NULL), FM_ERR_LIMIT);
    assert_int_equal(fm_imread_open(&image, &sample, WIDTH * HEIGHT, NULL), FM_OK);
    assert_int_equal(fm_imread_format(image), FM_FORMAT_JPEG);
    int32_t height, width;
    uint8_t *const wanted = read_data(&f, FM_BGR, true, &height, &width);
    uint8_t *const got = test_malloc(3 * WIDTH * HEIGHT);
    assert_int_equal(fm_imread_pixels(image, FM_BGR, true, got, NULL), FM_OK);
    assert_memory_equal(got, wanted, 3 * WIDTH * HEIGHT);
    test_free(got);
    test_free(wanted);
    fm_imread_close(&image);
    test_guarded_close(&f);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_orientation_is_turned),
        cmocka_unit_test(odd_exif_data_turns_nothing),
        cmocka_unit_test(an_orientation_behind_a_broken_tag_does_not_count),
        cmocka_unit_test(what_is_no_jpeg_is_refused),
        cmocka_unit_test(a_fifo_does_not_block),
        cmocka_unit_test(files_are_as_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
