/*
 * Crops, padding and flips: every output pixel is an input pixel or the fill. Rows and columns are
 * independent, each with a map from the output's index to the input's. Pure functions, for any
 * thread.
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
 * Fills map[n]: map[i] is the input index at position start + i of an axis of `size` inputs with
 * unlimited padding, or -1 for the fill.
 */
void fm_gather_map(int32_t *map, int32_t n, int32_t start, int32_t size, fm_pad_mode mode);

/* Composes two maps: map[i] = through[map[i]], if map[i] is not -1. */
void fm_gather_compose(int32_t *map, int32_t n, const int32_t *through);

/* Writes all of `out`. columns[out->width] and rows[out->height] are maps; fill has a value for
 * each channel. */
void fm_gather(const fm_image *in, const fm_image *out, const int32_t *columns, const int32_t *rows,
               const uint8_t fill[3]);

/* Flips upside down, in place. */
void fm_gather_flip_vertical(const fm_image *image);

/* Flips left to right. `out` is another image of the same size. */
void fm_gather_flip_horizontal(const fm_image *in, const fm_image *out);

#endif
