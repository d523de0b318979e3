/* Structs that the stages of the pipeline pass to each other. */
#ifndef FM_BASE_TYPES_H
#define FM_BASE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A rectangle of pixels. `left` and `top` may be negative where there is padding. */
typedef struct fm_box {
    int32_t left, top, width, height;
} fm_box;

/* From an image's header. */
typedef struct fm_image_info {
    int32_t width, height; /* 1 to 65,535 */
    int32_t n_components;  /* 1 gray, 2 gray and alpha, 3 RGB, 4 CMYK or RGB and alpha */
    bool progressive;      /* all of it is decoded before the first row */
    size_t n_bytes;        /* of a JPEG, including the EOI marker; 0 of other formats */
} fm_image_info;

/* Whether a box is not empty and lies within the image. */
static inline bool fm_box_is_within(const fm_box *box, const fm_image_info *info) {
    return box->left >= 0 && box->top >= 0 && box->width >= 1 && box->height >= 1 &&
           box->width <= info->width && box->left <= info->width - box->width &&
           box->height <= info->height && box->top <= info->height - box->height;
}

/* Limits, checked before anything is allocated for an image. */
typedef struct fm_limits {
    uint64_t max_file_bytes;
    uint64_t max_image_pixels;
    uint32_t rejected_formats; /* as in fm_config; only fm_decoder uses it */
} fm_limits;

/* The key of one sample's random numbers (rng.h). */
typedef struct fm_draw_key {
    uint64_t seed;
    uint32_t epoch;
    uint32_t occurrence; /* how often the index was used before in this epoch */
    int64_t index;       /* dataset index, not negative, below 2^40 */
    uint32_t first_op;   /* number of the plan's first op: ops of other views come before it */
    struct fm_streams *streams; /* not NULL: the numbers come from these, and nothing else counts */
    /* With streams, not NULL: where to put those before the random numbers of a RandomErasing's
     * pixels. It stays as it is if nothing is erased. */
    struct fm_streams *before_pixels;
} fm_draw_key;

#endif
