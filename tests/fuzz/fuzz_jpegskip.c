/*
 * Decodes arbitrary bytes as JPEGs with skipping of restart intervals
 * (fm_jpeg_set_interval_skipping()). The box must have the same pixels as without skipping or, if
 * it is refused without skipping, those of libjpeg's decode of the whole file, which must not fail.
 * The input has the format of fuzz_decoder.h.
 */
#define _GNU_SOURCE
#include "decode/jpeg.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#define DECODER jpeg
#define FM_FUZZ_OWN_TEST
#include "fuzz_decoder.h"

typedef struct whole {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
} whole;

static void on_error(j_common_ptr codec) { longjmp(((whole *)codec->client_data)->escape, 1); }

static void on_message(j_common_ptr codec, int level) {
    (void)codec;
    (void)level;
}

/* The sum of the box's pixels as libjpeg has them, which are inks of some files; false: it refuses
 * the file. */
static bool decode_whole(const uint8_t *choice, const uint8_t *file, size_t n, uint64_t *sum,
                         bool *has_inks) {
    static uint8_t row[4 * 65536];
    static whole w;
    w.codec.err = jpeg_std_error(&w.errors);
    w.errors.error_exit = on_error;
    w.errors.emit_message = on_message;
    jpeg_create_decompress(&w.codec);
    w.codec.client_data = &w;
    if (setjmp(w.escape)) {
        jpeg_destroy_decompress(&w.codec);
        return false;
    }
    jpeg_mem_src(&w.codec, file, n);
    jpeg_read_header(&w.codec, TRUE);
    *has_inks = w.codec.num_components == 4;
    w.codec.out_color_space = *has_inks ? JCS_CMYK : JCS_RGB;
    const fm_image_info info = {.width = (int32_t)w.codec.image_width,
                                .height = (int32_t)w.codec.image_height};
    const fm_box box = choose_box(choice, &info);
    jpeg_start_decompress(&w.codec);
    *sum = 0;
    for (int32_t y = 0; y < info.height; y++) {
        JSAMPROW rows[1] = {row};
        jpeg_read_scanlines(&w.codec, rows, 1);
        if (y >= box.top && y < box.top + box.height)
            *sum = mix(*sum, row + 3 * (size_t)box.left, 3 * (size_t)box.width);
    }
    jpeg_destroy_decompress(&w.codec);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static fm_jpeg *skipping, *plain;
    const fm_limits limits = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 20};
    if (!plain) {
        require(fm_jpeg_open(&plain, &limits, NULL, NULL) == FM_OK);
        require(fm_jpeg_open(&skipping, &limits, NULL, NULL) == FM_OK);
    }
    if (n < PREFIX) return 0;
    uint8_t *const file = malloc(n > PREFIX ? n - PREFIX : 1);
    require(file != NULL);
    memcpy(file, data + PREFIX, n - PREFIX);
    uint64_t sum = 0, wanted = 0, cut = 0;
    fm_jpeg_set_interval_skipping(skipping, true, true); /* as if the file had more data */
    const int as_cut = decode(skipping, data, file, n - PREFIX, &cut);
    fm_jpeg_set_interval_skipping(skipping, true, false);
    const int status = decode(skipping, data, file, n - PREFIX, &sum);
    const int without = decode(plain, data, file, n - PREFIX, &wanted);
    require(without != FM_OK || (status == FM_OK && sum == wanted));
    require(status != FM_OK || as_cut != FM_OK || cut == sum);
    if (status == FM_OK && without != FM_OK) {
        bool has_inks = false;
        require(decode_whole(data, file, n - PREFIX, &wanted, &has_inks));
        require(has_inks || sum == wanted);
    }
    free(file);
    return 0;
}
