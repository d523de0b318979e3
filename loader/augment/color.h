/*
 * Colours, as Pillow's ImageEnhance, ImageOps and conversions give them, bit for bit; in place.
 *
 * The loops that take time come in a table of functions, one set for each tier (base/cpu.h). All
 * are compiled from one body, in which every float operation is written down, so that the tiers
 * give the same bytes.
 */
#ifndef FM_AUGMENT_COLOR_H
#define FM_AUGMENT_COLOR_H

#include "augment/image.h"
#include "base/cpu.h"

typedef struct fm_color_kernels {
    /* Bytes: base + factor * (px - base), cut off to a byte. */
    void (*fade)(uint8_t *px, size_t n, float base, float factor);
    /* The same with a base for each byte. */
    void (*blend)(uint8_t *px, const uint8_t *base, size_t n, float factor);
    /* Pixels of three bytes, with their grey as base. */
    void (*fade_to_grey)(uint8_t *px, size_t n_px, float factor);
    /* The greys of pixels of three bytes: one byte each. `out` may be `px`. */
    void (*grey)(uint8_t *out, const uint8_t *px, size_t n_px);
    /* Their sum. */
    uint64_t (*grey_sum)(const uint8_t *px, size_t n_px);
    /* Pixels of three bytes: hues moved by `shift` of 256. */
    void (*hue)(uint8_t *px, size_t n_px, uint8_t shift);
    /* Pillow's SMOOTH filter: n bytes of a row from its own and its neighbours', of which `step`
     * more lie on either side. */
    void (*smooth)(uint8_t *out, const uint8_t *above, const uint8_t *row, const uint8_t *below,
                   size_t n, size_t step);
} fm_color_kernels;

void fm_color_init(fm_color_kernels *kernels, fm_cpu_tier tier);

/* ImageEnhance, with a factor that is no number other than finite. */
void fm_color_brightness(const fm_color_kernels *kernels, const fm_image *image, float factor);
void fm_color_contrast(const fm_color_kernels *kernels, const fm_image *image, float factor);
void fm_color_saturation(const fm_color_kernels *kernels, const fm_image *image, float factor);
/* `scratch` has room for the image, with what may be read behind it. */
void fm_color_sharpness(const fm_color_kernels *kernels, const fm_image *image, uint8_t *scratch,
                        float factor);

/* torchvision's adjust_hue(): through Pillow's HSV and back. factor is -0.5 to 0.5. */
void fm_color_hue(const fm_color_kernels *kernels, const fm_image *image, double factor);

/* Three channels with the grey of the pixel in each, or one channel with it. */
void fm_color_grey(const fm_color_kernels *kernels, fm_image *image, int32_t channels);

/* ImageOps. */
void fm_color_invert(const fm_image *image);
void fm_color_posterize(const fm_image *image, int bits);
void fm_color_solarize(const fm_image *image, double threshold);
void fm_color_autocontrast(const fm_image *image);
void fm_color_equalize(const fm_image *image);

#endif
