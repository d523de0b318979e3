/* Sampling the parameters of timm's automatic augmentations, as timm does, from the generator of
 * base/rng.h or from Python's and NumPy's. Pure functions, for any thread. */
#ifndef FM_TRANSFORM_DRAWS_TIMM_H
#define FM_TRANSFORM_DRAWS_TIMM_H

#include <stdbool.h>

#include "base/rng.h"
#include "feedmill/feedmill.h"

/* fm_op.values[12]: the first weight; the most operations that one op applies; the policies. */
enum { FM_DRAWS_TIMM_WEIGHTS = 12, FM_DRAWS_TIMM_MOST = 5, FM_DRAWS_TIMM_POLICIES = 5 };

/* fm_op.values[]: number of filters, number of listed operations, and the first of these. */
enum { FM_DRAWS_TIMM_FILTERS = 39, FM_DRAWS_TIMM_N_LISTED = 40, FM_DRAWS_TIMM_LISTED = 41 };

static inline bool fm_draws_is_timm(const fm_op *op) {
    return op->kind == FM_OP_TIMM_RAND_AUGMENT || op->kind == FM_OP_TIMM_AUTO_AUGMENT;
}

/* Whether an op with valid parameters may blur the image. */
bool fm_draws_timm_blurs(const fm_op *op);

/* Samples the parameters of an op, whose own parameters must be valid. */
void fm_draws_timm(const fm_op *op, fm_rng *rng, fm_draw *draw);

#endif
