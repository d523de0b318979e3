/* Stores in NEON: uint8 planes, and values that are computed instead of read from the table. */
#ifndef FM_TRANSFORM_ARM_STORE_NEON_H
#define FM_TRANSFORM_ARM_STORE_NEON_H

#include <string.h>

#include "transform/arm/target.h"
#include "transform/store.h"

/* The last 16 pixels may overlap the ones before, as stores must not write further. */
FM_NEON void fm_planar_u8_neon(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px, plane = store->plane;
    uint8_t *const to = out;
    for (size_t i = 0; n >= 16 && i < n; i += 16) {
        const size_t at = i + 16 <= n ? i : n - 16;
        const uint8x16x3_t px = vld3q_u8(in + 3 * at);
        for (size_t channel = 0; channel < 3; channel++)
            vst1q_u8(to + channel * plane + at, px.val[channel]);
    }
    for (size_t i = 0; n < 16 && i < n; i++)
        for (size_t channel = 0; channel < 3; channel++)
            to[channel * plane + i] = in[3 * i + channel];
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* A compile-time constant in all functions below. */
typedef enum fm_neon_kind { FM_NEON_F32, FM_NEON_F16, FM_NEON_BF16 } fm_neon_kind;

/* The constants for four adjacent values. */
typedef struct fm_neon_terms {
    float32x4_t mean, scale_high, scale_low; /* float32 */
    float32x4_t slope, offset;               /* 16 bits */
} fm_neon_terms;

/*
 * Computes four values. 1/255 and 1/std are sums of two floats, the second being the rounding error
 * of the first, so that products are correctly rounded except in rare cases; fm_store_init() has
 * compared all results with the table.
 */
FM_NEON_INLINE float32x4_t fm_neon_values(uint32x4_t bytes, const fm_neon_terms *terms,
                                          const fm_neon_kind kind) {
    const float32x4_t x = vcvtq_f32_u32(bytes);
    if (kind != FM_NEON_F32) return vfmaq_f32(terms->offset, x, terms->slope);
    const float32x4_t part = vmulq_n_f32(x, FM_STEPS_255TH_LOW);
    const float32x4_t share = vfmaq_n_f32(part, x, FM_STEPS_255TH_HIGH);
    const float32x4_t from_mean = vsubq_f32(share, terms->mean);
    return vfmaq_f32(vmulq_f32(from_mean, terms->scale_low), from_mean, terms->scale_high);
}

/* Stores eight values in their type. bfloat16 rounds ties up, not to even; fm_store_init() has
 * checked that there are none. */
FM_NEON_INLINE void fm_neon_put(uint8_t *to, float32x4_t low, float32x4_t high,
                                const fm_neon_kind kind) {
    if (kind == FM_NEON_F32) {
        vst1q_f32((float *)(void *)to, low);
        vst1q_f32((float *)(void *)to + 4, high);
    } else if (kind == FM_NEON_F16) {
        const float16x8_t halves = vcvt_high_f16_f32(vcvt_f16_f32(low), high);
        vst1q_u16((uint16_t *)(void *)to, vreinterpretq_u16_f16(halves));
    } else {
        const uint32x4_t half = vdupq_n_u32(0x8000);
        const uint16x4_t first = vaddhn_u32(vreinterpretq_u32_f32(low), half);
        vst1q_u16((uint16_t *)(void *)to,
                  vaddhn_high_u32(first, vreinterpretq_u32_f32(high), half));
    }
}

/* Computes and stores eight bytes' values, the constants of which are terms[0] and terms[1]. */
FM_NEON_INLINE void fm_neon_put_bytes(uint8_t *to, uint8x8_t bytes, const fm_neon_terms *low,
                                      const fm_neon_terms *high, const fm_neon_kind kind) {
    const uint16x8_t words = vmovl_u8(bytes);
    fm_neon_put(to, fm_neon_values(vmovl_u16(vget_low_u16(words)), low, kind),
                fm_neon_values(vmovl_high_u16(words), high, kind), kind);
}

FM_NEON_INLINE size_t fm_neon_value_bytes(const fm_neon_kind kind) {
    return kind == FM_NEON_F32 ? 4 : 2;
}

/* ---- planes ---------------------------------------------------------------------------------- */

FM_NEON_INLINE void fm_neon_channel_terms(fm_neon_terms *terms, const fm_store *store) {
    for (int channel = 0; channel < 3; channel++)
        terms[channel] =
            (fm_neon_terms){.mean = vdupq_n_f32(store->steps.mean[channel]),
                            .scale_high = vdupq_n_f32(store->steps.scale_high[channel]),
                            .scale_low = vdupq_n_f32(store->steps.scale_low[channel]),
                            .slope = vdupq_n_f32(store->line.slope[channel]),
                            .offset = vdupq_n_f32(store->line.offset[channel])};
}

/* Stores eight pixels. */
FM_NEON_INLINE void fm_neon_planar_px(uint8_t *to, size_t plane_bytes, const uint8_t *in,
                                      const fm_neon_terms *terms, const fm_neon_kind kind) {
    const uint8x8x3_t px = vld3_u8(in);
    for (size_t c = 0; c < 3; c++)
        fm_neon_put_bytes(to + c * plane_bytes, px.val[c], &terms[c], &terms[c], kind);
}

/* The last eight pixels may overlap the ones before. Fewer than eight go through a buffer; what is
 * read beyond them is in the slack. */
FM_NEON_INLINE void fm_neon_planar(const fm_store *store, uint8_t *out, const uint8_t *in, size_t n,
                                   const fm_neon_kind kind) {
    const size_t value_bytes = fm_neon_value_bytes(kind);
    const size_t plane_bytes = store->plane * value_bytes;
    fm_neon_terms terms[3];
    fm_neon_channel_terms(terms, store);
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        fm_neon_planar_px(out + at * value_bytes, plane_bytes, in + 3 * at, terms, kind);
    }
    if (n >= 8) return;
    uint8_t few[3 * 32];
    fm_neon_planar_px(few, 32, in, terms, kind);
    for (size_t channel = 0; channel < 3; channel++)
        memcpy(out + channel * plane_bytes, few + 32 * channel, n * value_bytes);
}

