/* The transform of an image: its operations, and the type and layout of the result. */
#ifndef FEEDMILL_TRANSFORM_H
#define FEEDMILL_TRANSFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fm_op_kind {
    FM_OP_RESIZE = 1,
    FM_OP_CENTER_CROP = 2,
    FM_OP_RANDOM_RESIZED_CROP = 3,
    FM_OP_RANDOM_HORIZONTAL_FLIP = 4,
    FM_OP_RANDOM_CROP = 5,
    FM_OP_PAD = 6,
    FM_OP_RANDOM_VERTICAL_FLIP = 7,
    FM_OP_GRAYSCALE = 8,
    FM_OP_RANDOM_GRAYSCALE = 9,
    FM_OP_RANDOM_INVERT = 10,
    FM_OP_RANDOM_POSTERIZE = 11,
    FM_OP_RANDOM_SOLARIZE = 12,
    FM_OP_RANDOM_AUTOCONTRAST = 13,
    FM_OP_RANDOM_EQUALIZE = 14,
    FM_OP_RANDOM_ADJUST_SHARPNESS = 15,
    FM_OP_COLOR_JITTER = 16,
    FM_OP_RANDOM_ROTATION = 17,
    FM_OP_RANDOM_AFFINE = 18,
    FM_OP_RANDOM_ERASING = 19,
    FM_OP_RANDOM_APPLY = 20,
    FM_OP_RANDOM_CHOICE = 21,
    FM_OP_RANDOM_ORDER = 22,
    FM_OP_TRIVIAL_AUGMENT_WIDE = 23,
    FM_OP_RAND_AUGMENT = 24,
    FM_OP_AUTO_AUGMENT = 25,
    FM_OP_RESIZE_KEEP_RATIO = 26, /* timm's */
    FM_OP_RANDOM_BLUR = 27,       /* Pillow's GaussianBlur */
    FM_OP_TIMM_RAND_AUGMENT = 28,
    FM_OP_TIMM_AUTO_AUGMENT = 29,
    FM_OP_HALVING_CENTER_CROP = 30, /* center_crop_arr() of ADM and DiT */
    FM_OP_LIGHTING = 31, /* AlexNet's noise of colors, as many scripts have it: class Lighting */
} fm_op_kind;

/*
 * Pillow's filters; the resize equals Pillow's bit for bit with each. All but FM_FILTER_NEAREST
 * widen their support when an image shrinks, which avoids aliasing.
 */
typedef enum fm_filter {
    FM_FILTER_BILINEAR = 0,
    FM_FILTER_BICUBIC = 1,
    FM_FILTER_BOX = 2,
    FM_FILTER_HAMMING = 3,
    FM_FILTER_LANCZOS = 4,
    FM_FILTER_NEAREST = 5, /* also for torchvision's NEAREST_EXACT, the same on PIL images */
} fm_filter;

/* How a random number is compared with a limit. */
typedef enum fm_comparison {
    FM_LESS = 1,
    FM_LESS_OR_EQUAL = 2,
    FM_GREATER = 3,
    FM_GREATER_OR_EQUAL = 4
} fm_comparison;

/*
 * Whose arithmetic an op follows. For the ops RANDOM_VERTICAL_FLIP to RANDOM_AFFINE, and
 * TRIVIAL_AUGMENT_WIDE to AUTO_AUGMENT; other kinds, also those that contain ops, have 0. PyTorch
 * adds a product to a tensor with one rounding where the CPU has an instruction for that, else with
 * two. Its mean of an image, which a change of contrast needs, is certain to be the native one for
 * up to 65,793 pixels only.
 */
typedef enum fm_arithmetic {
    FM_ARITHMETIC_PILLOW = 0,         /* PIL images */
    FM_ARITHMETIC_TENSOR_V1 = 1,      /* uint8 tensors, with torchvision.transforms */
    FM_ARITHMETIC_TENSOR_V2 = 2,      /* uint8 tensors, with v2, products rounded */
    FM_ARITHMETIC_TENSOR_V2_FUSED = 3 /* the same, products not rounded */
} fm_arithmetic;

/*
 * How torch samples a uint8 tensor at the points of an affine transform; bits. For RANDOM_ROTATION,
 * RANDOM_AFFINE and TRIVIAL_AUGMENT_WIDE to AUTO_AUGMENT on tensors.
 */
