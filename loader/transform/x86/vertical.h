/* The vertical kernels in SSE4.1 and AVX2, from one template. */
#ifndef FM_TRANSFORM_X86_VERTICAL_H
#define FM_TRANSFORM_X86_VERTICAL_H

#undef FM_WIDTH
#define FM_WIDTH 16
#include "transform/x86/vertical_template.h"
#undef FM_WIDTH
#define FM_WIDTH 32
#include "transform/x86/vertical_template.h"

#endif
