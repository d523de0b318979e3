#define _GNU_SOURCE
#include "base/cpu.h"

#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/cgroup.h"

bool fm_cpu_process_mask(void *mask, size_t mask_bytes) {
    CPU_ZERO_S(mask_bytes, (cpu_set_t *)mask);
    DIR *const tasks = opendir("/proc/self/task");
    if (!tasks) return sched_getaffinity(0, mask_bytes, mask) == 0;
    bool any = false;
    for (const struct dirent *entry; (entry = readdir(tasks));) {
        const long id = strtol(entry->d_name, NULL, 10);
        cpu_set_t one;
        if (id <= 0 || sched_getaffinity((pid_t)id, sizeof(one), &one)) continue;
        CPU_OR_S(mask_bytes, (cpu_set_t *)mask, (cpu_set_t *)mask, &one);
        any = true;
    }
    closedir(tasks);
    return any;
}

uint32_t fm_cpu_allowed(void) {
    cpu_set_t mask;
    const int n = fm_cpu_process_mask(&mask, sizeof(mask)) ? CPU_COUNT(&mask) : 1;
    return n < 1 ? 1 : (uint32_t)n;
}

uint32_t fm_cpu_usable(void) {
    double cpus = fm_cpu_allowed();
    const double quota = fm_cgroup_cpus();
    if (quota > 0 && quota < cpus) cpus = quota;
    return cpus < 1 ? 1 : (uint32_t)cpus;
}

uint32_t fm_usable_cpus(void) { return fm_cpu_usable(); }

uint64_t fm_cpu_memory_bytes(void) {
    const double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double limit = fm_cgroup_memory_bytes();
    return (uint64_t)(limit > 0 && limit < bytes ? limit : bytes);
}

/* ---- tiers ----------------------------------------------------------------------------------- */

#if defined(__x86_64__)

/* Register state that the operating system saves: bits of XCR0. */
#define XCR0_YMM 0x06u /* SSE and AVX */
#define XCR0_ZMM 0xe6u /* SSE, AVX and AVX-512 with its mask registers */

/* Only if CPUID reports OSXSAVE. As bytes, because the intrinsic needs a compiler flag. */
static uint32_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" /* xgetbv */ : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static fm_cpu_tier find_best_tier(void) {
    const uint32_t avx2_1c = bit_FMA | bit_F16C | bit_OSXSAVE | bit_AVX;
    const uint32_t avx512_7b = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    const uint32_t avx512_7c = bit_AVX512VBMI | bit_AVX512VNNI;
    uint32_t a, b1, c1, d, b7, c7;
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !(c1 & bit_SSSE3) || !(c1 & bit_SSE4_1))
        return FM_CPU_SCALAR;
    const uint32_t avx2_7b = bit_AVX2 | bit_BMI2;
    if ((c1 & avx2_1c) != avx2_1c || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) ||
        (b7 & avx2_7b) != avx2_7b)
        return FM_CPU_SSE41;
    const uint32_t xcr0 = read_xcr0();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM) return FM_CPU_SSE41;
    if ((b7 & avx512_7b) != avx512_7b || (c7 & avx512_7c) != avx512_7c) return FM_CPU_AVX2;
    if ((xcr0 & XCR0_ZMM) != XCR0_ZMM) return FM_CPU_AVX2;
    return FM_CPU_AVX512;
}

#elif defined(__aarch64__)

static fm_cpu_tier find_best_tier(void) { return FM_CPU_NEON; }

#else

static fm_cpu_tier find_best_tier(void) { return FM_CPU_SCALAR; }

#endif

fm_cpu_tier fm_cpu_best_tier(void) {
    /* The tier plus 1, or 0. Relaxed: every thread finds the same. */
    static _Atomic int known;
    int tier = atomic_load_explicit(&known, memory_order_relaxed);
    if (tier == 0) {
        tier = 1 + (int)find_best_tier();
        atomic_store_explicit(&known, tier, memory_order_relaxed);
    }
    return (fm_cpu_tier)(tier - 1);
}

#if defined(__aarch64__)
static const char *const tier_names[FM_CPU_N_TIERS] = {"scalar", "neon"};
#define TIER_NAMES_TEXT "scalar or neon"
#else
static const char *const tier_names[FM_CPU_N_TIERS] = {"scalar", "sse41", "avx2", "avx512"};
#define TIER_NAMES_TEXT "scalar, sse41, avx2 or avx512"
#endif

const char *fm_cpu_tier_name(fm_cpu_tier tier) { return tier_names[tier]; }

int fm_cpu_tier_get(fm_cpu_tier *out, fm_error *error) {
    const fm_cpu_tier best = fm_cpu_best_tier();
    *out = best;
    const char *const text = getenv("FEEDMILL_CPU");
    if (!text || !*text) return FM_OK;
    for (int tier = FM_CPU_SCALAR; tier < FM_CPU_N_TIERS; tier++) {
        if (strcmp(text, tier_names[tier])) continue;
        *out = tier < (int)best ? (fm_cpu_tier)tier : best;
        return FM_OK;
    }
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "FEEDMILL_CPU is '%.100s'; it must be " TIER_NAMES_TEXT, text);
}
