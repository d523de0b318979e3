#include "base/checksum.h"

#include <string.h>

#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u
#define LANES 4
#define STRIPE_BYTES (LANES * sizeof(uint64_t))

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static uint64_t load64(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

static uint64_t load32(const uint8_t *at) {
    uint32_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

static uint64_t mix(uint64_t lane, uint64_t input) { return rotate(lane + input * P2, 31) * P1; }

static uint64_t merge(const uint64_t lanes[LANES]) {
    uint64_t sum =
        rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
    for (int i = 0; i < LANES; i++) sum = (sum ^ mix(0, lanes[i])) * P1 + P4;
    return sum;
}

/* The bytes behind the last whole stripe, and the last mixing. */
static uint64_t finish(uint64_t sum, const uint8_t *at, size_t left) {
    for (; left >= 8; at += 8, left -= 8) sum = rotate(sum ^ mix(0, load64(at)), 27) * P1 + P4;
    for (; left >= 4; at += 4, left -= 4) sum = rotate(sum ^ load32(at) * P1, 23) * P2 + P3;
    for (; left > 0; at++, left--) sum = rotate(sum ^ *at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

uint64_t fm_checksum(const void *bytes, size_t n_bytes) {
    const uint8_t *at = bytes;
    size_t left = n_bytes;
    uint64_t sum = P5;
    if (left >= STRIPE_BYTES) {
        uint64_t lanes[LANES] = {P1 + P2, P2, 0, -P1};
        for (; left >= STRIPE_BYTES; at += STRIPE_BYTES, left -= STRIPE_BYTES)
            for (size_t i = 0; i < LANES; i++) lanes[i] = mix(lanes[i], load64(at + 8 * i));
        sum = merge(lanes);
    }
    return finish(sum + n_bytes, at, left);
}
