#define _GNU_SOURCE
#include "transform/coeffs.h"

#include <math.h>
#include <string.h>

#include "base/number.h"

/* Minimum capacity of each array. */
#define MIN_HELD 256
/* Outputs whose weights are computed side by side, in loops that the compiler vectorizes. */
#define LANES 16

static int refuse(int32_t n_out, int32_t stride, fm_error *error) {
    return fm_error_set(error, FM_ERR_NOMEM, "no memory for %d x %d resize weights", (int)n_out,
                        (int)stride);
}

int fm_coeffs_reserve(fm_coeffs *coeffs, int32_t n_out, int32_t stride, fm_mem_counter *counter,
                      fm_error *error) {
    const size_t n_outputs = (size_t)n_out, n_weights = n_outputs * (size_t)stride;
    const size_t n_scratch = LANES * (size_t)stride;
    if (n_outputs > coeffs->n_outputs_held) {
        const size_t n_held = fm_capacity(MIN_HELD, n_outputs);
        fm_mem_free(coeffs->first);
        fm_mem_free(coeffs->n_taps);
        coeffs->first = fm_mem_alloc(counter, n_held, sizeof(*coeffs->first));
        coeffs->n_taps = fm_mem_alloc(counter, n_held, sizeof(*coeffs->n_taps));
        coeffs->n_outputs_held = coeffs->first && coeffs->n_taps ? n_held : 0;
        if (!coeffs->n_outputs_held) return refuse(n_out, stride, error);
    }
    if (n_weights > coeffs->n_weights_held) {
        const size_t n_held = fm_capacity(MIN_HELD, n_weights);
        fm_mem_free(coeffs->weights);
        coeffs->weights = fm_mem_alloc(counter, n_held, sizeof(*coeffs->weights));
        coeffs->n_weights_held = coeffs->weights ? n_held : 0;
        if (!coeffs->n_weights_held) return refuse(n_out, stride, error);
    }
    if (n_scratch > coeffs->n_scratch_held) {
        const size_t n_held = fm_capacity(MIN_HELD, n_scratch);
        fm_mem_free(coeffs->scratch);
        coeffs->scratch = fm_mem_alloc(counter, n_held, sizeof(*coeffs->scratch));
        coeffs->n_scratch_held = coeffs->scratch ? n_held : 0;
        if (!coeffs->n_scratch_held) return refuse(n_out, stride, error);
    }
    coeffs->n = n_out;
    coeffs->stride = stride;
    coeffs->max_taps = 0;
    coeffs->has_table = false;
    return FM_OK;
}

/* ---- Pillow's filters ------------------------------------------------------------------------ */

/*
 * Each has Pillow's operations in Pillow's order, as the last bit of a double can decide how a
 * weight is rounded. Both use sin() and cos() of the process's C library.
 */

static const double PI = 0x1.921fb54442d18p+1;

static inline double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static inline double bilinear(double x) {
    const double distance = fabs(x);
    return distance < 1.0 ? 1.0 - distance : 0.0;
}

static inline double bicubic(double x) {
    const double distance = fabs(x);
    const double near = (1.5 * distance - 2.5) * distance * distance + 1;
    const double far = (((distance - 5) * distance + 8) * distance - 4) * -0.5;
    return distance < 1.0 ? near : distance < 2.0 ? far : 0.0;
}

static inline double hamming(double x) {
    const double distance = fabs(x);
    if (distance == 0.0) return 1.0;
    if (distance >= 1.0) return 0.0;
    const double angle = distance * PI;
    return sin(angle) / angle * ((double)0.54f + (double)0.46f * cos(angle));
}

static inline double sinc(double x) {
    const double angle = x * PI;
    return x == 0.0 ? 1.0 : sin(angle) / angle;
}

