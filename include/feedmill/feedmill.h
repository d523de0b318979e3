/*
 * feedmill - a native data loader for image training.
 *
 * A loader reads image files, decodes and transforms them on its own threads, and delivers
 * batches in the order in which they were submitted:
 *
 *     fm_config config;
 *     fm_config_init(&config);
 *     config.source = fm_folder_source(folder);
 *     config.transform.ops = ops; config.transform.n_ops = 2;
 *     fm_loader *loader = NULL;
 *     fm_error error;
 *     if (fm_loader_open(&loader, &config, &error)) die(error.message);
 *     fm_epoch epoch = {.order = order, .n_order = n, .seed = 7, .number = 0};
 *     if (fm_loader_start(loader, &epoch, &error)) die(error.message);
 *     fm_batch batch;
 *     int status;
 *     while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
 *         train(batch.images, batch.labels, batch.n);
 *         fm_batch_release(&batch);
 *     }
 *     fm_loader_close(&loader);
 *
 * Status: functions that can fail return 0 (FM_OK), a positive status that is not an error (FM_END,
 * FM_AGAIN, FM_FALLBACK), or a negative error. `error` may be NULL; otherwise every failure fills
 * it with a message that says what failed, where, and what to do.
 *
 * Threads: one thread at a time may use a loader; it is called the consumer below. Any thread may
 * call fm_batch_release(), at any time, also after fm_loader_close(), and fm_loader_stats() while
 * the loader is open.
 *
 * Fork: a child process must not use a loader of its parent. Calls there return FM_ERR_FORKED;
 * fm_batch_release() and fm_loader_close() do nothing there. Borrowed batches stay readable.
 */
#ifndef FEEDMILL_FEEDMILL_H
#define FEEDMILL_FEEDMILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/stats.h"
#include "feedmill/streams.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------- */

/* X(name, value, text) */
#define FM_STATUS_LIST(X)                                               \
    X(OK, 0, "success")                                                 \
    X(END, 1, "the epoch is over")                                      \
    X(AGAIN, 2, "nothing yet; try again")                               \
    X(FALLBACK, 3, "a sample needs the caller's decoder")               \
    X(ERR_ARGUMENT, -1, "invalid argument")                             \
    X(ERR_NOMEM, -2, "out of memory")                                   \
    X(ERR_BUDGET, -3, "memory budget too small")                        \
    X(ERR_STATE, -4, "call not allowed in this state")                  \
    X(ERR_FORKED, -5, "loader belongs to another process")              \
    X(ERR_THREAD, -6, "thread could not be created")                    \
    X(ERR_READ, -7, "file could not be read")                           \
    X(ERR_FORMAT, -8, "bytes are not an image of a known format")       \
    X(ERR_KIND, -9, "image kind is not decoded natively")               \
    X(ERR_DAMAGED, -10, "image is damaged or cut short")                \
    X(ERR_LIMIT, -11, "image or file exceeds a limit")                  \
    X(ERR_UNAVAILABLE, -12, "facility is not available on this system") \
    X(ERR_CANCELLED, -13, "operation was cancelled")                    \
    X(ERR_DEVICE, -14, "a call of the GPU's runtime failed")

typedef enum fm_status {
#define FM_X(name, value, text) FM_##name = value,
    FM_STATUS_LIST(FM_X)
#undef FM_X
} fm_status;

/* What went wrong. */
typedef struct fm_error {
    int status;         /* an fm_status */
    int sys_errno;      /* errno of the failed system call, or 0 */
    int64_t index;      /* dataset index of the failed sample, or -1 */
    char message[1024]; /* one sentence; UTF-8 unless it contains a path that is not */
} fm_error;

/* Short text of a status, such as "out of memory"; "unknown status" for other values. */
FM_API const char *fm_status_text(int status);

/* Version of the loaded library, such as "0.1.0". */
FM_API const char *fm_version(void);

/* ---- transform ------------------------------------------------------------------------------- */

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
 *                            2 MAE's: of one attempt, limited to the image; 1 above 0: each
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
 *                            in numpy.random.uniform() of some builds of NumPy; 3 torch.rand(1)
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
 *                            values[3] + values[4] random.random(), or if 2 to 4 as RANDOM_APPLY's
 *                            5 at 1 to 3; 0: it is values[0], and no number is drawn
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

/* ---- source ---------------------------------------------------------------------------------- */

/*
 * The restart index of a JPEG: where its rows of MCUs begin. The image has a single scan and
 * restart intervals that divide a row, so that each row but the first begins after a restart
 * marker. With the index, a loader without a cache reads only the bytes down to the bottom of the
 * crop; the rest may be damaged or missing. The index of another image costs time, but never
 * changes a pixel. In an epoch with streams, of samples that do not wait for others to be drawn,
 * the random parameters are drawn for the index's width and height: an image of another size is
 * then an error, FM_ERR_DAMAGED or that of fm_loader_fallback_draws().
 */
#define FM_MAX_RESTARTS 64
typedef struct fm_restart_index {
    int32_t width, height; /* of the image, in pixels */
    int32_t mcu_height;    /* 8 times the largest vertical sampling factor; 8 with one component */
    uint32_t n;            /* entries, 1 to FM_MAX_RESTARTS */
    /* Entry k: offset in bytes, from the image's first byte, of the data of MCU row k * n_rows / n.
     */
    uint32_t begin[FM_MAX_RESTARTS];
} fm_restart_index;

/*
 * One sample: the file to read, or the encoded image itself. `path` must only stay valid during the
 * call that passes it.
 *
 * With `data` no file is opened: the image is these data_bytes bytes, and the result is that of
 * a file with the same bytes. 0 bytes are an empty file; more than max_file_bytes are
 * FM_ERR_LIMIT when the batch is delivered. `path` is then only the sample's name in messages; a
 * sample without one is called "in memory".
 *
 * With `range_bytes` the image is that part of the file from `offset_bytes` on, such as a member
 * of a tar archive; with data both must be 0. The loader keeps such files open until it is
 * closed, the latest 256 or an eighth of RLIMIT_NOFILE: a sample then costs one read, and a file
 * that is replaced meanwhile may be read as it was. A file that ends within the range is
 * FM_ERR_READ.
 *
 * Ownership: `data` is not copied, and the caller keeps ownership. If the call that takes it
 * succeeds, it must stay readable and unchanged until fm_loader_next() has returned its batch or
 * the error in its place (FM_FALLBACK is neither), or until fm_loader_stop(), fm_loader_start() or
 * fm_loader_close() has returned. The first two end the epoch also when they fail, except with
 * FM_ERR_ARGUMENT, FM_ERR_STATE and FM_ERR_FORKED.
 * Threads: decode threads read it at any time until then, and nothing after its end. Samples,
 * batches and loaders may share it.
 */
