#define _GNU_SOURCE
#include "augment/color.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "augment/contract.h"

#if defined(__x86_64__)
#include "augment/x86/color_avx2.h"
#include "augment/x86/gray_avx2.h"
#include "augment/x86/lookup_avx512.h"
#elif defined(__aarch64__)
#include "augment/arm/color_neon.h"
#endif

/* Pixels that are processed at a time. */
#define BLOCK_PX 128

#define BODY static inline __attribute__((always_inline))

/* ---- bodies of the kernels ------------------------------------------------------------------- */

/* Pillow's Blend.c. Clipping has no effect for factors from 0 to 1. */
BODY uint8_t mix(float base, float value, float factor) {
    const float mixed = fm_multiply_add_f32(factor, value - base, base);
    return (uint8_t)(int32_t)(mixed <= 0.0f ? 0.0f : mixed >= 255.0f ? 255.0f : mixed);
}

/* L24 of Pillow's Convert.c. */
BODY uint32_t gray_of(uint32_t red, uint32_t green, uint32_t blue) {
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

BODY void fade_body(uint8_t *px, size_t n, float base, float factor) {
    for (size_t i = 0; i < n; i++) px[i] = mix(base, (float)px[i], factor);
}

BODY void blend_body(uint8_t *restrict px, const uint8_t *restrict base, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) px[i] = mix((float)base[i], (float)px[i], factor);
}

BODY void fade_to_gray_body(uint8_t *px, size_t n_px, float factor) {
    for (size_t i = 0; i < n_px; i++) {
        uint8_t *const at = px + 3 * i;
        const uint8_t red = at[0], green = at[1], blue = at[2];
        const float gray = (float)(int32_t)gray_of(red, green, blue);
        at[0] = mix(gray, red, factor);
        at[1] = mix(gray, green, factor);
        at[2] = mix(gray, blue, factor);
    }
}

BODY void gray_body(uint8_t *out, const uint8_t *px, size_t n_px) {
    uint8_t block[BLOCK_PX];
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        const uint8_t *const from = px + 3 * begin;
        for (size_t i = 0; i < n; i++)
            block[i] = (uint8_t)gray_of(from[3 * i], from[3 * i + 1], from[3 * i + 2]);
        memcpy(out + begin, block, n);
    }
}

BODY void gray_rgb_body(uint8_t *restrict out, const uint8_t *restrict px, size_t n_px) {
    for (size_t i = 0; i < 3 * n_px; i += 3) {
        const uint8_t gray = (uint8_t)gray_of(px[i], px[i + 1], px[i + 2]);
        out[i] = out[i + 1] = out[i + 2] = gray;
    }
}

BODY uint64_t gray_sum_body(const uint8_t *px, size_t n_px) {
    uint64_t sum = 0;
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        const uint8_t *const from = px + 3 * begin;
        uint32_t part = 0;
        for (size_t i = 0; i < n; i++)
            part += gray_of(from[3 * i], from[3 * i + 1], from[3 * i + 2]);
        sum += part;
    }
    return sum;
}

/* KERNEL1x3 of Pillow's Filter.c, with the same order of additions. */
BODY float smooth_row_of(const uint8_t *row, size_t i, size_t step, float middle) {
    const float side = 1.0f / 13.0f;
    return (float)row[i] * side + (float)row[i + step] * middle + (float)row[i + 2 * step] * side;
}

BODY void smooth_body(uint8_t *restrict out, const uint8_t *restrict above,
                      const uint8_t *restrict row, const uint8_t *restrict below, size_t n,
                      size_t step) {
    const float side = 1.0f / 13.0f, center = 5.0f / 13.0f;
    for (size_t i = 0; i < n; i++) {
        float sum = 0.5f;
        sum += smooth_row_of(below, i, step, side);
        sum += smooth_row_of(row, i, step, center);
        sum += smooth_row_of(above, i, step, side);
        out[i] = (uint8_t)(int32_t)(sum > 255.0f ? 255.0f : sum);
    }
}

