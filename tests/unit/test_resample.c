#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transform/kernels.h"
#include "transform/resample.h"

static uint32_t lcg_state = 1;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

/* An image that Python can make, too: the golden sums below are Pillow's for it. */
static uint8_t *make_image(int32_t width, int32_t height) {
    const size_t n = 3 * (size_t)width * (size_t)height;
    uint8_t *const pixels = malloc(n);
    assert_non_null(pixels);
    for (size_t i = 0; i < n; i++) {
        uint32_t value = (uint32_t)i * 2654435761u;
        value ^= value >> 15;
        pixels[i] = (uint8_t)(value * 2246822519u >> 24);
    }
    return pixels;
}

/* ---- a reference resize of whole images, to compare with ------------------------------------- */

static int32_t weight_of(double share, int bits) {
    return (int32_t)((share < 0 ? -0.5 : 0.5) + share * (1 << bits));
}

static double reference_sinc(double x) {
    x *= 3.14159265358979323846;
    return x == 0 ? 1 : sin(x) / x;
}

/* Pillow's filters, of support reference_reach[filter]. */
static const double reference_reach[] = {1, 2, 0.5, 1, 3};
static double reference_filter(fm_filter filter, double x) {
    if (filter == FM_FILTER_BOX) return x > -0.5 && x <= 0.5;
    if (filter == FM_FILTER_LANCZOS)
        return x >= -3 && x < 3 ? reference_sinc(x) * reference_sinc(x / 3) : 0;
    x = fabs(x);
    if (filter == FM_FILTER_BICUBIC && x >= 1)
        return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
    if (x >= 1) return 0;
    if (filter == FM_FILTER_BICUBIC) return (1.5 * x - 2.5) * x * x + 1;
    if (filter == FM_FILTER_HAMMING)
        return reference_sinc(x) *
               ((double)0.54f + (double)0.46f * cos(x * 3.14159265358979323846));
    return 1 - x;
}

/* Computes output i's normalized weights, of inputs *first to *end - 1. */
static void reference_weights(double *shares, int32_t *first, int32_t *end, int32_t i, int32_t n_in,
                              int32_t n_out, fm_filter filter) {
    const double scale = (double)n_in / n_out, stretch = scale < 1 ? 1 : scale;
    const double support = reference_reach[filter] * stretch, center = (i + 0.5) * scale;
    *first = (int32_t)(center - support + 0.5), *end = (int32_t)(center + support + 0.5);
    *first = *first < 0 ? 0 : *first;
    *end = *end > n_in ? n_in : *end;
    double sum = 0;
    for (int32_t j = *first; j < *end; j++) {
        shares[j] = reference_filter(filter, (j - center + 0.5) * (1.0 / stretch));
        sum += shares[j];
    }
    for (int32_t j = *first; j < *end; j++) shares[j] /= sum;
}

/* The bits of torch's 16-bit weights, which depend on the largest of them. */
static int reference_bits(double *shares, int32_t n_in, int32_t n_out, fm_filter filter) {
    double largest = 0;
    for (int32_t i = 0; i < n_out; i++) {
        int32_t first, end;
        reference_weights(shares, &first, &end, i, n_in, n_out, filter);
        for (int32_t j = first; j < end; j++) largest = fmax(largest, shares[j]);
    }
    for (int bits = 0; bits < 22; bits++)
        if (weight_of(largest, bits + 1) > INT16_MAX) return bits;
    return 22;
}

/* One axis: out[i * step] of n_out from in[j * step] of n_in, for each of the three channels. */
static void reference_line(uint8_t *out, const uint8_t *in, size_t step, int32_t n_in,
                           int32_t n_out, fm_filter filter, fm_resize_order order) {
    if (filter == FM_FILTER_NEAREST) {
        const double scale = (double)n_in / n_out;
        double place = scale * 0.5;
        for (int32_t i = 0; i < n_out; i++, place += scale)
            memcpy(out + (size_t)i * step, in + (size_t)(int32_t)place * step, 3);
        return;
    }
    double *const shares = malloc((size_t)n_in * sizeof(*shares));
    assert_non_null(shares);
    const int bits = order == FM_RESIZE_TORCH ? reference_bits(shares, n_in, n_out, filter) : 22;
    for (int32_t i = 0; i < n_out; i++) {
        int32_t first, end;
        reference_weights(shares, &first, &end, i, n_in, n_out, filter);
        for (size_t c = 0; c < 3; c++) {
            int64_t total = 1 << (bits - 1);
            for (int32_t j = first; j < end; j++)
                total += (int64_t)weight_of(shares[j], bits) * in[(size_t)j * step + c];
            total >>= bits;
            out[(size_t)i * step + c] = total < 0 ? 0 : total > 255 ? 255 : (uint8_t)total;
        }
    }
    free(shares);
}

