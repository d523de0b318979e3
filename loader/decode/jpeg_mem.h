/*
 * A memory manager for a libjpeg decoder that keeps its memory from image to image. libjpeg's own
 * one calls malloc() and free() for every image.
 *
 * The objects of an image lie one after another in one block, which is kept for the next image. An
 * image that needs more gets further blocks, and at its end one block for all of them replaces
 * them. So an image allocates only if it needs more than all before it. The first block is large
 * enough for rows of 8,192 pixels; only files with several scans, such as progressive ones, need
 * more, for the coefficients of the whole image (at most 6 bytes per pixel).
 *
 * Memory above FM_JPEG_MEM_KEPT_BYTES is returned to the kernel by fm_jpeg_mem_trim(), or after
 * FM_JPEG_MEM_PATIENCE images in a row that did not need it; the address range stays. Not after
 * each image: faulting in the pages again for each of many large images costs up to a tenth of
 * decoding.
 *
 * There are no temporary files. If memory is short, libjpeg reports JERR_OUT_OF_MEMORY through its
 * error_exit; a longjmp() from there leaks nothing, as all allocations are in pools.
 *
 * One thread per codec.
 */
#ifndef FM_DECODE_JPEG_MEM_H
#define FM_DECODE_JPEG_MEM_H

#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"

/* Limit of an image's coefficients: 13 million pixels at 4:4:4. */
#define FM_JPEG_MEM_COEFFICIENT_BYTES ((size_t)80 << 20)
/* How much memory a decoder always keeps. */
#define FM_JPEG_MEM_KEPT_BYTES ((size_t)4 << 20)
/* After so many images that needed no more, the rest is returned. */
#define FM_JPEG_MEM_PATIENCE 8

struct jpeg_decompress_struct;

/*
 * Installs the manager in a codec that jpeg_create_decompress() has just made;
 * jpeg_destroy_decompress() frees it. Blocks are counted in `counter`, which may be NULL. After
 * FM_ERR_NOMEM the codec is unchanged.
 */
int fm_jpeg_mem_install(struct jpeg_decompress_struct *codec, fm_mem_counter *counter,
                        fm_error *error);

/* Between images: whether more than FM_JPEG_MEM_KEPT_BYTES are kept. Reads one variable. */
bool fm_jpeg_mem_is_large(const struct jpeg_decompress_struct *codec);

/* Between images: returns the memory above FM_JPEG_MEM_KEPT_BYTES to the kernel. */
void fm_jpeg_mem_trim(struct jpeg_decompress_struct *codec);

#endif
