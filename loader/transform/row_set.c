#define _GNU_SOURCE
#include "transform/row_set.h"

#include "base/number.h"
#include "transform/kernels.h"

/* Minimum of an allocation. */
#define MIN_BYTES 4096

int fm_row_set_prepare(fm_row_set *set, int32_t n, size_t bytes, size_t skip_bytes,
                       fm_mem_counter *counter, fm_error *error) {
    const size_t stride = (bytes + FM_ROW_SLACK + 31) / 32 * 32;
    const size_t memory_bytes = (size_t)n * stride + 16;
    const size_t n_pointers = 2 * (size_t)n;
    if (memory_bytes > set->memory_bytes) {
        const size_t held = fm_capacity(MIN_BYTES, memory_bytes);
        fm_mem_free(set->memory);
        set->memory_bytes = 0;
        /* Zeroed, as kernels read past a row's end. */
        set->memory = fm_mem_zalloc(counter, held, 1);
        if (!set->memory)
            return fm_error_set(error, FM_ERR_NOMEM, "no memory for %d rows of %zu bytes", (int)n,
                                bytes);
        set->memory_bytes = held;
    }
    if (n_pointers > set->n_pointers) {
        const size_t held =
            fm_capacity(MIN_BYTES, n_pointers * sizeof(uint8_t *)) / sizeof(uint8_t *);
        fm_mem_free(set->pointers);
        set->n_pointers = 0;
        set->pointers = fm_mem_alloc(counter, held, sizeof(uint8_t *));
        if (!set->pointers)
            return fm_error_set(error, FM_ERR_NOMEM, "no memory for %zu row pointers", n_pointers);
        set->n_pointers = held;
    }
    set->n = n;
    for (int32_t i = 0; i < n; i++)
        set->pointers[i] = set->pointers[n + i] =
            set->memory + 16 + (size_t)i * stride + skip_bytes;
    return FM_OK;
}

void fm_row_set_free(fm_row_set *set) {
    fm_mem_free(set->memory);
    fm_mem_free(set->pointers);
    *set = (fm_row_set){0};
}
