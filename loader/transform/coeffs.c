#define _GNU_SOURCE
#include "transform/coeffs.h"

#include <math.h>
#include <string.h>

/* The next power of two, so that ever larger images lead to few allocations. */
static size_t round_up(size_t n) {
    size_t rounded = 256;
    while (rounded < n) rounded *= 2;
    return rounded;
}

static int reserve(fm_coeffs *coeffs, int32_t n_out, int32_t stride, fm_mem_counter *counter) {
    const size_t n_outputs = (size_t)n_out, n_weights = n_outputs * (size_t)stride;
    if (n_outputs > coeffs->n_outputs_held) {
        const size_t n_held = round_up(n_outputs);
        fm_mem_free(coeffs->first);
        fm_mem_free(coeffs->n_taps);
        coeffs->first = fm_mem_alloc(counter, n_held, sizeof(*coeffs->first));
        coeffs->n_taps = fm_mem_alloc(counter, n_held, sizeof(*coeffs->n_taps));
        coeffs->n_outputs_held = coeffs->first && coeffs->n_taps ? n_held : 0;
        if (!coeffs->n_outputs_held) return FM_ERR_NOMEM;
    }
    if (n_weights > coeffs->n_weights_held) {
        const size_t n_held = round_up(n_weights);
        fm_mem_free(coeffs->weights);
        coeffs->weights = fm_mem_alloc(counter, n_held, sizeof(*coeffs->weights));
        coeffs->n_weights_held = coeffs->weights ? n_held : 0;
        if (!coeffs->n_weights_held) return FM_ERR_NOMEM;
    }
    if ((size_t)stride > coeffs->n_scratch_held) {
        const size_t n_held = round_up((size_t)stride);
        fm_mem_free(coeffs->scratch);
        coeffs->scratch = fm_mem_alloc(counter, n_held, sizeof(*coeffs->scratch));
        coeffs->n_scratch_held = coeffs->scratch ? n_held : 0;
        if (!coeffs->n_scratch_held) return FM_ERR_NOMEM;
    }
    return FM_OK;
}

/*
 * With weights that are not negative, a sum that would round to 256 needs more taps than this: 255
 * halves of a unit each make up the missing 2^21.
 */
#define MOST_TAPS_UNCLIPPED 16448

/* Pillow's bilinear_filter(). */
static double triangle(double x) {
    const double distance = fabs(x);
    return distance < 1.0 ? 1.0 - distance : 0.0;
}

int fm_coeffs_compute(fm_coeffs *coeffs, int32_t in_size, int32_t out_size, int32_t out_first,
                      int32_t n_out, fm_mem_counter *counter, fm_error *error) {
    const double scale = (double)in_size / out_size;
    const double support = scale < 1.0 ? 1.0 : scale; /* of a filter that reaches from -1 to 1 */
    const double inverse_support = 1.0 / support;
    const int32_t widest = (int32_t)ceil(support) * 2 + 1;
    /* Whole groups of four, as the horizontal kernels load them. */
    const int32_t stride = ((widest < in_size ? widest : in_size) + 3) / 4 * 4;
    if (reserve(coeffs, n_out, stride, counter))
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for %d x %d resize weights", (int)n_out,
                            (int)stride);
    coeffs->n = n_out;
    coeffs->stride = stride;
    coeffs->max_taps = 0;
    coeffs->has_table = false;
    double *const raw = coeffs->scratch;
    for (int32_t i = 0; i < n_out; i++) {
        const double center = (out_first + i + 0.5) * scale;
        int32_t first = (int32_t)(center - support + 0.5);
        if (first < 0) first = 0;
        int32_t end = (int32_t)(center + support + 0.5);
        if (end > in_size) end = in_size;
        const int32_t n_taps = end - first;
        double sum = 0.0;
        for (int32_t t = 0; t < n_taps; t++) {
            raw[t] = triangle((t + first - center + 0.5) * inverse_support);
            sum += raw[t];
        }
        int32_t *const weights = coeffs->weights + (size_t)i * (size_t)stride;
        for (int32_t t = 0; t < n_taps; t++) {
            const double share = sum != 0.0 ? raw[t] / sum : raw[t];
            weights[t] = (int32_t)(0.5 + share * (1 << FM_COEFFS_BITS));
        }
        coeffs->first[i] = first;
        coeffs->n_taps[i] = n_taps;
        if (n_taps > coeffs->max_taps) coeffs->max_taps = n_taps;
    }
    coeffs->clips = coeffs->max_taps > MOST_TAPS_UNCLIPPED;
    return FM_OK;
}

