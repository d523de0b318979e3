/* Which CPUs and how much memory this process may use. Linux; read afresh at each call. */
#ifndef FM_BASE_CPU_H
#define FM_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The union of the affinity masks of the process's threads, into a cpu_set_t of mask_bytes. The
 * main thread's mask alone is no measure: OMP_PROC_BIND pins that one to a single CPU.
 */
bool fm_cpu_process_mask(void *mask, size_t mask_bytes);

/* CPUs by affinity and cgroup quota (v1 and v2), rounded down, at least 1. */
uint32_t fm_cpu_usable(void);

/* Bytes of memory that this process may use: the machine's, or the cgroup's limit if lower. */
uint64_t fm_cpu_memory_bytes(void);

#endif
