/*
 * States of the random number generators of a process: torch's for the CPU, Python's `random`, and
 * NumPy's legacy one. All are MT19937 (Matsumoto, Nishimura: Mersenne Twister, ACM TOMACS 8, 1998).
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

/*
 * Generators make normally distributed numbers in pairs, and keep the second one for the next call:
 * torch's for tensors of fewer than 16 numbers, Python's for random.gauss(). What NumPy's keeps
 * does not matter, as nothing here uses it. The struct has no padding, so that states can be
 * compared byte by byte. The caller owns it; only one thread may use it at a time.
 */
typedef struct fm_streams {
    double torch_normal, python_normal; /* the numbers that are kept; finite, 0 if there is none */
    fm_mt19937 torch;                   /* torch.default_generator */
    fm_mt19937 python;                  /* the one behind random.random() */
    fm_mt19937 numpy;                   /* the one behind numpy.random.rand() */
    uint16_t has_torch_normal, has_python_normal; /* 0 or 1 */
} fm_streams;

#endif