static inline double lanczos(double x) {
    return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

/* ---- approximations -------------------------------------------------------------------------- */

/*
 * sin() and cos() take most of the time of the filters that use them. These approximations are
 * within 1e-14 of the filters above and several times as fast. Weights are rounded from them unless
 * the error could matter (rounds_surely()); then the exact filters are used.
 */

/* sin(pi x) for x from 0 to 1/2: the series up to the 21st power. */
static inline double sine(double x) {
    const double y = x * PI, y2 = y * y;
    double sum = 1.0 / 51090942171709440000.0;
    sum = sum * y2 - 1.0 / 121645100408832000.0;
    sum = sum * y2 + 1.0 / 355687428096000.0;
    sum = sum * y2 - 1.0 / 1307674368000.0;
    sum = sum * y2 + 1.0 / 6227020800.0;
    sum = sum * y2 - 1.0 / 39916800.0;
    sum = sum * y2 + 1.0 / 362880.0;
    sum = sum * y2 - 1.0 / 5040.0;
    sum = sum * y2 + 1.0 / 120.0;
    sum = sum * y2 - 1.0 / 6.0;
    return y + y * y2 * sum;
}

/* With s = sin(pi x / 3), sin(pi x) is 3 s - 4 s^3. */
static inline double lanczos_approx(double x) {
    const double third = fabs(x) / 3.0;
    const double s = sine(third < 0.5 ? third : 1.0 - third), angle = third * PI;
    const double value = s * s * (3.0 - 4.0 * s * s) / (3.0 * angle * angle);
    return x == 0.0 ? 1.0 : -3.0 <= x && x < 3.0 ? value : 0.0;
}

/* cos(pi x) is sin(pi (1/2 - x)). */
static inline double hamming_approx(double x) {
    const double distance = fabs(x), rest = 0.5 - distance;
    const double s = sine(distance < 0.5 ? distance : 1.0 - distance);
    const double c = sine(fabs(rest)), cosine = rest < 0.0 ? -c : c;
    const double value = s / (distance * PI) * ((double)0.54f + (double)0.46f * cosine);
    return distance == 0.0 ? 1.0 : distance < 1.0 ? value : 0.0;
}

/* A filter's support: how far it reaches to either side at scale 1. */
static double reach(fm_filter filter) {
    switch (filter) {
    case FM_FILTER_BILINEAR:
    case FM_FILTER_HAMMING:
        return 1.0;
    case FM_FILTER_BICUBIC:
        return 2.0;
    case FM_FILTER_BOX:
        return 0.5;
    case FM_FILTER_LANCZOS:
        return 3.0;
    case FM_FILTER_NEAREST:
        break;
    }
    return 0.0;
}

fm_filter fm_coeffs_wider(fm_filter a, fm_filter b) { return reach(b) > reach(a) ? b : a; }

static bool has_negative_weights(fm_filter filter) {
    return filter == FM_FILTER_BICUBIC || filter == FM_FILTER_LANCZOS;
}

/* ---- computing ------------------------------------------------------------------------------- */

/* Constants of a pass. */
typedef struct scaling {
    int32_t in_size;
    double begin; /* of the resized part of the input */
    double scale, support, inverse_scale;
} scaling;

/* LANES adjacent outputs. Windows are integers, stored as doubles to avoid conversions. */
typedef struct lane_block {
    double center[LANES], first[LANES], n_taps[LANES], sum[LANES];
    int32_t most_taps;
} lane_block;

/* Sets the windows of LANES outputs from `out` on. Those past the last output are not used. */
static void place_lanes(lane_block *lanes, const scaling *pass, int32_t out) {
    lanes->most_taps = 0;
    for (int32_t i = 0; i < LANES; i++) {
        const double center = pass->begin + (out + i + 0.5) * pass->scale;
        int32_t first = (int32_t)(center - pass->support + 0.5);
        if (first < 0) first = 0;
        int32_t end = (int32_t)(center + pass->support + 0.5);
        if (end > pass->in_size) end = pass->in_size;
        lanes->center[i] = center;
        lanes->first[i] = first;
        lanes->n_taps[i] = end - first;
        if (end - first > lanes->most_taps) lanes->most_taps = end - first;
    }
}

/* Computes the filter's values by tap and lane, 0 beyond a lane's taps, and their sums. */
static inline __attribute__((always_inline)) void filter_lanes(lane_block *restrict lanes,
                                                               const scaling *pass,
                                                               double (*raw)[LANES],
                                                               double (*filter)(double)) {
    const double inverse_scale = pass->inverse_scale;
    double sum[LANES] = {0};
    for (int32_t tap = 0; tap < lanes->most_taps; tap++) {
        double *restrict const values = raw[tap];
        const double t = tap;
        for (int32_t i = 0; i < LANES; i++) {
            const double value =
                filter((t + lanes->first[i] - lanes->center[i] + 0.5) * inverse_scale);
            values[i] = t < lanes->n_taps[i] ? value : 0.0;
            sum[i] += values[i];
        }
    }
    memcpy(lanes->sum, sum, sizeof(sum));
}

/* Normalizes the values of the first n lanes by their sums and rounds them to `bits` bits. */
static void round_lanes(const lane_block *lanes, const double (*raw)[LANES], int32_t *weights,
                        size_t stride, int32_t n, int32_t bits) {
    const double units = 1 << bits;
    const int32_t unit = 1 << (FM_COEFFS_BITS - bits);
    double sum[LANES];
    for (int32_t i = 0; i < LANES; i++) sum[i] = lanes->sum[i] != 0.0 ? lanes->sum[i] : 1.0;
    for (int32_t t = 0; t < lanes->most_taps; t++) {
        int32_t rounded[LANES];
        for (int32_t i = 0; i < LANES; i++) {
            const double share = raw[t][i] / sum[i];
            rounded[i] = (int32_t)((share < 0.0 ? -0.5 : 0.5) + share * units) * unit;
        }
        for (int32_t i = 0; i < n; i++) weights[(size_t)i * stride + (size_t)t] = rounded[i];
    }
}

/*
 * Whether the approximated values round like the exact ones: none is so close to a rounding
 * boundary that its error, below 1e-6 units of at most 22 bits, could matter.
 */
static bool rounds_surely(const lane_block *lanes, const double (*raw)[LANES], int32_t bits) {
    const double one = 1 << bits;
    double sum[LANES], closest[LANES];
    for (int32_t i = 0; i < LANES; i++) {
        sum[i] = lanes->sum[i] != 0.0 ? lanes->sum[i] : 1.0;
        closest[i] = 1.0;
    }
    for (int32_t t = 0; t < lanes->most_taps; t++) {
        for (int32_t i = 0; i < LANES; i++) {
            const double units = fabs(raw[t][i] / sum[i]) * one;
            const double distance = fabs(units - (int32_t)units - 0.5);
            closest[i] = distance < closest[i] ? distance : closest[i];
        }
    }
    for (int32_t i = 0; i < LANES; i++)
        if (closest[i] < 1e-5) return false;
    return true;
}

static void filter_block(lane_block *lanes, const scaling *pass, double (*raw)[LANES],
                         fm_filter filter, bool approximate) {
    switch (filter) {
    case FM_FILTER_BILINEAR:
        filter_lanes(lanes, pass, raw, bilinear);
        break;
    case FM_FILTER_BICUBIC:
        filter_lanes(lanes, pass, raw, bicubic);
        break;
    case FM_FILTER_BOX:
        filter_lanes(lanes, pass, raw, box);
        break;
    case FM_FILTER_HAMMING:
        if (approximate)
            filter_lanes(lanes, pass, raw, hamming_approx);
        else
            filter_lanes(lanes, pass, raw, hamming);
        break;
    case FM_FILTER_LANCZOS:
        if (approximate)
            filter_lanes(lanes, pass, raw, lanczos_approx);
        else
            filter_lanes(lanes, pass, raw, lanczos);
        break;
    case FM_FILTER_NEAREST: /* compute_nearest() */
        break;
    }
}

/* The largest normalized weight of all n_out outputs of a pass, 0 or more. */
static double largest_weight(fm_filter filter, const scaling *pass, double (*raw)[LANES],
                             int32_t n_out) {
    double largest = 0.0;
    for (int32_t start = 0; start < n_out; start += LANES) {
        const int32_t n = n_out - start < LANES ? n_out - start : LANES;
        lane_block lanes;
        place_lanes(&lanes, pass, start);
        filter_block(&lanes, pass, raw, filter, false);
        for (int32_t t = 0; t < lanes.most_taps; t++)
            for (int32_t i = 0; i < n; i++)
                if (raw[t][i] / lanes.sum[i] > largest) largest = raw[t][i] / lanes.sum[i];
    }
    return largest;
}

/* The most bits with which torch can store weights up to the largest one as 16-bit integers. */
static int32_t count_bits(double largest) {
    int32_t bits = 0;
    while (bits < FM_COEFFS_BITS && (int32_t)(0.5 + largest * (1 << (bits + 1))) < 1 << 15) bits++;
    return bits;
}

/* Rounds the weights to `bits` bits. */
static void compute_weights(fm_coeffs *coeffs, fm_filter filter, const scaling *pass,
                            int32_t out_first, int32_t bits) {
    double(*const raw)[LANES] = (double(*)[LANES])coeffs->scratch;
    const bool has_sines = filter == FM_FILTER_HAMMING || filter == FM_FILTER_LANCZOS;
    const size_t stride = (size_t)coeffs->stride;
    memset(coeffs->weights, 0, (size_t)coeffs->n * stride * sizeof(*coeffs->weights));
    for (int32_t start = 0; start < coeffs->n; start += LANES) {
        const int32_t n = coeffs->n - start < LANES ? coeffs->n - start : LANES;
        int32_t *const weights = coeffs->weights + (size_t)start * stride;
        lane_block lanes;
        place_lanes(&lanes, pass, out_first + start);
        filter_block(&lanes, pass, raw, filter, has_sines);
        if (has_sines && !rounds_surely(&lanes, (const double(*)[LANES])raw, bits))
            filter_block(&lanes, pass, raw, filter, false);
        round_lanes(&lanes, (const double(*)[LANES])raw, weights, stride, n, bits);
        for (int32_t i = 0; i < n; i++) {
            const int32_t n_taps = (int32_t)lanes.n_taps[i];
            coeffs->first[start + i] = (int32_t)lanes.first[i];
            coeffs->n_taps[start + i] = n_taps;
            if (n_taps > coeffs->max_taps) coeffs->max_taps = n_taps;
        }
    }
}

/*
 * As Pillow's ImagingScaleAffine(), which accumulates each output's position. For sizes up to
 * 65,535 the sum's error is below 2^-21 pixels, and the last position is at least 2^-17 pixels
 * before the input's end.
 */
static void compute_nearest(fm_coeffs *coeffs, double scale, int32_t out_first) {
    memset(coeffs->weights, 0,
           (size_t)coeffs->n * (size_t)coeffs->stride * sizeof(*coeffs->weights));
    double place = scale * 0.5;
    for (int32_t i = 0; i < out_first; i++) place += scale;
    for (int32_t i = 0; i < coeffs->n; i++, place += scale) {
        coeffs->first[i] = (int32_t)place;
        coeffs->n_taps[i] = 1;
        coeffs->weights[(size_t)i * (size_t)coeffs->stride] = 1 << FM_COEFFS_BITS;
    }
    coeffs->max_taps = 1;
}

int fm_coeffs_compute_part(fm_coeffs *coeffs, fm_filter filter, int32_t in_size,
                           const float span[2], int32_t out_size, int32_t out_first, int32_t n_out,
                           fm_mem_counter *counter, fm_error *error) {
    /* Pillow subtracts floats, too. */
    const float length = span[1] - span[0];
    scaling pass = {
        .in_size = in_size, .begin = (double)span[0], .scale = (double)length / out_size};
    const double filter_scale = pass.scale < 1.0 ? 1.0 : pass.scale;
    pass.support = reach(filter) * filter_scale;
    pass.inverse_scale = 1.0 / filter_scale;
    const int32_t widest = (int32_t)ceil(pass.support) * 2 + 1;
    /* A multiple of four, as the horizontal kernels load four weights at a time. */
    const int32_t stride = ((widest < in_size ? widest : in_size) + 3) / 4 * 4;
    const int status = fm_coeffs_reserve(coeffs, n_out, stride, counter, error);
    if (status) return status;
    int32_t bits = FM_COEFFS_BITS;
    if (filter == FM_FILTER_NEAREST) {
        compute_nearest(coeffs, pass.scale, out_first);
    } else {
        if (coeffs->short_weights)
            bits = count_bits(
                largest_weight(filter, &pass, (double(*)[LANES])coeffs->scratch, out_size));
        compute_weights(coeffs, filter, &pass, out_first, bits);
    }
    /* Without negative weights, a sum can only round to 256 if 255 times the rounding errors, of at
     * most half a unit per tap, reach the missing half of 2^bits. */
    coeffs->clips = has_negative_weights(filter) || 255 * coeffs->max_taps >= 1 << bits;
    return FM_OK;
}

int fm_coeffs_compute(fm_coeffs *coeffs, fm_filter filter, int32_t in_size, int32_t out_size,
                      int32_t out_first, int32_t n_out, fm_mem_counter *counter, fm_error *error) {
    const float whole[2] = {0.0f, (float)in_size};
    return fm_coeffs_compute_part(coeffs, filter, in_size, whole, out_size, out_first, n_out,
                                  counter, error);
}

/* ---- changing computed weights --------------------------------------------------------------- */

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
        /* Zeros already follow the taps. Where the input ends, they are moved before the taps. */
        const int32_t n_front = coeffs->first[i] + n_even - in_size;
        if (n_front > 0) {
            int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
            memmove(weights + n_front, weights, (size_t)coeffs->n_taps[i] * sizeof(*weights));
            for (int32_t t = 0; t < n_front; t++) weights[t] = 0;
            coeffs->first[i] -= n_front;
        }
        coeffs->n_taps[i] = n_even;
    }
}

