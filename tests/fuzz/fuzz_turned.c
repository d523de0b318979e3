/*
 * Looks for an orientation in arbitrary bytes, taken as a file of each format. The first 8 bytes of
 * the input are skipped, as in the other fuzzers. The file ends at its memory's end, so that the
 * address sanitizer detects any access beyond it. An orientation put in front of everything else
 * must be found whatever comes behind, and bytes behind the end of an image's headers must not
 * matter.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "decode/turned.h"

enum { PREFIX = 8, MOST_BYTES = 1 << 20 };

/* An orientation of 6, as each format stores it in front of its image. */
static const uint8_t exif_jpeg[] = "\xFF\xE1\0\x22"
                                   "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06"
                                   "\0\0\0\0\0\0";
static const uint8_t exif_png[] = "\0\0\0\x1A"
                                  "eXIfMM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
                                  "\0\0\0\0"
                                  "\0\0\0";
static const uint8_t exif_webp[] = "EXIF\x1A\0\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"
                                   "\x06\0\0\0\0\0";

typedef struct file_kind {
    fm_format format;
    size_t head_bytes;   /* in front of which nothing may be put */
    const uint8_t *exif; /* without the NUL that ends it as a C string */
    size_t exif_bytes;
    bool has_end; /* bytes behind an end of the headers don't matter */
} file_kind;

static const file_kind kinds[] = {
    {FM_FORMAT_JPEG, 2, exif_jpeg, sizeof(exif_jpeg) - 1, true},
    {FM_FORMAT_PNG, 8, exif_png, sizeof(exif_png), true},
    {FM_FORMAT_WEBP, 12, exif_webp, sizeof(exif_webp), false},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(int condition) {
    if (!condition) abort();
}

/* What is said of a file, then `n_middle` bytes in front of its byte `at`, then `n_end` bytes. */
static bool ask(const file_kind *kind, const uint8_t *file, size_t n, const uint8_t *middle,
                size_t n_middle, size_t n_end) {
    const size_t at = n_middle ? kind->head_bytes : 0;
    uint8_t *const copy = malloc(n + n_middle + n_end + 1);
    require(copy != NULL);
    /* One byte in front, so that the file's end is the memory's, for an empty file as well. */
    uint8_t *const bytes = copy + 1;
    if (at) memcpy(bytes, file, at);
    if (n_middle) memcpy(bytes + at, middle, n_middle);
    if (n > at) memcpy(bytes + at + n_middle, file + at, n - at);
    memset(bytes + n + n_middle, 0xAB, n_end);
    const bool answer = fm_may_be_turned(kind->format, bytes, n + n_middle + n_end);
    free(copy);
    return answer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < PREFIX || n > MOST_BYTES) return 0;
    const uint8_t *const file = data + PREFIX;
    n -= PREFIX;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const file_kind *const one = &kinds[i];
        const bool answer = ask(one, file, n, NULL, 0, 0);
        require(ask(one, file, n, NULL, 0, 0) == answer);
        if (n < one->head_bytes) continue;
        require(ask(one, file, n, one->exif, one->exif_bytes, 0));
        if (!answer && one->has_end) require(!ask(one, file, n, NULL, 0, 1 + data[0] % 64));
    }
    return 0;
}
