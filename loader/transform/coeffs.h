/*
 * The weights of one pass (horizontal or vertical) of Pillow's resize, for a range of its outputs.
 * They equal those of precompute_coeffs() and normalize_coeffs_8bpc() in Pillow's Resample.c. With
 * FM_FILTER_NEAREST, for which Pillow uses ImagingScaleAffine() in Geometry.c, each output has one
 * tap with the full weight.
 *
 * Output i is (2^21 + sum of weights[i * stride + t] * input[first[i] + t]) >> 22, for t below
 * n_taps[i], clipped to 0 to 255. An output's negative weights add up to more than -0.3 * 2^22 and
 * its positive ones to less than 1.3 * 2^22, so that sums fit 32 bits in any order.
 *
 * With short_weights, they are those of torch's resize of uint8 tensors by bilinear, bicubic or
 * Lanczos with antialias (_compute_index_ranges_int16_weights() in its UpSampleKernel.cpp): 16-bit
 * integers in units of 2^-bits, where bits, 13 to 22, is as large as all weights of the pass allow.
 * An output of torch's is (2^(bits - 1) + sum of weights * input) >> bits. That is the formula
 * above with 2^(22 - bits) times these weights, which are stored here.
 *
 * float_resize.h has other weights, of float32.
 *
 * The caller owns the struct; one thread at a time.
 */
#ifndef FM_TRANSFORM_COEFFS_H
#define FM_TRANSFORM_COEFFS_H

#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "feedmill/feedmill.h"

#define FM_COEFFS_BITS 22

typedef struct fm_coeffs {
    int32_t n;          /* outputs */
    int32_t stride;     /* weights stored per output, a multiple of 4 */
    int32_t max_taps;   /* the largest of n_taps */
    bool short_weights; /* torch's; to be set before computing */
    bool clips;         /* a sum may round to less than 0 or more than 255 */
    int32_t *first;     /* by output; after computing, first and first + n_taps never decrease */
    int32_t *n_taps;    /* by output, 1 to stride */
    union {
        int32_t *weights; /* by output and tap; 0 after an output's taps, up to the stride */
        float *floats;    /* float_resize.h's; undefined after an output's taps */
    };
    double *scratch; /* weights of some outputs before rounding */
    bool has_table;  /* a kernel's prepare function has filled `table` from the weights */
    uint8_t *table;
    /* Capacities of the arrays. */
    size_t n_outputs_held, n_weights_held, n_scratch_held, n_table_bytes_held;
} fm_coeffs;

/*
 * Computes the outputs out_first to out_first + n_out - 1 of a pass from in_size to out_size
 * pixels. Sizes are 1 to 65,535. *coeffs is zeroed, or used before; its arrays grow if needed.
 * FM_OK or FM_ERR_NOMEM, after which only fm_coeffs_compute() and fm_coeffs_fini() may be called.
 */
int fm_coeffs_compute(fm_coeffs *coeffs, fm_filter filter, int32_t in_size, int32_t out_size,
                      int32_t out_first, int32_t n_out, fm_mem_counter *counter, fm_error *error);

/*
 * The same for the part of the input from span[0] to span[1], as Pillow's resize(box=...) has it;
 * 0 <= span[0] < span[1] <= in_size. Taps may lie outside of the part. Not for FM_FILTER_NEAREST,
 * unless the part is the whole input.
 */
int fm_coeffs_compute_part(fm_coeffs *coeffs, fm_filter filter, int32_t in_size,
                           const float span[2], int32_t out_size, int32_t out_first, int32_t n_out,
                           fm_mem_counter *counter, fm_error *error);

/* Prepares the struct and its arrays for n_out outputs of up to `stride` taps, which are to be
 * computed. FM_OK or FM_ERR_NOMEM. */
int fm_coeffs_reserve(fm_coeffs *coeffs, int32_t n_out, int32_t stride, fm_mem_counter *counter,
                      fm_error *error);

/* The one of two filters with the larger support, which needs more memory. */
fm_filter fm_coeffs_wider(fm_filter a, fm_filter b);

/* Allocates a zeroed struct's arrays as large as those of another one. FM_OK or FM_ERR_NOMEM. */
int fm_coeffs_reserve_as(fm_coeffs *coeffs, const fm_coeffs *other, fm_mem_counter *counter,
                         fm_error *error);

/* The range of inputs that the outputs read, *first to *end - 1. Only directly after computing. */
void fm_coeffs_span(const fm_coeffs *coeffs, int32_t *first, int32_t *end);

/* Moves all taps by -n inputs. */
void fm_coeffs_shift(fm_coeffs *coeffs, int32_t n);

/* Changes the taps for an input of in_size pixels that is stored mirrored. */
void fm_coeffs_mirror_input(fm_coeffs *coeffs, int32_t in_size);

/* Mirrors the order of the outputs. */
void fm_coeffs_mirror_output(fm_coeffs *coeffs);

/* Gives all outputs max_taps taps, by adding weights of 0. The taps' inputs must be within 0 to
 * in_size - 1, and stay so. */
void fm_coeffs_even_taps(fm_coeffs *coeffs, int32_t in_size);

/* Makes sure that coeffs->table has n_bytes, aligned to FM_MEM_ALIGN. FM_OK or FM_ERR_NOMEM. */
int fm_coeffs_reserve_table(fm_coeffs *coeffs, size_t n_bytes, fm_mem_counter *counter,
                            fm_error *error);

/* Frees the arrays and clears the struct. */
void fm_coeffs_fini(fm_coeffs *coeffs);

#endif