int fm_coeffs_reserve_table(fm_coeffs *coeffs, size_t n_bytes, fm_mem_counter *counter,
                            fm_error *error) {
    if (n_bytes <= coeffs->n_table_bytes_held) return FM_OK;
    const size_t n_held = fm_capacity(MIN_HELD, n_bytes);
    fm_mem_free(coeffs->table);
    coeffs->table = fm_mem_alloc(counter, n_held, 1);
    coeffs->n_table_bytes_held = coeffs->table ? n_held : 0;
    if (coeffs->table) return FM_OK;
    return fm_error_set(error, FM_ERR_NOMEM, "no memory for a table of %zu bytes of resize weights",
                        n_held);
}

int fm_coeffs_reserve_as(fm_coeffs *coeffs, const fm_coeffs *other, fm_mem_counter *counter,
                         fm_error *error) {
    const int status = fm_coeffs_reserve(coeffs, other->n, other->stride, counter, error);
    if (status) return status;
    return fm_coeffs_reserve_table(coeffs, other->n_table_bytes_held, counter, error);
}

void fm_coeffs_fini(fm_coeffs *coeffs) {
    fm_mem_free(coeffs->first);
    fm_mem_free(coeffs->n_taps);
    fm_mem_free(coeffs->weights);
    fm_mem_free(coeffs->scratch);
    fm_mem_free(coeffs->table);
    *coeffs = (fm_coeffs){0};
}
