/* Conversion to float16 and bfloat16, rounded to nearest, ties to even. */
#ifndef FM_TRANSFORM_HALF_H
#define FM_TRANSFORM_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t fm_float16_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000;
    uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00); /* NaN */
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) {
        /* Subnormal: a multiple of 2^-24, which is the last bit's value between 0.5 and 1. */
        const float shifted = fabsf(value) + 0.5f;
        memcpy(&size, &shifted, sizeof(size));
        return (uint16_t)(sign | (size - 0x3f000000));
    }
    size += 0xfff + (size >> 13 & 1);
    return (uint16_t)(sign | ((size - 0x38000000) >> 13));
}

static inline uint16_t fm_bfloat16_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0; /* NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/*
 * The absolute value of a number with a fraction of n_digits bits (10: float16, 7: bfloat16);
 * infinity counts as the next power of two.
 */
static inline double fm_half_size(uint32_t bits, int n_digits) {
    const int lowest = n_digits == 10 ? -24 : -133; /* of the smallest number above 0 */
    const int exponent = (int)(bits >> n_digits);
    const double fraction = bits & ((1u << n_digits) - 1);
    return exponent ? ldexp(fraction + (1 << n_digits), exponent - 1 + lowest)
                    : ldexp(fraction, lowest);
}

#endif
