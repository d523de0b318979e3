#define _GNU_SOURCE
#include "transform/op_check.h"

#include <float.h>
#include <math.h>

#include "transform/draws_timm.h"

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
    [FM_OP_RESIZE_KEEP_RATIO] = "ResizeKeepRatio",
    [FM_OP_RANDOM_BLUR] = "RandomBlur",
    [FM_OP_TIMM_RAND_AUGMENT] = "timm's RandAugment",
    [FM_OP_TIMM_AUTO_AUGMENT] = "timm's AutoAugment",
    [FM_OP_HALVING_CENTER_CROP] = "halving CenterCrop",
    [FM_OP_LIGHTING] = "Lighting",
};

const char *fm_op_kind_name(fm_op_kind kind) {
    return (int)kind >= FM_OP_RESIZE && kind <= FM_OP_LIGHTING ? KIND_NAMES[kind] : "unknown kind";
}

static int check_side(size_t number, const fm_op *op, const char *name, int32_t value,
                      int32_t lowest, fm_error *error) {
    if (value >= lowest && value <= FM_MAX_SIDE) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu (%s): %s is %d; allowed are %d to %d",
                        number, fm_op_kind_name(op->kind), name, (int)value, (int)lowest,
                        FM_MAX_SIDE);
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

/* values[first .. first + n - 1] must be numbers from low to high, integers if `whole`. */
static int check_values(size_t number, const fm_op *op, int first, int n, double low, double high,
                        bool whole, fm_error *error) {
    for (int i = first; i < first + n; i++) {
        const double value = op->values[i];
        if (value >= low && value <= high && (!whole || value == floor(value))) continue;
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s): values[%d] is %g; allowed are %snumbers from %g to %g",
                            number, fm_op_kind_name(op->kind), i, value, whole ? "whole " : "", low,
                            high);
    }
    return FM_OK;
}

/* Bound of parameters that may be any number. */
#define MAX_NUMBER 1e9
#define MAX_ATTEMPTS 1000 /* of EfficientNet's random crop */

/* Sampling is done in float32: limits must be finite in float32, and ratios also not 0. */
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
    int status = check_values(number, op, 0, 1, 0, 4, true, error);
    if (!status) status = check_values(number, op, 3, 1, 0, MAX_NUMBER, false, error);
    if (!status) status = check_values(number, op, 4, 1, 0, MAX_ATTEMPTS, true, error);
    if (!status) status = check_size(number, op, error);
    if (status || op->values[0] < 3 || op->width == op->height) return status;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (RandomResizedCrop): EfficientNet's crops are resized to %d x %d "
                        "pixels; allowed are squares",
                        number, (int)op->height, (int)op->width);
}

/* Where an op's number of filters is among its values; 0: nowhere. */
static int place_of_n_filters(const fm_op *op) {
    return op->kind == FM_OP_RANDOM_RESIZED_CROP ? 2 : op->kind == FM_OP_RESIZE_KEEP_RATIO ? 9 : 0;
}

static int check_filter(size_t number, const fm_op *op, fm_error *error) {
    if ((int)op->filter < FM_FILTER_BILINEAR || op->filter > FM_FILTER_NEAREST)
        return fm_error_set(
            error, FM_ERR_ARGUMENT, "op %zu (%s): filter is %d; allowed are %d to %d", number,
            fm_op_kind_name(op->kind), (int)op->filter, FM_FILTER_BILINEAR, FM_FILTER_NEAREST);
    const int at = place_of_n_filters(op);
    const int status = at ? check_values(number, op, at, 1, 0, 2, true, error) : FM_OK;
    return status ? status : check_values(number, op, 1, 1, 0, FM_FILTER_NEAREST + 1, true, error);
}

fm_filter fm_op_second_filter(const fm_op *op) {
    return op->values[1] != 0 ? (fm_filter)(op->values[1] - 1) : op->filter;
}

uint32_t fm_op_n_filters(const fm_op *op) {
    const int at = place_of_n_filters(op);
    if (fm_op_second_filter(op) != op->filter) return 2;
    return at ? (uint32_t)op->values[at] : 0;
}

static int check_p(size_t number, const fm_op *op, fm_error *error) {
    if (op->p >= 0 && op->p <= 1) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu (%s): p is %g; allowed are 0 to 1", number,
                        fm_op_kind_name(op->kind), op->p);
}

