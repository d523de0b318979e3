/* The sums of all causes of a wait, and of all parts of its time for storage. */
#ifndef FM_TEST_WAIT_CAUSES_H
#define FM_TEST_WAIT_CAUSES_H

#include "feedmill/stats.h"

static inline uint64_t wait_causes_ns(const fm_wait_causes *causes) {
    uint64_t sum_ns = 0;
#define FM_X(name, meaning) sum_ns += causes->name;
    FM_WAIT_CAUSE_FIELDS(FM_X)
#undef FM_X
    return sum_ns;
}

static inline uint64_t storage_parts_ns(const fm_storage_parts *parts) {
    uint64_t sum_ns = 0;
#define FM_X(name, meaning) sum_ns += parts->name;
    FM_STORAGE_PART_FIELDS(FM_X)
#undef FM_X
    return sum_ns;
}

#endif
