/*
 * Blends, gray values and look-up tables in NEON, for color.c, whose functions define the results.
 * Float operations are those of the scalar code, which contract.h fuses. Conversions to integers
 * truncate, and narrowing clips, as mix() does. Functions process 16 pixels or bytes at a time, and
 * return how many they did; fewer than 16 are left.
 */
#ifndef FM_AUGMENT_ARM_COLOR_NEON_H
#define FM_AUGMENT_ARM_COLOR_NEON_H

#include "augment/arm/target.h"

/* ---- blends ---------------------------------------------------------------------------------- */

typedef struct fm_neon_floats {
    float32x4_t quarter[4];
} fm_neon_floats;

FM_AUGMENT_NEON_INLINE fm_neon_floats fm_neon_floats_of(uint8x16_t bytes) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    const fm_neon_floats floats = {
        {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
         vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
    return floats;
}

/* base + factor * (value - base) of 16 values. */
FM_AUGMENT_NEON_INLINE uint8x16_t fm_neon_mix(const fm_neon_floats *base, uint8x16_t bytes,
                                              float factor) {
    const fm_neon_floats value = fm_neon_floats_of(bytes);
    uint32x4_t mixed[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const float32x4_t apart = vsubq_f32(value.quarter[k], base->quarter[k]);
        mixed[k] = vcvtq_u32_f32(vfmaq_n_f32(base->quarter[k], apart, factor));
    }
    const uint16x8_t low = vqmovn_high_u32(vqmovn_u32(mixed[0]), mixed[1]);
    const uint16x8_t high = vqmovn_high_u32(vqmovn_u32(mixed[2]), mixed[3]);
    return vqmovn_high_u16(vqmovn_u16(low), high);
}

FM_AUGMENT_NEON size_t fm_color_blend_neon(uint8_t *px, const uint8_t *base, size_t n,
                                           float factor) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const fm_neon_floats bases = fm_neon_floats_of(vld1q_u8(base + i));
        vst1q_u8(px + i, fm_neon_mix(&bases, vld1q_u8(px + i), factor));
    }
    return i;
}

/* The same with one base for all bytes. */
FM_AUGMENT_NEON size_t fm_color_fade_neon(uint8_t *px, size_t n, float base, float factor) {
    const float32x4_t four = vdupq_n_f32(base);
    const fm_neon_floats bases = {{four, four, four, four}};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) vst1q_u8(px + i, fm_neon_mix(&bases, vld1q_u8(px + i), factor));
    return i;
}

/* ---- gray values ----------------------------------------------------------------------------- */

/* gray_of() of eight pixels. Narrowing adds 0x8000 first. */
FM_AUGMENT_NEON_INLINE uint16x8_t fm_neon_gray_eight(uint16x8_t red, uint16x8_t green,
                                                     uint16x8_t blue) {
    uint32x4_t low = vmull_n_u16(vget_low_u16(red), 19595);
    uint32x4_t high = vmull_high_n_u16(red, 19595);
    low = vmlal_n_u16(low, vget_low_u16(green), 38470);
    high = vmlal_high_n_u16(high, green, 38470);
    low = vmlal_n_u16(low, vget_low_u16(blue), 7471);
    high = vmlal_high_n_u16(high, blue, 7471);
    return vrshrn_high_n_u32(vrshrn_n_u32(low, 16), high, 16);
}

FM_AUGMENT_NEON_INLINE uint8x16_t fm_neon_gray(uint8x16x3_t px) {
    const uint16x8_t low =
        fm_neon_gray_eight(vmovl_u8(vget_low_u8(px.val[0])), vmovl_u8(vget_low_u8(px.val[1])),
                           vmovl_u8(vget_low_u8(px.val[2])));
    const uint16x8_t high = fm_neon_gray_eight(vmovl_high_u8(px.val[0]), vmovl_high_u8(px.val[1]),
                                               vmovl_high_u8(px.val[2]));
    return vmovn_high_u16(vmovn_u16(low), high);
}

/* `out` may be `px`. */
FM_AUGMENT_NEON size_t fm_gray_neon(uint8_t *out, const uint8_t *px, size_t n_px) {
    size_t i = 0;
    for (; i + 16 <= n_px; i += 16) vst1q_u8(out + i, fm_neon_gray(vld3q_u8(px + 3 * i)));
    return i;
}

