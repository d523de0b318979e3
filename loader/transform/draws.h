/* Sampling the random parameters of ops, as torchvision does, but from the generator of base/rng.h.
 * The crops are in geometry.c. Pure functions, for any thread. */
#ifndef FM_TRANSFORM_DRAWS_H
#define FM_TRANSFORM_DRAWS_H

#include "base/rng.h"
#include "feedmill/feedmill.h"
#include "transform/numbers.h"

/* fm_draw.values[] of a RANDOM_ERASING: the first number of the first box's channels. */
enum { FM_DRAWS_COLORS = 16 };

/* fm_op.values[] of a plan's RANDOM_ERASING: the image's channels, which the plan sets. */
enum { FM_DRAWS_CHANNELS = 8 };

/*
 * torch's float32 Tensor.uniform_(low, high), whose kernels for AVX2 and newer round once, as
 * fmaf() does on every machine.
 */
float fm_draws_uniform(fm_rng *rng, float low, float high);

/* Samples the parameters of an op for an image of width x height. Sets all of *draw but its kind.
 */
void fm_draws_make(const fm_op *op, fm_rng *rng, int32_t width, int32_t height, fm_draw *draw);

#endif
