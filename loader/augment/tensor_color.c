#define _GNU_SOURCE
#include "augment/tensor_color.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include "augment/x86/target.h"
#endif

/* Pixels that are processed at a time. */
#define BLOCK_PX 128

#define BODY static inline __attribute__((always_inline))

/* A block of pixels, with an array of numbers for each channel, and of results. */
typedef struct px_block {
    int32_t red[BLOCK_PX], green[BLOCK_PX], blue[BLOCK_PX];
    float gray[BLOCK_PX];
} px_block;

BODY void load_block(px_block *block, const uint8_t *px, size_t n) {
    for (size_t i = 0; i < n; i++) {
        block->red[i] = px[3 * i];
        block->green[i] = px[3 * i + 1];
        block->blue[i] = px[3 * i + 2];
    }
}

BODY void store_block(uint8_t *px, const px_block *block, size_t n) {
    for (size_t i = 0; i < n; i++) {
        px[3 * i] = (uint8_t)block->red[i];
        px[3 * i + 1] = (uint8_t)block->green[i];
        px[3 * i + 2] = (uint8_t)block->blue[i];
    }
}

/* ---- bodies of the kernels ------------------------------------------------------------------- */

/* The tensor method add_(value, alpha=factor). */
BODY float add_product(float sum, float value, float factor, bool is_fused) {
    return is_fused ? fmaf(value, factor, sum) : sum + value * factor;
}

/* clamp_(0, 255) and the conversion to uint8 */
BODY int32_t clipped(float value) {
    return (int32_t)(value <= 0.0f ? 0.0f : value >= 255.0f ? 255.0f : value);
}

/* rgb_to_grayscale(); all gray values are truncated to integers in the end. */
BODY void make_gray(px_block *block, size_t n, bool is_fused) {
    for (size_t i = 0; i < n; i++) {
        const float red = (float)block->red[i] * 0.2989f;
        const float two = add_product(red, (float)block->green[i], 0.587f, is_fused);
        const float all = add_product(two, (float)block->blue[i], 0.114f, is_fused);
        block->gray[i] = (float)(int32_t)all;
    }
}

BODY void gray_body(uint8_t *out, const uint8_t *px, size_t n_px, bool is_fused) {
    px_block block;
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        load_block(&block, px + 3 * begin, n);
        make_gray(&block, n, is_fused);
        for (size_t i = 0; i < n; i++) out[begin + i] = (uint8_t)(int32_t)block.gray[i];
    }
}

/* _blend() */
BODY int32_t blended(float value, float base, float ratio, float share, bool is_fused) {
    return clipped(add_product(value * ratio, base, share, is_fused));
}

BODY void fade_channel(int32_t *channel, const float *gray, size_t n, float ratio, float share,
                       bool is_fused) {
    for (size_t i = 0; i < n; i++)
        channel[i] = blended((float)channel[i], gray[i], ratio, share, is_fused);
}

BODY void fade_to_gray_body(uint8_t *px, size_t n_px, float ratio, float share, bool is_fused) {
    px_block block;
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        load_block(&block, px + 3 * begin, n);
        make_gray(&block, n, is_fused);
        fade_channel(block.red, block.gray, n, ratio, share, is_fused);
        fade_channel(block.green, block.gray, n, ratio, share, is_fused);
        fade_channel(block.blue, block.gray, n, ratio, share, is_fused);
        store_block(px + 3 * begin, &block, n);
    }
}

BODY void blend_body(uint8_t *restrict px, const uint8_t *restrict base, size_t n, float ratio,
                     float share) {
    for (size_t i = 0; i < n; i++)
        px[i] = (uint8_t)blended((float)px[i], (float)base[i], ratio, share, false);
}

BODY void approach_body(uint8_t *restrict px, const uint8_t *restrict base, size_t n, float share,
                        bool is_fused) {
    for (size_t i = 0; i < n; i++) {
        const float way = (float)((int32_t)base[i] - (int32_t)px[i]);
        px[i] = (uint8_t)clipped(add_product((float)px[i], way, share, is_fused));
    }
}

/* torch's convolution is not exact, but its errors are far below 1/26: a multiple of 1/13 is never
 * closer to a half. */
