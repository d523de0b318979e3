/*
 * Color operations, bit for bit as Pillow's ImageEnhance, ImageOps and conversions. All work in
 * place. Pure functions, for any thread.
 *
 * The expensive loops are in a table of functions, one set per tier (base/cpu.h). All sets are
 * compiled from the same source without contraction of float operations, so that they give the same
 * bytes.
 */
#ifndef FM_AUGMENT_COLOR_H
#define FM_AUGMENT_COLOR_H

#include "augment/image.h"
#include "base/cpu.h"

typedef struct fm_color_kernels {
    /* For each byte: base + factor * (px - base), clipped and truncated. */
    void (*fade)(uint8_t *px, size_t n, float base, float factor);
    /* The same, with a base for each byte. */
    void (*blend)(uint8_t *px, const uint8_t *base, size_t n, float factor);
    /* The same for pixels of three bytes, with the pixel's gray value as base. */
    void (*fade_to_gray)(uint8_t *px, size_t n_px, float factor);
    /* Converts pixels of three bytes to gray values, one byte each. `out` may be `px`. */
    void (*gray)(uint8_t *out, const uint8_t *px, size_t n_px);
    /* Converts pixels of three bytes to gray ones of three equal bytes. They must not overlap. */
    void (*gray_rgb)(uint8_t *out, const uint8_t *px, size_t n_px);
    /* The sum of these gray values. */
    uint64_t (*gray_sum)(const uint8_t *px, size_t n_px);
    /* Shifts the hue of pixels of three bytes by shift / 256 of a turn. */
    void (*hue)(uint8_t *px, size_t n_px, uint8_t shift);
    /* Pillow's SMOOTH filter: computes n bytes from the row and the ones above and below, which
     * have 2 * step more bytes. `step` is the size of a pixel. */
    void (*smooth)(uint8_t *out, const uint8_t *above, const uint8_t *row, const uint8_t *below,
                   size_t n, size_t step);
    /* Replaces each byte of pixels of three bytes by its entry in its channel's table of 256. */
    void (*lookup)(uint8_t *px, size_t n_px, const uint8_t *tables);
} fm_color_kernels;

void fm_color_init(fm_color_kernels *kernels, fm_cpu_tier tier);

/* ImageEnhance. factor must be finite. */
void fm_color_brightness(const fm_color_kernels *kernels, const fm_image *image, float factor);
void fm_color_contrast(const fm_color_kernels *kernels, const fm_image *image, float factor);
void fm_color_saturation(const fm_color_kernels *kernels, const fm_image *image, float factor);
/* `scratch` must hold the image and FM_IMAGE_SLACK bytes. */
void fm_color_sharpness(const fm_color_kernels *kernels, const fm_image *image, uint8_t *scratch,
                        float factor);

/* torchvision's adjust_hue(): through Pillow's HSV and back. factor is -0.5 to 0.5. */
void fm_color_hue(const fm_color_kernels *kernels, const fm_image *image, double factor);

/* Converts to grayscale, with one channel or three equal ones. */
void fm_color_grayscale(const fm_color_kernels *kernels, fm_image *image, int32_t channels);

/* Makes n_px gray values pixels of three equal bytes, in place. */
void fm_color_repeat(uint8_t *px, size_t n_px);

/* ImageOps. */
void fm_color_invert(const fm_image *image);
void fm_color_posterize(const fm_image *image, int bits);
void fm_color_solarize(const fm_image *image, double threshold);
void fm_color_autocontrast(const fm_color_kernels *kernels, const fm_image *image);
void fm_color_equalize(const fm_color_kernels *kernels, const fm_image *image);

/* Counts the values of each channel of pixels of three bytes. */
void fm_color_count(const uint8_t *px, size_t n_px, uint64_t counts[3][256]);

/* Image.point() with a table of 256 bytes for each of three channels. An image with one channel
 * uses the first. */
void fm_color_point(const fm_color_kernels *kernels, const fm_image *image,
                    const uint8_t tables[3 * 256]);

#endif
