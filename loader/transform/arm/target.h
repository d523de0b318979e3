/* The declarations of the NEON kernels, which every AArch64 CPU can run. */
#ifndef FM_TRANSFORM_ARM_TARGET_H
#define FM_TRANSFORM_ARM_TARGET_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_NEON static inline __attribute__((unused))
#define FM_NEON_INLINE FM_NEON __attribute__((always_inline))

#endif
