/* Times in nanoseconds. All times in this library are those of fm_clock_ns(). Any thread. */
#ifndef FM_BASE_CLOCK_H
#define FM_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* 0 if the clock does not exist, such as that of a thread that has ended. */
static inline uint64_t fm_clock_of(clockid_t id) {
    struct timespec now;
    if (clock_gettime(id, &now)) return 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* CLOCK_MONOTONIC. */
static inline uint64_t fm_clock_ns(void) { return fm_clock_of(CLOCK_MONOTONIC); }

/* Converts a time of fm_clock_ns() for pthread_cond_timedwait(). */
static inline struct timespec fm_clock_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

#endif
