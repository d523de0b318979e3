/*
 * Weighted sums of two images, as MixUp makes them of uint8 images (Zhang and others: mixup: Beyond
 * Empirical Risk Minimization, ICLR 2018). Pure functions, for any thread.
 */
#ifndef FM_AUGMENT_MIX_H
#define FM_AUGMENT_MIX_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* For each of n bytes: one * weight + other * other_weight in float32, rounded to the nearest
 * integer, halves to the even one. The sum must be less than 256. `out` may be one of the two. */
typedef void (*fm_mix_kernel)(uint8_t *out, const uint8_t *one, const uint8_t *other, size_t n,
                              float weight, float other_weight);

fm_mix_kernel fm_mix_kernel_of(fm_cpu_tier tier);

#endif
