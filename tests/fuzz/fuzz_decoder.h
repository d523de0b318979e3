/*
 * Decodes arbitrary bytes by fm_DECODER_*. The including file defines DECODER (jpeg, png or webp)
 * and includes its header. The first 8 bytes of the input choose a crop and the rows per call, the
 * rest is the file. The file ends at its memory's end, and rows end just before it, so that the
 * address sanitizer detects any access beyond them. The same crop is decoded twice, with another
 * image in between, and must give the same status and pixels.
 *
 * With FM_FUZZ_MEASURE defined, what fm_DECODER_begin() accepts has the size that
 * fm_DECODER_measure() gives.
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined. With FM_FUZZ_REPLAY defined: an
 * ordinary program that replays the files named on its command line as inputs. With the option
 * --wrap before them, the files are images without the 8 bytes.
 */
#ifndef FM_FUZZ_DECODER_H
#define FM_FUZZ_DECODER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/types.h"

#define JOIN_NAMES(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_NAMES(a, b, c)
#define CALL(verb) JOIN(fm_, DECODER, _##verb)
typedef JOIN(fm_, DECODER, ) decoder;

enum { PREFIX = 8, SPARE = 64, MAX_ROWS = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(int condition) {
    if (!condition) abort();
}

static uint32_t u16(const uint8_t *bytes) { return (uint32_t)bytes[0] << 8 | bytes[1]; }

/* A box within the image from four 16-bit numbers. */
static fm_box choose_box(const uint8_t *choice, const fm_image_info *info) {
    const int32_t width = 1 + (int32_t)(u16(choice) % (uint32_t)info->width);
    const int32_t height = 1 + (int32_t)(u16(choice + 2) % (uint32_t)info->height);
    return (fm_box){.left = (int32_t)(u16(choice + 4) % (uint32_t)(info->width - width + 1)),
                    .top = (int32_t)(u16(choice + 6) % (uint32_t)(info->height - height + 1)),
                    .width = width,
                    .height = height};
}

static uint64_t mix(uint64_t sum, const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) sum = (sum ^ bytes[i]) * 0x100000001B3u;
    return sum;
}

static int read_rows(decoder *self, const fm_box *box, int32_t skip, int32_t row_px, int32_t n_rows,
                     uint64_t *sum, fm_error *error) {
    const size_t stride = ((size_t)row_px * 3 + SPARE + 31) / 32 * 32 + 32;
    uint8_t *const memory = aligned_alloc(32, stride * (size_t)n_rows);
    require(memory != NULL);
    uint8_t *rows[MAX_ROWS];
    for (int32_t i = 0; i < n_rows; i++) rows[i] = memory + stride * (size_t)i + 16;
    int status = FM_OK;
    for (int32_t y = 0; y < box->height; y += status) {
        status = CALL(read)(self, rows, n_rows, error);
        if (status < 0) break;
        require(status == (n_rows < box->height - y ? n_rows : box->height - y));
        for (int32_t i = 0; i < status; i++)
            *sum = mix(*sum, rows[i] + 3 * skip, 3 * (size_t)box->width);
    }
    free(memory);
    return status < 0 ? status : FM_OK;
}

static int decode(decoder *self, const uint8_t *choice, const uint8_t *file, size_t n,
                  uint64_t *sum) {
    fm_error error = {0};
    fm_image_info info = {0};
    *sum = 0;
#ifdef FM_FUZZ_MEASURE
    fm_image_info measured = {0};
    const bool has_size = CALL(measure)(self, file, n, &measured, &error) == FM_OK;
#endif
    int status = CALL(begin)(self, file, n, &info, &error);
#ifdef FM_FUZZ_MEASURE
    require(status || (has_size && measured.width == info.width && measured.height == info.height));
#endif
    if (!status) {
        require(info.width > 0 && info.height > 0 && info.width <= 65500 && info.height <= 65500);
        const fm_box box = choose_box(choice, &info);
        int32_t skip = -1, row_px = -1;
        status = CALL(start)(self, &box, &skip, &row_px, &error);
        if (!status) {
            require(skip >= 0 && skip + box.width <= row_px && row_px <= info.width);
            status = read_rows(self, &box, skip, row_px, 1 + choice[0] % MAX_ROWS, sum, &error);
        }
    }
    CALL(end)(self);
    if (status) {
        require(status < 0 && status == error.status && error.message[0] != '\0');
        require(status == FM_ERR_FORMAT || status == FM_ERR_KIND || status == FM_ERR_DAMAGED ||
                status == FM_ERR_LIMIT);
    }
    return status;
}

#ifndef FM_FUZZ_OWN_TEST /* the including file defines its own test */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static decoder *kept; /* one for all inputs, as a worker has it */
    const fm_limits limits = {.max_file_bytes = 1 << 20, .max_image_pixels = 1 << 20};
    if (!kept) require(CALL(open)(&kept, &limits, NULL, NULL) == FM_OK);
    if (n < PREFIX) return 0;
    uint8_t *const file = malloc(n > PREFIX ? n - PREFIX : 1);
    require(file != NULL);
    memcpy(file, data + PREFIX, n - PREFIX);
    decoder *fresh = NULL;
    require(CALL(open)(&fresh, &limits, NULL, NULL) == FM_OK);
    uint64_t sum_kept = 0, sum_fresh = 0;
    const int status = decode(kept, data, file, n - PREFIX, &sum_kept);
    require(decode(fresh, data, file, n - PREFIX, &sum_fresh) == status);
    require(status != FM_OK || sum_kept == sum_fresh);
    CALL(close)(&fresh);
    free(file);
    return 0;
}
#endif

#ifdef FM_FUZZ_REPLAY
static void replay(const char *path, size_t prefix) {
    FILE *const in = fopen(path, "rb");
    if (!in) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(1);
    }
    enum { MOST = 1 << 22 };
    uint8_t *const bytes = calloc(MOST, 1);
    require(bytes != NULL);
    const size_t n = prefix + fread(bytes + prefix, 1, MOST - prefix, in);
    fclose(in);
    LLVMFuzzerTestOneInput(bytes, n);
    free(bytes);
}

int main(int n_args, char **args) {
    size_t prefix = 0;
    for (int i = 1; i < n_args; i++) {
        if (!strcmp(args[i], "--wrap"))
            prefix = PREFIX;
        else
            replay(args[i], prefix);
    }
    return 0;
}
#endif

#endif
