#define _GNU_SOURCE
#include "transform/draws.h"

#include <math.h>

#include "base/normals.h"
#include "transform/draws_automatic.h"
#include "transform/draws_python.h"
#include "transform/draws_timm.h"
#include "transform/numbers.h"

float fm_draws_uniform(fm_rng *rng, float low, float high) {
    return fmaf(fm_rng_f32(rng), high - low, low);
}

/* The same for limits that are Python floats. */
static double uniform(fm_rng *rng, double low, double high) {
    return (double)fm_draws_uniform(rng, (float)low, (float)high);
}

/* ---- orders ---------------------------------------------------------------------------------- */

static void draw_order(fm_rng *rng, int32_t n, double *order) {
    if (rng->key.streams) {
        fm_torch_randperm(&rng->key.streams->torch, n, order);
        return;
    }
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        const uint32_t j = fm_rng_below(rng, (uint32_t)i + 1);
        const double kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* RandomOrder: v1 calls Python's random.shuffle(), v2 torch.randperm(). */
static void draw_children_order(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    draw->n_values = op->n_children;
    if (rng->key.streams && !op->is_v2)
        fm_python_shuffle(&rng->key.streams->python, op->n_children, draw->values);
    else
        draw_order(rng, op->n_children, draw->values);
}

/* RandomChoice; with streams, v2's torch.multinomial(), or a number of Python or NumPy. */
static void draw_choice(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    draw->n_values = 1;
    if (rng->key.streams && op->is_v2) {
        draw->values[0] =
            fm_torch_multinomial(&rng->key.streams->torch, op->values + 16, op->n_children);
        return;
    }
    const double at = rng->key.streams ? fm_draws_python_place(op, rng->key.streams)
                                       : (double)fm_rng_f32(rng) * op->values[op->n_children - 1];
    int32_t child = 0;
    while (child < op->n_children - 1 && op->values[child] <= at) child++;
    draw->values[0] = child;
}

/* ---- colors and affine transforms ------------------------------------------------------------ */

static void draw_color_jitter(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    draw_order(rng, 4, draw->values);
    for (int i = 0; i < 4; i++)
        if ((int)op->values[8] >> i & 1)
            draw->values[4 + i] = uniform(rng, op->values[2 * i], op->values[2 * i + 1]);
    draw->n_values = 8;
}

static void draw_affine(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                        fm_draw *draw) {
    const double *const from = op->values;
    double *const to = draw->values;
    to[0] = uniform(rng, from[0], from[1]);
    if (from[2] != 0) {
        const double most_x = from[3] * width, most_y = from[4] * height;
        /* Python's round() rounds halves to even. */
        to[1] = nearbyint(uniform(rng, -most_x, most_x));
        to[2] = nearbyint(uniform(rng, -most_y, most_y));
    }
    to[3] = from[5] != 0 ? uniform(rng, op->scale[0], op->scale[1]) : 1;
    if (from[6] >= 2) to[4] = uniform(rng, from[7], from[8]);
    if (from[6] >= 4) to[5] = uniform(rng, from[9], from[10]);
    draw->n_values = 6;
}

/* Whether the original draws no number, as the op is always applied. */
static bool is_certain(const fm_op *op) {
    switch (op->kind) {
    case FM_OP_RANDOM_APPLY:
    case FM_OP_RANDOM_GRAYSCALE:
        return op->values[0] != 0;
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
    case FM_OP_RANDOM_VERTICAL_FLIP:
    case FM_OP_RANDOM_INVERT:
    case FM_OP_RANDOM_POSTERIZE:
    case FM_OP_RANDOM_SOLARIZE:
    case FM_OP_RANDOM_AUTOCONTRAST:
    case FM_OP_RANDOM_EQUALIZE:
        return op->values[1] != 0;
    default:
        return false;
    }
}

/*
 * Whether an op with a probability is applied. torch.rand(1) is compared as float32 with the
 * probability, or as Python's float where torchvision calls item().
 */
static bool is_applied(const fm_op *op, fm_rng *rng) {
    if (!rng->key.streams) return fm_rng_f32(rng) < (float)op->p;
    if (op->kind == FM_OP_RANDOM_APPLY && op->values[1] != 0)
        return fm_draws_python_condition(op, rng->key.streams);
    if (is_certain(op)) return true;
    const float share = fm_rng_f32(rng);
    if (op->is_v2) return share < (float)op->p;
    switch (op->kind) {
    case FM_OP_RANDOM_INVERT:
    case FM_OP_RANDOM_POSTERIZE:
    case FM_OP_RANDOM_SOLARIZE:
    case FM_OP_RANDOM_AUTOCONTRAST:
    case FM_OP_RANDOM_EQUALIZE:
    case FM_OP_RANDOM_ADJUST_SHARPNESS:
        return (double)share < op->p;
    case FM_OP_RANDOM_APPLY:
        return !((float)op->p < share);
    default:
        return share < (float)op->p;
    }
}

/* GaussianBlur, whose radius random.uniform() or numpy.random.rand() draws. The original's own code
 * decides whether it is applied: with streams a RandomApply around it does. */
static void draw_blur(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    draw->n_values = 1;
    if (rng->key.streams) {
        draw->flip = op->p == 1 || fm_rng_f32(rng) < (float)op->p;
        draw->values[0] = fm_draws_python_radius(op, rng->key.streams);
        return;
    }
    draw->flip = fm_rng_f32(rng) < (float)op->p;
    draw->values[0] = op->values[0] + (op->values[1] - op->values[0]) * (double)fm_rng_f32(rng);
}

/* Of the image that a RandomErasing gets; an op that belongs to no plan gets three. */
static size_t channels_of(const fm_op *op) {
    const double channels = op->values[FM_DRAWS_CHANNELS];
    return channels == 0 ? 3 : (size_t)channels;
}

/* The random numbers of the pixels are made when they are written. */
static void skip_pixels(const fm_op *op, const fm_draw_key *key, const fm_box *boxes, uint32_t n) {
    if (key->before_pixels) *key->before_pixels = *key->streams;
    for (uint32_t i = 0; i < n; i++)
        fm_torch_skip_normals(key->streams,
                              channels_of(op) * (size_t)boxes[i].height * (size_t)boxes[i].width);
}

/* RandomErasing.get_params: if ten attempts fail, there is no box. */
static bool draw_box(const fm_op *op, fm_rng *rng, int32_t width, int32_t height, int32_t n_boxes,
                     fm_box *box) {
    const double area = (double)height * (double)width / n_boxes;
    const float log_low = (float)fm_draws_log((float)op->ratio[0]);
    const float log_high = (float)fm_draws_log((float)op->ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        const double erased = area * uniform(rng, op->scale[0], op->scale[1]);
        const double ratio = (double)(float)fm_draws_exp(fm_draws_uniform(rng, log_low, log_high));
        const double rows = nearbyint(sqrt(erased * ratio));
        const double columns = nearbyint(sqrt(erased / ratio));
        if (!(rows < height && columns < width)) continue;
        box->height = (int32_t)rows;
        box->width = (int32_t)columns;
        if (rng->key.streams && op->values[3] == 2) skip_pixels(op, &rng->key, box, 1);
        box->top = (int32_t)fm_rng_below(rng, (uint32_t)(height - box->height) + 1);
        box->left = (int32_t)fm_rng_below(rng, (uint32_t)(width - box->width) + 1);
        return true;
    }
    return false;
}

static void add_box(fm_draw *draw, const fm_box *box) {
    if (!draw->flip) {
        draw->flip = true;
        draw->top = box->top;
        draw->left = box->left;
        draw->height = box->height;
        draw->width = box->width;
        return;
    }
    draw->values[draw->n_values++] = box->top * 65536.0 + box->left;
    draw->values[draw->n_values++] = box->height * 65536.0 + box->width;
}

/* timm's, with streams: it draws from Python's generator, and the numbers that it writes from
 * torch's. */
static void draw_erasing_of_timm(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                                 fm_draw *draw) {
    fm_box boxes[FM_MAX_ERASED];
    const uint32_t n = fm_draws_python_boxes(op, &rng->key.streams->python, width, height, boxes);
    if (op->values[5] > 1 || op->values[3] == 1) draw->n_values = 2;
    for (uint32_t i = 0; i < n; i++) add_box(draw, &boxes[i]);
    if (op->values[3] == 2 && n > 0) skip_pixels(op, &rng->key, boxes, n);
    if (op->values[3] != 1 || n == 0) return;
    draw->n_values = FM_DRAWS_COLORS + 3 * (int32_t)n;
    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < channels_of(op); k++)
            draw->values[FM_DRAWS_COLORS + 3 * i + k] = (double)fm_torch_normal(rng->key.streams);
}