typedef enum fm_sampling {
    FM_SAMPLING_FUSED_GRID = 1,    /* a product of a matrix and a pixel's row is added without being
                                      rounded. It depends on the CPU and the image's size */
    FM_SAMPLING_FUSED_SAMPLES = 2, /* the same of products of pixels and weights, and of a point's
                                      coordinate and half a size */
    FM_SAMPLING_WITHOUT_FILL = 4   /* there is no fill (fill=None): values outside are 0, between
                                      which and the border's ones it interpolates */
} fm_sampling;

#define FM_N_OP_VALUES 68
#define FM_N_DRAW_VALUES 40
#define FM_MAX_CHILDREN 16 /* of a RANDOM_CHOICE or RANDOM_ORDER */
#define FM_MAX_ERASED 8    /* boxes of a RANDOM_ERASING */

/*
 * One operation, as torchvision defines it on PIL images, or on tensors (`arithmetic`). Sizes are
 * pixels, 1 to 65,535. Contents of `values`, by kind; a fill is one value of 0 to 255 for each of
 * red, green and blue:
 *
 *     RANDOM_RESIZED_CROP    0 which crops: 0 torchvision's; 1 timm's, which may have no pixels;
 *                            2 MAE's: of one attempt, limited to the image; 3 EfficientNet's of
 *                            values[4] attempts, at most 1000, of which each must have the share
 *                            values[3] of the image, and 4 its central one, without a random
 *                            number: both to a square; 1 above 0: each
 *                            sample is resized by `filter` or by fm_filter values[1] - 1; 2 with
 *                            timm's: of how many filters random.choice() draws one, 0 to 2; 0: none
 *                            is drawn
 *     CENTER_CROP            4, 6-8 as RANDOM_CROP: how smaller images are padded
 *     RESIZE_KEEP_RATIO      0 weight of the longer edge, 0 to 1; 1 as RANDOM_RESIZED_CROP; 2 share
 *                            of images with another scale; 3-4 its range; 5 nonzero: of the area;
 *                            6 share of images with another aspect ratio; 7-8 its range; 9 as
 *                            RANDOM_RESIZED_CROP's 2
 *     RANDOM_CROP            0-3 padding left, top, right, bottom; 4 mode: 0 constant, 1 edge,
 *                            2 reflect, 3 symmetric; 5 pad if needed; 6-8 fill; 9 both paddings
 *                            are applied at once (torchvision's v2)
 *     PAD                    0-4, 6-8 as RANDOM_CROP
 *     GRAYSCALE              0 channels, 1 or 3
 *     RANDOM_POSTERIZE       0 bits, 1 to 8
 *     RANDOM_SOLARIZE        0 threshold
 *     RANDOM_ADJUST_SHARPNESS 0 factor
 *     COLOR_JITTER           0-1 brightness, 2-3 contrast, 4-5 saturation, 6-7 hue, each low and
 *                            high; 8 bit mask: which of the four are applied
 *     RANDOM_ROTATION        0-1 degrees; 2 has a center; 3-4 its x, y; 5-7 fill; 8 nonzero: always
 *                            by values[0], without a random number
 *     RANDOM_AFFINE          0-1 degrees; 2 translates; 3-4 by how much; 5 scales (by `scale`);
 *                            6 shears: 0, 2 or 4 of 7-10; 11 has a center; 12-13 its x, y;
 *                            14-16 fill. On tensors scale[0] is 0.001 or more, and shears are from
 *                            -89 to 89 degrees
 *     RANDOM_ERASING         3 what is written: 0 the values 0-2, by channel, in the result's
 *                            dtype; 1 a random number for each channel of a box, 2 one for each
 *                            pixel and channel, of fm_noise(): with a floating-point dtype only;
 *                            4-5 fewest and most boxes, 1 to FM_MAX_ERASED, or both 0: one box;
 *                            if not 0, it is timm's, and with fm_streams 6-7 are the logarithms of
 *                            `ratio`
 *     RANDOM_APPLY, RANDOM_GRAYSCALE  0 nonzero: always applied, without a random number
 *     RANDOM_*FLIP, RANDOM_INVERT to RANDOM_EQUALIZE  1 nonzero: likewise, also without one of
 *                            fm_streams
 *     RANDOM_APPLY           1 with fm_streams, an fm_comparison: applied if values[3] + values[4]
 *                            random.random() compares so to values[2], which has probability p; 0:
 *                            it draws as torchvision's; 5 in place of random.random(): 1
 *                            numpy.random.rand(); 2 the same, but the product is not rounded, as
 *                            in numpy.random.uniform() of some builds of NumPy; 3 torch.rand(1);
 *                            4 the same, and sum and product are rounded to float32
 *     RANDOM_CHOICE          0-15 cumulative probabilities of the children; 16-31 their
 *                            probabilities, for is_v2 with fm_streams; 32 with fm_streams, unless
 *                            is_v2, the number that is searched for in them: 0 random.random()
 *                            times the last one; 1 random.randrange() of the last one, 1 to 65,535;
 *                            2 numpy.random.randint() of it; 3 numpy.random.rand()
 *     TRIVIAL_AUGMENT_WIDE   0 bins; 3-5 fill; 6 nonzero: as torchvision's v2
 *     RAND_AUGMENT           0 number of ops, at most 8; 1 magnitude; 2 bins; 3-6 as above
 *     AUTO_AUGMENT           0 policy: 0 ImageNet, 1 CIFAR-10, 2 SVHN; 3-6 as above
 *     RANDOM_BLUR            0-1 limits of the radius (standard deviation), 0 to 10; of images
 *                            with three channels; 2 nonzero: with fm_streams the radius is
 *                            values[3] + values[4] random.random(), or if 2 to 5 as RANDOM_APPLY's
 *                            5 at 1 to 4; 0: it is values[0], and no number is drawn
 *     TIMM_RAND_AUGMENT      of images with three channels: 0 number of operations, at most 5;
 *                            1 probability of each; 2 magnitude; 3 its standard deviation, or -1:
 *                            uniform from 0 to the magnitude; 4 its upper bound, above 0 to 100;
 *                            5 translation at magnitude 10 as a share of the side, 0 to 10; 6 the
 *                            same in pixels, 0 to 65,535; 7 above 0: geometric operations use
 *                            `filter` or fm_filter values[7] - 1 at random; 8-10 fill; 11 nonzero:
 *                            no operation is chosen twice; 12-38 weight of each operation, by
 *                            fm_timm_augmentation; for fm_streams: 39 number of filters of which
 *                            random.choice() chooses, 0: none is drawn; 40 number of operations
 *                            of which numpy.random.choice() chooses, at most 27; 41-67 these
 *     TIMM_AUTO_AUGMENT      0 policy: 0 v0, 1 v0r, 2 original, 3 originalr, 4 3a; 3-10, 39 as
 *                            above
 *     HALVING_CENTER_CROP    1 as RANDOM_RESIZED_CROP, but both filters are used: the image is
 *                            halved by the second one while its shorter edge is at least twice the
 *                            result's, then resized by `filter` so that it is that long, then
 *                            cropped. The result is a square
 *     LIGHTING               0 standard deviation of three normally distributed factors; 1-9 a
 *                            matrix, by row, whose columns are eigenvectors; 10-12 their
 *                            eigenvalues; 13-15 a mean and 16-18 a divisor, by channel. To each
 *                            value of a pixel, a byte's in the value table, the sum of its row's
 *                            elements by the factors and the eigenvalues is added; then the mean is
 *                            subtracted, and the result is divided. In float32
 *
 * RANDOM_APPLY, RANDOM_CHOICE and RANDOM_ORDER contain the n_within ops that follow them, of which
 * n_children are direct children and the others are contained in those. RANDOM_ERASING must be the
 * last op, LIGHTING the last or the one before RANDOM_ERASING; neither can be contained in another.
 * LIGHTING needs images with three channels, and FM_FLOAT32.
 */
