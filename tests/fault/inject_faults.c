/*
 * Makes every call of the native path fail once, in turn: each system call, allocation, creation of
 * a thread or lock, and io_uring completion, with each error that it may give.
 *
 * Each run is a separate process. It goes through a scenario (opening, epochs, an early stop,
 * closing) while the nth call of a kind fails, and checks that the failure was either absorbed,
 * with the right pixels, or reported as an error that names it; that the next epoch of the same
 * loader works, or the next loader where opening failed; and that no memory, descriptor or thread
 * is left. The parent notices a process that hangs or dies.
 *
 *     inject_faults [--lasting 1] [--share N] [--seed S] [--limit SECONDS] [--jobs N]
 *                   [SCENARIO [KIND [ERROR NTH]]]
 *
 * --lasting: all calls of the kind fail from the nth on, until an epoch that must work again.
 * --share: one run of N, chosen by the seed (default: the time); default 1, which is all of them.
 * --limit: a run that takes longer counts as hanging.
 * --jobs: number of scenarios that run at the same time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fault_calls.h"
#include "fault_process.h"

/* Only a process that hangs takes so long. */
#define RUN_LIMIT_S 120
#define MOST_SHOWN 40
#define MOST_KINDS 64

typedef struct options {
    unsigned long share, seed, limit_s, jobs;
    const char *scenario, *kind, *failure;
    long nth;
    bool lasting;
} options;

typedef struct tally {
    long n_places, n_runs, n_absorbed, n_reported;
} tally;

static options asked = {.share = 1, .limit_s = RUN_LIMIT_S, .jobs = 1};
static fault_board *board; /* of the scenario that this process works at */
/* Of each scenario; shared with its worker process. */
typedef struct totals {
    tally tallies[MOST_KINDS];
    long n_wrong;
    bool ran, refused;
} totals;
static totals *all_totals, *mine;

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct run_end {
    bool hung;
    int status; /* of waitpid() */
} run_end;

static run_end run_child(const fault_scenario *scenario, long *counts) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) {
        perror("socketpair");
        exit(1);
    }
    fflush(NULL);
    const pid_t process = fork();
    if (process < 0) {
        perror("fork");
        exit(1);
    }
    if (process == 0) {
        close(sockets[0]);
        fault_process_run(scenario, board, sockets[1]);
    }
    close(sockets[1]);
    const int listener = fault_process_is_traced(board) ? fault_calls_listener(sockets[0]) : -1;
    run_end end = {.hung =
                       !fault_calls_answer(listener, process, board, counts, (int)asked.limit_s)};
    if (end.hung) kill(process, SIGKILL);
    waitpid(process, &end.status, 0);
    if (listener >= 0) close(listener);
    close(sockets[0]);
    return end;
}

static void prepare_board(const fault_kind *kind, int failure, long nth) {
    *board = (fault_board){.kind = kind, .failure = failure, .nth = nth, .lasting = asked.lasting};
}

static void complain(const fault_scenario *scenario, const char *what) {
    if (++mine->n_wrong > MOST_SHOWN) return;
    if (board->kind)
        printf("WRONG: inject_faults %s '%s' %s %ld: %s\n", scenario->name, board->kind->name,
               fault_failure_name(board->failure), board->nth, what);
    else
        printf("WRONG: %s: %s\n", scenario->name, what);
}

/* False: there were fewer than nth calls of the kind. */
static bool run_one(const fault_scenario *scenario, const fault_kind *kind, int failure, long nth) {
    prepare_board(kind, failure, nth);
    const run_end end = run_child(scenario, NULL);
    tally *const sum = &mine->tallies[kind - fault_kinds];
    const bool hit = atomic_load(&board->hit);
    board->nth = nth; /* the process has cleared it for its second run */
    char text[128];
    if (end.hung) {
        snprintf(text, sizeof(text), "still running after %lu s", asked.limit_s);
        complain(scenario, text);
    } else if (WIFSIGNALED(end.status)) {
        snprintf(text, sizeof(text), "ended by signal %d (%s)", WTERMSIG(end.status),
                 strsignal(WTERMSIG(end.status)));
        complain(scenario, text);
    } else if (WEXITSTATUS(end.status)) {
        complain(scenario, board->message);
    } else if (hit) {
        sum->n_absorbed += board->outcome == FAULT_ABSORBED;
        sum->n_reported += board->outcome == FAULT_REPORTED;
        if (asked.failure || getenv("FAULT_VERBOSE"))
            printf("%s %s %s %ld: %s\n", scenario->name, kind->name, fault_failure_name(failure),
                   nth, board->outcome == FAULT_ABSORBED ? "absorbed" : board->message);
    }
    sum->n_runs += hit;
    return hit;
}

/* Kinds that must not fail permanently. A ring that can't be entered any more is like storage that
 * does not answer: next() waits for it. What is refused or interrupted is tried again, longer than
 * a stop waits. */
