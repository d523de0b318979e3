#define _GNU_SOURCE
#include "augment/augment.h"

#include <math.h>
#include <string.h>

#include "augment/augment_state.h"
#include "augment/augment_tensor.h"
#include "augment/augment_timm.h"
#include "augment/gather.h"

uint64_t fm_augment_scratch_bytes(size_t most_bytes, int32_t most_side, bool blurs) {
    return 2 * ((uint64_t)most_bytes + FM_IMAGE_SLACK) + 3 * sizeof(int32_t) * (uint64_t)most_side +
           (blurs ? fm_blur_scratch_bytes(FM_AUGMENT_MAX_BLURRED) : 0);
}

int fm_augment_open(fm_augment **out, fm_cpu_tier tier, size_t most_bytes, int32_t most_side,
                    bool blurs, fm_mem_counter *counter, fm_error *error) {
    fm_augment *const augment = fm_mem_zalloc(counter, 1, sizeof(*augment));
    *out = augment;
    if (!augment) return fm_error_set(error, FM_ERR_NOMEM, "no memory for augmentations");
    fm_color_init(&augment->color, tier);
    fm_tensor_color_init(&augment->tensor_color, tier);
    fm_warp_init(&augment->warp, tier);
    fm_tensor_warp_init(&augment->tensor_warp, tier);
    fm_blur_init(&augment->blur, tier);
    augment->most_bytes = most_bytes;
    augment->most_side = most_side;
    for (int i = 0; i < 2; i++)
        augment->memory[i] = fm_mem_alloc(counter, most_bytes + FM_IMAGE_SLACK, 1);
    augment->columns = fm_mem_alloc(counter, 3 * (size_t)most_side, sizeof(int32_t));
    if (blurs)
        augment->blur_scratch =
            fm_mem_alloc(counter, fm_blur_scratch_bytes(FM_AUGMENT_MAX_BLURRED), 1);
    if (!augment->memory[0] || !augment->memory[1] || !augment->columns ||
        (blurs && !augment->blur_scratch)) {
        fm_augment_close(out);
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for images of %zu bytes", most_bytes);
    }
    augment->rows = augment->columns + most_side;
    augment->padded = augment->rows + most_side;
    return FM_OK;
}

void fm_augment_set_resize(fm_augment *augment, fm_augment_resize_fn resize, void *context) {
    augment->resize = resize;
    augment->resize_context = context;
}

void fm_augment_close(fm_augment **augment) {
    if (!augment || !*augment) return;
    fm_mem_free((*augment)->memory[0]);
    fm_mem_free((*augment)->memory[1]);
    fm_mem_free((*augment)->columns);
    fm_mem_free((*augment)->blur_scratch);
    fm_mem_free(*augment);
    *augment = NULL;
}

/* ---- images ---------------------------------------------------------------------------------- */

static int check_size(const fm_augment *augment, const fm_image *image, fm_error *error) {
    const int32_t most_side = augment->most_side;
    if (image->width > 0 && image->height > 0 && image->width <= most_side &&
        image->height <= most_side && fm_image_bytes(image) <= augment->most_bytes)
        return FM_OK;
    return fm_error_set(error, FM_ERR_LIMIT,
                        "an image of %d x %d pixels between augmentations; the native limit is %zu "
                        "pixels",
                        (int)image->width, (int)image->height,
                        augment->most_bytes / (size_t)image->channels);
}

int fm_augment_begin(fm_augment *augment, int32_t width, int32_t height, int32_t channels,
                     fm_image *image, fm_error *error) {
    augment->image = (fm_image){augment->memory[0], width, height, channels};
    augment->at = 0;
    *image = augment->image;
    return check_size(augment, image, error);
}

int fm_augment_begin_with(fm_augment *augment, const fm_image *image, fm_error *error) {
    augment->image = *image;
    augment->at = -1;
    return check_size(augment, image, error);
}

const fm_image *fm_augment_image(fm_augment *augment) {
    fm_augment_own(augment);
    return &augment->image;
}

