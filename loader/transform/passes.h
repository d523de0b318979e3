/*
 * A small cache of the weights of resize passes, prepared for their kernel. Resize meets few sizes,
 * so the next samples often need the same weights; RandomResizedCrop has other sizes each time.
 *
 * The caller owns the struct; one thread at a time.
 */
#ifndef FM_TRANSFORM_PASSES_H
#define FM_TRANSFORM_PASSES_H

#include <stdbool.h>

#include "transform/coeffs.h"

/* Landscape or portrait, mirrored or not. */
#define FM_PASSES_KEPT 4

typedef struct fm_pass_key {
    fm_filter filter;
    int32_t in_size, out_size; /* pixels, 1 to 65,535 */
    int32_t first, n;          /* the outputs that are needed */
    float span[2];             /* the part of the input that is resized; 0, 0: all of it */
    bool short_weights;        /* fm_coeffs.short_weights */
    bool floats;               /* weights of float_resize.h, whatever the filter */
    bool mirror_input;         /* the input is stored mirrored */
    bool mirror_output;        /* the outputs are needed in mirrored order */
} fm_pass_key;

typedef struct fm_pass {
    fm_coeffs coeffs;      /* taps are relative to input `begin` */
    int32_t begin, length; /* the range of the stored input that the outputs read */
    fm_pass_key key;
    uint64_t found; /* fm_passes.clock at the last use; 0: empty */
} fm_pass;

typedef struct fm_passes {
    bool evens_taps; /* call fm_coeffs_even_taps() */
    int (*prepare)(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error);
    fm_mem_counter *counter;
    int32_t n_kept;
    uint64_t clock;
    fm_pass kept[FM_PASSES_KEPT];
} fm_passes;

/*
 * Initializes a zeroed struct. Passes from inputs of up to reserve_px to out_size outputs by
 * `filter`, or one of a smaller support, will not allocate. `prepare` is fm_kernels.prepare_columns
 * or .prepare_rows; n_kept, 1 to FM_PASSES_KEPT, is the number of passes that are cached. FM_OK or
 * FM_ERR_NOMEM, after which only fm_passes_fini() may be called.
 */
int fm_passes_init(fm_passes *passes, fm_filter filter, bool evens_taps,
                   int (*prepare)(fm_coeffs *, fm_mem_counter *, fm_error *), int32_t n_kept,
                   int32_t reserve_px, int32_t out_size, fm_mem_counter *counter, fm_error *error);

/*
 * Returns the pass of a key, from the cache or computed in place of the least recently used one.
 * *out is valid until the next call. FM_OK or FM_ERR_NOMEM.
 */
int fm_passes_get(fm_passes *passes, const fm_pass_key *key, const fm_pass **out, fm_error *error);

/* Frees all and clears the struct. */
void fm_passes_fini(fm_passes *passes);

#endif
