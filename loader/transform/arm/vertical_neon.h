/*
 * The vertical kernel in NEON, 16 columns per step. For two to four rows and weights that are not
 * negative it sums products of bytes in 16 bits; else it uses 32-bit sums, modulo 2^32 as in the
 * scalar kernel.
 *
 * A weight from 0 to 2^22 is split into three digits,
 *
 *     weight = top * 2^14 + middle * 2^7 + lowest,
 *
 * and an output is (sum of top + ((sum of middle + (sum of lowest >> 7)) >> 7) + 128) >> 8,
 * exactly, as the sums are integers and the bits that a shift drops do not change the floor of the
 * next one. The sums of middle and lowest digits must fit 16 signed bits.
 *
 * Each of these digits can be one of two numbers that are 128 apart. They are chosen so that they
 * nearly cancel. Weights w add up to 2^22 + e, where e is a rounding error. The residues
 * r = w mod 128 add up to 128 * m + e; the m largest become r - 128. With at most four digits, the
 * positive ones then add up to at most 128, and the negative ones to at least -128, for e from -2
 * to 2: the average of the others is at most the average of all, so their sum is at most (4 - m) *
 * (128 * m + e) / 4, which for integers is at most 128 (m = 2). So the sum of their products with
 * bytes is within 128 * 255 = 32,640 on either side.
 *
 * The middle digits are chosen likewise from (w - lowest) / 128, whose sum is exactly 2^15. The
 * carry of the lowest digits, -255 to 255, fits as well, as the positive middle digits add up to at
 * most 127 unless the digits are 64, 64, -64 and -64; such weights use the 32-bit sums.
 *
 * The top digits are 0 to 255 and add up to 256, so that their sum and its carry, which is the
 * whole sum divided by 2^14, fit 16 unsigned bits: at most 255 * (2^22 + 2) / 2^14 + 128 = 65,408.
 *
 * smlal multiplies signed bytes: bytes less 128, which makes the sums too low by 128 times the sum
 * of the digits. That is added first. Sums are modulo 2^16 on the way, and exact at the end.
 */
#ifndef FM_TRANSFORM_ARM_VERTICAL_NEON_H
#define FM_TRANSFORM_ARM_VERTICAL_NEON_H

#include "transform/arm/horizontal_neon.h"
#include "transform/arm/target.h"

enum { FM_NEON_DIGIT_BITS = 7, FM_NEON_DIGIT_BASE = 1 << FM_NEON_DIGIT_BITS, FM_NEON_DIGITS = 4 };

/* An output's digits, and 128 times their sums. */
typedef struct fm_neon_digits {
    int16_t middle_start, lowest_start;
    int8_t middle[FM_NEON_DIGITS], lowest[FM_NEON_DIGITS];
    uint8_t top[FM_NEON_DIGITS];
    bool fit; /* false: the weights can't be split */
} fm_neon_digits;

/* Digits from residues, by subtracting the base from the m largest ones. */
static inline void fm_neon_balance(int32_t *digits, int32_t n) {
    int32_t sum = FM_NEON_DIGIT_BASE / 2;
    for (int32_t t = 0; t < n; t++) sum += digits[t];
    for (int32_t m = sum >> FM_NEON_DIGIT_BITS; m > 0; m--) {
        int32_t largest = 0;
        for (int32_t t = 1; t < n; t++)
            if (digits[t] > digits[largest]) largest = t;
        digits[largest] -= FM_NEON_DIGIT_BASE;
    }
}

