/*
 * fm_renderer: parts of an image, in all orientations and both pixel formats, equal what is cut out
 * of the whole image; a combined job equals its steps one by one; wrong jobs and damaged images are
 * refused.
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

#include "encode_jpeg.h"
#include "feedmill/render.h"
#include "guarded.h"

enum { WIDTH = 157, HEIGHT = 122, N_CASES = 400, MOST_SIDE = 200 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static uint8_t *jpeg;
static size_t jpeg_bytes;
static uint8_t whole[WIDTH * HEIGHT * 3];
static fm_renderer *renderer;

/* ---- images ---------------------------------------------------------------------------------- */

static void make_jpeg(void) {
    for (int y = 0; y < HEIGHT; y++)
        for (int i = 0; i < 3 * WIDTH; i++)
            whole[y * 3 * WIDTH + i] = (uint8_t)(i * 2 + y * 5 + random_below(60));
    jpeg_bytes = test_encode_jpeg(&jpeg, whole, WIDTH, HEIGHT);
}

static int set_up(void **state) {
    (void)state;
    make_jpeg();
    const fm_sample sample = {.data = jpeg, .data_bytes = jpeg_bytes};
    fm_imread *image;
    assert_int_equal(fm_imread_open(&image, &sample, 0, NULL), FM_OK);
    assert_int_equal(fm_imread_pixels(image, FM_RGB, false, whole, NULL), FM_OK);
    fm_imread_close(&image);
    return fm_renderer_open(&renderer, 0, NULL);
}

static int tear_down(void **state) {
    (void)state;
    fm_renderer_close(&renderer);
    free(jpeg);
    return 0;
}

static fm_rect random_rect(int32_t width, int32_t height) {
    const int32_t left = random_below(width), top = random_below(height);
    return (fm_rect){left, top, 1 + random_below(width - left), 1 + random_below(height - top)};
}

/* Where the pixel of column x and row y of width x height goes, by the definition of EXIF's tag:
 * the sides where row 0 and column 0 of the stored image are to be shown. */
static void turned_place(int orientation, int32_t width, int32_t height, int32_t *x, int32_t *y) {
    const int32_t column = *x, row = *y;
    const int32_t from_right = width - 1 - column, from_bottom = height - 1 - row;
    const int32_t columns[] = {0,   column,      from_right,  from_right, column,
                               row, from_bottom, from_bottom, row};
    const int32_t rows[] = {0,      row,    row,        from_bottom, from_bottom,
                            column, column, from_right, from_right};
    *x = columns[orientation];
    *y = rows[orientation];
}

/* The part `rect` of an image with rows of in_width pixels, turned, in `out`. */
static void cut_and_turn(uint8_t *out, const uint8_t *in, int32_t in_width, fm_rect rect,
                         int orientation) {
    const int32_t out_width = orientation >= 5 ? rect.height : rect.width;
    for (int32_t row = 0; row < rect.height; row++)
        for (int32_t column = 0; column < rect.width; column++) {
            int32_t x = column, y = row;
            turned_place(orientation, rect.width, rect.height, &x, &y);
            memcpy(out + 3 * (y * out_width + x),
                   in + 3 * ((rect.top + row) * in_width + rect.left + column), 3);
        }
}

static fm_render job_of_file(void) {
    return (fm_render){.struct_bytes = sizeof(fm_render), .data = jpeg, .data_bytes = jpeg_bytes};
}

static fm_render job_of_pixels(const uint8_t *pixels, int32_t width, int32_t height) {
    return (fm_render){.struct_bytes = sizeof(fm_render),
                       .pixels = pixels,
                       .pixels_width = width,
                       .pixels_height = height};
}

