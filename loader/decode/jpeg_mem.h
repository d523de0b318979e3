/*
 * libjpeg's memory for one decoder, in place of libjpeg's own memory manager, which takes from the
 * C library and gives back for every image.
 *
 * The objects of an image lie one behind the other in one block, which stays for the next image. An
 * image that needs more gets further blocks, and at its end one large enough for it replaces them
 * all. So no image allocates that needs no more than one before it did. The block is as large at
 * the start as rows need for images of up to 8,192 pixels a row, of any height; only files of
 * several scans, such as progressive ones, need more, for the coefficients of the whole image (6
 * bytes a pixel at most). What such an image takes above FM_JPEG_MEM_KEPT_BYTES goes back to the
 * kernel, page by page, with fm_jpeg_mem_trim(), or when FM_JPEG_MEM_PATIENCE images in a row have
 * done without it: the address range stays, the memory does not. After each image would be too
 * soon: taking pages anew for each of many large images costs up to a tenth of their decoding.
 *
 * No temporary files: all is in memory, or libjpeg reports JERR_OUT_OF_MEMORY through its
 * error_exit. That jumps away without a leak, since whatever was taken is in a pool by then.
 */
#ifndef FM_DECODE_JPEG_MEM_H
#define FM_DECODE_JPEG_MEM_H

#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"

/* Coefficients of an image, at most: 12 million pixels at 4:4:4. */
#define FM_JPEG_MEM_COEFFICIENT_BYTES ((size_t)80 << 20)
/* How much memory stays with a decoder when no large image has come for a while, */
#define FM_JPEG_MEM_KEPT_BYTES ((size_t)4 << 20)
/* and for how many images. */
#define FM_JPEG_MEM_PATIENCE 8

struct jpeg_decompress_struct;

/*
 * Takes over for a codec that jpeg_create_decompress() has just made; jpeg_destroy_decompress()
 * frees all. Blocks are counted in `counter`, which may be NULL. FM_ERR_NOMEM: nothing has changed.
 */
int fm_jpeg_mem_install(struct jpeg_decompress_struct *codec, fm_mem_counter *counter,
                        fm_error *error);

/* Between images: whether more than FM_JPEG_MEM_KEPT_BYTES are kept. Costs nothing. */
bool fm_jpeg_mem_is_large(const struct jpeg_decompress_struct *codec);

/* Between images: gives that back. */
void fm_jpeg_mem_trim(struct jpeg_decompress_struct *codec);

#endif
