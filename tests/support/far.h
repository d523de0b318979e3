/*
 * Files on far storage, for tests: a folder as the FUSE file system slowfs shows it, which the
 * environment's FM_SLOWFS names. The test decides what its requests do while it runs.
 */
#ifndef FM_TEST_FAR_H
#define FM_TEST_FAR_H

#include <signal.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "reads.h"

typedef struct test_far {
    char source[64]; /* where the files are; the test makes them */
    char mountpoint[64];
    char control[64]; /* control files, see slowfs.c */
    char counts[96];
    pid_t server;
} test_far;

static inline void test_far_need(void) {
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

/* Accepts one that is all zero. */
static inline void test_far_close(test_far *far) {
    /* Again and again: libfuse may look for the signal just before it begins to wait for one. */
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

/* Empty folders, mounted. Every open and every read takes that long; reads of files whose names
 * contain "stuck" never return. False: it could not be mounted. */
static inline bool test_far_open(test_far *far, const char *delay_ms) {
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
    test_far_close(far);
    fprintf(stderr, "skipped: slowfs could not be mounted\n");
    return false;
}

/* From now on requests of that kind ("open", "read", "close") for the file do what `rule` says: ""
 * holds them, "5" lets them fail with errno 5, "5 1" the next one, and holds those behind it. */
static inline void test_far_rule(const test_far *far, const char *request, const char *name,
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

/* Ends the rule; held requests go on. */
static inline void test_far_release(const test_far *far, const char *request, const char *name) {
    char path[160];
    snprintf(path, sizeof(path), "%s/%s.%s", far->control, request, name);
    assert_int_equal(unlink(path), 0);
}

/* Waits until a request of that kind for the file is held; false: none comes. */
static inline bool test_far_is_held(const test_far *far, const char *request, const char *name) {
    char path[160];
    snprintf(path, sizeof(path), "%s/held.%s.%s", far->control, request, name);
    const uint64_t limit_ns = test_patience_ends_ns();
    while (access(path, F_OK) && fm_clock_ns() < limit_ns) usleep(2000);
    return access(path, F_OK) == 0;
}

/* Waits until a rule with a count has counted down to 0. */
static inline void test_far_wait_for_count(const test_far *far, const char *request,
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
