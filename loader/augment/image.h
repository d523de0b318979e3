/* An image in memory, as used by the augmentations. The owner of `px` depends on the function. */
#ifndef FM_AUGMENT_IMAGE_H
#define FM_AUGMENT_IMAGE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that may be read after an image's end, and written after an output's end. */
#define FM_IMAGE_SLACK 64

/* Contiguous rows of width * channels bytes. */
typedef struct fm_image {
    uint8_t *px;
    int32_t width, height;
    int32_t channels; /* 3 (red, green, blue) or 1 */
} fm_image;

static inline size_t fm_image_row_bytes(const fm_image *image) {
    return (size_t)image->width * (size_t)image->channels;
}

static inline size_t fm_image_bytes(const fm_image *image) {
    return fm_image_row_bytes(image) * (size_t)image->height;
}

#endif
