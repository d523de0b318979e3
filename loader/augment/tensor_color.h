/*
 * Color operations on uint8 tensors, bit for bit as torchvision's (fm_arithmetic says whose). They
 * compute in float32 where Pillow uses integers or other constants. All work in place. Pure
 * functions, for any thread.
 *
 * The expensive loops are in a table of functions, one set per tier (base/cpu.h). All sets are
 * compiled from the same source without contraction of float operations, so that they give the same
 * bytes. Operations that are the same as Pillow's are in color.h.
 */
#ifndef FM_AUGMENT_TENSOR_COLOR_H
#define FM_AUGMENT_TENSOR_COLOR_H

#include <stdbool.h>

#include "augment/color.h"
#include "feedmill/feedmill.h"

/* `is_fused`: a product is added without being rounded before. */
typedef struct fm_tensor_color_kernels {
    /* Converts pixels of three bytes to gray values, one byte each. `out` may be `px`. */
    void (*gray)(uint8_t *out, const uint8_t *px, size_t n_px, bool is_fused);
    /* For each byte of pixels of three: ratio * px + share * the pixel's gray value, clipped and
     * truncated. */
    void (*fade_to_gray)(uint8_t *px, size_t n_px, float ratio, float share, bool is_fused);
    /* For each byte: ratio * px + share * base, clipped and truncated. */
    void (*blend)(uint8_t *px, const uint8_t *base, size_t n, float ratio, float share);
    /* For each byte: px + share * (base - px), clipped and truncated. */
    void (*approach)(uint8_t *px, const uint8_t *base, size_t n, float share, bool is_fused);
    /* Shifts the hue of pixels of three bytes by `turn`, -0.5 to 0.5. */
    void (*hue)(uint8_t *px, size_t n_px, float turn, bool is_v2);
    /* The mean of 3 x 3 bytes, the center counted five times, rounded. Computes n bytes from the
     * row and the ones above and below, which have 2 * step more bytes. `step` is the size of a
     * pixel. */
    void (*blur)(uint8_t *out, const uint8_t *above, const uint8_t *row, const uint8_t *below,
                 size_t n, size_t step);
} fm_tensor_color_kernels;

void fm_tensor_color_init(fm_tensor_color_kernels *kernels, fm_cpu_tier tier);

/* The kernels of both kinds of operations; whose arithmetic the tensors' ones follow. */
typedef struct fm_tensor_color {
    const fm_tensor_color_kernels *kernels;
    const fm_color_kernels *tables; /* for operations that look values up in tables */
    fm_arithmetic arithmetic;       /* not FM_ARITHMETIC_PILLOW */
} fm_tensor_color;

/* torchvision's adjust_...(). factor is 0 or more. */
void fm_tensor_brightness(const fm_tensor_color *color, const fm_image *image, double factor);
/* torch's mean is that of the exact sum only for images of up to 65,793 pixels: their sums are
 * below 2^24, so that float32 holds them, in any order of additions. */
void fm_tensor_contrast(const fm_tensor_color *color, const fm_image *image, double factor);
void fm_tensor_saturation(const fm_tensor_color *color, const fm_image *image, double factor);
/* factor is -0.5 to 0.5. */
void fm_tensor_hue(const fm_tensor_color *color, const fm_image *image, double factor);
/* `scratch` must hold the image. */
void fm_tensor_sharpness(const fm_tensor_color *color, const fm_image *image, uint8_t *scratch,
                         double factor);

/* Converts to grayscale, with one channel or three equal ones. */
void fm_tensor_grayscale(const fm_tensor_color *color, fm_image *image, int32_t channels);

void fm_tensor_autocontrast(const fm_tensor_color *color, const fm_image *image);

#endif
