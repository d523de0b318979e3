/* Sizes and scratch for samples that are rows of arrays in memory. */
#ifndef FM_PIPELINE_ROWS_H
#define FM_PIPELINE_ROWS_H

#include "base/error.h"
#include "source/source_array.h"
#include "transform/kernels.h"
#include "transform/resample.h"
#include "transform/store.h"

struct fm_loader;
struct fm_task;

/* The part of a batch's memory that holds one array's rows. */
typedef struct fm_section {
    size_t offset;    /* bytes from the start of the memory */
    size_t row_bytes; /* of one row in the batch */
} fm_section;

/* Returns the bytes of a full batch, and fills sections[arrays.n] unless it is NULL. The arrays
 * must be resolved (fm_array_resolve()). */
size_t fm_rows_layout(const fm_config *config, const fm_plan *plan, fm_section *sections);

/* Samples of one task, at least 1. */
uint32_t fm_rows_per_task(const fm_config *config, const fm_plan *plan);

/* Memory of a decode thread for rows that hold images. All zero if it has none. */
typedef struct fm_rows_scratch {
    fm_resample *resample; /* for images that are resized or padded */
    fm_store store;
    fm_kernels kernels;
    uint8_t *px[2]; /* two images, each of R G B pixels and FM_ROW_SLACK bytes */
} fm_rows_scratch;

int fm_rows_scratch_open(fm_rows_scratch *scratch, const fm_plan *plan, fm_mem_counter *counter,
                         fm_error *error);
/* Bytes of both images. */
uint64_t fm_rows_scratch_bytes(const fm_transform *transform);
void fm_rows_scratch_close(fm_rows_scratch *scratch);

/* Whether copying n_samples rows takes less time than waking a decode thread. */
bool fm_rows_are_few(const struct fm_loader *loader, uint32_t n_samples);
/* Copies the rows of a task's samples to their places in a batch's memory. Any thread. */
void fm_rows_copy(const struct fm_loader *loader, const struct fm_task *task, uint8_t *memory);

#endif
