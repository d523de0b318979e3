/*
 * timm's automatic augmentations. Arguments are computed from magnitudes with the operations of
 * timm's Python code in their order, so that they are the same doubles.
 */
#define _GNU_SOURCE
#include "augment/augment_timm.h"

#include <math.h>
#include <string.h>

#include "augment/augment_state.h"

/* One operation with its sampled parameters. */
typedef struct timm_step {
    fm_timm_augmentation what;
    double level; /* the magnitude / 10, without the sign */
    bool negate;
    double detail; /* fm_filter or radius */
} timm_step;

/* ---- arguments ------------------------------------------------------------------------------- */

static double negated(const timm_step *step, double value) { return step->negate ? -value : value; }

/* _enhance_level_to_arg() and _enhance_increasing_level_to_arg(): the factor of a blend. */
static float factor_of(const timm_step *step, bool increasing) {
    if (!increasing) return (float)(step->level * 1.8 + 0.1);
    const double factor = 1.0 + negated(step, step->level * 0.9);
    return (float)(factor > 0.1 ? factor : 0.1);
}

/* _minmax_level_to_arg() */
static double between(const timm_step *step, double low, double high) {
    const double value = low + (high - low) * step->level;
    return value < low ? low : value > high ? high : value;
}

static int bits_of(const timm_step *step) {
    const int bits = (int)(step->level * 4);
    if (step->what == FM_TIMM_POSTERIZE_INCREASING) return 4 - bits;
    return step->what == FM_TIMM_POSTERIZE_ORIGINAL ? bits + 4 : bits;
}

static int threshold_of(const timm_step *step) {
    const int level = (int)(step->level * 256);
    const int threshold = level < 256 ? level : 256;
    return step->what == FM_TIMM_SOLARIZE_INCREASING ? 256 - threshold : threshold;
}

/* ---- colors ---------------------------------------------------------------------------------- */

/* Versions of Pillow differ in whether less than one bit is allowed. */
static int posterize(const fm_image *image, int bits, fm_error *error) {
    if (bits < 1)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "an image is posterized to %d bits; the native limit is 1", bits);
    if (bits < 8) fm_color_posterize(image, bits);
    return FM_OK;
}

static void solarize_add(fm_augment *augment, const timm_step *step) {
    const int wanted = (int)(step->level * 110), add = wanted < 128 ? wanted : 128;
    uint8_t tables[3 * 256];
    for (int i = 0; i < 256; i++) {
        const int sum = i + add < 255 ? i + add : 255;
        tables[i] = tables[256 + i] = tables[512 + i] = (uint8_t)(i < 128 ? sum : i);
    }
    fm_color_point(&augment->color, &augment->image, tables);
}

static void desaturate(fm_augment *augment, const timm_step *step) {
    const double rest = 1.0 - between(step, 0.5, 1.0);
    const double factor = rest < 0 ? 0 : rest > 1 ? 1 : rest;
    fm_color_saturation(&augment->color, &augment->image, (float)factor);
}

/* Those that blend the image with a changed one. Returns false if the operation is another. */
static bool enhance(fm_augment *augment, const timm_step *step) {
    const fm_color_kernels *const color = &augment->color;
    const fm_image *const image = &augment->image;
    switch (step->what) {
    case FM_TIMM_COLOR:
    case FM_TIMM_COLOR_INCREASING:
        fm_color_saturation(color, image, factor_of(step, step->what != FM_TIMM_COLOR));
        return true;
    case FM_TIMM_CONTRAST:
    case FM_TIMM_CONTRAST_INCREASING:
        fm_color_contrast(color, image, factor_of(step, step->what != FM_TIMM_CONTRAST));
        return true;
    case FM_TIMM_BRIGHTNESS:
    case FM_TIMM_BRIGHTNESS_INCREASING:
        fm_color_brightness(color, image, factor_of(step, step->what != FM_TIMM_BRIGHTNESS));
        return true;
    case FM_TIMM_SHARPNESS:
    case FM_TIMM_SHARPNESS_INCREASING:
        fm_color_sharpness(color, image, fm_augment_other_memory(augment),
                           factor_of(step, step->what != FM_TIMM_SHARPNESS));
        return true;
    case FM_TIMM_DESATURATE:
        desaturate(augment, step);
        return true;
    default:
        return false;
    }
}