typedef struct fm_sample {
    int64_t index;     /* dataset index, 0 <= index < n_samples; keys the random draws */
    int64_t label;     /* delivered in fm_batch.labels */
    const char *path;  /* file, absolute or relative to the working directory; under 4,096 bytes;
                          with data: a name, also under 4,096 bytes; NULL or empty for none */
    const void *data;  /* the encoded image in memory; NULL: the file at path is read */
    size_t data_bytes; /* its size; 0 without data */
    uint64_t offset_bytes; /* start of the image in the file; 0 without range_bytes */
    uint64_t range_bytes;  /* size of the image, at most max_file_bytes; 0: the whole file */
    /* The caller asserts that the whole image was decoded before without an error. Then only the
     * restart intervals of a JPEG that the transform needs are decoded. Damage in the others, which
     * no pixel of the result depends on, is not noticed. */
    bool verified;
    const fm_restart_index *rows; /* restart index of a verified range; NULL: none. Must stay valid
                                 during the call only */
    /* Of an object on a server: the ETag, with its quotes and under 136 bytes, that it had when it
     * was indexed. If it has another one now, the sample is rejected with FM_ERR_READ. NULL, empty
     * or weak (W/"..."): any version is read. Without effect on files and data. Must stay valid
     * during the call only. */
    const char *etag;
} fm_sample;

/*
 * Finds the file, or the image in memory, of each index of an epoch's order. `locate` gets *out all
 * zero, fills it for `index` and returns FM_OK, or a negative status: fm_loader_next() then returns
 * that when the batch is due, and the epoch ends. It is called on the consumer's thread only.
 * `data` that it sets must live as long as fm_sample says.
 */
typedef struct fm_source {
    void *user;
    size_t n_samples;
    int (*locate)(void *user, int64_t index, fm_sample *out);
} fm_source;

/*
 * An image folder: one sub-folder per class, sorted by name and numbered from 0; its files, sub-
 * folders included, with an image's extension (.jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp in
 * any case), sorted as torchvision's ImageFolder sorts them.
 */
typedef struct fm_folder fm_folder;
FM_API FM_CHECK_RESULT int fm_folder_open(fm_folder **out, const char *dir, fm_error *error);
/* The folder as a source. It stays valid until fm_folder_close(). */
FM_API fm_source fm_folder_source(const fm_folder *folder);
FM_API size_t fm_folder_n_classes(const fm_folder *folder);
/* Accepts NULL and a pointer to NULL; sets *folder to NULL. */
FM_API void fm_folder_close(fm_folder **folder);

/*
 * An array in memory with one row per sample: row i is the row_bytes bytes from data + i *
 * stride_bytes on. It stays the caller's and must stay readable until the loader is closed or no
 * epoch runs. Values written to it meanwhile appear in some of the following batches;
 * fm_loader_next() itself never reads it.
 */
typedef struct fm_array {
    const void *data;
    size_t n_rows;       /* at least 1 */
    size_t row_bytes;    /* at least 1 */
    size_t stride_bytes; /* at least row_bytes; 0: row_bytes */
} fm_array;

/*
 * Arrays as the source of all samples, in place of files. A batch then has one section for each
 * array (fm_loader_section()), which holds its samples' rows one after the other. With `images` the
 * first array's rows are images of transform.in_height x in_width pixels of in_channels bytes, and
 * its section holds what the transform makes of them; all others are copied as they are.
 */
typedef struct fm_arrays {
    const fm_array *list; /* copied at open */
    size_t n;             /* 1 to FM_MAX_ARRAYS; 0: the samples are files */
    bool images;
    /* The layout of an image in its row: bytes from one channel, line or pixel to the next. All 0:
     * contiguous [height][width][channels]. */
    uint32_t channel_stride, line_stride, pixel_stride;
} fm_arrays;
#define FM_MAX_ARRAYS 64

/*
 * Files of raw values, such as arrays in .npy files: each begins with the same header, and the
 * body_bytes bytes after it, up to the file's end, are copied to the sample's place in the batch. A
 * file with another header is FM_ERR_FORMAT, one of another size FM_ERR_DAMAGED. There are no ops;
 * fm_batch says 1 channel, 1 row and body_bytes columns of FM_UINT8.
 */
typedef struct fm_raw_format {
    const void *header; /* copied at open */
    size_t header_bytes;
    size_t body_bytes; /* 1 to 2^31 - 1; 0: the files are images */
} fm_raw_format;

/* ---- configuration --------------------------------------------------------------------------- */

typedef enum fm_reader_kind {
    FM_READER_AUTO = 0,  /* io_uring if it is available, else pread */
    FM_READER_URING = 1, /* io_uring, or open fails */
    FM_READER_PREAD = 2  /* a pool of threads that call pread */
} fm_reader_kind;

/* One read that fm_custom_reader.read() makes; valid during that call, on its thread. */
typedef struct fm_custom_read fm_custom_read;

/*
 * Reads whole objects, or parts of them, whose names feedmill can't read itself: paths that begin
 * with a scheme, as "memory://x" or "cached::https://host/x", other than those of
 * feedmill/remote.h.
 *
 * n_threads threads of the loader call `read`, each for one object at a time; a call may block.
 * With range_bytes, that part from offset_bytes on is wanted, else the whole object, as with
 * fm_sample. `read` ends with one call of fm_custom_read_put() or fm_custom_read_fail().
 *
 * Calls can't be interrupted. If an epoch or the loader ends during one, the loader does not wait
 * for it: it may go on after fm_loader_close(), and its result is dropped. Until it returns, later
 * epochs have one thread less. So `user` must outlive the loader: `retain` is called once while a
 * loader is opened, and `release` when no thread calls `read` any more, by any thread. Both may be
 * NULL.
 */
typedef struct fm_custom_reader {
    void (*read)(void *user, const char *name, uint64_t offset_bytes, uint64_t range_bytes,
                 fm_custom_read *result); /* NULL: no custom reader */
    void (*retain)(void *user);
    void (*release)(void *user);
    void *user;
    uint32_t n_threads; /* default 0: 16 */
} fm_custom_reader;

