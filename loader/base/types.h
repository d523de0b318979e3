/* The plain structs that the stages hand to each other. */
#ifndef FM_BASE_TYPES_H
#define FM_BASE_TYPES_H

#include <stdbool.h>
#include <stdint.h>

/* A rectangle of pixels; `left` and `top` may be negative where padding is meant. */
typedef struct fm_box {
    int32_t left, top, width, height;
} fm_box;

/* What an image's header says. */
typedef struct fm_image_info {
    int32_t width, height; /* 1 to 65,535 */
    int32_t n_components;  /* 1 (grey), 2 (and alpha), 3, or 4 (inks, or RGB and alpha) */
    bool progressive;      /* decoded whole before the first row comes */
} fm_image_info;

/* Whether a box has pixels, all of them the image's. */
static inline bool fm_box_is_within(const fm_box *box, const fm_image_info *info) {
    return box->left >= 0 && box->top >= 0 && box->width >= 1 && box->height >= 1 &&
           box->width <= info->width && box->left <= info->width - box->width &&
           box->height <= info->height && box->top <= info->height - box->height;
}

/* Limits that are checked before anything is allocated for an image. */
typedef struct fm_limits {
    uint64_t max_file_bytes;
    uint64_t max_image_pixels;
    uint32_t rejected_formats; /* as in fm_config; only fm_decoder looks at it */
} fm_limits;

/* What keys the random draws of one sample (rng.h). */
typedef struct fm_draw_key {
    uint64_t seed;
    uint32_t epoch;
    uint32_t occurrence; /* uses of the index in this epoch before this one */
    int64_t index;       /* dataset index, not negative, below 2^40 */
} fm_draw_key;

#endif
