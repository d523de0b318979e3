/*
 * Operations on an image in memory, as Pillow computes them on RGB images, bit for bit.
 *
 *     fm_operation blur = {.struct_bytes = sizeof(blur), .kind = FM_OPERATION_GAUSSIAN_BLUR};
 *     blur.pixels = pixels;
 *     blur.width = blur.height = 224;
 *     blur.x = blur.y = 1.5f;
 *     blur.n_passes = 3;
 *     uint8_t *const out = malloc(224 * 224 * 3);
 *     if (fm_operation_run(&blur, out, &error)) die(error.message);
 *
 * Images are contiguous rows of three bytes per pixel. All functions may be called by any thread.
 */
#ifndef FEEDMILL_OPERATIONS_H
#define FEEDMILL_OPERATIONS_H

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is done to `pixels`. In the comments, Pillow's name and the members that are used beside
 * pixels, width and height. */
typedef enum fm_operation_kind {
    FM_OPERATION_BLEND,        /* Image.blend(other, pixels, factor) */
    FM_OPERATION_BLEND_VALUE,  /* the same with a gray image of one value, from 0 to 255 */
    FM_OPERATION_BLEND_GRAY,   /* the same with convert("L").convert("RGB") of the pixels */
    FM_OPERATION_GRAY,         /* convert("L").convert("RGB") */
    FM_OPERATION_GRAY_BYTES,   /* convert("L"): the result has one byte per pixel */
    FM_OPERATION_SMOOTH,       /* filter(ImageFilter.SMOOTH) */
    FM_OPERATION_HUE,          /* convert("HSV"), adds value to the hue, convert("RGB") */
    FM_OPERATION_POINT,        /* point(), with the 768 bytes of `other` as the table */
    FM_OPERATION_AUTOCONTRAST, /* ImageOps.autocontrast() */
    FM_OPERATION_EQUALIZE,     /* ImageOps.equalize() */
    FM_OPERATION_BOX_BLUR,     /* the core's box_blur((x, y), n_passes) */
    FM_OPERATION_GAUSSIAN_BLUR /* the core's gaussian_blur((x, y), n_passes) */
} fm_operation_kind;

typedef struct fm_operation {
    size_t struct_bytes; /* sizeof(fm_operation) */
    fm_operation_kind kind;
    const uint8_t *pixels;
    int32_t width, height;
    const uint8_t *other; /* a second image of this size, or a table for each channel */
    float factor;         /* finite */
    int32_t value;
    float x, y;       /* radii, 0 or more: of a box less than 16, of a Gaussian blur about 15 */
    int32_t n_passes; /* 1 or more */
} fm_operation;

/*
 * Writes the result to out[height][width][3], or [height][width] of FM_OPERATION_GRAY_BYTES, which
 * must not overlap the input. FM_ERR_ARGUMENT if
 * a member is out of range or FEEDMILL_CPU is invalid, FM_ERR_NOMEM; `out` holds anything then.
 */
FM_API FM_CHECK_RESULT int fm_operation_run(const fm_operation *operation, uint8_t *out,
                                            fm_error *error);

/* How fm_mapping.m maps a pixel of the result to a point of the image; x and y are those of the
 * pixel's center. */
typedef enum fm_mapping_kind {
    FM_MAPPING_AFFINE, /* (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]) */
    /* the same, both divided by m[6] x + m[7] y + 1 */
    FM_MAPPING_PERSPECTIVE
} fm_mapping_kind;

/* Image.transform(): pixels at points of the image, or the fill outside of it. */
typedef struct fm_mapping {
    size_t struct_bytes;   /* sizeof(fm_mapping) */
    const uint8_t *pixels; /* one byte after their end is read, too */
    int32_t width, height;
    int32_t out_width, out_height;
    fm_mapping_kind kind;
    double m[8];
    fm_filter filter; /* FM_FILTER_NEAREST, _BILINEAR or _BICUBIC, without antialiasing */
    uint8_t fill[3];
} fm_mapping;

/*
 * Writes the result to out[out_height][out_width][3], which must not overlap the input.
 * FM_ERR_ARGUMENT if a member is out of range or FEEDMILL_CPU is invalid, FM_ERR_LIMIT if
 * points are so far away that Pillow's numbers overflow, FM_ERR_NOMEM; `out` holds anything then.
 */
FM_API FM_CHECK_RESULT int fm_mapping_run(const fm_mapping *mapping, uint8_t *out, fm_error *error);

/* Counts the values of each channel of n_px pixels. */
FM_API void fm_pixels_histogram(const uint8_t *pixels, size_t n_px, uint64_t counts[3][256]);

/* Writes the sum of the gray values of n_px pixels, as convert("L") computes them. FM_ERR_ARGUMENT
 * if FEEDMILL_CPU is invalid. */
FM_API FM_CHECK_RESULT int fm_pixels_gray_sum(const uint8_t *pixels, size_t n_px, uint64_t *sum,
                                              fm_error *error);

/*
 * Mixes two images of n_bytes bytes each: out = one * weight + other * other_weight in float32,
 * rounded to the nearest integer, halves to the even one. `out` may be one of the two.
 * FM_ERR_ARGUMENT if a weight is negative, their sum more than 1 (but for rounding), a pointer NULL
 * or FEEDMILL_CPU invalid.
 */
FM_API FM_CHECK_RESULT int fm_pixels_mix(const uint8_t *one, const uint8_t *other, size_t n_bytes,
                                         float weight, float other_weight, uint8_t *out,
                                         fm_error *error);

#ifdef __cplusplus
}
#endif
#endif
