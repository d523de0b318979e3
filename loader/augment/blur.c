#define _GNU_SOURCE
#include "augment/blur.h"

#include <math.h>
#include <string.h>

#include "base/number.h"

#if defined(__x86_64__)
#include "augment/x86/blur_avx2.h"
#elif defined(__aarch64__)
#include "augment/arm/blur_neon.h"
#endif

enum { PX = 3, MAX_TAPS = 2 * FM_BLUR_MAX_RADIUS + 3, BLOCK = 64 };

/* ---- kernels --------------------------------------------------------------------------------- */

#define BODY static inline __attribute__((always_inline))

BODY void row_block(uint8_t *restrict out, const uint8_t *const *taps, int n_taps, size_t begin,
                    size_t n, uint32_t weight, uint32_t far_weight) {
    uint16_t sums[BLOCK];
    const uint8_t *const first = taps[0] + begin, *const last = taps[n_taps - 1] + begin;
    for (size_t i = 0; i < n; i++) sums[i] = taps[1][begin + i];
    for (int tap = 2; tap < n_taps - 1; tap++) {
        const uint8_t *const in = taps[tap] + begin;
        for (size_t i = 0; i < n; i++) sums[i] = (uint16_t)(sums[i] + in[i]);
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t far = (uint32_t)first[i] + last[i];
        out[begin + i] = (uint8_t)((sums[i] * weight + far * far_weight + (1u << 23)) >> 24);
    }
}

BODY void row_body(uint8_t *restrict out, const uint8_t *const *taps, int n_taps, size_t n,
                   uint32_t weight, uint32_t far_weight) {
    size_t begin = 0;
    for (; begin + BLOCK <= n; begin += BLOCK)
        row_block(out, taps, n_taps, begin, BLOCK, weight, far_weight);
    row_block(out, taps, n_taps, begin, n - begin, weight, far_weight);
}

#define KERNELS(tier, attribute)                                                           \
    attribute static void row_##tier(uint8_t *out, const uint8_t *const *taps, int n_taps, \
                                     size_t n, uint32_t weight, uint32_t far_weight) {     \
        row_body(out, taps, n_taps, n, weight, far_weight);                                \
    }

KERNELS(scalar, )
#if defined(__x86_64__)
KERNELS(sse41, FM_FOR_SSE41)

FM_FOR_AVX2 static void row_avx2(uint8_t *out, const uint8_t *const *taps, int n_taps, size_t n,
                                 uint32_t weight, uint32_t far_weight) {
    if (n < 32)
        row_sse41(out, taps, n_taps, n, weight, far_weight);
    else
        fm_blur_row_avx2(out, taps, n_taps, n, weight, far_weight);
}
#elif defined(__aarch64__)
static void row_neon(uint8_t *out, const uint8_t *const *taps, int n_taps, size_t n,
                     uint32_t weight, uint32_t far_weight) {
    if (n < 16)
        row_scalar(out, taps, n_taps, n, weight, far_weight);
    else
        fm_blur_row_neon(out, taps, n_taps, n, weight, far_weight);
}
#endif

