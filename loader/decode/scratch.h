/*
 * Memory for decoding one image after another: allocated piece by piece, freed all at once.
 *
 * The pieces lie one after another in one block, which is kept for the next image. If it is too
 * small, pieces spill to blocks of their own, and at the image's end one block for all of them
 * replaces the old one. So an image allocates only if it needs more than all before it. Memory
 * above FM_SCRATCH_KEPT_BYTES is returned to the kernel by fm_scratch_trim(); the address range
 * stays.
 *
 * The caller owns the struct, and only one thread uses it.
 */
#ifndef FM_DECODE_SCRATCH_H
#define FM_DECODE_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"

/* What fm_scratch_trim() keeps. */
#define FM_SCRATCH_KEPT_BYTES ((size_t)1 << 20)

typedef struct fm_scratch {
    fm_mem_counter *counter;
    unsigned char *block;
    size_t block_bytes;
    size_t n_used;    /* of the block, by this image */
    size_t n_touched; /* of the block, by all images since the last trim */
    size_t n_spilled; /* bytes outside the block, by this image */
    struct fm_scratch_spill *spills;
    unsigned char *last; /* the block's last piece, which can grow in place */
    bool ran_out;        /* an allocation for this image failed */
} fm_scratch;

/* Allocates nothing yet. counter may be NULL. */
void fm_scratch_init(fm_scratch *scratch, fm_mem_counter *counter);

/* Returns n_bytes, aligned to FM_MEM_ALIGN, valid until fm_scratch_reset(). NULL when out of
 * memory.
 */
void *fm_scratch_alloc(fm_scratch *scratch, size_t n_bytes);

/* Like realloc(): on NULL the piece is unchanged. */
void *fm_scratch_resize(fm_scratch *scratch, void *piece, size_t n_bytes);

/* Frees all pieces. */
void fm_scratch_reset(fm_scratch *scratch);

/* Between images: whether more than FM_SCRATCH_KEPT_BYTES are kept; returns them to the kernel. */
bool fm_scratch_is_large(const fm_scratch *scratch);
void fm_scratch_trim(fm_scratch *scratch);

/* Accepts a zeroed struct. */
void fm_scratch_fini(fm_scratch *scratch);

#endif