int fm_augment_replace(fm_augment *augment, int32_t width, int32_t height, int32_t channels,
                       fm_image *image, fm_error *error) {
    *image = (fm_image){fm_augment_other_memory(augment), width, height, channels};
    fm_augment_set(augment, image);
    return check_size(augment, image, error);
}

/* ---- crops and paddings ---------------------------------------------------------------------- */

static int gather(fm_augment *augment, int32_t width, int32_t height, const uint8_t fill[3],
                  fm_error *error) {
    const fm_image out = {fm_augment_other_memory(augment), width, height, augment->image.channels};
    const int status = check_size(augment, &out, error);
    if (status) return status;
    fm_gather(&augment->image, &out, augment->columns, augment->rows, fill);
    fm_augment_set(augment, &out);
    return FM_OK;
}

static void get_fill(const double values[3], uint8_t fill[3]) {
    for (int i = 0; i < 3; i++) fill[i] = (uint8_t)values[i];
}

static int center_crop(fm_augment *augment, const fm_op *op, const fm_draw *draw, fm_error *error) {
    const fm_image *const in = &augment->image;
    const fm_pad_mode mode = (fm_pad_mode)(int)op->values[4];
    uint8_t fill[3];
    get_fill(op->values + 6, fill);
    fm_gather_map(augment->columns, draw->width, draw->left, in->width, mode);
    fm_gather_map(augment->rows, draw->height, draw->top, in->height, mode);
    return gather(augment, draw->width, draw->height, fill, error);
}

static int pad(fm_augment *augment, const fm_op *op, fm_error *error) {
    const fm_image *const in = &augment->image;
    const fm_pad_mode mode = (fm_pad_mode)(int)op->values[4];
    const int32_t left = (int32_t)op->values[0], top = (int32_t)op->values[1];
    const fm_image out = {NULL, in->width + left + (int32_t)op->values[2],
                          in->height + top + (int32_t)op->values[3], in->channels};
    uint8_t fill[3];
    get_fill(op->values + 6, fill);
    const int status = check_size(augment, &out, error);
    if (status) return status;
    fm_gather_map(augment->columns, out.width, -left, in->width, mode);
    fm_gather_map(augment->rows, out.height, -top, in->height, mode);
    return gather(augment, out.width, out.height, fill, error);
}

/*
 * RandomCrop on one axis: n pixels from `start` on. The image is first padded by `before` and
 * `after` pixels, and then, if it is still too small, by the missing number on both sides.
 * torchvision's v2 pads once, by the sum.
 */
static void random_crop_map(int32_t *map, int32_t *padded, int32_t n, int32_t start, int32_t size,
                            int32_t before, int32_t after, const fm_op *op) {
    const fm_pad_mode mode = (fm_pad_mode)(int)op->values[4];
    const int32_t padded_size = before + size + after;
    const int32_t lacking = op->values[5] != 0 && padded_size < n ? n - padded_size : 0;
    if (lacking == 0 || op->values[9] != 0) {
        fm_gather_map(map, n, start - lacking - before, size, mode);
        return;
    }
    fm_gather_map(padded, padded_size, -before, size, mode);
    fm_gather_map(map, n, start - lacking, padded_size, mode);
    fm_gather_compose(map, n, padded);
}

static int random_crop(fm_augment *augment, const fm_op *op, const fm_draw *draw, fm_error *error) {
    const fm_image *const in = &augment->image;
    const double *const v = op->values;
    uint8_t fill[3];
    get_fill(v + 6, fill);
    if (draw->width == 0)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "a crop of %d x %d pixels from an image of %d x %d", (int)op->width,
                            (int)op->height, (int)in->width, (int)in->height);
    random_crop_map(augment->columns, augment->padded, op->width, draw->left, in->width,
                    (int32_t)v[0], (int32_t)v[2], op);
    random_crop_map(augment->rows, augment->padded, op->height, draw->top, in->height,
                    (int32_t)v[1], (int32_t)v[3], op);
    return gather(augment, op->width, op->height, fill, error);
}

