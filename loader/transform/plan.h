/*
 * A plan: the ops of an fm_transform, checked, with the sizes and the value table worked out. The
 * caller owns the struct; after fm_plan_init() it is read-only and shared by all threads.
 */
#ifndef FM_TRANSFORM_PLAN_H
#define FM_TRANSFORM_PLAN_H

#include <stdbool.h>

#include "base/mem.h"
#include "transform/geometry.h"

typedef struct fm_plan {
    fm_op ops[FM_MAX_OPS];
    size_t n_ops;
    /* The first n_front ops are geometric and are applied by one resample of the decoded rows. If
     * no other op follows, except RANDOM_ERASING, the resample writes to the batch. Otherwise it
     * writes the front image, to which the other ops are applied. */
    size_t n_front;
    bool augments;                     /* there are other ops */
    int32_t n_resizes;                 /* ops that resize */
    bool resizes_late;                 /* of these, some are among the other ops */
    bool erases;                       /* the last op is RANDOM_ERASING */
    bool lights;                       /* the last op, or the one before that, is LIGHTING */
    bool blurs;                        /* an op may blur */
    int32_t front_width, front_height; /* of the front image; 0 if it depends on the sample */
    uint64_t most_px;    /* limit of an image's pixels between ops; larger ones are refused */
    int32_t in_channels; /* of the input images */
    int32_t channels;    /* of the result, 3 or 1 */
    int32_t out_width, out_height;
    int32_t in_width, in_height; /* of every input image; 0: any */
    fm_dtype dtype;
    fm_layout layout;
    fm_filter filter;        /* of the first op that resizes */
    fm_filter second_filter; /* the one that it may draw instead; if none, the same as `filter` */
    fm_resize_order resize_order;
    bool resizes_floats; /* FM_RESIZE_TORCH_FLOAT */
    bool keeps_floats;   /* its results are not rounded to bytes */
    int32_t run_taps;    /* fm_float_resize */
    float resized_values[3][256];
    bool resizes_bytes;        /* these are the bytes as floats... */
    bool resizes_shares;       /* ... or the bytes divided by 255 */
    float mean[3], std[3];     /* with keeps_floats: applied to the resized values */
    bool stream;               /* stores may bypass the cache; false after fm_plan_init() */
    size_t sample_bytes;       /* channels * out_height * out_width * size of dtype */
    union {                    /* output value by channel and byte */
        float table[3][256];   /* FM_FLOAT32 */
        uint32_t bits[3][256]; /* 16-bit types: the value's bits in the lower half */
    };
} fm_plan;

/* most_px where the size depends on the image. */
#define FM_PLAN_MAX_PX ((uint64_t)1 << 24)

/* Checks *transform and fills *plan. FM_ERR_ARGUMENT names the op and the value. */
int fm_plan_init(fm_plan *plan, const fm_transform *transform, fm_error *error);

#endif
