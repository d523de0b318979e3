/* A generator as torch.manual_seed(seed) leaves it: init_genrand() of mt19937. */
#ifndef FM_TEST_SEEDED_H
#define FM_TEST_SEEDED_H

#include "base/streams.h"

static inline fm_mt19937 seeded(uint32_t seed) {
    fm_mt19937 generator = {.words = {seed}, .next = FM_MT19937_N};
    for (uint32_t i = 1; i < FM_MT19937_N; i++) {
        const uint32_t last = generator.words[i - 1];
        generator.words[i] = 1812433253u * (last ^ last >> 30) + i;
    }
    return generator;
}

#endif