FM_AUGMENT_NEON size_t fm_gray_rgb_neon(uint8_t *out, const uint8_t *px, size_t n_px) {
    size_t i = 0;
    for (; i + 16 <= n_px; i += 16) {
        const uint8x16_t gray = fm_neon_gray(vld3q_u8(px + 3 * i));
        const uint8x16x3_t three = {{gray, gray, gray}};
        vst3q_u8(out + 3 * i, three);
    }
    return i;
}

FM_AUGMENT_NEON size_t fm_gray_sum_neon(uint64_t *sum, const uint8_t *px, size_t n_px) {
    uint64x2_t sums = vdupq_n_u64(0);
    size_t i = 0;
    for (; i + 16 <= n_px; i += 16) {
        const uint8x16_t gray = fm_neon_gray(vld3q_u8(px + 3 * i));
        sums = vpadalq_u32(sums, vpaddlq_u16(vpaddlq_u8(gray)));
    }
    *sum = vaddvq_u64(sums);
    return i;
}

FM_AUGMENT_NEON size_t fm_fade_to_gray_neon(uint8_t *px, size_t n_px, float factor) {
    size_t i = 0;
    for (; i + 16 <= n_px; i += 16) {
        uint8x16x3_t all = vld3q_u8(px + 3 * i);
        const fm_neon_floats gray = fm_neon_floats_of(fm_neon_gray(all));
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++) all.val[c] = fm_neon_mix(&gray, all.val[c], factor);
        vst3q_u8(px + 3 * i, all);
    }
    return i;
}

/* ---- look-up tables -------------------------------------------------------------------------- */

/* Pixels whose channels are separated at a time: a table fills half of the registers. */
enum { FM_NEON_LOOKUP_PX = 128 };

/* Replaces FM_NEON_LOOKUP_PX bytes by their entries. tbx keeps what is beyond its 64 entries. */
FM_AUGMENT_NEON_INLINE void fm_neon_lookup_channel(uint8_t *bytes, const uint8_t table[256]) {
    const uint8x16x4_t first = vld1q_u8_x4(table), second = vld1q_u8_x4(table + 64);
    const uint8x16x4_t third = vld1q_u8_x4(table + 128), fourth = vld1q_u8_x4(table + 192);
    for (size_t i = 0; i < FM_NEON_LOOKUP_PX; i += 16) {
        const uint8x16_t at = vld1q_u8(bytes + i);
        uint8x16_t found = vqtbl4q_u8(first, at);
        found = vqtbx4q_u8(found, second, vsubq_u8(at, vdupq_n_u8(64)));
        found = vqtbx4q_u8(found, third, vsubq_u8(at, vdupq_n_u8(128)));
        found = vqtbx4q_u8(found, fourth, vsubq_u8(at, vdupq_n_u8(192)));
        vst1q_u8(bytes + i, found);
    }
}

/* Replaces each byte of pixels of three bytes by its entry in its channel's table. Returns how many
 * pixels it did; fewer than FM_NEON_LOOKUP_PX are left. */
FM_AUGMENT_NEON size_t fm_lookup_neon(uint8_t *px, size_t n_px, const uint8_t tables[3 * 256]) {
    uint8_t channels[3][FM_NEON_LOOKUP_PX];
    size_t i = 0;
    for (; i + FM_NEON_LOOKUP_PX <= n_px; i += FM_NEON_LOOKUP_PX) {
        uint8_t *const at = px + 3 * i;
        for (size_t k = 0; k < FM_NEON_LOOKUP_PX; k += 16) {
            const uint8x16x3_t all = vld3q_u8(at + 3 * k);
            for (int c = 0; c < 3; c++) vst1q_u8(channels[c] + k, all.val[c]);
        }
        for (size_t c = 0; c < 3; c++) fm_neon_lookup_channel(channels[c], tables + 256 * c);
        for (size_t k = 0; k < FM_NEON_LOOKUP_PX; k += 16) {
            const uint8x16x3_t all = {
                {vld1q_u8(channels[0] + k), vld1q_u8(channels[1] + k), vld1q_u8(channels[2] + k)}};
            vst3q_u8(at + 3 * k, all);
        }
    }
    return i;
}

#endif
