/*
 * Where the pixels of a sample come from: crop, resize, window and flip as numbers, no pixels.
 *
 * Every chain of ops comes down to this: take `source` of the decoded image (mirrored left to
 * right if mirror_source), resize it to resized_width x resized_height, and take `window` of the
 * result, mirrored if flip. A window that reaches over the result's edges is filled with zeros
 * there (CenterCrop on a small image).
 */
#ifndef FM_TRANSFORM_GEOMETRY_H
#define FM_TRANSFORM_GEOMETRY_H

#include "base/error.h"
#include "base/types.h"

#define FM_MAX_OPS 64
/* Pixels a side, of an image and of what any op makes of it. */
#define FM_MAX_SIDE 65535

typedef struct fm_geometry {
    fm_box source;
    int32_t resized_width, resized_height;
    fm_box window;
    bool mirror_source;
    bool flip;
} fm_geometry;

/*
 * Draws the random numbers of each op (into draws[n_ops], may be NULL) and works out the geometry
 * of the first n_formed ones for an image of width x height; those are Resize, CenterCrop,
 * RandomResizedCrop, RandomHorizontalFlip, RandomCrop and Pad with zeros. Pure. FM_ERR_LIMIT where
 * the chain has no such form for this image (padding before a resize, a crop larger than the image,
 * a result over 65,535 pixels a side): the caller asks Pillow.
 */
int fm_geometry_locate(const fm_op *ops, size_t n_ops, size_t n_formed, const fm_draw_key *key,
                       int32_t width, int32_t height, fm_geometry *out, fm_draw *draws,
                       fm_error *error);

/* The draws alone: like fm_geometry_locate(), also where that has no geometry. */
int fm_geometry_draw(const fm_op *ops, size_t n_ops, const fm_draw_key *key, int32_t width,
                     int32_t height, fm_draw *draws, fm_error *error);

#endif
