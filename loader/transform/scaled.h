/*
 * Decoding at a reduced size: where a sample's crop has at least twice the pixels per side that the
 * resize makes of it, the decoder can compute an image of 1/2, 1/4 or 1/8 of the size, which is
 * much less work, and the resize begins with that. The pixels are not those of the whole image:
 * each is made of a reduced inverse DCT, as by Pillow's Image.draft().
 */
#ifndef FM_TRANSFORM_SCALED_H
#define FM_TRANSFORM_SCALED_H

#include "transform/plan.h"

/* Smallest image that a decoder makes: 1 / FM_MAX_DIVISOR of the size. */
#define FM_MAX_DIVISOR 8

/*
 * The divisor for a sample: the largest of 1, 2, 4 and 8, at most `most`, at which the reduced crop
 * has at least as many pixels per side as the resize's result. 1 where the filter is
 * FM_FILTER_NEAREST, which would pick other pixels.
 */
int32_t fm_scaled_divisor(const fm_geometry *geometry, fm_filter filter, int32_t most);

/*
 * Changes the geometry to that of an image of 1 / divisor of the size, rounded up. The source
 * becomes the box of whole pixels that contains the same part of the image, and the edges of that
 * part go to resized_columns and resized_rows; they must be 0 before.
 */
void fm_scaled_reduce(fm_geometry *geometry, int32_t divisor);

#endif
