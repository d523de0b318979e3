/* The checked transform: what fm_transform declares, with its sizes worked out. Read-only after
 * init, shared by all threads. */
#ifndef FM_TRANSFORM_PLAN_H
#define FM_TRANSFORM_PLAN_H

#include <stdbool.h>

#include "base/mem.h"
#include "transform/geometry.h"

typedef struct fm_plan {
    fm_op ops[FM_MAX_OPS];
    size_t n_ops;
    /* The first n_front ops are geometry: one resample from the decoded rows. Where that is all but
     * a RANDOM_ERASING, it writes to the batch; else an image, which the others work on. */
    size_t n_front;
    bool augments;                     /* there are others */
    bool resizes_late;                 /* one of them resizes the image */
    bool erases;                       /* the last op is RANDOM_ERASING */
    int32_t front_width, front_height; /* of that image; 0 where it depends on the sample */
    uint64_t most_px;    /* pixels that an image may have between ops; larger ones are refused */
    int32_t in_channels; /* of the images that come */
    int32_t channels;    /* of the result, 3 or 1 */
    int32_t out_width, out_height;
    int32_t in_width, in_height; /* of every image; 0: any */
    fm_dtype dtype;
    fm_layout layout;
    fm_filter filter; /* of the op that resizes */
    fm_resize_order resize_order;
    bool stream;               /* stores may go past the cache; false after fm_plan_init() */
    size_t sample_bytes;       /* channels * out_height * out_width * size of dtype */
    union {                    /* result by channel and value */
        float table[3][256];   /* FM_FLOAT32 */
        uint32_t bits[3][256]; /* the same as bits; a 16-bit type's in the lower half */
    };
} fm_plan;

/* Most pixels of an image between ops where the plan does not say how many it has. */
#define FM_PLAN_MOST_PX ((uint64_t)1 << 24)

/* Checks *transform and fills *plan (caller's memory). FM_ERR_ARGUMENT names the op and value. */
int fm_plan_init(fm_plan *plan, const fm_transform *transform, fm_error *error);

#endif
