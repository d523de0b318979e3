/* Decodes arbitrary bytes as JPEGs; see fuzz_decoder.h. */
#define _GNU_SOURCE
#include "decode/jpeg.h"

#define DECODER jpeg
#define FM_FUZZ_MEASURE
#include "fuzz_decoder.h"