BODY void lookup_body(uint8_t *px, size_t n_px, const uint8_t *tables) {
    const uint8_t *const reds = tables, *const greens = tables + 256, *const blues = tables + 512;
    for (size_t i = 0; i < 3 * n_px; i += 3) {
        px[i] = reds[px[i]];
        px[i + 1] = greens[px[i + 1]];
        px[i + 2] = blues[px[i + 2]];
    }
}

/* ---- hue ------------------------------------------------------------------------------------- */

/* A block of pixels, with an array of 32-bit numbers for each value. */
typedef struct hsv_block {
    int32_t red[BLOCK_PX], green[BLOCK_PX], blue[BLOCK_PX];
    int32_t hue[BLOCK_PX], saturation[BLOCK_PX], value[BLOCK_PX];
    int32_t sextant[BLOCK_PX];
    float rest[BLOCK_PX], share[BLOCK_PX];
} hsv_block;

/* The values in hsv2rgb() that depend only on the shifted hue or only on the saturation. */
typedef struct hsv_tables {
    int32_t sextant[256];
    float rest[256], share[256];
} hsv_tables;

static void fill_tables(hsv_tables *tables, uint8_t shift) {
    for (int i = 0; i < 256; i++) {
        const float hue = (float)(uint8_t)(i + shift);
        const int32_t sextant = (int32_t)floor((double)hue * 6.0 / 255.0);
        tables->sextant[i] = sextant % 6;
        tables->rest[i] = (float)((double)hue * 6.0 / 255.0 - (double)(float)sextant);
        tables->share[i] = (float)((double)(float)i / 255.0);
    }
}

/* Selects by masks of all bits or none, as compilers turn nested `?` into branches. */
BODY int32_t mask_of(bool condition) { return -(int32_t)condition; }

BODY int32_t choose(int32_t mask, int32_t yes, int32_t no) { return (mask & yes) | (~mask & no); }

BODY int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
BODY int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* rgb2hsv_row() of Pillow's Convert.c. Only two of its quotients are used, which ones depends on
 * the largest channel. */
BODY void to_hsv(hsv_block *block, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const int32_t red = block->red[i], green = block->green[i], blue = block->blue[i];
        const int32_t most = larger(red, larger(green, blue));
        const int32_t range = most - smaller(red, smaller(green, blue));
        const int32_t is_red = mask_of(red == most);
        const int32_t is_green = mask_of(green == most) & ~is_red;
        const int32_t plus = choose(is_red, blue, choose(is_green, red, green));
        const int32_t minus = choose(is_red, green, choose(is_green, blue, red));
        const int32_t turn = choose(is_red, 0, choose(is_green, 2, 4));
        /* For gray pixels the range is 0, and dividing by 1 gives 0. */
        const float divisor = (float)larger(range, 1);
        const float added = (float)(most - plus) / divisor;
        const float subtracted = (float)(most - minus) / divisor;
        const float sixths = (float)((double)turn + (double)added - (double)subtracted);
        const double turns = (double)sixths / 6.0 + 1.0;
        const float hue = (float)(turns - (double)(int32_t)turns); /* 0.8 to 1.9 before */
        const float saturation = (float)range / (float)larger(most, 1);
        block->hue[i] = (int32_t)((double)hue * 255.0);
        block->saturation[i] = (int32_t)((double)saturation * 255.0);
        block->value[i] = most;
    }
}

/* round() for the products in hsv2rgb(), 0 to 255. Adding 0.5 is exact enough: no hue, saturation
 * and value gives a product so close below a half that the sum would be rounded up. */
BODY int32_t rounded(double value) { return (int32_t)(value + 0.5); }

