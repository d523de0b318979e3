/*
 * Pillow's extended box blur and its Gaussian blur by several of them, bit for bit as BoxBlur.c,
 * for images of three bytes per pixel. Pure functions, for any thread.
 *
 * A pixel's new value is the sum of the pixels at most `radius` away, with a weight in 8.24 fixed
 * point, and of the next ones on both sides with a smaller weight. Pixels beyond the border are the
 * border's. Each pass rounds to a byte.
 */
#ifndef FM_AUGMENT_BLUR_H
#define FM_AUGMENT_BLUR_H

#include "augment/image.h"
#include "base/cpu.h"

/* The largest whole number of pixels in a radius. Sums fit into 16 bits with it. */
#define FM_BLUR_MAX_RADIUS 15

typedef struct fm_blur_kernels {
    /* out[i] = (weight * (taps[1][i] + ... + taps[n_taps - 2][i])
     *          + far_weight * (taps[0][i] + taps[n_taps - 1][i]) + 2^23) / 2^24.
     * `out` must not overlap the taps. n_taps is odd, from 3 to 2 * FM_BLUR_MAX_RADIUS + 3. */
    void (*row)(uint8_t *out, const uint8_t *const *taps, int n_taps, size_t n, uint32_t weight,
                uint32_t far_weight);
} fm_blur_kernels;

void fm_blur_init(fm_blur_kernels *kernels, fm_cpu_tier tier);

/* The radius of the box blurs that give a Gaussian blur of this standard deviation together. */
float fm_blur_box_radius(float deviation, int n_passes);

/* Bytes of scratch memory that fm_blur_box() needs for an image of this width. */
size_t fm_blur_scratch_bytes(int32_t width);

/*
 * Blurs `in` to `out`, which has the same size, by n_passes boxes in each direction. A radius is
 * from 0 to less than FM_BLUR_MAX_RADIUS + 1; 0: not in this direction.
 */
void fm_blur_box(const fm_blur_kernels *kernels, const fm_image *in, uint8_t *out, uint8_t *scratch,
                 float x_radius, float y_radius, int n_passes);

#endif
