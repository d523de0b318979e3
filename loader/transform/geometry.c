#define _GNU_SOURCE
#include "transform/geometry.h"

#include <limits.h>
#include <math.h>

#include "base/number.h"
#include "base/rng.h"

/* ---- logarithm and exponential --------------------------------------------------------------- */

/*
 * The C library's own may differ in the last bit between its versions and between CPUs, and with
 * it, once in a long while, a crop. These use nothing but IEEE's basic operations in double and are
 * right to about 1e-15, which leaves the rounding to float32.
 */

static const double LN2 = 0x1.62e42fefa39efp-1;

/* Natural logarithm of x > 0. */
static double log_portable(double x) {
    int exponent;
    double mantissa = frexp(x, &exponent);
    if (mantissa < 0x1.6a09e667f3bcdp-1) { /* sqrt(1/2): centre the mantissa around 1 */
        mantissa *= 2;
        exponent--;
    }
    /* log(m) = 2 atanh((m - 1) / (m + 1)); the argument is at most 0.172. */
    const double t = (mantissa - 1) / (mantissa + 1), t2 = t * t;
    double sum = 0;
    for (int n = 25; n >= 1; n -= 2) sum = sum * t2 + 1.0 / n;
    return exponent * LN2 + 2 * t * sum;
}

/* e to the x, for results within float32's range. */
static double exp_portable(double x) {
    const double n = nearbyint(x / LN2);
    const double rest = x - n * LN2; /* at most 0.347 in size */
    double sum = 1;
    for (int k = 17; k >= 1; k--) sum = 1 + sum * rest / k;
    return ldexp(sum, (int)n);
}

/* ---- the crops of torchvision ---------------------------------------------------------------- */

/*
 * torch's float32 Tensor.uniform_(low, high), which its kernels for AVX2 and newer round once. So
 * does fmaf() on every machine.
 */
static float uniform(fm_rng *rng, float low, float high) {
    return fmaf(fm_rng_f32(rng), high - low, low);
}

/* RandomResizedCrop.get_params: where ten tries fail, a central crop with the nearest ratio. */
static fm_box central_crop(const fm_op *op, int32_t width, int32_t height) {
    const double lowest = op->ratio[0], highest = op->ratio[1];
    const double ratio = (double)width / (double)height;
    int32_t crop_width = width, crop_height = height;
    /* Both roundings lead to at most the image's own side. */
    if (ratio < lowest) {
        crop_height = (int32_t)nearbyint(width / lowest);
    } else if (ratio > highest) {
        crop_width = (int32_t)nearbyint(height * highest);
    }
    return (fm_box){.left = (width - crop_width) / 2,
                    .top = (height - crop_height) / 2,
                    .width = crop_width,
                    .height = crop_height};
}

/* RandomResizedCrop.get_params, with its steps in float32 and float64. */
static fm_box random_crop(const fm_op *op, fm_rng *rng, int32_t width, int32_t height) {
    const double area = (double)height * (double)width;
    const float log_low = (float)log_portable((float)op->ratio[0]);
    const float log_high = (float)log_portable((float)op->ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        const float share = uniform(rng, (float)op->scale[0], (float)op->scale[1]);
        const double target = area * (double)share;
        const float log_ratio = uniform(rng, log_low, log_high);
        const double ratio = (double)(float)exp_portable(log_ratio);
        /* nearbyint() rounds halves to even, as Python's round() does. */
        const double crop_width = nearbyint(sqrt(target * ratio));
        const double crop_height = nearbyint(sqrt(target / ratio));
        if (crop_width > 0 && crop_width <= width && crop_height > 0 && crop_height <= height) {
            fm_box crop = {.width = (int32_t)crop_width, .height = (int32_t)crop_height};
            crop.top = (int32_t)fm_rng_below(rng, (uint32_t)(height - crop.height) + 1);
            crop.left = (int32_t)fm_rng_below(rng, (uint32_t)(width - crop.width) + 1);
            return crop;
        }
    }
    return central_crop(op, width, height);
}

