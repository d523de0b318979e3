#define _GNU_SOURCE
#include "transform/float_pixels.h"

#include <string.h>

/* Pixels that are processed at a time. */
#define BLOCK_PX 64

/* Widens n pixels of three bytes to four, the last of which is any byte; with `mirror` from the
 * last pixel to the first. */
static void widen(uint8_t *restrict out, const uint8_t *restrict in, size_t n, bool mirror) {
    /* Four bytes are copied, but for the pixel after which none may be there to be read. */
    const size_t last = n - 1;
    memcpy(out + 4 * (mirror ? 0 : last), in + 3 * last, 3);
    if (mirror)
        for (size_t i = 0; i < last; i++) memcpy(out + 4 * (last - i), in + 3 * i, 4);
    else
        for (size_t i = 0; i < last; i++) memcpy(out + 4 * i, in + 3 * i, 4);
}

static void look_up(float *out, const uint8_t *in, size_t n, const fm_plan *plan) {
    const float(*const values)[256] = plan->resized_values;
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < 3; c++) out[4 * i + c] = values[c][in[4 * i + c]];
        out[4 * i + 3] = 0.0f;
    }
}

void fm_float_pixels(float *out, const uint8_t *in, int32_t n_px, const fm_plan *plan,
                     bool mirror) {
    uint8_t bytes[4 * BLOCK_PX] = {0};
    for (size_t at = 0; at < (size_t)n_px; at += BLOCK_PX) {
        const size_t n = (size_t)n_px - at < BLOCK_PX ? (size_t)n_px - at : BLOCK_PX;
        float *const to = out + 4 * at;
        widen(bytes, in + 3 * (mirror ? (size_t)n_px - at - n : at), n, mirror);
        if (plan->resizes_bytes)
            for (size_t i = 0; i < 4 * n; i++) to[i] = (float)bytes[i];
        else if (plan->resizes_shares)
            for (size_t i = 0; i < 4 * n; i++) to[i] = (float)bytes[i] / 255.0f;
        else
            look_up(to, bytes, n, plan);
    }
}

/* Rounds as the addition of 1.5 * 2^23 does, whose sum has no fraction bits. Its lowest byte is the
 * result's. */
static uint8_t rounded(float value) {
    const float sum = value + 12582912.0f;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof(bits));
    return (uint8_t)bits;
}

void fm_float_round(uint8_t *out, const float *in, int32_t n_px) {
    uint8_t bytes[4 * BLOCK_PX];
    for (size_t at = 0; at < (size_t)n_px; at += BLOCK_PX) {
        const size_t n = (size_t)n_px - at < BLOCK_PX ? (size_t)n_px - at : BLOCK_PX;
        for (size_t i = 0; i < 4 * n; i++) bytes[i] = rounded(in[4 * at + i]);
        uint8_t *const to = out + 3 * at;
        for (size_t i = 0; i + 1 < n; i++) memcpy(to + 3 * i, bytes + 4 * i, 4);
        memcpy(to + 3 * (n - 1), bytes + 4 * (n - 1), 3);
    }
}

void fm_float_store(const fm_plan *plan, float *out, size_t row, size_t column, const float *in,
                    int32_t n_px, bool mirror) {
    const size_t width = (size_t)plan->out_width, height = (size_t)plan->out_height;
    const size_t n = (size_t)n_px, n_channels = (size_t)plan->channels;
    const bool packed = plan->layout == FM_NHWC;
    const size_t step = packed ? n_channels : 1;
    for (size_t c = 0; c < n_channels; c++) {
        const float mean = plan->mean[c], std = plan->std[c];
        const size_t px = row * width + column;
        float *const to = out + (packed ? px * n_channels + c : c * width * height + px);
        if (mirror)
            for (size_t i = 0; i < n; i++) to[step * i] = (in[4 * (n - 1 - i) + c] - mean) / std;
        else
            for (size_t i = 0; i < n; i++) to[step * i] = (in[4 * i + c] - mean) / std;
    }
}
