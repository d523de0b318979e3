/*
 * Sampling the random parameters of ops that draw from Python's `random`: those of timm, and of
 * transforms that a script defines itself. The results are those of the same steps in Python, which
 * computes in double and uses the C library's log() and exp(), as these functions do.
 */
#ifndef FM_TRANSFORM_DRAWS_PYTHON_H
#define FM_TRANSFORM_DRAWS_PYTHON_H

#include <stdbool.h>

#include "base/rng.h"
#include "base/streams.h"
#include "base/types.h"
#include "feedmill/feedmill.h"

/* timm's RandomResizedCropAndInterpolation.get_params(). Returns false if ten attempts have failed:
 * the crop is the central one then. */
bool fm_draws_python_crop(const fm_op *op, fm_mt19937 *generator, int32_t width, int32_t height,
                          fm_box *crop);

/* EfficientNet's random crop, as ResNeSt's ERandomCrop draws it; also without streams. Returns
 * false if all attempts have failed, or the crop would be the whole image: it is the central one
 * then. */
bool fm_draws_efficient_crop(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                             fm_box *crop);

/* The factors of both sides of timm's ResizeKeepRatio.get_params(). */
void fm_draws_python_factors(const fm_op *op, fm_mt19937 *generator, double *factor_x,
                             double *factor_y);

/* random.choice() of the filters of an op that resizes, n of which are listed; 0: none is drawn.
 * Returns whether it is the second one. */
bool fm_draws_python_filter(fm_mt19937 *generator, uint32_t n);

/* The boxes of timm's RandomErasing._erase(); returns their number. */
uint32_t fm_draws_python_boxes(const fm_op *op, fm_mt19937 *generator, int32_t width,
                               int32_t height, fm_box boxes[FM_MAX_ERASED]);

/* Whether a RANDOM_APPLY with a condition on a number of Python or NumPy is applied. */
bool fm_draws_python_condition(const fm_op *op, fm_streams *streams);

/* The radius of a RANDOM_BLUR. */
double fm_draws_python_radius(const fm_op *op, fm_streams *streams);

/* The number by which a RANDOM_CHOICE finds its child: that with the first cumulative probability
 * above it. */
double fm_draws_python_place(const fm_op *op, fm_streams *streams);

#endif