/* Copies the object or part; fewer bytes than a part has, or more than max_file_bytes, are an error
 * of the sample. */
FM_API void fm_custom_read_put(fm_custom_read *read, const void *bytes, size_t n_bytes);
/* The sample is rejected with FM_ERR_READ and this reason, which is copied, as far as there is
 * room. */
FM_API void fm_custom_read_fail(fm_custom_read *read, const char *why);

/*
 * Allocates the memory of batch buffers. `alloc` returns `bytes` bytes aligned to 64, or NULL, and
 * may set *handle; `free` gets the pointer and that handle. Both are called on the consumer's
 * thread, `free` also on the thread that releases the last batch after the loader was closed. With
 * handover, a buffer's memory belongs to the caller once next() has returned it, together with its
 * handle (fm_batch.memory_handle); next() allocates new memory for the buffer.
 */
typedef struct fm_allocator {
    void *user;
    void *(*alloc)(void *user, size_t bytes, void **handle);
    void (*free)(void *user, void *memory, void *handle);
    bool handover;
} fm_allocator;

/*
 * Keeps encoded files in memory while it is open, over all epochs and loaders that use it. A file
 * that was decoded natively is added while the budget lasts; none is evicted, so the hit
 * rate of a shuffled epoch is the share of the files that fits. Files are identified by their
 * paths: one that changes while the cache is open is not read again. Results are the same with and
 * without a cache. Any thread may use it, but not a forked child.
 */
typedef struct fm_cache fm_cache;

typedef struct fm_cache_usage {
    uint64_t n_files, file_bytes; /* kept */
    uint64_t used_bytes;          /* of the budget: files, their paths, tables, unused remainders */
    uint64_t n_refused;           /* times that a file did not fit */
} fm_cache_usage;

/*
 * budget_bytes: most memory to use. It is allocated in steps, and freed by fm_cache_close() only.
 * FM_ERR_BUDGET (more than this process may use, or too small for anything), NOMEM, THREAD.
 */
FM_API FM_CHECK_RESULT int fm_cache_open(fm_cache **out, uint64_t budget_bytes, fm_error *error);
/* In a forked child everything is 0: the cache is the parent's. */
FM_API void fm_cache_usage_get(fm_cache *cache, fm_cache_usage *out);
/* Closes the cache; all loaders that use it must be closed before. Accepts NULL and a pointer to
 * NULL; sets *cache to NULL. */
FM_API void fm_cache_close(fm_cache **cache);

/* The formats of images, as bits. */
typedef enum fm_format { FM_FORMAT_JPEG = 1, FM_FORMAT_PNG = 2, FM_FORMAT_WEBP = 4 } fm_format;

/* A further bit of rejected_formats, for callers that turn images as their metadata says: images of
 * any format whose EXIF or XMP data may ask for that. Those whose EXIF orientation is 1, upright,
 * are not among them, apart from PNG and WebP images. */
#define FM_REJECT_TURNED 8u

/* A further bit of rejected_formats, for callers that do not convert images to RGB: images that do
 * not hold exactly R, G and B: grayscale, CMYK, those with alpha and PNGs with a palette. */
#define FM_REJECT_NOT_RGB 16u

/* A further bit of rejected_formats, for the pixels of OpenCV's imread(), torchcodec and the like:
 * all images but JPEGs in color or grayscale, of at most 2^30 pixels, that no program turns as
 * their EXIF data says. */
#define FM_REJECT_NOT_UPRIGHT_JPEG 32u

/*
 * Where batches are delivered. With a device, the loader copies them from page-locked buffers to
 * memory that the consumer provides (fm_loader_add_output()), on a stream and a thread of its own.
 * FM_DEVICE_HOST needs no GPU: the memory is host memory, streams are ignored, and a copy is
 * complete when next() returns. It defines the results of the other devices.
 */
typedef enum fm_device_kind {
    FM_DEVICE_NONE = 0, /* in host memory */
    FM_DEVICE_HOST = 1,
    FM_DEVICE_CUDA = 2 /* needs the plug-in libfeedmill_cuda.so: in this library's folder, or the
                          file that the environment variable FEEDMILL_CUDA_LIBRARY names */
} fm_device_kind;

typedef struct fm_device_config {
    fm_device_kind kind; /* default FM_DEVICE_NONE */
    int32_t index;       /* of the GPU, as torch counts them; default 0 */
    /* Copy uint8 in NHWC, a quarter of the bytes of float32, and let the device convert it to the
     * dtype and layout of `transform`, with the same bits as the CPU: default true. Not done with
     * RANDOM_ERASING, with arrays, and where the result is FM_UINT8; see fm_loader_converts(). */
    bool convert;
    /* next() does not make the output's stream wait for the copy. The caller does so by
     * fm_loader_wait(), and can record events around it. Default false. */
    bool defer_wait;
} fm_device_config;

/*
 * Checks that a device of this kind can be used, and sets *n_devices (which may be NULL) to their
 * number. FM_ERR_UNAVAILABLE: no plug-in, no driver or no device; the message says which. Uses no
 * device memory.
 */
FM_API FM_CHECK_RESULT int fm_device_count(fm_device_kind kind, int32_t *n_devices,
                                           fm_error *error);

/* Most views of a sample. */
#define FM_MAX_VIEWS 16

