/* Fills the table of kernels with those for AArch64. Only kernels.c includes it. */
#ifndef FM_TRANSFORM_ARM_KERNELS_ARM_H
#define FM_TRANSFORM_ARM_KERNELS_ARM_H

#include "transform/arm/copies_neon.h"
#include "transform/arm/horizontal_neon.h"
#include "transform/arm/vertical_neon.h"
#include "transform/kernels.h"

/* Overwrites the table's entries. The horizontal kernel reads the weights as they are. */
static inline __attribute__((unused)) void fm_kernels_init_arm(fm_kernels *kernels,
                                                               fm_cpu_tier tier) {
    if (tier < FM_CPU_NEON) return;
    kernels->tier = FM_CPU_NEON;
    kernels->prepare_rows = fm_prepare_rows_neon;
    kernels->horizontal = fm_horizontal_neon;
    kernels->vertical = fm_vertical_neon;
    kernels->mirror = fm_mirror_neon;
    kernels->widen = fm_widen_neon;
    kernels->narrow = fm_narrow_neon;
}

#endif
