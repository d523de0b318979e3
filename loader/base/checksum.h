/* A checksum of 64 bits (XXH64 with seed 0), which costs some 0.1 ns a byte. It finds damage, and
 * does not withstand who changes bytes on purpose. */
#ifndef FM_BASE_CHECKSUM_H
#define FM_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t fm_checksum(const void *bytes, size_t n_bytes);

#endif