static uint8_t *reference_columns(uint8_t *in, int32_t width, int32_t height, int32_t new_width,
                                  fm_filter filter, fm_resize_order order) {
    if (new_width == width) return in;
    uint8_t *const out = malloc(3 * (size_t)new_width * (size_t)height);
    assert_non_null(out);
    for (size_t y = 0; y < (size_t)height; y++)
        reference_line(out + 3 * y * (size_t)new_width, in + 3 * y * (size_t)width, 3, width,
                       new_width, filter, order);
    free(in);
    return out;
}

static uint8_t *reference_rows(uint8_t *in, int32_t width, int32_t height, int32_t new_height,
                               fm_filter filter, fm_resize_order order) {
    if (new_height == height) return in;
    const size_t stride = 3 * (size_t)width;
    uint8_t *const out = malloc(stride * (size_t)new_height);
    assert_non_null(out);
    for (size_t x = 0; x < (size_t)width; x++)
        reference_line(out + 3 * x, in + 3 * x, stride, height, new_height, filter, order);
    free(in);
    return out;
}

/* [3][height][width] of the window, made as the geometry's header describes it. */
static void reference_sample(uint8_t *out, const uint8_t *image, int32_t image_width,
                             const fm_geometry *geometry, fm_resize_order order, fm_filter filter) {
    const fm_box source = geometry->source, window = geometry->window;
    const int32_t width = geometry->resized_width, height = geometry->resized_height;
    uint8_t *pixels = malloc(3 * (size_t)source.width * (size_t)source.height + 1);
    assert_non_null(pixels);
    for (int32_t y = 0; y < source.height; y++) {
        for (int32_t x = 0; x < source.width; x++) {
            const int32_t from = geometry->mirror_source ? source.width - 1 - x : x;
            memcpy(pixels + 3 * ((size_t)y * (size_t)source.width + (size_t)x),
                   image + 3 * ((size_t)(source.top + y) * (size_t)image_width +
                                (size_t)(source.left + from)),
                   3);
        }
    }
    const bool shrinks = source.height > height;
    const bool vertical_first =
        order == FM_RESIZE_PILLOW_13
            ? shrinks && source.height - height > 2 * (source.width - width)
            : order == FM_RESIZE_PILLOW_12_2 && shrinks && source.height > 100 * source.width;
    if (vertical_first)
        pixels = reference_rows(pixels, source.width, source.height, height, filter, order);
    pixels = reference_columns(pixels, source.width, vertical_first ? height : source.height, width,
                               filter, order);
    if (!vertical_first)
        pixels = reference_rows(pixels, width, source.height, height, filter, order);
    for (int32_t c = 0; c < 3; c++) {
        for (int32_t y = 0; y < window.height; y++) {
            for (int32_t x = 0; x < window.width; x++) {
                const int32_t row = window.top + y;
                const int32_t column = window.left + (geometry->flip ? window.width - 1 - x : x);
                const bool inside = row >= 0 && row < height && column >= 0 && column < width;
                *out++ =
                    inside ? pixels[3 * ((size_t)row * (size_t)width + (size_t)column) + (size_t)c]
                           : 0;
            }
        }
    }
    free(pixels);
}

/* ---- the stage ------------------------------------------------------------------------------- */

static fm_plan make_plan(int32_t width, int32_t height, fm_dtype dtype, fm_layout layout,
                         fm_resize_order order) {
    const fm_op op = {.kind = FM_OP_CENTER_CROP, .height = height, .width = width};
    const fm_transform transform = {.ops = &op,
                                    .n_ops = 1,
                                    .dtype = dtype,
                                    .layout = layout,
                                    .mean = {0.5f, 0.4f, 0.3f},
                                    .std = {0.2f, 0.3f, 0.1f},
                                    .resize_order = order};
    fm_plan plan;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    return plan;
}

