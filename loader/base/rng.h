/*
 * Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers:
 * As Easy as 1, 2, 3, SC 2011). A number depends only on its key and counter, not on threads,
 * batches or the order of calls.
 *
 * Key: the seed's two words. Counter, from word 0: op (8 bits; counted through all views of the
 * sample) and block (24 bits); the low 32 bits
 * of the dataset index; its next 8 bits and the occurrence (24 bits); the epoch word.
 */
#ifndef FM_BASE_RNG_H
#define FM_BASE_RNG_H

#include <stdint.h>

#include "base/streams.h"
#include "base/types.h"

static inline void fm_rng_philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * counter[0];
        const uint64_t product1 = (uint64_t)0xCD9E8D57u * counter[2];
        const uint32_t next0 = (uint32_t)(product1 >> 32) ^ counter[1] ^ key0;
        const uint32_t next2 = (uint32_t)(product0 >> 32) ^ counter[3] ^ key1;
        counter[1] = (uint32_t)product1;
        counter[3] = (uint32_t)product0;
        counter[0] = next0;
        counter[2] = next2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* The generator for one op of one sample. The caller owns it, and only one thread uses it. */
typedef struct fm_rng {
    fm_draw_key key;
    uint32_t op, block, n_left;
    uint32_t words[4];
} fm_rng;

static inline fm_rng fm_rng_init(const fm_draw_key *key, uint32_t op) {
    return (fm_rng){.key = *key, .op = key->first_op + op};
}

static inline uint32_t fm_rng_u32(fm_rng *rng) {
    if (rng->n_left == 0) {
        const uint64_t index = (uint64_t)rng->key.index;
        rng->words[0] = rng->op << 24 | (rng->block++ & 0xFFFFFFu);
        rng->words[1] = (uint32_t)index;
        rng->words[2] = (uint32_t)(index >> 32) << 24 | (rng->key.occurrence & 0xFFFFFFu);
        rng->words[3] = rng->key.epoch;
        fm_rng_philox(rng->words, (uint32_t)rng->key.seed, (uint32_t)(rng->key.seed >> 32));
        rng->n_left = 4;
    }
    return rng->words[4 - rng->n_left--];
}

/* Uniform in [0, 1): a multiple of 2^-24, like torch's float32 generator. */
static inline float fm_rng_f32(fm_rng *rng) {
    if (rng->key.streams) return fm_torch_rand(&rng->key.streams->torch);
    return (float)(fm_rng_u32(rng) >> 8) * 0x1p-24f;
}

/* Uniform in 0 .. n-1, n >= 1, without bias: Lemire's multiplication with rejection. With streams:
 * torch.randint(), which has a bias. */
static inline uint32_t fm_rng_below(fm_rng *rng, uint32_t n) {
    if (rng->key.streams) return fm_torch_randint(&rng->key.streams->torch, n);
    uint64_t product = (uint64_t)fm_rng_u32(rng) * n;
    if ((uint32_t)product < n) {
        const uint32_t threshold = (0u - n) % n;
        while ((uint32_t)product < threshold) product = (uint64_t)fm_rng_u32(rng) * n;
    }
    return (uint32_t)(product >> 32);
}

#endif