void fm_coeffs_span(const fm_coeffs *coeffs, int32_t *first, int32_t *end) {
    *first = coeffs->first[0];
    *end = coeffs->first[coeffs->n - 1] + coeffs->n_taps[coeffs->n - 1];
}

void fm_coeffs_shift(fm_coeffs *coeffs, int32_t n) {
    for (int32_t i = 0; i < coeffs->n; i++) coeffs->first[i] -= n;
}

static void swap(int32_t *a, int32_t *b) {
    const int32_t kept = *a;
    *a = *b;
    *b = kept;
}

void fm_coeffs_mirror_input(fm_coeffs *coeffs, int32_t in_size) {
    for (int32_t i = 0; i < coeffs->n; i++) {
        const int32_t n_taps = coeffs->n_taps[i];
        int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
        for (int32_t t = 0; t < n_taps / 2; t++) swap(&weights[t], &weights[n_taps - 1 - t]);
        coeffs->first[i] = in_size - coeffs->first[i] - n_taps;
    }
}

void fm_coeffs_mirror_output(fm_coeffs *coeffs) {
    const size_t stride = (size_t)coeffs->stride;
    for (int32_t i = 0, j = coeffs->n - 1; i < j; i++, j--) {
        int32_t *const a = coeffs->weights + (size_t)i * stride;
        int32_t *const b = coeffs->weights + (size_t)j * stride;
        for (int32_t t = 0; t < coeffs->max_taps; t++) swap(&a[t], &b[t]);
        swap(&coeffs->first[i], &coeffs->first[j]);
        swap(&coeffs->n_taps[i], &coeffs->n_taps[j]);
    }
}

void fm_coeffs_even_taps(fm_coeffs *coeffs, int32_t in_size) {
    const int32_t n_even = coeffs->max_taps;
    for (int32_t i = 0; i < coeffs->n; i++) {
        const int32_t n_taps = coeffs->n_taps[i];
        int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
        /* Zeros go behind, or in front as far as the input ends. */
        int32_t n_front = coeffs->first[i] + n_even - in_size;
        if (n_front < 0) n_front = 0;
        memmove(weights + n_front, weights, (size_t)n_taps * sizeof(*weights));
        for (int32_t t = 0; t < n_front; t++) weights[t] = 0;
        for (int32_t t = n_front + n_taps; t < coeffs->stride; t++) weights[t] = 0;
        coeffs->first[i] -= n_front;
        coeffs->n_taps[i] = n_even;
    }
}

int fm_coeffs_reserve_table(fm_coeffs *coeffs, size_t n_bytes, fm_mem_counter *counter,
                            fm_error *error) {
    if (n_bytes <= coeffs->n_table_bytes_held) return FM_OK;
    const size_t n_held = round_up(n_bytes);
    fm_mem_free(coeffs->table);
    coeffs->table = fm_mem_alloc(counter, n_held, 1);
    coeffs->n_table_bytes_held = coeffs->table ? n_held : 0;
    if (coeffs->table) return FM_OK;
    return fm_error_set(error, FM_ERR_NOMEM, "no memory for a table of %zu bytes of resize weights",
                        n_held);
}

void fm_coeffs_fini(fm_coeffs *coeffs) {
    fm_mem_free(coeffs->first);
    fm_mem_free(coeffs->n_taps);
    fm_mem_free(coeffs->weights);
    fm_mem_free(coeffs->scratch);
    fm_mem_free(coeffs->table);
    *coeffs = (fm_coeffs){0};
}