/* hsv2rgb() of Convert.c. For gray pixels all three channels equal the value. */
BODY void to_rgb(hsv_block *block, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float rest = block->rest[i], share = block->share[i];
        const int32_t most = block->value[i], sextant = block->sextant[i];
        const double value = (double)(float)most;
        const int32_t low = rounded(value * (1.0 - (double)share));
        const int32_t fall = rounded(value * (1.0 - (double)(share * rest)));
        const int32_t rise = rounded(value * (1.0 - (double)share * (1.0 - (double)rest)));
        const int32_t at0 = mask_of(sextant == 0), at1 = mask_of(sextant == 1);
        const int32_t at2 = mask_of(sextant == 2), at3 = mask_of(sextant == 3);
        const int32_t at4 = mask_of(sextant == 4), at5 = mask_of(sextant == 5);
        block->red[i] = (most & (at0 | at5)) | (fall & at1) | (low & (at2 | at3)) | (rise & at4);
        block->green[i] = (most & (at1 | at2)) | (rise & at0) | (fall & at3) | (low & (at4 | at5));
        block->blue[i] = (most & (at3 | at4)) | (rise & at2) | (low & (at0 | at1)) | (fall & at5);
    }
}

BODY void hue_body(uint8_t *px, size_t n_px, uint8_t shift) {
    hsv_tables tables;
    hsv_block block;
    fill_tables(&tables, shift);
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        uint8_t *const at = px + 3 * begin;
        for (size_t i = 0; i < n; i++) {
            block.red[i] = at[3 * i];
            block.green[i] = at[3 * i + 1];
            block.blue[i] = at[3 * i + 2];
        }
        to_hsv(&block, n);
        for (size_t i = 0; i < n; i++) {
            block.sextant[i] = tables.sextant[block.hue[i]];
            block.rest[i] = tables.rest[block.hue[i]];
            block.share[i] = tables.share[block.saturation[i]];
        }
        to_rgb(&block, n);
        for (size_t i = 0; i < n; i++) {
            at[3 * i] = (uint8_t)block.red[i];
            at[3 * i + 1] = (uint8_t)block.green[i];
            at[3 * i + 2] = (uint8_t)block.blue[i];
        }
    }
}

/* ---- tiers ----------------------------------------------------------------------------------- */

#define KERNELS(tier, attribute)                                                                   \
    attribute static void fade_##tier(uint8_t *px, size_t n, float base, float factor) {           \
        fade_body(px, n, base, factor);                                                            \
    }                                                                                              \
    attribute static void blend_##tier(uint8_t *px, const uint8_t *base, size_t n, float factor) { \
        blend_body(px, base, n, factor);                                                           \
    }                                                                                              \
    attribute static void fade_to_gray_##tier(uint8_t *px, size_t n_px, float factor) {            \
        fade_to_gray_body(px, n_px, factor);                                                       \
    }                                                                                              \
    attribute static void gray_##tier(uint8_t *out, const uint8_t *px, size_t n_px) {              \
        gray_body(out, px, n_px);                                                                  \
    }                                                                                              \
    attribute static void gray_rgb_##tier(uint8_t *out, const uint8_t *px, size_t n_px) {          \
        gray_rgb_body(out, px, n_px);                                                              \
    }                                                                                              \
    attribute static uint64_t gray_sum_##tier(const uint8_t *px, size_t n_px) {                    \
        return gray_sum_body(px, n_px);                                                            \
    }                                                                                              \
    attribute static void hue_##tier(uint8_t *px, size_t n_px, uint8_t shift) {                    \
        hue_body(px, n_px, shift);                                                                 \
    }                                                                                              \
    attribute static void smooth_##tier(uint8_t *out, const uint8_t *above, const uint8_t *row,    \
                                        const uint8_t *below, size_t n, size_t step) {             \
        smooth_body(out, above, row, below, n, step);                                              \
    }                                                                                              \
    static const fm_color_kernels kernels_##tier = {                                               \
        fade_##tier,     blend_##tier, fade_to_gray_##tier, gray_##tier,  gray_rgb_##tier,         \
        gray_sum_##tier, hue_##tier,   smooth_##tier,       lookup_scalar};

static void lookup_scalar(uint8_t *px, size_t n_px, const uint8_t *tables) {
    lookup_body(px, n_px, tables);
}

KERNELS(scalar, )
#if defined(__x86_64__)
KERNELS(sse41, FM_FOR_SSE41)
KERNELS(avx2, FM_FOR_AVX2)

