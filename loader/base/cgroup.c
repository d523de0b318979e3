#define _GNU_SOURCE
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the first line of a small file, without its newline. */
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
 * Finds the path of the process's cgroup for a v1 controller (or for v2, with "") in
 * /proc/self/cgroup. In a container the path may not exist below the mount, which often shows only
 * a part of the tree; callers then try the mount's root as well.
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

/* Calls visit() for the cgroup's directory and all its ancestors, whose limits apply as well. */
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

/* Lowers *limit to a value above 0. */
static void lower(double *limit, double value) {
    if (value > 0 && (*limit == 0 || value < *limit)) *limit = value;
}

/* The cgroup's own quota in CPUs; 0: none. */
static double quota_v2(const char *directory) {
    char path[4200], line[64];
    snprintf(path, sizeof(path), "%s/cpu.max", directory);
    if (!read_line(path, line, sizeof(line)) || strncmp(line, "max", 3) == 0) return 0;
    double quota = 0, period = 100000;
    if (sscanf(line, "%lf %lf", &quota, &period) < 1 || period <= 0) return 0;
    return quota / period;
}

static double quota_v1(const char *directory) {
    char path[4200];
    int64_t quota, period;
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", directory);
    if (!read_i64(path, &quota) || quota <= 0) return 0;
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", directory);
    if (!read_i64(path, &period) || period <= 0) return 0;
    return (double)quota / (double)period;
}

static void visit_quota_v2(const char *directory, void *user) { lower(user, quota_v2(directory)); }
static void visit_quota_v1(const char *directory, void *user) { lower(user, quota_v1(directory)); }

static void visit_memory(const char *directory, void *user) {
    static const char *const names[] = {"memory.max", "memory.limit_in_bytes"};
    for (int i = 0; i < 2; i++) {
        char path[4200];
        int64_t bytes;
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        if (read_i64(path, &bytes)) lower(user, (double)bytes);
    }
}

/* Mount points of the CPU controller; v1 often has both. */
static const char *const mounts_v1[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
static const char *const mounts_v2[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};

double fm_cgroup_cpus(void) {
    double cpus = 0;
    for (int i = 0; i < 2; i++) {
        each_group(mounts_v2[i], "", visit_quota_v2, &cpus);
        each_group(mounts_v1[i], "cpu", visit_quota_v1, &cpus);
    }
    return cpus;
}

double fm_cgroup_memory_bytes(void) {
    double bytes = 0;
    each_group("/sys/fs/cgroup", "", visit_memory, &bytes);
    each_group("/sys/fs/cgroup/memory", "memory", visit_memory, &bytes);
    return bytes;
}

/* ---- throttled time -------------------------------------------------------------------------- */

static void open_stat(const char *directory, fm_throttle *throttle) {
    char path[4200];
    if (throttle->n == FM_MAX_QUOTAS) return;
    snprintf(path, sizeof(path), "%s/cpu.stat", directory);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) throttle->files[throttle->n++] = file;
}

static void visit_stat_v2(const char *directory, void *user) {
    if (quota_v2(directory) > 0) open_stat(directory, user);
}

static void visit_stat_v1(const char *directory, void *user) {
    if (quota_v1(directory) > 0) open_stat(directory, user);
}

void fm_throttle_open(fm_throttle *throttle, uint32_t n_cpus) {
    *throttle = (fm_throttle){.n_cpus = n_cpus};
    /* Stops at the first mount with quotas, so that a cgroup under two mounts counts once. */
    for (int i = 0; i < 2 && !throttle->n; i++)
        each_group(mounts_v2[i], "", visit_stat_v2, throttle);
    for (int i = 0; i < 2 && !throttle->n; i++)
        each_group(mounts_v1[i], "cpu", visit_stat_v1, throttle);
}

void fm_throttle_close(fm_throttle *throttle) {
    for (uint32_t i = 0; i < throttle->n; i++) close(throttle->files[i]);
    throttle->n = 0;
}

static uint64_t number_after(const char *text, const char *name) {
    const char *const at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

uint64_t fm_throttle_ns(const fm_throttle *throttle) {
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; i < throttle->n; i++) {
        char text[1024];
        const ssize_t n = pread(throttle->files[i], text, sizeof(text) - 1, 0);
        if (n <= 0) continue;
        text[n] = 0;
        sum_ns += number_after(text, "throttled_time ");         /* v1 */
        sum_ns += number_after(text, "throttled_usec ") * 1000u; /* v2 */
    }
    return sum_ns / throttle->n_cpus;
}
