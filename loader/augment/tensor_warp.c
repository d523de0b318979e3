#define _GNU_SOURCE
#include "augment/tensor_warp.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include "augment/x86/target.h"
#endif

#define BODY static inline __attribute__((always_inline))

/* The byte of `tap` that tells pixels inside the image. */
#define INSIDE_SHIFT 24

/* ---- bodies of the kernels ------------------------------------------------------------------- */

BODY float add_product(float sum, float a, float b, bool is_fused) {
    return is_fused ? fmaf(a, b, sum) : sum + a * b;
}

/* A coordinate of a point, from -1 to 1, in pixels from the image's first one. Far outside of the
 * image it is limited. */
BODY float place_of(float coordinate, int32_t size, bool is_fused) {
    const float half = (float)size * 0.5f;
    const float place = add_product(-0.5f, coordinate + 1.0f, half, is_fused);
    const float most = (float)(size + 1);
    const float limited = place < most ? place : most;
    return limited > -2.0f ? limited : -2.0f;
}

/* The product of (column, row, 1) with a row of theta. torch multiplies matrices. */
BODY float coordinate_of(const float theta[3], float column, float row, bool is_fused) {
    return add_product(column * theta[0], row, theta[1], is_fused) + theta[2];
}

BODY int32_t floor_of(float value) {
    const int32_t whole = (int32_t)value;
    return whole - ((float)whole > value);
}

/* Rounds a value between -2^22 and 2^22 to the nearest integer, ties to even. */
BODY int32_t rounded(float value) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has no fraction bits */
    return (int32_t)((value + magic) - magic);
}

/* One coordinate of the points of n pixels of a row, in pixels. A loop of its own, as compilers
 * make branches of its limits if they see what follows. */
BODY void places_of(float *restrict places, const fm_tensor_grid *restrict grid, int axis,
                    int32_t row, int32_t begin, size_t n, bool is_fused, bool is_fused_sample) {
    const float y = (float)row + (float)(1 - grid->height) * 0.5f;
    const float first = (float)begin + (float)(1 - grid->width) * 0.5f;
    const int32_t size = axis == 0 ? grid->width : grid->height;
    for (size_t i = 0; i < n; i++) {
        const float x = first + (float)(int32_t)i;
        places[i] =
            place_of(coordinate_of(grid->theta[axis], x, y, is_fused), size, is_fused_sample);
    }
}

BODY void locate_body(fm_tensor_warp_block *restrict block, const fm_tensor_grid *restrict grid,
                      int32_t row, int32_t begin, size_t n, bool is_fused, bool is_fused_sample) {
    float across[FM_TENSOR_WARP_BLOCK], down[FM_TENSOR_WARP_BLOCK];
    places_of(across, grid, 0, row, begin, n, is_fused, is_fused_sample);
    places_of(down, grid, 1, row, begin, n, is_fused, is_fused_sample);
    for (size_t i = 0; i < n; i++) {
        const int32_t column = floor_of(across[i]), line = floor_of(down[i]);
        const float right = across[i] - (float)column, lower = down[i] - (float)line;
        const float left = 1.0f - right, upper = 1.0f - lower;
        block->column[i] = column;
        block->row[i] = line;
        block->weight[0][i] = upper * left;
        block->weight[1][i] = upper * right;
        block->weight[2][i] = lower * left;
        block->weight[3][i] = lower * right;
    }
}

BODY void locate_nearest_body(fm_tensor_warp_block *restrict block,
                              const fm_tensor_grid *restrict grid, int32_t row, int32_t begin,
                              size_t n, bool is_fused, bool is_fused_sample) {
    float across[FM_TENSOR_WARP_BLOCK], down[FM_TENSOR_WARP_BLOCK];
    places_of(across, grid, 0, row, begin, n, is_fused, is_fused_sample);
    places_of(down, grid, 1, row, begin, n, is_fused, is_fused_sample);
    for (size_t i = 0; i < n; i++) {
        block->column[i] = rounded(across[i]);
        block->row[i] = rounded(down[i]);
    }
}

/* The weighted sum of a channel's four values. */
BODY float sum_of(const fm_tensor_warp_block *block, size_t i, int shift, bool is_fused) {
    float sum = 0;
    for (int tap = 0; tap < FM_TENSOR_WARP_TAPS; tap++) {
        const float value = (float)(int32_t)(block->tap[tap][i] >> shift & 255);
        sum = add_product(sum, value, block->weight[tap][i], is_fused);
    }
    return sum;
}

/* torchvision's blend of a value with the fill. `inside` is the share of the pixels inside. */
BODY float filled(float value, float inside, float fill, fm_tensor_fill how) {
    if (how == FM_TENSOR_FILL_V1) return value * inside + (1.0f - inside) * fill;
    if (how == FM_TENSOR_FILL_V2) return (value - fill) * inside + fill;
    return value;
}

