/*
 * Runs one kernel of one tier a number of times, for count_instructions.py, which counts the
 * instructions of it under an emulator.
 *
 * usage: count_kernels KERNEL TIER RUNS
 *
 * Prints the number of pixels (for the inverse DCT, of samples; for the rest, of output pixels) of
 * a run. Without arguments it lists the kernels.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "augment/blur.h"
#include "augment/color.h"
#include "augment/warp.h"
#include "decode/jpeg_kernels.h"
#include "transform/kernels.h"
#include "transform/store.h"

enum { PX = 224, LARGE_PX = 500, BLOCKS = 28, TAPS = 9, SLACK = 128 };

static struct {
    fm_cpu_tier tier;
    fm_kernels kernels;
    fm_jpeg_kernels jpeg;
    fm_color_kernels colors;
    fm_blur_kernels blurs;
    fm_warp_kernels warps;
    fm_jpeg_quant quant;
    fm_plan plan;
    fm_store store;
    fm_coeffs coeffs;
    _Alignas(64) uint8_t in[TAPS][3 * LARGE_PX + SLACK];
    _Alignas(64) float out[3 * LARGE_PX + SLACK];
    int16_t blocks[64 * BLOCKS];
    double x[FM_WARP_ARRAY], y[FM_WARP_ARRAY];
} all;

static const uint8_t *rows[TAPS];
static uint8_t *const out = (uint8_t *)all.out;

static void check(int status, const fm_error *error) {
    if (!status) return;
    fprintf(stderr, "count_kernels: %s\n", error->message);
    exit(1);
}

/* ---- resize ---------------------------------------------------------------------------------- */

/* The first run computes the weights, and is not counted by itself. */
static void prepare(fm_filter filter, int32_t size, bool is_horizontal) {
    fm_error error;
    if (all.coeffs.n) return;
    check(fm_coeffs_compute(&all.coeffs, filter, size, PX, 0, PX, NULL, &error), &error);
    if (is_horizontal) fm_coeffs_even_taps(&all.coeffs, size);
    check((is_horizontal ? all.kernels.prepare_columns : all.kernels.prepare_rows)(&all.coeffs,
                                                                                   NULL, &error),
          &error);
}

static void resize_rows(fm_filter filter, int32_t size) {
    prepare(filter, size, true);
    uint8_t *const to[4] = {out, out + 3 * PX + 64, out + 6 * PX + 128, out + 9 * PX + 192};
    all.kernels.horizontal(to, rows, 4, &all.coeffs);
}

/* An output of an odd number in the middle, with the usual number of taps. */
static void resize_columns(fm_filter filter, int32_t size) {
    prepare(filter, size, false);
    all.kernels.vertical(out, rows, &all.coeffs, PX / 2 + 1, 3 * PX);
}

static void horizontal_276(void) { resize_rows(FM_FILTER_BILINEAR, 276); }
static void horizontal_500(void) { resize_rows(FM_FILTER_BILINEAR, 500); }
static void vertical_276(void) { resize_columns(FM_FILTER_BILINEAR, 276); }
static void vertical_500(void) { resize_columns(FM_FILTER_BILINEAR, 500); }
static void vertical_bicubic(void) { resize_columns(FM_FILTER_BICUBIC, 276); }
static void mirror(void) { all.kernels.mirror(out, rows[0], PX); }

/* ---- stores ---------------------------------------------------------------------------------- */

/* The tables of a plan that normalizes with ImageNet's mean and std. */
static void store(fm_dtype dtype, fm_layout layout) {
    if (!all.plan.channels) {
        const fm_op op = {.kind = FM_OP_RESIZE, .height = 1, .width = PX};
        const fm_transform transform = {.ops = &op,
                                        .n_ops = 1,
                                        .mean = {0.485f, 0.456f, 0.406f},
                                        .std = {0.229f, 0.224f, 0.225f},
                                        .dtype = dtype,
                                        .layout = layout};
        fm_error error;
        check(fm_plan_init(&all.plan, &transform, &error), &error);
        fm_store_init(&all.store, &all.plan, all.tier);
    }
    all.store.row(&all.store, out, rows[0], PX);
}

static void store_u8(void) { store(FM_UINT8, FM_NCHW); }
static void store_f32(void) { store(FM_FLOAT32, FM_NCHW); }
static void store_f32_last(void) { store(FM_FLOAT32, FM_NHWC); }
static void store_f16(void) { store(FM_FLOAT16, FM_NCHW); }
static void store_bf16(void) { store(FM_BFLOAT16, FM_NCHW); }

/* ---- decoder --------------------------------------------------------------------------------- */

static void idct(void) {
    if (!all.jpeg.idct(out, 8 * BLOCKS, all.blocks, &all.quant, BLOCKS)) abort();
}
static void upsample_h2(void) { all.jpeg.upsample_h2(out, rows[0] + 1, PX / 2); }
static void upsample_h2v2(void) { all.jpeg.upsample_h2v2(out, rows[0] + 1, rows[1] + 1, PX / 2); }
static void upsample_v2(void) { all.jpeg.upsample_v2(out, rows[0], rows[1], PX, true); }
static void ycc_to_rgb(void) { all.jpeg.ycc_to_rgb(out, rows[0], rows[1], rows[2], PX, false); }
static void gray_to_rgb(void) { all.jpeg.gray_to_rgb(out, rows[0], PX); }