/* ---- affine transforms ----------------------------------------------------------------------- */

/* torchvision's affine(). center NULL: the image's center. */
static void map_affine(fm_augment *augment, const fm_op *op, const double *center, double degrees,
                       const double translate[2], double scale, const double shear[2],
                       const uint8_t fill[3]) {
    const bool is_v2 = op->arithmetic ? op->arithmetic != FM_ARITHMETIC_TENSOR_V1 : op->is_v2;
    const double half_width = augment->image.width * 0.5;
    const double half_height = augment->image.height * 0.5;
    double x = center ? center[0] : half_width, y = center ? center[1] : half_height;
    if (op->arithmetic) { /* the matrices of tensors are relative to the image's center */
        x -= half_width;
        y -= half_height;
    }
    const fm_affine affine =
        (is_v2 ? fm_affine_inverse_v2 : fm_affine_inverse)(x, y, degrees, translate, scale, shear);
    if (op->arithmetic)
        fm_augment_tensor_map(augment, op, &affine, fill);
    else
        fm_augment_map_affine(augment, &affine, op->filter, fill);
}

/* torchvision's rotate(). center NULL: the image's center. */
static void rotate(fm_augment *augment, const fm_op *op, double degrees, const double *center,
                   const uint8_t fill[3]) {
    const double none[2] = {0, 0};
    if (!op->arithmetic) {
        fm_augment_rotate(augment, degrees, center, op->filter, fill);
    } else if (op->arithmetic == FM_ARITHMETIC_TENSOR_V1) {
        map_affine(augment, op, center, -degrees, none, 1, none, fill);
    } else if (!fm_augment_turn(augment, degrees, center)) {
        map_affine(augment, op, center, -fm_augment_within_turn(degrees), none, 1, none, fill);
    }
}

static void random_rotation(fm_augment *augment, const fm_op *op, const fm_draw *draw) {
    uint8_t fill[3];
    get_fill(op->values + 5, fill);
    rotate(augment, op, draw->values[0], op->values[2] != 0 ? op->values + 3 : NULL, fill);
}

static void random_affine(fm_augment *augment, const fm_op *op, const fm_draw *draw) {
    const double *const drawn = draw->values;
    uint8_t fill[3];
    get_fill(op->values + 14, fill);
    map_affine(augment, op, op->values[11] != 0 ? op->values + 12 : NULL, drawn[0], drawn + 1,
               drawn[3], drawn + 4, fill);
}

/* ---- automatic augmentations ----------------------------------------------------------------- */

/* math.degrees(math.atan(magnitude)) */
static double slope_degrees(double magnitude) {
    return atan(magnitude) * (180.0 / 3.14159265358979323846);
}

static void shear_or_translate(fm_augment *augment, const fm_op *op, fm_augmentation what,
                               double magnitude, const uint8_t fill[3]) {
    const double none[2] = {0, 0};
    double pair[2] = {0, 0};
    const bool shears = what == FM_AUGMENT_SHEAR_X || what == FM_AUGMENT_SHEAR_Y;
    const bool upright = what == FM_AUGMENT_SHEAR_Y || what == FM_AUGMENT_TRANSLATE_Y;
    pair[upright] = shears ? slope_degrees(magnitude) : trunc(magnitude);
    if (shears)
        map_affine(augment, op, none, 0, none, 1, pair, fill);
    else
        map_affine(augment, op, NULL, 0, pair, 1, none, fill);
}

