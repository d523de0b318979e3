/*
 * Conversions of images for tensors, with torch's results, bit for bit.
 *
 *     fm_scaler *scaler = NULL;
 *     if (fm_scaler_open(&scaler, &error)) die(error.message);
 *     fm_scaler_run(scaler, pixels, height * width, planes);
 *     fm_normalize(planes, planes_before, 3, height * width, mean, std);
 *     fm_scaler_close(&scaler);
 *
 * All functions may be called from any thread at the same time.
 */
#ifndef FEEDMILL_TENSOR_H
#define FEEDMILL_TENSOR_H

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_scaler fm_scaler;

/* Opens a scaler. FM_ERR_NOMEM, or FM_ERR_ARGUMENT if FEEDMILL_CPU is invalid. */
FM_API FM_CHECK_RESULT int fm_scaler_open(fm_scaler **out, fm_error *error);

/*
 * Converts pixels[n_px][3] to out[3][n_px], each value divided by 255 in float32. Reads and writes
 * exactly these; they must not overlap.
 */
FM_API void fm_scaler_run(const fm_scaler *scaler, const uint8_t *pixels, size_t n_px, float *out);

/* Accepts NULL and a pointer to NULL; sets *scaler to NULL. */
FM_API void fm_scaler_close(fm_scaler **scaler);

/*
 * out[i][k] = (in[i][k] - mean[i]) / std[i] for n_planes planes of `plane` values, each operation
 * rounded to float32. `out` and `in` must not overlap.
 */
FM_API void fm_normalize(float *out, const float *in, size_t n_planes, size_t plane,
                         const float *mean, const float *std);

/* The same for images with three channels whose values lie side by side: in[n_px][3]. */
FM_API void fm_normalize_pixels(float *out, const float *in, size_t n_px, const float mean[3],
                                const float std[3]);

/*
 * out[i] = (float)in[i] * factor / divisor, each operation rounded to float32. `out` and `in` must
 * not overlap.
 */
FM_API void fm_scale_bytes(float *out, const uint8_t *in, size_t n, float factor, float divisor);

#ifdef __cplusplus
}
#endif
#endif
