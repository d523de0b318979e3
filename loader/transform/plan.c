#define _GNU_SOURCE
#include "transform/plan.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "transform/draws.h"
#include "transform/draws_timm.h"
#include "transform/half.h"
#include "transform/op_check.h"

/* Whether an op that may pad does so with zeros. */
static bool pads_zeros(const fm_op *op) {
    return op->values[4] == 0 && op->values[6] == 0 && op->values[7] == 0 && op->values[8] == 0;
}

static bool pads(const fm_op *op) {
    if (op->kind != FM_OP_RANDOM_CROP && op->kind != FM_OP_PAD) return false;
    return op->values[0] + op->values[1] + op->values[2] + op->values[3] + op->values[5] != 0;
}

/*
 * How many ops, from the first on, one resample can apply. It can't pad after a crop that follows a
 * resize, as it would use the pixels beyond the crop's edges, nor resize after padding, nor resize
 * several times.
 */
static size_t count_front(const fm_op *ops, size_t n_ops) {
    bool resized = false, cropped = false, padded = false;
    size_t i;
    for (i = 0; i < n_ops; i++) {
        const fm_op *const op = &ops[i];
        if (!fm_op_changes_size(op) && op->kind != FM_OP_RANDOM_HORIZONTAL_FLIP) break;
        if (op->kind == FM_OP_HALVING_CENTER_CROP) break;
        if (op->kind == FM_OP_CENTER_CROP && !pads_zeros(op)) break;
        if (pads(op) && (!pads_zeros(op) || (resized && cropped))) break;
        if (fm_op_resizes(op) && (padded || resized)) break;
        resized = resized || fm_op_resizes(op);
        cropped = cropped || (resized && !fm_op_resizes(op) && fm_op_changes_size(op));
        padded = padded || pads(op);
    }
    return i;
}

static int add_lighting(fm_plan *plan, const fm_transform *transform, size_t i, fm_error *error) {
    const bool erases_next =
        i + 2 == transform->n_ops && transform->ops[i + 1].kind == FM_OP_RANDOM_ERASING;
    if (i + 1 < transform->n_ops && !erases_next)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (Lighting) must be the last of %zu ops, but for RandomErasing",
                            i, transform->n_ops);
    if (plan->channels != 3 || plan->dtype != FM_FLOAT32)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (Lighting) gets images of %d channels, and dtype is %d; it "
                            "needs 3, and %d (float32)",
                            i, (int)plan->channels, (int)plan->dtype, FM_FLOAT32);
    plan->lights = true;
    return FM_OK;
}

/* Checks one op by itself and together with the ops before it, and updates the plan. */
static int add_op(fm_plan *plan, const fm_transform *transform, size_t i, fm_error *error) {
    const fm_op *const op = &transform->ops[i];
    const int status = fm_op_check(i, transform->ops, transform->n_ops, error);
    if (status) return status;
    if (op->kind == FM_OP_RANDOM_ERASING && i + 1 < transform->n_ops)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomErasing) must be the last of %zu ops", i,
                            transform->n_ops);
    if (op->kind == FM_OP_RANDOM_ERASING && op->values[3] != 0 && plan->dtype == FM_UINT8)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomErasing) writes random numbers, which uint8 can't hold; "
                            "use a floating-point dtype",
                            i);
    if (op->kind == FM_OP_LIGHTING) {
        const int lit = add_lighting(plan, transform, i, error);
        if (lit) return lit;
    }
    if (op->kind == FM_OP_GRAYSCALE) plan->channels = op->values[0] == 1 ? 1 : 3;
    if (op->kind == FM_OP_RANDOM_BLUR || fm_draws_is_timm(op)) {
        plan->blurs = plan->blurs || !fm_draws_is_timm(op) || fm_draws_timm_blurs(op);
        if (plan->channels != 3)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (%s) gets images of one channel; it needs three", i,
                                fm_op_kind_name(op->kind));
    }
    if (fm_op_resizes(op)) {
        plan->resizes_late = plan->resizes_late || i >= plan->n_front;
        if (plan->n_resizes++ == 0) {
            plan->filter = op->filter;
            plan->second_filter = fm_op_second_filter(op);
        }
    }
    return FM_OK;
}

