#define _GNU_SOURCE
#include "augment/warp.h"

#include <math.h>
#include <string.h>

#include "augment/contract.h"

#if defined(__x86_64__)
#include "augment/x86/warp_avx2.h"
#elif defined(__aarch64__)
#include "augment/arm/warp_neon.h"
#endif

#define BODY static inline __attribute__((always_inline))

/* ---- points ---------------------------------------------------------------------------------- */

/* affine_transform() and perspective_transform() of Pillow's Geometry.c. */
BODY void points_body(fm_warp_points *points, const fm_warp *warp, int32_t begin, int32_t row,
                      size_t n) {
    const double *const m = warp->m;
    const double y = row + 0.5;
    const double x_of_row = m[1] * y, y_of_row = m[4] * y, divisor_of_row = m[7] * y;
    for (size_t i = 0; i < n; i++) {
        const double x = (begin + (int32_t)i) + 0.5;
        points->x[i] = fm_multiply_add(m[0], x, x_of_row) + m[2];
        points->y[i] = fm_multiply_add(m[3], x, y_of_row) + m[5];
    }
    if (!warp->is_perspective) return;
    for (size_t i = 0; i < n; i++) {
        const double x = (begin + (int32_t)i) + 0.5;
        const double divisor = fm_multiply_add(m[6], x, divisor_of_row) + 1;
        points->x[i] /= divisor;
        points->y[i] /= divisor;
    }
}

/* ---- pixels ---------------------------------------------------------------------------------- */

/* FLOOR of Geometry.c. */
static int32_t floor_i32(double v) { return v < 0.0 ? (int32_t)floor(v) : (int32_t)v; }

static int32_t clamp(int32_t at, int32_t size) { return at < 0 ? 0 : at < size ? at : size - 1; }

static double line(double a, double b, double d) { return fm_multiply_add(b - a, d, a); }

static double cubic(double v1, double v2, double v3, double v4, double d) {
    const double p1 = v2, p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
    return fm_multiply_add(d, fm_multiply_add(d, fm_multiply_add(d, p4, p3), p2), p1);
}

static void bilinear_px(const fm_image *in, uint8_t *to, double x, double y) {
    x -= 0.5;
    y -= 0.5;
    const int32_t left = floor_i32(x), top = floor_i32(y);
    const double dx = x - left, dy = y - top;
    const size_t px = (size_t)in->channels, row_bytes = fm_image_row_bytes(in);
    const size_t x0 = (size_t)clamp(left, in->width) * px;
    const size_t x1 = (size_t)clamp(left + 1, in->width) * px;
    const uint8_t *const upper = in->px + (size_t)clamp(top, in->height) * row_bytes;
    const bool has_lower = top + 1 >= 0 && top + 1 < in->height;
    const uint8_t *const lower = has_lower ? in->px + (size_t)(top + 1) * row_bytes : upper;
    for (size_t c = 0; c < px; c++) {
        const double v1 = line(upper[x0 + c], upper[x1 + c], dx);
        const double v2 = line(lower[x0 + c], lower[x1 + c], dx);
        to[c] = (uint8_t)(int32_t)line(v1, v2, dy);
    }
}

static void bicubic_px(const fm_image *in, uint8_t *to, double x, double y) {
    x -= 0.5;
    y -= 0.5;
    const int32_t left = floor_i32(x), top = floor_i32(y);
    const double dx = x - left, dy = y - top;
    const size_t px = (size_t)in->channels, row_bytes = fm_image_row_bytes(in);
    size_t at[4];
    const uint8_t *rows[4];
    for (int i = 0; i < 4; i++) {
        const int32_t row = top - 1 + i;
        at[i] = (size_t)clamp(left - 1 + i, in->width) * px;
        /* As Pillow: above the image its first row is used, below it the previous row. */
        rows[i] = i == 0 || (row >= 0 && row < in->height)
                      ? in->px + (size_t)clamp(row, in->height) * row_bytes
                      : rows[i - 1];
    }
    for (size_t c = 0; c < px; c++) {
        double v[4];
        for (int i = 0; i < 4; i++)
            v[i] = cubic(rows[i][at[0] + c], rows[i][at[1] + c], rows[i][at[2] + c],
                         rows[i][at[3] + c], dx);
        const double value = cubic(v[0], v[1], v[2], v[3], dy);
        to[c] = (uint8_t)(value <= 0.0 ? 0 : value >= 255.0 ? 255 : (int32_t)value);
    }
}

