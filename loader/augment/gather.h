/*
 * Crops and paddings: every output pixel is an input's pixel or the fill. Rows and columns are
 * chosen apart from each other, each by a map from an output's row (column) to the input's.
 */
#ifndef FM_AUGMENT_GATHER_H
#define FM_AUGMENT_GATHER_H

#include "augment/image.h"

typedef enum fm_pad_mode {
    FM_PAD_CONSTANT,
    FM_PAD_EDGE,
    FM_PAD_REFLECT,
    FM_PAD_SYMMETRIC
} fm_pad_mode;

/*
 * map[i], for i below n: the input that lies at `start + i` of an axis of `size` inputs, with
 * padding around, as far as it goes; -1 where that is the fill.
 */
void fm_gather_map(int32_t *map, int32_t n, int32_t start, int32_t size, fm_pad_mode mode);

/* Passes the entries of a map on through another one: map[i] = through[map[i]]. */
void fm_gather_compose(int32_t *map, int32_t n, const int32_t *through);

/* columns[out->width] and rows[out->height] are maps; fill has a value for each channel. */
void fm_gather(const fm_image *in, const fm_image *out, const int32_t *columns, const int32_t *rows,
               const uint8_t fill[3]);

/* Upside down; in place. */
void fm_gather_flip_vertical(const fm_image *image);

/* Left to right; out is another image of that size. */
void fm_gather_flip_horizontal(const fm_image *in, const fm_image *out);

#endif
