#define _GNU_SOURCE
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

static void count(fm_mem_counter *counter, size_t bytes) {
    if (!counter) return;
    atomic_fetch_add_explicit(&counter->n_blocks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counter->n_bytes, bytes, memory_order_relaxed);
}

void *fm_mem_alloc(fm_mem_counter *counter, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    if (bytes == 0) bytes = 1;
    /* aligned_alloc wants a multiple of the alignment. */
    size_t rounded;
    if (__builtin_add_overflow(bytes, (size_t)FM_MEM_ALIGN - 1, &rounded)) return NULL;
    rounded -= rounded % FM_MEM_ALIGN;
    void *const block = aligned_alloc(FM_MEM_ALIGN, rounded);
    if (block) count(counter, rounded);
    return block;
}

void *fm_mem_zalloc(fm_mem_counter *counter, size_t n, size_t size) {
    void *const block = fm_mem_alloc(counter, n, size);
    if (block) memset(block, 0, n * size);
    return block;
}

void fm_mem_free(void *block) { free(block); }

void fm_mem_trim(void *block, size_t n_kept, size_t n_bytes) {
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t start = (uintptr_t)block;
    const uintptr_t from = (start + n_kept + page_bytes - 1) / page_bytes * page_bytes;
    const uintptr_t to = (start + n_bytes) / page_bytes * page_bytes;
    /* If the kernel refuses (locked memory), the pages stay. */
    if (from < to) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

static size_t whole_pages(size_t n_bytes) {
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    return (n_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

static void *map_pages(size_t bytes) {
    void *const pages =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void *fm_mem_map(fm_mem_counter *counter, size_t n_bytes) {
    const size_t bytes = whole_pages(n_bytes ? n_bytes : 1);
    void *const pages = bytes < n_bytes ? NULL : map_pages(bytes);
    if (!pages) return NULL;
    /* A failure only means that a fork while the device reads is not safe. */
    (void)madvise(pages, bytes, MADV_DONTFORK);
    count(counter, bytes);
    return pages;
}

void *fm_mem_map_huge(fm_mem_counter *counter, size_t n_bytes) {
    const size_t bytes = whole_pages(n_bytes ? n_bytes : 1);
    if (bytes < n_bytes || bytes > SIZE_MAX - HUGE_PAGE_BYTES) return NULL;
    uint8_t *const mapped = map_pages(bytes + HUGE_PAGE_BYTES);
    if (!mapped) return NULL;
    /* Huge pages lie at multiples of their size. What was mapped before and after is given back. */
    const size_t n_before = (size_t)(-(uintptr_t)mapped % HUGE_PAGE_BYTES);
    uint8_t *const pages = mapped + n_before;
    if (n_before) (void)munmap(mapped, n_before);
    (void)munmap(pages + bytes, HUGE_PAGE_BYTES - n_before);
    /* A kernel without huge pages refuses, and uses its other ones. */
    (void)madvise(pages, bytes, MADV_HUGEPAGE);
    count(counter, bytes);
    return pages;
}

void fm_mem_unmap(void *pages, size_t n_bytes) {
    if (pages) (void)munmap(pages, whole_pages(n_bytes ? n_bytes : 1));
}

char *fm_mem_strdup(fm_mem_counter *counter, const char *text) {
    const size_t bytes = strlen(text) + 1;
    char *const copy = fm_mem_alloc(counter, bytes, 1);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}
