/*
 * The weights of one pass of Pillow's resize, for a range of the pass's outputs: those of
 * precompute_coeffs() and normalize_coeffs_8bpc() of its Resample.c. FM_FILTER_NEAREST, which
 * Pillow does elsewhere (ImagingScaleAffine() in Geometry.c), has one tap with all the weight.
 *
 * Output i is (2^21 + sum of weights[i * stride + t] * input[first[i] + t]) >> 22, for t below
 * n_taps[i], clipped to 0 and 255. An output's negative weights add up to more than -0.3 * 2^22 and
 * its positive ones to less than 1.3 * 2^22, so that no order of adding leaves 32 bits.
 */
#ifndef FM_TRANSFORM_COEFFS_H
#define FM_TRANSFORM_COEFFS_H

#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "feedmill/feedmill.h"

#define FM_COEFFS_BITS 22

typedef struct fm_coeffs {
    int32_t n;        /* outputs */
    int32_t stride;   /* weights kept for each output, a multiple of 4 */
    int32_t max_taps; /* the largest of n_taps */
    bool clips;       /* a sum may round to less than 0 or more than 255 */
    int32_t *first;   /* by output; neither it nor first + n_taps ever falls, as computed */
    int32_t *n_taps;  /* by output, 1 to stride */
    int32_t *weights; /* by output and tap; 0 behind an output's taps, up to the stride */
    double *scratch;  /* some outputs' weights before rounding */
    bool has_table;   /* `table` holds what a kernel's prepare made of the weights */
    uint8_t *table;
    /* Capacities of the arrays. */
    size_t n_outputs_held, n_weights_held, n_scratch_held, n_table_bytes_held;
} fm_coeffs;

/*
 * The outputs out_first to out_first + n_out - 1 of a pass from in_size to out_size pixels. Sizes
 * are 1 to 65,535. Starts from a zeroed struct or a used one, whose arrays grow where they must.
 * FM_OK or FM_ERR_NOMEM; after that only computing again and fini are allowed.
 */
int fm_coeffs_compute(fm_coeffs *coeffs, fm_filter filter, int32_t in_size, int32_t out_size,
                      int32_t out_first, int32_t n_out, fm_mem_counter *counter, fm_error *error);

/* Makes a zeroed struct's arrays as large as those of another one. FM_OK or FM_ERR_NOMEM. */
int fm_coeffs_reserve_as(fm_coeffs *coeffs, const fm_coeffs *other, fm_mem_counter *counter,
                         fm_error *error);

/* The input that the outputs read, from *first to *end - 1. Only directly after computing. */
void fm_coeffs_span(const fm_coeffs *coeffs, int32_t *first, int32_t *end);

/* Moves all taps by -n inputs. */
void fm_coeffs_shift(fm_coeffs *coeffs, int32_t n);

/* For an input that is stored mirrored, in_size long. */
void fm_coeffs_mirror_input(fm_coeffs *coeffs, int32_t in_size);

/* For outputs in mirrored order. */
void fm_coeffs_mirror_output(fm_coeffs *coeffs);

/* Gives all outputs max_taps taps, with weights of 0 where they had fewer. The inputs of the taps
 * stay within 0 to in_size - 1, which must hold before. */
void fm_coeffs_even_taps(fm_coeffs *coeffs, int32_t in_size);

/* Room for n_bytes at coeffs->table, aligned to FM_MEM_ALIGN. FM_OK or FM_ERR_NOMEM. */
int fm_coeffs_reserve_table(fm_coeffs *coeffs, size_t n_bytes, fm_mem_counter *counter,
                            fm_error *error);

/* Frees the arrays and clears the struct. */
void fm_coeffs_fini(fm_coeffs *coeffs);

#endif