BODY void blur_body(uint8_t *restrict out, const uint8_t *restrict above,
                    const uint8_t *restrict row, const uint8_t *restrict below, size_t n,
                    size_t step) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t sum = (uint32_t)above[i] + above[i + step] + above[i + 2 * step] + row[i] +
                             5u * row[i + step] + row[i + 2 * step] + below[i] + below[i + step] +
                             below[i + 2 * step];
        out[i] = (uint8_t)((2 * sum + 13) / 26);
    }
}

/* ---- hue ------------------------------------------------------------------------------------- */

/* Selects by masks of all bits or none, as compilers turn nested `?` into branches. */
BODY int32_t mask_of(bool condition) { return -(int32_t)condition; }

BODY float larger(float a, float b) { return a > b ? a : b; }
BODY float smaller(float a, float b) { return a < b ? a : b; }

/* The conversion to float32 from 0 to 1. */
BODY float unit_of(int32_t value, bool is_v2) {
    return is_v2 ? (float)value * (float)(1.0 / 255.0) : (float)value / 255.0f;
}

/* The conversion back. */
BODY int32_t byte_of(float value) {
    return (int32_t)(smaller(value, 1.0f) * (float)(256.0 - 1e-3));
}

/* _rgb_to_hsv(), the shift, and _hsv_to_rgb() for one pixel. Where torchvision adds terms of which
 * all but one are 0, that one is selected. */
BODY void shift_hue(px_block *block, size_t i, float turn, bool is_v2) {
    const float red = unit_of(block->red[i], is_v2);
    const float green = unit_of(block->green[i], is_v2);
    const float blue = unit_of(block->blue[i], is_v2);
    const float most = larger(red, larger(green, blue));
    const float least = smaller(red, smaller(green, blue));
    const float range = most - least;
    const bool is_gray = most == least;
    const float saturation = range / (is_gray ? 1.0f : most);
    const float divisor = is_gray ? 1.0f : range;
    const float from_red = (most - red) / divisor;
    const float from_green = (most - green) / divisor;
    const float from_blue = (most - blue) / divisor;
    const float if_red = from_blue - from_green;
    const float if_green = 2.0f + from_red - from_blue;
    const float if_blue = 4.0f + from_green - from_red;
    const float sixths = most == red ? if_red : most == green ? if_green : if_blue;
    /* 0.8 to 1.9 before the fraction is taken */
    const float turns = (is_v2 ? sixths * (float)(1.0 / 6.0) : sixths / 6.0f) + 1.0f;
    const float moved = turns - (float)(int32_t)turns + turn;
    const float rest = moved - (float)(int32_t)moved; /* fmod() by 1 */
    const float hue = rest < 0.0f ? rest + 1.0f : rest;
    const float place = hue * 6.0f; /* 6 at most, if the addition of 1 was rounded up */
    const int32_t sextant = (int32_t)place;
    const float share = place - (float)sextant;
    const float unsaturated = 1.0f - saturation, part = saturation * share;
    const float rising = is_v2 ? part + unsaturated : 1.0f - saturation * (1.0f - share);
    const int32_t value = byte_of(most), low = byte_of(unsaturated * most);
    const int32_t fall = byte_of((1.0f - part) * most), rise = byte_of(rising * most);
    const int32_t at0 = mask_of(sextant == 0 || sextant == 6), at1 = mask_of(sextant == 1);
    const int32_t at2 = mask_of(sextant == 2), at3 = mask_of(sextant == 3);
    const int32_t at4 = mask_of(sextant == 4), at5 = mask_of(sextant == 5);
    block->red[i] = (value & (at0 | at5)) | (fall & at1) | (low & (at2 | at3)) | (rise & at4);
    block->green[i] = (value & (at1 | at2)) | (rise & at0) | (fall & at3) | (low & (at4 | at5));
    block->blue[i] = (value & (at3 | at4)) | (rise & at2) | (low & (at0 | at1)) | (fall & at5);
}

BODY void hue_body(uint8_t *px, size_t n_px, float turn, bool is_v2) {
    px_block block;
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        load_block(&block, px + 3 * begin, n);
        for (size_t i = 0; i < n; i++) shift_hue(&block, i, turn, is_v2);
        store_block(px + 3 * begin, &block, n);
    }
}

