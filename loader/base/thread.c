#define _GNU_SOURCE
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/cpu.h"

/* The CPU clock is read at least this often: a hypervisor can take a CPU away without a context
 * switch, and CPU time between spans adds up. */
#define MAX_UNREAD_NS 2000000u
/* In a shorter span no other thread can have had the CPU. */
#define SHORT_NS 100000u

/* All signals except those of faults, and SIGPROF, unless the creator blocks it. A fault whose
 * signal is blocked would end the process without its handler, such as Python's faulthandler. */
static void fill_blocked(sigset_t *set, const sigset_t *creators) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigfillset(set);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) sigdelset(set, faults[i]);
    if (!sigismember(creators, SIGPROF)) sigdelset(set, SIGPROF);
}

int fm_thread_start(fm_thread *thread, const char *name, size_t stack_bytes,
                    void *(*body)(void *argument), void *argument, fm_error *error) {
    pthread_attr_t attributes;
    thread->running = false;
    int failed = pthread_attr_init(&attributes);
    if (failed) {
        return fm_error_set_errno(error, FM_ERR_THREAD, failed, "can't start thread %s", name);
    }
    if (stack_bytes) pthread_attr_setstacksize(&attributes, stack_bytes);
    sigset_t blocked, before;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    fill_blocked(&blocked, &before);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    failed = pthread_create(&thread->id, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) {
        return fm_error_set_errno(error, FM_ERR_THREAD, failed,
                                  "can't start thread %s (limit of threads, or out of memory)",
                                  name);
    }
    thread->running = true;
    char short_name[16] = {0};
    for (size_t i = 0; i + 1 < sizeof(short_name) && name[i]; i++) short_name[i] = name[i];
    pthread_setname_np(thread->id, short_name);
    cpu_set_t mask;
    if (fm_cpu_process_mask(&mask, sizeof(mask)))
        pthread_setaffinity_np(thread->id, sizeof(mask), &mask);
    return FM_OK;
}

void fm_thread_join(fm_thread *thread) {
    if (!thread->running) return;
    pthread_join(thread->id, NULL);
    thread->running = false;
}

void fm_thread_detach(fm_thread *thread) {
    if (!thread->running) return;
    pthread_detach(thread->id);
    thread->running = false;
}

uint64_t fm_core_clock_span(fm_core_clock *clock, uint64_t begin_ns, uint64_t end_ns) {
    const uint64_t whole_ns = end_ns - begin_ns;
    const bool recent = end_ns - clock->read_ns < MAX_UNREAD_NS;
    uint64_t n_switches = clock->n_switches;
    if (!recent || whole_ns >= SHORT_NS) {
        struct rusage usage = {0};
        getrusage(RUSAGE_THREAD, &usage);
        n_switches = (uint64_t)usage.ru_nvcsw + (uint64_t)usage.ru_nivcsw;
    }
    if (recent && n_switches == clock->n_switches) {
        clock->cpu_ns += whole_ns;
        return whole_ns;
    }
    const uint64_t cpu_ns = fm_clock_of(CLOCK_THREAD_CPUTIME_ID);
    const uint64_t used_ns = cpu_ns > clock->cpu_ns ? cpu_ns - clock->cpu_ns : 0;
    *clock = (fm_core_clock){n_switches, cpu_ns, end_ns};
    return used_ns < whole_ns ? used_ns : whole_ns;
}

uint64_t fm_thread_cpu_ns(const fm_thread *thread) {
    clockid_t clock;
    if (!thread->running || pthread_getcpuclockid(thread->id, &clock)) return 0;
    return fm_clock_of(clock);
}

int fm_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes)) return FM_ERR_THREAD;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    const int failed = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return failed ? FM_ERR_THREAD : FM_OK;
}

bool fm_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    const struct timespec deadline = fm_clock_timespec(deadline_ns);
    return pthread_cond_timedwait(cond, mutex, &deadline) == ETIMEDOUT;
}
