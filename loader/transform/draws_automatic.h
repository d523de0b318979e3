/* Sampling the parameters of torchvision's automatic augmentations: TrivialAugmentWide, RandAugment
 * and AutoAugment. Pure functions, for any thread. */
#ifndef FM_TRANSFORM_DRAWS_AUTOMATIC_H
#define FM_TRANSFORM_DRAWS_AUTOMATIC_H

#include "base/rng.h"
#include "feedmill/feedmill.h"

/* Samples the parameters of one of these ops for an image of width x height. */
void fm_draws_automatic(const fm_op *op, fm_rng *rng, int32_t width, int32_t height, fm_draw *draw);

#endif
