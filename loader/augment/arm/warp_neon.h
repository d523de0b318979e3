/* Interpolation in NEON, for warp.c, whose functions define the results: the four bytes from a
 * pixel on are four numbers. Double operations are those of the scalar code, which contract.h
 * fuses; differences of bytes are exact, as numbers of any kind. */
#ifndef FM_AUGMENT_ARM_WARP_NEON_H
#define FM_AUGMENT_ARM_WARP_NEON_H

#include <string.h>

#include "augment/arm/target.h"
#include "augment/warp.h"

/* Four doubles; the fourth belongs to no channel. */
typedef struct fm_neon_doubles {
    float64x2_t low, high;
} fm_neon_doubles;

FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_neon_doubles_of(int32x4_t values) {
    const float32x4_t floats = vcvtq_f32_s32(values); /* small numbers: exact */
    return (fm_neon_doubles){vcvt_f64_f32(vget_low_f32(floats)), vcvt_high_f64_f32(floats)};
}

FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_neon_add(fm_neon_doubles a, fm_neon_doubles b) {
    return (fm_neon_doubles){vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high)};
}

FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_neon_sub(fm_neon_doubles a, fm_neon_doubles b) {
    return (fm_neon_doubles){vsubq_f64(a.low, b.low), vsubq_f64(a.high, b.high)};
}

/* a + b * by, fused. */
FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_neon_add_scaled(fm_neon_doubles a, fm_neon_doubles b,
                                                          double by) {
    return (fm_neon_doubles){vfmaq_n_f64(a.low, b.low, by), vfmaq_n_f64(a.high, b.high, by)};
}

/* For each point, the pixel at or before it, and how far it is from that pixel. */
typedef struct fm_warp_split {
    double dx[FM_WARP_ARRAY], dy[FM_WARP_ARRAY];
    int32_t left[FM_WARP_ARRAY], top[FM_WARP_ARRAY];
} fm_warp_split;

FM_AUGMENT_NEON_INLINE void fm_warp_split_axis_neon(double *rest, int32_t *whole, const double *at,
                                                    size_t n) {
    for (size_t i = 0; i < n; i += 2) {
        const float64x2_t x = vsubq_f64(vld1q_f64(at + i), vdupq_n_f64(0.5));
        const float64x2_t down = vrndmq_f64(x);
        vst1q_f64(rest + i, vsubq_f64(x, down));
        vst1_s32(whole + i, vmovn_s64(vcvtq_s64_f64(down)));
    }
}

/* Four bytes. */
FM_AUGMENT_NEON_INLINE uint32_t fm_warp_word_neon(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, 4);
    return word;
}

/* Truncates and clips values. Stores the first three and, unless is_last, a fourth byte, which the
 * next pixel overwrites. */
FM_AUGMENT_NEON_INLINE void fm_warp_store_neon(uint8_t *out, fm_neon_doubles values, int is_last) {
    const int32x4_t numbers =
        vmovn_high_s64(vmovn_s64(vcvtq_s64_f64(values.low)), vcvtq_s64_f64(values.high));
    const uint16x4_t words = vqmovun_s32(numbers);
    const uint8x8_t bytes = vqmovn_u16(vcombine_u16(words, words));
    const uint32_t word = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    memcpy(out, &word, is_last ? 3 : 4);
}

/* ---- bilinear -------------------------------------------------------------------------------- */

/* The values between two neighbors in a row. */
FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_warp_line_neon(const uint8_t *px, double dx) {
    /* Bytes 0 to 3 and 2 to 5: nothing is read beyond the second pixel. */
    const uint64_t both = (uint64_t)fm_warp_word_neon(px + 2) << 32 | fm_warp_word_neon(px);
    const uint16x8_t first = vmovl_u8(vcreate_u8(both)), second = vmovl_u8(vcreate_u8(both >> 40));
    const int32x4_t value = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(first)));
    const int32x4_t slope =
        vreinterpretq_s32_u32(vsubl_u16(vget_low_u16(second), vget_low_u16(first)));
    return fm_neon_add_scaled(fm_neon_doubles_of(value), fm_neon_doubles_of(slope), dx);
}

