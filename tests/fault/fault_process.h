/* The process under test. */
#ifndef FM_TEST_FAULT_PROCESS_H
#define FM_TEST_FAULT_PROCESS_H

#include "fault_scenarios.h"

/* Threads of this process. */
int fault_process_n_threads(void);

/* Starts a thread, and waits for its end. */
void fault_process_start_and_join(void);

/* Whether its system calls wait for answers. */
bool fault_process_is_traced(const fault_board *board);

/*
 * Runs the scenario while a call fails as the board says, checks the result, and runs it again
 * without failures. Exits with 0 and board->outcome, and the error's text, if any, in
 * board->message; with 1 and the defect in board->message; or with 77 if the system does not allow
 * seccomp filters. The filter of a system call is sent through `socket`.
 *
 * Without a kind on the board: only counts, and leaves the hooks' counts in board->message.
 */
void fault_process_run(const fault_scenario *scenario, fault_board *board, int socket)
    __attribute__((noreturn));

#endif
