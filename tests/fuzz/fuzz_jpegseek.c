/*
 * Decodes arbitrary bytes as JPEGs with seek points (fm_jpeg_set_seek()): three boxes one after
 * another, each with the points of those before, then the same of a file with another byte. Each
 * must have the status and the pixels of a decode without points. The input has the format of
 * fuzz_decoder.h; its last byte chooses the byte that changes.
 */
#define _GNU_SOURCE
#include "decode/jpeg.h"

#define DECODER jpeg
#define FM_FUZZ_OWN_TEST
#include "fuzz_decoder.h"

static void compare(fm_jpeg *seeking, fm_jpeg *plain, const uint8_t *choice, const uint8_t *file,
                    size_t n) {
    uint64_t sum = 0, wanted = 0;
    const int status = decode(seeking, choice, file, n, &sum);
    require(status == decode(plain, choice, file, n, &wanted));
    require(status != FM_OK || sum == wanted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static fm_jpeg *seeking, *plain;
    static fm_jpeg_seek seek;
    const fm_limits limits = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 20};
    if (!plain) {
        require(fm_jpeg_open(&plain, &limits, NULL, NULL) == FM_OK);
        require(fm_jpeg_open(&seeking, &limits, NULL, NULL) == FM_OK);
        fm_jpeg_set_seek(seeking, &seek);
    }
    if (n < PREFIX + 1) return 0;
    const size_t n_bytes = n - PREFIX;
    uint8_t *const file = malloc(n_bytes);
    require(file != NULL);
    memcpy(file, data + PREFIX, n_bytes);
    uint8_t choice[PREFIX], other[PREFIX];
    memcpy(choice, data, PREFIX);
    for (int i = 0; i < PREFIX; i++) other[i] = data[PREFIX - 1 - i];
    seek.head = (fm_jpeg_seek_head){0};
    seek.max_bytes = data[0] % 2 ? UINT32_MAX : 64u * data[1];
    for (int round = 0; round < 2; round++) {
        compare(seeking, plain, choice, file, n_bytes);
        compare(seeking, plain, other, file, n_bytes);
        compare(seeking, plain, choice, file, n_bytes);
        file[n_bytes * file[n_bytes - 1] / 256] ^= 1;
    }
    free(file);
    return 0;
}
