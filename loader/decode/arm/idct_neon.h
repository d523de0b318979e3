/*
 * The inverse DCT in NEON. jidctint.c's terms are regrouped so that each is a sum of products of
 * 16-bit numbers, as in libjpeg-turbo's own SIMD code:
 *
 *     z1 = (v2 + v6) * a; z1 - v6 * b   is   v2 * a + v6 * (a - b)
 *
 * All numbers are exact for blocks in range (jpeg_kernels.h), so that the results equal the scalar
 * version's.
 */
#ifndef FM_DECODE_ARM_IDCT_NEON_H
#define FM_DECODE_ARM_IDCT_NEON_H

#include "decode/arm/target.h"

/* Four columns of the rows of a block. */
typedef struct fm_neon_columns {
    int16x4_t r[8];
} fm_neon_columns;

/* One pass over four columns: `sums` are the rows, not yet shifted. `half` is added to all. */
FM_DECODE_NEON_INLINE void fm_idct_half_neon(int32x4_t *sums, const fm_neon_columns *c,
                                             int32_t half) {
    static const int16_t factors[16] = {4433,          4433 - 15137, 4433 + 6270,   9633,
                                        9633 - 16069,  9633 - 3196,  12299 - 7373,  -7373,
                                        25172 - 20995, -20995,       16819 - 20995, 2446 - 7373};
    const int16x8_t f = vld1q_s16(factors), g = vld1q_s16(factors + 8);
    const int16x4_t *const r = c->r;
    const int16x4_t z3 = vadd_s16(r[3], r[7]), z4 = vadd_s16(r[1], r[5]);
    const int32x4_t round = vdupq_n_s32(half);
    const int32x4_t e0 = vaddq_s32(vshlq_n_s32(vaddl_s16(r[0], r[4]), 13), round);
    const int32x4_t e1 = vaddq_s32(vshlq_n_s32(vsubl_s16(r[0], r[4]), 13), round);
    const int32x4_t e2 = vmlal_laneq_s16(vmull_laneq_s16(r[2], f, 0), r[6], f, 1);
    const int32x4_t e3 = vmlal_laneq_s16(vmull_laneq_s16(r[2], f, 2), r[6], f, 0);
    const int32x4_t q3 = vmlal_laneq_s16(vmull_laneq_s16(z3, f, 4), z4, f, 3);
    const int32x4_t q4 = vmlal_laneq_s16(vmull_laneq_s16(z3, f, 3), z4, f, 5);
    const int32x4_t o0 = vmlal_laneq_s16(vmlal_laneq_s16(q4, r[1], f, 6), r[7], f, 7);
    const int32x4_t o1 = vmlal_laneq_s16(vmlal_laneq_s16(q3, r[3], g, 0), r[5], g, 1);
    const int32x4_t o2 = vmlal_laneq_s16(vmlal_laneq_s16(q4, r[3], g, 1), r[5], g, 2);
    const int32x4_t o3 = vmlal_laneq_s16(vmlal_laneq_s16(q3, r[1], f, 7), r[7], g, 3);
    const int32x4_t even0 = vaddq_s32(e0, e3), even3 = vsubq_s32(e0, e3);
    const int32x4_t even1 = vaddq_s32(e1, e2), even2 = vsubq_s32(e1, e2);
    sums[0] = vaddq_s32(even0, o0), sums[7] = vsubq_s32(even0, o0);
    sums[1] = vaddq_s32(even1, o1), sums[6] = vsubq_s32(even1, o1);
    sums[2] = vaddq_s32(even2, o2), sums[5] = vsubq_s32(even2, o2);
    sums[3] = vaddq_s32(even3, o3), sums[4] = vsubq_s32(even3, o3);
}

/* One pass over all columns. sums[0] are columns 0 to 3, sums[1] columns 4 to 7. */
FM_DECODE_NEON_INLINE void fm_idct_pass_neon(int32x4_t sums[2][8], const int16x8_t *r,
                                             int32_t half) {
    fm_neon_columns low, high;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        low.r[i] = vget_low_s16(r[i]);
        high.r[i] = vget_high_s16(r[i]);
    }
    fm_idct_half_neon(sums[0], &low, half);
    fm_idct_half_neon(sums[1], &high, half);
}

