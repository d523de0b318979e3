/*
 * Makes system calls fail: the process under test installs a seccomp filter, which asks the parent
 * process about each call of one kind, in every thread. Needs Linux 5.5, but no privilege.
 */
#ifndef FM_TEST_FAULT_CALLS_H
#define FM_TEST_FAULT_CALLS_H

#include <sys/types.h>

#include "fault_kinds.h"

#define FAULT_MOST_CALLS 512

/*
 * In the process under test: from now on, system call number `call` (-1: every one) waits for the
 * parent's answer. The listener goes through `socket`. False: the system does not allow it.
 */
bool fault_calls_install(long call, int socket);

/* In the parent. The listener, or -1 where the other side could not install it. */
int fault_calls_listener(int socket);

/*
 * In the parent: answers until the process ends. Lets all calls through but the board's nth while
 * it is armed. `counts` may be NULL: [FAULT_MOST_CALLS], to which calls while armed are added by
 * number. listener -1: only waits. False: the process has not ended within limit_s.
 */
bool fault_calls_answer(int listener, pid_t process, fault_board *board, long *counts, int limit_s);

#endif
