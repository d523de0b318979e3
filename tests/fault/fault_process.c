/* The process under test: runs a scenario while one call fails, checks it, and runs it again. */
#define _GNU_SOURCE
#include "fault_process.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fault_calls.h"
#include "fault_hooks.h"

/* Limit of the wait for threads and memory that are still being freed. */
#define SETTLE_LIMIT_MS 10000

/* Resources of the process, which must not grow by a run. */
typedef struct balance {
    fault_memory memory;
    int n_files, n_threads;
} balance;

static int count_entries(const char *path) {
    DIR *const dir = opendir(path);
    int n = 0;
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n;
}

int fault_process_n_threads(void) {
    return count_entries("/proc/self/task") - 2; /* without "." and ".." */
}

static balance take_balance(void) {
    return (balance){.memory = fault_hooks_memory(),
                     .n_files = count_entries("/proc/self/fd"),
                     .n_threads = fault_process_n_threads()};
}

static void *do_nothing(void *argument) { return argument; }

void fault_process_start_and_join(void) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, do_nothing, NULL)) pthread_join(thread, NULL);
}

/*
 * Threads that were joined, and io_uring's helpers, may be listed for a moment more; a reader's
 * thread that was not waited for frees what it has a little later, and glibc frees its stack when
 * the next thread ends.
 */
static bool is_balanced(const balance *before, balance *now) {
    fault_process_start_and_join();
    *now = take_balance();
    return now->n_threads <= before->n_threads && now->n_files <= before->n_files &&
           now->memory.n_blocks <= before->memory.n_blocks;
}

static void check_balance(fault_board *board, const balance *before, const char *when) {
    balance now;
    for (int i = 0; i < SETTLE_LIMIT_MS; i++) {
        if (is_balanced(before, &now)) return;
        usleep(1000);
    }
    fault_complain(board, "left behind %s: %d threads, %d descriptors, %ld blocks (%ld bytes)",
                   when, now.n_threads - before->n_threads, now.n_files - before->n_files,
                   now.memory.n_blocks - before->memory.n_blocks,
                   now.memory.n_bytes - before->memory.n_bytes);
}

/* Whether the text says what failed. */
static bool names_failure(const fault_error *error, const fault_kind *kind, int failure) {
    const char *const text = error->error.message;
    if (failure > 0 && strstr(text, strerrordesc_np(failure))) return true;
    const bool maps = kind->call == SYS_mmap || kind->call == SYS_mremap;
    if ((failure == ENOMEM || maps) && strstr(text, "memory")) return true;
    if (kind->hook >= FAULT_THREAD_CREATE && kind->hook <= FAULT_COND_ATTR)
        return strstr(text, "thread") || strstr(text, "mutex") || strstr(text, "condition");
    return false;
}

static bool is_about_a_file(const fault_error *error) {
    return error->error.index >= 0 || !strcmp(error->step, "folder");
}

static void judge(fault_board *board, const fault_errors *errors) {
    if (errors->n == 0) return;
    const fault_error *const first = &errors->list[0];
    snprintf(board->message, sizeof(board->message), "%s: %s", first->step, first->error.message);
    if (!board->nth || !atomic_load(&board->hit))
        fault_complain(board, "nothing has failed, but %s: %s", first->step, first->error.message);
    if (errors->n > 1 && !board->lasting)
        fault_complain(board, "one call has failed, and %d errors came: %s: %s; %s: %s", errors->n,
                       first->step, first->error.message, errors->list[1].step,
                       errors->list[1].error.message);
    if (first->error.status >= 0 || !names_failure(first, board->kind, board->failure))
        fault_complain(board, "the error does not name the failure: %s: %s", first->step,
                       first->error.message);
    if (is_about_a_file(first) && !fault_names_path(first))
        fault_complain(board, "the error does not name the file: %s: %s", first->step,
                       first->error.message);
}

bool fault_process_is_traced(const fault_board *board) {
    return !board->kind || board->kind->hook == FAULT_NO_HOOK;
}

void fault_process_run(const fault_scenario *scenario, fault_board *board, int socket) {
    const bool survey = !board->kind;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fault_hooks_follow(board);
    if (fault_process_is_traced(board) &&
        !fault_calls_install(survey ? -1 : board->kind->call, socket))
        _exit(77);
    close(socket);
    balance before;
    is_balanced(&(balance){0}, &before);
    fault_errors errors = {0};
    scenario->run(scenario, board, &errors);
    const bool hit = atomic_load(&board->hit);
    judge(board, &errors);
    check_balance(board, &before, "by the run in which a call failed");
    if (survey) {
        memcpy(board->message, fault_hooks_counts(), sizeof(long) * (FAULT_RING_CLOSE + 1));
        _exit(0);
    }
    /* Once more, with nothing that fails. */
    board->nth = 0;
    fault_errors none = {0};
    scenario->run(scenario, board, &none);
    if (none.n)
        fault_complain(board, "the next run failed: %s: %s", none.list[0].step,
                       none.list[0].error.message);
    check_balance(board, &before, "by the next run");
    atomic_store(&board->hit, hit);
    atomic_store(&board->outcome, errors.n ? FAULT_REPORTED : FAULT_ABSORBED);
    _exit(0);
}