/* Transposes four rows' halves: pairs of rows, then pairs of these. */
FM_DECODE_NEON_INLINE void fm_idct_quads_neon(int32x4_t *quads, const int16x8_t *rows) {
    const int32x4_t p01 = vreinterpretq_s32_s16(vtrn1q_s16(rows[0], rows[1]));
    const int32x4_t q01 = vreinterpretq_s32_s16(vtrn2q_s16(rows[0], rows[1]));
    const int32x4_t p23 = vreinterpretq_s32_s16(vtrn1q_s16(rows[2], rows[3]));
    const int32x4_t q23 = vreinterpretq_s32_s16(vtrn2q_s16(rows[2], rows[3]));
    quads[0] = vtrn1q_s32(p01, p23); /* columns 0 and 4 */
    quads[1] = vtrn1q_s32(q01, q23); /* 1 and 5 */
    quads[2] = vtrn2q_s32(p01, p23); /* 2 and 6 */
    quads[3] = vtrn2q_s32(q01, q23); /* 3 and 7 */
}

/* The first pass's shift by 11, and transposition. */
FM_DECODE_NEON_INLINE void fm_idct_middle_neon(int16x8_t *r, int32x4_t sums[2][8]) {
    int32x4_t upper[4], lower[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = vshrn_high_n_s32(vshrn_n_s32(sums[0][i], 11), sums[1][i], 11);
    fm_idct_quads_neon(upper, r);
    fm_idct_quads_neon(lower, r + 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int64x2_t a = vreinterpretq_s64_s32(upper[i]), b = vreinterpretq_s64_s32(lower[i]);
        r[i] = vreinterpretq_s16_s64(vtrn1q_s64(a, b));
        r[i + 4] = vreinterpretq_s16_s64(vtrn2q_s64(a, b));
    }
}

/* The second pass's shift by 18, limiting to bytes, and transposition: rows 2 * i and 2 * i + 1 in
 * rows[i]. If `checks`, returns whether all samples were between -512 and 511 before 128 was added
 * to them. */
FM_DECODE_NEON_INLINE bool fm_idct_end_neon(uint8x16_t *rows, int32x4_t sums[2][8],
                                            const bool checks) {
    int16x8_t words[8]; /* columns of samples, times 4 */
    uint16x8_t wrong = vdupq_n_u16(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        words[i] = vshrn_high_n_s32(vshrn_n_s32(sums[0][i], 16), sums[1][i], 16);
        if (!checks) continue;
        const int16x8_t from_least = vaddq_s16(vshrq_n_s16(words[i], 2), vdupq_n_s16(512 - 128));
        wrong = vorrq_u16(wrong, vshrq_n_u16(vreinterpretq_u16_s16(from_least), 10));
    }
    uint8x16_t columns[4]; /* i and i + 4 */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        columns[i] = vqshrun_high_n_s16(vqshrun_n_s16(words[i], 2), words[i + 4], 2);
    const uint16x8_t even01 = vreinterpretq_u16_u8(vtrn1q_u8(columns[0], columns[1]));
    const uint16x8_t odd01 = vreinterpretq_u16_u8(vtrn2q_u8(columns[0], columns[1]));
    const uint16x8_t even23 = vreinterpretq_u16_u8(vtrn1q_u8(columns[2], columns[3]));
    const uint16x8_t odd23 = vreinterpretq_u16_u8(vtrn2q_u8(columns[2], columns[3]));
    /* Rows 0 and 4, and so on: columns 0 to 3 of both, then columns 4 to 7. */
    const uint32x4_t r04 = vreinterpretq_u32_u16(vtrn1q_u16(even01, even23));
    const uint32x4_t r26 = vreinterpretq_u32_u16(vtrn2q_u16(even01, even23));
    const uint32x4_t r15 = vreinterpretq_u32_u16(vtrn1q_u16(odd01, odd23));
    const uint32x4_t r37 = vreinterpretq_u32_u16(vtrn2q_u16(odd01, odd23));
    rows[0] = vreinterpretq_u8_u32(vuzp1q_u32(r04, r15));
    rows[1] = vreinterpretq_u8_u32(vuzp1q_u32(r26, r37));
    rows[2] = vreinterpretq_u8_u32(vuzp2q_u32(r04, r15));
    rows[3] = vreinterpretq_u8_u32(vuzp2q_u32(r26, r37));
    return !checks || vmaxvq_u16(wrong) == 0;
}

/* Computes a block from its coefficients' rows. If `checks`, false if samples are out of range. */
FM_DECODE_NEON_INLINE bool fm_idct_block_neon(uint8_t *out, size_t stride, const int16x8_t *c,
                                              const fm_jpeg_quant *quant, const bool checks) {
    int16x8_t r[8];
    int32x4_t sums[2][8];
    uint8x16_t rows[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = vmulq_s16(c[i], vld1q_s16(quant->step + 8 * i));
    fm_idct_pass_neon(sums, r, 1 << 10);
    fm_idct_middle_neon(r, sums);
    /* Half a unit, and 128, around which samples lie. */
    fm_idct_pass_neon(sums, r, (1 << 17) + (128 << 18));
    if (!fm_idct_end_neon(rows, sums, checks)) return false;
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        vst1_u8(out + 2 * i * stride, vget_low_u8(rows[i]));
        vst1_u8(out + (2 * i + 1) * stride, vget_high_u8(rows[i]));
    }
    return true;
}

/* The weighted sum of a block's coefficients. A DC of -32768 counts as 32767. */
FM_DECODE_NEON_INLINE int32_t fm_idct_weigh_neon(const int16x8_t *c, const fm_jpeg_quant *quant) {
    int32x4_t low = vdupq_n_s32(0), high = low;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int16x8_t weight = vld1q_s16(quant->weight + 8 * i), size = vqabsq_s16(c[i]);
        low = vmlal_s16(low, vget_low_s16(size), vget_low_s16(weight));
        high = vmlal_high_s16(high, size, weight);
    }
    return vaddvq_s32(vaddq_s32(low, high));
}

