/*
 * Causes of waits that a test creates: high-latency storage, a CPU quota, busy peer processes,
 * stages that burn CPU time. And the opposite: as little interference by other processes as
 * possible.
 */
#ifndef FM_TEST_INJURE_H
#define FM_TEST_INJURE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t clock_of(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Burns that much CPU time; returns for how long it waited for a CPU meanwhile. */
static inline uint64_t burn_cpu(uint64_t ns) {
    const uint64_t begin_ns = clock_of(CLOCK_MONOTONIC);
    const uint64_t end_ns = clock_of(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (clock_of(CLOCK_THREAD_CPUTIME_ID) < end_ns) continue;
    const uint64_t took_ns = clock_of(CLOCK_MONOTONIC) - begin_ns;
    return took_ns > ns ? took_ns - ns : 0;
}

/* Steal time so far: how long the CPUs of a virtual machine had work but did not run, in clock
 * ticks' resolution. 0 if the kernel does not count it. */
static inline uint64_t stolen_ns(void) {
    unsigned long long stolen = 0;
    FILE *const in = fopen("/proc/stat", "r");
    if (in && fscanf(in, "cpu %*u %*u %*u %*u %*u %*u %*u %llu", &stolen) != 1) stolen = 0;
    if (in) fclose(in);
    return stolen * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

/* Writes a line to a file in /proc or /sys; false: errno has the reason. */
static inline bool write_line(const char *path, const char *text) {
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t n = write(file, text, strlen(text));
    const int failure = errno;
    close(file);
    errno = failure;
    return n >= 0;
}

/* Raises the process's priority, within its session and among sessions, as far as permitted. */
static inline void go_ahead_of_others(void) {
    if (setsid() > 0) write_line("/proc/self/autogroup", "-20");
    setpriority(PRIO_PROCESS, 0, -20);
}

/* Uses real-time scheduling, if permitted. Quotas and peer processes then have no effect. */
static inline void be_alone(bool alone) {
    const struct sched_param first = {.sched_priority = 1}, none = {0};
    sched_setscheduler(0, alone ? SCHED_RR : SCHED_OTHER, alone ? &first : &none);
}

/* How long this process's threads of that name have waited for a CPU so far, as the kernel counts
 * it; 0 if it does not. */
static inline uint64_t waited_for_core_ns(const char *thread_name) {
    DIR *const tasks = opendir("/proc/self/task");
    uint64_t sum_ns = 0;
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32] = "";
        unsigned long long ran_ns = 0, waited_ns = 0;
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        FILE *in = fopen(path, "r");
        if (in && !fgets(name, sizeof(name), in)) *name = 0;
        if (in) fclose(in);
        name[strcspn(name, "\n")] = 0;
        if (strcmp(name, thread_name)) continue;
        snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", task->d_name);
        in = fopen(path, "r");
        if (in && fscanf(in, "%llu %llu", &ran_ns, &waited_ns) == 2) sum_ns += waited_ns;
        if (in) fclose(in);
    }
    if (tasks) closedir(tasks);
    return sum_ns;
}

/* ---- high-latency storage -------------------------------------------------------------------- */

typedef struct slow_storage {
    char dir[64];
    pid_t server;
} slow_storage;

