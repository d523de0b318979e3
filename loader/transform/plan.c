#define _GNU_SOURCE
#include "transform/plan.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "transform/half.h"

/* By kind. */
static const char *const KIND_NAMES[] = {
    [FM_OP_RESIZE] = "Resize",
    [FM_OP_CENTER_CROP] = "CenterCrop",
    [FM_OP_RANDOM_RESIZED_CROP] = "RandomResizedCrop",
    [FM_OP_RANDOM_HORIZONTAL_FLIP] = "RandomHorizontalFlip",
    [FM_OP_RANDOM_CROP] = "RandomCrop",
    [FM_OP_PAD] = "Pad",
    [FM_OP_RANDOM_VERTICAL_FLIP] = "RandomVerticalFlip",
    [FM_OP_GRAYSCALE] = "Grayscale",
    [FM_OP_RANDOM_GRAYSCALE] = "RandomGrayscale",
    [FM_OP_RANDOM_INVERT] = "RandomInvert",
    [FM_OP_RANDOM_POSTERIZE] = "RandomPosterize",
    [FM_OP_RANDOM_SOLARIZE] = "RandomSolarize",
    [FM_OP_RANDOM_AUTOCONTRAST] = "RandomAutocontrast",
    [FM_OP_RANDOM_EQUALIZE] = "RandomEqualize",
    [FM_OP_RANDOM_ADJUST_SHARPNESS] = "RandomAdjustSharpness",
    [FM_OP_COLOR_JITTER] = "ColorJitter",
    [FM_OP_RANDOM_ROTATION] = "RandomRotation",
    [FM_OP_RANDOM_AFFINE] = "RandomAffine",
    [FM_OP_RANDOM_ERASING] = "RandomErasing",
    [FM_OP_RANDOM_APPLY] = "RandomApply",
    [FM_OP_RANDOM_CHOICE] = "RandomChoice",
    [FM_OP_RANDOM_ORDER] = "RandomOrder",
    [FM_OP_TRIVIAL_AUGMENT_WIDE] = "TrivialAugmentWide",
    [FM_OP_RAND_AUGMENT] = "RandAugment",
    [FM_OP_AUTO_AUGMENT] = "AutoAugment",
};

static const char *kind_name(fm_op_kind kind) {
    return (int)kind >= FM_OP_RESIZE && kind <= FM_OP_AUTO_AUGMENT ? KIND_NAMES[kind]
                                                                   : "unknown kind";
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

/* values[first .. first + n - 1] must be whole numbers from low to high, or any with `whole` off.
 */
static int check_values(size_t number, const fm_op *op, int first, int n, double low, double high,
                        bool whole, fm_error *error) {
    for (int i = first; i < first + n; i++) {
        const double value = op->values[i];
        if (value >= low && value <= high && (!whole || value == floor(value))) continue;
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s): values[%d] is %g; allowed are %snumbers from %g to %g",
                            number, kind_name(op->kind), i, value, whole ? "whole " : "", low,
                            high);
    }
    return FM_OK;
}

static int check_p(size_t number, const fm_op *op, fm_error *error) {
    if (op->p >= 0 && op->p <= 1) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu (%s): p is %g; allowed are 0 to 1", number,
                        kind_name(op->kind), op->p);
}

static int check_fill(size_t number, const fm_op *op, int first, fm_error *error) {
    return check_values(number, op, first, 3, 0, 255, true, error);
}

static int check_padding(size_t number, const fm_op *op, fm_error *error) {
    int status = check_values(number, op, 0, 4, 0, FM_MAX_SIDE, true, error);
    if (!status) status = check_values(number, op, 4, 1, 0, 3, true, error);
    return status ? status : check_fill(number, op, 6, error);
}

/* The filters of affine maps. */
static int check_map_filter(size_t number, const fm_op *op, fm_error *error) {
    if (op->filter == FM_FILTER_NEAREST || op->filter == FM_FILTER_BILINEAR ||
        op->filter == FM_FILTER_BICUBIC)
        return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): filter is %d; allowed are %d (bilinear), %d (bicubic) and "
                        "%d (nearest)",
                        number, kind_name(op->kind), (int)op->filter, FM_FILTER_BILINEAR,
                        FM_FILTER_BICUBIC, FM_FILTER_NEAREST);
}

#define MOST_NUMBER 1e9

static int check_color_jitter(size_t number, const fm_op *op, fm_error *error) {
    int status = check_values(number, op, 0, 6, 0, MOST_NUMBER, false, error);
    if (!status) status = check_values(number, op, 6, 2, -0.5, 0.5, false, error);
    return status ? status : check_values(number, op, 8, 1, 0, 15, true, error);
}

