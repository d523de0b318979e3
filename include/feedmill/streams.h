/*
 * States of the random number generators of a process: torch's for the CPU, and Python's `random`.
 * Both are MT19937 (Matsumoto, Nishimura: Mersenne Twister, ACM TOMACS 8, 1998).
 */
#ifndef FEEDMILL_STREAMS_H
#define FEEDMILL_STREAMS_H

#include <stdint.h>

#define FM_MT19937_N 624

typedef struct fm_mt19937 {
    uint32_t words[FM_MT19937_N];
    uint32_t next; /* the word that is used next, 0 to FM_MT19937_N; with FM_MT19937_N, 624 new
                      words are made first */
} fm_mt19937;

/* The caller owns it; only one thread may use it at a time. */
typedef struct fm_streams {
    fm_mt19937 torch;  /* torch.default_generator */
    fm_mt19937 python; /* the one behind random.random() */
} fm_streams;

#endif
