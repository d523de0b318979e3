/*
 * Transcodes arbitrary bytes (feedmill/pack.h). The first 8 bytes of the input choose the options,
 * the rest is the file, which ends at its memory's end. An output must be a JPEG with the same
 * pixels
 * (`verify` is on), and transcoding it again must change nothing.
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined. With FM_FUZZ_REPLAY defined: an
 * ordinary program that replays the files named on its command line.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feedmill/pack.h"

enum { PREFIX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(int condition) {
    if (!condition) abort();
}

static fm_transcoder *open_with(uint32_t interval, bool verify) {
    fm_transcoder_config config;
    fm_transcoder_config_init(&config);
    config.interval = interval;
    config.max_cost_ppm = UINT32_MAX;
    config.verify = verify;
    config.max_image_pixels = 1 << 18;
    config.max_file_bytes = 1 << 21;
    fm_transcoder *transcoder = NULL;
    require(fm_transcoder_open(&transcoder, &config, NULL) == FM_OK);
    return transcoder;
}

static fm_transcoded run(fm_transcoder *transcoder, const uint8_t *file, size_t n) {
    fm_transcoded out;
    fm_error error;
    require(fm_transcoder_run(transcoder, file, n, &out, &error) == FM_OK);
    require((out.reason == FM_PACK_TRANSCODED) == (out.bytes != NULL));
    require((out.reason != FM_PACK_TRANSCODED) == (out.why[0] != '\0'));
    return out;
}

static void check(const fm_transcoded *out) {
    require(out->width > 0 && out->height > 0 && out->interval > 0);
    require(out->mcus_per_row % out->interval == 0);
    for (int k = 0; k < FM_PACK_ROWS; k++) {
        require(out->row_offsets[k] < out->n_bytes);
        require(k == 0 || out->row_offsets[k] >= out->row_offsets[k - 1]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < PREFIX) return 0;
    const uint32_t interval = 1u + data[0] % 16u;
    uint8_t *const file = malloc(n > PREFIX ? n - PREFIX : 1);
    require(file != NULL);
    memcpy(file, data + PREFIX, n - PREFIX);
    fm_transcoder *first = open_with(interval, true), *second = open_with(interval, data[1] & 1);
    const fm_transcoded out = run(first, file, n - PREFIX);
    free(file);
    /* libjpeg may find a file whole that the check finds damaged; never pixels that differ. */
    require(out.reason != FM_PACK_DIFFERS);
    if (out.bytes) {
        check(&out);
        const fm_transcoded again = run(second, out.bytes, out.n_bytes);
        require(again.reason == FM_PACK_TRANSCODED && again.n_bytes == out.n_bytes);
        require(memcmp(again.bytes, out.bytes, out.n_bytes) == 0);
    }
    fm_transcoder_close(&first);
    fm_transcoder_close(&second);
    return 0;
}

#ifdef FM_FUZZ_REPLAY
int main(int n_args, char **args) {
    static uint8_t bytes[1 << 22];
    for (int i = 1; i < n_args; i++) {
        FILE *const in = fopen(args[i], "rb");
        if (!in) {
            fprintf(stderr, "%s: cannot read\n", args[i]);
            return 1;
        }
        const size_t n = fread(bytes, 1, sizeof(bytes), in);
        fclose(in);
        LLVMFuzzerTestOneInput(bytes, n);
    }
    return 0;
}
#endif