/* Plays the decoder: rows with some pixels more on both sides, blocks of any size. */
static void run(fm_resample *resample, const uint8_t *image, int32_t image_width,
                const fm_geometry *geometry, void *out) {
    fm_box needed;
    fm_error error;
    if (fm_resample_begin(resample, geometry, &needed, &error)) fail_msg("%s", error.message);
    const fm_box source = geometry->source;
    if (needed.width > 0) {
        assert_true(needed.left >= source.left && needed.top >= source.top);
        assert_true(needed.left + needed.width <= source.left + source.width);
        assert_true(needed.top + needed.height <= source.top + source.height);
    }
    const int32_t skip = random_below(needed.left < 9 ? needed.left + 1 : 9);
    const int32_t behind = image_width - needed.left - needed.width;
    const int32_t row_px = skip + needed.width + random_below(behind < 9 ? behind + 1 : 9);
    assert_int_equal(fm_resample_start(resample, skip, row_px, out, NULL), FM_OK);
    uint8_t *rows[20];
    int32_t n, y = 0;
    while ((n = fm_resample_rows(resample, rows, 1 + random_below(20))) > 0) {
        assert_true(n <= 20 && y + n <= needed.height);
        n = 1 + random_below(n);
        for (int32_t i = 0; i < n; i++, y++) {
            assert_int_equal((uintptr_t)rows[i] % 32, 16);
            memcpy(rows[i],
                   image + 3 * ((size_t)(needed.top + y) * (size_t)image_width +
                                (size_t)(needed.left - skip)),
                   3 * (size_t)row_px);
            memset(rows[i] + 3 * row_px, 0xa5, 64); /* the slack that a decoder may fill */
        }
        fm_resample_push(resample, n);
    }
    assert_int_equal(y, needed.height);
}

static uint32_t sum_of(const uint8_t *bytes, size_t n) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < n; i++) sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

static void results_equal_pillows_and_torchs(void **state) {
    (void)state;
    static const struct {
        int32_t width, height, new_width, new_height;
        uint32_t pillow_12, pillow_13; /* up to 12.1, from 13.0 */
        uint32_t torch;                /* 0: it has no such filter */
        fm_filter filter;
    } golden[] = {
        {276, 269, 224, 224, 0x3da6efe2, 0x3da6efe2, 0x72763acd, FM_FILTER_BILINEAR},
        {100, 190, 90, 100, 0x13b46838, 0xa19afe43, 0xb48072d8, FM_FILTER_BILINEAR},
        {17, 33, 40, 21, 0x75c6de78, 0x762eb9ba, 0x18feb666, FM_FILTER_BILINEAR},
        {1, 50, 9, 7, 0x6c90e7d0, 0x6c90e7d0, 0x6c90e7d0, FM_FILTER_BILINEAR},
        {640, 3, 32, 32, 0x69c9d792, 0x69c9d792, 0x69c9d792, FM_FILTER_BILINEAR},
        {900, 1200, 20, 30, 0xf76710f8, 0xf76710f8, 0xf76710f8, FM_FILTER_BILINEAR},
        {100, 190, 90, 100, 0xdd4f3e92, 0xc36fc62e, 0x681466a1, FM_FILTER_BICUBIC},
        {17, 33, 40, 21, 0x38af190d, 0xe743d864, 0x800a3ae4, FM_FILTER_BICUBIC},
        {100, 190, 90, 100, 0x69fe1422, 0xbf57eeb8, 0, FM_FILTER_BOX},
        {17, 33, 40, 21, 0x8127da7f, 0x8127da7f, 0, FM_FILTER_BOX},
        {100, 190, 90, 100, 0xee5d9b87, 0xbd7537ed, 0, FM_FILTER_HAMMING},
        {17, 33, 40, 21, 0xdc26dcd7, 0xf7030d6c, 0, FM_FILTER_HAMMING},
        {100, 190, 90, 100, 0xee86d6e0, 0x664e7a59, 0x9b886dfc, FM_FILTER_LANCZOS},
        {17, 33, 40, 21, 0x58f98460, 0x51c83529, 0xbf45653a, FM_FILTER_LANCZOS},
        {100, 190, 90, 100, 0x201c6dce, 0x201c6dce, 0, FM_FILTER_NEAREST},
        {17, 33, 40, 21, 0x178d70b7, 0x178d70b7, 0, FM_FILTER_NEAREST},
    };
    static const fm_resize_order orders[] = {FM_RESIZE_HORIZONTAL_FIRST, FM_RESIZE_PILLOW_13,
                                             FM_RESIZE_TORCH};
    for (size_t i = 0; i < sizeof(golden) / sizeof(*golden); i++) {
        const int32_t width = golden[i].width, height = golden[i].height;
        uint8_t *const image = make_image(width, height);
        const fm_geometry geometry = {
            .source = {.width = width, .height = height},
            .resized_width = golden[i].new_width,
            .resized_height = golden[i].new_height,
            .window = {.width = golden[i].new_width, .height = golden[i].new_height}};
        const uint32_t sums[] = {golden[i].pillow_12, golden[i].pillow_13, golden[i].torch};
        for (int k = 0; k < (golden[i].torch ? 3 : 2); k++) {
            fm_plan plan =
                make_plan(golden[i].new_width, golden[i].new_height, FM_UINT8, FM_NCHW, orders[k]);
            plan.filter = golden[i].filter;
            fm_resample *resample;
            assert_int_equal(fm_resample_open(&resample, &plan, NULL, NULL), FM_OK);
            uint8_t *const out = malloc(plan.sample_bytes);
            assert_non_null(out);
            run(resample, image, width, &geometry, out);
            assert_int_equal(sum_of(out, plan.sample_bytes), sums[k]);
            free(out);
            fm_resample_close(&resample);
        }
        free(image);
    }
}

