#define _GNU_SOURCE
#include "base/cpu.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

/* First line of a small file, without its newline. */
static bool read_line(const char *path, char *line, int line_bytes) {
    FILE *const file = fopen(path, "re");
    if (!file) return false;
    const bool ok = fgets(line, line_bytes, file) != NULL;
    fclose(file);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

static bool read_i64(const char *path, int64_t *out) {
    char line[64], *end;
    if (!read_line(path, line, sizeof(line))) return false;
    *out = strtoll(line, &end, 10);
    return end != line;
}

/*
 * Where the process's cgroup of a v1 controller (or, with "", of v2) stands: its line in
 * /proc/self/cgroup. A container often shows only its own part of the tree, so that the path named
 * there does not exist below the mount; callers then try the mount's root as well.
 */
static bool cgroup_path(const char *controller, char *path, size_t path_bytes) {
    FILE *const file = fopen("/proc/self/cgroup", "re");
    if (!file) return false;
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        char *const controllers = strchr(line, ':');
        char *const group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group = 0;
        char *rest = controllers + 1;
        if (!*controller) {
            found = *rest == 0;
        } else {
            for (char *name; !found && (name = strsep(&rest, ","));)
                found = strcmp(name, controller) == 0;
        }
        if (found) snprintf(path, path_bytes, "%s", group + 1);
    }
    fclose(file);
    return found;
}

typedef void visit_group(const char *directory, void *user);

/* Calls visit() for the group's directory and each one above it: limits hold for all below. */
static void each_group(const char *mount, const char *controller, visit_group *visit, void *user) {
    char group[2048];
    if (!cgroup_path(controller, group, sizeof(group))) return;
    for (;;) {
        char directory[4096];
        snprintf(directory, sizeof(directory), "%s%s", mount, strcmp(group, "/") ? group : "");
        visit(directory, user);
        char *const slash = strrchr(group, '/');
        if (!slash || (slash == group && group[1] == 0)) break;
        slash[slash == group ? 1 : 0] = 0;
    }
}

static void lower(double *limit, double value) {
    if (value > 0 && (*limit == 0 || value < *limit)) *limit = value;
}

static void visit_quota_v2(const char *directory, void *user) {
    char path[4200], line[64];
    snprintf(path, sizeof(path), "%s/cpu.max", directory);
    if (!read_line(path, line, sizeof(line)) || strncmp(line, "max", 3) == 0) return;
    double quota = 0, period = 100000;
    if (sscanf(line, "%lf %lf", &quota, &period) < 1 || period <= 0) return;
    lower(user, quota / period);
}

static void visit_quota_v1(const char *directory, void *user) {
    char path[4200];
    int64_t quota, period;
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", directory);
    if (!read_i64(path, &quota) || quota <= 0) return;
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", directory);
    if (!read_i64(path, &period) || period <= 0) return;
    lower(user, (double)quota / (double)period);
}

static void visit_memory(const char *directory, void *user) {
    static const char *const names[] = {"memory.max", "memory.limit_in_bytes"};
    for (int i = 0; i < 2; i++) {
        char path[4200];
        int64_t bytes;
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        if (read_i64(path, &bytes)) lower(user, (double)bytes);
    }
}

uint32_t fm_cpu_usable(void) {
    cpu_set_t mask;
    double cpus = 1;
    if (fm_cpu_process_mask(&mask, sizeof(mask))) cpus = CPU_COUNT(&mask);
    double quota = 0;
    each_group("/sys/fs/cgroup", "", visit_quota_v2, &quota);
    each_group("/sys/fs/cgroup/unified", "", visit_quota_v2, &quota);
    each_group("/sys/fs/cgroup/cpu", "cpu", visit_quota_v1, &quota);
    each_group("/sys/fs/cgroup/cpu,cpuacct", "cpu", visit_quota_v1, &quota);
    if (quota > 0 && quota < cpus) cpus = quota;
    return cpus < 1 ? 1 : (uint32_t)cpus;
}

uint32_t fm_usable_cpus(void) { return fm_cpu_usable(); }

uint64_t fm_cpu_memory_bytes(void) {
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    each_group("/sys/fs/cgroup", "", visit_memory, &bytes);
    each_group("/sys/fs/cgroup/memory", "memory", visit_memory, &bytes);
    return (uint64_t)bytes;
}

/* ---- tiers ----------------------------------------------------------------------------------- */

#if defined(__x86_64__)

/* Register state that the operating system saves: bits of XCR0. */
#define XCR0_YMM 0x06u /* SSE and AVX */
#define XCR0_ZMM 0xe6u /* ... and the mask registers and both parts of AVX-512's */

/* Only where CPUID says OSXSAVE. In bytes, since the intrinsic needs a compiler flag. */
static uint32_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" /* xgetbv */ : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

fm_cpu_tier fm_cpu_best_tier(void) {
    const uint32_t avx2_1c = bit_FMA | bit_F16C | bit_OSXSAVE | bit_AVX;
    const uint32_t avx512_7b = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    const uint32_t avx512_7c = bit_AVX512VBMI | bit_AVX512VNNI;
    uint32_t a, b1, c1, d, b7, c7;
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !(c1 & bit_SSSE3) || !(c1 & bit_SSE4_1))
        return FM_CPU_SCALAR;
    if ((c1 & avx2_1c) != avx2_1c || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !(b7 & bit_AVX2))
        return FM_CPU_SSE41;
    const uint32_t xcr0 = read_xcr0();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM) return FM_CPU_SSE41;
    if ((b7 & avx512_7b) != avx512_7b || (c7 & avx512_7c) != avx512_7c) return FM_CPU_AVX2;
    if ((xcr0 & XCR0_ZMM) != XCR0_ZMM) return FM_CPU_AVX2;
    return FM_CPU_AVX512;
}

#else

fm_cpu_tier fm_cpu_best_tier(void) { return FM_CPU_SCALAR; }

#endif

static const char *const tier_names[] = {"scalar", "sse41", "avx2", "avx512"};

const char *fm_cpu_tier_name(fm_cpu_tier tier) { return tier_names[tier]; }

int fm_cpu_tier_get(fm_cpu_tier *out, fm_error *error) {
    const fm_cpu_tier best = fm_cpu_best_tier();
    *out = best < FM_CPU_AVX512 ? best : FM_CPU_AVX2;
    const char *const text = getenv("FEEDMILL_CPU");
    if (!text || !*text) return FM_OK;
    for (int tier = FM_CPU_SCALAR; tier <= FM_CPU_AVX512; tier++) {
        if (strcmp(text, tier_names[tier])) continue;
        *out = tier < (int)best ? (fm_cpu_tier)tier : best;
        return FM_OK;
    }
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "FEEDMILL_CPU is '%.100s'; it must be scalar, sse41, avx2 or avx512", text);
}
