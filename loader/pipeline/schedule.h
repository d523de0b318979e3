/*
 * The queue of pending batches: which task a decode thread works on next, and when a batch is
 * ready.
 *
 * Of a batch's decodable tasks the largest files are dequeued first. They take longest: with a
 * large one at the end, all threads but one would have nothing left to do for this batch.
 */
#ifndef FM_PIPELINE_SCHEDULE_H
#define FM_PIPELINE_SCHEDULE_H

#include "pipeline/state.h"

/* Consumer. Resets a batch that is not in the queue yet, except its tasks. */
void fm_pending_begin(fm_loader *loader, fm_pending *batch);

/* Locked. Adds a task to its batch's decodable tasks. n_bytes: its file's size. */
void fm_pending_push(fm_pending *batch, fm_task *task, uint64_t n_bytes);
/* Locked. Removes and returns one of the largest decodable tasks; NULL if there is none. */
fm_task *fm_pending_pop(fm_pending *batch);

/* Locked. Gives free buffers to the oldest batches that have none, and wakes decode threads if
 * these batches have decodable tasks. */
void fm_schedule_assign_buffers(fm_loader *loader);
/* Locked. A task has its bytes: it becomes decodable, and a decode thread is woken. */
void fm_schedule_decodable(fm_loader *loader, fm_task *task);
/* Locked. All tasks of a batch become decodable. */
void fm_schedule_all_decodable(fm_loader *loader, fm_pending *batch);
/* Locked. Removes and returns the task to work on next; NULL if there is none. */
fm_task *fm_schedule_dequeue(fm_loader *loader);
/* Locked. A task's samples are made, or rejected if it has a cause. */
void fm_schedule_finish(fm_loader *loader, fm_task *task);
/* Not locked. Rejects a task before it was decodable: sets its cause. fm_schedule_finish() follows.
 */
void fm_schedule_reject(const fm_loader *loader, fm_task *task, int sys_errno);
/* Locked. Removes the oldest batch, which was delivered or dropped. */
void fm_schedule_pop(fm_loader *loader);
/* Locked. Wakes fm_loader_stop() if neither reader nor decode threads have a task. */
void fm_schedule_signal_idle(fm_loader *loader);

/* Locked. When the batch became ready to be handed out. */
static inline uint64_t fm_pending_ready_ns(const fm_pending *batch) {
    return batch->copy_queued_ns > batch->ready_ns ? batch->copy_queued_ns : batch->ready_ns;
}

/* Locked. Whether all of the batch's samples are in its buffer. */
static inline bool fm_pending_is_complete(const fm_pending *batch) {
    return batch->buffer && batch->buffer->state == FM_BUFFER_READY && batch->n_rejected == 0;
}

#endif
