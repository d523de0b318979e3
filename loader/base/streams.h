/*
 * The random numbers of torch, Python's `random` and NumPy's legacy generator, as a worker process
 * of torch's DataLoader draws them. All three are MT19937 (Matsumoto, Nishimura: Mersenne Twister,
 * ACM TOMACS 8, 1998) and differ in how they make numbers of its words:
 *
 *     torch    CPUGeneratorImpl and ATen/core/DistributionsHelper.h
 *     Python   Modules/_randommodule.c and Lib/random.py
 *     NumPy    numpy/random/src/legacy
 *
 * Only one thread may use a generator at a time.
 */
#ifndef FM_BASE_STREAMS_H
#define FM_BASE_STREAMS_H

#include <stdint.h>

#include "feedmill/streams.h"

uint32_t fm_mt19937_u32(fm_mt19937 *generator);

/* torch.rand(1), float32: a multiple of 2^-24 in [0, 1). */
float fm_torch_rand(fm_mt19937 *generator);

/* torch.empty(1).uniform_(low, high), float32. */
float fm_torch_uniform(fm_mt19937 *generator, float low, float high);

/* torch.randint(n, (1,)), for 1 <= n < 2^28. */
uint32_t fm_torch_randint(fm_mt19937 *generator, uint32_t n);

/* torch.randperm(n), for 1 <= n < 2^28. */
void fm_torch_randperm(fm_mt19937 *generator, int32_t n, double *order);

/* torch.multinomial() of one number, with these float32 probabilities, of which one at least is
 * above 0: 1 <= n. */
int32_t fm_torch_multinomial(fm_mt19937 *generator, const double *probabilities, int32_t n);

/* torch.empty(n).normal_() for n < 16, float32: the next of its numbers. */
float fm_torch_normal(fm_streams *streams);

/* The same before torch rounds it to float32, to which normal_(mean, std) applies these. */
double fm_torch_normal_double(fm_streams *streams);

/* random.random(): a multiple of 2^-53 in [0, 1). */
double fm_python_random(fm_mt19937 *generator);

/* random.uniform(low, high). */
double fm_python_uniform(fm_mt19937 *generator, double low, double high);

/* random.randint(0, n - 1), and the number of the item that random.choice() of n items returns, for
 * n >= 1. */
uint32_t fm_python_below(fm_mt19937 *generator, uint32_t n);

/* random.shuffle() of the numbers 0 .. n-1. */
void fm_python_shuffle(fm_mt19937 *generator, int32_t n, double *order);

/* random.gauss(mean, deviation) */
double fm_python_gauss(fm_streams *streams, double mean, double deviation);

/* numpy.random.rand(): a multiple of 2^-53 in [0, 1). */
double fm_numpy_rand(fm_mt19937 *generator);

/* numpy.random.randint(n), for n >= 1. */
uint32_t fm_numpy_below(fm_mt19937 *generator, uint32_t n);

#endif