/* Splits the weights. false if the digits' sums would not fit. */
static inline bool fm_neon_find_digits(fm_neon_digits *digits, const int32_t *weights,
                                       int32_t n_taps) {
    if (n_taps < 2 || n_taps > FM_NEON_DIGITS) return false;
    int32_t rest = -(1 << FM_COEFFS_BITS), n_halves = 0;
    int32_t lowest[FM_NEON_DIGITS] = {0}, middle[FM_NEON_DIGITS] = {0}, upper[FM_NEON_DIGITS] = {0};
    for (int32_t t = 0; t < n_taps; t++) {
        if (weights[t] < 0 || weights[t] > 254 << 2 * FM_NEON_DIGIT_BITS) return false;
        rest += weights[t];
        lowest[t] = weights[t] % FM_NEON_DIGIT_BASE;
    }
    if (rest < -2 || rest > 2) return false;
    fm_neon_balance(lowest, FM_NEON_DIGITS);
    for (int32_t t = 0; t < n_taps; t++) {
        upper[t] = (weights[t] - lowest[t]) / FM_NEON_DIGIT_BASE;
        middle[t] = upper[t] % FM_NEON_DIGIT_BASE;
        n_halves += middle[t] == FM_NEON_DIGIT_BASE / 2;
    }
    if (n_halves == 4) return false;
    fm_neon_balance(middle, FM_NEON_DIGITS);
    int32_t middle_sum = 0, lowest_sum = 0;
    for (int32_t t = 0; t < FM_NEON_DIGITS; t++) {
        digits->lowest[t] = (int8_t)lowest[t];
        digits->middle[t] = (int8_t)middle[t];
        digits->top[t] = (uint8_t)((upper[t] - middle[t]) / FM_NEON_DIGIT_BASE);
        lowest_sum += lowest[t];
        middle_sum += middle[t];
    }
    digits->lowest_start = (int16_t)(128 * lowest_sum);
    digits->middle_start = (int16_t)(128 * middle_sum);
    return true;
}

/* Fills the table with an fm_neon_digits for each output. */
FM_NEON int fm_prepare_rows_neon(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error) {
    const int status =
        fm_coeffs_reserve_table(coeffs, (size_t)coeffs->n * sizeof(fm_neon_digits), counter, error);
    coeffs->has_table = !status && !coeffs->clips;
    if (!coeffs->has_table) return status;
    fm_neon_digits *const digits = (fm_neon_digits *)(void *)coeffs->table;
    for (int32_t i = 0; i < coeffs->n; i++)
        digits[i].fit = fm_neon_find_digits(
            &digits[i], coeffs->weights + (size_t)i * (size_t)coeffs->stride, coeffs->n_taps[i]);
    return FM_OK;
}

/* (sum of top + ((sum of middle + (sum of lowest >> 7)) >> 7) + 128) >> 8 */
FM_NEON_INLINE uint8x8_t fm_neon_join_digits(uint16x8_t top, int16x8_t middle, int16x8_t lowest) {
    middle = vsraq_n_s16(middle, lowest, FM_NEON_DIGIT_BITS);
    const int16x8_t carry = vshrq_n_s16(middle, FM_NEON_DIGIT_BITS);
    return vrshrn_n_u16(vaddq_u16(top, vreinterpretq_u16_s16(carry)), 8);
}

