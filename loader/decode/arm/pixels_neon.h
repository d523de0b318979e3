/* Upsampling and conversion to RGB in NEON, 16 samples per step. */
#ifndef FM_DECODE_ARM_PIXELS_NEON_H
#define FM_DECODE_ARM_PIXELS_NEON_H

#include "decode/arm/target.h"

/* 3 * near + far of bytes. */
FM_DECODE_NEON_INLINE uint16x8_t fm_blend_low_neon(uint8x16_t near, uint8x16_t far) {
    return vaddw_u8(vmull_u8(vget_low_u8(near), vdup_n_u8(3)), vget_low_u8(far));
}

FM_DECODE_NEON_INLINE uint16x8_t fm_blend_high_neon(uint8x16_t near, uint8x16_t far) {
    return vaddw_high_u8(vmull_high_u8(near, vdupq_n_u8(3)), far);
}

FM_DECODE_NEON void fm_upsample_h2_neon(uint8_t *out, const uint8_t *in, int32_t n) {
    const uint16x8_t one = vdupq_n_u16(1);
    for (int32_t i = 0; i < n; i += 16) {
        const uint8x16_t here = vld1q_u8(in + i);
        const uint8x16_t before = vld1q_u8(in + i - 1), after = vld1q_u8(in + i + 1);
        const uint16x8_t even_low = vaddq_u16(fm_blend_low_neon(here, before), one);
        const uint16x8_t even_high = vaddq_u16(fm_blend_high_neon(here, before), one);
        uint8x16x2_t both;
        both.val[0] = vshrn_high_n_u16(vshrn_n_u16(even_low, 2), even_high, 2);
        both.val[1] = vrshrn_high_n_u16(vrshrn_n_u16(fm_blend_low_neon(here, after), 2),
                                        fm_blend_high_neon(here, after), 2);
        vst2q_u8(out + 2 * (ptrdiff_t)i, both);
    }
}

/* Even and odd samples from sums of two rows: (3 * here + before + 8) >> 4 and
 * (3 * here + after + 7) >> 4. */
FM_DECODE_NEON_INLINE uint8x8x2_t fm_weigh_neon(uint16x8_t before, uint16x8_t here,
                                                uint16x8_t after) {
    const uint16x8_t triple = vaddq_u16(vshlq_n_u16(here, 1), here);
    uint8x8x2_t both;
    both.val[0] = vrshrn_n_u16(vaddq_u16(triple, before), 4);
    both.val[1] = vshrn_n_u16(vaddq_u16(vaddq_u16(triple, after), vdupq_n_u16(7)), 4);
    return both;
}

FM_DECODE_NEON void fm_upsample_h2v2_neon(uint8_t *out, const uint8_t *near, const uint8_t *far,
                                          int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        const uint8x16_t near0 = vld1q_u8(near + i - 1), near1 = vld1q_u8(near + i);
        const uint8x16_t near2 = vld1q_u8(near + i + 1);
        const uint8x16_t far0 = vld1q_u8(far + i - 1), far1 = vld1q_u8(far + i);
        const uint8x16_t far2 = vld1q_u8(far + i + 1);
        const uint8x8x2_t low =
            fm_weigh_neon(fm_blend_low_neon(near0, far0), fm_blend_low_neon(near1, far1),
                          fm_blend_low_neon(near2, far2));
        const uint8x8x2_t high =
            fm_weigh_neon(fm_blend_high_neon(near0, far0), fm_blend_high_neon(near1, far1),
                          fm_blend_high_neon(near2, far2));
        const uint8x16x2_t both = {
            {vcombine_u8(low.val[0], high.val[0]), vcombine_u8(low.val[1], high.val[1])}};
        vst2q_u8(out + 2 * (ptrdiff_t)i, both);
    }
}

FM_DECODE_NEON void fm_upsample_v2_neon(uint8_t *out, const uint8_t *near, const uint8_t *far,
                                        int32_t n, bool is_lower) {
    const uint16x8_t bias = vdupq_n_u16(is_lower ? 2 : 1);
    for (int32_t i = 0; i < n; i += 16) {
        const uint8x16_t a = vld1q_u8(near + i), b = vld1q_u8(far + i);
        const uint16x8_t low = vaddq_u16(fm_blend_low_neon(a, b), bias);
        const uint16x8_t high = vaddq_u16(fm_blend_high_neon(a, b), bias);
        vst1q_u8(out + i, vshrn_high_n_u16(vshrn_n_u16(low, 2), high, 2));
    }
}

/*
 * Eight pixels. sqrdmulh rounds x * factor / 2^15; with factor 13173 that is
 * (26345 * x + 2^15) >> 16 for x from -128 to 127, and with -7471 it is (-14942 * x + 2^15) >> 16,
 * the fractions of 1.402 and 1.772 - 2.
 */
FM_DECODE_NEON_INLINE uint8x8x3_t fm_ycc_eight_neon(uint8x8_t luma, uint8x8_t cb, uint8x8_t cr) {
    const uint8x8_t middle = vdup_n_u8(128);
    const int16x8_t y = vreinterpretq_s16_u16(vmovl_u8(luma));
    const int16x8_t u = vreinterpretq_s16_u16(vsubl_u8(cb, middle));
    const int16x8_t v = vreinterpretq_s16_u16(vsubl_u8(cr, middle));
    const int16x8_t red = vaddq_s16(v, vqrdmulhq_n_s16(v, 13173));
    const int16x8_t blue = vaddq_s16(vshlq_n_s16(u, 1), vqrdmulhq_n_s16(u, -7471));
    /* -0.34414 * u + 0.28586 * v - v */
    const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(u), -22554), vget_low_s16(v), 18734);
    const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(u, -22554), v, 18734);
    const int16x8_t part = vrshrn_high_n_s32(vrshrn_n_s32(low, 16), high, 16);
    const int16x8_t green = vsubq_s16(part, v);
    const uint8x8x3_t rgb = {{vqmovun_s16(vaddq_s16(y, red)), vqmovun_s16(vaddq_s16(y, green)),
                              vqmovun_s16(vaddq_s16(y, blue))}};
    return rgb;
}

/* Steps write 48 bytes, at least 3 of which are pixels. */
FM_DECODE_NEON void fm_ycc_to_rgb_neon(uint8_t *out, const uint8_t *y, const uint8_t *cb,
                                       const uint8_t *cr, int32_t n, bool bgr) {
    for (int32_t i = 0; i < n; i += 16, out += 48) {
        const uint8x16_t luma = vld1q_u8(y + i), u = vld1q_u8(cb + i), v = vld1q_u8(cr + i);
        const uint8x8x3_t low =
            fm_ycc_eight_neon(vget_low_u8(luma), vget_low_u8(u), vget_low_u8(v));
        const uint8x8x3_t high =
            fm_ycc_eight_neon(vget_high_u8(luma), vget_high_u8(u), vget_high_u8(v));
        const uint8x16_t red = vcombine_u8(low.val[0], high.val[0]);
        const uint8x16_t blue = vcombine_u8(low.val[2], high.val[2]);
        const uint8x16x3_t px = {
            {bgr ? blue : red, vcombine_u8(low.val[1], high.val[1]), bgr ? red : blue}};
        vst3q_u8(out, px);
    }
}

FM_DECODE_NEON void fm_gray_to_rgb_neon(uint8_t *out, const uint8_t *y, int32_t n) {
    for (int32_t i = 0; i < n; i += 16, out += 48) {
        const uint8x16_t gray = vld1q_u8(y + i);
        const uint8x16x3_t px = {{gray, gray, gray}};
        vst3q_u8(out, px);
    }
}

#endif
