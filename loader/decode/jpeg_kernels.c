#define _GNU_SOURCE
#include "decode/jpeg_kernels.h"

#if defined(__x86_64__)
#include "decode/x86/kernels_x86.h"
#elif defined(__aarch64__)
#include "decode/arm/kernels_arm.h"
#endif

/* ---- inverse DCT ----------------------------------------------------------------------------- */

/* Fixed-point numbers of jidctint.c, with CONST_BITS bits after the point. */
#define CONST_BITS 13
/* Additional bits of the values between the two passes. */
#define PASS1_BITS 2
#define FIX_0_298631336 2446
#define FIX_0_390180644 3196
#define FIX_0_541196100 4433
#define FIX_0_765366865 6270
#define FIX_0_899976223 7373
#define FIX_1_175875602 9633
#define FIX_1_501321110 12299
#define FIX_1_847759065 15137
#define FIX_1_961570560 16069
#define FIX_2_053119869 16819
#define FIX_2_562915447 20995
#define FIX_3_072711026 25172

static bool fits(int64_t value) { return value >= INT16_MIN && value <= INT16_MAX; }

/* One pass of jidctint.c over the 8 values v[0], v[step], ..., which are divided by 2^shift
 * afterwards. false if a number does not fit the 16 bits that it has with SIMD. */
static bool idct_pass(int64_t *v, int step, int shift) {
    const int64_t v0 = v[0], v1 = v[step], v2 = v[2 * step], v3 = v[3 * step], v4 = v[4 * step],
                  v5 = v[5 * step], v6 = v[6 * step], v7 = v[7 * step];
    if (!fits(v0) || !fits(v1) || !fits(v2) || !fits(v3) || !fits(v4) || !fits(v5) || !fits(v6) ||
        !fits(v7) || !fits(v0 + v4) || !fits(v0 - v4) || !fits(v3 + v7) || !fits(v1 + v5))
        return false;
    /* Even part. */
    const int64_t e = (v2 + v6) * FIX_0_541196100;
    const int64_t e2 = e - v6 * FIX_1_847759065, e3 = e + v2 * FIX_0_765366865;
    const int64_t half = (int64_t)1 << (shift - 1);
    const int64_t e0 = (v0 + v4) * (1 << CONST_BITS) + half;
    const int64_t e1 = (v0 - v4) * (1 << CONST_BITS) + half;
    const int64_t even[4] = {e0 + e3, e1 + e2, e1 - e2, e0 - e3};
    /* Odd part. */
    const int64_t z5 = (v7 + v3 + v5 + v1) * FIX_1_175875602;
    const int64_t z1 = (v7 + v1) * -FIX_0_899976223, z2 = (v5 + v3) * -FIX_2_562915447;
    const int64_t z3 = z5 - (v7 + v3) * FIX_1_961570560, z4 = z5 - (v5 + v1) * FIX_0_390180644;
    const int64_t odd[4] = {v1 * FIX_1_501321110 + z1 + z4, v3 * FIX_3_072711026 + z2 + z3,
                            v5 * FIX_2_053119869 + z2 + z4, v7 * FIX_0_298631336 + z1 + z3};
    for (int i = 0; i < 4; i++) {
        v[i * step] = (even[i] + odd[i]) >> shift;
        v[(7 - i) * step] = (even[i] - odd[i]) >> shift;
    }
    return true;
}

/* Computes samples without limiting them to 0 to 255. false if the block is out of range. */
static bool idct_block(int64_t *samples, const int16_t *block, const fm_jpeg_quant *quant) {
    for (int i = 0; i < 64; i++) samples[i] = (int64_t)block[i] * quant->step[i];
    for (int x = 0; x < 8; x++)
        if (!idct_pass(samples + x, 8, CONST_BITS - PASS1_BITS)) return false;
    for (int y = 0; y < 8; y++)
        if (!idct_pass(samples + 8 * y, 1, CONST_BITS + PASS1_BITS + 3)) return false;
    for (int i = 0; i < 64; i++) {
        if (samples[i] < -512 || samples[i] > 511) return false;
        samples[i] += 128;
    }
    return true;
}

