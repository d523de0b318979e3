/*
 * Makes library calls fail: replacements for functions of the C library, libpthread and liburing.
 * Allocating functions are replaced for every library, the others (by the linker's --wrap) only for
 * feedmill.
 */
#ifndef FM_TEST_FAULT_HOOKS_H
#define FM_TEST_FAULT_HOOKS_H

#include "fault_kinds.h"

/* Calls are counted and fail as the board says. NULL: none is, as at the start. */
void fault_hooks_follow(fault_board *board);

/* Calls of each hook while the board is armed: [FAULT_RING_CLOSE + 1]. */
const long *fault_hooks_counts(void);

/* Blocks and bytes that are allocated now, in the whole process. */
typedef struct fault_memory {
    long n_blocks, n_bytes;
} fault_memory;
fault_memory fault_hooks_memory(void);

#endif