void fm_blur_init(fm_blur_kernels *kernels, fm_cpu_tier tier) {
    kernels->row = row_scalar;
#if defined(__x86_64__)
    if (tier >= FM_CPU_SSE41) kernels->row = row_sse41;
    if (tier >= FM_CPU_AVX2) kernels->row = row_avx2;
#elif defined(__aarch64__)
    if (tier >= FM_CPU_NEON) kernels->row = row_neon;
#else
    (void)tier;
#endif
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* A radius as whole pixels and the weights. */
typedef struct box {
    int radius;
    uint32_t weight, far_weight;
} box;

static box box_of(float radius) {
    box one = {.radius = (int)radius};
    one.weight = (uint32_t)((float)(1u << 24) / (radius * 2 + 1));
    one.far_weight = ((1u << 24) - (uint32_t)(one.radius * 2 + 1) * one.weight) / 2;
    return one;
}

/* _gaussian_blur_radius(), with the same types of all steps. */
float fm_blur_box_radius(float deviation, int n_passes) {
    const float sigma2 = deviation * deviation / (float)n_passes;
    const float length = (float)sqrt(12.0 * (double)sigma2 + 1.0);
    const float whole = (float)floor(((double)length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * sigma2);
    part /= 6 * (sigma2 - (whole + 1) * (whole + 1));
    return whole + part;
}

/* ---- rows and columns ------------------------------------------------------------------------ */

static size_t padded_bytes(int32_t width) {
    return ((size_t)width + 2 * (FM_BLUR_MAX_RADIUS + 1)) * PX;
}

/* Rows that are kept of the image while a pass over columns overwrites them. */
static size_t kept_bytes(int32_t width) { return (FM_BLUR_MAX_RADIUS + 2) * (size_t)width * PX; }

size_t fm_blur_scratch_bytes(int32_t width) {
    const size_t padded = 2 * padded_bytes(width), kept = kept_bytes(width);
    return padded > kept ? padded : kept;
}

/* Repeats the first and the last pixel of a row beyond its ends. */
static void pad_row(uint8_t *row, size_t row_bytes, int n_px) {
    uint8_t *const end = row + row_bytes;
    for (int i = 0; i < n_px; i++) {
        memcpy(row - PX * (i + 1), row, PX);
        memcpy(end + (size_t)(PX * i), end - PX, PX);
    }
}

/* Blurs each row. `padded` holds two rows with padding. */
static void blur_rows(const fm_blur_kernels *kernels, const fm_image *in, uint8_t *out,
                      uint8_t *padded, const box *by, int n_passes) {
    const size_t row_bytes = fm_image_row_bytes(in), margin = PX * (FM_BLUR_MAX_RADIUS + 1);
    const uint8_t *taps[MAX_TAPS];
    const int n_taps = 2 * by->radius + 3;
    for (size_t y = 0; y < (size_t)in->height; y++) {
        uint8_t *row = padded + margin, *next = padded + padded_bytes(in->width) + margin;
        memcpy(row, in->px + y * row_bytes, row_bytes);
        for (int pass = 1; pass <= n_passes; pass++) {
            uint8_t *const to = pass == n_passes ? out + y * row_bytes : next;
            pad_row(row, row_bytes, by->radius + 1);
            for (int i = 0; i < n_taps; i++) taps[i] = row + PX * (i - by->radius - 1);
            kernels->row(to, taps, n_taps, row_bytes, by->weight, by->far_weight);
            next = row;
            row = to;
        }
    }
}

/* Blurs each column once, in place. `kept` holds the original of the latest rows. */
static void blur_columns(const fm_blur_kernels *kernels, const fm_image *image, uint8_t *kept,
                         const box *by) {
    const size_t row_bytes = fm_image_row_bytes(image);
    const uint8_t *taps[MAX_TAPS];
    const int n_taps = 2 * by->radius + 3, n_kept = by->radius + 2;
    for (int32_t y = 0; y < image->height; y++) {
        uint8_t *const row = image->px + (size_t)y * row_bytes;
        memcpy(kept + (size_t)(y % n_kept) * row_bytes, row, row_bytes);
        for (int i = 0; i < n_taps; i++) {
            const int32_t at = y + i - by->radius - 1;
            const int32_t within = at < 0 ? 0 : fm_min_i32(at, image->height - 1);
            taps[i] = within > y ? image->px + (size_t)within * row_bytes
                                 : kept + (size_t)(within % n_kept) * row_bytes;
        }
        kernels->row(row, taps, n_taps, row_bytes, by->weight, by->far_weight);
    }
}

void fm_blur_box(const fm_blur_kernels *kernels, const fm_image *in, uint8_t *out, uint8_t *scratch,
                 float x_radius, float y_radius, int n_passes) {
    const box x_box = box_of(x_radius), y_box = box_of(y_radius);
    fm_image blurred = *in;
    blurred.px = out;
    if (x_radius != 0)
        blur_rows(kernels, in, out, scratch, &x_box, n_passes);
    else
        memcpy(out, in->px, fm_image_bytes(in));
    for (int pass = 0; y_radius != 0 && pass < n_passes; pass++)
        blur_columns(kernels, &blurred, scratch, &y_box);
}
