#define _GNU_SOURCE
#include "transform/float_pixels.h"

#include <math.h>

void fm_float_pixels(float *out, const uint8_t *in, int32_t n_px, const fm_plan *plan,
                     bool mirror) {
    const float(*const values)[256] = plan->resized_values;
    for (size_t i = 0; i < (size_t)n_px; i++) {
        const uint8_t *const px = in + 3 * (mirror ? (size_t)n_px - 1 - i : i);
        for (size_t c = 0; c < 3; c++) out[4 * i + c] = values[c][px[c]];
        out[4 * i + 3] = 0.0f;
    }
}

void fm_float_round(uint8_t *out, const float *in, int32_t n_px) {
    for (size_t i = 0; i < (size_t)n_px; i++)
        for (size_t c = 0; c < 3; c++) out[3 * i + c] = (uint8_t)lrintf(in[4 * i + c]);
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
