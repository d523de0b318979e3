#define _GNU_SOURCE
#include "augment/augment_state.h"

#include <math.h>
#include <string.h>

#include "augment/gather.h"

/* As Pillow's ImagingGaussianBlur() is called. */
#define N_BLUR_PASSES 3

void fm_augment_own(fm_augment *augment) {
    if (augment->at >= 0) return;
    memcpy(augment->memory[0], augment->image.px, fm_image_bytes(&augment->image));
    augment->image.px = augment->memory[0];
    augment->at = 0;
}

void fm_augment_set(fm_augment *augment, const fm_image *out) {
    augment->image = *out;
    augment->at = out->px == augment->memory[0] ? 0 : 1;
}

void fm_augment_map_affine(fm_augment *augment, const fm_affine *affine, fm_filter filter,
                           const uint8_t fill[3]) {
    fm_augment_own(augment);
    fm_image out = augment->image;
    out.px = fm_augment_other_memory(augment);
    fm_affine_map(&augment->warp, &augment->image, &out, affine, filter, fill, augment->columns);
    fm_augment_set(augment, &out);
}

void fm_augment_mirror(fm_augment *augment) {
    fm_image out = augment->image;
    out.px = fm_augment_other_memory(augment);
    fm_gather_flip_horizontal(&augment->image, &out);
    fm_augment_set(augment, &out);
}

static void turn_quarters(fm_augment *augment, int n_quarters) {
    fm_image out = augment->image;
    out.px = fm_augment_other_memory(augment);
    fm_affine_quarter(&augment->image, &out, n_quarters);
    fm_augment_set(augment, &out);
}

double fm_augment_within_turn(double degrees) {
    const double rest = fmod(degrees, 360.0);
    return rest < 0 ? rest + 360.0 : rest;
}

bool fm_augment_turn(fm_augment *augment, double degrees, const double *center) {
    const double angle = fm_augment_within_turn(degrees);
    const bool is_square = augment->image.width == augment->image.height;
    if (center) return false;
    if (angle == 0) return true;
    if (angle == 180) {
        fm_augment_mirror(augment);
        fm_gather_flip_vertical(&augment->image);
        return true;
    }
    if ((angle != 90 && angle != 270) || !is_square) return false;
    turn_quarters(augment, angle == 90 ? 1 : 3);
    return true;
}

void fm_augment_rotate(fm_augment *augment, double degrees, const double *center, fm_filter filter,
                       const uint8_t fill[3]) {
    if (fm_augment_turn(augment, degrees, center)) return;
    const double x = center ? center[0] : augment->image.width / 2.0;
    const double y = center ? center[1] : augment->image.height / 2.0;
    const fm_affine affine = fm_affine_rotation(fm_augment_within_turn(degrees), x, y);
    fm_augment_map_affine(augment, &affine, filter, fill);
}

int fm_augment_blur(fm_augment *augment, double radius, fm_error *error) {
    const int32_t width = augment->image.width;
    if (width > FM_AUGMENT_MAX_BLURRED)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "an image of %d columns to blur; the native limit is %d", (int)width,
                            FM_AUGMENT_MAX_BLURRED);
    fm_augment_own(augment);
    fm_image out = augment->image;
    out.px = fm_augment_other_memory(augment);
    const float box = fm_blur_box_radius((float)radius, N_BLUR_PASSES);
    fm_blur_box(&augment->blur, &augment->image, out.px, augment->blur_scratch, box, box,
                N_BLUR_PASSES);
    fm_augment_set(augment, &out);
    return FM_OK;
}
