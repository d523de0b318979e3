/*
 * A multiplication followed by an addition, as Pillow's builds compute it. Compilers contract the
 * two to one operation, which rounds once, where every CPU of the kind has it: on AArch64, but not
 * on x86-64. So some values of Pillow's blends and interpolations differ between these by one.
 */
#ifndef FM_AUGMENT_CONTRACT_H
#define FM_AUGMENT_CONTRACT_H

#include <math.h>

#if defined(__x86_64__) || defined(__i386__)
#define FM_CONTRACTS 0
#else
#define FM_CONTRACTS 1
#endif

/* a * b + c */
static inline double fm_multiply_add(double a, double b, double c) {
    return FM_CONTRACTS ? fma(a, b, c) : a * b + c;
}

static inline float fm_multiply_add_f32(float a, float b, float c) {
    return FM_CONTRACTS ? fmaf(a, b, c) : a * b + c;
}

#endif
