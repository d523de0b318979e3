/* Fills the table of kernels with those for x86-64. Only kernels.c includes it. */
#ifndef FM_TRANSFORM_X86_KERNELS_X86_H
#define FM_TRANSFORM_X86_KERNELS_X86_H

#include "transform/kernels.h"
#include "transform/x86/horizontal.h"
#include "transform/x86/horizontal_avx512.h"
#include "transform/x86/mirror_sse41.h"
#include "transform/x86/vertical.h"
#include "transform/x86/widen_sse41.h"

/*
 * Overwrites the table's entries, tier by tier. The AVX-512 tier resizes columns in AVX-512, which
 * bench_kernels measured at 1.5 times AVX2's speed on Sapphire Rapids. It keeps AVX2's vertical
 * kernel: one in AVX-512 reached 0.74 of its speed there.
 */
static inline __attribute__((unused)) void fm_kernels_init_x86(fm_kernels *kernels,
                                                               fm_cpu_tier tier) {
    if (tier < FM_CPU_SSE41) return;
    kernels->tier = FM_CPU_SSE41;
    kernels->prepare_columns = fm_prepare_columns_sse41;
    kernels->prepare_rows = fm_prepare_rows;
    kernels->horizontal = fm_horizontal_sse41;
    kernels->vertical = fm_vertical_sse41;
    kernels->mirror = fm_mirror_sse41;
    kernels->widen = fm_widen_sse41;
    kernels->narrow = fm_narrow_sse41;
    if (tier < FM_CPU_AVX2) return;
    kernels->tier = FM_CPU_AVX2;
    kernels->prepare_columns = fm_prepare_columns_avx2;
    kernels->horizontal = fm_horizontal_avx2;
    kernels->vertical = fm_vertical_avx2;
    if (tier < FM_CPU_AVX512) return;
    kernels->tier = FM_CPU_AVX512;
    kernels->prepare_columns = fm_prepare_columns_avx512;
    kernels->horizontal = fm_horizontal_avx512;
}

#endif
