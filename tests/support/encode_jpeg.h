/* Makes JPEGs from pixels, with libjpeg's defaults: quality 75, 4:2:0. */
#ifndef FM_TEST_ENCODE_JPEG_H
#define FM_TEST_ENCODE_JPEG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* Encodes width x height pixels of three bytes. The caller must free() *out; returns its bytes. */
static inline size_t test_encode_jpeg(uint8_t **out, const uint8_t *pixels, int width, int height) {
    struct jpeg_error_mgr errors;
    struct jpeg_compress_struct codec = {.err = jpeg_std_error(&errors)};
    jpeg_create_compress(&codec);
    unsigned char *bytes = NULL;
    unsigned long n_bytes = 0;
    jpeg_mem_dest(&codec, &bytes, &n_bytes);
    codec.image_width = (JDIMENSION)width;
    codec.image_height = (JDIMENSION)height;
    codec.input_components = 3;
    codec.in_color_space = JCS_RGB;
    jpeg_set_defaults(&codec);
    jpeg_start_compress(&codec, TRUE);
    for (int y = 0; y < height; y++) {
        JSAMPROW rows[1] = {(JSAMPLE *)(uintptr_t)(pixels + (size_t)y * 3 * (size_t)width)};
        jpeg_write_scanlines(&codec, rows, 1);
    }
    jpeg_finish_compress(&codec);
    jpeg_destroy_compress(&codec);
    *out = bytes;
    return n_bytes;
}

#endif
