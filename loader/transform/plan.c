#define _GNU_SOURCE
#include "transform/plan.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "transform/half.h"

static const char *kind_name(fm_op_kind kind) {
    switch (kind) {
    case FM_OP_RESIZE:
        return "Resize";
    case FM_OP_CENTER_CROP:
        return "CenterCrop";
    case FM_OP_RANDOM_RESIZED_CROP:
        return "RandomResizedCrop";
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
        return "RandomHorizontalFlip";
    }
    return "unknown kind";
}

static int check_side(size_t number, const fm_op *op, const char *name, int32_t value,
                      int32_t lowest, fm_error *error) {
    if (value >= lowest && value <= FM_MAX_SIDE) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu (%s): %s is %d; allowed are %d to %d",
                        number, kind_name(op->kind), name, (int)value, (int)lowest, FM_MAX_SIDE);
}

static int check_resize(size_t number, const fm_op *op, fm_error *error) {
    int status = check_side(number, op, "height", op->height, 1, error);
    if (!status) status = check_side(number, op, "width", op->width, 0, error);
    if (status) return status;
    if (op->width && op->max_size)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (Resize): max_size is %d; with a width it must be 0", number,
                            (int)op->max_size);
    if (op->max_size && (op->max_size <= op->height || op->max_size > FM_MAX_SIDE))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (Resize): max_size is %d; allowed are 0 (none) and %d to %d "
                            "(above the size of the shorter edge)",
                            number, (int)op->max_size, (int)op->height + 1, FM_MAX_SIDE);
    return FM_OK;
}

static int check_size(size_t number, const fm_op *op, fm_error *error) {
    const int status = check_side(number, op, "height", op->height, 1, error);
    return status ? status : check_side(number, op, "width", op->width, 1, error);
}

/* The draws are made in float32: limits must be values there, and a ratio neither 0 nor endless. */
static int check_random_resized_crop(size_t number, const fm_op *op, fm_error *error) {
    const double *const scale = op->scale, *const ratio = op->ratio;
    if (!(scale[0] >= 0 && scale[0] <= scale[1] && isfinite((float)scale[1])))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomResizedCrop): scale is (%g, %g); allowed are finite "
                            "values with 0 <= scale[0] <= scale[1]",
                            number, scale[0], scale[1]);
    if (!(isnormal((float)ratio[0]) && ratio[0] > 0 && ratio[0] <= ratio[1] &&
          isnormal((float)ratio[1])))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomResizedCrop): ratio is (%g, %g); allowed are values "
                            "within float32 with 0 < ratio[0] <= ratio[1]",
                            number, ratio[0], ratio[1]);
    return check_size(number, op, error);
}

static int check_filter(size_t number, const fm_op *op, fm_error *error) {
    if ((int)op->filter >= FM_FILTER_BILINEAR && op->filter <= FM_FILTER_NEAREST) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu (%s): filter is %d; allowed are %d to %d",
                        number, kind_name(op->kind), (int)op->filter, FM_FILTER_BILINEAR,
                        FM_FILTER_NEAREST);
}

static int check_op(size_t number, const fm_op *op, fm_error *error) {
    switch (op->kind) {
    case FM_OP_RESIZE:
        return check_resize(number, op, error);
    case FM_OP_CENTER_CROP:
        return check_size(number, op, error);
    case FM_OP_RANDOM_RESIZED_CROP:
        return check_random_resized_crop(number, op, error);
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
        if (op->p >= 0 && op->p <= 1) return FM_OK;
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomHorizontalFlip): p is %g; allowed are 0 to 1", number,
                            op->p);
    }
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu: kind is %d; allowed are %d to %d", number,
                        (int)op->kind, FM_OP_RESIZE, FM_OP_RANDOM_HORIZONTAL_FLIP);
}

static bool resizes(const fm_op *op) {
    return op->kind == FM_OP_RESIZE || op->kind == FM_OP_RANDOM_RESIZED_CROP;
}

/* Checks the ops one by one and together, and works out the size of the result. */
static int take_ops(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    if (transform->n_ops > FM_MAX_OPS)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%zu ops; at most %d are allowed",
                            transform->n_ops, FM_MAX_OPS);
    if (transform->n_ops && !transform->ops)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%zu ops announced, but ops is NULL",
                            transform->n_ops);
    const fm_op *resize = NULL, *last = NULL; /* the op that resizes; the last that sets a size */
    for (size_t i = 0; i < transform->n_ops; i++) {
        const fm_op *const op = &transform->ops[i];
        int status = check_op(i, op, error);
        if (!status && resizes(op)) status = check_filter(i, op, error);
        if (status) return status;
        if (resizes(op)) {
            if (resize)
                return fm_error_set(error, FM_ERR_ARGUMENT,
                                    "op %zu (%s) resizes after op %zu (%s) did; at most one op may",
                                    i, kind_name(op->kind), (size_t)(resize - transform->ops),
                                    kind_name(resize->kind));
            resize = op;
            plan->filter = op->filter;
        }
        if (op->kind != FM_OP_RANDOM_HORIZONTAL_FLIP) last = op;
        plan->ops[i] = *op;
    }
    plan->n_ops = transform->n_ops;
    if (!last && transform->in_height) {
        plan->out_width = transform->in_width;
        plan->out_height = transform->in_height;
        return FM_OK;
    }
    if (!last)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "no op gives all images one size; add a CenterCrop, a "
                            "RandomResizedCrop or a Resize to a height and a width");
    if (last->width == 0)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (Resize): width is 0, so that the result's size depends on the "
                            "image; give 1 to %d, or add a CenterCrop after it",
                            (size_t)(last - transform->ops), FM_MAX_SIDE);
    plan->out_width = last->width;
    plan->out_height = last->height;
    return FM_OK;
}

/* What is known of all images beforehand. */
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

static void take_table(fm_plan *plan, const void *values) {
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

/* torchvision's float32 steps: ToTensor divides by 255, Normalize subtracts and divides. */
static int fill_table(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    if (transform->value_table) {
        take_table(plan, transform->value_table);
        return FM_OK;
    }
    for (int channel = 0; channel < 3; channel++) {
        const float mean = transform->mean[channel], std = transform->std[channel];
        if (!isfinite(mean) || !isfinite(std) || std == 0)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "channel %d: mean is %g and std is %g; both must be finite, and "
                                "std not 0",
                                channel, (double)mean, (double)std);
        for (int value = 0; value < 256; value++)
            set_value(plan, channel, value, ((float)value / 255.0f - mean) / std);
    }
    return FM_OK;
}

int fm_plan_init(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    *plan = (fm_plan){.dtype = transform->dtype,
                      .layout = transform->layout,
                      .channels = transform->in_channels ? transform->in_channels : 3,
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
        transform->resize_order > FM_RESIZE_PILLOW_12_2)
        return fm_error_set(error, FM_ERR_ARGUMENT, "resize_order is %d; allowed are %d to %d",
                            (int)transform->resize_order, FM_RESIZE_HORIZONTAL_FIRST,
                            FM_RESIZE_PILLOW_12_2);
    int status = check_in(transform, error);
    if (!status) status = take_ops(plan, transform, error);
    if (!status && plan->dtype != FM_UINT8) status = fill_table(plan, transform, error);
    if (status) return status;
    plan->sample_bytes = (size_t)plan->channels * (size_t)plan->out_height *
                         (size_t)plan->out_width * value_bytes(plan->dtype);
    return FM_OK;
}