/* torchvision's and timm's, which may erase several boxes. */
static void draw_erasing(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                         fm_draw *draw) {
    if (rng->key.streams && op->values[4] != 0) {
        draw_erasing_of_timm(op, rng, width, height, draw);
        return;
    }
    const uint32_t least = op->values[4] > 1 ? (uint32_t)op->values[4] : 1;
    const uint32_t most = op->values[5] > 1 ? (uint32_t)op->values[5] : 1;
    const bool has_seed = !rng->key.streams && (op->values[3] != 0 || most > 1);
    if (has_seed) draw->n_values = 2;
    if (!is_applied(op, rng)) return;
    const uint32_t n_boxes = most > least ? least + fm_rng_below(rng, most - least + 1) : least;
    if (has_seed) {
        draw->values[0] = fm_rng_u32(rng);
        draw->values[1] = fm_rng_u32(rng);
    }
    for (uint32_t i = 0; i < n_boxes; i++) {
        fm_box box;
        if (draw_box(op, rng, width, height, (int32_t)n_boxes, &box)) add_box(draw, &box);
    }
}

/* torch.Tensor.normal_() of three float32 values. */
static void draw_lighting(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    draw->n_values = 3;
    for (int i = 0; i < 3; i++) {
        const double normal = rng->key.streams ? fm_torch_normal_double(rng->key.streams)
                                               : fm_normal(fm_rng_u32(rng));
        draw->values[i] = (double)(float)(normal * op->values[0]);
    }
}

