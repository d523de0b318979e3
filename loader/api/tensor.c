/*
 * tensor.h: conversions between pixels and float tensors, on the caller's thread.
 */
#include "feedmill/tensor.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "transform/kernels.h"
#include "transform/store.h"

/* Pixels at the end, which are copied first: kernels read up to FM_ROW_SLACK bytes further. */
#define TAIL_PX (FM_ROW_SLACK / 3 + 1)
/* Pixels per call of a kernel. */
#define MOST_PX ((size_t)1 << 24)

struct fm_scaler {
    fm_plan plan;
    fm_store store;
};

int fm_scaler_open(fm_scaler **out, fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    fm_cpu_tier tier;
    const int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    fm_scaler *const scaler = fm_mem_zalloc(NULL, 1, sizeof(*scaler));
    if (!scaler) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a table of values");
    scaler->plan = (fm_plan){.in_channels = 3,
                             .channels = 3,
                             .out_width = 1,
                             .out_height = 1,
                             .dtype = FM_FLOAT32,
                             .layout = FM_NCHW,
                             .sample_bytes = 3 * sizeof(float)};
    for (int channel = 0; channel < 3; channel++)
        for (int value = 0; value < 256; value++)
            scaler->plan.table[channel][value] = (float)value / 255.0f;
    fm_store_init(&scaler->store, &scaler->plan, tier);
    *out = scaler;
    return FM_OK;
}

void fm_scaler_run(const fm_scaler *scaler, const uint8_t *pixels, size_t n_px, float *out) {
    fm_store store = scaler->store;
    store.plane = n_px;
    const size_t n_direct = n_px > TAIL_PX ? n_px - TAIL_PX : 0;
    for (size_t i = 0; i < n_direct; i += MOST_PX) {
        const size_t n = n_direct - i < MOST_PX ? n_direct - i : MOST_PX;
        store.row(&store, out + i, pixels + 3 * i, (int32_t)n);
    }
    uint8_t tail[3 * TAIL_PX + FM_ROW_SLACK] = {0};
    memcpy(tail, pixels + 3 * n_direct, 3 * (n_px - n_direct));
    store.row(&store, out + n_direct, tail, (int32_t)(n_px - n_direct));
    fm_store_drain(&store);
}

void fm_scaler_close(fm_scaler **pointer) {
    if (!pointer || !*pointer) return;
    fm_mem_free(*pointer);
    *pointer = NULL;
}

/* Wider vectors where the CPU has them; the operations, and so the results, are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define VECTORIZED
#endif

/* Values of a whole number of pixels and of vectors. */
#define PERIOD 24

VECTORIZED
static void normalize_plane(float *restrict out, const float *restrict in, size_t n, float mean,
                            float std) {
    for (size_t i = 0; i < n; i++) out[i] = (in[i] - mean) / std;
}

void fm_normalize(float *out, const float *in, size_t n_planes, size_t plane, const float *mean,
                  const float *std) {
    for (size_t i = 0; i < n_planes; i++)
        normalize_plane(out + i * plane, in + i * plane, plane, mean[i], std[i]);
}

VECTORIZED
static void normalize_periods(float *restrict out, const float *restrict in, size_t n,
                              const float *mean, const float *std) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < PERIOD; k++)
            out[i * PERIOD + k] = (in[i * PERIOD + k] - mean[k]) / std[k];
}

void fm_normalize_pixels(float *out, const float *in, size_t n_px, const float mean[3],
                         const float std[3]) {
    float means[PERIOD], stds[PERIOD];
    for (size_t k = 0; k < PERIOD; k++) {
        means[k] = mean[k % 3];
        stds[k] = std[k % 3];
    }
    const size_t n_periods = n_px / (PERIOD / 3);
    normalize_periods(out, in, n_periods, means, stds);
    for (size_t i = n_periods * PERIOD; i < 3 * n_px; i++)
        out[i] = (in[i] - mean[i % 3]) / std[i % 3];
}

VECTORIZED
static void scale(float *restrict out, const uint8_t *restrict in, size_t n, float factor,
                  float divisor) {
    for (size_t i = 0; i < n; i++) out[i] = (float)in[i] * factor / divisor;
}

void fm_scale_bytes(float *out, const uint8_t *in, size_t n, float factor, float divisor) {
    scale(out, in, n, factor, divisor);
}
