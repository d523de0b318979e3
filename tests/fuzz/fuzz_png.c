/* Decodes arbitrary bytes as PNGs; see fuzz_decoder.h. */
#define _GNU_SOURCE
#include "decode/png.h"

#define DECODER png
#include "fuzz_decoder.h"
