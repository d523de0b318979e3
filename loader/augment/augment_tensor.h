/* Ops on colors that compute as torchvision does on uint8 tensors. */
#ifndef FM_AUGMENT_AUGMENT_TENSOR_H
#define FM_AUGMENT_AUGMENT_TENSOR_H

#include "augment/augment.h"

/* Applies a COLOR_JITTER to the current image, which must be in a buffer. */
void fm_augment_tensor_jitter(fm_augment *augment, const fm_op *op, const fm_draw *draw);

/* The same for a GRAYSCALE, RANDOM_GRAYSCALE, RANDOM_AUTOCONTRAST or RANDOM_ADJUST_SHARPNESS.
 * False for other kinds: their results are those of PIL images. */
bool fm_augment_tensor(fm_augment *augment, const fm_op *op);

#endif
