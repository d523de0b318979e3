/*
 * A set of rows in one block of memory, used as a ring: row i is pointers[i % n]. The array holds
 * the pointers twice, so that any run of up to n rows is contiguous in it.
 *
 * The caller owns the struct, zeroed before its first use; one thread at a time.
 */
#ifndef FM_TRANSFORM_ROW_SET_H
#define FM_TRANSFORM_ROW_SET_H

#include "base/error.h"
#include "base/mem.h"

typedef struct fm_row_set {
    uint8_t *memory;
    uint8_t **pointers; /* 2 * n */
    int32_t n;
    size_t memory_bytes, n_pointers; /* capacities */
} fm_row_set;

/*
 * Makes a ring of n rows of `bytes` bytes plus slack. Rows begin at 16 modulo 32, as libjpeg-turbo
 * writes 32-byte aligned rows past the cache; the pointers are `skip_bytes` further. Memory grows
 * if needed. FM_OK or FM_ERR_NOMEM, after which only fm_row_set_free() may be called.
 */
int fm_row_set_prepare(fm_row_set *set, int32_t n, size_t bytes, size_t skip_bytes,
                       fm_mem_counter *counter, fm_error *error);

/* Frees all and clears the struct. */
void fm_row_set_free(fm_row_set *set);

/* Pointers to row i and the following ones. */
static inline uint8_t **fm_row_set_rows(const fm_row_set *set, int32_t i) {
    return set->pointers + i % set->n;
}

/* The same, read-only. */
static inline const uint8_t *const *fm_row_set_read(const fm_row_set *set, int32_t i) {
    return (const uint8_t *const *)fm_row_set_rows(set, i);
}

#endif
