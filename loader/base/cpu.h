/* Which CPUs and how much memory this process may use, and which instruction sets the CPU has.
 * Linux only. Each call asks the system again, except for the instruction sets. Any thread. */
#ifndef FM_BASE_CPU_H
#define FM_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Writes the union of the affinity masks of all threads of the process to a cpu_set_t of
 * mask_bytes. The main thread's mask is not enough, as OMP_PROC_BIND pins it to a single CPU. false
 * on failure.
 */
bool fm_cpu_process_mask(void *mask, size_t mask_bytes);

/* Number of CPUs by affinity, at least 1. */
uint32_t fm_cpu_allowed(void);

/* Number of CPUs by affinity and cgroup quota (v1 and v2), rounded down, at least 1. */
uint32_t fm_cpu_usable(void);

/* Bytes of memory that this process may use: the machine's, or the cgroup's limit if that is lower.
 */
uint64_t fm_cpu_memory_bytes(void);

/* Instruction sets of this kind of processor for which there are kernels. Each tier includes the
 * lower ones. Processors other than x86-64 and AArch64 only have the first. */
#if defined(__aarch64__)
typedef enum fm_cpu_tier {
    FM_CPU_SCALAR, /* portable C, for which the compiler may use NEON as well */
    FM_CPU_NEON,   /* every AArch64 CPU has it */
    FM_CPU_N_TIERS
} fm_cpu_tier;
#else
typedef enum fm_cpu_tier {
    FM_CPU_SCALAR, /* portable C */
    FM_CPU_SSE41,
    FM_CPU_AVX2,   /* with FMA, F16C and BMI2 */
    FM_CPU_AVX512, /* F, BW, DQ, VL, VBMI and VNNI: Ice Lake, Zen 4 and newer */
    FM_CPU_N_TIERS
} fm_cpu_tier;
#endif

/* The highest tier that both the CPU and the operating system support. Found once: the instruction
 * that tells takes 10 us or more on a virtual machine, whose host has to answer it. */
fm_cpu_tier fm_cpu_best_tier(void);

/*
 * Sets *out to the tier to use: the one that the environment variable FEEDMILL_CPU names, or the
 * best one. A tier above the best one that the CPU has gives the best one.
 * FM_ERR_ARGUMENT if FEEDMILL_CPU has an unknown name.
 */
int fm_cpu_tier_get(fm_cpu_tier *out, fm_error *error);

/* "scalar", "sse41", "avx2" or "avx512"; on AArch64 "scalar" or "neon". */
const char *fm_cpu_tier_name(fm_cpu_tier tier);

#endif