static int check_fill(size_t number, const fm_op *op, int first, fm_error *error) {
    return check_values(number, op, first, 3, 0, 255, true, error);
}

static int check_padding(size_t number, const fm_op *op, fm_error *error) {
    int status = check_values(number, op, 0, 4, 0, FM_MAX_SIDE, true, error);
    if (!status) status = check_values(number, op, 4, 1, 0, 3, true, error);
    return status ? status : check_fill(number, op, 6, error);
}

/* The filters of affine transforms. */
static int check_affine_filter(size_t number, const fm_op *op, fm_error *error) {
    if (op->filter == FM_FILTER_NEAREST || op->filter == FM_FILTER_BILINEAR ||
        op->filter == FM_FILTER_BICUBIC)
        return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): filter is %d; allowed are %d (bilinear), %d (bicubic) and "
                        "%d (nearest)",
                        number, fm_op_kind_name(op->kind), (int)op->filter, FM_FILTER_BILINEAR,
                        FM_FILTER_BICUBIC, FM_FILTER_NEAREST);
}

/* Of RANDOM_BLUR. */
#define MAX_RADIUS 10

static int check_resize_keep_ratio(size_t number, const fm_op *op, fm_error *error) {
    static const double least = 1 / MAX_NUMBER;
    int status = check_size(number, op, error);
    if (!status) status = check_values(number, op, 0, 1, 0, 1, false, error);
    for (int at = 2; !status && at <= 6; at += 4) {
        status = check_values(number, op, at, 1, 0, 1, false, error);
        if (!status && op->values[at] > 0)
            status = check_values(number, op, at + 1, 2, least, MAX_NUMBER, false, error);
    }
    return status;
}

static int check_blur(size_t number, const fm_op *op, fm_error *error) {
    const double *const radius = op->values + 3;
    int status = check_values(number, op, 0, 2, 0, MAX_RADIUS, false, error);
    if (!status) status = check_values(number, op, 2, 1, 0, 5, true, error);
    if (status) return status;
    if (radius[0] >= 0 && radius[0] <= MAX_RADIUS && radius[0] + radius[1] >= 0 &&
        radius[0] + radius[1] <= MAX_RADIUS)
        return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (RandomBlur): values[3] + values[4] x is %g to %g for x from 0 to "
                        "1; allowed are radii from 0 to %d",
                        number, radius[0], radius[0] + radius[1], MAX_RADIUS);
}

static int check_color_jitter(size_t number, const fm_op *op, fm_error *error) {
    int status = check_values(number, op, 0, 6, 0, MAX_NUMBER, false, error);
    if (!status) status = check_values(number, op, 6, 2, -0.5, 0.5, false, error);
    return status ? status : check_values(number, op, 8, 1, 0, 15, true, error);
}

static int check_affine(size_t number, const fm_op *op, fm_error *error) {
    const bool rotates = op->kind == FM_OP_RANDOM_ROTATION;
    int status = check_values(number, op, 0, 2, -MAX_NUMBER, MAX_NUMBER, false, error);
    if (!status && rotates) {
        status = check_values(number, op, 3, 2, -MAX_NUMBER, MAX_NUMBER, false, error);
        if (!status) status = check_fill(number, op, 5, error);
    } else if (!status) {
        status = check_values(number, op, 3, 2, 0, 1, false, error);
        if (!status) status = check_values(number, op, 7, 4, -MAX_NUMBER, MAX_NUMBER, false, error);
        if (!status)
            status = check_values(number, op, 12, 2, -MAX_NUMBER, MAX_NUMBER, false, error);
        if (!status) status = check_fill(number, op, 14, error);
        if (!status && op->values[5] != 0 &&
            !(op->scale[0] > 0 && op->scale[0] <= MAX_NUMBER && op->scale[1] > 0 &&
              op->scale[1] <= MAX_NUMBER))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (RandomAffine): scale is (%g, %g); allowed are numbers "
                                "above 0",
                                number, op->scale[0], op->scale[1]);
    }
    return status ? status : check_affine_filter(number, op, error);
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
    int status = check_p(number, op, error);
    if (!status) status = check_values(number, op, 3, 1, 0, 2, true, error);
    if (!status) status = check_values(number, op, 4, 2, 0, FM_MAX_ERASED, true, error);
    if (!status) status = check_values(number, op, 6, 2, -60, 60, false, error);
    if (status) return status;
    if (op->values[4] <= op->values[5] && (op->values[4] >= 1 || op->values[5] == 0)) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (RandomErasing): the number of boxes is %g to %g; the first must "
                        "be at least 1, and not above the second",
                        number, op->values[4], op->values[5]);
}

