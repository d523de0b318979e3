/*
 * The calls that inject_faults makes fail: system calls, by a seccomp filter whose notifications
 * the parent process answers (fault_calls.c), and library calls, by replacements (fault_hooks.c).
 */
#ifndef FM_TEST_FAULT_KINDS_H
#define FM_TEST_FAULT_KINDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Sanitizers replace the allocator, and end the process if their own system calls fail. With them,
 * only aligned_alloc() (used by base/mem.c) and system calls that their runtime does not make can
 * fail.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAULT_SANITIZED 1
#else
#define FAULT_SANITIZED 0
#endif

/* In place of an errno: the call transfers half of the requested bytes. */
#define FAULT_SHORT (-1)
#define FAULT_MOST_FAILURES 8

/* Calls within the process. */
typedef enum fault_hook {
    FAULT_NO_HOOK, /* a system call */
    FAULT_MALLOC,
    FAULT_CALLOC,
    FAULT_REALLOC,
    FAULT_ALIGNED_ALLOC,
    FAULT_POSIX_MEMALIGN,
    FAULT_THREAD_CREATE,
    FAULT_THREAD_ATTR,
    FAULT_MUTEX_INIT,
    FAULT_COND_INIT,
    FAULT_COND_ATTR,
    FAULT_CLOSE,
    FAULT_PREAD,
    FAULT_RING_OPEN,
    FAULT_RING_ADVISE,
    FAULT_RING_READ,
    FAULT_RING_CLOSE
} fault_hook;

typedef struct fault_kind {
    const char *name;
    long call; /* number of the system call; -1: a hook */
    fault_hook hook;
    /* What the call may fail with, by its manual page; 0 ends the list. */
    int failures[FAULT_MOST_FAILURES];
} fault_kind;

extern const fault_kind fault_kinds[];
extern const size_t fault_n_kinds;

/* NULL: no such kind. */
const fault_kind *fault_kind_of_name(const char *name);
const fault_kind *fault_kind_of_call(long call);

/* Whether it can be made to fail in this build. */
bool fault_kind_is_usable(const fault_kind *kind);

/* Why a system call is not made to fail; NULL: no reason is known. */
const char *fault_reason_to_spare(long call);

/* "EIO", "short". */
const char *fault_failure_name(int failure);

/* Shared by the process under test and its parent. */
typedef struct fault_board {
    _Atomic bool armed;  /* calls are counted, and the nth of the kind fails */
    _Atomic long n_seen; /* calls of the kind while armed */
    _Atomic bool hit;    /* the nth has failed */
    const fault_kind *kind;
    int failure;
    long nth;            /* from 1; 0: none fails */
    bool lasting;        /* all later calls of the kind fail, too */
    _Atomic int outcome; /* a fault_outcome, when the process has ended */
    char message[2048];  /* of the error that the failure led to, or what was wrong */
} fault_board;

/* Counts a call of the board's kind, which is armed; true: it is to fail. */
bool fault_board_strikes(fault_board *board);

typedef enum fault_outcome { FAULT_UNFINISHED, FAULT_ABSORBED, FAULT_REPORTED } fault_outcome;

#endif