static void compare(const uint8_t *image, int32_t image_width, const fm_geometry *geometry,
                    fm_dtype dtype, fm_layout layout, fm_resize_order order, fm_filter filter) {
    enum { GUARD = 64 };
    fm_plan plan = make_plan(geometry->window.width, geometry->window.height, dtype, layout, order);
    fm_geometry used = *geometry;
    used.second_filter = random_below(2);
    plan.filter = used.second_filter ? (fm_filter)random_below(FM_FILTER_NEAREST + 1) : filter;
    plan.second_filter = filter;
    plan.stream = random_below(2);
    const size_t n_values = 3 * (size_t)plan.out_width * (size_t)plan.out_height;
    uint8_t *const memory = malloc(plan.sample_bytes + 2 * GUARD);
    uint8_t *const want = malloc(n_values);
    assert_true(memory && want);
    memset(memory, 0x5a, plan.sample_bytes + 2 * GUARD);
    fm_resample *resample;
    assert_int_equal(fm_resample_open(&resample, &plan, NULL, NULL), FM_OK);
    run(resample, image, image_width, &used, memory + GUARD);
    fm_resample_close(&resample);
    reference_sample(want, image, image_width, geometry, order, filter);
    const size_t plane = n_values / 3, value_bytes = plan.sample_bytes / n_values;
    for (size_t i = 0; i < n_values; i++) {
        const size_t at = layout == FM_NHWC ? 3 * (i % plane) + i / plane : i;
        uint32_t got = 0;
        memcpy(&got, memory + GUARD + at * value_bytes, value_bytes);
        assert_int_equal(got, dtype == FM_UINT8 ? want[i] : plan.bits[i / plane][want[i]]);
    }
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(memory[i], 0x5a);
        assert_int_equal(memory[GUARD + plan.sample_bytes + i], 0x5a);
    }
    free(memory);
    free(want);
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* One axis of torch's resize of floats, as its UpSampleKernel.cpp does it. */
static void reference_floats(float *out, const float *in, size_t step, int32_t n_in, int32_t n_out,
                             int32_t run_taps) {
    const float scale = (float)n_in / (float)n_out, support = scale >= 1 ? scale : 1;
    const float inverse = scale >= 1 ? (float)(1.0 / (double)scale) : 1;
    float *const weights = malloc((size_t)n_in * sizeof(*weights));
    assert_non_null(weights);
    for (int32_t i = 0; i < n_out; i++) {
        const float center = (float)((double)scale * (i + 0.5));
        int32_t first = (int32_t)((double)(center - support) + 0.5);
        int32_t end = (int32_t)((double)(center + support) + 0.5);
        first = first < 0 ? 0 : first;
        end = end > n_in ? n_in : end;
        float total = 0;
        for (int32_t j = first; j < end; j++) {
            const double place = ((double)((float)j - center) + 0.5) * (double)inverse;
            const float distance = fabsf((float)place);
            weights[j - first] = distance < 1 ? (float)(1.0 - (double)distance) : 0;
            total += weights[j - first];
        }
        for (size_t c = 0; c < 3; c++) {
            float sum = 0;
            for (int32_t j = first; j < end; j++) {
                const float value = in[(size_t)j * step + c], weight = weights[j - first] / total;
                const int32_t behind = j - first - 1; /* taps behind the first one */
                const int32_t n_whole = run_taps ? (end - first - 1) / run_taps * run_taps : 0;
                if (j == first)
                    sum = value * weight;
                else
                    sum = behind < n_whole ? sum + value * weight : fmaf(value, weight, sum);
            }
            out[(size_t)i * step + c] = sum;
        }
    }
    free(weights);
}