bool fm_jpeg_block_in_range(const int16_t *block, const fm_jpeg_quant *quant) {
    int64_t samples[64];
    return idct_block(samples, block, quant);
}

void fm_jpeg_quant_set(fm_jpeg_quant *quant, const uint16_t steps[64]) {
    for (int i = 0; i < 64; i++) {
        const int weight = i == 0 ? 2 : i < 8 || i % 8 == 0 ? 3 : 4;
        quant->step[i] = (int16_t)steps[i];
        quant->weight[i] = (int16_t)(weight * steps[i]);
    }
}

static uint8_t clip(int64_t value) { return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value; }

static bool idct(uint8_t *out, size_t stride, const int16_t *blocks, const fm_jpeg_quant *quant,
                 int32_t n) {
    for (int32_t b = 0; b < n; b++, blocks += 64, out += 8) {
        int64_t samples[64];
        if (!idct_block(samples, blocks, quant)) return false;
        for (size_t i = 0; i < 64; i++) out[i / 8 * stride + i % 8] = clip(samples[i]);
    }
    return true;
}

/* ---- upsampling ------------------------------------------------------------------------------ */

static void upsample_h2(uint8_t *out, const uint8_t *in, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        out[2 * i] = (uint8_t)((3 * in[i] + in[i - 1] + 1) >> 2);
        out[2 * i + 1] = (uint8_t)((3 * in[i] + in[i + 1] + 2) >> 2);
    }
}

static void upsample_h2v2(uint8_t *out, const uint8_t *near, const uint8_t *far, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const int before = 3 * near[i - 1] + far[i - 1], here = 3 * near[i] + far[i];
        const int after = 3 * near[i + 1] + far[i + 1];
        out[2 * i] = (uint8_t)((3 * here + before + 8) >> 4);
        out[2 * i + 1] = (uint8_t)((3 * here + after + 7) >> 4);
    }
}

static void upsample_v2(uint8_t *out, const uint8_t *near, const uint8_t *far, int32_t n,
                        bool is_lower) {
    const int bias = is_lower ? 2 : 1;
    for (int32_t i = 0; i < n; i++) out[i] = (uint8_t)((3 * near[i] + far[i] + bias) >> 2);
}

/* ---- colors ---------------------------------------------------------------------------------- */

/* As jdcolor.c, with 16 bits after the point. */
static void ycc_to_rgb(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr,
                       int32_t n, bool bgr) {
    const size_t red = bgr ? 2 : 0, blue = bgr ? 0 : 2;
    for (size_t i = 0; i < (size_t)n; i++) {
        const int u = cb[i] - 128, v = cr[i] - 128;
        out[3 * i + red] = clip(y[i] + ((91881 * v + 32768) >> 16));
        out[3 * i + 1] = clip(y[i] + ((-22554 * u - 46802 * v + 32768) >> 16));
        out[3 * i + blue] = clip(y[i] + ((116130 * u + 32768) >> 16));
    }
}

static void gray_to_rgb(uint8_t *out, const uint8_t *y, int32_t n) {
    for (size_t i = 0; i < (size_t)n; i++) out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = y[i];
}

/* ---- the table ------------------------------------------------------------------------------- */

void fm_jpeg_kernels_init(fm_jpeg_kernels *kernels, fm_cpu_tier tier) {
    *kernels = (fm_jpeg_kernels){.tier = FM_CPU_SCALAR,
                                 .idct = idct,
                                 .upsample_h2 = upsample_h2,
                                 .upsample_h2v2 = upsample_h2v2,
                                 .upsample_v2 = upsample_v2,
                                 .ycc_to_rgb = ycc_to_rgb,
                                 .gray_to_rgb = gray_to_rgb};
#if defined(__x86_64__)
    fm_jpeg_kernels_init_x86(kernels, tier);
#elif defined(__aarch64__)
    fm_jpeg_kernels_init_arm(kernels, tier);
#else
    (void)tier;
#endif
}
