/*
 * Applies augmentations to an image in memory, one after another. Each equals torchvision's on a
 * PIL image bit for bit, for the same sampled parameters (fm_draw).
 *
 * One fm_augment per thread, which is kept for all images. It owns two buffers: an operation reads
 * the current image from one and writes the next to the other, or works in place. Images are
 * contiguous.
 */
#ifndef FM_AUGMENT_AUGMENT_H
#define FM_AUGMENT_AUGMENT_H

#include "augment/image.h"
#include "base/cpu.h"
#include "base/mem.h"

typedef struct fm_augment fm_augment;

/* The widest image that is blurred, in pixels. */
#define FM_AUGMENT_MAX_BLURRED 8192

/* For images of at most most_bytes, and most_side pixels per side, between operations. `blurs`: an
 * op may blur. FM_ERR_NOMEM. */
int fm_augment_open(fm_augment **out, fm_cpu_tier tier, size_t most_bytes, int32_t most_side,
                    bool blurs, fm_mem_counter *counter, fm_error *error);

/* Replaces the current image by what op, which resizes, makes of it with the parameters draw.
 * Returns as fm_augment_apply(). */
typedef int (*fm_augment_resize_fn)(void *context, const fm_op *op, const fm_draw *draw,
                                    fm_error *error);

/* Sets what fm_augment_apply() calls for ops that resize. */
void fm_augment_set_resize(fm_augment *augment, fm_augment_resize_fn resize, void *context);

/* How much memory fm_augment_open() allocates. */
uint64_t fm_augment_scratch_bytes(size_t most_bytes, int32_t most_side, bool blurs);

/* Starts with an image that the caller now writes to *image, in a buffer of fm_augment.
 * FM_ERR_LIMIT if it is too large. */
int fm_augment_begin(fm_augment *augment, int32_t width, int32_t height, int32_t channels,
                     fm_image *image, fm_error *error);

/*
 * Replaces the current image by one that the caller now writes to *image. The previous image stays
 * readable until the next call. FM_ERR_LIMIT if the new one is too large.
 */
int fm_augment_replace(fm_augment *augment, int32_t width, int32_t height, int32_t channels,
                       fm_image *image, fm_error *error);

/*
 * Starts with an image that the caller owns and must not change before fm_augment_image() has been
 * called. It is not written, and nothing after its end is read. FM_ERR_LIMIT if it is too large.
 */
int fm_augment_begin_with(fm_augment *augment, const fm_image *image, fm_error *error);

/*
 * Applies ops[0] with the parameters draws[0], including the ops that it holds. Supports all ops
 * except RandomErasing (FM_ERR_STATE), and those that resize after fm_augment_set_resize() only.
 * FM_ERR_LIMIT if the result is too large, a crop exceeds the image, or an image to blur is too
 * wide; the image is lost then.
 */
int fm_augment_apply(fm_augment *augment, const fm_op *ops, const fm_draw *draws, fm_error *error);

/* The current image, with FM_IMAGE_SLACK readable bytes after it; valid until the next call. */
const fm_image *fm_augment_image(fm_augment *augment);

/* Accepts NULL and a pointer to NULL. */
void fm_augment_close(fm_augment **augment);

#endif
