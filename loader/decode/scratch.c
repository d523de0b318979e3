#include "decode/scratch.h"

#include <stdint.h>
#include <string.h>

/* Requests for more can only come from damaged sizes. */
#define MAX_BYTES ((size_t)1 << 31)

/* A block for one piece, which begins FM_MEM_ALIGN bytes after its start. */
typedef struct fm_scratch_spill {
    struct fm_scratch_spill *next;
} spill;

/* Before each piece: its size. */
typedef struct header {
    size_t n_bytes;
} header;
_Static_assert(sizeof(spill) + sizeof(header) <= FM_MEM_ALIGN, "both fit before a piece");

static header *header_of(void *piece) { return (header *)piece - 1; }

void fm_scratch_init(fm_scratch *scratch, fm_mem_counter *counter) {
    *scratch = (fm_scratch){.counter = counter};
}

static void *spill_piece(fm_scratch *scratch, size_t n_bytes) {
    spill *const added = fm_mem_alloc(scratch->counter, n_bytes, 1);
    if (!added) {
        scratch->ran_out = true;
        return NULL;
    }
    added->next = scratch->spills;
    scratch->spills = added;
    scratch->n_spilled += n_bytes;
    scratch->last = NULL;
    return (unsigned char *)added + FM_MEM_ALIGN;
}

void *fm_scratch_alloc(fm_scratch *scratch, size_t n_bytes) {
    if (n_bytes > MAX_BYTES) return NULL;
    const size_t n_all = FM_MEM_ALIGN + fm_mem_round_up(n_bytes ? n_bytes : 1);
    void *piece;
    if (n_all <= scratch->block_bytes - scratch->n_used) {
        piece = scratch->last = scratch->block + scratch->n_used + FM_MEM_ALIGN;
        scratch->n_used += n_all;
    } else {
        piece = spill_piece(scratch, n_all);
        if (!piece) return NULL;
    }
    header_of(piece)->n_bytes = n_bytes;
    return piece;
}

/* Extends the block's last piece if the block has enough left. */
static bool grow_in_place(fm_scratch *scratch, unsigned char *piece, size_t n_bytes) {
    if (piece != scratch->last) return false;
    const size_t begin = (size_t)(piece - scratch->block);
    if (n_bytes > MAX_BYTES || fm_mem_round_up(n_bytes) > scratch->block_bytes - begin)
        return false;
    scratch->n_used = begin + fm_mem_round_up(n_bytes);
    header_of(piece)->n_bytes = n_bytes;
    return true;
}

void *fm_scratch_resize(fm_scratch *scratch, void *piece, size_t n_bytes) {
    if (!piece) return fm_scratch_alloc(scratch, n_bytes);
    const size_t n_before = header_of(piece)->n_bytes;
    if (n_bytes <= n_before || grow_in_place(scratch, piece, n_bytes)) return piece;
    void *const moved = fm_scratch_alloc(scratch, n_bytes);
    if (moved) memcpy(moved, piece, n_before);
    return moved;
}

static void free_spills(fm_scratch *scratch) {
    while (scratch->spills) {
        spill *const next = scratch->spills->next;
        fm_mem_free(scratch->spills);
        scratch->spills = next;
    }
}

void fm_scratch_reset(fm_scratch *scratch) {
    free_spills(scratch);
    if (scratch->n_used > scratch->n_touched) scratch->n_touched = scratch->n_used;
    if (scratch->n_spilled) {
        const size_t n_wanted = scratch->n_used + scratch->n_spilled;
        fm_mem_free(scratch->block);
        /* If this fails, the next image tries again. */
        scratch->block = fm_mem_alloc(scratch->counter, n_wanted, 1);
        scratch->block_bytes = scratch->block ? n_wanted : 0;
        scratch->n_touched = 0;
    }
    scratch->n_used = scratch->n_spilled = 0;
    scratch->last = NULL;
    scratch->ran_out = false;
}

bool fm_scratch_is_large(const fm_scratch *scratch) {
    return scratch->n_touched > FM_SCRATCH_KEPT_BYTES;
}

void fm_scratch_trim(fm_scratch *scratch) {
    if (!fm_scratch_is_large(scratch)) return;
    fm_mem_trim(scratch->block, FM_SCRATCH_KEPT_BYTES, scratch->n_touched);
    scratch->n_touched = FM_SCRATCH_KEPT_BYTES;
}

void fm_scratch_fini(fm_scratch *scratch) {
    free_spills(scratch);
    fm_mem_free(scratch->block);
    *scratch = (fm_scratch){0};
}