/* Mounts `source` with each read delayed by `read_ms`. False: not available here. */
static inline bool slow_storage_open(slow_storage *far, const char *source, const char *read_ms) {
    *far = (slow_storage){.server = -1};
    const char *const tool = getenv("FM_SLOWFS");
    if (!tool || access(tool, X_OK) || access("/dev/fuse", R_OK | W_OK)) return false;
    strcpy(far->dir, "/tmp/fm_far_XXXXXX");
    if (!mkdtemp(far->dir)) return false;
    struct stat before, after;
    if (stat(far->dir, &before)) return false;
    far->server = fork();
    if (far->server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        execl(tool, tool, "--source", source, "--mountpoint", far->dir, "--read-ms", read_ms,
              (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 30000; i++) {
        if (stat(far->dir, &after) == 0 && after.st_dev != before.st_dev) return true;
        if (waitpid(far->server, NULL, WNOHANG)) break;
        usleep(10000);
    }
    return false;
}

static inline void slow_storage_close(slow_storage *far) {
    if (far->server > 0) {
        kill(far->server, SIGTERM);
        waitpid(far->server, NULL, 0);
    }
    if (*far->dir) rmdir(far->dir);
}

/* ---- a quota --------------------------------------------------------------------------------- */

#define QUOTA_PERIOD_US "20000"
#define QUOTA_US "8000" /* 40% of a CPU */

typedef struct quota {
    char parent[512], dir[600];
    bool v1;
} quota;

/* The cgroup that limits this process's CPU time; false: unknown. */
static inline bool quota_find(quota *own) {
    FILE *const in = fopen("/proc/self/cgroup", "r");
    char line[512];
    bool found = false;
    while (in && !own->v1 && fgets(line, sizeof(line), in)) {
        line[strcspn(line, "\n")] = 0;
        char *const names = strchr(line, ':');
        char *const path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path = 0;
        own->v1 = !strcmp(names + 1, "cpu") || strstr(names, ":cpu,") || strstr(names, ",cpu,");
        if (!own->v1 && names[1]) continue;
        found = true;
        snprintf(own->parent, sizeof(own->parent), "/sys/fs/cgroup%s%.400s", own->v1 ? "/cpu" : "",
                 path[1] == '/' && !path[2] ? "" : path + 1);
    }
    if (in) fclose(in);
    return found;
}

static inline bool quota_write(const quota *own, const char *name, const char *text) {
    char path[700];
    snprintf(path, sizeof(path), "%s/%s", own->dir, name);
    return write_line(path, text);
}

static inline bool quota_set(const quota *own, bool limited) {
    if (own->v1) return quota_write(own, "cpu.cfs_quota_us", limited ? QUOTA_US : "-1");
    return quota_write(own, "cpu.max",
                       limited ? QUOTA_US " " QUOTA_PERIOD_US : "max " QUOTA_PERIOD_US);
}

/* Moves the process back to its original cgroup. */
static inline void quota_close(quota *own) {
    char path[700], pid[32];
    snprintf(path, sizeof(path), "%s/cgroup.procs", own->parent);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    write_line(path, pid);
    rmdir(own->dir);
}

/* Moves this process to a new cgroup, without a limit yet. False: errno has the reason. */
static inline bool quota_open(quota *own) {
    *own = (quota){.v1 = false};
    if (!quota_find(own)) {
        errno = ENOENT;
        return false;
    }
    char pid[32];
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    snprintf(own->dir, sizeof(own->dir), "%s/feedmill-test-%s", own->parent, pid);
    if (!own->v1) {
        char control[700];
        snprintf(control, sizeof(control), "%s/cgroup.subtree_control", own->parent);
        write_line(control, "+cpu"); /* where it is refused, cpu.max is missing below */
    }
    if (mkdir(own->dir, 0755)) return false;
    if (own->v1) quota_write(own, "cpu.cfs_period_us", QUOTA_PERIOD_US);
    quota_write(own, own->v1 ? "cpu.shares" : "cpu.weight", own->v1 ? "100000" : "10000");
    if (quota_set(own, false) && quota_write(own, "cgroup.procs", pid)) return true;
    const int failure = errno;
    rmdir(own->dir);
    errno = failure;
    return false;
}

/* ---- busy peer processes --------------------------------------------------------------------- */

#define N_NEIGHBOURS_PER_CPU 4
#define MOST_NEIGHBOURS 256

typedef struct peers {
    pid_t pids[MOST_NEIGHBOURS];
    int n;
} peers;

/* Starts spinning processes, n on each CPU that this one may use. Not while it has threads. */
static inline void peers_open(peers *out) {
    cpu_set_t own, one;
    out->n = 0;
    if (sched_getaffinity(0, sizeof(own), &own)) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        for (int i = 0; CPU_ISSET(cpu, &own) && i < N_NEIGHBOURS_PER_CPU; i++) {
            if (out->n == MOST_NEIGHBOURS) return;
            const pid_t pid = fork();
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                CPU_ZERO(&one);
                CPU_SET(cpu, &one);
                sched_setaffinity(0, sizeof(one), &one);
                for (volatile unsigned n = 0;; n++) continue;
            }
            if (pid > 0) out->pids[out->n++] = pid;
        }
    }
}

static inline void peers_close(peers *all) {
    for (; all->n; all->n--) {
        kill(all->pids[all->n - 1], SIGKILL);
        waitpid(all->pids[all->n - 1], NULL, 0);
    }
}

#endif
