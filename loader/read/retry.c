#define _GNU_SOURCE
#include "read/retry.h"

/* The longest pause after n failures. */
static uint64_t longest_ns(const fm_retry_policy *policy, uint32_t n_failures) {
    uint64_t longest = policy->base_ns;
    for (uint32_t i = 1; i < n_failures && longest < policy->cap_ns; i++) longest *= 2;
    return longest < policy->cap_ns ? longest : policy->cap_ns;
}

bool fm_retry_next(const fm_retry_policy *policy, fm_retry *retry, const fm_retry_failure *failure,
                   uint64_t *at_ns) {
    const uint64_t end_ns = retry->first_ns + policy->give_up_ns;
    retry->n_failures++;
    retry->n_counted += !failure->no_server;
    if (retry->n_counted >= policy->max_attempts) return false;
    /* Shorter remainders would end in a burst of attempts. */
    if (failure->now_ns + policy->base_ns >= end_ns) return false;
    const uint64_t left_ns = end_ns - failure->now_ns;
    if (failure->wait_ns >= left_ns) return false;
    uint64_t pause_ns = longest_ns(policy, retry->n_failures);
    if (pause_ns > left_ns - failure->wait_ns) pause_ns = left_ns - failure->wait_ns;
    pause_ns = (uint64_t)((double)pause_ns * ((double)failure->random * 0x1p-32));
    *at_ns = failure->now_ns + failure->wait_ns + pause_ns;
    return true;
}

void fm_flow_init(fm_flow *flow, uint32_t most) {
    *flow = (fm_flow){.limit = most < FM_FLOW_FIRST ? most : FM_FLOW_FIRST, .most = most};
}

uint32_t fm_flow_limit(const fm_flow *flow) { return (uint32_t)flow->limit; }

bool fm_flow_is_lowered(const fm_flow *flow) {
    return flow->was_lowered && fm_flow_limit(flow) < flow->most;
}

void fm_flow_answered(fm_flow *flow) {
    flow->limit += flow->was_lowered ? FM_FLOW_GROWTH / flow->limit : 1;
    if (flow->limit > flow->most) flow->limit = flow->most;
}

void fm_flow_refused(fm_flow *flow, uint64_t begun_ns, uint64_t now_ns) {
    if (flow->was_lowered && begun_ns < flow->lowered_ns) return;
    flow->was_lowered = true;
    flow->lowered_ns = now_ns;
    flow->limit = flow->limit < 2 ? 1 : flow->limit / 2;
}
