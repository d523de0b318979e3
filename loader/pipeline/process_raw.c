/* The processor for files of raw values. */
#define _GNU_SOURCE
#include "pipeline/raw_files.h"
#include "pipeline/state.h"

static int open_tools(fm_worker *worker, fm_error *error) {
    (void)worker, (void)error;
    return FM_OK;
}

static int process(fm_worker *worker, fm_task *task, uint8_t *memory, fm_stage_timer *timer,
                   fm_error *error) {
    const fm_loader *const loader = worker->loader;
    const uint8_t *const bytes = task->data ? task->data : task->read.bytes;
    const size_t n_bytes = task->data ? task->data_bytes : task->read.n_bytes;
    uint8_t *const out = memory + task->position * loader->layout.sample_bytes;
    if (n_bytes == 0) return fm_error_set(error, FM_ERR_FORMAT, "the file is empty");
    const int status =
        fm_raw_copy(&loader->config.raw, bytes, n_bytes, out, loader->stream_copy, error);
    fm_timer_end(timer, &timer->transform_ns);
    return status;
}

const fm_processor fm_process_raw = {NULL, open_tools, process};
