/* libjpeg's decode of a whole file, to compare crops with. Included after fuzz_decoder.h. */
#ifndef FM_FUZZ_WHOLE_H
#define FM_FUZZ_WHOLE_H

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

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

/* The sum of the box's pixels as libjpeg has them, which are CMYK in some files; false: it refuses
 * the file. */
static bool decode_whole(const uint8_t *choice, const uint8_t *file, size_t n, uint64_t *sum,
                         bool *is_cmyk) {
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
    *is_cmyk = w.codec.num_components == 4;
    w.codec.out_color_space = *is_cmyk ? JCS_CMYK : JCS_RGB;
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

#endif