typedef struct fm_op {
    fm_op_kind kind;
    int32_t height;   /* RESIZE, RANDOM_RESIZED_CROP, *CENTER_CROP: rows of the result */
    int32_t width;    /* ... columns; RESIZE with width 0: height is the size of the shorter edge */
    int32_t max_size; /* RESIZE with width 0: limit of the longer edge, 0 for none */
    double scale[2];  /* RANDOM_RESIZED_CROP: share of the area, 0 <= scale[0] <= scale[1] */
    double ratio[2];  /* RANDOM_RESIZED_CROP: width / height, 0 < ratio[0] <= ratio[1] */
    double p;         /* RANDOM_*FLIP, RANDOM_GRAYSCALE to RANDOM_ADJUST_SHARPNESS,
                         RANDOM_ERASING, RANDOM_APPLY, RANDOM_BLUR: probability, 0 to 1 */
    fm_filter filter; /* ops that resize; zero: bilinear. RANDOM_ROTATION to
                         AUTO_AUGMENT, TIMM_*: bilinear, bicubic (not on tensors) or nearest */
    int32_t n_children, n_within;  /* RANDOM_APPLY, RANDOM_CHOICE, RANDOM_ORDER */
    double values[FM_N_OP_VALUES]; /* see above */
    bool is_v2; /* torchvision.transforms.v2's: it rounds matrices of affine transforms otherwise,
                   and with fm_streams draws some numbers in another order */
    fm_arithmetic arithmetic;
    uint32_t sampling; /* bits of fm_sampling; 0 without an arithmetic of tensors */
} fm_op;

