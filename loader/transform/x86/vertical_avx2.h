/* The vertical kernel in AVX2. */
#ifndef FM_TRANSFORM_X86_VERTICAL_AVX2_H
#define FM_TRANSFORM_X86_VERTICAL_AVX2_H

#undef FM_WIDTH
#define FM_WIDTH 32
#include "transform/x86/vertical_template.h"

#endif
