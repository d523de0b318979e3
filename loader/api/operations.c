/* operations.h: checks the arguments and calls the kernels of augment/. */
#define _GNU_SOURCE
#include "feedmill/operations.h"

#include <math.h>
#include <string.h>

#include "augment/blur.h"
#include "augment/color.h"
#include "augment/mix.h"
#include "base/error.h"
#include "base/mem.h"
#include "transform/geometry.h"

enum { CHANNELS = 3 };

static int check(const fm_operation *operation, const uint8_t *out, fm_error *error) {
    if (!operation || !out || !operation->pixels)
        return fm_error_set(error, FM_ERR_ARGUMENT, "operation, pixels or out is NULL");
    if (operation->struct_bytes != sizeof(*operation))
        return fm_error_set(error, FM_ERR_ARGUMENT, "operation.struct_bytes is %zu, not %zu",
                            operation->struct_bytes, sizeof(*operation));
    if ((unsigned)operation->kind > FM_OPERATION_GAUSSIAN_BLUR)
        return fm_error_set(error, FM_ERR_ARGUMENT, "the kind of operation is unknown");
    if (operation->width < 1 || operation->width > FM_MAX_SIDE || operation->height < 1 ||
        operation->height > FM_MAX_SIDE)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%d x %d pixels; sides are 1 to %d",
                            (int)operation->width, (int)operation->height, FM_MAX_SIDE);
    const bool needs_other =
        operation->kind == FM_OPERATION_BLEND || operation->kind == FM_OPERATION_POINT;
    if (needs_other && !operation->other)
        return fm_error_set(error, FM_ERR_ARGUMENT, "other is NULL");
    if (!isfinite(operation->factor))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the factor is not finite");
    if (operation->value < 0 || operation->value > 255)
        return fm_error_set(error, FM_ERR_ARGUMENT, "a value must be from 0 to 255");
    return FM_OK;
}

/* ---- blur ------------------------------------------------------------------------------------ */

static bool is_radius(float radius) { return radius >= 0 && radius < FM_BLUR_MAX_RADIUS + 1; }

static int blur(const fm_operation *operation, const fm_image *in, uint8_t *out, fm_cpu_tier tier,
                fm_error *error) {
    if (operation->n_passes < 1)
        return fm_error_set(error, FM_ERR_ARGUMENT, "n_passes must be 1 or more");
    float x = operation->x, y = operation->y;
    if (operation->kind == FM_OPERATION_GAUSSIAN_BLUR) {
        x = fm_blur_box_radius(x, operation->n_passes);
        y = fm_blur_box_radius(y, operation->n_passes);
    }
    if (!is_radius(x) || !is_radius(y))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the radius of a box must be 0 to less than %d",
                            FM_BLUR_MAX_RADIUS + 1);
    uint8_t *const scratch = fm_mem_alloc(NULL, fm_blur_scratch_bytes(in->width), 1);
    if (!scratch) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a blur");
    fm_blur_kernels kernels;
    fm_blur_init(&kernels, tier);
    fm_blur_box(&kernels, in, out, scratch, x, y, operation->n_passes);
    fm_mem_free(scratch);
    return FM_OK;
}

/* ---- the filter ------------------------------------------------------------------------------ */

/* The filter leaves the border as it is. */
static void smooth(const fm_color_kernels *kernels, const fm_image *in, uint8_t *out) {
    const size_t row_bytes = fm_image_row_bytes(in);
    memcpy(out, in->px, fm_image_bytes(in));
    if (in->width < 3 || in->height < 3) return;
    for (size_t y = 1; y + 1 < (size_t)in->height; y++) {
        const uint8_t *const row = in->px + y * row_bytes;
        kernels->smooth(out + y * row_bytes + CHANNELS, row - row_bytes, row, row + row_bytes,
                        row_bytes - 2 * CHANNELS, CHANNELS);
    }
}

