/* A histogram of numbers of any size, with four buckets for each doubling, which follows the latest
 * numbers. Not locked. */
#ifndef FM_BASE_HISTOGRAM_H
#define FM_BASE_HISTOGRAM_H

#include <stdint.h>

/* Up to 2^42: larger numbers are in the last bucket. */
#define FM_HISTOGRAM_BUCKETS 160

typedef struct fm_histogram {
    uint32_t counts[FM_HISTOGRAM_BUCKETS];
    uint32_t n; /* their sum */
} fm_histogram;

/* Counts a number. At `most` of them all counts are halved, so that later ones weigh more. */
void fm_histogram_add(fm_histogram *histogram, uint64_t number, uint32_t most);
/* The upper bound of the bucket up to which so many percent of the numbers are. */
uint64_t fm_histogram_percentile(const fm_histogram *histogram, uint32_t percent);

#endif