/* Those that replace each byte by another. */
static void map_bytes(fm_augment *augment, const timm_step *step) {
    const fm_image *const image = &augment->image;
    switch (step->what) {
    case FM_TIMM_AUTO_CONTRAST:
        fm_color_autocontrast(&augment->color, image);
        break;
    case FM_TIMM_EQUALIZE:
        fm_color_equalize(&augment->color, image);
        break;
    case FM_TIMM_INVERT:
        fm_color_invert(image);
        break;
    case FM_TIMM_SOLARIZE:
    case FM_TIMM_SOLARIZE_INCREASING:
        fm_color_solarize(image, threshold_of(step));
        break;
    case FM_TIMM_SOLARIZE_ADD:
        solarize_add(augment, step);
        break;
    default:
        break;
    }
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Image.transform() with an affine matrix. */
static void shear_or_translate(fm_augment *augment, const fm_op *op, const timm_step *step,
                               const uint8_t fill[3]) {
    const double share = negated(step, step->level * op->values[5]);
    const double px = negated(step, step->level * op->values[6]);
    fm_affine affine = {{1, 0, 0, 0, 1, 0}};
    switch (step->what) {
    case FM_TIMM_SHEAR_X:
        affine.m[1] = negated(step, step->level * 0.3);
        break;
    case FM_TIMM_SHEAR_Y:
        affine.m[3] = negated(step, step->level * 0.3);
        break;
    case FM_TIMM_TRANSLATE_X:
        affine.m[2] = px;
        break;
    case FM_TIMM_TRANSLATE_Y:
        affine.m[5] = px;
        break;
    case FM_TIMM_TRANSLATE_X_REL:
        affine.m[2] = share * augment->image.width;
        break;
    default:
        affine.m[5] = share * augment->image.height;
        break;
    }
    fm_augment_map_affine(augment, &affine, (fm_filter)(int)step->detail, fill);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int apply(fm_augment *augment, const fm_op *op, const timm_step *step, fm_error *error) {
    uint8_t fill[3];
    for (int i = 0; i < 3; i++) fill[i] = (uint8_t)op->values[8 + i];
    switch (step->what) {
    case FM_TIMM_GAUSSIAN_BLUR:
        return fm_augment_blur(augment, between(step, 0.1, 2.0), error);
    case FM_TIMM_GAUSSIAN_BLUR_RAND:
        return fm_augment_blur(augment, step->detail, error);
    case FM_TIMM_ROTATE:
        fm_augment_rotate(augment, negated(step, step->level * 30.0), NULL,
                          (fm_filter)(int)step->detail, fill);
        return FM_OK;
    case FM_TIMM_SHEAR_X:
    case FM_TIMM_SHEAR_Y:
    case FM_TIMM_TRANSLATE_X:
    case FM_TIMM_TRANSLATE_Y:
    case FM_TIMM_TRANSLATE_X_REL:
    case FM_TIMM_TRANSLATE_Y_REL:
        shear_or_translate(augment, op, step, fill);
        return FM_OK;
    case FM_TIMM_POSTERIZE:
    case FM_TIMM_POSTERIZE_INCREASING:
    case FM_TIMM_POSTERIZE_ORIGINAL:
        return posterize(&augment->image, bits_of(step), error);
    default:
        if (!enhance(augment, step)) map_bytes(augment, step);
        return FM_OK;
    }
}

int fm_augment_timm(fm_augment *augment, const fm_op *op, const fm_draw *draw, fm_error *error) {
    for (int32_t i = 0; i + 2 < draw->n_values; i += 3) {
        const double *const drawn = draw->values + i;
        const timm_step step = {(fm_timm_augmentation)(int)drawn[0], fabs(drawn[1]) / 10.0,
                                signbit(drawn[1]) != 0, drawn[2]};
        fm_augment_own(augment);
        const int status = apply(augment, op, &step, error);
        if (status) return status;
    }
    return FM_OK;
}
