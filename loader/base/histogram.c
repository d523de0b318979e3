#define _GNU_SOURCE
#include "base/histogram.h"

static uint64_t upper_bound(uint32_t bucket) { return (uint64_t)(5 + bucket % 4) << bucket / 4; }

static uint32_t bucket_of(uint64_t number) {
    uint32_t bucket = 0;
    if (number > 8) bucket = 4 * (61 - (uint32_t)__builtin_clzll(number - 1));
    if (bucket >= FM_HISTOGRAM_BUCKETS - 4) bucket = FM_HISTOGRAM_BUCKETS - 4;
    while (bucket < FM_HISTOGRAM_BUCKETS - 1 && upper_bound(bucket) < number) bucket++;
    return bucket;
}

void fm_histogram_add(fm_histogram *histogram, uint64_t number, uint32_t most) {
    histogram->counts[bucket_of(number)]++;
    if (++histogram->n < most) return;
    histogram->n = 0;
    for (int i = 0; i < FM_HISTOGRAM_BUCKETS; i++) histogram->n += histogram->counts[i] /= 2;
}

uint64_t fm_histogram_percentile(const fm_histogram *histogram, uint32_t percent) {
    uint32_t left = (uint32_t)((uint64_t)histogram->n * percent / 100), bucket = 0;
    while (left > histogram->counts[bucket]) left -= histogram->counts[bucket++];
    return upper_bound(bucket);
}
