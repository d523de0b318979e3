/* Copies of pixels in NEON, which loads and stores three or four channels at once. */
#ifndef FM_TRANSFORM_ARM_COPIES_NEON_H
#define FM_TRANSFORM_ARM_COPIES_NEON_H

#include "transform/arm/target.h"

FM_NEON_INLINE uint8x16_t fm_neon_reverse(uint8x16_t bytes) {
    const uint8x16_t halves = vrev64q_u8(bytes);
    return vextq_u8(halves, halves, 8);
}

FM_NEON void fm_mirror_neon(uint8_t *out, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint8x16x3_t px = vld3q_u8(in + 3 * (n - 16 - i));
        for (int c = 0; c < 3; c++) px.val[c] = fm_neon_reverse(px.val[c]);
        vst3q_u8(out + 3 * i, px);
    }
    for (; i < n; i++) {
        const uint8_t *const px = in + 3 * (n - 1 - i);
        out[3 * i + 0] = px[0];
        out[3 * i + 1] = px[1];
        out[3 * i + 2] = px[2];
    }
}

FM_NEON void fm_widen_neon(uint8_t *out, const uint8_t *in, int32_t n_px, uint8_t fourth) {
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16x3_t px = vld3q_u8(in + 3 * i);
        const uint8x16x4_t wide = {{px.val[0], px.val[1], px.val[2], vdupq_n_u8(fourth)}};
        vst4q_u8(out + 4 * i, wide);
    }
    for (; i < n; i++) {
        out[4 * i + 0] = in[3 * i + 0];
        out[4 * i + 1] = in[3 * i + 1];
        out[4 * i + 2] = in[3 * i + 2];
        out[4 * i + 3] = fourth;
    }
}

FM_NEON void fm_narrow_neon(uint8_t *out, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16x4_t px = vld4q_u8(in + 4 * i);
        const uint8x16x3_t narrow = {{px.val[0], px.val[1], px.val[2]}};
        vst3q_u8(out + 3 * i, narrow);
    }
    for (; i < n; i++) {
        out[3 * i + 0] = in[4 * i + 0];
        out[3 * i + 1] = in[4 * i + 1];
        out[3 * i + 2] = in[4 * i + 2];
    }
}

#endif