BODY void mix_body(uint32_t *restrict out, const fm_tensor_warp_block *restrict block, size_t n,
                   bool is_fused, fm_tensor_fill how, const float fill[3]) {
    const float red = fill[0], green = fill[1], blue = fill[2];
    for (size_t i = 0; i < n; i++) {
        const float inside = sum_of(block, i, INSIDE_SHIFT, is_fused);
        const float r = filled(sum_of(block, i, 0, is_fused), inside, red, how);
        const float g = filled(sum_of(block, i, 8, is_fused), inside, green, how);
        const float b = filled(sum_of(block, i, 16, is_fused), inside, blue, how);
        out[i] = (uint32_t)(rounded(r) | rounded(g) << 8 | rounded(b) << 16);
    }
}

/* ---- tiers ----------------------------------------------------------------------------------- */

/* The flags are constants in each call of a body, so that its loops are compiled for all. */
#define LOCATE(name, body, tier, attribute)                                                      \
    attribute static void name##_##tier(fm_tensor_warp_block *block, const fm_tensor_grid *grid, \
                                        int32_t row, int32_t begin, size_t n) {                  \
        if (grid->is_fused && grid->is_fused_sample)                                             \
            body(block, grid, row, begin, n, true, true);                                        \
        else if (grid->is_fused)                                                                 \
            body(block, grid, row, begin, n, true, false);                                       \
        else if (grid->is_fused_sample)                                                          \
            body(block, grid, row, begin, n, false, true);                                       \
        else                                                                                     \
            body(block, grid, row, begin, n, false, false);                                      \
    }
#define MIX(name, is_fused, tier, attribute)                                                 \
    attribute static void name##_##tier(uint32_t *out, const fm_tensor_warp_block *block,    \
                                        size_t n, fm_tensor_fill how, const float fill[3]) { \
        if (how == FM_TENSOR_FILL_V1)                                                        \
            mix_body(out, block, n, is_fused, FM_TENSOR_FILL_V1, fill);                      \
        else if (how == FM_TENSOR_FILL_V2)                                                   \
            mix_body(out, block, n, is_fused, FM_TENSOR_FILL_V2, fill);                      \
        else                                                                                 \
            mix_body(out, block, n, is_fused, FM_TENSOR_FILL_NONE, fill);                    \
    }
#define KERNELS(tier, attribute)                                                                \
    LOCATE(locate, locate_body, tier, attribute)                                                \
    LOCATE(locate_nearest, locate_nearest_body, tier, attribute)                                \
    MIX(mix_fused, true, tier, attribute)                                                       \
    MIX(mix_rounded, false, tier, attribute)                                                    \
    static void mix_##tier(uint32_t *out, const fm_tensor_warp_block *block, size_t n,          \
                           bool is_fused, fm_tensor_fill how, const float fill[3]) {            \
        (is_fused ? mix_fused_##tier : mix_rounded_##tier)(out, block, n, how, fill);           \
    }                                                                                           \
    static const fm_tensor_warp_kernels kernels_##tier = {locate_##tier, locate_nearest_##tier, \
                                                          mix_##tier};

KERNELS(scalar, )
#if defined(__x86_64__)
KERNELS(avx2, FM_FOR_AVX2_FMA)
#endif

void fm_tensor_warp_init(fm_tensor_warp_kernels *kernels, fm_cpu_tier tier) {
    *kernels = kernels_scalar;
#if defined(__x86_64__)
    if (tier >= FM_CPU_AVX2) *kernels = kernels_avx2;
#else
    (void)tier; /* with NEON, compilers vectorize the scalar kernels */
#endif
}

/* ---- the image ------------------------------------------------------------------------------- */

static bool is_inside(const fm_image *in, int32_t column, int32_t row) {
    return (uint32_t)column < (uint32_t)in->width && (uint32_t)row < (uint32_t)in->height;
}

static const uint8_t *address_of(const fm_image *in, int32_t column, int32_t row) {
    return in->px + ((size_t)row * (size_t)in->width + (size_t)column) * (size_t)in->channels;
}

/* The lowest bytes that a pixel has. */
static uint32_t mask_of(const fm_image *in) { return in->channels == 3 ? 0xffffff : 0xff; }

static uint32_t px_or_none(const fm_image *in, int32_t column, int32_t row) {
    uint32_t px;
    if (!is_inside(in, column, row)) return 0;
    memcpy(&px, address_of(in, column, row), sizeof(px)); /* also bytes after the pixel */
    return (px & mask_of(in)) | 1u << INSIDE_SHIFT;
}

/* Two neighbors in a row, both inside the image. */
static void load_two(uint32_t *left, uint32_t *right, const uint8_t *px, int bits, uint32_t mask) {
    uint64_t two;
    memcpy(&two, px, sizeof(two)); /* also bytes after the pixels */
    *left = ((uint32_t)two & mask) | 1u << INSIDE_SHIFT;
    *right = ((uint32_t)(two >> bits) & mask) | 1u << INSIDE_SHIFT;
}

static void gather_taps(fm_tensor_warp_block *restrict block, const fm_image *in, size_t n) {
    const uint32_t last_column = (uint32_t)in->width - 1, last_row = (uint32_t)in->height - 1;
    const size_t row_bytes = fm_image_row_bytes(in);
    const int bits = 8 * in->channels;
    const uint32_t mask = mask_of(in);
    for (size_t i = 0; i < n; i++) {
        const int32_t column = block->column[i], row = block->row[i];
        if ((uint32_t)column < last_column && (uint32_t)row < last_row) {
            const uint8_t *const px = address_of(in, column, row);
            load_two(&block->tap[0][i], &block->tap[1][i], px, bits, mask);
            load_two(&block->tap[2][i], &block->tap[3][i], px + row_bytes, bits, mask);
        } else {
            block->tap[0][i] = px_or_none(in, column, row);
            block->tap[1][i] = px_or_none(in, column + 1, row);
            block->tap[2][i] = px_or_none(in, column, row + 1);
            block->tap[3][i] = px_or_none(in, column + 1, row + 1);
        }
    }
}

/* Pixels outside the image become `outside`. */
static void gather_nearest(uint32_t *px, const fm_tensor_warp_block *block, const fm_image *in,
                           uint32_t outside, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t found = px_or_none(in, block->column[i], block->row[i]);
        px[i] = found ? found : outside;
    }
}