/* ---- tiers ----------------------------------------------------------------------------------- */

/* The flags are constants in each call of a body, so that its loops are compiled for both. */
#define KERNELS(tier, attribute)                                                                   \
    attribute static void gray_##tier(uint8_t *out, const uint8_t *px, size_t n_px,                \
                                      bool is_fused) {                                             \
        if (is_fused)                                                                              \
            gray_body(out, px, n_px, true);                                                        \
        else                                                                                       \
            gray_body(out, px, n_px, false);                                                       \
    }                                                                                              \
    attribute static void fade_to_gray_##tier(uint8_t *px, size_t n_px, float ratio, float share,  \
                                              bool is_fused) {                                     \
        if (is_fused)                                                                              \
            fade_to_gray_body(px, n_px, ratio, share, true);                                       \
        else                                                                                       \
            fade_to_gray_body(px, n_px, ratio, share, false);                                      \
    }                                                                                              \
    attribute static void blend_##tier(uint8_t *px, const uint8_t *base, size_t n, float ratio,    \
                                       float share) {                                              \
        blend_body(px, base, n, ratio, share);                                                     \
    }                                                                                              \
    attribute static void approach_##tier(uint8_t *px, const uint8_t *base, size_t n, float share, \
                                          bool is_fused) {                                         \
        if (is_fused)                                                                              \
            approach_body(px, base, n, share, true);                                               \
        else                                                                                       \
            approach_body(px, base, n, share, false);                                              \
    }                                                                                              \
    attribute static void hue_##tier(uint8_t *px, size_t n_px, float turn, bool is_v2) {           \
        if (is_v2)                                                                                 \
            hue_body(px, n_px, turn, true);                                                        \
        else                                                                                       \
            hue_body(px, n_px, turn, false);                                                       \
    }                                                                                              \
    attribute static void blur_##tier(uint8_t *out, const uint8_t *above, const uint8_t *row,      \
                                      const uint8_t *below, size_t n, size_t step) {               \
        blur_body(out, above, row, below, n, step);                                                \
    }                                                                                              \
    static const fm_tensor_color_kernels kernels_##tier = {                                        \
        gray_##tier, fade_to_gray_##tier, blend_##tier, approach_##tier, hue_##tier, blur_##tier};

KERNELS(scalar, )
#if defined(__x86_64__)
KERNELS(avx2, FM_FOR_AVX2_FMA)
#endif

void fm_tensor_color_init(fm_tensor_color_kernels *kernels, fm_cpu_tier tier) {
    *kernels = kernels_scalar;
#if defined(__x86_64__)
    if (tier >= FM_CPU_AVX2) *kernels = kernels_avx2;
#else
    (void)tier; /* with NEON, compilers vectorize the scalar kernels */
#endif
}

/* ---- operations ------------------------------------------------------------------------------ */

static size_t n_px_of(const fm_image *image) {
    return (size_t)image->width * (size_t)image->height;
}

static bool is_fused(const fm_tensor_color *color) {
    return color->arithmetic == FM_ARITHMETIC_TENSOR_V2_FUSED;
}

static bool is_v2(const fm_tensor_color *color) {
    return color->arithmetic != FM_ARITHMETIC_TENSOR_V1;
}

/* Replaces all bytes by ratio * byte + share * base. */
static void blend_with(const fm_tensor_color *color, const fm_image *image, double ratio,
                       float base) {
    const float factor = (float)ratio, share = (float)(1.0 - ratio);
    uint8_t tables[3 * 256];
    for (int i = 0; i < 256; i++)
        tables[i] = (uint8_t)blended((float)i, base, factor, share, is_fused(color));
    memcpy(tables + 256, tables, 256);
    memcpy(tables + 512, tables, 256);
    fm_color_point(color->tables, image, tables);
}

void fm_tensor_brightness(const fm_tensor_color *color, const fm_image *image, double factor) {
    blend_with(color, image, factor, 0);
}

static uint64_t sum_of(const uint8_t *px, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += px[i];
    return sum;
}