/* The resized source in floats, [resized_height][resized_width][3]; the caller frees it. */
static float *reference_resized(const uint8_t *image, int32_t image_width,
                                const fm_geometry *geometry, const fm_plan *plan) {
    const fm_box source = geometry->source;
    const size_t width = (size_t)geometry->resized_width, height = (size_t)geometry->resized_height;
    const size_t n_columns = (size_t)source.width, n_rows = (size_t)source.height;
    float *const pixels = malloc(3 * n_columns * n_rows * sizeof(float));
    float *const between = malloc(3 * width * n_rows * sizeof(float));
    float *const out = malloc(3 * width * height * sizeof(float));
    assert_true(pixels && between && out);
    for (size_t y = 0; y < n_rows; y++)
        for (size_t x = 0; x < n_columns; x++)
            for (size_t c = 0; c < 3; c++) {
                const size_t from = geometry->mirror_source ? n_columns - 1 - x : x;
                const size_t px =
                    ((size_t)source.top + y) * (size_t)image_width + (size_t)source.left + from;
                pixels[3 * (y * n_columns + x) + c] = plan->resized_values[c][image[3 * px + c]];
            }
    if (width == n_columns && height == n_rows) {
        memcpy(out, pixels, 3 * width * height * sizeof(float));
    } else {
        for (size_t y = 0; y < n_rows; y++)
            reference_floats(between + 3 * y * width, pixels + 3 * y * n_columns, 3, source.width,
                             (int32_t)width, plan->run_taps);
        /* A row's pixels are `step` floats apart, so that one call resizes one column. */
        for (size_t x = 0; x < width; x++)
            reference_floats(out + 3 * x, between + 3 * x, 3 * width, source.height,
                             (int32_t)height, plan->run_taps);
    }
    free(pixels);
    free(between);
    return out;
}

static void compare_floats(const uint8_t *image, int32_t image_width, const fm_geometry *geometry,
                           bool keeps, fm_layout layout) {
    const fm_box window = geometry->window;
    float values[3][256];
    for (int i = 0; i < 3 * 256; i++)
        values[i / 256][i % 256] = i % 256 ? (float)(random_below(4001) - 2000) / 700.0f : 0.0f;
    const fm_op op = {.kind = FM_OP_CENTER_CROP, .height = window.height, .width = window.width};
    const fm_transform transform = {
        .ops = &op,
        .n_ops = 1,
        .dtype = keeps ? FM_FLOAT32 : FM_UINT8,
        .layout = layout,
        .mean = {0.5f, 0.4f, 0.3f},
        .std = {0.2f, 0.3f, 0.1f},
        .resize_order = FM_RESIZE_TORCH_FLOAT,
        .float_resize = {.run_taps = random_below(10), .values = keeps ? values[0] : NULL}};
    fm_plan plan;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    void *const got = malloc(plan.sample_bytes);
    assert_non_null(got);
    fm_resample *resample;
    assert_int_equal(fm_resample_open(&resample, &plan, NULL, NULL), FM_OK);
    run(resample, image, image_width, geometry, got);
    fm_resample_close(&resample);
    float *const resized = reference_resized(image, image_width, geometry, &plan);
    const int32_t width = geometry->resized_width, height = geometry->resized_height;
    for (int32_t y = 0; y < window.height; y++) {
        for (int32_t x = 0; x < window.width; x++) {
            const int32_t row = window.top + y;
            const int32_t column = window.left + (geometry->flip ? window.width - 1 - x : x);
            const bool inside = row >= 0 && row < height && column >= 0 && column < width;
            for (int32_t c = 0; c < 3; c++) {
                const float value =
                    inside ? resized[3 * ((size_t)row * (size_t)width + (size_t)column) + (size_t)c]
                           : 0.0f;
                const int32_t at = layout == FM_NHWC ? 3 * (y * window.width + x) + c
                                                     : (c * window.height + y) * window.width + x;
                if (keeps) {
                    const float want = (value - plan.mean[c]) / plan.std[c];
                    assert_memory_equal((const float *)got + at, &want, sizeof(want));
                } else {
                    assert_int_equal(((const uint8_t *)got)[at], lrintf(value));
                }
            }
        }
    }
    free(resized);
    free(got);
}