typedef struct fm_config {
    size_t struct_bytes; /* sizeof(fm_config), set by fm_config_init() */
    fm_transform transform;
    /*
     * Further views: images that are made from the same sample by transforms of their own, such as
     * the two crops of contrastive learning. A sample is read and decoded once for all its views,
     * and has one label. The first view is that of `transform`; the random parameters of all views
     * are independent. At most FM_MAX_VIEWS views with 255 ops in total, of one dtype and layout;
     * only for images in files or memory (fm_sample). With a device, the device converts nothing.
     * Default none. The array may be freed when the loader is open.
     */
    const fm_transform *more_views;
    size_t n_more_views;
    /*
     * Each view is made from a file of its own, such as the two images of a pair: a sample is then
     * given to fm_loader_submit() as n_more_views + 1 fm_samples with one index, in the order of
     * the views, the first of which has the label. Files are read, decoded and rejected one by one.
     * Only for batches that are submitted, so not with `source`. Default false.
     */
    bool views_have_files;
    fm_source source;    /* may be left empty if every batch is submitted with its paths */
    fm_arrays arrays;    /* in place of files; default none */
    fm_raw_format raw;   /* for files of raw values; default: the files are images */
    uint64_t n_samples;  /* dataset length; default 0: source.n_samples, or the arrays' rows */
    uint32_t batch_size; /* most samples in a batch, 1 to 65,536; default 64 */
    uint32_t n_threads;  /* decode threads; default 0: usable CPUs - 1, at least 1 */
    uint32_t prefetch_batches; /* most batches submitted and not yet returned; default 4 */
    /* Limit of batch buffers, read buffers, row buffers and tables. Default 0: a quarter of the
     * memory that this process may use. Not included: copies of batches, and the coefficients of
     * progressive images, at most 80 MiB a thread (a larger image is rejected with FM_ERR_LIMIT). A
     * thread frees these when it has no work, or after 8 other images. With several views also not
     * the decoded part of an image: as much, until a thread has no work. */
    uint64_t memory_budget_bytes;
    uint64_t read_ahead_bytes; /* read buffers; default 0: 64 MiB, within the budget */
    /*
     * Most memory for seek points, within the budget; 0: none are kept. Default 512 MiB. When a
     * baseline JPEG without restart intervals is decoded, the loader notes where its rows of blocks
     * begin, in about 0.4% of the file's size, as long as memory is left. Later epochs begin to
     * decode at the rows that are needed, and decode several of them at once. Files are still read
     * whole, and one whose bytes have changed is decoded anew. The pixels are the same.
     *
     * With a path, the seek points are in that file instead, with room for those of usual
     * photographs, so that later runs have them from the start, and processes that decode parts of
     * the same dataset share them. It is made if it is missing, must be on a local disk or in
     * /dev/shm, and nobody may truncate it. Its contents are trusted. fm_loader_open() fails with
     * FM_ERR_READ or FM_ERR_ARGUMENT if it can't be used. Default NULL; copied.
     */
    uint64_t seek_index_bytes;
    const char *seek_index_path;
    fm_reader_kind reader;     /* default AUTO; FEEDMILL_READER in the environment
                                  (uring, pread, auto) overrides it */
    uint32_t read_depth;       /* files in flight; default 0: 64 with uring, 32 threads */
    uint64_t max_file_bytes;   /* of a file, or an image in memory; default 256 MiB */
    uint64_t max_image_pixels; /* default 89,478,485, where Pillow begins to warn */
    uint32_t rejected_formats; /* of fm_format: their images are rejected with FM_ERR_KIND, for the
                                  caller's own decoder; and FM_REJECT_*; default 0: none */
    bool decodes_scaled;       /* decodes JPEGs at 1/2, 1/4 or 1/8 of their size where a crop has as
                                  many times the pixels per side that the resize makes of it. Faster
                                  for large images, with other pixels: those of Pillow's
                                  Image.draft(). Default false */
    bool fallback;             /* next() returns FM_FALLBACK for rejected samples; default false:
                                  an error */
    fm_allocator allocator;    /* default: aligned memory of the C library, no handover */
    uint32_t sample_records;   /* how many of the latest to keep, at most 2^24; default 0 */
    fm_cache *cache;           /* files in memory, owned by the caller; default NULL */
    /* Reads paths that begin with s3://, gs://, http:// or https:// (feedmill/remote.h). Owned by
     * the caller, and closed after the loader. Default NULL: samples with such paths are rejected
     * with FM_ERR_READ. */
    struct fm_remote *remote;
    /* Keeps what is read from there in a folder (feedmill/disk_cache.h). Owned by the caller, and
     * closed after the loader. Default NULL. */
    struct fm_disk_cache *disk_cache;
    fm_custom_reader custom_reader; /* of other names; default: none, they are paths of files */
    fm_device_config device;        /* not together with an allocator; default: none */
} fm_config;

/* Fills *config with the defaults named above. */
FM_API void fm_config_init(fm_config *config);

/* ---- loader ---------------------------------------------------------------------------------- */

typedef struct fm_loader fm_loader;

/*
 * Opens a loader: checks the configuration, allocates all batch buffers and starts all threads.
 * On failure *out is NULL, and everything is freed. FM_ERR_ARGUMENT, FM_ERR_NOMEM, FM_ERR_BUDGET
 * (three buffers do not fit; the message names the bytes needed), FM_ERR_THREAD,
 * FM_ERR_UNAVAILABLE (no io_uring with FM_READER_URING; no plug-in, driver or device for the
 * device that is configured), FM_ERR_DEVICE. The kernels use the highest instruction set
 * of the CPU. FEEDMILL_CPU=scalar, sse41, avx2 or avx512, on AArch64 scalar or neon, in the
 * environment chooses a lower one (other names: FM_ERR_ARGUMENT). The results are always the same.
 */
FM_API FM_CHECK_RESULT int fm_loader_open(fm_loader **out, const fm_config *config,
                                          fm_error *error);

/*
 * One pass over a dataset. With an order, the loader splits it into batches and finds the files
 * through config.source. With order NULL the caller submits each batch and ends with
 * fm_loader_finish().
 */
typedef struct fm_epoch {
    uint64_t seed;        /* of the random parameters */
    uint32_t number;      /* of the epoch; also a key of the random parameters */
    const int64_t *order; /* dataset indices; copied */
    size_t n_order;
    bool drop_last; /* skip the last batch if it is not full */
    /*
     * For a caller whose own thread works on each batch (such as a collate function) before the
     * consumer asks for it. That thread submits and calls next(), fallback() and fallback_done();
     * the consumer's thread calls step_request(), step_ready(), step_return() and wake(). next()
     * also waits if no batch is submitted, and its waits are not recorded as steps:
     * fm_loader_step_ready() records them. Not with an order or a device. Default false: one thread
     * does everything.
     */
    bool ahead;
    /*
     * For an epoch that goes on where an earlier one stopped: [config.n_samples] how often each
     * index was used before, as each further use has random parameters of its own. Copied. Default
     * NULL: no index was used.
     */
    const uint32_t *used;
    /*
     * For random parameters as the worker processes of torch's DataLoader draw them, one sample
     * after the other: [n_streams] the generators of each of these processes when the epoch begins.
     * Copied. Before each batch is submitted, fm_loader_choose_worker() says to which of them it
     * belongs. seed, number and `used` then have no effect. The samples must be images; not with an
     * order. The operations that fm_loader_draws_torch() excepts draw other numbers than torch.
     * Takes 5,000 bytes for every eight samples of each pending batch, outside of the memory
     * budget. Default 0 and NULL: each sample's parameters depend on seed, number, its index, and
     * earlier uses of it only.
     */
    const fm_streams *streams;
    uint32_t n_streams;
} fm_epoch;

