/* Batches that the caller, or the epoch's order, submits. */
#ifndef FM_PIPELINE_SUBMIT_H
#define FM_PIPELINE_SUBMIT_H

#include "pipeline/state.h"

/* Consumer. Submits batches of the epoch's order while the queue has capacity; finishes the epoch
 * at the order's end. An error of the source: it is asked again at the next call. */
int fm_submit_order(fm_loader *loader, fm_error *error);

#endif
