/*
 * Threads with a name and a stack size, and condition variables on the monotonic clock.
 *
 * New threads block all signals, so that Ctrl-C reaches the interpreter's thread, except those of
 * faults (SIGSEGV and the like), which Python's faulthandler handles, and SIGPROF, by which their
 * system calls may fail with EINTR. They may run on all CPUs in the union of the process's affinity
 * masks (fm_cpu_process_mask()), not only on the creator's.
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
 * Starts a thread that runs body(argument). `name`, truncated to 15 characters, is shown by ps and
 * perf. stack_bytes 0: the system's default. FM_OK or FM_ERR_THREAD.
 */
int fm_thread_start(fm_thread *thread, const char *name, size_t stack_bytes,
                    void *(*body)(void *argument), void *argument, fm_error *error);
/* Waits until the thread ends. Does nothing if it is not running. */
void fm_thread_join(fm_thread *thread);
/* Detaches the thread, which is never joined. */
void fm_thread_detach(fm_thread *thread);
/* CPU time that the thread has used so far; 0 if it is not running. Any thread may call this until
 * the join. */
uint64_t fm_thread_cpu_ns(const fm_thread *thread);

/*
 * Measures how much of consecutive time spans a thread was on a CPU. A thread without context
 * switches was on a CPU all the time; counting these takes a third of the time of reading the
 * thread's CPU clock, which takes 1 us on some machines.
 */
typedef struct fm_core_clock {
    uint64_t n_switches; /* context switches at read_ns */
    uint64_t cpu_ns;     /* the thread's CPU time at the end of the last span */
    uint64_t read_ns;    /* when the CPU clock was last read */
} fm_core_clock;
/*
 * Returns the calling thread's CPU time in the span from begin_ns to end_ns, which has just ended:
 * what it has used since the previous span, at most the span's length. Called with an empty span to
 * start.
 */
uint64_t fm_core_clock_span(fm_core_clock *clock, uint64_t begin_ns, uint64_t end_ns);

/* Initializes a condition variable for fm_cond_wait_until(). FM_OK or FM_ERR_THREAD. */
int fm_cond_init(pthread_cond_t *cond);
/* Waits until `deadline_ns` of fm_clock_ns(). Returns true on a timeout. */
bool fm_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
