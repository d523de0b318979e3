/* Which CPUs and how much memory this process may use, and what the CPUs can do. Linux; read afresh
 * at each call. */
#ifndef FM_BASE_CPU_H
#define FM_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * The union of the affinity masks of the process's threads, into a cpu_set_t of mask_bytes. The
 * main thread's mask alone is no measure: OMP_PROC_BIND pins that one to a single CPU.
 */
bool fm_cpu_process_mask(void *mask, size_t mask_bytes);

/* CPUs by affinity, at least 1. */
uint32_t fm_cpu_allowed(void);

/* CPUs by affinity and cgroup quota (v1 and v2), rounded down, at least 1. */
uint32_t fm_cpu_usable(void);

/* Bytes of memory that this process may use: the machine's, or the cgroup's limit if lower. */
uint64_t fm_cpu_memory_bytes(void);

/* Sets of instructions that kernels are written for; each includes those below it. */
typedef enum fm_cpu_tier {
    FM_CPU_SCALAR, /* what the compiler makes of plain C; all there is where it is not x86-64 */
    FM_CPU_SSE41,
    FM_CPU_AVX2,  /* with FMA and F16C */
    FM_CPU_AVX512 /* F, BW, DQ, VL, VBMI and VNNI: Ice Lake, Zen 4 and newer */
} fm_cpu_tier;

/* The highest tier that both the CPU and the operating system support. */
fm_cpu_tier fm_cpu_best_tier(void);

/*
 * The tier to use: the best one up to AVX2, as AVX-512 has not been timed on a CPU yet, or the one
 * that the environment variable FEEDMILL_CPU names. A tier that the CPU lacks gives the best.
 * FM_ERR_ARGUMENT for a name that is no tier's.
 */
int fm_cpu_tier_get(fm_cpu_tier *out, fm_error *error);

/* "scalar", "sse41", "avx2" or "avx512". */
const char *fm_cpu_tier_name(fm_cpu_tier tier);

#endif
