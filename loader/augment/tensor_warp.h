/*
 * Affine transforms of uint8 tensors, bit for bit as torchvision's: points of a grid in float32, at
 * which torch's grid_sample() with padding_mode="zeros" and align_corners=False interpolates. Pure
 * functions, for any thread.
 *
 * How torch rounds depends on the CPU and on its build (fm_sampling). The loops are in a table of
 * functions, one set per tier (base/cpu.h), which are compiled from the same source without
 * contraction of float operations, so that all give the same bytes.
 */
#ifndef FM_AUGMENT_TENSOR_WARP_H
#define FM_AUGMENT_TENSOR_WARP_H

#include <stdbool.h>

#include "augment/affine.h"
#include "augment/image.h"
#include "base/cpu.h"
#include "feedmill/feedmill.h"

/* Pixels that are processed at a time. */
enum { FM_TENSOR_WARP_BLOCK = 64 };

/* The four pixels around a point are called upper left, upper right, lower left, lower right. */
enum { FM_TENSOR_WARP_TAPS = 4 };

typedef struct fm_tensor_warp_block {
    /* Where the points are: the upper left pixel of the four, or the nearest pixel. May be outside
     * the image. */
    int32_t column[FM_TENSOR_WARP_BLOCK], row[FM_TENSOR_WARP_BLOCK];
    float weight[FM_TENSOR_WARP_TAPS][FM_TENSOR_WARP_BLOCK];
    /* The pixels: one channel in each of the lowest bytes, and 1 in the highest byte; 0: outside */
    uint32_t tap[FM_TENSOR_WARP_TAPS][FM_TENSOR_WARP_BLOCK];
} fm_tensor_warp_block;

/* Maps pixels of an image with `width` columns and `height` rows. */
typedef struct fm_tensor_grid {
    /* By coordinate of the point, x and y from -1 to 1: factors of the pixel's column and row
     * relative to the image's center, and an offset. */
    float theta[2][3];
    int32_t width, height;
    bool is_fused;        /* FM_SAMPLING_FUSED_GRID */
    bool is_fused_sample; /* FM_SAMPLING_FUSED_SAMPLES */
} fm_tensor_grid;

typedef enum fm_tensor_fill {
    FM_TENSOR_FILL_NONE = 0,
    FM_TENSOR_FILL_V1 = 1,
    FM_TENSOR_FILL_V2 = 2
} fm_tensor_fill;

/* n is FM_TENSOR_WARP_BLOCK or less. */
typedef struct fm_tensor_warp_kernels {
    /* Finds the points of n pixels of an output's row, from column `begin` on, and their weights.
     */
    void (*locate)(fm_tensor_warp_block *block, const fm_tensor_grid *grid, int32_t row,
                   int32_t begin, size_t n);
    /* The same for the nearest pixels, without weights. */
    void (*locate_nearest)(fm_tensor_warp_block *block, const fm_tensor_grid *grid, int32_t row,
                           int32_t begin, size_t n);
    /* Interpolates n pixels of `tap`, one channel of the result in each of the lowest bytes. */
    void (*mix)(uint32_t *out, const fm_tensor_warp_block *block, size_t n, bool is_fused,
                fm_tensor_fill how, const float fill[3]);
} fm_tensor_warp_kernels;

void fm_tensor_warp_init(fm_tensor_warp_kernels *kernels, fm_cpu_tier tier);

/*
 * Writes all of `out`, which has the size and channels of `in`.
 *
 *   affine      maps an output's pixel to the input's point, both relative to the images' centers
 *   arithmetic  not FM_ARITHMETIC_PILLOW
 *   sampling    bits of fm_sampling
 *   filter      FM_FILTER_NEAREST or FM_FILTER_BILINEAR
 *   fill        of points outside `in`
 *
 * FM_IMAGE_SLACK bytes after the end of `in` are read, and after the end of `out` written.
 */
void fm_tensor_warp_map(const fm_tensor_warp_kernels *kernels, const fm_image *in,
                        const fm_image *out, const fm_affine *affine, fm_arithmetic arithmetic,
                        uint32_t sampling, fm_filter filter, const uint8_t fill[3]);

#endif
