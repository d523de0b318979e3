/* Decode threads. */
#ifndef FM_PIPELINE_WORKER_H
#define FM_PIPELINE_WORKER_H

#include "pipeline/state.h"

/* Starts config.n_threads decode threads, each with what loader->processor opens for it. */
int fm_workers_open(fm_loader *loader, fm_error *error);
/* Waits until the threads end. The caller has set queue.is_stopping. */
void fm_workers_join(fm_loader *loader);
/* Frees the threads' memory, after the join and after the reader was closed. Accepts a loader
 * without threads. */
void fm_workers_close(fm_loader *loader);

#endif