/*
 * Starts an epoch. Stops a running one first: drops its undelivered batches, within 100 ms;
 * FM_ERR_READ if reads are stuck in the kernel (then close the loader). Borrowed batches stay
 * valid. FM_ERR_ARGUMENT (an index of the order is outside the dataset), FM_ERR_STATE (an order
 * without config.source) and FM_ERR_FORKED leave a running epoch as it is.
 */
FM_API FM_CHECK_RESULT int fm_loader_start(fm_loader *loader, const fm_epoch *epoch,
                                           fm_error *error);

/* Stops the running epoch, as fm_loader_start() does. FM_OK if none is running. */
FM_API FM_CHECK_RESULT int fm_loader_stop(fm_loader *loader, fm_error *error);

/*
 * Submits a batch of 1 to batch_size samples in an epoch started without an order. Paths are
 * copied, data is not (see fm_sample). Does not block: FM_AGAIN if prefetch_batches are pending.
 * Each use of the same index in an epoch has random parameters of its own. n_samples counts
 * fm_samples, of which one of the loader's samples takes several with fm_config.views_have_files.
 */
FM_API FM_CHECK_RESULT int fm_loader_submit(fm_loader *loader, const fm_sample *samples,
                                            size_t n_samples, fm_error *error);

/*
 * The same for a loader with arrays: the samples indices[n_samples] are the rows rows[n_samples] of
 * every array; rows NULL: the indices themselves. Both are copied. FM_ERR_ARGUMENT: an index is
 * outside the dataset, or its row outside the arrays; the message names it.
 */
FM_API FM_CHECK_RESULT int fm_loader_submit_rows(fm_loader *loader, const int64_t *indices,
                                                 const int64_t *rows, size_t n_samples,
                                                 fm_error *error);

/* Ends the submission of batches in this epoch: next() returns FM_END after the last one. */
FM_API FM_CHECK_RESULT int fm_loader_finish(fm_loader *loader, fm_error *error);

/*
 * A borrowed batch: images[n][channels][height][width] or, with FM_NHWC,
 * images[n][height][width][channels], contiguous and of the plan's dtype; labels[n]. As a
 * tensor (n, c, height, width) its strides are, in values, (c * height * width, height * width,
 * width, 1) or (c * height * width, 1, c * width, c). The caller owns the memory until
 * fm_batch_release(). Two batches may be held at no cost while the next one is fetched; if more
 * are held, next() returns copies.
 * With arrays: labels is NULL, and `images` is the start of the batch's memory, in which
 * fm_loader_section() locates each array's rows; if no array holds images, channels, height and
 * width are 0.
 * With several views: `images` holds each view as an array like the above, where fm_loader_view()
 * says; channels, height and width are the first view's, whose offset is 0.
 * With a device: images and labels are those of the fm_output that the batch was copied to
 * (fm_loader_add_output()). The caller owns it again, and there is nothing to release.
 */
typedef struct fm_batch {
    void *images;
    const int64_t *labels;
    uint32_t n, channels, height, width;
    fm_dtype dtype;
    fm_layout layout;
    bool copied;         /* a copy, as the caller holds two batches already */
    uint64_t number;     /* counts from 0 in its epoch */
    void *memory_handle; /* with handover: the allocator's handle, now owned by the caller */
    void *output_user;   /* with a device: the output's `user` */
    void *borrowed;      /* private; NULL: nothing to release */
} fm_batch;

/*
 * The next batch in order. Blocks for at most timeout_ns (negative: without limit). FM_OK:
 * *batch is filled. FM_END: the epoch is over. FM_AGAIN: a timeout, or no batch is
 * pending and fm_loader_finish() was not called. FM_FALLBACK: see fm_loader_fallback().
 * With a device, FM_OK means that the batch's copy is queued; see fm_loader_wait().
 * FM_ERR_STATE: no output was added for the batch. FM_ERR_DEVICE, with the name of the failed call:
 * the loader copies no more batches, and next() returns the same error again; close the loader.
 * The error of a bad sample (FM_ERR_READ, FORMAT, KIND, DAMAGED, LIMIT) is returned in place of
 * its batch; the next call continues with the next batch.
 */
FM_API FM_CHECK_RESULT int fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch,
                                          fm_error *error);

/*
 * With fm_epoch.ahead: makes the waiting next(), or the next call of it, return FM_AGAIN, so that
 * its thread can submit more batches, or end. Any thread.
 */
FM_API void fm_loader_wake(fm_loader *loader);

/* Releases a batch and clears *batch. Any thread; accepts NULL and an empty batch. */
FM_API void fm_batch_release(fm_batch *batch);

/*
 * With a device: device memory for one batch, and the stream that uses it.
 *
 * `images` has space for batch_size samples, `labels` for as many labels
 * (fm_loader_output_bytes()); a smaller batch leaves the rest unchanged. With arrays `images` gets
 * the whole memory of a batch, and labels is NULL. `stream` is the stream on which the memory was
 * allocated, as a handle of the device's driver (torch.cuda.Stream.cuda_stream); NULL: the legacy
 * default stream. Work that was queued on it before this call may still use the memory: the copy
 * begins after that work.
 */
typedef struct fm_output {
    void *images;
    size_t image_bytes; /* size of the memory at images; FM_ERR_ARGUMENT if it is too small */
    int64_t *labels;
    size_t label_bytes;
    void *stream;
    void *user; /* handed back in fm_batch.output_user */
} fm_output;

/* Bytes that an output needs; either pointer may be NULL. 0 without a device. */
FM_API void fm_loader_output_bytes(const fm_loader *loader, size_t *image_bytes,
                                   size_t *label_bytes);

/*
 * Provides device memory for one of the next batches. Each batch that next() returns with FM_OK
 * uses one output, in the order in which they were added. With two of them, and another before
 * each next(), a batch is copied while the consumer computes on the one before.
 * Does not block, nor wait for the device. Consumer's thread; an epoch must have been started.
 * Ownership: the loader owns the memory until next() has returned it, or until fm_loader_stop(),
 * fm_loader_start() or fm_loader_close() has returned. Then it may be freed in the order of
 * `stream`, which waits for a copy that still runs.
 * FM_AGAIN: the loader has the maximum of outputs (prefetch_batches + 2, at most 32).
 * FM_ERR_STATE: no device, no epoch, or `stream` is being captured into a graph.
 * FM_ERR_ARGUMENT, FM_ERR_DEVICE.
 */
