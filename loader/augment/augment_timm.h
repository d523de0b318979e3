/* timm's automatic augmentations. */
#ifndef FM_AUGMENT_AUGMENT_TIMM_H
#define FM_AUGMENT_AUGMENT_TIMM_H

#include "augment/augment.h"

/*
 * Applies a TIMM_RAND_AUGMENT or TIMM_AUTO_AUGMENT to the current image, which must have three
 * channels. FM_ERR_LIMIT if it is too wide to blur, or posterized to less than one bit.
 */
int fm_augment_timm(fm_augment *augment, const fm_op *op, const fm_draw *draw, fm_error *error);

#endif