/* torchvision's _apply_op() for colors. The image must be in a buffer. */
static void augment_color(fm_augment *augment, const fm_op *op, fm_augmentation what,
                          double magnitude) {
    const fm_color_kernels *const color = &augment->color;
    const fm_image *const image = &augment->image;
    const float factor = (float)(1.0 + magnitude);
    const double threshold = op->values[6] != 0 ? 255.0 * magnitude : magnitude;
    if (op->arithmetic && fm_augment_tensor_color(augment, op, what, 1.0 + magnitude)) return;
    switch (what) {
    case FM_AUGMENT_BRIGHTNESS:
        fm_color_brightness(color, image, factor);
        break;
    case FM_AUGMENT_COLOR:
        fm_color_saturation(color, image, factor);
        break;
    case FM_AUGMENT_CONTRAST:
        fm_color_contrast(color, image, factor);
        break;
    case FM_AUGMENT_SHARPNESS:
        fm_color_sharpness(color, image, fm_augment_other_memory(augment), factor);
        break;
    case FM_AUGMENT_POSTERIZE:
        fm_color_posterize(image, (int)magnitude);
        break;
    case FM_AUGMENT_SOLARIZE:
        fm_color_solarize(image, op->arithmetic ? (float)threshold : threshold);
        break;
    case FM_AUGMENT_AUTOCONTRAST:
        fm_color_autocontrast(color, image);
        break;
    case FM_AUGMENT_EQUALIZE:
        fm_color_equalize(color, image);
        break;
    case FM_AUGMENT_INVERT:
        fm_color_invert(image);
        break;
    default:
        break;
    }
}

static void augment_automatically(fm_augment *augment, const fm_op *op, const fm_draw *draw) {
    uint8_t fill[3];
    get_fill(op->values + 3, fill);
    for (int32_t i = 0; i + 1 < draw->n_values; i += 2) {
        const fm_augmentation what = (fm_augmentation)(int)draw->values[i];
        const double magnitude = draw->values[i + 1];
        fm_augment_own(augment);
        if (what == FM_AUGMENT_ROTATE)
            rotate(augment, op, magnitude, NULL, fill);
        else if (what >= FM_AUGMENT_SHEAR_X && what <= FM_AUGMENT_TRANSLATE_Y)
            shear_or_translate(augment, op, what, magnitude, fill);
        else
            augment_color(augment, op, what, magnitude);
    }
}

static void color_jitter(fm_augment *augment, const fm_op *op, const fm_draw *draw) {
    const fm_color_kernels *const color = &augment->color;
    const fm_image *const image = &augment->image;
    for (int i = 0; i < 4; i++) {
        const int what = (int)draw->values[i];
        const double factor = draw->values[4 + what];
        if (!((int)op->values[8] >> what & 1)) continue;
        if (what == 0) fm_color_brightness(color, image, (float)factor);
        if (what == 1) fm_color_contrast(color, image, (float)factor);
        if (what == 2) fm_color_saturation(color, image, (float)factor);
        if (what == 3) fm_color_hue(color, image, factor);
    }
}

/* ---- all kinds ------------------------------------------------------------------------------- */

/* Applies the ops that an op holds: one (RandomChoice), or all, in sampled order (RandomOrder). */
static int apply_children(fm_augment *augment, const fm_op *ops, const fm_draw *draws,
                          fm_error *error) {
    int32_t starts[FM_MAX_CHILDREN];
    int32_t child = 1;
    const bool ordered = ops->kind == FM_OP_RANDOM_ORDER;
    for (int32_t i = 0; i < ops->n_children; i++) {
        const bool wanted = ops->kind != FM_OP_RANDOM_CHOICE || i == (int32_t)draws->values[0];
        if (ordered) starts[i] = child;
        if (!ordered && wanted) {
            const int status = fm_augment_apply(augment, ops + child, draws + child, error);
            if (status) return status;
        }
        child += 1 + ops[child].n_within;
    }
    for (int32_t i = 0; ordered && i < ops->n_children; i++) {
        const int32_t start = starts[(int32_t)draws->values[i]];
        const int status = fm_augment_apply(augment, ops + start, draws + start, error);
        if (status) return status;
    }
    return FM_OK;
}