/* Inlined with a constant n_taps, so that the digits stay in registers. */
FM_NEON_INLINE void fm_neon_vertical_digits(uint8_t *restrict out, const uint8_t *const *in,
                                            const fm_neon_digits *digits, const int32_t n_taps,
                                            size_t n_bytes) {
    const int16x8_t middle_start = vdupq_n_s16(digits->middle_start);
    const int16x8_t lowest_start = vdupq_n_s16(digits->lowest_start);
    const uint8_t *rows[FM_NEON_DIGITS];
    uint8x16_t tops[FM_NEON_DIGITS];
    int8x16_t middles[FM_NEON_DIGITS], lowests[FM_NEON_DIGITS];
    for (int32_t t = 0; t < n_taps; t++) {
        rows[t] = in[t];
        tops[t] = vdupq_n_u8(digits->top[t]);
        middles[t] = vdupq_n_s8(digits->middle[t]);
        lowests[t] = vdupq_n_s8(digits->lowest[t]);
    }
    for (size_t i = 0; i < n_bytes; i += 16) {
        uint16x8_t top_low = vdupq_n_u16(0), top_high = top_low;
        int16x8_t middle_low = middle_start, middle_high = middle_start;
        int16x8_t lowest_low = lowest_start, lowest_high = lowest_start;
        for (int32_t t = 0; t < n_taps; t++) {
            const uint8x16_t bytes = vld1q_u8(rows[t] + i);
            const int8x16_t less = vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
            top_low = vmlal_u8(top_low, vget_low_u8(bytes), vget_low_u8(tops[t]));
            top_high = vmlal_high_u8(top_high, bytes, tops[t]);
            middle_low = vmlal_s8(middle_low, vget_low_s8(less), vget_low_s8(middles[t]));
            middle_high = vmlal_high_s8(middle_high, less, middles[t]);
            lowest_low = vmlal_s8(lowest_low, vget_low_s8(less), vget_low_s8(lowests[t]));
            lowest_high = vmlal_high_s8(lowest_high, less, lowests[t]);
        }
        vst1q_u8(out + i, vcombine_u8(fm_neon_join_digits(top_low, middle_low, lowest_low),
                                      fm_neon_join_digits(top_high, middle_high, lowest_high)));
    }
}

/* Inlined with a constant n_taps, so that the loop over taps is unrolled. */
FM_NEON_INLINE void fm_neon_vertical_taps(uint8_t *restrict out, const uint8_t *const *in,
                                          const int32_t *weights, const int32_t n_taps,
                                          size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 16) {
        uint32x4_t sums[4];
        for (int k = 0; k < 4; k++) sums[k] = vdupq_n_u32(1u << (FM_COEFFS_BITS - 1));
        for (int32_t t = 0; t < n_taps; t++) {
            const uint32x4_t weight = vdupq_n_u32((uint32_t)weights[t]);
            const uint8x16_t bytes = vld1q_u8(in[t] + i);
            const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
            sums[0] = vmlaq_u32(sums[0], vmovl_u16(vget_low_u16(low)), weight);
            sums[1] = vmlaq_u32(sums[1], vmovl_high_u16(low), weight);
            sums[2] = vmlaq_u32(sums[2], vmovl_u16(vget_low_u16(high)), weight);
            sums[3] = vmlaq_u32(sums[3], vmovl_high_u16(high), weight);
        }
        vst1q_u8(out + i, fm_neon_round_sums(sums));
    }
}

FM_NEON void fm_vertical_neon(uint8_t *out, const uint8_t *const *in, const fm_coeffs *coeffs,
                              int32_t i, size_t n_bytes) {
    const int32_t n_taps = coeffs->n_taps[i];
    const fm_neon_digits *const digits = (const fm_neon_digits *)(const void *)coeffs->table + i;
    if (coeffs->has_table && digits->fit) {
        if (n_taps == 2)
            fm_neon_vertical_digits(out, in, digits, 2, n_bytes);
        else if (n_taps == 3)
            fm_neon_vertical_digits(out, in, digits, 3, n_bytes);
        else
            fm_neon_vertical_digits(out, in, digits, 4, n_bytes);
        return;
    }
    const int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
    /* Local copies of constant size, which can't alias `out`. */
    const uint8_t *rows[8];
    int32_t kept[8];
    for (int32_t t = 0; t < n_taps && t < 8; t++) {
        rows[t] = in[t];
        kept[t] = weights[t];
    }
#define FM_CASE(taps)                                          \
    case taps:                                                 \
        fm_neon_vertical_taps(out, rows, kept, taps, n_bytes); \
        break
    switch (n_taps) {
        FM_CASE(1);
        FM_CASE(2);
        FM_CASE(3);
        FM_CASE(4);
        FM_CASE(5);
        FM_CASE(6);
        FM_CASE(7);
        FM_CASE(8);
    default:
        fm_neon_vertical_taps(out, in, weights, n_taps, n_bytes);
    }
#undef FM_CASE
}

#endif