/* Updates the image's size for one op; 0: the size depends on the image. */
static void update_size(const fm_op *op, int32_t *width, int32_t *height) {
    if (op->kind == FM_OP_PAD) {
        if (*width == 0) return;
        *width += (int32_t)(op->values[0] + op->values[2]);
        *height += (int32_t)(op->values[1] + op->values[3]);
    } else if (op->kind == FM_OP_RESIZE_KEEP_RATIO) {
        *width = *height = 0;
    } else if (fm_op_changes_size(op)) {
        *width = op->width;
        *height = op->width ? op->height : 0;
    }
}

/* The first op that is applied to an image in memory. Of arrays, ops that only crop, pad and flip
 * are applied one by one like the others, from the first on. */
static size_t first_in_memory(const fm_plan *plan) {
    if (plan->in_width == 0) return plan->n_front;
    for (size_t i = 0; i < plan->n_front; i++)
        if (fm_op_resizes(&plan->ops[i])) return plan->n_front;
    return 0;
}

static void note_image(fm_plan *plan, int32_t width, int32_t height) {
    const uint64_t n_px = width ? (uint64_t)width * (uint64_t)height : FM_PLAN_MAX_PX;
    plan->most_px = n_px > plan->most_px ? n_px : plan->most_px;
}

static int size_after(fm_plan *plan, size_t i, int32_t *width, int32_t *height, fm_error *error);

/* size_after() for an op that holds ops. The size is known if it is the same whatever is drawn. */
static int size_after_children(fm_plan *plan, size_t i, int32_t *width, int32_t *height,
                               fm_error *error) {
    const fm_op *const op = &plan->ops[i];
    const int32_t in_width = *width, in_height = *height;
    int32_t child_width = in_width, child_height = in_height;
    bool is_known = true;
    size_t child = i + 1;
    for (int32_t k = 0; k < op->n_children; k++, child += 1 + (size_t)plan->ops[child].n_within) {
        const int32_t before_width = child_width, before_height = child_height;
        if (op->kind != FM_OP_RANDOM_APPLY) {
            child_width = in_width;
            child_height = in_height;
        }
        const int status = size_after(plan, child, &child_width, &child_height, error);
        if (status) return status;
        const bool is_compared =
            op->kind == FM_OP_RANDOM_ORDER || (op->kind == FM_OP_RANDOM_CHOICE && k > 0);
        if (is_compared && (child_width != before_width || child_height != before_height))
            is_known = false;
    }
    const bool is_optional = op->kind == FM_OP_RANDOM_APPLY && op->values[0] == 0;
    if (is_optional && (child_width != in_width || child_height != in_height)) is_known = false;
    *width = is_known ? child_width : 0;
    *height = is_known ? child_height : 0;
    return FM_OK;
}

/* Replaces the size of the image that op i gets by that of its result, as far as it does not depend
 * on the image, and notes how large images in memory are. */
static int size_after(fm_plan *plan, size_t i, int32_t *width, int32_t *height, fm_error *error) {
    const fm_op *const op = &plan->ops[i];
    if (i >= first_in_memory(plan)) note_image(plan, *width, *height);
    if (fm_op_holds_ops(op)) {
        const int status = size_after_children(plan, i, width, height, error);
        if (status) return status;
    } else {
        update_size(op, width, height);
    }
    if (*width > FM_MAX_SIDE || *height > FM_MAX_SIDE)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s) gives %d x %d pixels; at most %d a side are allowed", i,
                            fm_op_kind_name(op->kind), (int)*width, (int)*height, FM_MAX_SIDE);
    return FM_OK;
}

/* Works out the sizes of images between ops, as far as they do not depend on the image. */
static int compute_sizes(fm_plan *plan, fm_error *error) {
    int32_t width = plan->in_width, height = plan->in_height;
    for (size_t i = 0;; i += 1 + (size_t)plan->ops[i].n_within) {
        if (i == plan->n_front) {
            plan->front_width = width;
            plan->front_height = height;
        }
        if (i == plan->n_ops) break;
        const int status = size_after(plan, i, &width, &height, error);
        if (status) return status;
    }
    if (plan->n_ops >= first_in_memory(plan)) note_image(plan, width, height);
    plan->out_width = width;
    plan->out_height = height;
    return FM_OK;
}