/* The blends, which compilers vectorize poorly. */
#define AVX2 FM_FOR_AVX2 static

AVX2 void fade_by_32(uint8_t *px, size_t n, float base, float factor) {
    const size_t done = fm_color_fade_avx2(px, n, base, factor);
    fade_body(px + done, n - done, base, factor);
}

AVX2 void blend_by_32(uint8_t *px, const uint8_t *base, size_t n, float factor) {
    const size_t done = fm_color_blend_avx2(px, base, n, factor);
    blend_body(px + done, base + done, n - done, factor);
}

AVX2 void gray_by_32(uint8_t *out, const uint8_t *px, size_t n_px) {
    const size_t done = fm_gray_avx2(out, px, n_px);
    gray_body(out + done, px + 3 * done, n_px - done);
}

AVX2 void gray_rgb_by_32(uint8_t *out, const uint8_t *px, size_t n_px) {
    const size_t done = fm_gray_rgb_avx2(out, px, n_px);
    gray_rgb_body(out + 3 * done, px + 3 * done, n_px - done);
}

AVX2 uint64_t gray_sum_by_32(const uint8_t *px, size_t n_px) {
    uint64_t sum;
    const size_t done = fm_gray_sum_avx2(&sum, px, n_px);
    return sum + gray_sum_body(px + 3 * done, n_px - done);
}

AVX2 void fade_to_gray_by_32(uint8_t *px, size_t n_px, float factor) {
    uint8_t gray[3 * BLOCK_PX];
    for (size_t begin = 0; begin < n_px; begin += BLOCK_PX) {
        const size_t n = n_px - begin < BLOCK_PX ? n_px - begin : BLOCK_PX;
        gray_rgb_by_32(gray, px + 3 * begin, n);
        blend_by_32(px + 3 * begin, gray, 3 * n, factor);
    }
}

#define AVX512 FM_FOR_AVX512 static

AVX512 void lookup_by_192(uint8_t *px, size_t n_px, const uint8_t *tables) {
    const size_t done = fm_lookup_avx512(px, 3 * n_px, tables);
    lookup_body(px + done, n_px - done / 3, tables);
}
#elif defined(__aarch64__)
/* The rest of the scalar kernels' loops is vectorized by compilers, with NEON as well. */

static void fade_neon(uint8_t *px, size_t n, float base, float factor) {
    const size_t done = fm_color_fade_neon(px, n, base, factor);
    fade_body(px + done, n - done, base, factor);
}

static void blend_neon(uint8_t *px, const uint8_t *base, size_t n, float factor) {
    const size_t done = fm_color_blend_neon(px, base, n, factor);
    blend_body(px + done, base + done, n - done, factor);
}

static void fade_to_gray_neon(uint8_t *px, size_t n_px, float factor) {
    const size_t done = fm_fade_to_gray_neon(px, n_px, factor);
    fade_to_gray_body(px + 3 * done, n_px - done, factor);
}

static void gray_neon(uint8_t *out, const uint8_t *px, size_t n_px) {
    const size_t done = fm_gray_neon(out, px, n_px);
    gray_body(out + done, px + 3 * done, n_px - done);
}

static void gray_rgb_neon(uint8_t *out, const uint8_t *px, size_t n_px) {
    const size_t done = fm_gray_rgb_neon(out, px, n_px);
    gray_rgb_body(out + 3 * done, px + 3 * done, n_px - done);
}

static uint64_t gray_sum_neon(const uint8_t *px, size_t n_px) {
    uint64_t sum;
    const size_t done = fm_gray_sum_neon(&sum, px, n_px);
    return sum + gray_sum_body(px + 3 * done, n_px - done);
}

static void lookup_neon(uint8_t *px, size_t n_px, const uint8_t *tables) {
    const size_t done = fm_lookup_neon(px, n_px, tables);
    lookup_body(px + 3 * done, n_px - done, tables);
}
#endif

