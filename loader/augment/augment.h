/*
 * Operations on an image in memory, one after the other, each bit for bit as torchvision's on a PIL
 * image, given its draw.
 *
 * One fm_augment per thread, kept for life. It holds two images; the one that the operations have
 * come to is always dense and has FM_IMAGE_SLACK bytes behind it.
 */
#ifndef FM_AUGMENT_AUGMENT_H
#define FM_AUGMENT_AUGMENT_H

#include "augment/image.h"
#include "base/cpu.h"
#include "base/mem.h"

typedef struct fm_augment fm_augment;

/* For images of up to most_bytes between operations, and most_side pixels a side. FM_ERR_NOMEM. */
int fm_augment_open(fm_augment **out, fm_cpu_tier tier, size_t most_bytes, int32_t most_side,
                    fm_mem_counter *counter, fm_error *error);

/* The memory that fm_augment_open() will take. */
uint64_t fm_augment_scratch_bytes(size_t most_bytes, int32_t most_side);

/* Room for an image that the caller now writes: *image says where. FM_ERR_LIMIT: it is too large.
 */
int fm_augment_room(fm_augment *augment, int32_t width, int32_t height, int32_t channels,
                    fm_image *image, fm_error *error);

/*
 * The same for an image that takes the place of the one that the operations have come to, which
 * stays readable until the next call. FM_ERR_LIMIT.
 */
int fm_augment_replace(fm_augment *augment, int32_t width, int32_t height, int32_t channels,
                       fm_image *image, fm_error *error);

/*
 * Goes out from an image of the caller's, which must stay as it is until fm_augment_image() has
 * been called. It is not written, and nothing behind it is read. FM_ERR_LIMIT.
 */
int fm_augment_from(fm_augment *augment, const fm_image *image, fm_error *error);

/*
 * Does ops[0] to the image, as draws[0] says; with it the ops that it holds. All ops but Resize,
 * RandomResizedCrop and RandomErasing. FM_ERR_LIMIT: not for this image, which is lost.
 */
int fm_augment_apply(fm_augment *augment, const fm_op *ops, const fm_draw *draws, fm_error *error);

/* What the operations have come to; valid until the next call. */
const fm_image *fm_augment_image(fm_augment *augment);

/* Accepts NULL and a pointer to NULL. */
void fm_augment_close(fm_augment **augment);

#endif