/* ---- all kinds ------------------------------------------------------------------------------- */

void fm_draws_make(const fm_op *op, fm_rng *rng, int32_t width, int32_t height, fm_draw *draw) {
    switch (op->kind) {
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
    case FM_OP_RANDOM_VERTICAL_FLIP:
    case FM_OP_RANDOM_GRAYSCALE:
    case FM_OP_RANDOM_INVERT:
    case FM_OP_RANDOM_POSTERIZE:
    case FM_OP_RANDOM_SOLARIZE:
    case FM_OP_RANDOM_AUTOCONTRAST:
    case FM_OP_RANDOM_EQUALIZE:
    case FM_OP_RANDOM_ADJUST_SHARPNESS:
    case FM_OP_RANDOM_APPLY:
        draw->flip = is_applied(op, rng);
        return;
    case FM_OP_COLOR_JITTER:
        draw_color_jitter(op, rng, draw);
        return;
    case FM_OP_RANDOM_BLUR:
        draw_blur(op, rng, draw);
        return;
    case FM_OP_RANDOM_ROTATION:
        draw->values[0] =
            op->values[8] != 0 ? op->values[0] : uniform(rng, op->values[0], op->values[1]);
        draw->n_values = 1;
        return;
    case FM_OP_RANDOM_AFFINE:
        draw_affine(op, rng, width, height, draw);
        return;
    case FM_OP_RANDOM_ERASING:
        draw_erasing(op, rng, width, height, draw);
        return;
    case FM_OP_LIGHTING:
        draw_lighting(op, rng, draw);
        return;
    case FM_OP_RANDOM_CHOICE:
        draw_choice(op, rng, draw);
        return;
    case FM_OP_RANDOM_ORDER:
        draw_children_order(op, rng, draw);
        return;
    case FM_OP_TRIVIAL_AUGMENT_WIDE:
    case FM_OP_RAND_AUGMENT:
    case FM_OP_AUTO_AUGMENT:
        fm_draws_automatic(op, rng, width, height, draw);
        return;
    case FM_OP_TIMM_RAND_AUGMENT:
    case FM_OP_TIMM_AUTO_AUGMENT:
        fm_draws_timm(op, rng, draw);
        return;
    case FM_OP_RESIZE:
    case FM_OP_RESIZE_KEEP_RATIO:
    case FM_OP_HALVING_CENTER_CROP:
    case FM_OP_CENTER_CROP:
    case FM_OP_RANDOM_RESIZED_CROP:
    case FM_OP_RANDOM_CROP:
    case FM_OP_PAD:
    case FM_OP_GRAYSCALE:
        return;
    }
}