FM_API FM_CHECK_RESULT int fm_loader_add_output(fm_loader *loader, const fm_output *output,
                                                fm_error *error);

/* Outputs that were added and not used by next() yet. Consumer's thread. */
FM_API size_t fm_loader_n_outputs(const fm_loader *loader);

/*
 * Makes `stream` wait, on the device, for the copy of the batch that next() returned last;
 * returns at once. next() does this for the output's own stream, unless defer_wait is set; any
 * other stream that uses the batch needs a call of its own.
 * Consumer's thread, before the following next(). FM_ERR_STATE: there is no such batch, or
 * `stream` is being captured into a graph (repeat the call when that has ended). FM_ERR_DEVICE.
 */
FM_API FM_CHECK_RESULT int fm_loader_wait(fm_loader *loader, void *stream, fm_error *error);

/* Whether buffers hold uint8 in NHWC that the device converts (fm_device_config.convert). */
FM_API bool fm_loader_converts(const fm_loader *loader);

/*
 * After next() returned FM_FALLBACK: the sample that the caller must finish. The caller either
 * writes it to `out` (channels x height x width values of `dtype` in `layout`: the plan's or, if
 * the device converts, uint8 and NHWC) and calls fm_loader_fallback_done() with FM_OK, or calls it
 * with an error status: next() then drops the sample's batch and returns that status.
 * With several views `out` is the first view's place, and fm_loader_fallback_view() has the others.
 * If these have files of their own, each rejected file is passed alone: `out` is its view's place.
 */
typedef struct fm_fallback {
    int64_t index;
    uint32_t occurrence; /* earlier uses of this index in this epoch */
    uint32_t position;   /* in its batch, of fm_samples */
    int cause;           /* FM_ERR_READ, FORMAT, KIND, DAMAGED or LIMIT */
    const char *path;    /* valid until fm_loader_fallback_done(); with data: a name, or empty */
    const void *data;    /* as submitted; NULL: the file at path */
    size_t data_bytes;
    uint64_t offset_bytes, range_bytes; /* as submitted */
    void *out;
    size_t out_bytes;
    fm_dtype dtype;
    fm_layout layout;
    fm_error error; /* why it was not decoded natively */
} fm_fallback;
FM_API FM_CHECK_RESULT int fm_loader_fallback(fm_loader *loader, fm_fallback *out);
FM_API FM_CHECK_RESULT int fm_loader_fallback_done(fm_loader *loader, int status, fm_error *error);

/*
 * In an epoch with streams (fm_epoch.streams), each of which stands for a virtual worker: a worker
 * process of torch's DataLoader, of which only the generators exist. Consumer's thread.
 *
 * choose_worker(): the batches that are submitted from now on belong to this virtual worker; until
 * the first call to number 0. It draws for its batches in the order in which they are submitted.
 * With `waits` it draws for them only once give_streams() was called for the batch.
 * FM_ERR_ARGUMENT: there is no such virtual worker.
 *
 * give_streams(): sets a virtual worker's generators, and lets its next batch with `waits` begin,
 * which may be submitted later. FM_ERR_STATE: the virtual worker has begun a batch, and not drawn
 * for all of its samples.
 *
 * streams(): a virtual worker's generators behind its last batch that next() returned.
 *
 * fallback_streams(): the virtual worker's generators before the sample that next() returned with
 * FM_FALLBACK. What torch's worker process draws next if it can't load the sample: it leaves out
 * the rest of the batch.
 *
 * A batch whose sample fails is not dropped: next() returns its error again and again, as the
 * samples behind it were drawn for as if it had been made. Start another epoch, with the generators
 * of streams() and fallback_streams().
 */
FM_API FM_CHECK_RESULT int fm_loader_choose_worker(fm_loader *loader, uint32_t worker, bool waits,
                                                   fm_error *error);
FM_API FM_CHECK_RESULT int fm_loader_give_streams(fm_loader *loader, uint32_t worker,
                                                  const fm_streams *streams, fm_error *error);
FM_API FM_CHECK_RESULT int fm_loader_streams(const fm_loader *loader, uint32_t worker,
                                             fm_streams *out, fm_error *error);
FM_API FM_CHECK_RESULT int fm_loader_fallback_streams(fm_loader *loader, fm_streams *out,
                                                      fm_error *error);

/* After next() returned FM_FALLBACK: the place of a view of the sample, and its size. FM_ERR_STATE:
 * no fallback is pending. FM_ERR_ARGUMENT: there is no such view, or it is another file's. */
FM_API FM_CHECK_RESULT int fm_loader_fallback_view(fm_loader *loader, size_t number, void **out,
                                                   size_t *out_bytes);

/* Batches that were submitted and not returned yet. Consumer's thread. */
FM_API size_t fm_loader_n_pending(const fm_loader *loader);

/* Rows and columns of a delivered image; either pointer may be NULL. */
FM_API void fm_loader_out_size(const fm_loader *loader, int *height, int *width);

/* Channels of a delivered image: 3, or 1 for grayscale arrays and after GRAYSCALE to 1 channel. */
FM_API int fm_loader_out_channels(const fm_loader *loader);

/* With arrays: sets *offset to the start of array `number`'s rows in a batch, in bytes from
 * fm_batch.images, aligned to 64, and *row_bytes to the size of each row. Either pointer may be
 * NULL. FM_ERR_ARGUMENT: there is no such array. */
FM_API FM_CHECK_RESULT int fm_loader_section(const fm_loader *loader, size_t number, size_t *offset,
                                             size_t *row_bytes);

/* A view in a batch's memory: images[n][channels][height][width], or [height][width][channels]. */
typedef struct fm_view {
    size_t offset; /* in bytes from fm_batch.images, aligned to 64 */
    uint32_t channels, height, width;
} fm_view;

/* Views of a sample, at least 1; 0 with arrays. */
FM_API size_t fm_loader_n_views(const fm_loader *loader);

/* FM_ERR_ARGUMENT: there is no such view. */
FM_API FM_CHECK_RESULT int fm_loader_view(const fm_loader *loader, size_t number, fm_view *out);

/* Snapshot of the counters. */
FM_API void fm_loader_stats(fm_loader *loader, fm_stats *out);

