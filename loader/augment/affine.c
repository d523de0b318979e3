#define _GNU_SOURCE
#include "augment/affine.h"

#include <math.h>
#include <string.h>

#include "base/number.h"

/* Python's math.radians() and its pi. */
static double radians(double degrees) { return degrees * (3.14159265358979323846 / 180.0); }

/* ---- matrices -------------------------------------------------------------------------------- */

/*
 * Python's round(x, 15) for |x| <= 1: the double closest to the decimal number with 15 digits that
 * is closest to x. If the product is exactly a half, its rounding error decides. Dividing two
 * integers below 2^53 gives the double closest to their quotient.
 */
static double rounded_15(double x) {
    const double scaled = x * 1e15;
    const double error = fma(x, 1e15, -scaled);
    double whole = nearbyint(scaled);
    const double rest = scaled - whole;
    if (rest == 0.5 && error > 0) whole += 1;
    if (rest == -0.5 && error < 0) whole -= 1;
    return whole / 1e15;
}

fm_affine fm_affine_rotation(double degrees, double center_x, double center_y) {
    const double angle = -radians(degrees);
    const double c = rounded_15(cos(angle)), s = rounded_15(sin(angle));
    fm_affine affine = {{c, s, 0, -s, c, 0}};
    affine.m[2] = c * -center_x + s * -center_y + 0.0;
    affine.m[5] = -s * -center_x + c * -center_y + 0.0;
    affine.m[2] += center_x;
    affine.m[5] += center_y;
    return affine;
}

fm_affine fm_affine_inverse(double center_x, double center_y, double degrees,
                            const double translate[2], double scale, const double shear[2]) {
    const double turn = radians(degrees), sx = radians(shear[0]), sy = radians(shear[1]);
    const double a = cos(turn - sy) / cos(sy);
    const double b = -cos(turn - sy) * tan(sx) / cos(sy) - sin(turn);
    const double c = sin(turn - sy) / cos(sy);
    const double d = -sin(turn - sy) * tan(sx) / cos(sy) + cos(turn);
    fm_affine affine = {{d / scale, -b / scale, 0, -c / scale, a / scale, 0}};
    double *const m = affine.m;
    m[2] += m[0] * (-center_x - translate[0]) + m[1] * (-center_y - translate[1]);
    m[5] += m[3] * (-center_x - translate[0]) + m[4] * (-center_y - translate[1]);
    m[2] += center_x;
    m[5] += center_y;
    return affine;
}

fm_affine fm_affine_inverse_v2(double center_x, double center_y, double degrees,
                               const double translate[2], double scale, const double shear[2]) {
    const double turn = radians(degrees), sx = radians(shear[0]), sy = radians(shear[1]);
    const double a = cos(turn - sy) / cos(sy);
    const double b = -(a * tan(sx) + sin(turn));
    const double c = sin(turn - sy) / cos(sy);
    const double d = cos(turn) - c * tan(sx);
    const double moved_x = center_x + translate[0], moved_y = center_y + translate[1];
    fm_affine affine = {{d / scale, -b / scale, 0, -c / scale, a / scale, 0}};
    double *const m = affine.m;
    m[2] += center_x - m[0] * moved_x - m[1] * moved_y;
    m[5] += center_y - m[3] * moved_x - m[4] * moved_y;
    return affine;
}

/* ---- the nearest pixel ----------------------------------------------------------------------- */

/* COORD and FLOOR of Pillow's Geometry.c. */
static int32_t coord(double v) { return v < 0.0 ? -1 : (int32_t)v; }
static int32_t floor_i32(double v) { return v < 0.0 ? (int32_t)floor(v) : (int32_t)v; }

static void fill_image(const fm_image *out, const uint8_t fill[3]) {
    const size_t n = fm_image_bytes(out);
    if (out->channels == 1 || (fill[0] == fill[1] && fill[1] == fill[2])) {
        memset(out->px, fill[0], n);
        return;
    }
    for (size_t i = 0; i < n; i += 3) memcpy(out->px + i, fill, 3);
}