/* Sets the error for a result whose size depends on the image. */
static int refuse_sizes(const fm_plan *plan, fm_error *error) {
    const fm_op *last = NULL;
    for (size_t i = 0; i < plan->n_ops; i++)
        if (fm_op_changes_size(&plan->ops[i]) && plan->ops[i].kind != FM_OP_PAD)
            last = &plan->ops[i];
    if (last && last->kind != FM_OP_RESIZE_KEEP_RATIO && last->width)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s) is applied to some images only, or after ops in a random "
                            "order, so that the result's size depends on what is drawn; add a "
                            "Resize or a crop to a fixed size after it",
                            (size_t)(last - plan->ops), fm_op_kind_name(last->kind));
    if (!last)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "no op gives all images one size; add a CenterCrop, a "
                            "RandomResizedCrop or a Resize to a height and a width");
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (Resize): width is 0, so that the result's size depends on the "
                        "image; give 1 to %d, or add a CenterCrop after it",
                        (size_t)(last - plan->ops), FM_MAX_SIDE);
}

/* Checks the ops, one by one and together, and works out the size of the result. */
static int add_ops(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    if (transform->n_ops > FM_MAX_OPS)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%zu ops; at most %d are allowed",
                            transform->n_ops, FM_MAX_OPS);
    if (transform->n_ops && !transform->ops)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%zu ops, but ops is NULL", transform->n_ops);
    plan->channels = plan->in_channels;
    plan->n_front = count_front(transform->ops, transform->n_ops);
    for (size_t i = 0; i < transform->n_ops; i++) {
        const int status = add_op(plan, transform, i, error);
        if (status) return status;
        plan->ops[i] = transform->ops[i];
    }
    plan->n_ops = transform->n_ops;
    plan->erases = plan->n_ops && plan->ops[plan->n_ops - 1].kind == FM_OP_RANDOM_ERASING;
    if (plan->erases) plan->ops[plan->n_ops - 1].values[FM_DRAWS_CHANNELS] = plan->channels;
    plan->augments = plan->n_front + plan->erases < plan->n_ops;
    const int status = compute_sizes(plan, error);
    if (status) return status;
    return plan->out_width ? FM_OK : refuse_sizes(plan, error);
}

/* Checks the size and channels that the caller gives for all input images. */
static int check_in(const fm_transform *transform, fm_error *error) {
    const int32_t height = transform->in_height, width = transform->in_width;
    if ((height || width) &&
        (height < 1 || height > FM_MAX_SIDE || width < 1 || width > FM_MAX_SIDE))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "in_height x in_width are %d x %d; allowed are 1 to %d, or 0 for both",
                            (int)height, (int)width, FM_MAX_SIDE);
    const int32_t channels = transform->in_channels;
    if (channels == 0 || channels == 1 || channels == 3) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "in_channels is %d; allowed are 1, 3 and 0 for 3",
                        (int)channels);
}

static size_t value_bytes(fm_dtype dtype) {
    return dtype == FM_UINT8 ? 1 : dtype == FM_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
}

static void copy_table(fm_plan *plan, const void *values) {
    const size_t n_bytes = value_bytes(plan->dtype);
    for (size_t i = 0; i < 3 * 256; i++) {
        const uint8_t *const value = (const uint8_t *)values + i * n_bytes;
        uint16_t half;
        if (plan->dtype == FM_FLOAT32) {
            memcpy(&plan->table[i / 256][i % 256], value, n_bytes);
        } else {
            memcpy(&half, value, n_bytes);
            plan->bits[i / 256][i % 256] = half;
        }
    }
}

static void set_value(fm_plan *plan, int channel, int i, float value) {
    if (plan->dtype == FM_FLOAT32)
        plan->table[channel][i] = value;
    else
        plan->bits[channel][i] =
            plan->dtype == FM_FLOAT16 ? fm_float16_bits(value) : fm_bfloat16_bits(value);
}