static int check_affine(size_t number, const fm_op *op, fm_error *error) {
    const bool rotates = op->kind == FM_OP_RANDOM_ROTATION;
    int status = check_values(number, op, 0, 2, -MOST_NUMBER, MOST_NUMBER, false, error);
    if (!status && rotates) {
        status = check_values(number, op, 3, 2, -MOST_NUMBER, MOST_NUMBER, false, error);
        if (!status) status = check_fill(number, op, 5, error);
    } else if (!status) {
        status = check_values(number, op, 3, 2, 0, 1, false, error);
        if (!status)
            status = check_values(number, op, 7, 4, -MOST_NUMBER, MOST_NUMBER, false, error);
        if (!status)
            status = check_values(number, op, 12, 2, -MOST_NUMBER, MOST_NUMBER, false, error);
        if (!status) status = check_fill(number, op, 14, error);
        if (!status && op->values[5] != 0 &&
            !(op->scale[0] > 0 && op->scale[0] <= MOST_NUMBER && op->scale[1] > 0 &&
              op->scale[1] <= MOST_NUMBER))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (RandomAffine): scale is (%g, %g); allowed are numbers "
                                "above 0",
                                number, op->scale[0], op->scale[1]);
    }
    return status ? status : check_map_filter(number, op, error);
}

static int check_erasing(size_t number, const fm_op *op, fm_error *error) {
    const double *const scale = op->scale, *const ratio = op->ratio;
    if (!(scale[0] >= 0 && scale[0] <= scale[1] && scale[1] <= 1 && isnormal((float)ratio[0]) &&
          ratio[0] > 0 && ratio[0] <= ratio[1] && isnormal((float)ratio[1])))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomErasing): scale is (%g, %g) and ratio is (%g, %g); "
                            "allowed are 0 <= scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= "
                            "ratio[1], within float32",
                            number, scale[0], scale[1], ratio[0], ratio[1]);
    return check_p(number, op, error);
}

static int check_automatic(size_t number, const fm_op *op, fm_error *error) {
    int status = check_map_filter(number, op, error);
    if (!status) status = check_fill(number, op, 3, error);
    if (status) return status;
    if (op->kind == FM_OP_AUTO_AUGMENT) return check_values(number, op, 0, 1, 0, 2, true, error);
    if (op->kind == FM_OP_TRIVIAL_AUGMENT_WIDE)
        return check_values(number, op, 0, 1, 2, 65536, true, error);
    status = check_values(number, op, 0, 1, 0, FM_N_DRAW_VALUES / 2, true, error);
    if (!status) status = check_values(number, op, 2, 1, 2, 65536, true, error);
    if (!status) status = check_values(number, op, 1, 1, 0, op->values[2] - 1, true, error);
    return status;
}

static int check_op(size_t number, const fm_op *op, fm_error *error) {
    int status;
    switch (op->kind) {
    case FM_OP_RESIZE:
        return check_resize(number, op, error);
    case FM_OP_CENTER_CROP:
        return check_size(number, op, error);
    case FM_OP_RANDOM_RESIZED_CROP:
        return check_random_resized_crop(number, op, error);
    case FM_OP_RANDOM_CROP:
        status = check_size(number, op, error);
        return status ? status : check_padding(number, op, error);
    case FM_OP_PAD:
        return check_padding(number, op, error);
    case FM_OP_GRAYSCALE:
        if (op->values[0] == 3) return FM_OK;
        return check_values(number, op, 0, 1, 1, 1, true, error);
    case FM_OP_RANDOM_POSTERIZE:
        status = check_values(number, op, 0, 1, 1, 8, true, error);
        return status ? status : check_p(number, op, error);
    case FM_OP_RANDOM_SOLARIZE:
    case FM_OP_RANDOM_ADJUST_SHARPNESS:
        status = check_values(number, op, 0, 1, -MOST_NUMBER, MOST_NUMBER, false, error);
        return status ? status : check_p(number, op, error);
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
    case FM_OP_RANDOM_VERTICAL_FLIP:
    case FM_OP_RANDOM_GRAYSCALE:
    case FM_OP_RANDOM_INVERT:
    case FM_OP_RANDOM_AUTOCONTRAST:
    case FM_OP_RANDOM_EQUALIZE:
    case FM_OP_RANDOM_APPLY:
        return check_p(number, op, error);
    case FM_OP_COLOR_JITTER:
        return check_color_jitter(number, op, error);
    case FM_OP_RANDOM_ROTATION:
    case FM_OP_RANDOM_AFFINE:
        return check_affine(number, op, error);
    case FM_OP_RANDOM_ERASING:
        return check_erasing(number, op, error);
    case FM_OP_RANDOM_CHOICE:
    case FM_OP_RANDOM_ORDER:
        return FM_OK;
    case FM_OP_TRIVIAL_AUGMENT_WIDE:
    case FM_OP_RAND_AUGMENT:
    case FM_OP_AUTO_AUGMENT:
        return check_automatic(number, op, error);
    }
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu: kind is %d; allowed are %d to %d", number,
                        (int)op->kind, FM_OP_RESIZE, FM_OP_AUTO_AUGMENT);
}

