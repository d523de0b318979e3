/* Decodes arbitrary bytes as JPEGs; see fuzz_decoder.h. */
#define _GNU_SOURCE
#include "decode/jpeg.h"

#define DECODER jpeg
#include "fuzz_decoder.h"