FM_NEON void fm_planar_f32_neon(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    fm_neon_planar(store, out, in, (size_t)n_px, FM_NEON_F32);
}

FM_NEON void fm_planar_f16_neon(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    fm_neon_planar(store, out, in, (size_t)n_px, FM_NEON_F16);
}

FM_NEON void fm_planar_bf16_neon(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    fm_neon_planar(store, out, in, (size_t)n_px, FM_NEON_BF16);
}

/* As fm_neon_planar(), for one channel. */
FM_NEON void fm_plane_f32_neon(const fm_store *store, int channel, void *out, const uint8_t *in,
                               size_t n) {
    float *const to = out, few_values[8];
    uint8_t few[8] = {0};
    fm_neon_terms terms[3];
    fm_neon_channel_terms(terms, store);
    const fm_neon_terms *const own = &terms[channel];
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        fm_neon_put_bytes((uint8_t *)(to + at), vld1_u8(in + at), own, own, FM_NEON_F32);
    }
    if (n >= 8) return;
    memcpy(few, in, n);
    fm_neon_put_bytes((uint8_t *)few_values, vld1_u8(few), own, own, FM_NEON_F32);
    memcpy(to, few_values, n * sizeof(float));
}

/* ---- interleaved channels -------------------------------------------------------------------- */

/* Repeats the three channels' numbers four times in all, beginning with channel first % 3. */
FM_NEON_INLINE float32x4_t fm_neon_in_turn(const float *by_channel, int first) {
    float turn[4];
    for (int i = 0; i < 4; i++) turn[i] = by_channel[(first + i) % 3];
    return vld1q_f32(turn);
}

/* The constants for four values that begin with channel 0, 1 or 2. */
FM_NEON_INLINE void fm_neon_turn_terms(fm_neon_terms *terms, const fm_store *store) {
    for (int first = 0; first < 3; first++)
        terms[first] =
            (fm_neon_terms){.mean = fm_neon_in_turn(store->steps.mean, first),
                            .scale_high = fm_neon_in_turn(store->steps.scale_high, first),
                            .scale_low = fm_neon_in_turn(store->steps.scale_low, first),
                            .slope = fm_neon_in_turn(store->line.slope, first),
                            .offset = fm_neon_in_turn(store->line.offset, first)};
}

/* Eight pixels: value i of the 24 is of channel i % 3. */
FM_NEON_INLINE void fm_neon_packed_px(uint8_t *to, const uint8_t *in, const fm_neon_terms *terms,
                                      const fm_neon_kind kind) {
    const size_t step = 8 * fm_neon_value_bytes(kind);
    fm_neon_put_bytes(to, vld1_u8(in), &terms[0], &terms[1], kind);
    fm_neon_put_bytes(to + step, vld1_u8(in + 8), &terms[2], &terms[0], kind);
    fm_neon_put_bytes(to + 2 * step, vld1_u8(in + 16), &terms[1], &terms[2], kind);
}

FM_NEON_INLINE void fm_neon_packed(const fm_store *store, uint8_t *out, const uint8_t *in, size_t n,
                                   const fm_neon_kind kind) {
    const size_t px_bytes = 3 * fm_neon_value_bytes(kind);
    fm_neon_terms terms[3];
    fm_neon_turn_terms(terms, store);
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        fm_neon_packed_px(out + at * px_bytes, in + 3 * at, terms, kind);
    }
    if (n >= 8) return;
    uint8_t few[3 * 32];
    fm_neon_packed_px(few, in, terms, kind);
    memcpy(out, few, n * px_bytes);
}

FM_NEON void fm_packed_f32_neon(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    fm_neon_packed(store, out, in, (size_t)n_px, FM_NEON_F32);
}

FM_NEON void fm_packed_f16_neon(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    fm_neon_packed(store, out, in, (size_t)n_px, FM_NEON_F16);
}

FM_NEON void fm_packed_bf16_neon(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    fm_neon_packed(store, out, in, (size_t)n_px, FM_NEON_BF16);
}

#endif
