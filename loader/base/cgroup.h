/* CPU and memory limits of the process's cgroups, v1 or v2, and time lost to CPU throttling. Linux
 * only. Each call reads the files again. Any thread. */
#ifndef FM_BASE_CGROUP_H
#define FM_BASE_CGROUP_H

#include <stdint.h>

/* The lowest CPU quota of the process's cgroup and its ancestors, in CPUs; 0: none. */
double fm_cgroup_cpus(void);

/* The lowest memory limit of these cgroups, in bytes; 0: none. */
double fm_cgroup_memory_bytes(void);

#define FM_MAX_QUOTAS 4

/* The cgroups with quotas that throttle the process. The caller owns the struct and closes it. */
typedef struct fm_throttle {
    int files[FM_MAX_QUOTAS]; /* descriptors of their cpu.stat */
    uint32_t n;
    uint32_t n_cpus;
} fm_throttle;

/* Opens the cgroups that have a quota now; throttle->n is 0 if none has. n_cpus, at least 1, is how
 * many CPUs the process keeps busy. */
void fm_throttle_open(fm_throttle *throttle, uint32_t n_cpus);
void fm_throttle_close(fm_throttle *throttle);

/*
 * How long quotas have kept the process from running, since an arbitrary start: the sum over CPUs
 * that the kernel counts, divided by n_cpus. Too low if fewer CPUs were busy, as the kernel does
 * not count idle ones. 0 without quotas. The kernel counts a pause when it ends. One system call
 * per quota.
 */
uint64_t fm_throttle_ns(const fm_throttle *throttle);

#endif
