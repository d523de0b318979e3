/*
 * Records of steps and samples, and sums of their waits. A step is the caller's wait for one batch
 * and its own work until the next request.
 */
#ifndef FM_PIPELINE_RECORD_H
#define FM_PIPELINE_RECORD_H

#include "pipeline/state.h"

/* The caller of each function holds the ring's lock. */

/* Starts the wait of a step for its batch, unless it has started already. */
void fm_record_request(fm_loader *loader);
/* Copies what the record of a step needs from a batch whose tasks are finished. */
fm_delivery fm_record_delivery(const fm_pending *batch);
/* Counts a batch that the consumer got, or the error in place of it. */
void fm_record_received(fm_loader *loader, const fm_delivery *delivery);
/* Records a step that got its batch. ready_ns: when the batch became ready to be handed out or,
 * with fm_epoch.ahead, when the caller's own work on it was done. */
void fm_record_step(fm_loader *loader, const fm_delivery *delivery, uint64_t ready_ns);
/* Adds a wait that ended without a batch to the sums, without recording a step. `delivery` is that
 * of the batch that failed; NULL after a timeout or an interrupt. */
void fm_record_failed_wait(fm_loader *loader, const fm_delivery *delivery, uint64_t until_ns);
/* Records a finished or rejected task. */
void fm_record_sample(fm_loader *loader, const fm_task *task);

#endif