static int check_auto_augment(size_t number, const fm_op *op, fm_error *error) {
    int status = check_affine_filter(number, op, error);
    if (!status) status = check_fill(number, op, 3, error);
    if (status) return status;
    if (op->kind == FM_OP_AUTO_AUGMENT) return check_values(number, op, 0, 1, 0, 2, true, error);
    if (op->kind == FM_OP_TRIVIAL_AUGMENT_WIDE)
        return check_values(number, op, 0, 1, 2, 65536, true, error);
    status = check_values(number, op, 0, 1, 0, 8, true, error);
    if (!status) status = check_values(number, op, 2, 1, 2, 65536, true, error);
    if (!status) status = check_values(number, op, 1, 1, 0, op->values[2] - 1, true, error);
    return status;
}

/* The list of which numpy.random.choice() chooses: if there is one, and no operation is chosen
 * twice, all that have a weight are listed once. */
static int check_listed(size_t number, const fm_op *op, fm_error *error) {
    const double *const listed = op->values + FM_DRAWS_TIMM_LISTED;
    int status = check_values(number, op, FM_DRAWS_TIMM_N_LISTED, 1, 0, FM_N_TIMM_AUGMENTATIONS,
                              true, error);
    if (!status)
        status = check_values(number, op, FM_DRAWS_TIMM_LISTED, FM_N_TIMM_AUGMENTATIONS, 0,
                              FM_N_TIMM_AUGMENTATIONS - 1, true, error);
    if (status) return status;
    uint32_t seen = 0, with_weight = 0;
    for (int i = 0; i < (int)op->values[FM_DRAWS_TIMM_N_LISTED]; i++) {
        if (op->values[11] != 0 && seen >> (int)listed[i] & 1)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (%s): operation %g is listed twice, and none may be chosen "
                                "twice",
                                number, fm_op_kind_name(op->kind), listed[i]);
        seen |= 1u << (int)listed[i];
    }
    for (uint32_t i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++)
        if (op->values[FM_DRAWS_TIMM_WEIGHTS + i] > 0) with_weight |= 1u << i;
    if (!seen || (seen & with_weight) == with_weight) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): an operation that has a weight is not listed", number,
                        fm_op_kind_name(op->kind));
}

/* What RandAugment has beside the parameters of both. */
static int check_timm_rand_augment(size_t number, const fm_op *op, fm_error *error) {
    const double *const weights = op->values + FM_DRAWS_TIMM_WEIGHTS;
    int32_t n_weights = 0;
    int status = check_values(number, op, 0, 1, 0, FM_DRAWS_TIMM_MOST, true, error);
    if (!status) status = check_values(number, op, 1, 1, 0, 1, false, error);
    if (!status) status = check_values(number, op, 2, 1, 0, MAX_NUMBER, false, error);
    if (!status)
        status = check_values(number, op, FM_DRAWS_TIMM_WEIGHTS, FM_N_TIMM_AUGMENTATIONS, 0,
                              MAX_NUMBER, false, error);
    if (status) return status;
    for (int i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++) n_weights += weights[i] > 0;
    status = check_listed(number, op, error);
    if (status) return status;
    const int32_t least = op->values[11] != 0 ? (int32_t)op->values[0] : 1;
    if (n_weights >= least) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): %d operations have a weight; %d at least must have one",
                        number, fm_op_kind_name(op->kind), (int)n_weights, (int)least);
}

static int check_timm_augment(size_t number, const fm_op *op, fm_error *error) {
    int status = check_affine_filter(number, op, error);
    if (!status) status = check_values(number, op, 3, 1, -1, MAX_NUMBER, false, error);
    if (!status) status = check_values(number, op, 4, 1, 1 / MAX_NUMBER, 100, false, error);
    if (!status) status = check_values(number, op, 5, 1, 0, 10, false, error);
    if (!status) status = check_values(number, op, 6, 1, 0, FM_MAX_SIDE, false, error);
    if (!status) status = check_values(number, op, 7, 1, 0, FM_FILTER_NEAREST + 1, true, error);
    if (!status) status = check_values(number, op, FM_DRAWS_TIMM_FILTERS, 1, 0, 2, true, error);
    if (!status) status = check_fill(number, op, 8, error);
    if (!status && op->values[7] != 0) {
        fm_op second = *op;
        second.filter = (fm_filter)(op->values[7] - 1);
        status = check_affine_filter(number, &second, error);
    }
    if (status) return status;
    if (op->kind == FM_OP_TIMM_AUTO_AUGMENT)
        return check_values(number, op, 0, 1, 0, FM_DRAWS_TIMM_POLICIES - 1, true, error);
    return check_timm_rand_augment(number, op, error);
}

