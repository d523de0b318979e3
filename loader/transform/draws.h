/* The random draws of ops that are no matter of geometry: as torchvision makes them, out of our own
 * generator. */
#ifndef FM_TRANSFORM_DRAWS_H
#define FM_TRANSFORM_DRAWS_H

#include "base/rng.h"
#include "feedmill/feedmill.h"

/*
 * torch's float32 Tensor.uniform_(low, high), which its kernels for AVX2 and newer round once. So
 * does fmaf() on every machine.
 */
float fm_draws_uniform(fm_rng *rng, float low, float high);

/* Natural logarithm of x > 0, and e to the x for results within float32's range: the same on every
 * machine. */
double fm_draws_log(double x);
double fm_draws_exp(double x);

/* What an op that sees an image of width x height does to it. Fills *draw but for its kind. */
void fm_draws_make(const fm_op *op, fm_rng *rng, int32_t width, int32_t height, fm_draw *draw);

#endif
