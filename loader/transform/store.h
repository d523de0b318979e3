/*
 * The last step of a sample: a row of pixels gets its values, its type and its layout and goes
 * straight to its place in the batch, which is written once. The scalar versions define the
 * results; the others give the same bytes.
 */
#ifndef FM_TRANSFORM_STORE_H
#define FM_TRANSFORM_STORE_H

#include "base/cpu.h"
#include "transform/plan.h"

/* 1/255 as a sum of two floats. A byte's product with the first is exact. */
#define FM_STEPS_255TH_HIGH 0x1.01p-8f
#define FM_STEPS_255TH_LOW 0x1.010102p-24f

/*
 * Float32 arithmetic that gives a table's values, by channel: (value / 255 - mean) * (scale_high +
 * scale_low), where the scale is 1/std in two floats.
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
 * One row of n_px pixels (R G B) to `out`, the first one's place in the sample. Writes exactly the
 * pixels; may read up to FM_ROW_SLACK bytes past the input row's end.
 */
typedef void fm_store_row(const fm_store *store, void *out, const uint8_t *in, int32_t n_px);

/*
 * n bytes of one channel, next to each other, to as many values next to each other. Reads exactly
 * these bytes. Where a plan has one channel (grey), `row` takes the red of three equal bytes.
 */
typedef void fm_store_plane(const fm_store *store, int channel, void *out, const uint8_t *in,
                            size_t n);

struct fm_store {
    fm_store_row *row;
    fm_store_plane *one_channel;
    const fm_plan *plan;
    size_t plane;    /* FM_NCHW: values from one channel to the next */
    size_t px_bytes; /* from one pixel to the next in a row */
    fm_steps steps;  /* where `row` computes in place of the table */
    fm_line line;    /* the same for 16-bit types */
};

/*
 * Picks the fastest version for a plan in a tier that the CPU has. Arithmetic, which AVX2 brings,
 * is taken only where it gives all 768 values of the plan's table, bit for bit; to find it may take
 * a millisecond. The plan stays the caller's and must outlive the store.
 */
void fm_store_init(fm_store *store, const fm_plan *plan, fm_cpu_tier tier);

/* The way to copy n bytes past the cache in a tier, complete when it returns; or, where there is
 * none, through it. */
typedef void fm_store_copy(void *out, const void *in, size_t n);
fm_store_copy *fm_store_stream(fm_cpu_tier tier);

/*
 * After some rows, on the thread that stored them and before another one may read or write there:
 * they may have gone past the cache (fm_plan.stream), where no lock orders them.
 */
void fm_store_drain(const fm_store *store);

#endif