static bool may_last(const fault_kind *kind, int failure) {
    return failure != EINTR && failure != EAGAIN && kind->call != SYS_io_uring_enter &&
           kind->call != SYS_futex && kind->hook < FAULT_PREAD;
}

/* Which runs are done of a share. */
static bool is_chosen(const fault_scenario *scenario, const fault_kind *kind, int failure,
                      long nth) {
    if (asked.failure && strcmp(asked.failure, fault_failure_name(failure))) return false;
    if (asked.lasting && !may_last(kind, failure)) return false;
    if (asked.nth) return nth == asked.nth;
    uint64_t hash = asked.seed * 0x9E3779B97F4A7C15u;
    const long parts[] = {scenario - fault_scenarios, kind - fault_kinds, failure, nth};
    for (int i = 0; i < 4; i++) hash = (hash ^ (uint64_t)parts[i]) * 0xC2B2AE3D27D4EB4Fu;
    return (hash >> 33) % asked.share == 0;
}

/* n_calls: how many there were when none failed; with threads there may be a few more or less. */
static void run_kind(const fault_scenario *scenario, const fault_kind *kind, long n_calls) {
    tally *const sum = &mine->tallies[kind - fault_kinds];
    const bool whole = asked.share == 1 && !asked.nth;
    bool more = true; /* the last place was reached */
    for (long nth = 1; nth <= n_calls || (more && whole); nth++) {
        more = false;
        for (int i = 0; i < FAULT_MOST_FAILURES && kind->failures[i]; i++)
            if (is_chosen(scenario, kind, kind->failures[i], nth))
                more = run_one(scenario, kind, kind->failures[i], nth) || more;
    }
    sum->n_places += n_calls;
}

/* Calls by number, and by hook, in a run in which none fails. */
typedef struct survey {
    long calls[FAULT_MOST_CALLS], hooks[FAULT_RING_CLOSE + 1];
} survey;

/* False: this system does not allow it. */
static bool take_survey(const fault_scenario *scenario, survey *out) {
    *out = (survey){0};
    prepare_board(NULL, 0, 0);
    const run_end end = run_child(scenario, out->calls);
    if (!end.hung && WIFEXITED(end.status) && WEXITSTATUS(end.status) == 77) return false;
    if (end.hung || end.status) complain(scenario, end.hung ? "it hangs" : board->message);
    memcpy(out->hooks, board->message, sizeof(out->hooks));
    for (long call = 0; call < FAULT_MOST_CALLS && !FAULT_SANITIZED; call++) {
        if (!out->calls[call] || fault_kind_of_call(call) || fault_reason_to_spare(call)) continue;
        char text[128];
        snprintf(text, sizeof(text), "it makes system call %ld, which fault_kinds.c has not", call);
        complain(scenario, text);
    }
    return true;
}

/* Runs the scenario twice without a failure: what comes once in a process has come then, and pixels
 * are compared. False: it can't run here. */
static bool warm_up(const fault_scenario *scenario) {
    fault_process_start_and_join(); /* sanitizers start threads of their own with the first */
    const int n_threads = fault_process_n_threads();
    fault_errors errors = {0};
    prepare_board(NULL, 0, 0);
    for (int i = 0; i < 2; i++) {
        fault_scenarios_compare(i == 1);
        scenario->run(scenario, board, &errors);
        if (!errors.n) continue;
        const fm_error *const error = &errors.list[0].error;
        const bool skipped = scenario->needs_uring && error->status == FM_ERR_UNAVAILABLE;
        printf("%s: %s: %s\n", skipped ? "skipped" : "WRONG", scenario->name, error->message);
        mine->n_wrong += !skipped;
        return false;
    }
    /* Threads that are on their way out would be in no state to be forked. */
    while (fault_process_n_threads() > n_threads) usleep(1000);
    return true;
}

