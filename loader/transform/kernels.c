#define _GNU_SOURCE
#include "transform/kernels.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include "transform/x86/kernels_x86.h"
#elif defined(__aarch64__)
#include "transform/arm/kernels_arm.h"
#endif

#define HALF (1u << (FM_COEFFS_BITS - 1))

/*
 * Sums are modulo 2^32: weights add up to 2^22, up to rounding errors, and the positive ones to
 * at most 1.3 times that, so that a sum lies between -2^31 and 2^31 for up to 65,535 taps.
 * Clipping, which would cost the usual case a third of its speed, is only done if fm_coeffs.clips
 * is set.
 */
static inline __attribute__((always_inline)) uint8_t round_sum(uint32_t sum, const bool clips) {
    if (!clips) return (uint8_t)(sum >> FM_COEFFS_BITS);
    const int32_t value = (int32_t)sum >> FM_COEFFS_BITS;
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

/* ---- horizontal ------------------------------------------------------------------------------ */

/* Inlined with a constant n_taps, so that the inner loop is unrolled. */
static inline __attribute__((always_inline)) void
horizontal_row(uint8_t *restrict out, const uint8_t *restrict in, const fm_coeffs *coeffs,
               const int32_t n_taps, const bool clips) {
    const int32_t *const first = coeffs->first;
    const int32_t *weights = coeffs->weights;
    const size_t stride = (size_t)coeffs->stride;
    const size_t n = (size_t)coeffs->n;
    for (size_t i = 0; i < n; i++, weights += stride) {
        const uint8_t *const px = in + 3 * (size_t)first[i];
        uint32_t red = HALF, green = HALF, blue = HALF;
        for (int32_t t = 0; t < n_taps; t++) {
            const uint32_t weight = (uint32_t)weights[t];
            red += px[3 * t + 0] * weight;
            green += px[3 * t + 1] * weight;
            blue += px[3 * t + 2] * weight;
        }
        out[3 * i + 0] = round_sum(red, clips);
        out[3 * i + 1] = round_sum(green, clips);
        out[3 * i + 2] = round_sum(blue, clips);
    }
}

static void horizontal(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                       const fm_coeffs *coeffs) {
    const int32_t n_taps = coeffs->max_taps;
    for (int32_t row = 0; row < n_rows; row++) {
        if (coeffs->clips) {
            horizontal_row(out[row], in[row], coeffs, n_taps, true);
            continue;
        }
        switch (n_taps) {
        case 2:
            horizontal_row(out[row], in[row], coeffs, 2, false);
            break;
        case 3:
            horizontal_row(out[row], in[row], coeffs, 3, false);
            break;
        case 4:
            horizontal_row(out[row], in[row], coeffs, 4, false);
            break;
        case 5:
            horizontal_row(out[row], in[row], coeffs, 5, false);
            break;
        default:
            horizontal_row(out[row], in[row], coeffs, n_taps, false);
        }
    }
}

/* The scalar kernels read the weights directly. */
static int prepare(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error) {
    (void)counter;
    (void)error;
    coeffs->has_table = false;
    return FM_OK;
}

/* ---- vertical -------------------------------------------------------------------------------- */

/*
 * Up to 8 taps in 16-bit arithmetic, with eight columns per 128-bit register; 32-bit products would
 * have four, and SSE2 has no multiplication for them. The weight is split into four digits,
 *
 *     weight = d3 * 2^14 + d2 * 2^9 + d1 * 2^4 + d0,   d2 and d1 below 32, d0 below 16,
 *
 * and each digit's products with the bytes are summed. All sums fit 16 bits: 8 * 255 * 31 = 63,240
 * for d2 and d1; the d3 add up to at most 256, hence 65,280, as the weights exceed 2^22 by at most
 * half of 2^8 each. Carries are added to the next digit's sum; the bits shifted out do not
 * influence the result.
 */
#define DIGIT_TAPS 8

static inline __attribute__((always_inline)) void
vertical_digits(uint8_t *restrict out, const uint8_t *const *in, const int32_t *weights,
                const int32_t n_taps, size_t n_bytes) {
    const uint8_t *rows[DIGIT_TAPS];
    uint16_t d3[DIGIT_TAPS], d2[DIGIT_TAPS], d1[DIGIT_TAPS], d0[DIGIT_TAPS];
    for (int32_t t = 0; t < n_taps; t++) {
        rows[t] = in[t];
        d3[t] = (uint16_t)(weights[t] >> 14);
        d2[t] = weights[t] >> 9 & 31;
        d1[t] = weights[t] >> 4 & 31;
        d0[t] = weights[t] & 15;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        uint16_t s3 = 0, s2 = 0, s1 = 0, s0 = 0;
        for (int32_t t = 0; t < n_taps; t++) {
            const uint16_t byte = rows[t][i];
            s3 = (uint16_t)(s3 + byte * d3[t]);
            s2 = (uint16_t)(s2 + byte * d2[t]);
            s1 = (uint16_t)(s1 + byte * d1[t]);
            s0 = (uint16_t)(s0 + byte * d0[t]);
        }
        s1 = (uint16_t)(s1 + (s0 >> 4)); /* at most 65,152 */
        s2 = (uint16_t)(s2 + (s1 >> 5)); /* at most 65,276 */
        /* (s3 * 2^5 + s2 + half) >> 13, without s3's upper byte and without the lowest bit. */
        const uint16_t low = (uint16_t)((s3 & 255) * 16 + (s2 >> 1) + 2048);
        out[i] = (uint8_t)((s3 >> 8) + (low >> 12));
    }
}

/* Columns that are summed at a time. */
#define BLOCK 64

static inline __attribute__((always_inline)) void
vertical_sums(uint8_t *restrict out, const uint8_t *const *in, const int32_t *weights,
              int32_t n_taps, size_t n_bytes, const bool clips) {
    for (size_t start = 0; start < n_bytes; start += BLOCK) {
        uint32_t sums[BLOCK];
        for (size_t i = 0; i < BLOCK; i++) sums[i] = HALF;
        for (int32_t t = 0; t < n_taps; t++) {
            const uint8_t *const row = in[t] + start;
            const uint32_t weight = (uint32_t)weights[t];
            for (size_t i = 0; i < BLOCK; i++) sums[i] += row[i] * weight;
        }
        for (size_t i = 0; i < BLOCK; i++) out[start + i] = round_sum(sums[i], clips);
    }
}

static void vertical(uint8_t *out, const uint8_t *const *in, const fm_coeffs *coeffs, int32_t i,
                     size_t n_bytes) {
    const int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
    const int32_t n_taps = coeffs->n_taps[i];
    if (coeffs->clips) {
        vertical_sums(out, in, weights, n_taps, n_bytes, true);
        return;
    }
    switch (n_taps) {
    case 1:
        vertical_digits(out, in, weights, 1, n_bytes);
        break;
    case 2:
        vertical_digits(out, in, weights, 2, n_bytes);
        break;
    case 3:
        vertical_digits(out, in, weights, 3, n_bytes);
        break;
    case 4:
        vertical_digits(out, in, weights, 4, n_bytes);
        break;
    case 5:
        vertical_digits(out, in, weights, 5, n_bytes);
        break;
    case 6:
        vertical_digits(out, in, weights, 6, n_bytes);
        break;
    case 7:
        vertical_digits(out, in, weights, 7, n_bytes);
        break;
    case 8:
        vertical_digits(out, in, weights, 8, n_bytes);
        break;
    default:
        vertical_sums(out, in, weights, n_taps, n_bytes, false);
    }
}

/* ---- copies of pixels ------------------------------------------------------------------------ */

/* Copies four bytes at a time; the next pixel overwrites the fourth. */
static void gather(uint8_t *out, const uint8_t *in, const int32_t *index, int32_t n) {
    for (size_t i = 0; i < (size_t)n; i++) {
        uint32_t px;
        memcpy(&px, in + 3 * (size_t)index[i], sizeof(px));
        memcpy(out + 3 * i, &px, sizeof(px));
    }
}

static void mirror(uint8_t *out, const uint8_t *in, int32_t n_px) {
    for (int32_t i = 0; i < n_px; i++) {
        const uint8_t *const px = in + 3 * (size_t)(n_px - 1 - i);
        out[3 * (size_t)i + 0] = px[0];
        out[3 * (size_t)i + 1] = px[1];
        out[3 * (size_t)i + 2] = px[2];
    }
}

static void widen(uint8_t *out, const uint8_t *in, int32_t n_px, uint8_t fourth) {
    for (size_t i = 0; i < (size_t)n_px; i++) {
        out[4 * i + 0] = in[3 * i + 0];
        out[4 * i + 1] = in[3 * i + 1];
        out[4 * i + 2] = in[3 * i + 2];
        out[4 * i + 3] = fourth;
    }
}

static void narrow(uint8_t *out, const uint8_t *in, int32_t n_px) {
    for (size_t i = 0; i < (size_t)n_px; i++) {
        out[3 * i + 0] = in[4 * i + 0];
        out[3 * i + 1] = in[4 * i + 1];
        out[3 * i + 2] = in[4 * i + 2];
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

void fm_kernels_init(fm_kernels *kernels, fm_cpu_tier tier) {
    *kernels = (fm_kernels){.tier = FM_CPU_SCALAR,
                            .prepare_columns = prepare,
                            .prepare_rows = prepare,
                            .horizontal = horizontal,
                            .vertical = vertical,
                            .gather = gather,
                            .mirror = mirror,
                            .widen = widen,
                            .narrow = narrow};
#if defined(__x86_64__)
    fm_kernels_init_x86(kernels, tier);
#elif defined(__aarch64__)
    fm_kernels_init_arm(kernels, tier);
#else
    (void)tier;
#endif
}
