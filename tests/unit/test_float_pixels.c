/* transform/float_pixels.h: rows of any length and order, and no access beyond the ends of rows. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "guarded.h"
#include "transform/float_pixels.h"

enum { MOST_PX = 200 };

static uint32_t lcg_state = 20261128u;
static uint32_t random_bits(void) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return lcg_state >> 8;
}

/* A plan whose resized values are the bytes, the bytes divided by 255, or any. */
static void open_plan(fm_plan *plan, int kind) {
    static float values[3 * 256];
    for (int i = 0; i < 3 * 256; i++) {
        const float byte = (float)(i % 256);
        values[i] = kind == 0   ? byte
                    : kind == 1 ? byte / 255.0f
                                : (byte - 99.5f) / (3.0f + i / 256);
    }
    if (kind == 3) values[2 * 256 + 255] = 1; /* all but one are as in a plan of bytes */
    for (int i = 0; kind == 3 && i < 3 * 256 - 1; i++) values[i] = (float)(i % 256);
    const fm_op crop = {.kind = FM_OP_RANDOM_RESIZED_CROP,
                        .height = 8,
                        .width = 8,
                        .scale = {0.1, 1},
                        .ratio = {0.5, 2}};
    fm_transform transform = {.ops = &crop,
                              .n_ops = 1,
                              .dtype = FM_FLOAT32,
                              .std = {1, 1, 1},
                              .resize_order = FM_RESIZE_TORCH_FLOAT,
                              .float_resize = {.values = values}};
    fm_error error;
    assert_int_equal(fm_plan_init(plan, &transform, &error), FM_OK);
    assert_int_equal(plan->resizes_bytes, kind == 0);
    assert_int_equal(plan->resizes_shares, kind == 1);
}

static void bytes_become_floats(void **state) {
    (void)state;
    static fm_plan plan;
    for (int kind = 0; kind < 4; kind++) {
        open_plan(&plan, kind);
        for (size_t n = 1; n <= MOST_PX; n++) {
            const test_guarded in = test_guarded_open(NULL, 3 * n);
            const test_guarded out = test_guarded_open(NULL, 4 * n * sizeof(float));
            for (size_t i = 0; i < 3 * n; i++) in.bytes[i] = (uint8_t)random_bits();
            for (int mirror = 0; mirror < 2; mirror++) {
                fm_float_pixels((float *)(void *)out.bytes, in.bytes, (int32_t)n, &plan, mirror);
                for (size_t i = 0; i < n; i++)
                    for (size_t c = 0; c < 3; c++) {
                        const uint8_t byte = in.bytes[3 * (mirror ? n - 1 - i : i) + c];
                        float got;
                        memcpy(&got, out.bytes + (4 * i + c) * sizeof(float), sizeof(got));
                        assert_memory_equal(&got, &plan.resized_values[c][byte], sizeof(got));
                    }
            }
            test_guarded_close(&in);
            test_guarded_close(&out);
        }
    }
}

static void floats_become_bytes(void **state) {
    (void)state;
    for (size_t n = 1; n <= MOST_PX; n++) {
        const test_guarded in = test_guarded_open(NULL, 4 * n * sizeof(float));
        const test_guarded out = test_guarded_open(NULL, 3 * n);
        float *const values = (float *)(void *)in.bytes;
        for (size_t i = 0; i < 4 * n; i++) {
            const float whole = (float)(random_bits() % 256);
            const float parts[] = {0, 0.5f, 0.49999997f, -0.5f, (float)random_bits() / (1 << 25)};
            const float value = whole + parts[random_bits() % 5];
            values[i] = value < -0.5f ? 0 : value >= 255.5f ? 255 : value;
        }
        fm_float_round(out.bytes, values, (int32_t)n);
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < 3; c++)
                assert_int_equal(out.bytes[3 * i + c], lrintf(values[4 * i + c]));
        test_guarded_close(&in);
        test_guarded_close(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_become_floats),
        cmocka_unit_test(floats_become_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