/* Copies four bytes per pixel, of which the next pixel overwrites the fourth. */
static void copy_columns(uint8_t *to, const uint8_t *from, const int32_t *columns, int32_t first,
                         int32_t end, size_t px) {
    int32_t x = first;
    for (; px == 3 && x < end - 1; x++)
        memcpy(to + 3 * (size_t)x, from + 3 * (size_t)columns[x], 4);
    for (; x < end; x++) memcpy(to + (size_t)x * px, from + (size_t)columns[x] * px, px);
}

/* ImagingScaleAffine(): rows and columns are independent. */
static void map_scale(const fm_image *in, const fm_image *out, const double m[6],
                      int32_t *columns) {
    const size_t px = (size_t)in->channels;
    double from = m[2] + m[0] * 0.5;
    int32_t first = out->width, end = 0;
    for (int32_t x = 0; x < out->width; x++, from += m[0]) {
        columns[x] = coord(from);
        if (columns[x] < 0 || columns[x] >= in->width) continue;
        end = x + 1;
        if (x < first) first = x;
    }
    const bool is_run =
        m[0] == 1 && end > first && columns[end - 1] - columns[first] == end - 1 - first;
    from = m[5] + m[4] * 0.5;
    for (int32_t y = 0; y < out->height; y++, from += m[4]) {
        const int32_t row = coord(from);
        if (row < 0 || row >= in->height) continue;
        const uint8_t *const source = in->px + (size_t)row * fm_image_row_bytes(in);
        uint8_t *const to = out->px + (size_t)y * fm_image_row_bytes(out);
        if (is_run)
            memcpy(to + (size_t)first * px, source + (size_t)columns[first] * px,
                   (size_t)(end - first) * px);
        else
            copy_columns(to, source, columns, first, end, px);
    }
}

/* Narrows first .. end - 1 to the x with 0 <= start + x * step < size * 2^16. */
static void clip_line(int64_t start, int64_t step, int64_t size, int32_t *first, int32_t *end) {
    const int64_t limit = size << 16;
    int64_t low = *first, high = *end;
    if (step == 0) {
        if (start < 0 || start >= limit) high = low;
    } else {
        /* The first x inside the image, and the first x after that outside of it. */
        const int64_t speed = step > 0 ? step : -step;
        const int64_t before = step > 0 ? -start : start - (limit - 1);
        const int64_t left = step > 0 ? limit - start : start + 1;
        const int64_t entry = before > 0 ? (before + speed - 1) / speed : 0;
        const int64_t leave = left > 0 ? (left + speed - 1) / speed : 0;
        low = entry > low ? entry : low;
        high = leave < high ? leave : high;
    }
    *first = (int32_t)(low < high ? low : high);
    *end = (int32_t)(low < high ? high : *first);
}

/* Copies n pixels of a row, starting at the point (x, y) in 16.16 fixed point. All points are
 * inside the image, so coordinates may be unsigned. Copies four bytes per pixel; the next pixel
 * overwrites the fourth. */
static void fixed_row(const fm_image *in, uint8_t *to, int32_t n, uint32_t x, uint32_t y,
                      uint32_t dx, uint32_t dy) {
    const size_t row_bytes = fm_image_row_bytes(in);
    if (in->channels == 1) {
        for (int32_t i = 0; i < n; i++, x += dx, y += dy)
            to[i] = in->px[(y >> 16) * row_bytes + (x >> 16)];
        return;
    }
    for (; n > 1; n--, to += 3, x += dx, y += dy)
        memcpy(to, in->px + (y >> 16) * row_bytes + 3 * (size_t)(x >> 16), 4);
    if (n == 1) memcpy(to, in->px + (y >> 16) * row_bytes + 3 * (size_t)(x >> 16), 3);
}

