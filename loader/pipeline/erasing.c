#define _GNU_SOURCE
#include "pipeline/erasing.h"

#include <string.h>

#include "base/normals.h"
#include "transform/draws.h"
#include "transform/half.h"

/* Random numbers that are made at once. */
#define N_AT_ONCE 256

/* How a sample lies in the batch, and the random numbers that are written into it. */
typedef struct erasing {
    const fm_plan *plan;
    const double *colors; /* the channels' numbers of the next box; NULL: those of fm_noise() */
    fm_streams *streams;  /* of the pixels' numbers; NULL: fm_noise() */
    fm_box box;           /* that is written */
    uint8_t *out;
    uint64_t seed, n_made;          /* of fm_noise(); n_made: numbers of it that were used */
    size_t value_bytes, step_bytes; /* of a value; from one pixel of a row to the next */
} erasing;

/* Converts a number that the batch's dtype can represent to the bytes of that dtype. */
static void value_of(fm_dtype dtype, double number, uint8_t value[4]) {
    const float single = (float)number;
    const uint16_t half = dtype == FM_FLOAT16 ? fm_float16_bits(single) : fm_bfloat16_bits(single);
    if (dtype == FM_UINT8)
        value[0] = (uint8_t)number;
    else if (dtype == FM_FLOAT32)
        memcpy(value, &single, sizeof(single));
    else
        memcpy(value, &half, sizeof(half));
}

static uint8_t *place_of(const erasing *to, size_t channel, size_t row, size_t column) {
    const size_t width = (size_t)to->plan->out_width, height = (size_t)to->plan->out_height;
    const size_t channels = (size_t)to->plan->channels, pixel = row * width + column;
    const size_t at =
        to->plan->layout == FM_NHWC ? pixel * channels + channel : pixel + channel * width * height;
    return to->out + at * to->value_bytes;
}

static void fill_row(const erasing *to, uint8_t *place, int32_t n, double number) {
    uint8_t value[4];
    value_of(to->plan->dtype, number, value);
    for (int32_t i = 0; i < n; i++, place += to->step_bytes) memcpy(place, value, to->value_bytes);
}

static void write_noise(erasing *to, uint8_t *place, int32_t n) {
    float numbers[N_AT_ONCE];
    for (int32_t done = 0, n_now; done < n; done += n_now) {
        n_now = n - done < N_AT_ONCE ? n - done : N_AT_ONCE;
        fm_noise(to->seed, to->n_made, (size_t)n_now, numbers);
        to->n_made += (uint64_t)n_now;
        for (int32_t i = 0; i < n_now; i++, place += to->step_bytes) {
            uint8_t value[4];
            value_of(to->plan->dtype, (double)numbers[i], value);
            memcpy(place, value, to->value_bytes);
        }
    }
}

/* Writes pixels [first, first + n) of a box, by channel, row and column. */
static void write_pixels(void *user, size_t first, const float *numbers, size_t n) {
    const erasing *const to = user;
    const size_t width = (size_t)to->box.width, height = (size_t)to->box.height;
    for (size_t done = 0; done < n;) {
        const size_t row = (first + done) / width, column = (first + done) % width;
        const size_t left = n - done < width - column ? n - done : width - column;
        uint8_t *place = place_of(to, row / height, (size_t)to->box.top + row % height,
                                  (size_t)to->box.left + column);
        for (const size_t end = done + left; done < end; done++, place += to->step_bytes) {
            uint8_t value[4];
            value_of(to->plan->dtype, (double)numbers[done], value);
            memcpy(place, value, to->value_bytes);
        }
    }
}

static void erase_box(erasing *to, fm_box box) {
    if (to->streams) {
        to->box = box;
        const size_t n = (size_t)box.height * (size_t)box.width;
        fm_torch_normals(to->streams, (size_t)to->plan->channels * n, write_pixels, to);
        return;
    }
    const fm_op *const op = &to->plan->ops[to->plan->n_ops - 1];
    for (size_t channel = 0; channel < (size_t)to->plan->channels; channel++) {
        double number = op->values[channel];
        if (to->colors) {
            number = to->colors[channel];
        } else if (op->values[3] == 1) {
            float noise;
            fm_noise(to->seed, to->n_made++, 1, &noise);
            number = (double)noise;
        }
        for (int32_t row = box.top; row < box.top + box.height; row++) {
            uint8_t *const place = place_of(to, channel, (size_t)row, (size_t)box.left);
            if (op->values[3] == 2)
                write_noise(to, place, box.width);
            else
                fill_row(to, place, box.width, number);
        }
    }
    if (to->colors) to->colors += 3;
}

void fm_erase(const fm_plan *plan, const fm_draw *draw, fm_streams *before_pixels, void *out) {
    if (!draw->flip) return;
    const bool has_pixels = before_pixels && plan->ops[plan->n_ops - 1].values[3] == 2;
    const size_t bytes = plan->dtype == FM_UINT8 ? 1 : plan->dtype == FM_FLOAT32 ? 4 : 2;
    erasing to = {.plan = plan,
                  .out = out,
                  .streams = has_pixels ? before_pixels : NULL,
                  .value_bytes = bytes,
                  .step_bytes = plan->layout == FM_NHWC ? bytes * (size_t)plan->channels : bytes};
    if (draw->n_values >= 2) to.seed = (uint64_t)draw->values[0] | (uint64_t)draw->values[1] << 32;
    const bool has_colors = draw->n_values > FM_DRAWS_COLORS;
    const int32_t n_boxes = has_colors ? (draw->n_values - FM_DRAWS_COLORS) / 3 : 0;
    if (has_colors) to.colors = draw->values + FM_DRAWS_COLORS;
    erase_box(&to, (fm_box){draw->left, draw->top, draw->width, draw->height});
    const int32_t end = has_colors ? 2 * n_boxes : draw->n_values;
    for (int32_t i = 2; i + 1 < end; i += 2) {
        const uint64_t corner = (uint64_t)draw->values[i], size = (uint64_t)draw->values[i + 1];
        erase_box(&to, (fm_box){(int32_t)(corner & 65535), (int32_t)(corner >> 16),
                                (int32_t)(size & 65535), (int32_t)(size >> 16)});
    }
}