/* ---- all kinds ------------------------------------------------------------------------------- */

/* Applies an operation that works in place to a copy. */
static void change(const fm_operation *operation, const fm_color_kernels *kernels,
                   const fm_image *image) {
    const size_t n_bytes = fm_image_bytes(image), n_px = n_bytes / CHANNELS;
    switch (operation->kind) {
    case FM_OPERATION_BLEND:
        kernels->blend(image->px, operation->other, n_bytes, operation->factor);
        break;
    case FM_OPERATION_BLEND_VALUE:
        kernels->fade(image->px, n_bytes, (float)operation->value, operation->factor);
        break;
    case FM_OPERATION_BLEND_GRAY:
        kernels->fade_to_gray(image->px, n_px, operation->factor);
        break;
    case FM_OPERATION_HUE:
        kernels->hue(image->px, n_px, (uint8_t)operation->value);
        break;
    case FM_OPERATION_POINT:
        fm_color_point(kernels, image, operation->other);
        break;
    case FM_OPERATION_AUTOCONTRAST:
        fm_color_autocontrast(kernels, image);
        break;
    case FM_OPERATION_EQUALIZE:
        fm_color_equalize(kernels, image);
        break;
    default:
        break;
    }
}

int fm_operation_run(const fm_operation *operation, uint8_t *out, fm_error *error) {
    fm_error_clear(error);
    fm_cpu_tier tier;
    int status = check(operation, out, error);
    if (!status) status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    /* The kernels' input is not const, as most of them work in place. */
    const fm_image in = {(uint8_t *)(uintptr_t)operation->pixels, operation->width,
                         operation->height, CHANNELS};
    if (operation->kind >= FM_OPERATION_BOX_BLUR) return blur(operation, &in, out, tier, error);
    fm_color_kernels kernels;
    fm_color_init(&kernels, tier);
    if (operation->kind == FM_OPERATION_SMOOTH) {
        smooth(&kernels, &in, out);
    } else if (operation->kind == FM_OPERATION_GRAY) {
        kernels.gray_rgb(out, in.px, fm_image_bytes(&in) / CHANNELS);
    } else if (operation->kind == FM_OPERATION_GRAY_BYTES) {
        kernels.gray(out, in.px, fm_image_bytes(&in) / CHANNELS);
    } else {
        fm_image image = in;
        image.px = out;
        memcpy(out, in.px, fm_image_bytes(&in));
        change(operation, &kernels, &image);
    }
    return FM_OK;
}

void fm_pixels_histogram(const uint8_t *pixels, size_t n_px, uint64_t counts[3][256]) {
    fm_color_count(pixels, n_px, counts);
}

int fm_pixels_gray_sum(const uint8_t *pixels, size_t n_px, uint64_t *sum, fm_error *error) {
    fm_error_clear(error);
    if (!pixels || !sum) return fm_error_set(error, FM_ERR_ARGUMENT, "pixels or sum is NULL");
    fm_cpu_tier tier;
    const int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    fm_color_kernels kernels;
    fm_color_init(&kernels, tier);
    *sum = kernels.gray_sum(pixels, n_px);
    return FM_OK;
}

int fm_pixels_mix(const uint8_t *one, const uint8_t *other, size_t n_bytes, float weight,
                  float other_weight, uint8_t *out, fm_error *error) {
    fm_error_clear(error);
    if (!one || !other || !out)
        return fm_error_set(error, FM_ERR_ARGUMENT, "one, other or out is NULL");
    /* Weights that add up to 1 do so but for the rounding of each. */
    const float most = 1.0001f;
    if (!(weight >= 0 && other_weight >= 0 && weight + other_weight <= most))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the weights %g and %g are not shares of 1",
                            (double)weight, (double)other_weight);
    fm_cpu_tier tier;
    const int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    fm_mix_kernel_of(tier)(out, one, other, n_bytes, weight, other_weight);
    return FM_OK;
}