/* One axis of center_crop: the first pixel taken; negative where the image is padded. */
static int32_t center_start(int32_t size, int32_t crop_size) {
    if (crop_size > size) return -((crop_size - size) / 2);
    return (int32_t)nearbyint((size - crop_size) / 2.0);
}

static fm_box center_crop(const fm_op *op, int32_t width, int32_t height) {
    return (fm_box){.left = center_start(width, op->width),
                    .top = center_start(height, op->height),
                    .width = op->width,
                    .height = op->height};
}

/* _compute_resized_output_size; the longer edge may come out beyond any limit, and either as 0. */
static void resized_size(const fm_op *op, int32_t width, int32_t height, double *new_width,
                         double *new_height) {
    if (op->width) {
        *new_width = op->width;
        *new_height = op->height;
        return;
    }
    const double shorter = width <= height ? width : height;
    const double longer = width <= height ? height : width;
    double new_short = op->height;
    double new_long = floor(new_short * longer / shorter);
    if (op->max_size && new_long > op->max_size) {
        new_short = floor(op->max_size * new_short / new_long);
        new_long = op->max_size;
    }
    *new_width = width <= height ? new_short : new_long;
    *new_height = width <= height ? new_long : new_short;
}

/* ---- the chain as one form ------------------------------------------------------------------- */

/*
 * What the chain has come to so far. The image that the next op sees is `form.window` of the
 * resized source, mirrored if form.flip; its size is the window's.
 */
typedef struct chain_state {
    fm_geometry form;
    bool resized;
    const char *no_form; /* why the form does not hold for this image; NULL: it does */
} chain_state;

static fm_box whole(int32_t width, int32_t height) {
    return (fm_box){.width = width, .height = height};
}

/* The common part of two boxes; 0 x 0 if there is none. */
static fm_box common(fm_box a, fm_box b) {
    const int32_t left = fm_max_i32(a.left, b.left), top = fm_max_i32(a.top, b.top);
    const int32_t right = fm_min_i32(a.left + a.width, b.left + b.width);
    const int32_t bottom = fm_min_i32(a.top + a.height, b.top + b.height);
    if (right <= left || bottom <= top) return (fm_box){0};
    return (fm_box){.left = left, .top = top, .width = right - left, .height = bottom - top};
}

static bool same(fm_box a, fm_box b) {
    return a.left == b.left && a.top == b.top && a.width == b.width && a.height == b.height;
}

/* Nothing was resized yet: narrows the source to what shows, so that the rest is gone for good. */
static void narrow_source(fm_geometry *form) {
    const fm_box seen = common(form->window, whole(form->source.width, form->source.height));
    form->source = (fm_box){.left = form->source.left + seen.left,
                            .top = form->source.top + seen.top,
                            .width = seen.width,
                            .height = seen.height};
    if (seen.width == 0) form->source = (fm_box){0};
    form->resized_width = seen.width;
    form->resized_height = seen.height;
    form->window.left -= seen.left;
    form->window.top -= seen.top;
}

/* Takes `crop`, given in the coordinates of the image that the op sees. */
static void take_crop(chain_state *chain, fm_box crop) {
    fm_geometry *const form = &chain->form;
    const fm_box before = form->window;
    if (form->flip) crop.left = before.width - (crop.left + crop.width);
    form->window = crop;
    form->window.left += before.left;
    form->window.top += before.top;
    if (!chain->resized) {
        narrow_source(form);
        return;
    }
    /* Padding must not bring back pixels that an earlier crop took away. */
    const fm_box shown = common(form->window, whole(form->resized_width, form->resized_height));
    if (!same(shown, common(shown, before)))
        chain->no_form = "padding around a crop after a resize";
}

static void take_resize(chain_state *chain, double width, double height) {
    fm_geometry *const form = &chain->form;
    if (!same(form->window, whole(form->source.width, form->source.height)))
        chain->no_form = "padding before a resize";
    if (form->window.width == 0 || form->window.height == 0 || width < 1 || height < 1)
        chain->no_form = "a side without pixels";
    if (width > FM_MAX_SIDE || height > FM_MAX_SIDE) chain->no_form = "a side over 65,535 pixels";
    form->mirror_source = form->flip;
    form->flip = false;
    form->resized_width = (int32_t)width;
    form->resized_height = (int32_t)height;
    form->window = whole(form->resized_width, form->resized_height);
    chain->resized = true;
}

