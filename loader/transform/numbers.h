/* Functions of numbers whose results are the same on every machine. Pure functions, for any thread.
 */
#ifndef FM_TRANSFORM_NUMBERS_H
#define FM_TRANSFORM_NUMBERS_H

#include <stdint.h>

/* Natural logarithm of x > 0, and exponential for results within float32's range. The results are
 * the same on every machine. */
double fm_draws_log(double x);
double fm_draws_exp(double x);

/* The standard normal number that belongs to one of 2^32 equally likely words, to about 1e-15. Its
 * size is at most 6.34. */
double fm_normal(uint32_t word);

#endif