/* Writes n pixels, each with four bytes, of which the next pixel overwrites some. */
static uint8_t *write_px(uint8_t *to, const uint32_t *px, size_t n, size_t step) {
    for (size_t i = 0; i < n; i++, to += step) memcpy(to, &px[i], sizeof(px[i]));
    return to;
}

static fm_tensor_grid grid_of(const fm_image *in, const fm_affine *affine, uint32_t sampling) {
    fm_tensor_grid grid = {.width = in->width,
                           .height = in->height,
                           .is_fused = (sampling & FM_SAMPLING_FUSED_GRID) != 0,
                           .is_fused_sample = (sampling & FM_SAMPLING_FUSED_SAMPLES) != 0};
    for (int i = 0; i < 3; i++) {
        grid.theta[0][i] = (float)affine->m[i] / ((float)in->width * 0.5f);
        grid.theta[1][i] = (float)affine->m[3 + i] / ((float)in->height * 0.5f);
    }
    return grid;
}

void fm_tensor_warp_map(const fm_tensor_warp_kernels *kernels, const fm_image *in,
                        const fm_image *out, const fm_affine *affine, fm_arithmetic arithmetic,
                        uint32_t sampling, fm_filter filter, const uint8_t fill[3]) {
    const fm_tensor_grid grid = grid_of(in, affine, sampling);
    const bool has_fill = !(sampling & FM_SAMPLING_WITHOUT_FILL);
    const fm_tensor_fill how = !has_fill                               ? FM_TENSOR_FILL_NONE
                               : arithmetic == FM_ARITHMETIC_TENSOR_V1 ? FM_TENSOR_FILL_V1
                                                                       : FM_TENSOR_FILL_V2;
    const float fill_values[3] = {fill[0], fill[1], fill[2]};
    const uint32_t outside =
        has_fill ? fill[0] | (uint32_t)fill[1] << 8 | (uint32_t)fill[2] << 16 : 0;
    fm_tensor_warp_block block;
    uint32_t px[FM_TENSOR_WARP_BLOCK];
    uint8_t *to = out->px;
    for (int32_t row = 0; row < out->height; row++) {
        for (int32_t begin = 0; begin < out->width; begin += FM_TENSOR_WARP_BLOCK) {
            const int32_t rest = out->width - begin;
            const size_t n = (size_t)(rest < FM_TENSOR_WARP_BLOCK ? rest : FM_TENSOR_WARP_BLOCK);
            if (filter == FM_FILTER_NEAREST) {
                kernels->locate_nearest(&block, &grid, row, begin, n);
                gather_nearest(px, &block, in, outside, n);
            } else {
                kernels->locate(&block, &grid, row, begin, n);
                gather_taps(&block, in, n);
                kernels->mix(px, &block, n, grid.is_fused_sample, how, fill_values);
            }
            to = write_px(to, px, n, (size_t)out->channels);
        }
    }
}
