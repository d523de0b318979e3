/* Affine maps of an image onto one of its own size, as Pillow's Geometry.c computes them. */
#ifndef FM_AUGMENT_AFFINE_H
#define FM_AUGMENT_AFFINE_H

#include <stdbool.h>

#include "augment/image.h"
#include "feedmill/feedmill.h"

/*
 * From an output's pixel (x, y) to the input's point
 * (m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2], m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5]).
 */
typedef struct fm_affine {
    double m[6];
} fm_affine;

/* Image.rotate() about (center_x, center_y). */
fm_affine fm_affine_rotation(double degrees, double center_x, double center_y);

/* torchvision's _get_inverse_affine_matrix(). */
fm_affine fm_affine_inverse(double center_x, double center_y, double degrees,
                            const double translate[2], double scale, const double shear[2]);

/*
 * Writes all of `out`, which has the size of `in`: points outside of it become the fill.
 * FM_FILTER_NEAREST, _BILINEAR or _BICUBIC. columns has room for out->width.
 */
void fm_affine_map(const fm_image *in, const fm_image *out, const fm_affine *affine,
                   fm_filter filter, const uint8_t fill[3], int32_t *columns);

/* A quarter turn of a square image counterclockwise, or three of them. */
void fm_affine_quarter(const fm_image *in, const fm_image *out, int n_quarters);

#endif
