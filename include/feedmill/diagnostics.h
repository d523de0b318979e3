/* The random parameters of samples, and what the library was built with. */
#ifndef FEEDMILL_DIAGNOSTICS_H
#define FEEDMILL_DIAGNOSTICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/loader.h"
#include "feedmill/status.h"
#include "feedmill/streams.h"
#include "feedmill/transform.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

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
