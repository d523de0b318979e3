/* What reads of objects spend their time on. All zero for files. */
#ifndef FM_READ_STAGES_H
#define FM_READ_STAGES_H

#include <stdint.h>

typedef struct fm_read_stages {
    uint64_t connect_ns;    /* until a connection was ready, credentials included */
    uint64_t first_byte_ns; /* from then until the response began */
    uint64_t transfer_ns;   /* from then to its end */
    uint64_t retry_ns;      /* attempts that failed, and the pauses after them */
    uint64_t throttled_ns;  /* attempts that the server refused with status 429 or 503, the pauses
                             * after them, and waits as fewer requests are made since */
} fm_read_stages;

/* The stages of one read, and of what it waited for. */
typedef struct fm_read_times {
    /* Of the time until it started: the part in which it waited only because the server had asked
     * for fewer requests; and the stages of all reads that ended in that time. */
    uint64_t held_ns;
    fm_read_stages queue;
    /* From its start: the attempt that brought the object, which connects, waits for the first byte
     * and transfers in this order, and everything before that. */
    fm_read_stages earlier, last;
} fm_read_times;

static inline void fm_read_stages_add(fm_read_stages *sum, const fm_read_stages *one) {
    sum->connect_ns += one->connect_ns;
    sum->first_byte_ns += one->first_byte_ns;
    sum->transfer_ns += one->transfer_ns;
    sum->retry_ns += one->retry_ns;
    sum->throttled_ns += one->throttled_ns;
}

static inline fm_read_stages fm_read_stages_since(const fm_read_stages *now,
                                                  const fm_read_stages *then) {
    return (fm_read_stages){now->connect_ns - then->connect_ns,
                            now->first_byte_ns - then->first_byte_ns,
                            now->transfer_ns - then->transfer_ns, now->retry_ns - then->retry_ns,
                            now->throttled_ns - then->throttled_ns};
}

static inline uint64_t fm_read_stages_ns(const fm_read_stages *stages) {
    return stages->connect_ns + stages->first_byte_ns + stages->transfer_ns + stages->retry_ns +
           stages->throttled_ns;
}

#endif