static int check_halving_crop(size_t number, const fm_op *op, fm_error *error) {
    const int status = check_size(number, op, error);
    if (status || op->width == op->height) return status;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): the result has %d x %d pixels; it must be a square", number,
                        fm_op_kind_name(op->kind), (int)op->width, (int)op->height);
}

static int check_lighting(size_t number, const fm_op *op, fm_error *error) {
    int status = check_values(number, op, 0, 1, 0, MAX_NUMBER, false, error);
    if (!status) status = check_values(number, op, 1, 18, -MAX_NUMBER, MAX_NUMBER, false, error);
    for (int i = 16; !status && i < 19; i++)
        if ((float)op->values[i] == 0)
            status = fm_error_set(error, FM_ERR_ARGUMENT,
                                  "op %zu (Lighting): values[%d], a divisor, is 0", number, i);
    return status;
}

/* Checks an op by its kind. */
static int check_parameters(size_t number, const fm_op *op, fm_error *error) {
    int status;
    switch (op->kind) {
    case FM_OP_RESIZE:
        return check_resize(number, op, error);
    case FM_OP_RESIZE_KEEP_RATIO:
        return check_resize_keep_ratio(number, op, error);
    case FM_OP_CENTER_CROP:
        status = check_size(number, op, error);
        if (!status) status = check_values(number, op, 4, 1, 0, 3, true, error);
        return status ? status : check_fill(number, op, 6, error);
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
    case FM_OP_RANDOM_BLUR:
        status = check_blur(number, op, error);
        return status ? status : check_p(number, op, error);
    case FM_OP_RANDOM_POSTERIZE:
        status = check_values(number, op, 0, 1, 1, 8, true, error);
        return status ? status : check_p(number, op, error);
    case FM_OP_RANDOM_SOLARIZE:
    case FM_OP_RANDOM_ADJUST_SHARPNESS:
        status = check_values(number, op, 0, 1, -MAX_NUMBER, MAX_NUMBER, false, error);
        return status ? status : check_p(number, op, error);
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
    case FM_OP_RANDOM_VERTICAL_FLIP:
    case FM_OP_RANDOM_GRAYSCALE:
    case FM_OP_RANDOM_INVERT:
    case FM_OP_RANDOM_AUTOCONTRAST:
    case FM_OP_RANDOM_EQUALIZE:
        return check_p(number, op, error);
    case FM_OP_RANDOM_APPLY:
        status = check_values(number, op, 1, 1, 0, FM_GREATER_OR_EQUAL, true, error);
        if (!status) status = check_values(number, op, 2, 3, -DBL_MAX, DBL_MAX, false, error);
        if (!status) status = check_values(number, op, 5, 1, 0, 4, true, error);
        return status ? status : check_p(number, op, error);
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
        return check_auto_augment(number, op, error);
    case FM_OP_TIMM_RAND_AUGMENT:
    case FM_OP_TIMM_AUTO_AUGMENT:
        return check_timm_augment(number, op, error);
    case FM_OP_HALVING_CENTER_CROP:
        return check_halving_crop(number, op, error);
    case FM_OP_LIGHTING:
        return check_lighting(number, op, error);
    }
    return fm_error_set(error, FM_ERR_ARGUMENT, "op %zu: kind is %d; allowed are %d to %d", number,
                        (int)op->kind, FM_OP_RESIZE, FM_OP_LIGHTING);
}

/* Checks that the ops within an op have the number it gives, are complete, and keep the image's
 * type. */