static int32_t random_side(void) {
    return random_below(4) ? 1 + random_below(60) : 1 + random_below(4);
}

static void any_window_flip_and_block_equals_the_plain_resize(void **state) {
    (void)state;
    uint8_t *const image = make_image(100, 100);
    for (int i = 0; i < 3000; i++) {
        fm_geometry geometry = {.source = {.width = random_side(), .height = random_side()},
                                .resized_width = random_side(),
                                .resized_height = random_side(),
                                .mirror_source = random_below(2),
                                .flip = random_below(2)};
        geometry.source.left = random_below(101 - geometry.source.width);
        geometry.source.top = random_below(101 - geometry.source.height);
        if (random_below(5) == 0) geometry.resized_width = geometry.source.width;
        if (random_below(5) == 0) geometry.resized_height = geometry.source.height;
        geometry.window =
            (fm_box){.width = geometry.resized_width, .height = geometry.resized_height};
        if (random_below(2)) /* also wholly outside */
            geometry.window = (fm_box){.left = random_below(90) - 45,
                                       .top = random_below(90) - 45,
                                       .width = random_side(),
                                       .height = random_side()};
        compare(image, 100, &geometry, (fm_dtype)(FM_UINT8 + random_below(4)),
                (fm_layout)random_below(2), (fm_resize_order)random_below(4),
                (fm_filter)(i % (FM_FILTER_NEAREST + 1)));
    }
    free(image);
}

static void any_window_of_floats_equals_the_plain_resize(void **state) {
    (void)state;
    uint8_t *const image = make_image(100, 100);
    for (int i = 0; i < 600; i++) {
        fm_geometry geometry = {.source = {.width = random_side(), .height = random_side()},
                                .resized_width = random_side(),
                                .resized_height = random_side(),
                                .mirror_source = random_below(2),
                                .flip = random_below(2)};
        geometry.source.left = random_below(101 - geometry.source.width);
        geometry.source.top = random_below(101 - geometry.source.height);
        if (random_below(5) == 0) geometry.resized_width = geometry.source.width;
        if (random_below(5) == 0) geometry.resized_height = geometry.source.height;
        geometry.window =
            (fm_box){.width = geometry.resized_width, .height = geometry.resized_height};
        if (random_below(2)) /* also wholly outside */
            geometry.window = (fm_box){.left = random_below(90) - 45,
                                       .top = random_below(90) - 45,
                                       .width = random_side(),
                                       .height = random_side()};
        compare_floats(image, 100, &geometry, i % 2, (fm_layout)random_below(2));
    }
    free(image);
}

/* Both directions at 65,535 pixels, where the weights' rounding adds up and white is clipped. */
static void the_longest_sides_are_exact(void **state) {
    (void)state;
    uint8_t *const image = make_image(65535, 2);
    for (int white = 0; white < 2; white++) {
        if (white) memset(image, 255, 3 * 65535 * 2);
        for (int32_t size = 1; size <= 3; size++) {
            const fm_geometry wide = {.source = {.width = 65535, .height = 2},
                                      .resized_width = size,
                                      .resized_height = 1,
                                      .window = {.width = size, .height = 1}};
            const fm_geometry high = {.source = {.width = 2, .height = 65535},
                                      .resized_width = 3,
                                      .resized_height = size,
                                      .window = {.width = 3, .height = size}};
            for (int i = 0; i < 2 * (FM_FILTER_NEAREST + 1); i++) {
                const fm_filter filter = (fm_filter)(i / 2);
                const fm_resize_order order = i % 2 ? FM_RESIZE_TORCH : FM_RESIZE_PILLOW_13;
                compare(image, 65535, &wide, FM_UINT8, FM_NCHW, order, filter);
                compare(image, 2, &high, FM_UINT8, FM_NCHW, order, filter);
            }
        }
    }
    const fm_geometry grown = {.source = {.width = 3, .height = 2},
                               .resized_width = 65535,
                               .resized_height = 2,
                               .window = {.left = 65000, .width = 600, .height = 2}};
    for (int i = 0; i < 2 * (FM_FILTER_NEAREST + 1); i++)
        compare(image, 65535, &grown, FM_UINT8, FM_NCHW,
                i % 2 ? FM_RESIZE_TORCH : FM_RESIZE_HORIZONTAL_FIRST, (fm_filter)(i / 2));
    free(image);
}

