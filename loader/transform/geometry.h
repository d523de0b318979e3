/*
 * The geometry of a sample: computes the crop, resize and flip of an image, without its pixels.
 *
 * Every chain of geometric ops is reduced to one form: crop `source` from the decoded image,
 * mirrored left to right if mirror_source; resize it to resized_width x resized_height; crop
 * `window` from the result, mirrored if flip. Where the window exceeds the result, the output is
 * filled with zeros (CenterCrop on a small image).
 */
#ifndef FM_TRANSFORM_GEOMETRY_H
#define FM_TRANSFORM_GEOMETRY_H

#include "base/error.h"
#include "base/types.h"

#define FM_MAX_OPS 64
/* Most pixels per side, of an image and of the result of any op. */
#define FM_MAX_SIDE 65535

typedef struct fm_geometry {
    fm_box source;
    int32_t resized_width, resized_height;
    /* The part of the source that is resized, from [0] to [1] in pixels; 0, 0: all of it. Pixels
     * around the part are used at its edges, as by Pillow's resize(box=...). */
    float resized_columns[2], resized_rows[2];
    fm_box window;
    bool second_filter; /* resized by fm_plan.second_filter */
    bool mirror_source;
    bool flip;
} fm_geometry;

/*
 * Samples the random parameters of all ops to draws[n_ops] (may be NULL), and reduces the first
 * n_reduced ops to a geometry for an image of width x height. These must be Resize, CenterCrop,
 * RandomResizedCrop, RandomHorizontalFlip, RandomCrop or Pad with zeros. Pure function, for any
 * thread. FM_ERR_LIMIT if the ops can't be reduced for this image (padding before a resize, a
 * crop larger than the image, a side above 65,535 pixels): the caller falls back to Pillow.
 */
int fm_geometry_locate(const fm_op *ops, size_t n_ops, size_t n_reduced, const fm_draw_key *key,
                       int32_t width, int32_t height, fm_geometry *out, fm_draw *draws,
                       fm_error *error);

/* Samples the parameters as fm_geometry_locate() does, also for ops that can't be reduced. */
int fm_geometry_draw(const fm_op *ops, size_t n_ops, const fm_draw_key *key, int32_t width,
                     int32_t height, fm_draw *draws, fm_error *error);

/* Whether a HALVING_CENTER_CROP halves an image of this size. */
bool fm_geometry_halves(const fm_op *op, int32_t width, int32_t height);

#endif