static fm_draw crop_draw(fm_op_kind kind, fm_box crop) {
    return (fm_draw){.kind = kind,
                     .top = crop.top,
                     .left = crop.left,
                     .height = crop.height,
                     .width = crop.width};
}

/* Applies one op and says what it did. */
static int apply(chain_state *chain, const fm_op *op, fm_rng *rng, fm_draw *draw, fm_error *error) {
    const int32_t width = chain->form.window.width, height = chain->form.window.height;
    fm_box crop;
    double new_width, new_height;
    switch (op->kind) {
    case FM_OP_RESIZE:
        resized_size(op, width, height, &new_width, &new_height);
        if (new_width > INT32_MAX || new_height > INT32_MAX)
            return fm_error_set(error, FM_ERR_LIMIT,
                                "resizing an image of %d x %d pixels to a shorter edge of %d would "
                                "give a side of over 2^31 pixels",
                                (int)width, (int)height, (int)op->height);
        *draw = crop_draw(op->kind, whole((int32_t)new_width, (int32_t)new_height));
        take_resize(chain, new_width, new_height);
        return FM_OK;
    case FM_OP_CENTER_CROP:
        crop = center_crop(op, width, height);
        *draw = crop_draw(op->kind, crop);
        take_crop(chain, crop);
        return FM_OK;
    case FM_OP_RANDOM_RESIZED_CROP:
        crop = random_crop(op, rng, width, height);
        *draw = crop_draw(op->kind, crop);
        take_crop(chain, crop);
        take_resize(chain, op->width, op->height);
        return FM_OK;
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
        /* torch compares in float32. */
        *draw = (fm_draw){.kind = op->kind, .flip = fm_rng_f32(rng) < (float)op->p};
        chain->form.flip ^= draw->flip;
        return FM_OK;
    }
    return fm_error_set(error, FM_ERR_ARGUMENT, "unknown kind of op: %d", (int)op->kind);
}

/* Runs all ops; chain->no_form tells whether the form holds. */
static int run(chain_state *chain, const fm_op *ops, size_t n_ops, const fm_draw_key *key,
               int32_t width, int32_t height, fm_draw *draws, fm_error *error) {
    if (width < 1 || width > FM_MAX_SIDE || height < 1 || height > FM_MAX_SIDE)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "image of %d x %d pixels; allowed are 1 to 65,535 a side", (int)width,
                            (int)height);
    chain->form = (fm_geometry){.source = whole(width, height),
                                .resized_width = width,
                                .resized_height = height,
                                .window = whole(width, height)};
    for (size_t i = 0; i < n_ops; i++) {
        fm_rng rng = fm_rng_init(key, (uint32_t)i);
        fm_draw draw;
        const int status = apply(chain, &ops[i], &rng, &draw, error);
        if (status) return status;
        if (draws) draws[i] = draw;
    }
    return FM_OK;
}

int fm_geometry_locate(const fm_op *ops, size_t n_ops, const fm_draw_key *key, int32_t width,
                       int32_t height, fm_geometry *out, fm_draw *draws, fm_error *error) {
    chain_state chain = {0};
    const int status = run(&chain, ops, n_ops, key, width, height, draws, error);
    if (status) return status;
    if (chain.no_form)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "an image of %d x %d pixels comes to %s, which is not done natively",
                            (int)width, (int)height, chain.no_form);
    *out = chain.form;
    return FM_OK;
}

int fm_geometry_draw(const fm_op *ops, size_t n_ops, const fm_draw_key *key, int32_t width,
                     int32_t height, fm_draw *draws, fm_error *error) {
    chain_state chain = {0};
    return run(&chain, ops, n_ops, key, width, height, draws, error);
}