static uint64_t gray_sum(const fm_tensor_color *color, const fm_image *image) {
    const size_t n_px = n_px_of(image);
    if (image->channels == 1) return sum_of(image->px, n_px);
    uint8_t gray[BLOCK_PX];
    uint64_t sum = 0;
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        color->kernels->gray(gray, image->px + 3 * begin, n, is_fused(color));
        sum += sum_of(gray, n);
    }
    return sum;
}

void fm_tensor_contrast(const fm_tensor_color *color, const fm_image *image, double factor) {
    const size_t n_px = n_px_of(image);
    if (n_px == 0) return;
    blend_with(color, image, factor, (float)gray_sum(color, image) / (float)n_px);
}

void fm_tensor_saturation(const fm_tensor_color *color, const fm_image *image, double factor) {
    if (image->channels == 1) return;
    color->kernels->fade_to_gray(image->px, n_px_of(image), (float)factor, (float)(1.0 - factor),
                                 is_fused(color));
}

void fm_tensor_hue(const fm_tensor_color *color, const fm_image *image, double factor) {
    if (image->channels == 1) return;
    color->kernels->hue(image->px, n_px_of(image), (float)factor, is_v2(color));
}

void fm_tensor_sharpness(const fm_tensor_color *color, const fm_image *image, uint8_t *scratch,
                         double factor) {
    if (image->width < 3 || image->height < 3) return;
    const fm_tensor_color_kernels *const kernels = color->kernels;
    const size_t row_bytes = fm_image_row_bytes(image), px = (size_t)image->channels;
    const size_t n_inner = row_bytes - 2 * px, last = (size_t)image->height - 1;
    const float share = (float)(1.0 - factor);
    for (size_t y = 1; y < last; y++) {
        const uint8_t *const row = image->px + y * row_bytes;
        kernels->blur(scratch + y * row_bytes + px, row - row_bytes, row, row + row_bytes, n_inner,
                      px);
    }
    if (is_v2(color)) {
        for (size_t y = 1; y < last; y++)
            kernels->approach(image->px + y * row_bytes + px, scratch + y * row_bytes + px, n_inner,
                              share, is_fused(color));
        return;
    }
    /* v1 also blends the border, with itself, which changes some values by rounding. */
    for (size_t y = 0; y <= last; y++) {
        uint8_t *const from = image->px + y * row_bytes, *const to = scratch + y * row_bytes;
        if (y == 0 || y == last) {
            memcpy(to, from, row_bytes);
        } else {
            memcpy(to, from, px);
            memcpy(to + row_bytes - px, from + row_bytes - px, px);
        }
    }
    kernels->blend(image->px, scratch, fm_image_bytes(image), (float)factor, share);
}

void fm_tensor_grayscale(const fm_tensor_color *color, fm_image *image, int32_t channels) {
    const size_t n_px = n_px_of(image);
    if (image->channels == 3) color->kernels->gray(image->px, image->px, n_px, is_fused(color));
    image->channels = channels;
    if (channels == 3) fm_color_repeat(image->px, n_px);
}

/* The values that autocontrast() gives a channel whose values are from low to high. */
static void stretch(uint8_t table[256], int low, int high, bool is_v2) {
    float base = (float)low;
    float scale =
        is_v2 ? (float)(high - low) * (float)(1.0 / 255.0) : 1.0f / (float)(high - low) * 255.0f;
    if (high == low) {
        base = 0;
        scale = 1;
    }
    for (int i = 0; i < 256; i++) {
        const float above = (float)i - base;
        table[i] = (uint8_t)clipped(is_v2 ? above / scale : above * scale);
    }
}

void fm_tensor_autocontrast(const fm_tensor_color *color, const fm_image *image) {
    uint8_t tables[3 * 256] = {0};
    for (int32_t channel = 0; channel < image->channels; channel++) {
        uint8_t low = 255, high = 0;
        const size_t n = fm_image_bytes(image);
        for (size_t i = (size_t)channel; i < n; i += (size_t)image->channels) {
            const uint8_t value = image->px[i];
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        stretch(tables + 256 * channel, low, high, is_v2(color));
    }
    fm_color_point(color->tables, image, tables);
}