/* Applies ops that work in place. */
static void apply_in_place(fm_augment *augment, const fm_op *op) {
    fm_image *const image = &augment->image;
    const fm_color_kernels *const color = &augment->color;
    if (op->arithmetic && fm_augment_tensor(augment, op)) return;
    switch (op->kind) {
    case FM_OP_RANDOM_VERTICAL_FLIP:
        fm_gather_flip_vertical(image);
        break;
    case FM_OP_RANDOM_GRAYSCALE:
        if (image->channels == 3) fm_color_grayscale(color, image, 3);
        break;
    case FM_OP_RANDOM_INVERT:
        fm_color_invert(image);
        break;
    case FM_OP_RANDOM_POSTERIZE:
        fm_color_posterize(image, (int)op->values[0]);
        break;
    case FM_OP_RANDOM_SOLARIZE:
        fm_color_solarize(image, op->values[0]);
        break;
    case FM_OP_RANDOM_AUTOCONTRAST:
        fm_color_autocontrast(color, image);
        break;
    case FM_OP_RANDOM_EQUALIZE:
        fm_color_equalize(color, image);
        break;
    case FM_OP_RANDOM_ADJUST_SHARPNESS:
        fm_color_sharpness(color, image, fm_augment_other_memory(augment), (float)op->values[0]);
        break;
    default:
        break;
    }
}

static int apply_grayscale(fm_augment *augment, const fm_op *op, fm_error *error) {
    fm_image gray = augment->image;
    gray.channels = (int32_t)op->values[0];
    const int status = check_size(augment, &gray, error);
    if (status) return status;
    fm_augment_own(augment);
    if (op->arithmetic)
        fm_augment_tensor(augment, op);
    else
        fm_color_grayscale(&augment->color, &augment->image, gray.channels);
    return FM_OK;
}

int fm_augment_apply(fm_augment *augment, const fm_op *ops, const fm_draw *draws, fm_error *error) {
    switch (ops->kind) {
    case FM_OP_CENTER_CROP:
        return center_crop(augment, ops, draws, error);
    case FM_OP_RANDOM_CROP:
        return random_crop(augment, ops, draws, error);
    case FM_OP_PAD:
        return pad(augment, ops, error);
    case FM_OP_RANDOM_HORIZONTAL_FLIP:
        if (draws->flip) fm_augment_mirror(augment);
        return FM_OK;
    case FM_OP_GRAYSCALE:
        return apply_grayscale(augment, ops, error);
    case FM_OP_COLOR_JITTER:
        fm_augment_own(augment);
        if (ops->arithmetic)
            fm_augment_tensor_jitter(augment, ops, draws);
        else
            color_jitter(augment, ops, draws);
        return FM_OK;
    case FM_OP_RANDOM_ROTATION:
        random_rotation(augment, ops, draws);
        return FM_OK;
    case FM_OP_RANDOM_AFFINE:
        random_affine(augment, ops, draws);
        return FM_OK;
    case FM_OP_TRIVIAL_AUGMENT_WIDE:
    case FM_OP_RAND_AUGMENT:
    case FM_OP_AUTO_AUGMENT:
        augment_automatically(augment, ops, draws);
        return FM_OK;
    case FM_OP_RANDOM_BLUR:
        return draws->flip ? fm_augment_blur(augment, draws->values[0], error) : FM_OK;
    case FM_OP_TIMM_RAND_AUGMENT:
    case FM_OP_TIMM_AUTO_AUGMENT:
        return fm_augment_timm(augment, ops, draws, error);
    case FM_OP_RANDOM_APPLY:
        return draws->flip ? apply_children(augment, ops, draws, error) : FM_OK;
    case FM_OP_RANDOM_CHOICE:
    case FM_OP_RANDOM_ORDER:
        return apply_children(augment, ops, draws, error);
    case FM_OP_RESIZE:
    case FM_OP_RESIZE_KEEP_RATIO:
    case FM_OP_HALVING_CENTER_CROP:
    case FM_OP_RANDOM_RESIZED_CROP:
        if (augment->resize) return augment->resize(augment->resize_context, ops, draws, error);
        /* fall through */
    case FM_OP_RANDOM_ERASING:
        return fm_error_set(error, FM_ERR_STATE,
                            "op kind %d can't be applied to an image in memory", (int)ops->kind);
    default:
        if (!draws->flip) return FM_OK;
        fm_augment_own(augment);
        apply_in_place(augment, ops);
        return FM_OK;
    }
}
