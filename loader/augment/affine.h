/* Affine transforms of an image, bit for bit as Pillow's Geometry.c. Pure functions, for any
 * thread.
 */
#ifndef FM_AUGMENT_AFFINE_H
#define FM_AUGMENT_AFFINE_H

#include <stdbool.h>

#include "augment/image.h"
#include "augment/warp.h"
#include "feedmill/feedmill.h"

/*
 * Maps an output's pixel (x, y) to the input's point
 * (m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2], m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5]).
 */
typedef struct fm_affine {
    double m[6];
} fm_affine;

/* Image.rotate() about (center_x, center_y). */
fm_affine fm_affine_rotation(double degrees, double center_x, double center_y);

/* _get_inverse_affine_matrix() of torchvision.transforms, and that of v2, which rounds otherwise.
 */
fm_affine fm_affine_inverse(double center_x, double center_y, double degrees,
                            const double translate[2], double scale, const double shear[2]);
fm_affine fm_affine_inverse_v2(double center_x, double center_y, double degrees,
                               const double translate[2], double scale, const double shear[2]);

/*
 * Writes all of `out`. Points outside `in` get the fill. `filter` is FM_FILTER_NEAREST, _BILINEAR
 * or _BICUBIC; columns[out->width] is scratch memory. With the nearest filter, one byte after the
 * end of `in` is read.
 */
void fm_affine_map(const fm_warp_kernels *kernels, const fm_image *in, const fm_image *out,
                   const fm_affine *affine, fm_filter filter, const uint8_t fill[3],
                   int32_t *columns);

/* Rotates a square image counterclockwise by 90 degrees (n_quarters 1) or 270 degrees (3). */
void fm_affine_quarter(const fm_image *in, const fm_image *out, int n_quarters);

#endif