static void only_what_shows_is_asked_for(void **state) {
    (void)state;
    const fm_plan plan = make_plan(10, 10, FM_UINT8, FM_NCHW, FM_RESIZE_HORIZONTAL_FIRST);
    fm_resample *resample;
    assert_int_equal(fm_resample_open(&resample, &plan, NULL, NULL), FM_OK);
    fm_geometry geometry = {.source = {.left = 7, .top = 5, .width = 200, .height = 100},
                            .resized_width = 100,
                            .resized_height = 100,
                            .window = {.left = 20, .top = 30, .width = 10, .height = 10}};
    fm_box needed;
    assert_int_equal(fm_resample_begin(resample, &geometry, &needed, NULL), FM_OK);
    /* Columns 20 to 29 at scale 2: from 2 * 20.5 - 2 to 2 * 29.5 + 2. */
    assert_int_equal(needed.left, 7 + 39);
    assert_int_equal(needed.width, 61 - 39);
    assert_int_equal(needed.top, 5 + 30);
    assert_int_equal(needed.height, 10);
    geometry.mirror_source = true;
    assert_int_equal(fm_resample_begin(resample, &geometry, &needed, NULL), FM_OK);
    assert_int_equal(needed.left, 7 + 200 - 61);
    assert_int_equal(needed.width, 61 - 39);
    geometry.window.left = 100;
    assert_int_equal(fm_resample_begin(resample, &geometry, &needed, NULL), FM_OK);
    assert_true(needed.width == 0 && needed.height == 0);
    fm_resample_close(&resample);
}

static void misuse_is_an_error(void **state) {
    (void)state;
    const fm_plan plan = make_plan(10, 10, FM_UINT8, FM_NCHW, FM_RESIZE_HORIZONTAL_FIRST);
    fm_resample *resample;
    fm_error error;
    uint8_t out[300];
    assert_int_equal(fm_resample_open(&resample, &plan, NULL, NULL), FM_OK);
    fm_geometry geometry = {.source = {.width = 20, .height = 20},
                            .resized_width = 11,
                            .resized_height = 10,
                            .window = {.width = 11, .height = 10}};
    fm_box needed;
    assert_int_equal(fm_resample_begin(resample, &geometry, &needed, &error), FM_ERR_ARGUMENT);
    geometry.window.width = 10;
    assert_int_equal(fm_resample_begin(resample, &geometry, &needed, &error), FM_OK);
    assert_int_equal(fm_resample_start(resample, 1, needed.width, out, &error), FM_ERR_ARGUMENT);
    fm_resample_close(&resample);
    assert_null(resample);
    fm_resample_close(&resample);
    fm_resample_close(NULL);
}

static void crops_seen_before_allocate_nothing(void **state) {
    (void)state;
    const fm_plan plan = make_plan(50, 40, FM_FLOAT32, FM_NCHW, FM_RESIZE_PILLOW_13);
    fm_mem_counter counter = {0};
    fm_resample *resample;
    assert_int_equal(fm_resample_open(&resample, &plan, &counter, NULL), FM_OK);
    uint8_t *const image = make_image(300, 300);
    float *const out = malloc(plan.sample_bytes);
    assert_non_null(out);
    uint64_t n_blocks = 0;
    for (int pass = 0; pass < 2; pass++) {
        lcg_state = 99;
        for (int i = 0; i < 300; i++) {
            const fm_geometry geometry = {.source = {.width = i % 7 ? 1 + random_below(300) : 50,
                                                     .height = i % 5 ? 1 + random_below(300) : 40},
                                          .resized_width = 50,
                                          .resized_height = 40,
                                          .window = {.width = 50, .height = 40},
                                          .mirror_source = random_below(2),
                                          .flip = random_below(2)};
            run(resample, image, 300, &geometry, out);
        }
        if (pass == 0) n_blocks = counter.n_blocks;
    }
    /* Capacities grow in powers of two, so there are few allocations: each cached pass has five
     * arrays.
     */
    assert_true(n_blocks > 0 && n_blocks <= 80);
    assert_int_equal(counter.n_blocks, n_blocks);
    fm_resample_close(&resample);
    free(image);
    free(out);
}

