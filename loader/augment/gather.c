#include "augment/gather.h"

#include <string.h>

#include "base/number.h"

/* at modulo n, 0 to n - 1. */
static int32_t wrapped(int32_t at, int32_t n) { return (at % n + n) % n; }

/* As numpy.pad(): reflections repeat without end. */
static int32_t mapped(int32_t at, int32_t size, fm_pad_mode mode) {
    if (at >= 0 && at < size) return at;
    switch (mode) {
    case FM_PAD_EDGE:
        return at < 0 ? 0 : size - 1;
    case FM_PAD_REFLECT:
        if (size == 1) return 0;
        at = wrapped(at, 2 * (size - 1));
        return at < size ? at : 2 * (size - 1) - at;
    case FM_PAD_SYMMETRIC:
        at = wrapped(at, 2 * size);
        return at < size ? at : 2 * size - 1 - at;
    case FM_PAD_CONSTANT:
        break;
    }
    return -1;
}

void fm_gather_map(int32_t *map, int32_t n, int32_t start, int32_t size, fm_pad_mode mode) {
    for (int32_t i = 0; i < n; i++) map[i] = mapped(start + i, size, mode);
}

void fm_gather_compose(int32_t *map, int32_t n, const int32_t *through) {
    for (int32_t i = 0; i < n; i++)
        if (map[i] >= 0) map[i] = through[map[i]];
}

static void fill_pixels(uint8_t *out, int32_t n, int32_t channels, const uint8_t fill[3]) {
    if (channels == 1 || (fill[0] == fill[1] && fill[1] == fill[2])) {
        memset(out, fill[0], (size_t)n * (size_t)channels);
        return;
    }
    for (int32_t i = 0; i < n; i++) memcpy(out + 3 * (size_t)i, fill, 3);
}

/* Finds the longest run of columns that are adjacent in the input: columns[*first .. *end - 1]. */
static void find_run(const int32_t *columns, int32_t n, int32_t *first, int32_t *end) {
    *first = *end = 0;
    for (int32_t i = 0; i < n;) {
        int32_t stop = i + 1;
        if (columns[i] >= 0)
            while (stop < n && columns[stop] == columns[stop - 1] + 1) stop++;
        if (columns[i] >= 0 && stop - i > *end - *first) {
            *first = i;
            *end = stop;
        }
        i = stop;
    }
}

static void gather_pixels(uint8_t *out, const uint8_t *in, const int32_t *columns, int32_t first,
                          int32_t end, int32_t channels, const uint8_t fill[3]) {
    const size_t px = (size_t)channels;
    for (int32_t i = first; i < end; i++)
        memcpy(out + (size_t)i * px, columns[i] < 0 ? fill : in + (size_t)columns[i] * px, px);
}

void fm_gather(const fm_image *in, const fm_image *out, const int32_t *columns, const int32_t *rows,
               const uint8_t fill[3]) {
    const size_t in_bytes = fm_image_row_bytes(in), out_bytes = fm_image_row_bytes(out);
    const size_t px = (size_t)in->channels;
    int32_t first, end;
    find_run(columns, out->width, &first, &end);
    for (int32_t y = 0; y < out->height; y++) {
        uint8_t *const to = out->px + (size_t)y * out_bytes;
        if (rows[y] < 0) {
            fill_pixels(to, out->width, in->channels, fill);
            continue;
        }
        const uint8_t *const from = in->px + (size_t)rows[y] * in_bytes;
        gather_pixels(to, from, columns, 0, first, in->channels, fill);
        if (end > first)
            memcpy(to + (size_t)first * px, from + (size_t)columns[first] * px,
                   (size_t)(end - first) * px);
        gather_pixels(to, from, columns, end, out->width, in->channels, fill);
    }
}

void fm_gather_flip_vertical(const fm_image *image) {
    uint8_t piece[1024];
    const size_t row_bytes = fm_image_row_bytes(image);
    for (int32_t y = 0; y < image->height / 2; y++) {
        uint8_t *const upper = image->px + (size_t)y * row_bytes;
        uint8_t *const lower = image->px + (size_t)(image->height - 1 - y) * row_bytes;
        for (size_t at = 0; at < row_bytes; at += sizeof(piece)) {
            const size_t n = row_bytes - at < sizeof(piece) ? row_bytes - at : sizeof(piece);
            memcpy(piece, upper + at, n);
            memcpy(upper + at, lower + at, n);
            memcpy(lower + at, piece, n);
        }
    }
}

/* Copies four bytes per pixel; the next pixel overwrites the fourth. */
static void flip_row(uint8_t *to, const uint8_t *from, size_t n) {
    from += 3 * (n - 1);
    memcpy(to, from, 3);
    for (size_t i = 1; i + 1 < n; i++) memcpy(to + 3 * i, from - 3 * i, 4);
    memcpy(to + 3 * (n - 1), from - 3 * (n - 1), 3);
}

void fm_gather_flip_horizontal(const fm_image *in, const fm_image *out) {
    const size_t width = (size_t)in->width, row_bytes = fm_image_row_bytes(in);
    for (size_t y = 0; y < (size_t)in->height; y++) {
        const uint8_t *const from = in->px + y * row_bytes;
        uint8_t *const to = out->px + y * row_bytes;
        if (in->channels == 3)
            flip_row(to, from, width);
        else
            for (size_t x = 0; x < width; x++) to[x] = from[width - 1 - x];
    }
}
