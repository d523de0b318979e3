/*
 * Decodes arbitrary bytes as JPEGs with skipping of restart intervals
 * (fm_jpeg_set_interval_skipping()). The box must have the same pixels as without skipping or, if
 * it is refused without skipping, those of libjpeg's decode of the whole file, which must not fail.
 * The input has the format of fuzz_decoder.h.
 */
#define _GNU_SOURCE
#include "decode/jpeg.h"

#define DECODER jpeg
#define FM_FUZZ_OWN_TEST
#include "fuzz_decoder.h"
#include "fuzz_whole.h"

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
        bool is_cmyk = false;
        require(decode_whole(data, file, n - PREFIX, &wanted, &is_cmyk));
        require(is_cmyk || sum == wanted);
    }
    free(file);
    return 0;
}
