/*
 * Memory for one image after the other: taken piece by piece, given back all at once.
 *
 * The pieces lie one behind the other in one block, which stays for the next image. An image that
 * needs more gets further blocks, and at its end one large enough for it takes their place. So no
 * image allocates that needs no more than one before it did. What is above FM_SCRATCH_KEPT_BYTES
 * goes back to the kernel with fm_scratch_trim(); the address range stays.
 *
 * Caller's struct; one thread.
 */
#ifndef FM_DECODE_SCRATCH_H
#define FM_DECODE_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"

/* How much memory stays where nobody needs it. */
#define FM_SCRATCH_KEPT_BYTES ((size_t)1 << 20)

typedef struct fm_scratch {
    fm_mem_counter *counter;
    unsigned char *block;
    size_t block_bytes;
    size_t n_used;    /* of the block, by this image */
    size_t n_touched; /* of the block, by all images since the last trim */
    size_t n_spilled; /* taken beside the block by this image */
    struct fm_scratch_spill *spills;
    unsigned char *last; /* the piece that may grow in place */
    bool ran_out;        /* this image did not get memory that it asked for */
} fm_scratch;

/* Takes no memory yet. counter may be NULL. */
void fm_scratch_init(fm_scratch *scratch, fm_mem_counter *counter);

/* At least n_bytes, aligned to FM_MEM_ALIGN, until fm_scratch_reset(). NULL when out of memory. */
void *fm_scratch_take(fm_scratch *scratch, size_t n_bytes);

/* A piece of another size with the same content, as realloc(); NULL: the piece is as it was. */
void *fm_scratch_resize(fm_scratch *scratch, void *piece, size_t n_bytes);

/* All pieces go. */
void fm_scratch_reset(fm_scratch *scratch);

/* Between images: whether more than FM_SCRATCH_KEPT_BYTES are kept, and giving them back. */
bool fm_scratch_is_large(const fm_scratch *scratch);
void fm_scratch_trim(fm_scratch *scratch);

/* Accepts one that was only zeroed. */
void fm_scratch_fini(fm_scratch *scratch);

#endif
