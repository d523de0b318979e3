/* Submitting batches: by the caller, or from the epoch's order. */
#ifndef FM_PIPELINE_SUBMIT_H
#define FM_PIPELINE_SUBMIT_H

#include "pipeline/state.h"

/* Consumer. Submits batches of the epoch's order while the queue has capacity; finishes the epoch
 * at the order's end. After an error of the source the next call tries the same batch again. */
int fm_submit_order(fm_loader *loader, fm_error *error);

/* The reader's on_done, for the file of a submitted sample; user: the fm_loader. */
void fm_submit_on_read(void *user, fm_read *read);

#endif
