/*
 * Memory allocation, for the whole library: aligned, overflow-checked, counted per loader.
 *
 * Blocks are aligned to FM_MEM_ALIGN, and cleared only by fm_mem_zalloc(). Thread-safe. Freeing a
 * block does not touch the counter, which therefore only has to live as long as allocations go on.
 */
#ifndef FM_BASE_MEM_H
#define FM_BASE_MEM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define FM_MEM_ALIGN 64

/* Blocks and bytes allocated so far. Any thread adds (relaxed); frees are not subtracted. */
typedef struct fm_mem_counter {
    _Atomic uint64_t n_blocks;
    _Atomic uint64_t n_bytes;
} fm_mem_counter;

/* n_bytes rounded up to a multiple of FM_MEM_ALIGN. */
static inline size_t fm_mem_round_up(size_t n_bytes) {
    return (n_bytes + FM_MEM_ALIGN - 1) / FM_MEM_ALIGN * FM_MEM_ALIGN;
}

/* Allocates n * size bytes, at least one. NULL when out of memory or on overflow. counter may be
 * NULL. */
void *fm_mem_alloc(fm_mem_counter *counter, size_t n, size_t size);
void *fm_mem_zalloc(fm_mem_counter *counter, size_t n, size_t size);
/* Accepts NULL. */
void fm_mem_free(void *block);
/*
 * Returns the whole pages between the block's first n_kept and its first n_bytes bytes to the
 * kernel. They stay part of the block and take memory again when they are next written. Their
 * contents are lost.
 */
void fm_mem_trim(void *block, size_t n_kept, size_t n_bytes);
/*
 * Maps n_bytes of zeroed pages for DMA by a device. A forked child does not inherit them, so that
 * copy-on-write never replaces a page that the device reads. NULL when out of memory.
 */
void *fm_mem_map(fm_mem_counter *counter, size_t n_bytes);
/*
 * Maps n_bytes of zeroed pages for a block that is used as a whole, in huge pages of 2 MiB where
 * the kernel has some: a page fault for each 4 KiB costs more than to write them. NULL when out of
 * memory.
 */
void *fm_mem_map_huge(fm_mem_counter *counter, size_t n_bytes);
/* Takes the same n_bytes as fm_mem_map() or fm_mem_map_huge(). Accepts NULL. */
void fm_mem_unmap(void *pages, size_t n_bytes);
/* A copy of a string; NULL when out of memory. */
char *fm_mem_strdup(fm_mem_counter *counter, const char *text);

#endif
