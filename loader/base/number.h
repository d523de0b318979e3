/* Minimum, maximum, and capacities of growing arrays. */
#ifndef FM_BASE_NUMBER_H
#define FM_BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>

static inline int32_t fm_min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t fm_max_i32(int32_t a, int32_t b) { return a > b ? a : b; }

/* The first of least, 2 * least, 4 * least ... that is at least n, so that a growing array is only
 * reallocated a few times. `least` is not 0. */
static inline size_t fm_capacity(size_t least, size_t n) {
    size_t capacity = least;
    while (capacity < n) capacity *= 2;
    return capacity;
}

#endif
