/* Arrays in memory: gathered rows, pixels of images, and mapped files. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "guarded.h"
#include "source/source_array.h"

static int n_streamed;

static void stream(void *out, const void *in, size_t n) {
    n_streamed++;
    memcpy(out, in, n);
}

static void long_pieces_are_streamed(void **state) {
    (void)state;
    enum { N = 8, ROW = 20000 };
    const test_guarded from = test_guarded_open(NULL, N * ROW);
    for (size_t i = 0; i < from.n; i++) from.bytes[i] = (uint8_t)(i * 31 >> 4);
    fm_array array = {.data = from.bytes, .n_rows = N, .row_bytes = ROW};
    assert_int_equal(fm_array_resolve(&array, 0, NULL), FM_OK);
    const int64_t rows[] = {7, 3, 4, 5, 0, 7};
    const test_guarded to = test_guarded_open(NULL, 6 * ROW);
    fm_array_gather(&array, rows, 6, to.bytes, stream);
    assert_int_equal(n_streamed, 1); /* 3 to 5; one row alone is too short */
    for (size_t i = 0; i < 6; i++)
        assert_memory_equal(to.bytes + i * ROW, from.bytes + (size_t)rows[i] * ROW, ROW);
    test_guarded_close(&from);
    test_guarded_close(&to);
}

static void pixels_come_from_all_strides(void **state) {
    (void)state;
    const fm_array_image images[] = {
        {3, 5, 3, 1, 15, 3}, {3, 5, 3, 15, 5, 1}, {3, 5, 3, 15, 1, 3}, {3, 5, 1, 1, 5, 1}};
    const fm_box box = {.left = 1, .top = 1, .width = 4, .height = 2};
    for (size_t n = 0; n < 4; n++) {
        const fm_array_image *const image = &images[n];
        const test_guarded row = test_guarded_open(NULL, 15 * (size_t)image->channels);
        for (size_t i = 0; i < row.n; i++) row.bytes[i] = (uint8_t)(i * 7 + n);
        const test_guarded out = test_guarded_open(NULL, 3 * 8);
        fm_array_pixels(image, row.bytes, box, out.bytes);
        for (size_t i = 0; i < 24; i++) {
            const size_t y = 1 + i / 12, x = 1 + i / 3 % 4, c = image->channels == 1 ? 0 : i % 3;
            assert_int_equal(out.bytes[i],
                             row.bytes[y * image->line_stride + x * image->pixel_stride +
                                       c * image->channel_stride]);
        }
        assert_int_equal(fm_array_image_is_packed(image), n == 0);
        assert_int_equal(fm_array_image_is_planar(image), n == 1 || n == 3);
        test_guarded_close(&row);
        test_guarded_close(&out);
    }
}

static void a_mapped_file_is_known(void **state) {
    (void)state;
    char path[] = "/tmp/fm_array_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 8192), 0);
    uint8_t *const file = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(file != MAP_FAILED);
    uint8_t *const heap = malloc(8192);
    const fm_array in_file = {.data = file + 5000, .n_rows = 1, .row_bytes = 8};
    const fm_array in_memory = {.data = heap, .n_rows = 1, .row_bytes = 8};
    assert_true(fm_array_is_mapped(&in_file));
    assert_false(fm_array_is_mapped(&in_memory));
    free(heap);
    munmap(file, 8192);
    close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_pieces_are_streamed),
        cmocka_unit_test(pixels_come_from_all_strides),
        cmocka_unit_test(a_mapped_file_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
