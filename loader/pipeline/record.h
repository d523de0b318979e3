/*
 * Records of steps and samples, and sums of their waits. A step is the caller's wait for one batch
 * and its own work until the next request.
 */
#ifndef FM_PIPELINE_RECORD_H
#define FM_PIPELINE_RECORD_H

#include "pipeline/state.h"

/* All locked. */

/* Starts the clock of the wait for one batch, unless it runs already. */
void fm_record_request(fm_loader *loader);
/* What the record of a step needs to know of a batch whose tasks are finished. */
fm_delivery fm_record_delivery(const fm_pending *batch);
/* Counts a batch that the consumer got, or an error in its place. */
void fm_record_taken(fm_loader *loader, const fm_delivery *delivery);
/* A step got its batch. ready_ns: when the batch could be handed out or, with fm_epoch.ahead, when
 * the caller's own work on it was done. */
void fm_record_step(fm_loader *loader, const fm_delivery *delivery, uint64_t ready_ns);
/* A wait brought no batch: an error in the place of the one of `delivery`, or, with NULL, a
 * time-out or an interrupt. It is part of the sums, but no step. */
void fm_record_failed_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns);
/* A task is finished or rejected. */
void fm_record_sample(fm_loader *loader, const fm_task *task);

#endif
