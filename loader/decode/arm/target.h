/* The declarations of the NEON kernels of decode/, which every AArch64 CPU can run. */
#ifndef FM_DECODE_ARM_TARGET_H
#define FM_DECODE_ARM_TARGET_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decode/jpeg_kernels.h"

#define FM_DECODE_NEON static inline __attribute__((unused))
#define FM_DECODE_NEON_COLD static __attribute__((unused, noinline, cold))
#define FM_DECODE_NEON_INLINE FM_DECODE_NEON __attribute__((always_inline))

#endif