FM_AUGMENT_NEON void fm_warp_bilinear_neon(const fm_image *in, uint8_t *out, const double *x,
                                           const double *y, size_t n) {
    const size_t row_bytes = fm_image_row_bytes(in);
    fm_warp_split at;
    fm_warp_split_axis_neon(at.dx, at.left, x, n);
    fm_warp_split_axis_neon(at.dy, at.top, y, n);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *const px = in->px + (size_t)at.top[i] * row_bytes + 3 * (size_t)at.left[i];
        const fm_neon_doubles upper = fm_warp_line_neon(px, at.dx[i]);
        const fm_neon_doubles lower = fm_warp_line_neon(px + row_bytes, at.dx[i]);
        const fm_neon_doubles apart = fm_neon_sub(lower, upper);
        fm_warp_store_neon(out + 3 * i, fm_neon_add_scaled(upper, apart, at.dy[i]), i == n - 1);
    }
}

/* ---- bicubic --------------------------------------------------------------------------------- */

/* p1 + d * (p2 + d * (p3 + d * p4)) */
FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_warp_polynomial_neon(fm_neon_doubles p1,
                                                               fm_neon_doubles p2,
                                                               fm_neon_doubles p3,
                                                               fm_neon_doubles p4, double d) {
    const fm_neon_doubles third = fm_neon_add_scaled(p3, p4, d);
    return fm_neon_add_scaled(p1, fm_neon_add_scaled(p2, third, d), d);
}

/* The values between the second and third of four neighbors in a row. */
FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_warp_cubic_row_neon(const uint8_t *px, double dx) {
    const uint8x8_t first = vld1_u8(px), last = vcreate_u8(fm_warp_word_neon(px + 8));
    const uint16x8_t low = vmovl_u8(first), high = vmovl_u8(last);
    int32x4_t v[4];
    v[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low)));
    v[1] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vextq_u16(low, high, 3))));
    v[2] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vextq_u16(low, high, 6))));
    v[3] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vextq_u16(high, high, 1))));
    const int32x4_t v12 = vsubq_s32(v[0], v[1]), v34 = vsubq_s32(v[2], v[3]);
    const int32x4_t p2 = vsubq_s32(v[2], v[0]), p4 = vnegq_s32(vaddq_s32(v12, v34));
    const int32x4_t p3 = vaddq_s32(vaddq_s32(v12, v12), v34);
    return fm_warp_polynomial_neon(fm_neon_doubles_of(v[1]), fm_neon_doubles_of(p2),
                                   fm_neon_doubles_of(p3), fm_neon_doubles_of(p4), dx);
}

/* cubic() of doubles. */
FM_AUGMENT_NEON_INLINE fm_neon_doubles fm_warp_cubic_neon(const fm_neon_doubles v[4], double d) {
    const fm_neon_doubles v12 = fm_neon_sub(v[0], v[1]);
    const fm_neon_doubles p2 = fm_neon_sub(v[2], v[0]);
    const fm_neon_doubles p3 = fm_neon_sub(fm_neon_add(fm_neon_add(v12, v12), v[2]), v[3]);
    const fm_neon_doubles v21 = fm_neon_sub(v[1], v[0]);
    const fm_neon_doubles p4 = fm_neon_add(fm_neon_sub(v21, v[2]), v[3]);
    return fm_warp_polynomial_neon(v[1], p2, p3, p4, d);
}

FM_AUGMENT_NEON void fm_warp_bicubic_neon(const fm_image *in, uint8_t *out, const double *x,
                                          const double *y, size_t n) {
    const size_t row_bytes = fm_image_row_bytes(in);
    fm_warp_split at;
    fm_warp_split_axis_neon(at.dx, at.left, x, n);
    fm_warp_split_axis_neon(at.dy, at.top, y, n);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *px =
            in->px + (size_t)(at.top[i] - 1) * row_bytes + 3 * (size_t)(at.left[i] - 1);
        fm_neon_doubles rows[4];
        for (size_t k = 0; k < 4; k++, px += row_bytes)
            rows[k] = fm_warp_cubic_row_neon(px, at.dx[i]);
        fm_warp_store_neon(out + 3 * i, fm_warp_cubic_neon(rows, at.dy[i]), i == n - 1);
    }
}

#endif