static bool resizes(const fm_op *op) {
    return op->kind == FM_OP_RESIZE || op->kind == FM_OP_RANDOM_RESIZED_CROP;
}

static bool changes_size(const fm_op *op) {
    return resizes(op) || op->kind == FM_OP_CENTER_CROP || op->kind == FM_OP_RANDOM_CROP ||
           op->kind == FM_OP_PAD;
}

static bool holds_ops(const fm_op *op) {
    return op->kind == FM_OP_RANDOM_APPLY || op->kind == FM_OP_RANDOM_CHOICE ||
           op->kind == FM_OP_RANDOM_ORDER;
}

/* What op `number` of n holds: that many ops, whole ones, which leave sizes and types alone. */
static int check_children(size_t number, const fm_op *ops, size_t n_ops, fm_error *error) {
    const fm_op *const op = &ops[number];
    const int32_t most = op->kind == FM_OP_RANDOM_APPLY ? FM_MAX_OPS : FM_N_DRAW_VALUES;
    const size_t end = number + 1 + (size_t)op->n_within;
    size_t child = number + 1;
    int32_t n_children = 0;
    while (op->n_within >= 0 && child < end && end <= n_ops && ops[child].n_within >= 0) {
        child += 1 + (size_t)ops[child].n_within;
        n_children++;
    }
    const int32_t least = op->kind == FM_OP_RANDOM_CHOICE ? 1 : 0;
    if (child != end || n_children != op->n_children || n_children < least || n_children > most)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s): n_children is %d and n_within is %d; of the %zu ops "
                            "behind it, it must hold %d to %d with all that these hold",
                            number, kind_name(op->kind), (int)op->n_children, (int)op->n_within,
                            n_ops - number - 1, (int)least, (int)most);
    for (size_t i = number + 1; i < end; i++)
        if (changes_size(&ops[i]) || ops[i].kind == FM_OP_GRAYSCALE ||
            ops[i].kind == FM_OP_RANDOM_ERASING)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (%s) stands within op %zu (%s), where an op may change "
                                "neither sizes nor types",
                                i, kind_name(ops[i].kind), number, kind_name(op->kind));
    return FM_OK;
}

static int check_choice(size_t number, const fm_op *op, fm_error *error) {
    double before = 0;
    for (int32_t i = 0; i < op->n_children; i++) {
        const double sum = op->values[i];
        if (!(sum >= before && sum <= MOST_NUMBER && (sum > 0 || i + 1 < op->n_children)))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (RandomChoice): values[%d] is %g; sums of probabilities "
                                "don't fall, and the last is above 0",
                                number, (int)i, sum);
        before = sum;
    }
    return FM_OK;
}

/* Whether the padding, if any, is with zeros. */
static bool pads_zeros(const fm_op *op) {
    return op->values[4] == 0 && op->values[6] == 0 && op->values[7] == 0 && op->values[8] == 0;
}

static bool pads(const fm_op *op) {
    if (op->kind != FM_OP_RANDOM_CROP && op->kind != FM_OP_PAD) return false;
    return op->values[0] + op->values[1] + op->values[2] + op->values[3] + op->values[5] != 0;
}

/*
 * How many of the first ops one resample does. Padding is part of it where no crop after a resize
 * came before, whose edges it would have to bring back, and no resize comes after.
 */
static size_t count_front(const fm_op *ops, size_t n_ops) {
    bool resized = false, cropped = false, padded = false;
    size_t i;
    for (i = 0; i < n_ops; i++) {
        const fm_op *const op = &ops[i];
        if (!changes_size(op) && op->kind != FM_OP_RANDOM_HORIZONTAL_FLIP) break;
        if (pads(op) && (!pads_zeros(op) || (resized && cropped))) break;
        if (resizes(op) && padded) break;
        resized = resized || resizes(op);
        cropped = cropped || (resized && !resizes(op) && changes_size(op));
        padded = padded || pads(op);
    }
    return i;
}

