/*
 * Samples that are rows of arrays in memory. They are claimed in runs: a task is several samples
 * of a batch that follow one another, so many that the hand-over costs little beside them.
 */
#ifndef FM_PIPELINE_ROWS_H
#define FM_PIPELINE_ROWS_H

#include "base/error.h"
#include "source/source_array.h"
#include "transform/kernels.h"
#include "transform/resample.h"
#include "transform/store.h"

/* Where an array's rows lie in a batch. */
typedef struct fm_section {
    size_t offset;    /* bytes from the batch's begin */
    size_t row_bytes; /* of what the batch holds */
} fm_section;

/* Bytes of a batch; sets sections[arrays.n] where it is not NULL. The arrays are resolved. */
size_t fm_rows_layout(const fm_config *config, const fm_plan *plan, fm_section *sections);

/* Samples of a run, at least 1. */
uint32_t fm_rows_per_run(const fm_config *config, const fm_plan *plan);

/* What a thread needs to make samples of images. All zero: nothing. */
typedef struct fm_rows_scratch {
    fm_resample *resample; /* where images are resized or padded */
    fm_store store;
    fm_kernels kernels;
    uint8_t *px[2]; /* an image each, R G B and FM_ROW_SLACK bytes */
} fm_rows_scratch;

int fm_rows_scratch_open(fm_rows_scratch *scratch, const fm_plan *plan, fm_mem_counter *counter,
                         fm_error *error);
/* Bytes of both images. */
uint64_t fm_rows_scratch_bytes(const fm_transform *transform);
void fm_rows_scratch_close(fm_rows_scratch *scratch);

#endif