FM_DECODE_NEON_INLINE void fm_idct_load_neon(int16x8_t *c, const int16_t *block) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) c[i] = vld1q_s16(block + 8 * i);
}

/* A block that may be out of range: returns false if it is. */
FM_DECODE_NEON_COLD bool fm_idct_check_neon(uint8_t *out, size_t stride, const int16_t *block,
                                            const fm_jpeg_quant *quant) {
    int16x8_t c[8];
    fm_idct_load_neon(c, block);
    if (fm_idct_weigh_neon(c, quant) > FM_JPEG_EXACT_SUM && !fm_jpeg_block_in_range(block, quant))
        return false;
    return fm_idct_block_neon(out, stride, c, quant, true);
}

FM_DECODE_NEON bool fm_idct_neon(uint8_t *out, size_t stride, const int16_t *blocks,
                                 const fm_jpeg_quant *quant, int32_t n) {
    for (int32_t b = 0; b < n; b++, blocks += 64, out += 8) {
        int16x8_t c[8];
        fm_idct_load_neon(c, blocks);
        const int32_t sum = fm_idct_weigh_neon(c, quant);
        if (__builtin_expect(sum > FM_JPEG_SAFE_SUM, 0)) {
            if (!fm_idct_check_neon(out, stride, blocks, quant)) return false;
            continue;
        }
        const int32_t dc = blocks[0];
        if (sum == (dc < 0 ? -dc : dc) * quant->weight[0]) {
            /* No other coefficients than the DC: both passes together are (DC + 4) >> 3. */
            const int32_t sample = ((dc * quant->step[0] + 4) >> 3) + 128;
            const uint8x8_t flat = vqmovun_s16(vdupq_n_s16((int16_t)sample));
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++) vst1_u8(out + i * stride, flat);
            continue;
        }
        (void)fm_idct_block_neon(out, stride, c, quant, false);
    }
    return true;
}

#endif
