/*
 * The eight ways of turning an image, numbered as EXIF's tag Orientation does, and where they put
 * a pixel. Every orientation is: transposed or not, then mirrored or not in each direction.
 */
#ifndef FM_BASE_ORIENTATION_H
#define FM_BASE_ORIENTATION_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Orientations 5 to 8 swap width and height. */
static inline bool fm_orientation_swaps(int orientation) { return orientation >= 5; }

/* Where the pixel of column x and row y goes: origin + x * column_bytes + y * row_bytes. */
typedef struct fm_placement {
    int64_t origin, column_bytes, row_bytes;
} fm_placement;

/* For an image of width x height pixels before it is turned, to contiguous rows of px_bytes per
 * pixel. An orientation that is not from 2 to 8 leaves the image as it is. */
static inline fm_placement fm_orientation_place(int orientation, int32_t width, int32_t height,
                                                int64_t px_bytes) {
    const int64_t right = px_bytes * (width - 1), bottom = height - 1;
    const int64_t row = px_bytes * (fm_orientation_swaps(orientation) ? height : width);
    switch (orientation) {
    case 2: /* mirrored left to right */
        return (fm_placement){right, -px_bytes, row};
    case 3: /* rotated by 180 degrees */
        return (fm_placement){right + bottom * row, -px_bytes, -row};
    case 4: /* mirrored top to bottom */
        return (fm_placement){bottom * row, px_bytes, -row};
    case 5: /* transposed */
        return (fm_placement){0, row, px_bytes};
    case 6: /* rotated clockwise */
        return (fm_placement){px_bytes * bottom, row, -px_bytes};
    case 7: /* transposed along the other diagonal */
        return (fm_placement){px_bytes * bottom + (width - 1) * row, -row, -px_bytes};
    case 8: /* rotated counter-clockwise */
        return (fm_placement){(width - 1) * row, -row, px_bytes};
    default:
        return (fm_placement){0, px_bytes, row};
    }
}

/* Writes row y, of `width` pixels of three bytes, to its place. */
static inline void fm_placement_put_row(const fm_placement *at, uint8_t *out, const uint8_t *row,
                                        int32_t width, int32_t y) {
    uint8_t *to = out + at->origin + y * at->row_bytes;
    if (at->column_bytes == 3) {
        memcpy(to, row, 3 * (size_t)width);
        return;
    }
    for (int32_t x = 0; x < width; x++, row += 3, to += at->column_bytes) {
        to[0] = row[0];
        to[1] = row[1];
        to[2] = row[2];
    }
}

#endif
