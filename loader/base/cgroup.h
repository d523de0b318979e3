/* What the process's cgroups, of v1 or v2, grant it. Linux; read afresh at each call. */
#ifndef FM_BASE_CGROUP_H
#define FM_BASE_CGROUP_H

#include <stdint.h>

/* The lowest CPU quota of the process's group and those above it, in CPUs; 0: none. */
double fm_cgroup_cpus(void);

/* The lowest limit of memory, in bytes; 0: none. */
double fm_cgroup_memory_bytes(void);

#define FM_MOST_QUOTAS 4

/* The groups whose quotas hold for the process; close it where it was opened. */
typedef struct fm_throttle {
    int files[FM_MOST_QUOTAS]; /* their cpu.stat */
    uint32_t n;
    uint32_t n_cpus;
} fm_throttle;

/* Those that have a quota now; n is 0 where none has. The process keeps n_cpus CPUs busy, at
 * least 1. */
void fm_throttle_open(fm_throttle *throttle, uint32_t n_cpus);
void fm_throttle_close(fm_throttle *throttle);

/*
 * For how long, since some time in the past, quotas have kept all threads of the process from
 * running: what the kernel counts for each CPU, divided by n_cpus. Less than that where fewer
 * wanted to run, since such a CPU is not counted. 0 without quotas; the kernel adds a pause when it
 * ends. One system call a quota.
 */
uint64_t fm_throttle_ns(const fm_throttle *throttle);

#endif
