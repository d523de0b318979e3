/* Samples that are rows of arrays in memory: sizes, and scratch for rows that hold images. */
#ifndef FM_PIPELINE_ROWS_H
#define FM_PIPELINE_ROWS_H

#include "base/error.h"
#include "source/source_array.h"
#include "transform/kernels.h"
#include "transform/resample.h"
#include "transform/store.h"

struct fm_loader;
struct fm_task;

/* Where an array's rows lie in a batch's memory. */
typedef struct fm_section {
    size_t offset;    /* bytes from the memory's begin */
    size_t row_bytes; /* of what the batch holds */
} fm_section;

/* Bytes of a full batch; sets sections[arrays.n] unless it is NULL. The arrays are resolved. */
size_t fm_rows_layout(const fm_config *config, const fm_plan *plan, fm_section *sections);

/* Samples of one task, at least 1. */
uint32_t fm_rows_per_task(const fm_config *config, const fm_plan *plan);

/* What a decode thread needs for rows that hold images. All zero: nothing. */
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

/* Whether a batch of so many samples is copied faster than a decode thread is woken. */
bool fm_rows_are_few(const struct fm_loader *loader, uint32_t n_samples);
/* Copies the rows of a task's samples to their places in a batch's memory. Any thread. */
void fm_rows_copy(const struct fm_loader *loader, const struct fm_task *task, uint8_t *memory);

#endif
