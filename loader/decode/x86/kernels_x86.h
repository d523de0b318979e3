/* Fills the table of kernels with those for x86-64. Only jpeg_kernels.c includes it. */
#ifndef FM_DECODE_X86_KERNELS_X86_H
#define FM_DECODE_X86_KERNELS_X86_H

#include "decode/x86/kernels_avx2.h"

/* Overwrites the table's entries, tier by tier. */
static inline __attribute__((unused)) void fm_jpeg_kernels_init_x86(fm_jpeg_kernels *kernels,
                                                                    fm_cpu_tier tier) {
    if (tier < FM_CPU_SSE41) return;
    *kernels = (fm_jpeg_kernels){.tier = FM_CPU_SSE41,
                                 .idct = fm_idct_sse41,
                                 .upsample_h2 = fm_upsample_h2_sse41,
                                 .upsample_h2v2 = fm_upsample_h2v2_sse41,
                                 .upsample_v2 = fm_upsample_v2_sse41,
                                 .ycc_to_rgb = fm_ycc_to_rgb_sse41,
                                 .gray_to_rgb = fm_gray_to_rgb_sse41};
    if (tier < FM_CPU_AVX2) return;
    *kernels = (fm_jpeg_kernels){.tier = FM_CPU_AVX2,
                                 .idct = fm_idct_avx2,
                                 .upsample_h2 = fm_upsample_h2_avx2,
                                 .upsample_h2v2 = fm_upsample_h2v2_avx2,
                                 .upsample_v2 = fm_upsample_v2_avx2,
                                 .ycc_to_rgb = fm_ycc_to_rgb_avx2,
                                 .gray_to_rgb = fm_gray_to_rgb_avx2};
}

#endif
