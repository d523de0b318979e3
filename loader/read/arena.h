/*
 * A first-fit allocator over one block: read buffers of any size, no memory taken after open.
 *
 * First fit reuses the lowest addresses, which are the ones most likely still in the CPU's caches.
 * The alignment is for the kernel, whose copy out of the page cache is up to three times slower to
 * an address that is not a multiple of 64 (AMD EPYC, Linux 6.18: 60 us instead of 22 for 110 KB).
 * Not thread-safe: the owner's lock covers it.
 */
#ifndef FM_READ_ARENA_H
#define FM_READ_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

/* What a buffer costs beside its capacity, at most: header and rounding. */
#define FM_ARENA_OVERHEAD_BYTES (2 * FM_MEM_ALIGN)

/* A stretch of the block, used or free; neighbours by offset. Private. */
typedef struct fm_arena_node {
    uint64_t offset, bytes;
    uint32_t previous, next;           /* neighbours in the block; next also links unused nodes */
    uint32_t free_previous, free_next; /* free stretches by offset; only if free */
    bool free;
} fm_arena_node;

typedef struct fm_arena {
    uint8_t *block;
    uint64_t block_bytes;
    fm_arena_node *nodes;
    uint32_t first_free, unused_node;
    uint32_t n_used; /* buffers out */
    uint64_t used_bytes;
} fm_arena;

/*
 * Takes a block of block_bytes (at least 4 KiB) and the nodes for it. FM_OK or FM_ERR_NOMEM; after
 * a failure nothing is held, and fm_arena_fini() may be called all the same.
 */
int fm_arena_init(fm_arena *arena, uint64_t block_bytes, fm_mem_counter *counter);
/* Frees the block. Accepts an arena that is all zero. */
void fm_arena_fini(fm_arena *arena);

/* The largest request that an empty arena can serve. */
uint64_t fm_arena_limit(const fm_arena *arena);
/*
 * A buffer of at least `bytes` bytes, 64-byte aligned; *capacity gets what it really holds. NULL
 * if no stretch is large enough, or no node is left.
 */
uint8_t *fm_arena_alloc(fm_arena *arena, uint64_t bytes, uint64_t *capacity);
/* Whether `buffer` came from this arena. */
bool fm_arena_owns(const fm_arena *arena, const uint8_t *buffer);
/* Makes a buffer hold `bytes` where it stands; false, and no change, if a neighbour is in the way.
 */
bool fm_arena_grow(fm_arena *arena, uint8_t *buffer, uint64_t bytes, uint64_t *capacity);
/* Gives back what lies behind the first `bytes` bytes, if it is worth a node. */
void fm_arena_trim(fm_arena *arena, uint8_t *buffer, uint64_t bytes);
void fm_arena_free(fm_arena *arena, uint8_t *buffer);

#endif
