/* Ops that compute as torchvision does on uint8 tensors. */
#ifndef FM_AUGMENT_AUGMENT_TENSOR_H
#define FM_AUGMENT_AUGMENT_TENSOR_H

#include "augment/affine.h"
#include "augment/augment.h"

/* Applies a COLOR_JITTER to the current image, which must be in a buffer. */
void fm_augment_tensor_jitter(fm_augment *augment, const fm_op *op, const fm_draw *draw);

/* The same for a GRAYSCALE, RANDOM_GRAYSCALE, RANDOM_AUTOCONTRAST or RANDOM_ADJUST_SHARPNESS.
 * False for other kinds: their results are those of PIL images. */
bool fm_augment_tensor(fm_augment *augment, const fm_op *op);

/* Changes a color as an automatic augmentation does. False for a `what` whose results are those of
 * PIL images. */
bool fm_augment_tensor_color(fm_augment *augment, const fm_op *op, fm_augmentation what,
                             double factor);

/* Applies an affine transform, relative to the image's center, with an op's filter and sampling. */
void fm_augment_tensor_map(fm_augment *augment, const fm_op *op, const fm_affine *affine,
                           const uint8_t fill[3]);

#endif
