#define _GNU_SOURCE
#include "transform/geometry.h"

#include <math.h>

#include "base/number.h"
#include "base/rng.h"
#include "transform/draws.h"
#include "transform/draws_python.h"
#include "transform/op_check.h"

/* Limit of a resized side, of which paddings after it must not make more than 2^31 pixels. */
#define MOST_RESIZED (1 << 30)

/* ---- torchvision's crops --------------------------------------------------------------------- */

/* RandomResizedCrop.get_params after ten failed attempts: a central crop with the nearest ratio. */
static fm_box central_crop(const fm_op *op, int32_t width, int32_t height) {
    const double lowest = op->ratio[0], highest = op->ratio[1];
    const double ratio = (double)width / (double)height;
    int32_t crop_width = width, crop_height = height;
    /* Neither rounding exceeds the image's side. */
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

/* timm's, with streams: it draws from Python's generator. */
static fm_box random_crop_of_timm(const fm_op *op, fm_mt19937 *generator, int32_t width,
                                  int32_t height) {
    fm_box crop;
    return fm_draws_python_crop(op, generator, width, height, &crop)
               ? crop
               : central_crop(op, width, height);
}

/* EfficientNet's central crop: a square, around which a margin of 32 pixels of the result is left
 * out. The steps are those of ResNeSt's ECenterCrop and of Pillow's crop(). */
static fm_box efficient_center(const fm_op *op, int32_t width, int32_t height) {
    const double side = (double)op->height / (op->height + 32) * fm_min_i32(width, height);
    const double top = nearbyint((height - side) / 2), left = nearbyint((width - side) / 2);
    return (fm_box){.left = (int32_t)left,
                    .top = (int32_t)top,
                    .width = (int32_t)(nearbyint(left + side) - left),
                    .height = (int32_t)(nearbyint(top + side) - top)};
}

static fm_box efficient_crop(const fm_op *op, fm_rng *rng, int32_t width, int32_t height) {
    fm_box crop;
    const bool is_drawn =
        op->values[0] == 3 && fm_draws_efficient_crop(op, rng, width, height, &crop);
    return is_drawn ? crop : efficient_center(op, width, height);
}

/* RandomResizedCrop.get_params, with the same steps in float32 and float64. timm's also accepts a
 * crop without pixels. MAE's does, too, and limits the first crop to the image. */
static fm_box random_crop(const fm_op *op, fm_rng *rng, int32_t width, int32_t height) {
    if (rng->key.streams && op->values[0] == 1)
        return random_crop_of_timm(op, &rng->key.streams->python, width, height);
    if (op->values[0] >= 3) return efficient_crop(op, rng, width, height);
    const double area = (double)height * (double)width;
    const float log_low = (float)fm_draws_log((float)op->ratio[0]);
    const float log_high = (float)fm_draws_log((float)op->ratio[1]);
    const double least = op->values[0] != 0 ? 0 : 1;
    for (int attempt = 0; attempt < 10; attempt++) {
        const float share = fm_draws_uniform(rng, (float)op->scale[0], (float)op->scale[1]);
        const double target = area * (double)share;
        const float log_ratio = fm_draws_uniform(rng, log_low, log_high);
        const double ratio = (double)(float)fm_draws_exp(log_ratio);
        /* nearbyint() rounds halves to even, as Python's round() does. */
        double crop_width = nearbyint(sqrt(target * ratio));
        double crop_height = nearbyint(sqrt(target / ratio));
        if (op->values[0] == 2) {
            crop_width = fmin(crop_width, width);
            crop_height = fmin(crop_height, height);
        }
        if (crop_width >= least && crop_width <= width && crop_height >= least &&
            crop_height <= height) {
            fm_box crop = {.width = (int32_t)crop_width, .height = (int32_t)crop_height};
            crop.top = (int32_t)fm_rng_below(rng, (uint32_t)(height - crop.height) + 1);
            crop.left = (int32_t)fm_rng_below(rng, (uint32_t)(width - crop.width) + 1);
            return crop;
        }
    }
    return central_crop(op, width, height);
}

/* One axis of center_crop: the first pixel; negative if the image is padded. */
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

/* Whether RandomCrop draws where the crop begins: v2 draws along an axis if there is a choice, v1
 * along both if there is one in either. Without streams the numbers don't follow each other. */
static bool crop_is_drawn(const fm_op *op, const fm_rng *rng, int64_t here, int64_t other) {
    return !rng->key.streams || here > 0 || (!op->is_v2 && other > 0);
}

/*
 * RandomCrop: returns the box in coordinates of the image before padding, empty if the image is too
 * small. *draw gets it in those of the padded image, as in torchvision.
 */
static fm_box fixed_size_crop(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                              fm_draw *draw) {
    int64_t left = (int64_t)op->values[0], top = (int64_t)op->values[1];
    int64_t padded_width = left + width + (int64_t)op->values[2];
    int64_t padded_height = top + height + (int64_t)op->values[3];
    if (op->values[5] != 0 && padded_width < op->width) {
        left += op->width - padded_width;
        padded_width += 2 * (op->width - padded_width);
    }
    if (op->values[5] != 0 && padded_height < op->height) {
        top += op->height - padded_height;
        padded_height += 2 * (op->height - padded_height);
    }
    if (padded_width < op->width || padded_height < op->height) return (fm_box){0};
    const int64_t more_rows = padded_height - op->height, more_columns = padded_width - op->width;
    if (crop_is_drawn(op, rng, more_rows, more_columns))
        draw->top = (int32_t)fm_rng_below(rng, (uint32_t)more_rows + 1);
    if (crop_is_drawn(op, rng, more_columns, more_rows))
        draw->left = (int32_t)fm_rng_below(rng, (uint32_t)more_columns + 1);
    draw->height = op->height;
    draw->width = op->width;
    return (fm_box){.left = draw->left - (int32_t)left,
                    .top = draw->top - (int32_t)top,
                    .width = op->width,
                    .height = op->height};
}

/* _compute_resized_output_size. The longer edge may exceed any limit, and either edge may be 0. */
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

/* timm's ResizeKeepRatio: the edges are scaled alike, unless another aspect ratio is drawn. */
static void draw_kept_ratio(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                            double *new_width, double *new_height) {
    const double *const v = op->values;
    const double of_height = (double)height / op->height, of_width = (double)width / op->width;
    const double ratio =
        fmax(of_height, of_width) * v[0] + fmin(of_height, of_width) * (1.0 - v[0]);
    double factor_y = 1, factor_x = 1;
    if (rng->key.streams) {
        fm_draws_python_factors(op, &rng->key.streams->python, &factor_x, &factor_y);
        *new_height = nearbyint(height * factor_y / ratio);
        *new_width = nearbyint(width * factor_x / ratio);
        return;
    }
    if (v[2] > 0 && fm_rng_f32(rng) < (float)v[2]) {
        const double factor = fm_draws_uniform(rng, (float)v[3], (float)v[4]);
        factor_y = factor_x = v[5] != 0 ? 1 / sqrt(factor) : factor;
    }
    if (v[6] > 0 && fm_rng_f32(rng) < (float)v[6]) {
        const float low = (float)fm_draws_log(v[7]), high = (float)fm_draws_log(v[8]);
        const double factor = sqrt(fm_draws_exp(fm_draws_uniform(rng, low, high)));
        factor_y /= factor;
        factor_x *= factor;
    }
    *new_height = nearbyint(height * factor_y / ratio);
    *new_width = nearbyint(width * factor_x / ratio);
}

bool fm_geometry_halves(const fm_op *op, int32_t width, int32_t height) {
    return fm_min_i32(width, height) / 2 >= op->height;
}

/* ---- reducing a chain of ops to one form ----------------------------------------------------- */

/*
 * The ops so far, reduced. The next op's input is `form.window` of the resized source, mirrored if
 * form.flip; its size is the window's size.
 */
typedef struct chain_state {
    fm_geometry form;
    bool resized;
    const char *unsupported; /* why the ops can't be reduced for this image, or NULL */
} chain_state;

static fm_box whole(int32_t width, int32_t height) {
    return (fm_box){.width = width, .height = height};
}

/* The intersection of two boxes; 0 x 0 if it is empty. */
static fm_box intersect(fm_box a, fm_box b) {
    const int32_t left = fm_max_i32(a.left, b.left), top = fm_max_i32(a.top, b.top);
    const int32_t right = fm_min_i32(a.left + a.width, b.left + b.width);
    const int32_t bottom = fm_min_i32(a.top + a.height, b.top + b.height);
    if (right <= left || bottom <= top) return (fm_box){0};
    return (fm_box){.left = left, .top = top, .width = right - left, .height = bottom - top};
}

static bool same(fm_box a, fm_box b) {
    return a.left == b.left && a.top == b.top && a.width == b.width && a.height == b.height;
}

/* Before any resize: reduces the source to the part inside the window, as later padding must not
 * show pixels outside of it. */
static void narrow_source(fm_geometry *form) {
    const fm_box seen = intersect(form->window, whole(form->source.width, form->source.height));
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

/* Adds a crop, in coordinates of the op's input. */
static void add_crop(chain_state *chain, fm_box crop) {
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
    /* Padding must not show pixels that an earlier crop has removed. */
    const fm_box shown = intersect(form->window, whole(form->resized_width, form->resized_height));
    if (!same(shown, intersect(shown, before)))
        chain->unsupported = "padding around a crop after a resize";
}

static void add_resize(chain_state *chain, double width, double height) {
    fm_geometry *const form = &chain->form;
    if (!same(form->window, whole(form->source.width, form->source.height)))
        chain->unsupported = "padding before a resize";
    if (form->window.width == 0 || form->window.height == 0 || width < 1 || height < 1)
        chain->unsupported = "a side without pixels";
    if (width > FM_MAX_SIDE || height > FM_MAX_SIDE)
        chain->unsupported = "a side over 65,535 pixels";
    form->mirror_source = form->flip;
    form->flip = false;
    form->resized_width = (int32_t)width;
    form->resized_height = (int32_t)height;
    form->window = whole(form->resized_width, form->resized_height);
    chain->resized = true;
}

/* Records the box of a crop or the size of a resize. */
static void set_box(fm_draw *draw, fm_box crop) {
    draw->top = crop.top;
    draw->left = crop.left;
    draw->height = crop.height;
    draw->width = crop.width;
}

/* Draws which of two filters a resize uses. Returns whether it is the second one. */
static bool draw_filter(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    const fm_filter second = fm_op_second_filter(op);
    const bool is_listed = rng->key.streams && op->kind != FM_OP_RESIZE;
    const bool is_drawn =
        is_listed && fm_draws_python_filter(&rng->key.streams->python, fm_op_n_filters(op));
    if (second == op->filter) return false;
    const bool is_second = is_listed ? is_drawn : fm_rng_below(rng, 2) != 0;
    draw->values[0] = is_second ? second : op->filter;
    draw->n_values = 1;
    return is_second;
}

static int apply_resize(chain_state *chain, const fm_op *op, fm_rng *rng, fm_draw *draw,
                        fm_error *error) {
    const int32_t width = chain->form.window.width, height = chain->form.window.height;
    double new_width, new_height;
    if (op->kind == FM_OP_RESIZE_KEEP_RATIO)
        draw_kept_ratio(op, rng, width, height, &new_width, &new_height);
    else
        resized_size(op, width, height, &new_width, &new_height);
    if (new_width > MOST_RESIZED || new_height > MOST_RESIZED)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "resizing an image of %d x %d pixels to a shorter edge of %d would "
                            "give a side of over 2^30 pixels",
                            (int)width, (int)height, (int)op->height);
    set_box(draw, whole((int32_t)new_width, (int32_t)new_height));
    add_resize(chain, new_width, new_height);
    chain->form.second_filter = draw_filter(op, rng, draw);
    return FM_OK;
}

/* Its draw has the crop's box in the resized image, and as values that image's width and height. */
static void apply_halving_crop(chain_state *chain, const fm_op *op, fm_draw *draw) {
    int32_t width = chain->form.window.width, height = chain->form.window.height;
    const int32_t size = op->height;
    while (fm_geometry_halves(op, width, height)) {
        width /= 2;
        height /= 2;
    }
    /* In Python's steps; round() rounds halves to even. */
    const double scale = (double)size / (double)fm_min_i32(width, height);
    const double new_width = nearbyint(width * scale), new_height = nearbyint(height * scale);
    add_resize(chain, size, size);
    if (new_width > FM_MAX_SIDE || new_height > FM_MAX_SIDE) {
        chain->unsupported = "a side over 65,535 pixels";
        return;
    }
    set_box(draw, (fm_box){.left = ((int32_t)new_width - size) / 2,
                           .top = ((int32_t)new_height - size) / 2,
                           .width = size,
                           .height = size});
    draw->values[0] = new_width;
    draw->values[1] = new_height;
    draw->n_values = 2;
}

static void apply_random_crop(chain_state *chain, const fm_op *op, fm_rng *rng, fm_draw *draw) {
    const fm_box crop =
        fixed_size_crop(op, rng, chain->form.window.width, chain->form.window.height, draw);
    if (crop.width) {
        add_crop(chain, crop);
        return;
    }
    chain->unsupported = "a crop larger than the image";
    chain->form.window.width = op->width;
    chain->form.window.height = op->height;
}

static void apply_pad(chain_state *chain, const fm_op *op) {
    const double *const padding = op->values;
    add_crop(
        chain,
        (fm_box){.left = -(int32_t)padding[0],
                 .top = -(int32_t)padding[1],
                 .width = chain->form.window.width + (int32_t)padding[0] + (int32_t)padding[2],
                 .height = chain->form.window.height + (int32_t)padding[1] + (int32_t)padding[3]});
    if (chain->form.window.width > FM_MAX_SIDE || chain->form.window.height > FM_MAX_SIDE)
        chain->unsupported = "a side over 65,535 pixels";
}

/* Adds one op to the chain and samples its parameters. Only geometric ops change chain->form. */
static int apply(chain_state *chain, const fm_op *op, fm_rng *rng, fm_draw *draw, fm_error *error) {
    const int32_t width = chain->form.window.width, height = chain->form.window.height;
    *draw = (fm_draw){.kind = op->kind};
    fm_box crop;
    switch (op->kind) {
    case FM_OP_RESIZE:
    case FM_OP_RESIZE_KEEP_RATIO:
        return apply_resize(chain, op, rng, draw, error);
    case FM_OP_CENTER_CROP:
        crop = center_crop(op, width, height);
        set_box(draw, crop);
        add_crop(chain, crop);
        return FM_OK;
    case FM_OP_RANDOM_RESIZED_CROP:
        crop = random_crop(op, rng, width, height);
        set_box(draw, crop);
        add_crop(chain, crop);
        add_resize(chain, op->width, op->height);
        chain->form.second_filter = draw_filter(op, rng, draw);
        return FM_OK;
    case FM_OP_HALVING_CENTER_CROP:
        apply_halving_crop(chain, op, draw);
        return FM_OK;
    case FM_OP_RANDOM_CROP:
        apply_random_crop(chain, op, rng, draw);
        return FM_OK;
    case FM_OP_PAD:
        apply_pad(chain, op);
        return FM_OK;
    default:
        fm_draws_make(op, rng, width, height, draw);
        if (op->kind == FM_OP_RANDOM_HORIZONTAL_FLIP) chain->form.flip ^= draw->flip;
        return FM_OK;
    }
}

/* Marks the ops within op i that its sampled parameters skip. */
static void mark_skipped(const fm_op *ops, size_t i, const fm_draw *draw, bool *skipped) {
    const size_t n_within = (size_t)ops[i].n_within;
    size_t child = i + 1, number = 0;
    for (size_t k = i + 1; k <= i + n_within; k++) {
        const size_t after_child = child + 1 + (size_t)ops[child].n_within;
        if (k == after_child) {
            child = k;
            number++;
        }
        const bool other = ops[i].kind == FM_OP_RANDOM_CHOICE && number != (size_t)draw->values[0];
        const bool none = ops[i].kind == FM_OP_RANDOM_APPLY && !draw->flip;
        skipped[k] = skipped[i] || other || none;
    }
}

/* Puts the ops within the RandomOrder op i in the order in which they are applied, and therefore
 * drawn. next[n_within]: their numbers, i + 1 and on. */
static void put_in_order(const fm_op *ops, size_t i, const fm_draw *draw, uint8_t *next) {
    size_t first[FM_MAX_CHILDREN], child = i + 1, n = 0;
    for (int32_t k = 0; k < draw->n_values; k++, child += 1 + (size_t)ops[child].n_within)
        first[k] = child;
    for (int32_t k = 0; k < draw->n_values; k++) {
        const size_t drawn = first[(size_t)draw->values[k]];
        for (size_t j = 0; j <= (size_t)ops[drawn].n_within; j++) next[n++] = (uint8_t)(drawn + j);
    }
}

static fm_geometry identity(int32_t width, int32_t height) {
    return (fm_geometry){.source = whole(width, height),
                         .resized_width = width,
                         .resized_height = height,
                         .window = whole(width, height)};
}

/*
 * Adds the first n_reduced ops to *chain. Of the ops after them, only the parameters are sampled
 * and the sizes worked out.
 */
static int run(chain_state *chain, const fm_op *ops, size_t n_ops, size_t n_reduced,
               const fm_draw_key *key, int32_t width, int32_t height, fm_draw *draws,
               fm_error *error) {
    if (width < 1 || width > FM_MAX_SIDE || height < 1 || height > FM_MAX_SIDE)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "image of %d x %d pixels; allowed are 1 to 65,535 per side", (int)width,
                            (int)height);
    chain->form = identity(width, height);
    chain_state after = {0};
    bool skipped[FM_MAX_OPS] = {false};
    uint8_t order[FM_MAX_OPS];
    for (size_t k = 0; k < n_ops; k++) order[k] = (uint8_t)k;
    for (size_t k = 0; k < (draws ? n_ops : n_reduced); k++) {
        const size_t i = order[k];
        fm_rng rng = fm_rng_init(key, (uint32_t)i);
        fm_draw draw = {.kind = ops[i].kind};
        if (i == n_reduced)
            after.form = identity(chain->form.window.width, chain->form.window.height);
        int status = FM_OK;
        if (!skipped[i])
            status = apply(i < n_reduced ? chain : &after, &ops[i], &rng, &draw, error);
        if (status) return status;
        if (ops[i].n_within) mark_skipped(ops, i, &draw, skipped);
        if (ops[i].kind == FM_OP_RANDOM_ORDER && !skipped[i])
            put_in_order(ops, i, &draw, order + k + 1);
        if (i >= n_reduced)
            after = (chain_state){identity(after.form.window.width, after.form.window.height),
                                  .unsupported = after.unsupported};
        if (draws) draws[i] = draw;
    }
    if (after.unsupported) chain->unsupported = after.unsupported;
    return FM_OK;
}

int fm_geometry_locate(const fm_op *ops, size_t n_ops, size_t n_reduced, const fm_draw_key *key,
                       int32_t width, int32_t height, fm_geometry *out, fm_draw *draws,
                       fm_error *error) {
    chain_state chain = {0};
    const int status = run(&chain, ops, n_ops, n_reduced, key, width, height, draws, error);
    if (status) return status;
    if (chain.unsupported)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "an image of %d x %d pixels needs %s, which is not supported natively",
                            (int)width, (int)height, chain.unsupported);
    *out = chain.form;
    return FM_OK;
}

int fm_geometry_draw(const fm_op *ops, size_t n_ops, const fm_draw_key *key, int32_t width,
                     int32_t height, fm_draw *draws, fm_error *error) {
    chain_state chain = {0};
    return run(&chain, ops, n_ops, 0, key, width, height, draws, error);
}
