/*
 * Threads: create with a name and a stack size, join, and condition variables on the monotonic
 * clock. Created threads block signals, so that Ctrl-C reaches the interpreter's thread, but for
 * those of faults (SIGSEGV and its kin), which faulthandler waits for, and for SIGPROF: their
 * system calls may fail with EINTR. They run on all CPUs in the union of the process's affinity
 * masks, not on the creator's only.
 */
#ifndef FM_BASE_THREAD_H
#define FM_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct fm_thread {
    pthread_t id;
    bool running;
} fm_thread;

/*
 * Starts body(argument). `name` (at most 15 characters are kept) shows in ps and perf.
 * stack_bytes: 0 for the system's default. FM_ERR_THREAD.
 */
int fm_thread_start(fm_thread *thread, const char *name, size_t stack_bytes,
                    void *(*body)(void *argument), void *argument, fm_error *error);
/* Waits for the end. Nothing if it is not running. */
void fm_thread_join(fm_thread *thread);
/* Lets it run on its own: it is never joined. */
void fm_thread_detach(fm_thread *thread);
/* CPU time that it has used so far. Any thread may ask, until the join; 0 if it is not running. */
uint64_t fm_thread_cpu_ns(const fm_thread *thread);

/*
 * How much of its time a thread has a core, for spans that follow one another. A thread that was
 * not switched away from had one all the time, and to know that takes a third of the time of the
 * kernel's CPU clock of a thread, 1 us on some machines.
 */
typedef struct fm_core_clock {
    uint64_t n_switches; /* when read_ns was */
    uint64_t cpu_ns;     /* at the end of the last span */
    uint64_t read_ns;    /* when the CPU clock was last read */
} fm_core_clock;
/*
 * The calling thread's CPU time between begin_ns and end_ns, a moment ago; what it used since the
 * last span counts to this one, as far as it is that long. A span of no length sets the clock.
 */
uint64_t fm_core_clock_span(fm_core_clock *clock, uint64_t begin_ns, uint64_t end_ns);

/* A condition variable whose timed wait takes times of fm_clock_ns(). 0, or FM_ERR_THREAD. */
int fm_cond_init(pthread_cond_t *cond);
/* pthread_cond_timedwait() until `deadline_ns`; true if the time is over. */
bool fm_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
