/* Makes JPEGs by libjpeg, with its defaults: quality 75, 4:2:0. */
#ifndef FM_TEST_ENCODE_JPEG_H
#define FM_TEST_ENCODE_JPEG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* An image that is being made. */
typedef struct test_jpeg {
    struct jpeg_compress_struct codec;
    struct jpeg_error_mgr errors;
    jpeg_scan_info scans[3];
    unsigned char *bytes;
    unsigned long n_bytes;
} test_jpeg;

/* The caller may change settings before jpeg_start_compress(), and ends by test_end_jpeg(). *jpeg
 * must stay where it is. */
static inline void test_begin_jpeg(test_jpeg *jpeg, int width, int height, int n_components,
                                   J_COLOR_SPACE colors) {
    *jpeg = (test_jpeg){.bytes = NULL};
    jpeg->codec.err = jpeg_std_error(&jpeg->errors);
    jpeg_create_compress(&jpeg->codec);
    jpeg_mem_dest(&jpeg->codec, &jpeg->bytes, &jpeg->n_bytes);
    jpeg->codec.image_width = (JDIMENSION)width;
    jpeg->codec.image_height = (JDIMENSION)height;
    jpeg->codec.input_components = n_components;
    jpeg->codec.in_color_space = colors;
    jpeg_set_defaults(&jpeg->codec);
}

/* Gives each of three components a scan of its own. */
static inline void test_split_jpeg(test_jpeg *jpeg) {
    for (int c = 0; c < 3; c++)
        jpeg->scans[c] = (jpeg_scan_info){
            .comps_in_scan = 1, .component_index = {c}, .Ss = 0, .Se = DCTSIZE2 - 1};
    jpeg->codec.scan_info = jpeg->scans;
    jpeg->codec.num_scans = 3;
}

/* After the last row: the encoded bytes are in *jpeg, and the caller must free() them. */
static inline void test_end_jpeg(test_jpeg *jpeg) {
    jpeg_finish_compress(&jpeg->codec);
    jpeg_destroy_compress(&jpeg->codec);
}

/* Encodes width x height pixels of three bytes. The caller must free() *out; returns its bytes. */
static inline size_t test_encode_jpeg(uint8_t **out, const uint8_t *pixels, int width, int height) {
    test_jpeg jpeg;
    test_begin_jpeg(&jpeg, width, height, 3, JCS_RGB);
    jpeg_start_compress(&jpeg.codec, TRUE);
    for (int y = 0; y < height; y++) {
        JSAMPROW rows[1] = {(JSAMPLE *)(uintptr_t)(pixels + (size_t)y * 3 * (size_t)width)};
        jpeg_write_scanlines(&jpeg.codec, rows, 1);
    }
    test_end_jpeg(&jpeg);
    *out = jpeg.bytes;
    return jpeg.n_bytes;
}

#endif
