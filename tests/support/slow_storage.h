/*
 * Files on high-latency storage, for tests: a folder mounted by the FUSE file system slowfs, whose
 * program the environment variable FM_SLOWFS names. The test controls how requests are answered.
 */
#ifndef FM_TEST_SLOW_STORAGE_H
#define FM_TEST_SLOW_STORAGE_H

#include <signal.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "reads.h"

typedef struct test_storage {
    char source[64]; /* the folder with the files, which the test writes */
    char mountpoint[64];
    char control[64]; /* control files, see slowfs.c */
    char counts[96];
    pid_t server;
} test_storage;

static inline void test_storage_need(void) {
    const char *const tool = getenv("FM_SLOWFS");
    if (tool && !access(tool, X_OK) && !access("/dev/fuse", R_OK | W_OK)) return;
    fprintf(stderr, "skipped: no FUSE here, or FM_SLOWFS does not name the file system\n");
    skip();
}

static inline bool test_is_mounted(const char *dir) {
    struct stat here, above;
    char parent[96];
    snprintf(parent, sizeof(parent), "%s/..", dir);
    return stat(dir, &here) == 0 && stat(parent, &above) == 0 && here.st_dev != above.st_dev;
}

/* Accepts a zeroed struct. */
static inline void test_storage_close(test_storage *far) {
    /* Repeatedly, as libfuse misses a signal that arrives just before it begins to wait. */
    for (int i = 0; far->server > 0 && waitpid(far->server, NULL, WNOHANG) == 0; i++) {
        if (i % 100 == 0) kill(far->server, SIGTERM);
        usleep(10000);
    }
    if (!*far->source) return;
    umount2(far->mountpoint, MNT_DETACH);
    unlink(far->counts);
    assert_int_equal(rmdir(far->mountpoint), 0);
    test_dir_close(far->control);
    test_dir_close(far->source);
}

/* Mounts an empty folder, in which each open and each read takes the given time, and reads of files
 * whose names contain "stuck" never return. Returns false if it could not be mounted. */
static inline bool test_storage_open(test_storage *far, const char *delay_ms) {
    const char *const tool = getenv("FM_SLOWFS");
    test_dir_open(far->source);
    test_dir_open(far->mountpoint);
    test_dir_open(far->control);
    snprintf(far->counts, sizeof(far->counts), "%s.json", far->mountpoint);
    far->server = fork();
    if (far->server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* where the test fails and ends early */
        execl(tool, tool, "--source", far->source, "--mountpoint", far->mountpoint, "--open-ms",
              delay_ms, "--read-ms", delay_ms, "--stuck", "stuck", "--counts", far->counts,
              "--control", far->control, NULL);
        _exit(127);
    }
    const uint64_t limit_ns = test_patience_ends_ns();
    while (!test_is_mounted(far->mountpoint) && fm_clock_ns() < limit_ns) {
        if (waitpid(far->server, NULL, WNOHANG)) break;
        usleep(2000);
    }
    if (test_is_mounted(far->mountpoint)) return true;
    test_storage_close(far);
    fprintf(stderr, "skipped: slowfs could not be mounted\n");
    return false;
}

/* Sets the rule for requests of a kind ("open", "read" or "close") for the file: "" holds them; "5"
 * makes them fail with errno 5; "5 1" makes the next one fail, and holds those after it. */
static inline void test_storage_rule(const test_storage *far, const char *request, const char *name,
                                     const char *rule) {
    char path[160], fresh[160];
    snprintf(path, sizeof(path), "%s/%s.%s", far->control, request, name);
    snprintf(fresh, sizeof(fresh), "%s/new", far->control);
    FILE *const out = fopen(fresh, "w");
    assert_non_null(out);
    fputs(rule, out);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(rename(fresh, path), 0);
}

/* Ends the rule; held requests continue. */
static inline void test_storage_release(const test_storage *far, const char *request,
                                        const char *name) {
    char path[160];
    snprintf(path, sizeof(path), "%s/%s.%s", far->control, request, name);
    assert_int_equal(unlink(path), 0);
}

/* Waits until a request of that kind for the file is held; false on a timeout. */
static inline bool test_storage_is_held(const test_storage *far, const char *request,
                                        const char *name) {
    char path[160];
    snprintf(path, sizeof(path), "%s/held.%s.%s", far->control, request, name);
    const uint64_t limit_ns = test_patience_ends_ns();
    while (access(path, F_OK) && fm_clock_ns() < limit_ns) usleep(2000);
    return access(path, F_OK) == 0;
}

/* Waits until a rule with a count has counted down to 0. */
static inline void test_storage_wait_for_count(const test_storage *far, const char *request,
                                               const char *name) {
    char path[160], text[32];
    unsigned left = 1;
    snprintf(path, sizeof(path), "%s/%s.%s", far->control, request, name);
    const uint64_t limit_ns = test_patience_ends_ns();
    while (left && fm_clock_ns() < limit_ns) {
        FILE *const in = fopen(path, "r");
        assert_non_null(in);
        if (fgets(text, sizeof(text), in)) sscanf(text, "%*d %u", &left);
        fclose(in);
        if (left) usleep(2000);
    }
    assert_int_equal(left, 0);
}

#endif
