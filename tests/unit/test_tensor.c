/* feedmill/tensor.h: the values of scalar arithmetic, for all lengths, and no access beyond the
 * arrays. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "feedmill/tensor.h"
#include "guarded.h"

/* Below and above the vectors' lengths, their periods of pixels, and the pixels of a row's slack.
 */
static const size_t LENGTHS[] = {0,  1,  2,  7,  8,  9,  15, 16,  17,  23,
                                 24, 31, 33, 47, 48, 63, 65, 200, 1001};
#define N_LENGTHS (sizeof(LENGTHS) / sizeof(*LENGTHS))

static const float MEAN[3] = {0.485f, 0.456f, 0.406f};
static const float STD[3] = {0.229f, 0.224f, 0.225f};

/* Numbers of all magnitudes, the same in each run (xorshift32). */
static float a_number(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    const int32_t whole = (int32_t)(*state >> 9) - (1 << 22);
    return (float)whole / (float)(1 << (*state & 15));
}

static test_guarded some_floats(size_t n) {
    const test_guarded memory = test_guarded_open(NULL, n * sizeof(float));
    uint32_t state = 2463534242u;
    for (size_t i = 0; i < n; i++) {
        const float value = a_number(&state);
        memcpy(memory.bytes + i * sizeof(float), &value, sizeof(value));
    }
    return memory;
}

static test_guarded some_bytes(size_t n) {
    const test_guarded memory = test_guarded_open(NULL, n);
    for (size_t i = 0; i < n; i++) memory.bytes[i] = (uint8_t)(i * 89 + i / 256);
    return memory;
}

static void planes_are_normalized(void **state) {
    (void)state;
    for (size_t k = 0; k < N_LENGTHS; k++) {
        const size_t plane = LENGTHS[k];
        const test_guarded in = some_floats(3 * plane);
        const test_guarded out = test_guarded_open(NULL, in.n);
        const float *const values = (const float *)in.bytes;
        const float *const results = (const float *)out.bytes;
        fm_normalize((float *)out.bytes, values, 3, plane, MEAN, STD);
        for (size_t i = 0; i < 3 * plane; i++) {
            const float centered = values[i] - MEAN[i / plane];
            const float expected = centered / STD[i / plane];
            assert_memory_equal(&results[i], &expected, sizeof(expected));
        }
        test_guarded_close(&in);
        test_guarded_close(&out);
    }
}

static void pixels_are_normalized(void **state) {
    (void)state;
    for (size_t k = 0; k < N_LENGTHS; k++) {
        const size_t n_px = LENGTHS[k];
        const test_guarded in = some_floats(3 * n_px);
        const test_guarded out = test_guarded_open(NULL, in.n);
        const float *const values = (const float *)in.bytes;
        const float *const results = (const float *)out.bytes;
        fm_normalize_pixels((float *)out.bytes, values, n_px, MEAN, STD);
        for (size_t i = 0; i < 3 * n_px; i++) {
            const float centered = values[i] - MEAN[i % 3];
            const float expected = centered / STD[i % 3];
            assert_memory_equal(&results[i], &expected, sizeof(expected));
        }
        test_guarded_close(&in);
        test_guarded_close(&out);
    }
}

static void bytes_are_scaled(void **state) {
    (void)state;
    static const float SCALES[][2] = {{1, 255}, {1, 1}, {32767, 255}, {0.1f, 3}, {257, 65535}};
    for (size_t s = 0; s < sizeof(SCALES) / sizeof(*SCALES); s++)
        for (size_t k = 0; k < N_LENGTHS; k++) {
            const size_t n = LENGTHS[k];
            const test_guarded in = some_bytes(n);
            const test_guarded out = test_guarded_open(NULL, n * sizeof(float));
            const float *const results = (const float *)out.bytes;
            fm_scale_bytes((float *)out.bytes, in.bytes, n, SCALES[s][0], SCALES[s][1]);
            for (size_t i = 0; i < n; i++) {
                const float product = (float)in.bytes[i] * SCALES[s][0];
                const float expected = product / SCALES[s][1];
                assert_memory_equal(&results[i], &expected, sizeof(expected));
            }
            test_guarded_close(&in);
            test_guarded_close(&out);
        }
}

static void pixels_become_planes(void **state) {
    (void)state;
    fm_error error;
    fm_scaler *scaler = NULL;
    assert_int_equal(fm_scaler_open(&scaler, &error), FM_OK);
    for (size_t k = 0; k < N_LENGTHS; k++) {
        const size_t n_px = LENGTHS[k];
        const test_guarded in = some_bytes(3 * n_px);
        const test_guarded out = test_guarded_open(NULL, in.n * sizeof(float));
        const float *const results = (const float *)out.bytes;
        fm_scaler_run(scaler, in.bytes, n_px, (float *)out.bytes);
        for (size_t i = 0; i < 3 * n_px; i++) {
            const float expected = (float)in.bytes[i % n_px * 3 + i / n_px] / 255.0f;
            assert_memory_equal(&results[i], &expected, sizeof(expected));
        }
        test_guarded_close(&in);
        test_guarded_close(&out);
    }
    fm_scaler_close(&scaler);
    assert_null(scaler);
    fm_scaler_close(&scaler);
    fm_scaler_close(NULL);
}

static void no_place_for_the_scaler_is_refused(void **state) {
    (void)state;
    fm_error error;
    assert_int_equal(fm_scaler_open(NULL, &error), FM_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_are_normalized),
        cmocka_unit_test(pixels_are_normalized),
        cmocka_unit_test(bytes_are_scaled),
        cmocka_unit_test(pixels_become_planes),
        cmocka_unit_test(no_place_for_the_scaler_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
