/*
 * When a request is sent a second time because its answer is late ("hedged request": Dean and
 * Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013). Nothing here reads a clock.
 */
#ifndef FM_READ_HEDGE_H
#define FM_READ_HEDGE_H

#include "base/histogram.h"

/* So many answers are needed before the first hedge. */
#define FM_HEDGE_LEAST_ANSWERS 100
/* No request is hedged earlier. */
#define FM_HEDGE_LEAST_NS 10000000u

typedef struct fm_hedge {
    double share;           /* of all requests: how many may be hedged */
    double allowance;       /* how many may be now */
    fm_histogram answer_ns; /* from requests to the begin of their answers */
} fm_hedge;

/* percent: the share; 0: no hedges. */
void fm_hedge_init(fm_hedge *hedge, uint32_t percent);
/* An answer began so long after its request. */
void fm_hedge_answered(fm_hedge *hedge, uint64_t answer_ns);
/* After so long without an answer, which is longer than 99% of them took, a request may be hedged.
 * UINT64_MAX: none may be. */
uint64_t fm_hedge_after_ns(const fm_hedge *hedge);
/* A request was hedged. */
void fm_hedge_made(fm_hedge *hedge);

#endif
