/* The blur's kernel in NEON, 16 bytes at a time, for blur.c, whose row_scalar() defines the result.
 */
#ifndef FM_AUGMENT_ARM_BLUR_NEON_H
#define FM_AUGMENT_ARM_BLUR_NEON_H

#include "augment/arm/target.h"

/* The weighted sums of eight columns, with half a unit, divided by 2^24. */
FM_AUGMENT_NEON_INLINE uint8x8_t fm_blur_mix_neon(uint16x8_t sum, uint16x8_t far, uint32_t weight,
                                                  uint32_t far_weight) {
    uint32x4_t low = vdupq_n_u32(1u << 23), high = low;
    low = vmlaq_n_u32(low, vmovl_u16(vget_low_u16(sum)), weight);
    high = vmlaq_n_u32(high, vmovl_high_u16(sum), weight);
    low = vmlaq_n_u32(low, vmovl_u16(vget_low_u16(far)), far_weight);
    high = vmlaq_n_u32(high, vmovl_high_u16(far), far_weight);
    return vshrn_n_u16(vshrn_high_n_u32(vshrn_n_u32(low, 16), high, 16), 8);
}

FM_AUGMENT_NEON_INLINE void fm_blur_16_neon(uint8_t *out, const uint8_t *const *taps, int n_taps,
                                            size_t at, uint32_t weight, uint32_t far_weight) {
    const uint8x16_t first = vld1q_u8(taps[0] + at), last = vld1q_u8(taps[n_taps - 1] + at);
    const uint16x8_t far_low = vaddl_u8(vget_low_u8(first), vget_low_u8(last));
    const uint16x8_t far_high = vaddl_high_u8(first, last);
    uint16x8_t low = vdupq_n_u16(0), high = low;
    for (int tap = 1; tap < n_taps - 1; tap++) {
        const uint8x16_t bytes = vld1q_u8(taps[tap] + at);
        low = vaddw_u8(low, vget_low_u8(bytes));
        high = vaddw_high_u8(high, bytes);
    }
    vst1q_u8(out + at, vcombine_u8(fm_blur_mix_neon(low, far_low, weight, far_weight),
                                   fm_blur_mix_neon(high, far_high, weight, far_weight)));
}

/* A row of n bytes, at least 16. The last 16 may overlap the ones before. */
FM_AUGMENT_NEON void fm_blur_row_neon(uint8_t *out, const uint8_t *const *taps, int n_taps,
                                      size_t n, uint32_t weight, uint32_t far_weight) {
    size_t at = 0;
    for (; at + 16 <= n; at += 16) fm_blur_16_neon(out, taps, n_taps, at, weight, far_weight);
    if (at < n) fm_blur_16_neon(out, taps, n_taps, n - 16, weight, far_weight);
}

#endif
