/* fm_mapping_run() of operations.h: checks the arguments and calls the kernels of augment/. */
#define _GNU_SOURCE
#include "feedmill/operations.h"

#include <math.h>
#include <string.h>

#include "augment/affine.h"
#include "augment/warp.h"
#include "base/error.h"
#include "base/mem.h"
#include "transform/geometry.h"

/* Pillow's fixed-point numbers have 16 bits before the point. */
static const double MOST_FIXED = 1 << 14, MOST_POINT = 1 << 30, LEAST_DIVISOR = 1e-6;

static bool is_size(int32_t width, int32_t height) {
    return width >= 1 && width <= FM_MAX_SIDE && height >= 1 && height <= FM_MAX_SIDE;
}

static int check(const fm_mapping *mapping, const uint8_t *out, fm_error *error) {
    if (!mapping || !out || !mapping->pixels)
        return fm_error_set(error, FM_ERR_ARGUMENT, "mapping, pixels or out is NULL");
    if (mapping->struct_bytes != sizeof(*mapping))
        return fm_error_set(error, FM_ERR_ARGUMENT, "mapping.struct_bytes is %zu, not %zu",
                            mapping->struct_bytes, sizeof(*mapping));
    if ((unsigned)mapping->kind > FM_MAPPING_PERSPECTIVE)
        return fm_error_set(error, FM_ERR_ARGUMENT, "the kind of mapping is unknown");
    if (mapping->filter != FM_FILTER_NEAREST && mapping->filter != FM_FILTER_BILINEAR &&
        mapping->filter != FM_FILTER_BICUBIC)
        return fm_error_set(error, FM_ERR_ARGUMENT, "filters are nearest, bilinear and bicubic");
    if (!is_size(mapping->width, mapping->height) ||
        !is_size(mapping->out_width, mapping->out_height))
        return fm_error_set(error, FM_ERR_ARGUMENT, "sides are 1 to %d", FM_MAX_SIDE);
    return FM_OK;
}

/* Whether Pillow computes these points in fixed-point numbers. */
static bool uses_fixed_point(const fm_mapping *mapping) {
    return mapping->kind == FM_MAPPING_AFFINE && mapping->filter == FM_FILTER_NEAREST &&
           (mapping->m[1] != 0 || mapping->m[3] != 0);
}

/* Whether all points of the result are numbers in Pillow's range. Linear functions of a rectangle's
 * points are largest and smallest at its corners. */
static bool is_in_range(const fm_mapping *mapping) {
    const double *const m = mapping->m;
    const double most = uses_fixed_point(mapping) ? MOST_FIXED : MOST_POINT;
    double largest = 0, least_divisor = 1;
    for (int corner = 0; corner < 4; corner++) {
        const double x = corner & 1 ? mapping->out_width : 0;
        const double y = corner & 2 ? mapping->out_height : 0;
        const double to_x = fabs(m[0] * x + m[1] * y + m[2]);
        const double to_y = fabs(m[3] * x + m[4] * y + m[5]);
        if (!(to_x < MOST_POINT && to_y < MOST_POINT)) return false;
        largest = fmax(largest, fmax(to_x, to_y));
        if (mapping->kind == FM_MAPPING_AFFINE) continue;
        const double divisor = m[6] * x + m[7] * y + 1;
        if (!(fabs(divisor) < MOST_POINT)) return false;
        least_divisor = fmin(least_divisor, divisor);
    }
    /* The divisor is 1 at the first corner, so that it is positive everywhere or has a zero. */
    return least_divisor >= LEAST_DIVISOR && largest < most * least_divisor;
}

int fm_mapping_run(const fm_mapping *mapping, uint8_t *out, fm_error *error) {
    fm_error_clear(error);
    fm_cpu_tier tier;
    int status = check(mapping, out, error);
    if (!status) status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    if (!is_in_range(mapping))
        return fm_error_set(error, FM_ERR_LIMIT, "points far outside of the image");
    const fm_image in = {(uint8_t *)(uintptr_t)mapping->pixels, mapping->width, mapping->height, 3};
    const fm_image image = {out, mapping->out_width, mapping->out_height, 3};
    fm_warp_kernels kernels;
    fm_warp_init(&kernels, tier);
    if (mapping->kind == FM_MAPPING_PERSPECTIVE) {
        fm_warp warp = {.is_perspective = true};
        memcpy(warp.m, mapping->m, sizeof(warp.m));
        fm_warp_map(&kernels, &in, &image, &warp, mapping->filter, mapping->fill);
        return FM_OK;
    }
    fm_affine affine;
    memcpy(affine.m, mapping->m, sizeof(affine.m));
    int32_t *const columns = fm_mem_alloc(NULL, (size_t)image.width, sizeof(int32_t));
    if (!columns) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a transform");
    fm_affine_map(&kernels, &in, &image, &affine, mapping->filter, mapping->fill, columns);
    fm_mem_free(columns);
    return FM_OK;
}