/* A worker's body. */
static void run_all_of(const fault_scenario *scenario) {
    if (!warm_up(scenario)) return;
    mine->ran = true;
    static survey found;
    if (!take_survey(scenario, &found)) {
        mine->refused = true;
        return;
    }
    for (size_t i = 0; i < fault_n_kinds; i++) {
        const fault_kind *const kind = &fault_kinds[i];
        const long n = kind->hook ? found.hooks[kind->hook] : found.calls[kind->call];
        const bool wanted = !asked.kind || !strcmp(asked.kind, kind->name);
        if (n > 0 && wanted && fault_kind_is_usable(kind)) run_kind(scenario, kind, n);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Sums of all scenarios. */
static totals sum_totals(int *n_ran) {
    totals sum = {.n_wrong = 0};
    for (size_t s = 0; s < fault_n_scenarios; s++) {
        const totals *const one = &all_totals[s];
        for (size_t i = 0; i < fault_n_kinds; i++) {
            sum.tallies[i].n_places += one->tallies[i].n_places;
            sum.tallies[i].n_runs += one->tallies[i].n_runs;
            sum.tallies[i].n_absorbed += one->tallies[i].n_absorbed;
            sum.tallies[i].n_reported += one->tallies[i].n_reported;
        }
        sum.n_wrong += one->n_wrong;
        sum.refused = sum.refused || one->refused;
        *n_ran += one->ran;
    }
    return sum;
}

static void print_totals(const totals *sum, int n_ran, double seconds) {
    tally all = {0};
    printf("%-24s %8s %8s %9s %9s\n", "call", "places", "runs", "absorbed", "reported");
    for (size_t i = 0; i < fault_n_kinds; i++) {
        const tally *const t = &sum->tallies[i];
        if (!t->n_places) continue;
        printf("%-24s %8ld %8ld %9ld %9ld\n", fault_kinds[i].name, t->n_places, t->n_runs,
               t->n_absorbed, t->n_reported);
        all.n_places += t->n_places;
        all.n_runs += t->n_runs;
        all.n_absorbed += t->n_absorbed;
        all.n_reported += t->n_reported;
    }
    printf("%-24s %8ld %8ld %9ld %9ld\n", "all", all.n_places, all.n_runs, all.n_absorbed,
           all.n_reported);
    printf("%ld places in %d scenarios, %ld runs in %.0f s", all.n_places, n_ran, all.n_runs,
           seconds);
    if (asked.share > 1) printf(" (one of %lu, seed %lu)", asked.share, asked.seed);
    printf(": %ld wrong\n", sum->n_wrong);
}

static void parse(int n, char **args) {
    int at = 1;
    for (; at + 1 < n && args[at][0] == '-'; at += 2) {
        const unsigned long value = strtoul(args[at + 1], NULL, 10);
        if (!strcmp(args[at], "--share")) asked.share = value;
        if (!strcmp(args[at], "--seed")) asked.seed = value;
        if (!strcmp(args[at], "--limit")) asked.limit_s = value;
        if (!strcmp(args[at], "--jobs") && value) asked.jobs = value;
        if (!strcmp(args[at], "--lasting")) asked.lasting = value;
    }
    if (at < n) asked.scenario = args[at++];
    if (at < n) asked.kind = args[at++];
    if (at < n) asked.failure = args[at++];
    if (at < n) asked.nth = strtol(args[at++], NULL, 10);
    const bool known = !asked.kind || fault_kind_of_name(asked.kind);
    if (at < n || !known || !asked.share) {
        fprintf(stderr, "usage: inject_faults [--lasting 1] [--share N] [--seed S] "
                        "[--limit SECONDS] [--jobs N] [SCENARIO [KIND [ERROR NTH]]]\n");
        exit(2);
    }
}

/* glibc keeps the stacks of threads that have ended, with memory that would look like a leak. */
static void keep_no_stacks(char **args) {
    static const char tunable[] = "glibc.pthread.stack_cache_size=0";
    const char *const now = getenv("GLIBC_TUNABLES");
    if (now && strstr(now, tunable)) return;
    setenv("GLIBC_TUNABLES", tunable, 1);
    execv("/proc/self/exe", args);
    perror("execv");
    exit(1);
}

static void *share(size_t n_bytes) {
    void *const pages =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED) return pages;
    perror("mmap");
    exit(1);
}

static void start_worker(size_t number) {
    fflush(NULL);
    const pid_t process = fork();
    if (process < 0) {
        perror("fork");
        exit(1);
    }
    if (process) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mine = &all_totals[number];
    board = share(sizeof(*board));
    run_all_of(&fault_scenarios[number]);
    fflush(NULL);
    _exit(0);
}

/* False: it died. */
static bool wait_for_worker(void) {
    int status;
    return wait(&status) > 0 && status == 0;
}

/* Runs a worker process for each scenario, --jobs at a time. */
static bool run_workers(void) {
    unsigned long n_running = 0;
    bool all_ended = true;
    for (size_t i = 0; i < fault_n_scenarios; i++) {
        if (asked.scenario && strcmp(asked.scenario, fault_scenarios[i].name)) continue;
        if (n_running == asked.jobs) all_ended = wait_for_worker() && all_ended;
        if (n_running < asked.jobs) n_running++;
        start_worker(i);
    }
    while (n_running-- > 0) all_ended = wait_for_worker() && all_ended;
    return all_ended;
}

int main(int n_args, char **args) {
    keep_no_stacks(args);
    asked.seed = (unsigned long)time(NULL);
    parse(n_args, args);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const time_t start = time(NULL);
    all_totals = share(fault_n_scenarios * sizeof(*all_totals));
    fault_scenarios_open();
    const bool all_ended = run_workers();
    fault_scenarios_close();
    int n_ran = 0;
    const totals sum = sum_totals(&n_ran);
    if (sum.refused) {
        fprintf(stderr, "skipped: seccomp's user notifications are not allowed here\n");
        return 77;
    }
    if (!all_ended) fprintf(stderr, "WRONG: a worker process has died\n");
    print_totals(&sum, n_ran, difftime(time(NULL), start));
    return !all_ended || sum.n_wrong > 0;
}