/* Writes four bytes unless the pixel is the last one of the output. */
static void nearest_px(const fm_image *in, uint8_t *to, double x, double y, bool is_last) {
    const size_t px = (size_t)in->channels;
    const uint8_t *const from =
        in->px + ((size_t)(int32_t)y * (size_t)in->width + (size_t)(int32_t)x) * px;
    if (px == 3 && !is_last)
        memcpy(to, from, 4);
    else
        memcpy(to, from, px);
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static void points_scalar(fm_warp_points *points, const fm_warp *warp, int32_t begin, int32_t row,
                          size_t n) {
    points_body(points, warp, begin, row, n);
}

static void bilinear_scalar(const fm_image *in, uint8_t *out, const double *x, const double *y,
                            size_t n) {
    for (size_t i = 0; i < n; i++) bilinear_px(in, out + 3 * i, x[i], y[i]);
}

static void bicubic_scalar(const fm_image *in, uint8_t *out, const double *x, const double *y,
                           size_t n) {
    for (size_t i = 0; i < n; i++) bicubic_px(in, out + 3 * i, x[i], y[i]);
}

#if defined(__x86_64__)
FM_FOR_AVX2 static void points_avx2(fm_warp_points *points, const fm_warp *warp, int32_t begin,
                                    int32_t row, size_t n) {
    points_body(points, warp, begin, row, n);
}
#endif

void fm_warp_init(fm_warp_kernels *kernels, fm_cpu_tier tier) {
    *kernels = (fm_warp_kernels){points_scalar, bilinear_scalar, bicubic_scalar};
#if defined(__x86_64__)
    if (tier < FM_CPU_AVX2) return;
    *kernels = (fm_warp_kernels){points_avx2, fm_warp_bilinear_avx2, fm_warp_bicubic_avx2};
#elif defined(__aarch64__)
    if (tier < FM_CPU_NEON) return;
    *kernels = (fm_warp_kernels){points_scalar, fm_warp_bilinear_neon, fm_warp_bicubic_neon};
#else
    (void)tier;
#endif
}

/* ---- the image ------------------------------------------------------------------------------- */

/* Points whose neighbors are all within the image: low <= x < high_x, low <= y < high_y. */
typedef struct inner_points {
    double low, high_x, high_y;
} inner_points;

static inner_points inner_of(const fm_image *in, fm_filter filter) {
    const double border = filter == FM_FILTER_NEAREST    ? 0
                          : filter == FM_FILTER_BILINEAR ? 0.5
                                                         : 1.5;
    return (inner_points){border, in->width - border, in->height - border};
}

static bool is_inner(const inner_points *inner, double x, double y) {
    return x >= inner->low && x < inner->high_x && y >= inner->low && y < inner->high_y;
}

typedef struct warp_job {
    const fm_warp_kernels *kernels;
    const fm_image *in;
    fm_filter filter;
    const uint8_t *fill;
    inner_points inner;
} warp_job;

/* n pixels at inner points. */
static void map_inner(const warp_job *job, uint8_t *to, const double *x, const double *y, size_t n,
                      bool is_last) {
    const size_t px = (size_t)job->in->channels;
    if (job->filter == FM_FILTER_NEAREST) {
        for (size_t i = 0; i < n; i++)
            nearest_px(job->in, to + i * px, x[i], y[i], is_last && i == n - 1);
    } else if (px == 1) {
        for (size_t i = 0; i < n; i++)
            (job->filter == FM_FILTER_BILINEAR ? bilinear_px : bicubic_px)(job->in, to + i, x[i],
                                                                           y[i]);
    } else if (job->filter == FM_FILTER_BILINEAR) {
        job->kernels->bilinear(job->in, to, x, y, n);
    } else {
        job->kernels->bicubic(job->in, to, x, y, n);
    }
}

/* A pixel at the border or outside. */
static void map_outer(const warp_job *job, uint8_t *to, double x, double y) {
    const fm_image *const in = job->in;
    if (!(x >= 0.0 && x < in->width && y >= 0.0 && y < in->height))
        memcpy(to, job->fill, (size_t)in->channels);
    else if (job->filter == FM_FILTER_BILINEAR)
        bilinear_px(in, to, x, y);
    else
        bicubic_px(in, to, x, y);
}

static void map_points(const warp_job *job, uint8_t *to, const fm_warp_points *points, size_t n,
                       bool is_last) {
    const size_t px = (size_t)job->in->channels;
    const double *const x = points->x, *const y = points->y;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && is_inner(&job->inner, x[end], y[end])) end++;
        if (end > i) map_inner(job, to + i * px, x + i, y + i, end - i, is_last && end == n);
        for (i = end; i < n && !is_inner(&job->inner, x[i], y[i]); i++)
            map_outer(job, to + i * px, x[i], y[i]);
    }
}

void fm_warp_map(const fm_warp_kernels *kernels, const fm_image *in, const fm_image *out,
                 const fm_warp *warp, fm_filter filter, const uint8_t fill[3]) {
    const warp_job job = {kernels, in, filter, fill, inner_of(in, filter)};
    const size_t px = (size_t)in->channels;
    fm_warp_points points;
    memset(&points, 0, sizeof(points)); /* kernels read more entries than they use */
    uint8_t *to = out->px;
    for (int32_t row = 0; row < out->height; row++) {
        for (int32_t begin = 0; begin < out->width; begin += FM_WARP_BLOCK) {
            const int32_t rest = out->width - begin;
            const size_t n = (size_t)(rest < FM_WARP_BLOCK ? rest : FM_WARP_BLOCK);
            kernels->points(&points, warp, begin, row, n);
            const bool is_last = row == out->height - 1 && rest <= FM_WARP_BLOCK;
            map_points(&job, to, &points, n, is_last);
            to += n * px;
        }
    }
}
