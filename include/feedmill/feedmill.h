/*
 * feedmill - a native data loader for image training.
 *
 * A loader reads image files, decodes and transforms them on its own threads, and delivers
 * batches in the order in which they were submitted:
 *
 *     fm_config config;
 *     fm_config_init(&config);
 *     config.source = fm_folder_source(folder);
 *     config.transform.ops = ops; config.transform.n_ops = 2;
 *     fm_loader *loader = NULL;
 *     fm_error error;
 *     if (fm_loader_open(&loader, &config, &error)) die(error.message);
 *     fm_epoch epoch = {.order = order, .n_order = n, .seed = 7, .number = 0};
 *     if (fm_loader_start(loader, &epoch, &error)) die(error.message);
 *     fm_batch batch;
 *     int status;
 *     while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
 *         train(batch.images, batch.labels, batch.n);
 *         fm_batch_release(&batch);
 *     }
 *     if (status != FM_END) die(error.message);
 *     fm_loader_close(&loader);
 *
 * Status: functions that can fail return 0 (FM_OK), a positive status that is not an error (FM_END,
 * FM_AGAIN, FM_FALLBACK), or a negative error. `error` may be NULL; otherwise every failure fills
 * it with a message that says what failed, where, and what to do.
 *
 * Threads: one thread at a time may use a loader; it is called the consumer below. Any thread may
 * call fm_batch_release(), at any time, also after fm_loader_close(), and fm_loader_stats() while
 * the loader is open.
 *
 * Fork: a child process must not use a loader of its parent. Calls there return FM_ERR_FORKED;
 * fm_batch_release() and fm_loader_close() do nothing there. Borrowed batches stay readable.
 */
#ifndef FEEDMILL_FEEDMILL_H
#define FEEDMILL_FEEDMILL_H

#include "feedmill/configuration.h"
#include "feedmill/diagnostics.h"
#include "feedmill/fallback.h"
#include "feedmill/imread.h"
#include "feedmill/loader.h"
#include "feedmill/source.h"
#include "feedmill/stats.h"
#include "feedmill/status.h"
#include "feedmill/streams.h"
#include "feedmill/transform.h"
#include "feedmill/version.h"

#endif
