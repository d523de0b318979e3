#define _GNU_SOURCE
#include "read/hedge.h"

/* The percentile is that of the latest 1,000 to 2,000 answers. */
#define MOST_ANSWERS 2048
#define PERCENTILE 99
/* How many can be saved up: if more requests than a few hang at once, that is the server's state,
 * which more requests do not mend. */
#define MAX_ALLOWANCE 8

void fm_hedge_init(fm_hedge *hedge, uint32_t percent) {
    *hedge = (fm_hedge){.share = percent / 100.0};
}

void fm_hedge_answered(fm_hedge *hedge, uint64_t answer_ns) {
    fm_histogram_add(&hedge->answer_ns, answer_ns, MOST_ANSWERS);
    hedge->allowance += hedge->share;
    if (hedge->allowance > MAX_ALLOWANCE) hedge->allowance = MAX_ALLOWANCE;
}

uint64_t fm_hedge_after_ns(const fm_hedge *hedge) {
    if (hedge->answer_ns.n < FM_HEDGE_LEAST_ANSWERS || hedge->allowance < 1) return UINT64_MAX;
    const uint64_t after_ns = fm_histogram_percentile(&hedge->answer_ns, PERCENTILE);
    return after_ns > FM_HEDGE_LEAST_NS ? after_ns : FM_HEDGE_LEAST_NS;
}

void fm_hedge_made(fm_hedge *hedge) { hedge->allowance -= 1; }
