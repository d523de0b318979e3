/*
 * The only place that takes memory: aligned, overflow-checked, counted per loader.
 *
 * Blocks come with FM_MEM_ALIGN alignment and are not cleared, except by fm_mem_zalloc().
 * Thread-safe. A counter outlives every block counted in it only for counting's sake: freeing a
 * block does not touch the counter.
 */
#ifndef FM_BASE_MEM_H
#define FM_BASE_MEM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define FM_MEM_ALIGN 64

/* Blocks and bytes ever taken: any thread adds (relaxed), stats read. */
typedef struct fm_mem_counter {
    _Atomic uint64_t n_blocks;
    _Atomic uint64_t n_bytes;
} fm_mem_counter;

/* n * size bytes, at least one. NULL when out of memory or on overflow. counter may be NULL. */
void *fm_mem_alloc(fm_mem_counter *counter, size_t n, size_t size);
void *fm_mem_zalloc(fm_mem_counter *counter, size_t n, size_t size);
/* Accepts NULL. */
void fm_mem_free(void *block);
/*
 * Gives the whole pages between the block's first n_kept and its first n_bytes bytes back to the
 * kernel. They stay part of the block, and take memory again when they are next written; what they
 * hold now is lost.
 */
void fm_mem_trim(void *block, size_t n_kept, size_t n_bytes);
/*
 * n_bytes in whole pages of their own, zero, for devices that read them behind the CPU's back: a
 * forked child does not have them, so that the parent never gets another page in place of one that
 * a device knows. NULL when out of memory.
 */
void *fm_mem_map(fm_mem_counter *counter, size_t n_bytes);
/* The same n_bytes. Accepts NULL. */
void fm_mem_unmap(void *pages, size_t n_bytes);
/* A copy of a string; NULL when out of memory. */
char *fm_mem_strdup(fm_mem_counter *counter, const char *text);

#endif