/* Samples of few sizes, whose weights one resampler keeps and another computes each time. */
static void kept_weights_are_those_computed_anew(void **state) {
    (void)state;
    enum { SIDE = 90, OUT = 30 };
    fm_plan plan = make_plan(OUT, OUT, FM_UINT8, FM_NHWC, FM_RESIZE_PILLOW_13);
    uint8_t *const image = make_image(SIDE, SIDE);
    uint8_t kept_out[3 * OUT * OUT], new_out[3 * OUT * OUT];
    static const fm_filter filters[] = {FM_FILTER_BILINEAR, FM_FILTER_LANCZOS, FM_FILTER_NEAREST};
    for (int f = 0; f < 3; f++) {
        plan.filter = filters[f];
        fm_resample *keeps;
        assert_int_equal(fm_resample_open(&keeps, &plan, NULL, NULL), FM_OK);
        for (int i = 0; i < 60; i++) {
            const fm_geometry geometry = {
                .source = {.width = 60 + 15 * random_below(3), .height = 75 + random_below(2)},
                .resized_width = 40 + random_below(2),
                .resized_height = 40,
                .window = {.left = random_below(3) * 5,
                           .top = random_below(2) * 10,
                           .width = OUT,
                           .height = OUT},
                .mirror_source = random_below(2),
                .flip = random_below(2)};
            run(keeps, image, SIDE, &geometry, kept_out);
            fm_resample *fresh;
            assert_int_equal(fm_resample_open(&fresh, &plan, NULL, NULL), FM_OK);
            run(fresh, image, SIDE, &geometry, new_out);
            fm_resample_close(&fresh);
            assert_memory_equal(kept_out, new_out, sizeof(new_out));
        }
        fm_resample_close(&keeps);
    }
    free(image);
}

/* The vertical kernel's short arithmetic at its limits: any weights of the right sum, white rows.
 */
static void vertical_kernel_is_exact_for_any_weights(void **state) {
    (void)state;
    enum { N = 200, MOST = 20 };
    static uint8_t memory[MOST][N + FM_ROW_SLACK], out[N + FM_ROW_SLACK];
    const uint8_t *rows[MOST];
    fm_kernels kernels;
    fm_coeffs coeffs = {.n = 1, .stride = MOST};
    fm_cpu_tier tier;
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), FM_OK);
    fm_kernels_init(&kernels, tier);
    for (int i = 0; i < 20000; i++) {
        int32_t n_taps = 1 + random_below(i % 4 ? 8 : MOST);
        const size_t n = 1 + (size_t)random_below(N);
        int32_t weights[MOST], left = 1 << 22;
        for (int32_t t = 0; t < n_taps; t++) {
            weights[t] = t + 1 == n_taps ? left : random_below(left + 1);
            if (random_below(2)) weights[t] = left < 0x7fff ? left : weights[t] | 0x3fff;
            if (weights[t] > left || t + 1 == n_taps) weights[t] = left;
            left -= weights[t];
            rows[t] = memory[t];
            const int kind = random_below(3);
            for (size_t j = 0; j < n; j++)
                memory[t][j] = kind ? (uint8_t)(random_below(256) | -(kind == 2)) : 255;
        }
        /* The weights' own rounding makes the sum up to half a unit a tap too large. */
        weights[0] += random_below(n_taps / 2 + 1);
        coeffs.n_taps = &n_taps;
        coeffs.weights = weights;
        assert_int_equal(kernels.prepare_rows(&coeffs, NULL, NULL), FM_OK);
        kernels.vertical(out, rows, &coeffs, 0, n);
        for (size_t j = 0; j < n; j++) {
            int64_t sum = 1 << 21;
            for (int32_t t = 0; t < n_taps; t++) sum += (int64_t)weights[t] * rows[t][j];
            assert_int_equal(out[j], sum >> 22);
        }
    }
    fm_mem_free(coeffs.table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_equal_pillows_and_torchs),
        cmocka_unit_test(any_window_flip_and_block_equals_the_plain_resize),
        cmocka_unit_test(any_window_of_floats_equals_the_plain_resize),
        cmocka_unit_test(the_longest_sides_are_exact),
        cmocka_unit_test(only_what_shows_is_asked_for),
        cmocka_unit_test(misuse_is_an_error),
        cmocka_unit_test(crops_seen_before_allocate_nothing),
        cmocka_unit_test(kept_weights_are_those_computed_anew),
        cmocka_unit_test(vertical_kernel_is_exact_for_any_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
