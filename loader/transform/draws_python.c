#define _GNU_SOURCE
#include "transform/draws_python.h"

#include <math.h>

bool fm_draws_python_crop(const fm_op *op, fm_mt19937 *generator, int32_t width, int32_t height,
                          fm_box *crop) {
    const double area = (double)width * (double)height;
    const double log_low = log(op->ratio[0]), log_high = log(op->ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        const double target = fm_python_uniform(generator, op->scale[0], op->scale[1]) * area;
        const double ratio = exp(fm_python_uniform(generator, log_low, log_high));
        /* nearbyint() rounds halves to even, as Python's round() does. */
        const double crop_width = nearbyint(sqrt(target * ratio));
        const double crop_height = nearbyint(sqrt(target / ratio));
        if (!(crop_width <= width && crop_height <= height)) continue;
        *crop = (fm_box){.width = (int32_t)crop_width, .height = (int32_t)crop_height};
        crop->top = (int32_t)fm_python_below(generator, (uint32_t)(height - crop->height) + 1);
        crop->left = (int32_t)fm_python_below(generator, (uint32_t)(width - crop->width) + 1);
        return true;
    }
    return false;
}

/* A number from 0 to 1, and a whole number below n. */
static double share_of(fm_rng *rng) {
    return rng->key.streams ? fm_python_random(&rng->key.streams->python) : (double)fm_rng_f32(rng);
}

static int32_t below(fm_rng *rng, double n) {
    return (int32_t)(rng->key.streams ? fm_python_below(&rng->key.streams->python, (uint32_t)n)
                                      : fm_rng_below(rng, (uint32_t)n));
}

bool fm_draws_efficient_crop(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                             fm_box *crop) {
    const double area = (double)width * (double)height;
    const double least = op->scale[0] * area, most = op->scale[1] * area;
    const int32_t n_attempts = (int32_t)op->values[4];
    for (int32_t attempt = 0; attempt < n_attempts; attempt++) {
        const double ratio = op->ratio[0] + (op->ratio[1] - op->ratio[0]) * share_of(rng);
        double lowest = nearbyint(sqrt(least / ratio)), highest = nearbyint(sqrt(most / ratio));
        if (highest * ratio > width) {
            highest = floor((width + 0.5 - 1e-7) / ratio);
            if (highest * ratio > width) highest--;
        }
        highest = fmin(highest, height);
        lowest = fmin(lowest, highest);
        const double rows = nearbyint(lowest + (highest - lowest) * share_of(rng));
        const double columns = nearbyint(rows * ratio);
        const double covered = columns * rows;
        if (covered < least || covered > most) continue;
        if (columns > width || rows > height || covered < op->values[3] * area) continue;
        if (columns == width && rows == height) return false;
        *crop = (fm_box){.width = (int32_t)columns, .height = (int32_t)rows};
        crop->left = below(rng, width - columns + 1);
        crop->top = below(rng, height - rows + 1);
        return true;
    }
    return false;
}

void fm_draws_python_factors(const fm_op *op, fm_mt19937 *generator, double *factor_x,
                             double *factor_y) {
    const double *const v = op->values;
    *factor_x = *factor_y = 1;
    if (v[2] > 0 && fm_python_random(generator) < v[2]) {
        const double factor = fm_python_uniform(generator, v[3], v[4]);
        *factor_x = *factor_y = v[5] != 0 ? 1 / sqrt(factor) : factor;
    }
    if (v[6] > 0 && fm_python_random(generator) < v[6]) {
        const double factor = sqrt(exp(fm_python_uniform(generator, log(v[7]), log(v[8]))));
        *factor_y /= factor;
        *factor_x *= factor;
    }
}

bool fm_draws_python_filter(fm_mt19937 *generator, uint32_t n) {
    return n > 0 && fm_python_below(generator, n) == 1;
}

/* One box of RandomErasing; false: ten attempts have failed. */
static bool draw_box(const fm_op *op, fm_mt19937 *generator, int32_t width, int32_t height,
                     uint32_t n_boxes, fm_box *box) {
    const double area = (double)height * (double)width;
    for (int attempt = 0; attempt < 10; attempt++) {
        const double target =
            fm_python_uniform(generator, op->scale[0], op->scale[1]) * area / n_boxes;
        const double ratio = exp(fm_python_uniform(generator, op->values[6], op->values[7]));
        const double rows = nearbyint(sqrt(target * ratio));
        const double columns = nearbyint(sqrt(target / ratio));
        if (!(columns < width && rows < height)) continue;
        *box = (fm_box){.height = (int32_t)rows, .width = (int32_t)columns};
        box->top = (int32_t)fm_python_below(generator, (uint32_t)(height - box->height) + 1);
        box->left = (int32_t)fm_python_below(generator, (uint32_t)(width - box->width) + 1);
        return true;
    }
    return false;
}

uint32_t fm_draws_python_boxes(const fm_op *op, fm_mt19937 *generator, int32_t width,
                               int32_t height, fm_box boxes[FM_MAX_ERASED]) {
    if (fm_python_random(generator) > op->p) return 0;
    const uint32_t least = (uint32_t)op->values[4], most = (uint32_t)op->values[5];
    const uint32_t n_boxes =
        least == most ? least : least + fm_python_below(generator, most - least + 1);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_boxes; i++)
        if (draw_box(op, generator, width, height, n_boxes, &boxes[n])) n++;
    return n;
}

/* numbers[0] + numbers[1] x, where x is, by source, random.random() (0), numpy.random.rand(), or
 * torch.rand(1) (3); with source 2 it is rounded once, with 4 x is torch's and all is float32. */
static double draw_number(fm_streams *streams, double source, const double *numbers) {
    if (source == 0) return numbers[0] + numbers[1] * fm_python_random(&streams->python);
    if (source == 3) return numbers[0] + numbers[1] * (double)fm_torch_rand(&streams->torch);
    if (source == 4) {
        const float product = (float)numbers[1] * fm_torch_rand(&streams->torch);
        return (double)((float)numbers[0] + product);
    }
    const double share = fm_numpy_rand(&streams->numpy);
    return source == 2 ? fma(numbers[1], share, numbers[0]) : numbers[0] + numbers[1] * share;
}

bool fm_draws_python_condition(const fm_op *op, fm_streams *streams) {
    const double *const v = op->values;
    const double number = draw_number(streams, v[5], v + 3);
    switch ((fm_comparison)v[1]) {
    case FM_LESS:
        return number < v[2];
    case FM_LESS_OR_EQUAL:
        return number <= v[2];
    case FM_GREATER:
        return number > v[2];
    case FM_GREATER_OR_EQUAL:
        break;
    }
    return number >= v[2];
}

double fm_draws_python_radius(const fm_op *op, fm_streams *streams) {
    const double *const v = op->values;
    return v[2] != 0 ? draw_number(streams, v[2] - 1, v + 3) : v[0];
}

double fm_draws_python_place(const fm_op *op, fm_streams *streams) {
    const double n = op->values[op->n_children - 1];
    switch ((int)op->values[32]) {
    case 1:
        return fm_python_below(&streams->python, (uint32_t)n);
    case 2:
        return fm_numpy_below(&streams->numpy, (uint32_t)n);
    case 3:
        return fm_numpy_rand(&streams->numpy);
    default:
        return fm_python_random(&streams->python) * n;
    }
}
