/* Fills the table of kernels with those for AArch64. Only jpeg_kernels.c includes it. */
#ifndef FM_DECODE_ARM_KERNELS_ARM_H
#define FM_DECODE_ARM_KERNELS_ARM_H

#include "decode/arm/idct_neon.h"
#include "decode/arm/pixels_neon.h"

/* Overwrites the table's entries. */
static inline __attribute__((unused)) void fm_jpeg_kernels_init_arm(fm_jpeg_kernels *kernels,
                                                                    fm_cpu_tier tier) {
    if (tier < FM_CPU_NEON) return;
    *kernels = (fm_jpeg_kernels){.tier = FM_CPU_NEON,
                                 .idct = fm_idct_neon,
                                 .upsample_h2 = fm_upsample_h2_neon,
                                 .upsample_h2v2 = fm_upsample_h2v2_neon,
                                 .upsample_v2 = fm_upsample_v2_neon,
                                 .ycc_to_rgb = fm_ycc_to_rgb_neon,
                                 .gray_to_rgb = fm_gray_to_rgb_neon};
}

#endif
