/* RandomErasing: overwrites boxes of a sample in the batch. Pure, for any thread. */
#ifndef FM_PIPELINE_ERASING_H
#define FM_PIPELINE_ERASING_H

#include "feedmill/feedmill.h"
#include "transform/plan.h"

/*
 * Erases what was drawn for the last op of a plan, a RANDOM_ERASING.
 *
 * before_pixels: fm_draw_key.before_pixels, used up: the random numbers of pixels come from these
 *     streams; NULL: from fm_noise().
 * out: the sample's place in the batch, with all of its values.
 */
void fm_erase(const fm_plan *plan, const fm_draw *draw, fm_streams *before_pixels, void *out);

#endif
