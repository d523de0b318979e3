/* Decode threads. */
#ifndef FM_PIPELINE_WORKER_H
#define FM_PIPELINE_WORKER_H

#include "pipeline/state.h"

/* Opens the processors' tools and starts config.n_threads decode threads. */
int fm_workers_open(fm_loader *loader, fm_error *error);
/* Ends the threads, which the queue's is_stopping has told to. */
void fm_workers_join(fm_loader *loader);
/* Frees them. Nothing reads for them any more. Accepts a loader without threads. */
void fm_workers_close(fm_loader *loader);

#endif
