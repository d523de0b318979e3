/* The declarations of the NEON kernels of augment/, which every AArch64 CPU can run. */
#ifndef FM_AUGMENT_ARM_TARGET_H
#define FM_AUGMENT_ARM_TARGET_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define FM_AUGMENT_NEON static inline __attribute__((unused))
#define FM_AUGMENT_NEON_INLINE FM_AUGMENT_NEON __attribute__((always_inline))

#endif