/*
 * Per-step records, oldest first: those numbered `from` and later, as far as they are still kept
 * (the last 65,536). Returns how many were written to out[capacity].
 */
FM_API size_t fm_loader_steps(fm_loader *loader, uint64_t from, fm_step *out, size_t capacity);

/*
 * Records of the samples that were finished or rejected, in that order: those numbered `from`
 * (counted since open) and later, as far as they are still kept (the last config.sample_records).
 * Returns how many were written to out[capacity], at most 1,024; *first gets the number of out[0].
 */
FM_API size_t fm_loader_sample_records(fm_loader *loader, uint64_t from, fm_sample_record *out,
                                       size_t capacity, uint64_t *first);

/*
 * The samples that took longest since open, each index at most once, the slowest first: at most
 * FM_N_SLOW. Returns how many were written to out[capacity].
 */
FM_API size_t fm_loader_slow_samples(fm_loader *loader, fm_slow_sample *out, size_t capacity);

/*
 * For a binding that does work before and after next(): set the step's request, or the last step's
 * return, to now. Without these calls, the start and the end of next() count.
 */
FM_API void fm_loader_step_request(fm_loader *loader);
FM_API void fm_loader_step_return(fm_loader *loader);

/*
 * With fm_epoch.ahead: records a step. Its consumer gets batch `number` of this epoch now, which
 * next() returned before, or an error in place of it. ready_ns: when the caller's own work on it
 * was done, on the monotonic clock; the wait for that work is python_ns. n_ready: batches that were
 * ready when the consumer asked. Consumer's thread. FM_ERR_ARGUMENT: there is no such batch.
 */
FM_API FM_CHECK_RESULT int fm_loader_step_ready(fm_loader *loader, uint64_t number,
                                                uint64_t ready_ns, uint32_t n_ready,
                                                fm_error *error);

/*
 * Ends all threads and frees everything but borrowed batches, within 100 ms. Reads that are
 * stuck in the kernel keep their buffers, which are freed when the reads return.
 * With a device it waits for queued copies, and therefore for the work in the outputs' streams that
 * the copies follow. Accepts NULL and a pointer to NULL; sets *loader to NULL.
 */
FM_API void fm_loader_close(fm_loader **loader);

/* ---- single images --------------------------------------------------------------------------- */

/*
 * Decodes a single image on the calling thread, without a loader: open, ask for the size, decode
 * into the caller's memory, close. Threads may use different images at the same time. An image that
 * a loader does not decode fails with the same status here; the caller then uses another decoder.
 */
typedef struct fm_imread fm_imread;

typedef enum fm_channels { FM_RGB = 0, FM_BGR = 1 } fm_channels;

/*
 * Reads sample->path, or takes sample->data, which must stay until close, and reads the header;
 * the rest of *sample is ignored. max_image_pixels 0: the default of fm_config, whose default also
 * limits the file's bytes. Blocks while it reads the file.
 * On failure *out is NULL. FM_ERR_READ, FORMAT, KIND, DAMAGED, LIMIT, NOMEM, ARGUMENT.
 */
FM_API FM_CHECK_RESULT int fm_imread_open(fm_imread **out, const fm_sample *sample,
                                          uint64_t max_image_pixels, fm_error *error);

/* The image's format, detected from its first bytes. */
FM_API fm_format fm_imread_format(const fm_imread *image);

/* Rows and columns; with upright, after the rotation that the EXIF data asks for. */
FM_API void fm_imread_size(const fm_imread *image, bool upright, int32_t *height, int32_t *width);

/*
 * Decodes into contiguous out[height][width][3] of the size above. Can be called once. The pixels
 * equal those of Pillow's convert("RGB") or, with FM_BGR and upright, those of OpenCV's imread().
 * FM_BGR and upright support JPEGs of one or three components only; other images are FM_ERR_KIND.
 * After a failure (FM_ERR_KIND, DAMAGED, LIMIT, NOMEM, STATE) the contents of out are undefined.
 */
FM_API FM_CHECK_RESULT int fm_imread_pixels(fm_imread *image, fm_channels channels, bool upright,
                                            uint8_t *out, fm_error *error);

/* Accepts NULL and a pointer to NULL; sets *image to NULL. */
FM_API void fm_imread_close(fm_imread **image);

/* ---- diagnostics ----------------------------------------------------------------------------- */

/*
 * The random parameters of one op for one sample. Fields that an op does not use are 0, as are all
 * but `kind` of a contained op that was not applied. Contents of `values`, by kind:
 *
 *     COLOR_JITTER         0-3 order of brightness 0, contrast 1, saturation 2, hue 3; 4-7 factors
 *     RANDOM_ROTATION      0 angle
 *     RANDOM_BLUR          0 radius
 *     RANDOM_AFFINE        0 angle, 1-2 translation, 3 scale, 4-5 shear
 *     RANDOM_RESIZED_CROP, RESIZE_KEEP_RATIO  0 the fm_filter, if it is drawn
 *     HALVING_CENTER_CROP  0-1 width and height of the image that is cropped
 *     LIGHTING             0-2 the factors, in float32
 *     RANDOM_ERASING       with random numbers, or more than one box: 0-1 the lower and upper 32
 *                          bits of fm_noise()'s seed; for each box but the first: top * 65536 +
 *                          left, and height * 65536 + width. With fm_streams and a random number
 *                          for each channel, 16 and on: three of them for each box, in place of
 *                          those of fm_noise()
 *     RANDOM_CHOICE        0 which child
 *     RANDOM_ORDER         the children's order
 *     TRIVIAL_AUGMENT_WIDE, RAND_AUGMENT, AUTO_AUGMENT  pairs of an fm_augmentation and its
 *                          magnitude
 *     TIMM_RAND_AUGMENT, TIMM_AUTO_AUGMENT  for each operation that is applied: its
 *                          fm_timm_augmentation; its magnitude, with a minus sign where timm
 *                          negates what it makes of it; the fm_filter or the blur's radius
 */
typedef struct fm_draw {
    fm_op_kind kind;
    int32_t top, left, height,
        width; /* crops, RANDOM_ERASING: the (first) box; RESIZE: height, width of the result */
    bool flip; /* whether an op with a probability is applied */
    int32_t n_values;
    double values[FM_N_DRAW_VALUES];
} fm_draw;

