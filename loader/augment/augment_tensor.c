#define _GNU_SOURCE
#include "augment/augment_tensor.h"

#include "augment/augment_state.h"

static fm_tensor_color color_of(const fm_augment *augment, const fm_op *op) {
    return (fm_tensor_color){&augment->tensor_color, &augment->color, op->arithmetic};
}

void fm_augment_tensor_jitter(fm_augment *augment, const fm_op *op, const fm_draw *draw) {
    const fm_tensor_color color = color_of(augment, op);
    const fm_image *const image = &augment->image;
    for (int i = 0; i < 4; i++) {
        const int what = (int)draw->values[i];
        const double factor = draw->values[4 + what];
        if (!((int)op->values[8] >> what & 1)) continue;
        if (what == 0) fm_tensor_brightness(&color, image, factor);
        if (what == 1) fm_tensor_contrast(&color, image, factor);
        if (what == 2) fm_tensor_saturation(&color, image, factor);
        if (what == 3) fm_tensor_hue(&color, image, factor);
    }
}

bool fm_augment_tensor(fm_augment *augment, const fm_op *op) {
    const fm_tensor_color color = color_of(augment, op);
    fm_image *const image = &augment->image;
    switch (op->kind) {
    case FM_OP_GRAYSCALE:
        fm_tensor_grayscale(&color, image, (int32_t)op->values[0]);
        return true;
    case FM_OP_RANDOM_GRAYSCALE:
        if (image->channels == 3) fm_tensor_grayscale(&color, image, 3);
        return true;
    case FM_OP_RANDOM_AUTOCONTRAST:
        fm_tensor_autocontrast(&color, image);
        return true;
    case FM_OP_RANDOM_ADJUST_SHARPNESS:
        fm_tensor_sharpness(&color, image, fm_augment_other_memory(augment), op->values[0]);
        return true;
    default:
        return false;
    }
}

bool fm_augment_tensor_color(fm_augment *augment, const fm_op *op, fm_augmentation what,
                             double factor) {
    const fm_tensor_color color = color_of(augment, op);
    const fm_image *const image = &augment->image;
    switch (what) {
    case FM_AUGMENT_BRIGHTNESS:
        fm_tensor_brightness(&color, image, factor);
        return true;
    case FM_AUGMENT_COLOR:
        fm_tensor_saturation(&color, image, factor);
        return true;
    case FM_AUGMENT_CONTRAST:
        fm_tensor_contrast(&color, image, factor);
        return true;
    case FM_AUGMENT_SHARPNESS:
        fm_tensor_sharpness(&color, image, fm_augment_other_memory(augment), factor);
        return true;
    case FM_AUGMENT_AUTOCONTRAST:
        fm_tensor_autocontrast(&color, image);
        return true;
    default:
        return false;
    }
}

void fm_augment_tensor_map(fm_augment *augment, const fm_op *op, const fm_affine *affine,
                           const uint8_t fill[3]) {
    fm_augment_own(augment);
    fm_image out = augment->image;
    out.px = fm_augment_other_memory(augment);
    fm_tensor_warp_map(&augment->tensor_warp, &augment->image, &out, affine, op->arithmetic,
                       op->sampling, op->filter, fill);
    fm_augment_set(augment, &out);
}
