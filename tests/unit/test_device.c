/* The device interface: the host's conversion compared with the transform's, refused arguments, and
 * the messages without a plug-in. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "device/pinned.h"
#include "transform/store.h"

#define HEIGHT 5
#define WIDTH 7
#define N_PX (HEIGHT * WIDTH)
#define N_SAMPLES 3

static const fm_op to_size[] = {{.kind = FM_OP_RESIZE, .height = HEIGHT, .width = WIDTH}};

static fm_plan plan_of(fm_dtype dtype, fm_layout layout) {
    const fm_transform transform = {.ops = to_size,
                                    .n_ops = 1,
                                    .dtype = dtype,
                                    .layout = layout,
                                    .mean = {0.485f, 0.456f, 0.406f},
                                    .std = {0.229f, 0.224f, 0.225f}};
    fm_plan plan;
    fm_error error;
    if (fm_plan_init(&plan, &transform, &error)) fail_msg("%s", error.message);
    return plan;
}

/* Every value of every channel, and more. */
static void fill(uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 37 + i / 256);
}

static void converts_as_the_transform_stores(void **state) {
    (void)state;
    static const fm_dtype dtypes[] = {FM_FLOAT32, FM_FLOAT16, FM_BFLOAT16};
    uint8_t in[N_SAMPLES * N_PX * 3 + 256] = {0}; /* with slack, which a store may read */
    uint8_t want[N_SAMPLES * N_PX * 3 * 4], got[sizeof(want)];
    fill(in, N_SAMPLES * N_PX * 3);
    for (int i = 0; i < 6; i++) {
        const fm_plan plan = plan_of(dtypes[i / 2], i % 2 ? FM_NHWC : FM_NCHW);
        fm_store store;
        fm_store_init(&store, &plan, FM_CPU_SCALAR);
        memset(want, 1, sizeof(want));
        memset(got, 1, sizeof(got));
        for (int sample = 0; sample < N_SAMPLES; sample++)
            store.row(&store, want + (size_t)sample * plan.sample_bytes,
                      in + (size_t)sample * N_PX * 3, N_PX);
        fm_device_format format = {.convert = true,
                                   .dtype = plan.dtype,
                                   .layout = plan.layout,
                                   .channels = 3,
                                   .n_px = N_PX};
        memcpy(format.bits, plan.bits, sizeof(format.bits));
        const fm_device_job job = {
            .from = in, .to = got, .n_bytes = N_SAMPLES * N_PX * 3, .n_samples = N_SAMPLES};
        fm_device_convert(&format, &job);
        assert_memory_equal(got, want, sizeof(want));
    }
}

static void gray_has_one_channel(void **state) {
    (void)state;
    const fm_plan plan = plan_of(FM_FLOAT32, FM_NCHW);
    uint8_t in[N_PX];
    float got[N_PX];
    fill(in, N_PX);
    fm_device_format format = {.convert = true, .dtype = FM_FLOAT32, .channels = 1, .n_px = N_PX};
    memcpy(format.bits, plan.bits, sizeof(format.bits));
    fm_device_convert(&format,
                      &(fm_device_job){.from = in, .to = got, .n_bytes = N_PX, .n_samples = 1});
    for (int i = 0; i < N_PX; i++) assert_true(got[i] == plan.table[0][in[i]]);
}

static void the_host_is_one_device(void **state) {
    (void)state;
    int32_t n_devices = 0;
    fm_error error;
    assert_int_equal(fm_device_count(FM_DEVICE_HOST, &n_devices, &error), FM_OK);
    assert_int_equal(n_devices, 1);
    const fm_device_options options = {.index = 1, .n_slots = 1};
    fm_device *device;
    assert_int_equal(fm_device_host()->open(&device, &options, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "index 1"));
    assert_int_equal(fm_device_count((fm_device_kind)9, NULL, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_device_count(FM_DEVICE_NONE, NULL, NULL), FM_ERR_ARGUMENT);
}

static void a_missing_plugin_is_named(void **state) {
    (void)state;
    fm_error error;
    setenv("FEEDMILL_CUDA_LIBRARY", "/no/such/plugin.so", 1);
    assert_int_equal(fm_device_count(FM_DEVICE_CUDA, NULL, &error), FM_ERR_UNAVAILABLE);
    assert_non_null(strstr(error.message, "/no/such/plugin.so"));
    /* A library that is not a plug-in of feedmill. */
    setenv("FEEDMILL_CUDA_LIBRARY", "libm.so.6", 1);
    assert_int_equal(fm_device_count(FM_DEVICE_CUDA, NULL, &error), FM_ERR_UNAVAILABLE);
    assert_non_null(strstr(error.message, "is not a plug-in of feedmill"));
    unsetenv("FEEDMILL_CUDA_LIBRARY");
}

static void blocks_are_whole_pages(void **state) {
    (void)state;
    const fm_device_options options = {.n_slots = 1};
    fm_device *device;
    assert_int_equal(fm_device_host()->open(&device, &options, NULL), FM_OK);
    fm_mem_counter counter = {0};
    fm_pinned pinned;
    assert_int_equal(fm_pinned_init(&pinned, fm_device_host(), device, 5000, &counter, NULL),
                     FM_OK);
    const fm_allocator allocator = fm_pinned_allocator(&pinned);
    void *handle = NULL;
    uint8_t *const block = allocator.alloc(allocator.user, 5000, &handle);
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % 4096, 0);
    memset(block, 1, 5000);
    assert_int_equal(counter.n_blocks, 1);
    allocator.free(allocator.user, block, handle);
    assert_int_equal(pinned.error.status, FM_OK);
    assert_int_equal(fm_device_host()->close(&device, NULL), FM_OK);
    assert_null(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(converts_as_the_transform_stores),
        cmocka_unit_test(gray_has_one_channel),
        cmocka_unit_test(the_host_is_one_device),
        cmocka_unit_test(a_missing_plugin_is_named),
        cmocka_unit_test(blocks_are_whole_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
