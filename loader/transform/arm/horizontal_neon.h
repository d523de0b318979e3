/*
 * The horizontal kernel in NEON. A pixel's three sums are in the lanes of one register, whose
 * fourth lane is not used: tbl spreads a tap's three bytes over double words, and mla multiplies
 * them by the tap's weight, a lane of a register of four weights. Sums are modulo 2^32, as in the
 * scalar kernel.
 */
#ifndef FM_TRANSFORM_ARM_HORIZONTAL_NEON_H
#define FM_TRANSFORM_ARM_HORIZONTAL_NEON_H

#include "transform/arm/target.h"
#include "transform/kernels.h"

/* For each of four adjacent pixels: its bytes' places in the double words of a register. */
typedef struct fm_neon_spread {
    uint8x16_t px[4];
} fm_neon_spread;

FM_NEON_INLINE fm_neon_spread fm_neon_spread_init(void) {
    static const uint8_t first[16] = {0, 255, 255, 255, 1,   255, 255, 255,
                                      2, 255, 255, 255, 255, 255, 255, 255};
    fm_neon_spread spread;
    /* 255 and the numbers after it, modulo 256, must stay beyond 15. */
    const uint8x16_t place = vld1q_u8(first), used = vcltq_u8(place, vdupq_n_u8(16));
    for (int t = 0; t < 4; t++)
        spread.px[t] = vaddq_u8(place, vandq_u8(used, vdupq_n_u8((uint8_t)(3 * t))));
    return spread;
}

/* Adds up to four taps, whose bytes begin at `px`. */
FM_NEON_INLINE uint32x4_t fm_neon_add_taps(uint32x4_t sum, const uint8_t *px, uint32x4_t weights,
                                           const fm_neon_spread *spread, const int32_t n) {
    const uint8x16_t four = vld1q_u8(px);
#define FM_TAP(t) \
    if (n > (t))  \
    sum = vmlaq_laneq_u32(sum, vreinterpretq_u32_u8(vqtbl1q_u8(four, spread->px[t])), weights, t)
    FM_TAP(0);
    FM_TAP(1);
    FM_TAP(2);
    FM_TAP(3);
#undef FM_TAP
    return sum;
}

FM_NEON_INLINE uint32x4_t fm_neon_sum_px(const uint8_t *px, const int32_t *weights,
                                         const fm_neon_spread *spread, const int32_t n_taps) {
    uint32x4_t sum = vdupq_n_u32(1u << (FM_COEFFS_BITS - 1));
    int32_t t = 0;
    for (; t + 4 <= n_taps; t += 4)
        sum =
            fm_neon_add_taps(sum, px + 3 * t, vld1q_u32((const uint32_t *)weights + t), spread, 4);
    if (t < n_taps)
        sum = fm_neon_add_taps(sum, px + 3 * t, vld1q_u32((const uint32_t *)weights + t), spread,
                               n_taps - t);
    return sum;
}

/* Bytes from sums of four pixels, or of 16 columns: divided by 2^22, rounded down and clipped. */
FM_NEON_INLINE uint8x16_t fm_neon_round_sums(const uint32x4_t sums[4]) {
    uint8x8_t bytes[2];
    for (int h = 0; h < 2; h++) {
        const int32x4_t low = vreinterpretq_s32_u32(sums[2 * h]);
        const int32x4_t high = vreinterpretq_s32_u32(sums[2 * h + 1]);
        const uint16x8_t words = vqshrun_high_n_s32(vqshrun_n_s32(low, 16), high, 16);
        bytes[h] = vqshrn_n_u16(words, FM_COEFFS_BITS - 16);
    }
    return vcombine_u8(bytes[0], bytes[1]);
}

/* Four pixels per step; the last ones are repeated. A store writes four bytes too many, which are
 * overwritten or in the slack. */
FM_NEON_INLINE void fm_neon_horizontal_row(uint8_t *restrict out, const uint8_t *restrict in,
                                           const fm_coeffs *coeffs, const int32_t n_taps) {
    static const uint8_t join[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    const fm_neon_spread spread = fm_neon_spread_init();
    const int32_t *const first = coeffs->first;
    const size_t stride = (size_t)coeffs->stride, n = (size_t)coeffs->n;
    for (size_t i = 0; i < n; i += 4) {
        uint32x4_t sums[4];
        for (size_t k = 0; k < 4; k++) {
            const size_t at = i + k < n ? i + k : n - 1;
            sums[k] = fm_neon_sum_px(in + 3 * (size_t)first[at], coeffs->weights + at * stride,
                                     &spread, n_taps);
        }
        vst1q_u8(out + 3 * i, vqtbl1q_u8(fm_neon_round_sums(sums), vld1q_u8(join)));
    }
}

FM_NEON void fm_horizontal_neon(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                                const fm_coeffs *coeffs) {
    /* With a constant number of taps the inner loop is unrolled. */
#define FM_CASE(taps)                                            \
    case taps:                                                   \
        fm_neon_horizontal_row(out[row], in[row], coeffs, taps); \
        break
    for (int32_t row = 0; row < n_rows; row++) {
        switch (coeffs->max_taps) {
            FM_CASE(1);
            FM_CASE(2);
            FM_CASE(3);
            FM_CASE(4);
            FM_CASE(5);
            FM_CASE(6);
            FM_CASE(7);
            FM_CASE(8);
        default: /* weights of 0 follow, up to a multiple of four */
            fm_neon_horizontal_row(out[row], in[row], coeffs, (coeffs->max_taps + 3) / 4 * 4);
        }
    }
#undef FM_CASE
}

#endif
