/* The pieces of a blame, added up. */
#ifndef FM_TEST_BLAME_SUM_H
#define FM_TEST_BLAME_SUM_H

#include "feedmill/stats.h"

static inline uint64_t blame_sum_ns(const fm_blame *blame) {
    uint64_t sum_ns = 0;
#define FM_X(name, meaning) sum_ns += blame->name;
    FM_BLAME_FIELDS(FM_X)
#undef FM_X
    return sum_ns;
}

#endif