/* Runs a job and compares it with n_px pixels of three bytes. The output ends at a guard page. */
static void assert_renders(const fm_render *job, const uint8_t *want, size_t n_px) {
    const size_t px_bytes = job->format == FM_PIXEL_RGBX ? 4 : 3;
    const test_guarded out = test_guarded_open(NULL, n_px * px_bytes);
    fm_error error;
    if (fm_renderer_run(renderer, job, out.bytes, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < n_px; i++) {
        const uint8_t *const px = want + 3 * i;
        const uint8_t reversed[] = {px[2], px[1], px[0]};
        const bool is_bgr = job->format == FM_PIXEL_BGR;
        assert_memory_equal(out.bytes + px_bytes * i, is_bgr ? reversed : px, 3);
        if (px_bytes == 4) assert_int_equal(out.bytes[4 * i + 3], job->fourth_byte);
    }
    test_guarded_close(&out);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void headers_are_read(void **state) {
    (void)state;
    fm_image_header header;
    assert_int_equal(fm_renderer_header(renderer, jpeg, jpeg_bytes, &header, NULL), FM_OK);
    assert_int_equal(header.format, FM_FORMAT_JPEG);
    assert_int_equal(header.width, WIDTH);
    assert_int_equal(header.height, HEIGHT);
    assert_int_equal(header.n_components, 3);
    assert_false(header.progressive);
    assert_int_equal(header.n_bytes, jpeg_bytes);
    assert_true(fm_renderer_header(renderer, jpeg, jpeg_bytes - 40, &header, NULL) < 0);
    assert_int_equal(fm_renderer_header(renderer, "no image", 8, &header, NULL), FM_ERR_FORMAT);
}

static void parts_equal_the_whole_image(void **state) {
    (void)state;
    static uint8_t want[WIDTH * HEIGHT * 3];
    for (int c = 0; c < N_CASES; c++) {
        fm_render job = c % 2 ? job_of_file() : job_of_pixels(whole, WIDTH, HEIGHT);
        job.box = random_rect(WIDTH, HEIGHT);
        job.orientation = (fm_orientation)random_below(9);
        job.format = (fm_pixel_format)random_below(2);
        job.fourth_byte = (uint8_t)random_below(256);
        cut_and_turn(want, whole, WIDTH, job.box, job.orientation ? (int)job.orientation : 1);
        int32_t width, height;
        fm_render_size(&job, &width, &height);
        assert_int_equal(width, job.orientation >= 5 ? job.box.height : job.box.width);
        assert_int_equal(width * height, job.box.width * job.box.height);
        assert_renders(&job, want, (size_t)width * (size_t)height);
    }
}

/* Sets the first and third of four numbers to the ends of a part of `size` pixels. */
static void set_random_span(float *box, int32_t size) {
    const float first = (float)random_below(16 * size) / 16;
    box[0] = random_below(3) ? first : 0.0f;
    box[2] = random_below(3) ? first + ((float)size - first) / 7 * (float)(1 + random_below(7))
                             : (float)size;
    if (box[2] > (float)size) box[2] = (float)size;
}

/* Pixels of four bytes give what those of three give. */
static void fourth_bytes_are_ignored(void **state) {
    (void)state;
    static uint8_t four[WIDTH * HEIGHT * 4];
    for (size_t i = 0; i < sizeof(four); i++)
        four[i] = i % 4 == 3 ? (uint8_t)(i * 7) : whole[i / 4 * 3 + i % 4];
    for (int c = 0; c < N_CASES; c++) {
        fm_render job = job_of_pixels(four, WIDTH, HEIGHT);
        job.pixels_format = FM_PIXEL_RGBX;
        job.box = random_rect(WIDTH, HEIGHT);
        job.orientation = (fm_orientation)(1 + random_below(8));
        static uint8_t want[WIDTH * HEIGHT * 3];
        cut_and_turn(want, whole, WIDTH, job.box, (int)job.orientation);
        assert_renders(&job, want, (size_t)job.box.width * (size_t)job.box.height);
    }
}

static void a_job_equals_its_steps(void **state) {
    (void)state;
    static uint8_t turned[WIDTH * HEIGHT * 3], resized[MOST_SIDE * MOST_SIDE * 3],
        want[MOST_SIDE * MOST_SIDE * 3];
    for (int c = 0; c < N_CASES; c++) {
        fm_render job = c % 2 ? job_of_file() : job_of_pixels(whole, WIDTH, HEIGHT);
        job.box = random_rect(WIDTH, HEIGHT);
        job.orientation = (fm_orientation)(1 + random_below(8));
        job.resized_width = 1 + random_below(MOST_SIDE);
        job.resized_height = 1 + random_below(MOST_SIDE);
        job.filter = (fm_filter)random_below(FM_FILTER_NEAREST + 1);
        job.resize_order = (fm_resize_order)random_below(FM_RESIZE_TORCH + 1);
        job.window = random_rect(job.resized_width, job.resized_height);
        job.window_orientation = (fm_orientation)(1 + random_below(8));
        job.format = (fm_pixel_format)random_below(3);

        cut_and_turn(turned, whole, WIDTH, job.box, (int)job.orientation);
        const bool swaps = job.orientation >= 5;
        const int32_t width = swaps ? job.box.height : job.box.width;
        const int32_t height = swaps ? job.box.width : job.box.height;
        fm_render step = job_of_pixels(turned, width, height);
        step.box = (fm_rect){0, 0, width, height};
        step.resized_width = job.resized_width;
        step.resized_height = job.resized_height;
        step.filter = job.filter;
        step.resize_order = job.resize_order;
        step.window = (fm_rect){0, 0, job.resized_width, job.resized_height};
        if (job.filter != FM_FILTER_NEAREST && random_below(2)) {
            set_random_span(job.resize_box, width);
            set_random_span(job.resize_box + 1, height);
            memcpy(step.resize_box, job.resize_box, sizeof(step.resize_box));
        }
        assert_int_equal(fm_renderer_run(renderer, &step, resized, NULL), FM_OK);
        cut_and_turn(want, resized, job.resized_width, job.window, (int)job.window_orientation);
        assert_renders(&job, want, (size_t)job.window.width * (size_t)job.window.height);
    }
}

/* Calls with a changed job; the text names what is wrong. */
#define REFUSED(text, ...)                                                                        \
    do {                                                                                          \
        fm_render job = job_of_file();                                                            \
        job.box = (fm_rect){0, 0, 9, 9};                                                          \
        __VA_ARGS__;                                                                              \
        fm_error error;                                                                           \
        assert_int_equal(fm_renderer_run(renderer, &job, out, &error), FM_ERR_ARGUMENT);          \
        if (!strstr(error.message, text)) fail_msg("'%s' in place of '%s'", error.message, text); \
    } while (0)

static void wrong_jobs_are_refused(void **state) {
    (void)state;
    static uint8_t out[64 * 64 * 4];
    REFUSED("struct_bytes", job.struct_bytes = 0);
    REFUSED("either data or pixels", job.data = NULL);
    REFUSED("either data or pixels", job.pixels = whole);
    REFUSED("box is not within", job = job_of_pixels(whole, WIDTH, HEIGHT);
            job.box = (fm_rect){WIDTH - 3, 0, 4, 1});
    REFUSED("box", job.box = (fm_rect){WIDTH - 3, 0, 4, 1});
    REFUSED("box", job.box.height = 0);
    REFUSED("orientation", job.orientation = (fm_orientation)9);
    REFUSED("orientation", job.window_orientation = (fm_orientation)9);
    REFUSED("pixel format", job.format = (fm_pixel_format)3);
    REFUSED("pixel format", job.pixels_format = FM_PIXEL_BGR);
    REFUSED("resized part", job.resized_width = job.resized_height = 4; job.resize_box[2] = 5;
            job.resize_box[3] = 10);
    REFUSED("resized part", job.resized_width = job.resized_height = 4; job.resize_box[2] = 9);
    REFUSED("resized part", job.resized_width = job.resized_height = 4; job.resize_box[2] = 9;
            job.resize_box[3] = 9; job.filter = FM_FILTER_NEAREST);
    REFUSED("sides are 1 to 65535", job.resized_width = 4);
    REFUSED("sides are 1 to 65535", job.resized_width = 4; job.resized_height = 65536);
    REFUSED("window", job.resized_width = 4; job.resized_height = 4;
            job.window = (fm_rect){0, 0, 5, 4});
    REFUSED("filter", job.resized_width = 4; job.resized_height = 4; job.filter = (fm_filter)9);
    fm_error error;
    const fm_render job = job_of_file();
    assert_int_equal(fm_renderer_run(NULL, &job, out, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_renderer_run(renderer, NULL, out, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_renderer_run(renderer, &job, NULL, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_renderer_header(renderer, NULL, 0, NULL, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_renderer_open(NULL, 0, &error), FM_ERR_ARGUMENT);
    fm_renderer_close(NULL);
}

static void damaged_images_are_refused(void **state) {
    (void)state;
    static uint8_t out[WIDTH * HEIGHT * 3];
    for (size_t n = 0; n < jpeg_bytes; n += 1 + jpeg_bytes / 50) {
        const test_guarded copy = test_guarded_open(jpeg, n);
        fm_render job = job_of_file();
        job.data = copy.bytes;
        job.data_bytes = n;
        job.box = (fm_rect){0, 0, WIDTH, HEIGHT};
        assert_true(fm_renderer_run(renderer, &job, out, NULL) < 0);
        test_guarded_close(&copy);
    }
    /* The next image is not affected. */
    fm_render job = job_of_file();
    job.box = (fm_rect){0, 0, WIDTH, HEIGHT};
    assert_renders(&job, whole, (size_t)WIDTH * HEIGHT);
}

static void large_images_are_refused(void **state) {
    (void)state;
    static uint8_t out[WIDTH * HEIGHT * 3];
    fm_renderer *small;
    assert_int_equal(fm_renderer_open(&small, WIDTH * HEIGHT - 1, NULL), FM_OK);
    fm_render job = job_of_file();
    job.box = (fm_rect){0, 0, 4, 4};
    assert_int_equal(fm_renderer_run(small, &job, out, NULL), FM_ERR_LIMIT);
    fm_renderer_close(&small);
    assert_null(small);
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_read),           cmocka_unit_test(parts_equal_the_whole_image),
        cmocka_unit_test(a_job_equals_its_steps),     cmocka_unit_test(wrong_jobs_are_refused),
        cmocka_unit_test(damaged_images_are_refused), cmocka_unit_test(large_images_are_refused),
        cmocka_unit_test(fourth_bytes_are_ignored),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
