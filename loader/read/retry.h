/*
 * When requests are tried again, and how many are in flight. Nothing here reads a clock or waits:
 * times are arguments, of fm_clock_ns().
 */
#ifndef FM_READ_RETRY_H
#define FM_READ_RETRY_H

#include <stdbool.h>
#include <stdint.h>

/* ---- the attempts of one read ---------------------------------------------------------------- */

typedef struct fm_retry_policy {
    uint32_t max_attempts; /* the first included; those that reached no server do not count */
    uint64_t give_up_ns;   /* no attempt begins so long after the first one */
    uint64_t base_ns;      /* the longest first pause; it doubles with each failure */
    uint64_t cap_ns;       /* longest pause */
} fm_retry_policy;

typedef struct fm_retry {
    uint64_t first_ns;   /* when the first attempt began */
    uint32_t n_failures; /* all of them */
    uint32_t n_counted;  /* without those that reached no server */
} fm_retry;

/* An attempt has failed in a way that may pass. */
typedef struct fm_retry_failure {
    uint64_t now_ns;
    uint64_t wait_ns; /* that the server asked for (Retry-After); 0: it did not */
    uint32_t random;  /* any number of 32 bits */
    bool no_server;   /* nobody answered: no address, no connection */
} fm_retry_failure;

/*
 * Counts the failure. True: the next attempt begins at *at_ns, after a pause between 0 and the
 * longest one ("full jitter", so that the readers of a server that comes back do not all return at
 * once), and not before the server's wait is over. False: no further attempt.
 */
bool fm_retry_next(const fm_retry_policy *policy, fm_retry *retry, const fm_retry_failure *failure,
                   uint64_t *at_ns);

/* ---- requests in flight ---------------------------------------------------------------------- */

/*
 * The limit of requests in flight. It begins low and grows by one with each answer; once the server
 * has asked for less (status 429 or 503) it is halved, and then grows by FM_FLOW_GROWTH in the time
 * of one round of requests.
 */
typedef struct fm_flow {
    double limit;
    uint32_t most;
    bool was_lowered;
    uint64_t lowered_ns;
} fm_flow;

#define FM_FLOW_FIRST 32
#define FM_FLOW_GROWTH 4

void fm_flow_init(fm_flow *flow, uint32_t most);
uint32_t fm_flow_limit(const fm_flow *flow); /* at least 1 */
/* Whether the limit is low because the server has asked for fewer requests. */
bool fm_flow_is_lowered(const fm_flow *flow);
void fm_flow_answered(fm_flow *flow);
/* The server refused a request that began at begun_ns. Those that began before the limit was last
 * lowered do not lower it again. */
void fm_flow_refused(fm_flow *flow, uint64_t begun_ns, uint64_t now_ns);

#endif
