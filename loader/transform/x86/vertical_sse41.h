/* The vertical kernel in SSE4.1. */
#ifndef FM_TRANSFORM_X86_VERTICAL_SSE41_H
#define FM_TRANSFORM_X86_VERTICAL_SSE41_H

#undef FM_WIDTH
#define FM_WIDTH 16
#include "transform/x86/vertical_template.h"

#endif