/* Checks what one op means for those around it. */
static int take_op(fm_plan *plan, const fm_transform *transform, size_t i, const fm_op **resize,
                   fm_error *error) {
    const fm_op *const op = &transform->ops[i];
    int status = check_op(i, op, error);
    if (!status && resizes(op)) status = check_filter(i, op, error);
    if (!status && holds_ops(op))
        status = check_children(i, transform->ops, transform->n_ops, error);
    if (!status && op->kind == FM_OP_RANDOM_CHOICE) status = check_choice(i, op, error);
    if (status) return status;
    if (!holds_ops(op) && (op->n_children || op->n_within))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s): n_children is %d and n_within is %d; it holds no ops", i,
                            kind_name(op->kind), (int)op->n_children, (int)op->n_within);
    if (op->kind == FM_OP_RANDOM_ERASING && i + 1 < transform->n_ops)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomErasing) must be the last of %zu ops", i,
                            transform->n_ops);
    if (op->kind == FM_OP_GRAYSCALE) plan->channels = op->values[0] == 1 ? 1 : 3;
    if (resizes(op)) {
        if (*resize)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (%s) resizes after op %zu (%s) did; at most one op may", i,
                                kind_name(op->kind), (size_t)(*resize - transform->ops),
                                kind_name((*resize)->kind));
        plan->resizes_late = i >= plan->n_front;
        *resize = op;
        plan->filter = op->filter;
    }
    return FM_OK;
}

/* Follows one op in the size of its result; 0: it depends on the image. */
static void follow_size(const fm_op *op, int32_t *width, int32_t *height) {
    if (op->kind == FM_OP_PAD) {
        if (*width == 0) return;
        *width += (int32_t)(op->values[0] + op->values[2]);
        *height += (int32_t)(op->values[1] + op->values[3]);
    } else if (changes_size(op)) {
        *width = op->width;
        *height = op->width ? op->height : 0;
    }
}

/* The sizes of the images from op to op, as far as the plan tells. */
static int take_sizes(fm_plan *plan, fm_error *error) {
    int32_t width = plan->in_width, height = plan->in_height;
    for (size_t i = 0; i <= plan->n_ops; i++) {
        if (i == plan->n_front) {
            plan->front_width = width;
            plan->front_height = height;
        }
        if (i >= plan->n_front) {
            const uint64_t n_px = width ? (uint64_t)width * (uint64_t)height : FM_PLAN_MOST_PX;
            plan->most_px = n_px > plan->most_px ? n_px : plan->most_px;
        }
        if (i == plan->n_ops) break;
        follow_size(&plan->ops[i], &width, &height);
        if (width > FM_MAX_SIDE || height > FM_MAX_SIDE)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (%s) gives %d x %d pixels; at most %d a side are allowed",
                                i, kind_name(plan->ops[i].kind), (int)width, (int)height,
                                FM_MAX_SIDE);
    }
    plan->out_width = width;
    plan->out_height = height;
    return FM_OK;
}

/* No op but those that keep a size comes behind the last one that sets it. */
static int refuse_sizes(const fm_plan *plan, fm_error *error) {
    const fm_op *last = NULL;
    for (size_t i = 0; i < plan->n_ops; i++)
        if (changes_size(&plan->ops[i]) && plan->ops[i].kind != FM_OP_PAD) last = &plan->ops[i];
    if (!last)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "no op gives all images one size; add a CenterCrop, a "
                            "RandomResizedCrop or a Resize to a height and a width");
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (Resize): width is 0, so that the result's size depends on the "
                        "image; give 1 to %d, or add a CenterCrop after it",
                        (size_t)(last - plan->ops), FM_MAX_SIDE);
}

/* Checks the ops one by one and together, and works out the size of the result. */
static int take_ops(fm_plan *plan, const fm_transform *transform, fm_error *error) {
    if (transform->n_ops > FM_MAX_OPS)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%zu ops; at most %d are allowed",
                            transform->n_ops, FM_MAX_OPS);
    if (transform->n_ops && !transform->ops)
        return fm_error_set(error, FM_ERR_ARGUMENT, "%zu ops announced, but ops is NULL",
                            transform->n_ops);
    const fm_op *resize = NULL; /* the op that resizes */
    plan->channels = plan->in_channels;
    plan->n_front = count_front(transform->ops, transform->n_ops);
    for (size_t i = 0; i < transform->n_ops; i++) {
        const int status = take_op(plan, transform, i, &resize, error);
        if (status) return status;
        plan->ops[i] = transform->ops[i];
    }
    plan->n_ops = transform->n_ops;
    plan->erases = plan->n_ops && plan->ops[plan->n_ops - 1].kind == FM_OP_RANDOM_ERASING;
    plan->augments = plan->n_front + plan->erases < plan->n_ops;
    const int status = take_sizes(plan, error);
    if (status) return status;
    return plan->out_width ? FM_OK : refuse_sizes(plan, error);
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
