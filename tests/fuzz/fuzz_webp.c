/* Decodes arbitrary bytes as WebPs; see fuzz_decoder.h. */
#define _GNU_SOURCE
#include "decode/webp.h"

#define DECODER webp
#include "fuzz_decoder.h"