void fm_color_init(fm_color_kernels *kernels, fm_cpu_tier tier) {
    *kernels = kernels_scalar;
#if defined(__x86_64__)
    if (tier >= FM_CPU_SSE41) *kernels = kernels_sse41;
    if (tier < FM_CPU_AVX2) return;
    *kernels = kernels_avx2;
    kernels->fade = fade_by_32;
    kernels->blend = blend_by_32;
    kernels->fade_to_gray = fade_to_gray_by_32;
    kernels->gray = gray_by_32;
    kernels->gray_rgb = gray_rgb_by_32;
    kernels->gray_sum = gray_sum_by_32;
    if (tier >= FM_CPU_AVX512) kernels->lookup = lookup_by_192;
#elif defined(__aarch64__)
    if (tier < FM_CPU_NEON) return;
    kernels->fade = fade_neon;
    kernels->blend = blend_neon;
    kernels->fade_to_gray = fade_to_gray_neon;
    kernels->gray = gray_neon;
    kernels->gray_rgb = gray_rgb_neon;
    kernels->gray_sum = gray_sum_neon;
    kernels->lookup = lookup_neon;
#else
    (void)tier;
#endif
}

/* ---- ImageEnhance ---------------------------------------------------------------------------- */

void fm_color_brightness(const fm_color_kernels *kernels, const fm_image *image, float factor) {
    kernels->fade(image->px, fm_image_bytes(image), 0, factor);
}

static uint64_t sum_bytes(const uint8_t *px, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += px[i];
    return sum;
}

void fm_color_contrast(const fm_color_kernels *kernels, const fm_image *image, float factor) {
    const size_t n_px = (size_t)image->width * (size_t)image->height;
    if (n_px == 0) return;
    const uint64_t sum =
        image->channels == 1 ? sum_bytes(image->px, n_px) : kernels->gray_sum(image->px, n_px);
    const int32_t mean = (int32_t)((double)sum / (double)n_px + 0.5);
    kernels->fade(image->px, fm_image_bytes(image), (float)mean, factor);
}

void fm_color_saturation(const fm_color_kernels *kernels, const fm_image *image, float factor) {
    if (image->channels == 1) return;
    kernels->fade_to_gray(image->px, (size_t)image->width * (size_t)image->height, factor);
}

void fm_color_sharpness(const fm_color_kernels *kernels, const fm_image *image, uint8_t *scratch,
                        float factor) {
    /* The filter does not change the border. */
    if (image->width < 3 || image->height < 3) return;
    const size_t row_bytes = fm_image_row_bytes(image), px = (size_t)image->channels;
    const size_t n_inner = row_bytes - 2 * px;
    for (size_t y = 1; y + 1 < (size_t)image->height; y++) {
        const uint8_t *const row = image->px + y * row_bytes;
        kernels->smooth(scratch + y * row_bytes, row - row_bytes, row, row + row_bytes, n_inner,
                        px);
    }
    for (size_t y = 1; y + 1 < (size_t)image->height; y++)
        kernels->blend(image->px + y * row_bytes + px, scratch + y * row_bytes, n_inner, factor);
}

/* ---- others ---------------------------------------------------------------------------------- */

void fm_color_hue(const fm_color_kernels *kernels, const fm_image *image, double factor) {
    if (image->channels == 1) return;
    kernels->hue(image->px, (size_t)image->width * (size_t)image->height,
                 (uint8_t)(int32_t)(factor * 255));
}

void fm_color_repeat(uint8_t *px, size_t n_px) {
    /* From the end, so that no value is overwritten before it is read. */
    for (size_t i = n_px; i-- > 0;) {
        const uint8_t gray = px[i];
        px[3 * i] = px[3 * i + 1] = px[3 * i + 2] = gray;
    }
}

void fm_color_grayscale(const fm_color_kernels *kernels, fm_image *image, int32_t channels) {
    const size_t n_px = (size_t)image->width * (size_t)image->height;
    if (image->channels == 3) kernels->gray(image->px, image->px, n_px);
    image->channels = channels;
    if (channels == 3) fm_color_repeat(image->px, n_px);
}