/* The operations of torchvision's automatic augmentations. */
typedef enum fm_augmentation {
    FM_AUGMENT_IDENTITY,
    FM_AUGMENT_SHEAR_X,
    FM_AUGMENT_SHEAR_Y,
    FM_AUGMENT_TRANSLATE_X,
    FM_AUGMENT_TRANSLATE_Y,
    FM_AUGMENT_ROTATE,
    FM_AUGMENT_BRIGHTNESS,
    FM_AUGMENT_COLOR,
    FM_AUGMENT_CONTRAST,
    FM_AUGMENT_SHARPNESS,
    FM_AUGMENT_POSTERIZE,
    FM_AUGMENT_SOLARIZE,
    FM_AUGMENT_AUTOCONTRAST,
    FM_AUGMENT_EQUALIZE,
    FM_AUGMENT_INVERT
} fm_augmentation;

/* The operations of timm's automatic augmentations, in the order of its table NAME_TO_OP. */
typedef enum fm_timm_augmentation {
    FM_TIMM_AUTO_CONTRAST,
    FM_TIMM_EQUALIZE,
    FM_TIMM_INVERT,
    FM_TIMM_ROTATE,
    FM_TIMM_POSTERIZE,
    FM_TIMM_POSTERIZE_INCREASING,
    FM_TIMM_POSTERIZE_ORIGINAL,
    FM_TIMM_SOLARIZE,
    FM_TIMM_SOLARIZE_INCREASING,
    FM_TIMM_SOLARIZE_ADD,
    FM_TIMM_COLOR,
    FM_TIMM_COLOR_INCREASING,
    FM_TIMM_CONTRAST,
    FM_TIMM_CONTRAST_INCREASING,
    FM_TIMM_BRIGHTNESS,
    FM_TIMM_BRIGHTNESS_INCREASING,
    FM_TIMM_SHARPNESS,
    FM_TIMM_SHARPNESS_INCREASING,
    FM_TIMM_SHEAR_X,
    FM_TIMM_SHEAR_Y,
    FM_TIMM_TRANSLATE_X,
    FM_TIMM_TRANSLATE_Y,
    FM_TIMM_TRANSLATE_X_REL,
    FM_TIMM_TRANSLATE_Y_REL,
    FM_TIMM_DESATURATE,
    FM_TIMM_GAUSSIAN_BLUR,
    FM_TIMM_GAUSSIAN_BLUR_RAND
} fm_timm_augmentation;
#define FM_N_TIMM_AUGMENTATIONS 27

/*
 * The random parameters of one view of one sample, out[n_ops] in order of the ops of the view's
 * transform, for an image of width x height pixels. View 0 is that of fm_config.transform. Pure:
 * the same arguments give the same result in every process.
 */
FM_API FM_CHECK_RESULT int fm_loader_draws(const fm_loader *loader, size_t view, uint64_t seed,
                                           uint32_t epoch, int64_t index, uint32_t occurrence,
                                           int32_t width, int32_t height, fm_draw *out,
                                           fm_error *error);

/*
 * The random parameters that torchvision's transforms themselves would draw, from the generators
 * in *streams, which are advanced as by the transforms. Otherwise as fm_loader_draws(). The random
 * numbers of a RANDOM_ERASING's pixels are skipped; they are fm_noise_torch()'s. FM_ERR_ARGUMENT,
 * LIMIT: *streams is undefined.
 */
FM_API FM_CHECK_RESULT int fm_loader_draws_torch(const fm_loader *loader, size_t view,
                                                 fm_streams *streams, int32_t width, int32_t height,
                                                 fm_draw *out, fm_error *error);

/*
 * Draws as fm_loader_draws_torch(), and sets *streams to the generators from which a RANDOM_ERASING
 * then draws the random numbers of its boxes' pixels; if it draws none, to those behind all draws.
 */
FM_API FM_CHECK_RESULT int fm_loader_before_pixels(const fm_loader *loader, size_t view,
                                                   fm_streams *streams, int32_t width,
                                                   int32_t height, fm_error *error);

/*
 * In an epoch with streams: the random parameters of a view of the sample that next() returned with
 * FM_FALLBACK, for an image of this size, as fm_loader_draws(). The size of an image whose header
 * can't be read becomes known by this call: without it fm_loader_fallback_done() does not accept
 * the sample, and samples behind it are not made. FM_ERR_STATE: no such fallback is pending, or
 * parameters were drawn for another size. FM_ERR_LIMIT. Consumer's thread.
 */
FM_API FM_CHECK_RESULT int fm_loader_fallback_draws(fm_loader *loader, size_t view, int32_t width,
                                                    int32_t height, fm_draw *out, fm_error *error);

/*
 * Random numbers with the standard normal distribution, which RANDOM_ERASING writes: n of those
 * that belong to a seed, from number `first` on. Of a sample's boxes in turn they are written by
 * channel, row and column. Number i is the normal quantile (Wichura's algorithm AS241, in double,
 * rounded to float32) of (w + 0.5) / 2^32, where w is word i % 4 of Philox4x32-10 with the seed as
 * its key (lower word first) and the counter i / 4. The same on every machine.
 */
FM_API void fm_noise(uint64_t seed, uint64_t first, size_t n, float *out);

/*
 * torch.empty(n).normal_(), float32, from the generator of torch in *streams, which is advanced:
 * the numbers that RANDOM_ERASING writes to the pixels of a box in an epoch with streams. For n of
 * 16 and more they are those of torch on x86-64 CPUs with AVX2; elsewhere torch's own differ in
 * their last bits.
 */
FM_API void fm_noise_torch(fm_streams *streams, size_t n, float *out);

/* CPUs that this process may use: its threads' affinity and the cgroup's quota, at least 1. */
FM_API uint32_t fm_usable_cpus(void);

/* Version of the libjpeg-turbo that the library was compiled for, such as "2.1.5". */
FM_API const char *fm_jpeg_version(void);

/*
 * Whether feedmill's own Huffman decoder decodes JPEGs with one scan. It needs a header of
 * libjpeg-turbo (jpegint.h) that some packages leave out; without it libjpeg-turbo's decoder is
 * used.
 */
FM_API bool fm_jpeg_own_huffman(void);

/*
 * The formats that the library decodes: "JPEG", with ", PNG" if it was built with libspng and ",
 * WebP" if with libwebp. Images of other formats are rejected with FM_ERR_FORMAT.
 */
FM_API const char *fm_formats(void);

#ifdef __cplusplus
}
#endif
#endif
