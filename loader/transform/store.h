/*
 * Storing rows of pixels into the batch, with the plan's values, dtype and layout. Each byte of the
 * batch is written once. The scalar versions define the results; the others give the same bytes.
 * After fm_store_init() a store is read-only and shared by all threads.
 */
#ifndef FM_TRANSFORM_STORE_H
#define FM_TRANSFORM_STORE_H

#include "base/cpu.h"
#include "transform/plan.h"

/* 1/255 as a sum of two floats. A byte's product with the first is exact. */
#define FM_STEPS_255TH_HIGH 0x1.01p-8f
#define FM_STEPS_255TH_LOW 0x1.010102p-24f

/*
 * Float32 arithmetic that equals a value table, by channel: (value / 255 - mean) * (scale_high +
 * scale_low), where the scale is 1/std as a sum of two floats.
 */
typedef struct fm_steps {
    float mean[3], scale_high[3], scale_low[3];
} fm_steps;

/* The same for 16-bit types: value * slope + offset, then rounded. */
typedef struct fm_line {
    float slope[3], offset[3];
} fm_line;

typedef struct fm_store fm_store;

/*
 * Stores n_px pixels (R G B) of a row to `out`, the first pixel's place in the sample. Writes
 * exactly these pixels; may read up to FM_ROW_SLACK bytes past the end of the input.
 */
typedef void fm_store_row(const fm_store *store, void *out, const uint8_t *in, int32_t n_px);

/*
 * Stores n contiguous bytes of one channel as n contiguous values. Reads exactly these bytes. (With
 * a plan of one channel (grayscale), `row` stores the first of three equal bytes.)
 */
typedef void fm_store_plane(const fm_store *store, int channel, void *out, const uint8_t *in,
                            size_t n);

struct fm_store {
    fm_store_row *row;
    fm_store_plane *one_channel;
    const fm_plan *plan;
    size_t plane;    /* FM_NCHW: values from one channel to the next */
    size_t px_bytes; /* from one pixel to the next in a row */
    fm_steps steps;  /* used if `row` computes instead of reading the table */
    fm_line line;    /* the same for 16-bit types */
};

/*
 * Selects the fastest version for a plan and a tier that the CPU has. AVX2 computes the values
 * instead of reading the table, if the results equal all 768 values of the table bit for bit;
 * finding the constants may take a millisecond. The plan belongs to the caller and must outlive the
 * store.
 */
void fm_store_init(fm_store *store, const fm_plan *plan, fm_cpu_tier tier);

/* Returns the tier's non-temporal copy, which bypasses the cache and is complete when it returns,
 * or memcpy() if the tier has none. */
typedef void fm_store_copy(void *out, const void *in, size_t n);
fm_store_copy *fm_store_stream(fm_cpu_tier tier);

/*
 * Called by the thread that stored rows, before another thread may access them: with
 * fm_plan.stream, stores may bypass the cache, and locks do not order such stores.
 */
void fm_store_drain(const fm_store *store);

#endif