/* Without a value_table, values of the 16-bit types are rounded to nearest, ties to even. */
typedef enum fm_dtype {
    FM_UINT8 = 1,   /* pixel values as decoded (torchvision's PILToTensor) */
    FM_FLOAT32 = 2, /* value_table, or (value / 255 - mean) / std in float32 arithmetic */
    FM_FLOAT16 = 3, /* IEEE binary16: value_table, or the float32 result rounded */
    FM_BFLOAT16 = 4 /* the upper half of a float32: likewise */
} fm_dtype;

/* The order of a sample's channels x height x width values in memory, which have no gaps. */
typedef enum fm_layout {
    FM_NCHW = 0, /* [3][height][width]: torch's contiguous_format */
    FM_NHWC = 1  /* [height][width][3]: torch's channels_last */
} fm_layout;

/*
 * Which resize the native one must equal: that of a version of Pillow, or torch's of uint8 tensors.
 * Versions of Pillow differ in which of the two passes runs first for a source of w x h pixels that
 * becomes ow x oh; the order changes the rounding of some pixels. torch rounds the weights to 16
 * bits, Pillow to 22. The rules are the same for all filters; FM_FILTER_NEAREST does not round.
 */
typedef enum fm_resize_order {
    FM_RESIZE_HORIZONTAL_FIRST = 0, /* Pillow up to 12.1: always the horizontal one */
    FM_RESIZE_PILLOW_13 = 1,        /* from 13.0: vertical if h - oh > 0 and h - oh > 2 (w - ow) */
    FM_RESIZE_PILLOW_12_2 = 2,      /* 12.2 up to 13.0: vertical if oh < h and h > 100 w */
    FM_RESIZE_TORCH = 3, /* torch's interpolate(antialias=True), always the horizontal one */
    /* The same of float32 tensors, by FM_FILTER_BILINEAR only, of at most one op; see
     * fm_float_resize. */
    FM_RESIZE_TORCH_FLOAT = 4
} fm_resize_order;

/* What FM_RESIZE_TORCH_FLOAT resizes, and how. */
typedef struct fm_float_resize {
    /* How torch was compiled for the CPU decides how it rounds. An output is the sum of its taps'
     * products, added in order; the taps behind the first are added in runs of this many, each
     * product rounded and then added, and the fewer taps behind the last whole run by fused
     * multiply-add. 1: nothing is fused; 0: every tap but the first. At most 64. */
    int32_t run_taps;
    /* [3][256] values by channel and pixel value, which are resized; copied at open. The result is
     * then (resized - mean) / std; the dtype must be FM_FLOAT32, value_table must be NULL, and
     * after the resize only CENTER_CROP, RANDOM_HORIZONTAL_FLIP, RANDOM_CROP without fill and
     * RANDOM_ERASING may follow. NULL: the pixel values themselves are resized, and the result is
     * rounded to pixel values, ties to even. */
    const float *values;
} fm_float_resize;

/*
 * The transform of decoded images. fm_config_init() sets no ops, FM_FLOAT32, FM_NCHW,
 * mean 0 and std 1. The arrays are copied at open.
 * The ops must give all images the same size, by a resize to a fixed size or a crop; else
 * fm_loader_open() fails with FM_ERR_ARGUMENT. At most 64 ops.
 */
typedef struct fm_transform {
    const fm_op *ops;
    size_t n_ops;
    fm_dtype dtype;
    fm_layout layout;
    float mean[3], std[3]; /* of red, green, blue; std not 0 */
    /* [3][256] results of the dtype by channel and pixel value, used in place of mean and std;
     * NULL: none. Ignored with FM_UINT8. The last bit of a 16-bit result depends on where the
     * caller's own code converts to 16 bits; a table reproduces it exactly. */
    const void *value_table;
    fm_resize_order resize_order;
    fm_float_resize float_resize; /* with FM_RESIZE_TORCH_FLOAT */
    /* Only with fm_arrays of images: their size, which no op then needs to set, and their channels:
     * 3, or 1 for grayscale, whose result has one channel, too (the table's first). 0: not given.
     */
    int32_t in_height, in_width, in_channels;
} fm_transform;

#ifdef __cplusplus
}
#endif
#endif