/* affine_fixed(). */
static void map_fixed(const fm_image *in, const fm_image *out, const double m[6]) {
    const int32_t dx = floor_i32(m[0] * 65536.0 + 0.5), dy = floor_i32(m[3] * 65536.0 + 0.5);
    const int32_t row_dx = floor_i32(m[1] * 65536.0 + 0.5);
    const int32_t row_dy = floor_i32(m[4] * 65536.0 + 0.5);
    int64_t x = floor_i32((m[2] + m[0] * 0.5 + m[1] * 0.5) * 65536.0 + 0.5);
    int64_t y = floor_i32((m[5] + m[3] * 0.5 + m[4] * 0.5) * 65536.0 + 0.5);
    const size_t px = (size_t)in->channels;
    for (int32_t row = 0; row < out->height; row++, x += row_dx, y += row_dy) {
        int32_t first = 0, end = out->width;
        clip_line(x, dx, in->width, &first, &end);
        clip_line(y, dy, in->height, &first, &end);
        uint8_t *const to = out->px + (size_t)row * fm_image_row_bytes(out) + (size_t)first * px;
        fixed_row(in, to, end - first, (uint32_t)(x + (int64_t)first * dx),
                  (uint32_t)(y + (int64_t)first * dy), (uint32_t)dx, (uint32_t)dy);
    }
}

/* The remaining case of ImagingTransformAffine(): coordinates exceed the fixed-point range. */
static void map_double(const fm_image *in, const fm_image *out, const double m[6]) {
    const size_t px = (size_t)in->channels, row_bytes = fm_image_row_bytes(in);
    double row_x = m[2] + m[1] * 0.5 + m[0] * 0.5, row_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    uint8_t *to = out->px;
    for (int32_t row = 0; row < out->height; row++, row_x += m[1], row_y += m[4]) {
        double x = row_x, y = row_y;
        for (int32_t column = 0; column < out->width; column++, x += m[0], y += m[3], to += px) {
            const int32_t from_x = coord(x), from_y = coord(y);
            if (from_x < 0 || from_x >= in->width || from_y < 0 || from_y >= in->height) continue;
            memcpy(to, in->px + (size_t)from_y * row_bytes + (size_t)from_x * px, px);
        }
    }
}

/* check_fixed(): all corners within 16 bits. */
static bool fits_fixed(const double m[6], int32_t width, int32_t height) {
    for (int corner = 0; corner < 4; corner++) {
        const double x = corner & 1 ? width : 0, y = corner & 2 ? height : 0;
        if (!(fabs(x * m[0] + y * m[1] + m[2]) < 32768.0 &&
              fabs(x * m[3] + y * m[4] + m[5]) < 32768.0))
            return false;
    }
    return true;
}

/* ---- public functions ------------------------------------------------------------------------ */

void fm_affine_map(const fm_warp_kernels *kernels, const fm_image *in, const fm_image *out,
                   const fm_affine *affine, fm_filter filter, const uint8_t fill[3],
                   int32_t *columns) {
    const double *const m = affine->m;
    if (filter != FM_FILTER_NEAREST) {
        fm_warp warp = {.is_perspective = false};
        memcpy(warp.m, m, sizeof(affine->m));
        fm_warp_map(kernels, in, out, &warp, filter, fill);
        return;
    }
    fill_image(out, fill);
    if (m[1] == 0 && m[3] == 0)
        map_scale(in, out, m, columns);
    else if (fits_fixed(m, out->width, out->height))
        map_fixed(in, out, m);
    else
        map_double(in, out, m);
}

void fm_affine_quarter(const fm_image *in, const fm_image *out, int n_quarters) {
    const size_t px = (size_t)in->channels, row_bytes = fm_image_row_bytes(in);
    const size_t last = (size_t)in->width - 1;
    for (size_t y = 0; y <= last; y++) {
        for (size_t x = 0; x <= last; x++) {
            const size_t row = n_quarters == 1 ? x : last - x;
            const size_t column = n_quarters == 1 ? last - y : y;
            memcpy(out->px + y * row_bytes + x * px, in->px + row * row_bytes + column * px, px);
        }
    }
}
