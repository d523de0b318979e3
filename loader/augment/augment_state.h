/* What fm_augment consists of, and what files that apply operations share. Internal to
 * loader/augment; see augment.h. */
#ifndef FM_AUGMENT_AUGMENT_STATE_H
#define FM_AUGMENT_AUGMENT_STATE_H

#include "augment/affine.h"
#include "augment/augment.h"
#include "augment/blur.h"
#include "augment/color.h"
#include "augment/tensor_color.h"
#include "augment/tensor_warp.h"

struct fm_augment {
    fm_color_kernels color;
    fm_tensor_color_kernels tensor_color;
    fm_warp_kernels warp;
    fm_tensor_warp_kernels tensor_warp;
    fm_blur_kernels blur;
    size_t most_bytes;
    int32_t most_side;
    uint8_t *memory[2];               /* buffers of images */
    uint8_t *blur_scratch;            /* NULL: nothing is blurred */
    int32_t *columns, *rows, *padded; /* maps (gather.h) of most_side entries each */
    fm_image image;                   /* the current image */
    int at;                           /* index of its buffer; -1: the caller owns its pixels */
    fm_augment_resize_fn resize;      /* NULL: no op resizes */
    void *resize_context;
};

/* The buffer that does not hold the current image. */
static inline uint8_t *fm_augment_other_memory(const fm_augment *augment) {
    return augment->memory[augment->at == 0 ? 1 : 0];
}

/* Copies an image that the caller owns to a buffer, which may be written and read past its end. */
void fm_augment_own(fm_augment *augment);

/* Makes `out`, in one of the buffers, the current image. */
void fm_augment_set(fm_augment *augment, const fm_image *out);

/* Flips the image from left to right. */
void fm_augment_mirror(fm_augment *augment);

void fm_augment_map_affine(fm_augment *augment, const fm_affine *affine, fm_filter filter,
                           const uint8_t fill[3]);

/* Rotates by multiples of 90 degrees without interpolation, where Image.rotate() does so: about the
 * image's center (center NULL), and by 90 or 270 degrees only if the image is square. False: this
 * is another case. */
bool fm_augment_turn(fm_augment *augment, double degrees, const double *center);

/* Python's degrees % 360.0. */
double fm_augment_within_turn(double degrees);

/* Image.rotate(). center NULL: the image's center. */
void fm_augment_rotate(fm_augment *augment, double degrees, const double *center, fm_filter filter,
                       const uint8_t fill[3]);

/* image.filter(ImageFilter.GaussianBlur(radius)). FM_ERR_LIMIT if the image is too wide. */
int fm_augment_blur(fm_augment *augment, double radius, fm_error *error);

#endif