/* Sets what the resize of floats needs. */
static int init_float_resize(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    const fm_float_resize *const resize = &transform->float_resize;
    if (transform->resize_order != FM_RESIZE_TORCH_FLOAT) return FM_OK;
    if (plan->n_resizes > 1)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "resize_order %d, and %d ops that resize; at most one may",
                            FM_RESIZE_TORCH_FLOAT, (int)plan->n_resizes);
    if (plan->filter != FM_FILTER_BILINEAR || plan->second_filter != FM_FILTER_BILINEAR)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "resize_order %d needs the filter bilinear, %d; it is %d",
                            FM_RESIZE_TORCH_FLOAT, FM_FILTER_BILINEAR, (int)plan->filter);
    if (resize->run_taps < 0 || resize->run_taps > 64)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "float_resize.run_taps is %d; allowed are 0 to 64",
                            (int)resize->run_taps);
    plan->resizes_floats = true;
    plan->run_taps = resize->run_taps;
    plan->keeps_floats = resize->values;
    for (int i = 0; i < 3 * 256; i++)
        plan->resized_values[i / 256][i % 256] =
            resize->values ? resize->values[i] : (float)(i % 256);
    plan->resizes_bytes = plan->resizes_shares = true;
    for (int i = 0; i < 3 * 256; i++) {
        const float value = plan->resized_values[i / 256][i % 256], byte = (float)(i % 256);
        plan->resizes_bytes = plan->resizes_bytes && value == byte;
        plan->resizes_shares = plan->resizes_shares && value == byte / 255.0f;
    }
    if (!resize->values) return FM_OK;
    if (plan->dtype != FM_FLOAT32 || plan->augments || transform->value_table)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "float_resize.values needs dtype %d (float32), no value_table, and ops "
                            "that are geometric, but for RandomErasing",
                            FM_FLOAT32);
    memcpy(plan->mean, transform->mean, sizeof(plan->mean));
    memcpy(plan->std, transform->std, sizeof(plan->std));
    return FM_OK;
}

/* In torchvision's float32 steps: ToTensor divides by 255, Normalize subtracts and divides. */
static int fill_table(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    if (transform->value_table) {
        copy_table(plan, transform->value_table);
        return FM_OK;
    }
    for (int channel = 0; channel < 3; channel++) {
        const float mean = transform->mean[channel], std = transform->std[channel];
        if (!isfinite(mean) || !isfinite(std) || std == 0)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "channel %d: mean is %g and std is %g; both must be finite, and "
                                "std not 0",
                                channel, (double)mean, (double)std);
        for (int value = 0; value < 256; value++) {
            /* With keeps_floats, for what is not resized. */
            const float scaled =
                plan->keeps_floats ? plan->resized_values[channel][value] : (float)value / 255.0f;
            set_value(plan, channel, value, (scaled - mean) / std);
        }
    }
    return FM_OK;
}

int fm_plan_init(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    *plan = (fm_plan){.dtype = transform->dtype,
                      .layout = transform->layout,
                      .in_channels = transform->in_channels ? transform->in_channels : 3,
                      .in_width = transform->in_width,
                      .in_height = transform->in_height,
                      .resize_order = transform->resize_order};
    if ((int)transform->dtype < FM_UINT8 || transform->dtype > FM_BFLOAT16)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "dtype is %d; allowed are %d (uint8), %d (float32), %d (float16) and "
                            "%d (bfloat16)",
                            (int)transform->dtype, FM_UINT8, FM_FLOAT32, FM_FLOAT16, FM_BFLOAT16);
    if (transform->layout != FM_NCHW && transform->layout != FM_NHWC)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "layout is %d; allowed are %d (NCHW) and %d (NHWC)",
                            (int)transform->layout, FM_NCHW, FM_NHWC);
    if ((int)transform->resize_order < FM_RESIZE_HORIZONTAL_FIRST ||
        transform->resize_order > FM_RESIZE_TORCH_FLOAT)
        return fm_error_set(error, FM_ERR_ARGUMENT, "resize_order is %d; allowed are %d to %d",
                            (int)transform->resize_order, FM_RESIZE_HORIZONTAL_FIRST,
                            FM_RESIZE_TORCH_FLOAT);
    int status = check_in(transform, error);
    if (!status) status = add_ops(plan, transform, error);
    if (!status) status = init_float_resize(plan, transform, error);
    if (!status && plan->dtype != FM_UINT8) status = fill_table(plan, transform, error);
    if (status) return status;
    plan->sample_bytes = (size_t)plan->channels * (size_t)plan->out_height *
                         (size_t)plan->out_width * value_bytes(plan->dtype);
    return FM_OK;
}
