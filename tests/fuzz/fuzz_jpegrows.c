/*
 * Decodes arbitrary bytes as JPEGs. A box that is not refused must have the pixels of libjpeg's
 * decode of the whole file. The input has the format of fuzz_decoder.h.
 */
#define _GNU_SOURCE
#include "decode/jpeg.h"

#define DECODER jpeg
#define FM_FUZZ_OWN_TEST
#include "fuzz_decoder.h"
#include "fuzz_whole.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static fm_jpeg *jpeg;
    const fm_limits limits = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 20};
    if (!jpeg) require(fm_jpeg_open(&jpeg, &limits, NULL, NULL) == FM_OK);
    if (n < PREFIX) return 0;
    uint8_t *const file = malloc(n > PREFIX ? n - PREFIX : 1);
    require(file != NULL);
    memcpy(file, data + PREFIX, n - PREFIX);
    uint64_t sum = 0, wanted = 0;
    if (decode(jpeg, data, file, n - PREFIX, &sum) == FM_OK) {
        bool is_cmyk = false;
        require(decode_whole(data, file, n - PREFIX, &wanted, &is_cmyk));
        require(is_cmyk || sum == wanted);
    }
    free(file);
    return 0;
}
