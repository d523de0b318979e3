/*
 * Transforms of an image whose output pixels are interpolated at points of the input, bit for bit
 * as Pillow's ImagingGenericTransform(). Pure functions, for any thread.
 */
#ifndef FM_AUGMENT_WARP_H
#define FM_AUGMENT_WARP_H

#include <stdbool.h>

#include "augment/image.h"
#include "base/cpu.h"
#include "feedmill/feedmill.h"

/* Points that are handled at a time. Arrays of points have a few more, which kernels may read. */
enum { FM_WARP_BLOCK = 64, FM_WARP_ARRAY = FM_WARP_BLOCK + 4 };

/*
 * Maps an output's pixel (x, y) to the input's point
 * ((m[0] * X + m[1] * Y + m[2]) / D, (m[3] * X + m[4] * Y + m[5]) / D) with X = x + 0.5,
 * Y = y + 0.5, and D = m[6] * X + m[7] * Y + 1 of a perspective, 1 of an affine transform.
 */
typedef struct fm_warp {
    double m[8];
    bool is_perspective; /* m[6] and m[7] are not used otherwise */
} fm_warp;

typedef struct fm_warp_points {
    double x[FM_WARP_ARRAY], y[FM_WARP_ARRAY];
} fm_warp_points;

typedef struct fm_warp_kernels {
    /* The points of n pixels of an output's row, from column `begin` on. */
    void (*points)(fm_warp_points *points, const fm_warp *warp, int32_t begin, int32_t row,
                   size_t n);
    /* Interpolate n pixels of three channels at (x[i], y[i]), all of whose neighbors are within
     * the image. n is FM_WARP_BLOCK or less. */
    void (*bilinear)(const fm_image *in, uint8_t *out, const double *x, const double *y, size_t n);
    void (*bicubic)(const fm_image *in, uint8_t *out, const double *x, const double *y, size_t n);
} fm_warp_kernels;

void fm_warp_init(fm_warp_kernels *kernels, fm_cpu_tier tier);

/*
 * Writes all of `out`; points outside `in` get the fill. `filter` is FM_FILTER_NEAREST, _BILINEAR
 * or _BICUBIC. All points must be numbers below 2^30. With the nearest filter, one byte after the
 * end of `in` is read.
 */
void fm_warp_map(const fm_warp_kernels *kernels, const fm_image *in, const fm_image *out,
                 const fm_warp *warp, fm_filter filter, const uint8_t fill[3]);

#endif
