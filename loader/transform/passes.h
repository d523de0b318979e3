/*
 * The weights of a resize's pass as its kernel reads them, kept for the next samples of the same
 * sizes: a Resize has few, where a RandomResizedCrop draws others each time.
 *
 * One thread at a time.
 */
#ifndef FM_TRANSFORM_PASSES_H
#define FM_TRANSFORM_PASSES_H

#include <stdbool.h>

#include "transform/coeffs.h"

/* Images lie down or stand, and columns are mirrored or not. */
#define FM_PASSES_KEPT 4

typedef struct fm_pass_key {
    int32_t in_size, out_size; /* pixels, 1 to 65,535 */
    int32_t first, n;          /* the outputs that are needed */
    bool mirror_input;         /* it is stored mirrored */
    bool mirror_output;        /* the outputs come in mirrored order */
} fm_pass_key;

typedef struct fm_pass {
    fm_coeffs coeffs;      /* their taps count from input `begin` on */
    int32_t begin, length; /* the input that the outputs read, as it is stored */
    fm_pass_key key;
    uint64_t found; /* when it was last asked for, by fm_passes.clock; 0: it holds nothing */
} fm_pass;

typedef struct fm_passes {
    fm_filter filter;
    bool evens_taps; /* fm_coeffs_even_taps() */
    int (*prepare)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error);
    fm_mem_counter *counter;
    int32_t n_kept;
    uint64_t clock;
    fm_pass kept[FM_PASSES_KEPT];
} fm_passes;

/*
 * Fills a zeroed struct. From an input of up to reserve_px to out_size outputs no pass will
 * allocate. `prepare` is fm_kernels.prepare_columns or .prepare_rows; n_kept, 1 to FM_PASSES_KEPT,
 * says how many passes stay. FM_OK or FM_ERR_NOMEM; after that only fini is allowed.
 */
int fm_passes_init(fm_passes *passes, fm_filter filter, bool evens_taps,
                   int (*prepare)(fm_coeffs *, fm_mem_counter *, fm_error *), int32_t n_kept,
                   int32_t reserve_px, int32_t out_size, fm_mem_counter *counter, fm_error *error);

/*
 * The pass of a key: one that is kept, or it is computed in place of the one not asked for longest.
 * *out is valid until the next call. FM_OK or FM_ERR_NOMEM.
 */
int fm_passes_get(fm_passes *passes, const fm_pass_key *key, const fm_pass **out, fm_error *error);

/* Frees all and clears the struct. */
void fm_passes_fini(fm_passes *passes);

#endif
