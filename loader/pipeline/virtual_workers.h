/*
 * Random parameters as torch's DataLoader draws them, in an epoch with fm_epoch.streams.
 *
 * torch's worker processes have generators of their own, and each draws for the samples of its
 * batches one after the other. A virtual worker stands for such a process: it has the generators
 * and nothing else. Decode threads decode in any order; the parameters are drawn before, in the
 * order in which the virtual worker's batches were submitted. Drawing needs an image's size, so a
 * sample passes two more states than those in state.h:
 *
 *     reading -> measurable -> measured -> decodable -> active -> finished
 *
 *     measurable: it has its bytes; a decode thread will read the image's header
 *     measured:   its size is known; it waits until all samples before it are drawn
 *
 * Rows of arrays are measured from the start, and so are images with a restart index: what is to be
 * read of them depends on what is drawn, so they are drawn before they are read if all samples
 * before them are. An index that gives another size than the image's header is an error of the
 * sample. A sample whose bytes or header can't be read is
 * finished with a cause before it is measured. It holds up its virtual worker until the caller has
 * found out its size, by fm_loader_fallback_draws().
 *
 * A decode thread draws once more what was drawn for its sample, from a copy of the generators. Of
 * these one copy is kept for every FM_SAMPLES_PER_COPY samples of a batch.
 */
#ifndef FM_PIPELINE_VIRTUAL_WORKERS_H
#define FM_PIPELINE_VIRTUAL_WORKERS_H

#include "feedmill/feedmill.h"
#include "pipeline/state.h"

#define FM_SAMPLES_PER_COPY 8u

/* FM_OK if the epoch's streams can be used with this loader. */
int fm_virtual_workers_check(const fm_loader *loader, const fm_epoch *epoch, fm_error *error);
/* Not locked; no epoch runs. Begins an epoch: copies the streams, if there are any. */
int fm_virtual_workers_start(fm_loader *loader, const fm_epoch *epoch, fm_error *error);
void fm_virtual_workers_close(fm_loader *loader);

/*
 * Consumer. The key of the parameters of a view of a sample that was drawn before it was read, as
 * fm_virtual_workers_key(). Its streams are good until the next call.
 */
fm_draw_key fm_virtual_workers_key_ahead(fm_loader *loader, const fm_task *task, size_t view);

/* FM_OK if an image has the size for which its parameters were drawn, or there are no streams. */
int fm_virtual_workers_check_size(const fm_loader *loader, const fm_task *task,
                                  const fm_image_info *info, fm_error *error);

/* Consumer. Resets a batch that is not in the queue yet: it belongs to the virtual worker that was
 * chosen last. */
void fm_virtual_workers_begin(const fm_loader *loader, fm_pending *batch);

/* Locked. After fm_schedule_finish() of a task that was rejected before it was measured: it may
 * hold up its virtual worker. Without streams this does nothing. */
void fm_virtual_workers_rejected(fm_loader *loader, const fm_task *task);

/*
 * Locked. Whether a batch, which has a buffer, can be handed out, or its first rejected sample. A
 * sample that holds up its virtual worker waits for the samples before it, of which one may turn
 * out to be damaged: torch's worker would not get as far as the one that is held.
 */
bool fm_virtual_workers_is_ready(const fm_loader *loader, const fm_pending *batch);

/* Locked. Draws for all samples of a virtual worker whose turn has come, and makes them decodable.
 */
void fm_virtual_workers_advance(fm_loader *loader, uint32_t number);

/* Locked. The bytes of a task with one sample are in memory: makes it decodable, now or once it is
 * drawn. */
void fm_virtual_workers_has_bytes(fm_loader *loader, fm_task *task);

/* Locked. A batch was delivered. */
void fm_virtual_workers_delivered(fm_loader *loader, const fm_pending *batch);

/*
 * The key of the parameters of a view of the sample at a position of a batch. `key` gives the
 * members that count without streams. With streams, their state before these parameters were drawn
 * is put into the thread's own copy, which is used up by drawing once. Decode threads, without the
 * lock, for samples that were drawn.
 */
fm_draw_key fm_virtual_workers_key(fm_worker *thread, const fm_pending *batch, uint32_t position,
                                   size_t view, fm_draw_key key);

/* The key of the parameters of a view of a task with one sample. */
static inline fm_draw_key fm_task_key(fm_worker *thread, const fm_task *task, size_t view) {
    return fm_virtual_workers_key(thread, task->batch, task->position, view,
                                  fm_view_key(thread->loader, task, view));
}

/* Whether samples must be drawn before they are decoded. Fixed while an epoch runs. */
static inline bool fm_has_streams(const fm_loader *loader) { return loader->virtual.n > 0; }

/* Whether a task that a decode thread has dequeued has yet to be measured. */
static inline bool fm_must_measure(const fm_loader *loader, const fm_task *task) {
    return fm_has_streams(loader) && !loader->rows.arrays && task->width == 0;
}

#endif