static int check_children(size_t number, const fm_op *ops, size_t n_ops, fm_error *error) {
    const fm_op *const op = &ops[number];
    const int32_t most = op->kind == FM_OP_RANDOM_APPLY ? FM_MAX_OPS : FM_MAX_CHILDREN;
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
                            "after it, it must hold %d to %d, and all ops within those",
                            number, fm_op_kind_name(op->kind), (int)op->n_children,
                            (int)op->n_within, n_ops - number - 1, (int)least, (int)most);
    for (size_t i = number + 1; i < end; i++)
        if (ops[i].kind == FM_OP_GRAYSCALE || ops[i].kind == FM_OP_RANDOM_ERASING ||
            ops[i].kind == FM_OP_LIGHTING)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (%s) is within op %zu (%s), where ops must not change "
                                "types",
                                i, fm_op_kind_name(ops[i].kind), number, fm_op_kind_name(op->kind));
    return FM_OK;
}

static int check_choice(size_t number, const fm_op *op, fm_error *error) {
    double before = 0;
    for (int32_t i = 0; i < op->n_children; i++) {
        const double sum = op->values[i];
        if (!(sum >= before && sum <= MAX_NUMBER && (sum > 0 || i + 1 < op->n_children)))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "op %zu (RandomChoice): values[%d] is %g; cumulative "
                                "probabilities must not decrease, and the last must be above 0",
                                number, (int)i, sum);
        before = sum;
    }
    int status = check_values(number, op, 16, 16, 0, MAX_NUMBER, false, error);
    if (!status) status = check_values(number, op, 32, 1, 0, 3, true, error);
    if (!status && (op->values[32] == 1 || op->values[32] == 2))
        status = check_values(number, op, op->n_children - 1, 1, 1, 65535, true, error);
    return status;
}

/* What a transform of tensors by grid_sample() may have: other limits keep its coordinates within
 * float32. */
static int check_sampling(size_t number, const fm_op *op, fm_error *error) {
    const uint32_t all =
        FM_SAMPLING_FUSED_GRID | FM_SAMPLING_FUSED_SAMPLES | FM_SAMPLING_WITHOUT_FILL;
    const bool samples = fm_op_is_affine(op) && op->arithmetic != FM_ARITHMETIC_PILLOW;
    if (op->sampling > (samples ? all : 0))
        return fm_error_set(
            error, FM_ERR_ARGUMENT, "op %zu (%s): sampling is %u; allowed are 0 to %u", number,
            fm_op_kind_name(op->kind), (unsigned)op->sampling, (unsigned)(samples ? all : 0));
    if (!samples) return FM_OK;
    if (op->filter == FM_FILTER_BICUBIC)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (%s): the filter is bicubic, which tensors can't have", number,
                            fm_op_kind_name(op->kind));
    if (op->kind != FM_OP_RANDOM_AFFINE) return FM_OK;
    if (op->values[5] != 0 && op->scale[0] < 1e-3)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "op %zu (RandomAffine): scale is (%g, %g); the least of tensors is "
                            "0.001",
                            number, op->scale[0], op->scale[1]);
    return check_values(number, op, 7, 4, -89, 89, false, error);
}

static int check_arithmetic(size_t number, const fm_op *op, fm_error *error) {
    const bool is_any =
        (op->kind >= FM_OP_RANDOM_VERTICAL_FLIP && op->kind <= FM_OP_COLOR_JITTER) ||
        fm_op_is_affine(op);
    const int most = is_any ? FM_ARITHMETIC_TENSOR_V2_FUSED : FM_ARITHMETIC_PILLOW;
    if ((int)op->arithmetic >= FM_ARITHMETIC_PILLOW && (int)op->arithmetic <= most)
        return check_sampling(number, op, error);
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): arithmetic is %d; allowed are %d to %d", number,
                        fm_op_kind_name(op->kind), (int)op->arithmetic, FM_ARITHMETIC_PILLOW, most);
}

int fm_op_check(size_t number, const fm_op *ops, size_t n_ops, fm_error *error) {
    const fm_op *const op = &ops[number];
    int status = check_parameters(number, op, error);
    if (!status) status = check_arithmetic(number, op, error);
    if (!status && fm_op_resizes(op)) status = check_filter(number, op, error);
    if (!status && fm_op_holds_ops(op)) status = check_children(number, ops, n_ops, error);
    if (!status && op->kind == FM_OP_RANDOM_CHOICE) status = check_choice(number, op, error);
    if (status || fm_op_holds_ops(op) || (!op->n_children && !op->n_within)) return status;
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "op %zu (%s): n_children is %d and n_within is %d; it holds no ops", number,
                        fm_op_kind_name(op->kind), (int)op->n_children, (int)op->n_within);
}