/* ---- augmentations --------------------------------------------------------------------------- */

static void brightness(void) { all.colors.fade(out, 3 * PX, 0, 1.2f); }
static void blend(void) { all.colors.blend(out, rows[0], 3 * PX, 1.2f); }
static void saturation(void) { all.colors.fade_to_gray(out, PX, 1.2f); }
static void gray_sum(void) { (void)all.colors.gray_sum(rows[0], PX); }
static void gray_rgb(void) { all.colors.gray_rgb(out, rows[0], PX); }
static void hue(void) { all.colors.hue(out, PX, 20); }
static void smooth(void) { all.colors.smooth(out, rows[0], rows[1], rows[2], 3 * PX, 3); }
static void lookup(void) { all.colors.lookup(out, PX, rows[0]); }
static void blur(void) { all.blurs.row(out, rows, TAPS, 3 * PX, 2000000, 388608); }

static fm_image source(void) {
    return (fm_image){.px = all.in[0], .width = FM_WARP_BLOCK, .height = 8, .channels = 3};
}

static void bilinear(void) {
    const fm_image image = source();
    all.warps.bilinear(&image, out, all.x, all.y, FM_WARP_BLOCK);
}

static void bicubic(void) {
    const fm_image image = source();
    all.warps.bicubic(&image, out, all.x, all.y, FM_WARP_BLOCK);
}

static const struct {
    const char *name;
    void (*run)(void);
    int n_px;
} cases[] = {{"horizontal, 276 to 224", horizontal_276, 4 * PX},
             {"horizontal, 500 to 224", horizontal_500, 4 * PX},
             {"vertical, 276 to 224", vertical_276, PX},
             {"vertical, 500 to 224", vertical_500, PX},
             {"vertical, bicubic", vertical_bicubic, PX},
             {"mirror", mirror, PX},
             {"store uint8", store_u8, PX},
             {"store float32", store_f32, PX},
             {"store float32, channels last", store_f32_last, PX},
             {"store float16", store_f16, PX},
             {"store bfloat16", store_bf16, PX},
             {"inverse DCT, a sample", idct, 64 * BLOCKS},
             {"upsampling h2", upsample_h2, PX},
             {"upsampling h2v2", upsample_h2v2, PX},
             {"upsampling v2", upsample_v2, PX},
             {"YCbCr to RGB", ycc_to_rgb, PX},
             {"gray to RGB", gray_to_rgb, PX},
             {"brightness", brightness, PX},
             {"blend", blend, PX},
             {"saturation", saturation, PX},
             {"sum of gray values", gray_sum, PX},
             {"gray", gray_rgb, PX},
             {"hue", hue, PX},
             {"smooth", smooth, PX},
             {"look-up tables", lookup, PX},
             {"box blur, 9 taps", blur, PX},
             {"bilinear", bilinear, FM_WARP_BLOCK},
             {"bicubic", bicubic, FM_WARP_BLOCK}};
enum { N_CASES = sizeof(cases) / sizeof(*cases) };

static void setup(void) {
    uint32_t state = 1;
    uint16_t steps[64];
    for (int i = 0; i < TAPS; i++) {
        rows[i] = all.in[i];
        for (size_t k = 0; k < sizeof(all.in[i]); k++)
            all.in[i][k] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    }
    /* Blocks with all of the lower frequencies. */
    for (int i = 0; i < 64; i++) steps[i] = (uint16_t)(1 + i / 8 + i % 8);
    for (int i = 0; i < 64 * BLOCKS; i++)
        if (i % 8 < 4 && i % 64 < 32) all.blocks[i] = (int16_t)((state >> i % 23 & 7) - 3);
    for (int i = 0; i < FM_WARP_ARRAY; i++) {
        all.x[i] = 2 + 0.9 * i;
        all.y[i] = 2 + 0.05 * i;
    }
    fm_jpeg_quant_set(&all.quant, steps);
    fm_kernels_init(&all.kernels, all.tier);
    fm_jpeg_kernels_init(&all.jpeg, all.tier);
    fm_color_init(&all.colors, all.tier);
    fm_blur_init(&all.blurs, all.tier);
    fm_warp_init(&all.warps, all.tier);
}

int main(int argc, char **argv) {
    for (int c = 0; argc == 1 && c < N_CASES; c++) printf("%s\n", cases[c].name);
    if (argc != 4) return argc != 1;
    int tier = FM_CPU_SCALAR;
    while (tier < FM_CPU_N_TIERS && strcmp(fm_cpu_tier_name((fm_cpu_tier)tier), argv[2])) tier++;
    if (tier > (int)fm_cpu_best_tier()) {
        fprintf(stderr, "count_kernels: this CPU has no %s\n", argv[2]);
        return 1;
    }
    all.tier = (fm_cpu_tier)tier;
    setup();
    for (int c = 0; c < N_CASES; c++) {
        if (strcmp(cases[c].name, argv[1])) continue;
        for (int run = atoi(argv[3]); run > 0; run--) cases[c].run();
        printf("%d\n", cases[c].n_px);
        fm_coeffs_fini(&all.coeffs);
        return 0;
    }
    fprintf(stderr, "count_kernels: no kernel is named %s\n", argv[1]);
    return 1;
}
