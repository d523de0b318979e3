#define _GNU_SOURCE
#include "transform/store.h"

#include <math.h>
#include <string.h>

#include "transform/half.h"
#include "transform/kernels.h"

#if defined(__x86_64__)
#include "transform/x86/store_avx2.h"
#include "transform/x86/store_sse41.h"
#elif defined(__aarch64__)
#include "transform/arm/store_neon.h"
#endif

/* ---- scalar ---------------------------------------------------------------------------------- */

/* One channel at a time, four pixels per turn: simpler loops take twice the time. */
static void planar_u8(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px;
    for (size_t channel = 0; channel < 3; channel++) {
        uint8_t *restrict const to = (uint8_t *)out + channel * store->plane;
        const uint8_t *const from = in + channel;
        size_t i = 0;
        for (; i + 4 <= n; i += 4) {
            to[i + 0] = from[3 * i + 0];
            to[i + 1] = from[3 * i + 3];
            to[i + 2] = from[3 * i + 6];
            to[i + 3] = from[3 * i + 9];
        }
        for (; i < n; i++) to[i] = from[3 * i];
    }
}

static void packed_u8(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    (void)store;
    memcpy(out, in, 3 * (size_t)n_px);
}

static void planar_f32(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const float(*const table)[256] = store->plan->table;
    float *restrict const red = out, *restrict const green = red + store->plane;
    float *restrict const blue = green + store->plane;
    for (size_t i = 0; i < (size_t)n_px; i++) {
        red[i] = table[0][in[3 * i + 0]];
        green[i] = table[1][in[3 * i + 1]];
        blue[i] = table[2][in[3 * i + 2]];
    }
}

static void packed_f32(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const float(*const table)[256] = store->plan->table;
    float *restrict const to = out;
    for (size_t i = 0; i < 3 * (size_t)n_px; i += 3) {
        to[i + 0] = table[0][in[i + 0]];
        to[i + 1] = table[1][in[i + 1]];
        to[i + 2] = table[2][in[i + 2]];
    }
}

static void planar_16(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px;
    for (size_t channel = 0; channel < 3; channel++) {
        const uint32_t *const bits = store->plan->bits[channel];
        uint16_t *restrict const to = (uint16_t *)out + channel * store->plane;
        const uint8_t *const from = in + channel;
        size_t i = 0;
        for (; i + 4 <= n; i += 4) {
            to[i + 0] = (uint16_t)bits[from[3 * i + 0]];
            to[i + 1] = (uint16_t)bits[from[3 * i + 3]];
            to[i + 2] = (uint16_t)bits[from[3 * i + 6]];
            to[i + 3] = (uint16_t)bits[from[3 * i + 9]];
        }
        for (; i < n; i++) to[i] = (uint16_t)bits[from[3 * i]];
    }
}

static void packed_16(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const uint32_t(*const bits)[256] = store->plan->bits;
    uint16_t *restrict const to = out;
    for (size_t i = 0; i < 3 * (size_t)n_px; i += 3) {
        to[i + 0] = (uint16_t)bits[0][in[i + 0]];
        to[i + 1] = (uint16_t)bits[1][in[i + 1]];
        to[i + 2] = (uint16_t)bits[2][in[i + 2]];
    }
}

/* Stores n bytes that are `step` bytes apart as contiguous values. */
static void store_channel(const fm_plan *plan, int channel, void *out, const uint8_t *in, size_t n,
                          size_t step) {
    uint16_t *const half = out;
    float *const single = out;
    uint8_t *const byte = out;
    switch (plan->dtype) {
    case FM_UINT8:
        for (size_t i = 0; i < n; i++) byte[i] = in[step * i];
        break;
    case FM_FLOAT32:
        for (size_t i = 0; i < n; i++) single[i] = plan->table[channel][in[step * i]];
        break;
    case FM_FLOAT16:
    case FM_BFLOAT16:
        for (size_t i = 0; i < n; i++) half[i] = (uint16_t)plan->bits[channel][in[step * i]];
    }
}

static void gray_row(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    store_channel(store->plan, 0, out, in, (size_t)n_px, 3);
}

static void plane_scalar(const fm_store *store, int channel, void *out, const uint8_t *in,
                         size_t n) {
    store_channel(store->plan, channel, out, in, n, 1);
}

static fm_store_row *scalar_row(const fm_plan *plan) {
    if (plan->channels == 1) return gray_row;
    const bool packed = plan->layout == FM_NHWC;
    switch (plan->dtype) {
    case FM_UINT8:
        return packed ? packed_u8 : planar_u8;
    case FM_FLOAT32:
        return packed ? packed_f32 : planar_f32;
    case FM_FLOAT16:
    case FM_BFLOAT16:
        break;
    }
    return packed ? packed_16 : planar_16;
}

#if defined(__x86_64__) || defined(__aarch64__)

/* ---- arithmetic instead of the table --------------------------------------------------------- */

/* Fills a row with 256 gray pixels, one of each value. */
static void fill_ramp(uint8_t *ramp) {
    memset(ramp, 0, 3 * 256 + FM_ROW_SLACK);
    for (int i = 0; i < 3 * 256; i++) ramp[i] = (uint8_t)(i / 3);
}

/* Whether store->row gives all 768 values of the table. */
static bool gives_table(const fm_store *store) {
    uint8_t ramp[3 * 256 + FM_ROW_SLACK];
    float got[3 * 256], want[3 * 256];
    fm_store tried = *store;
    fill_ramp(ramp);
    memset(got, 0, sizeof(got));
    memset(want, 0, sizeof(want));
    tried.plane = 256;
    tried.row(&tried, got, ramp, 256);
    tried.row = scalar_row(store->plan);
    tried.row(&tried, want, ramp, 256);
    return memcmp(got, want, sizeof(got)) == 0;
}

static bool plane_gives_table(const fm_store *store) {
    uint8_t all[256];
    float got[256];
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    for (int channel = 0; channel < 3; channel++) {
        store->one_channel(store, channel, got, all, 256);
        if (memcmp(got, store->plan->table[channel], sizeof(got))) return false;
    }
    return true;
}

/* How many floats on either side of the estimated mean and std are tried. */
#define REACH 2

/* The std of values that are (i / 255 - mean) / std: the inverse of the slope of a line fit. */
static float estimate_std(const float *values) {
    double sum = 0;
    for (int i = 0; i < 256; i++) sum += (i - 127.5) * (double)values[i];
    /* The sum of the squares of i - 127.5 is 256 * (256^2 - 1) / 12. */
    return (float)(256.0 * 65535.0 / 12.0 / 255.0 / sum);
}

static float nth_next_float(float value, int n) {
    for (; n > 0; n--) value = nextafterf(value, INFINITY);
    for (; n < 0; n++) value = nextafterf(value, -INFINITY);
    return value;
}

static void set_step(fm_steps *steps, int channel, float mean, float std) {
    const double scale = 1.0 / (double)std;
    steps->mean[channel] = mean;
    steps->scale_high[channel] = (float)scale;
    steps->scale_low[channel] = (float)(scale - (double)(float)scale);
}

/* Searches the mean and std of ToTensor and Normalize with which `planar` gives the table. false if
 * there are none. */
static bool find_steps(fm_store *store, fm_store_row *planar) {
    const float(*const table)[256] = store->plan->table;
    uint8_t ramp[3 * 256 + FM_ROW_SLACK];
    float std[3], values[3][256];
    fill_ramp(ramp);
    for (int channel = 0; channel < 3; channel++) {
        std[channel] = estimate_std(table[channel]);
        if (!isnormal(std[channel])) return false;
    }
    unsigned found = 0; /* a bit by channel */
    for (int n = -REACH; n <= REACH; n++) {
        for (int m = -REACH; m <= REACH; m++) {
            fm_store tried = *store;
            tried.plane = 256;
            for (int channel = 0; channel < 3; channel++) {
                const float this_std = nth_next_float(std[channel], n);
                const float mean = -table[channel][0] * this_std;
                set_step(&tried.steps, channel, mean == 0 ? 0 : nth_next_float(mean, m), this_std);
            }
            planar(&tried, values, ramp, 256);
            for (int channel = 0; channel < 3; channel++) {
                if (found >> channel & 1) continue;
                if (memcmp(values[channel], table[channel], sizeof(values[channel]))) continue;
                found |= 1u << channel;
                store->steps.mean[channel] = tried.steps.mean[channel];
                store->steps.scale_high[channel] = tried.steps.scale_high[channel];
                store->steps.scale_low[channel] = tried.steps.scale_low[channel];
            }
            if (found == 7) return true;
        }
    }
    return false;
}

/* Sets the range of numbers that are rounded to a 16-bit number. false if it is NaN or infinite. */
static bool rounded_range(uint32_t bits, int n_digits, double *low, double *high) {
    const uint32_t size = bits & 0x7fff;
    if (size >> n_digits == (0x7fffu >> n_digits)) return false;
    const double value = fm_half_size(size, n_digits);
    const double below = size ? (fm_half_size(size - 1, n_digits) + value) / 2 : 0;
    const double above = (value + fm_half_size(size + 1, n_digits)) / 2;
    *low = bits & 0x8000 ? -above : below;
    *high = bits & 0x8000 ? -below : above;
    return true;
}

/*
 * Finds a line that is between low[i] and high[i] for all i from 0 to 255. A slope a is possible if
 * (low[j] - high[i]) / (j - i) <= a <= (high[j] - low[i]) / (j - i) for all i < j. Uses the middle
 * of all possible slopes, and the middle of its possible offsets, far from the rounding boundaries.
 */
static bool fit_line(const double *low, const double *high, float *slope, float *offset) {
    double least = -INFINITY, most = INFINITY;
    for (int i = 0; i < 256; i++) {
        for (int j = i + 1; j < 256; j++) {
            const double span = 1.0 / (j - i);
            const double bottom = (low[j] - high[i]) * span, top = (high[j] - low[i]) * span;
            least = bottom > least ? bottom : least;
            most = top < most ? top : most;
        }
    }
    if (!(least < most)) return false;
    *slope = (float)((least + most) / 2);
    double lowest = -INFINITY, highest = INFINITY;
    for (int i = 0; i < 256; i++) {
        const double rise = (double)*slope * i;
        const double bottom = low[i] - rise, top = high[i] - rise;
        /* Not fmax() and fmin(): with them, gcc 12 for AArch64 fails with an internal error. */
        lowest = bottom > lowest ? bottom : lowest;
        highest = top < highest ? top : highest;
    }
    *offset = lowest <= 0 && highest >= 0 ? 0 : (float)((lowest + highest) / 2);
    return true;
}

/* Finds the lines of all channels. They exist for ToTensor and Normalize followed by a conversion
 * to 16 bits. */
static bool find_line(fm_store *store) {
    const int n_digits = store->plan->dtype == FM_FLOAT16 ? 10 : 7;
    for (int channel = 0; channel < 3; channel++) {
        double low[256], high[256];
        for (int value = 0; value < 256; value++)
            if (!rounded_range(store->plan->bits[channel][value], n_digits, &low[value],
                               &high[value]))
                return false;
        if (!fit_line(low, high, &store->line.slope[channel], &store->line.offset[channel]))
            return false;
    }
    return true;
}

/* The functions of a tier that compute values. */
typedef struct arithmetic {
    fm_store_row *planar_f32; /* finds the constants */
    fm_store_row *row;        /* the plan's layout and type */
    fm_store_plane *plane_f32;
} arithmetic;

/* Takes them if they give the table. */
static void init_arithmetic(fm_store *store, const arithmetic *by) {
    const fm_plan *const plan = store->plan;
    if (!(plan->dtype == FM_FLOAT32 ? find_steps(store, by->planar_f32) : find_line(store))) return;
    fm_store tried = *store;
    tried.row = by->row;
    if (plan->channels != 1 && gives_table(&tried)) *store = tried;
    tried = *store;
    tried.one_channel = by->plane_f32;
    if (plan->dtype == FM_FLOAT32 && plane_gives_table(&tried)) *store = tried;
}

#endif

/* ---- tiers ----------------------------------------------------------------------------------- */

#if defined(__x86_64__)

static fm_store_row *sse41_row(const fm_plan *plan) {
    const bool packed = plan->layout == FM_NHWC;
    if (plan->dtype == FM_UINT8) return packed ? packed_u8 : fm_planar_u8_sse41;
    if (plan->dtype == FM_FLOAT32) return packed ? fm_packed_f32_sse41 : fm_planar_f32_sse41;
    return packed ? fm_packed_16_sse41 : fm_planar_16_sse41;
}

static fm_store_row *avx2_row(const fm_plan *plan) {
    const bool packed = plan->layout == FM_NHWC;
    if (plan->dtype == FM_FLOAT32) return packed ? fm_packed_f32_avx2 : fm_planar_f32_avx2;
    if (plan->dtype == FM_FLOAT16) return packed ? fm_packed_f16_avx2 : fm_planar_f16_avx2;
    return packed ? fm_packed_bf16_avx2 : fm_planar_bf16_avx2;
}

static void init_tier(fm_store *store, fm_cpu_tier tier) {
    const fm_plan *const plan = store->plan;
    if (tier >= FM_CPU_SSE41 && plan->channels != 1) store->row = sse41_row(plan);
    if (tier < FM_CPU_AVX2 || plan->dtype == FM_UINT8) return;
    const arithmetic avx2 = {fm_planar_f32_avx2, avx2_row(plan), fm_plane_f32_avx2};
    init_arithmetic(store, &avx2);
}

#elif defined(__aarch64__)

static fm_store_row *neon_row(const fm_plan *plan) {
    const bool packed = plan->layout == FM_NHWC;
    if (plan->dtype == FM_FLOAT32) return packed ? fm_packed_f32_neon : fm_planar_f32_neon;
    if (plan->dtype == FM_FLOAT16) return packed ? fm_packed_f16_neon : fm_planar_f16_neon;
    return packed ? fm_packed_bf16_neon : fm_planar_bf16_neon;
}

static void init_tier(fm_store *store, fm_cpu_tier tier) {
    const fm_plan *const plan = store->plan;
    if (tier < FM_CPU_NEON) return;
    if (plan->dtype == FM_UINT8) {
        if (plan->channels != 1 && plan->layout == FM_NCHW) store->row = fm_planar_u8_neon;
        return;
    }
    const arithmetic neon = {fm_planar_f32_neon, neon_row(plan), fm_plane_f32_neon};
    init_arithmetic(store, &neon);
}

#else

static void init_tier(fm_store *store, fm_cpu_tier tier) {
    (void)store;
    (void)tier;
}

#endif

/* ---- public functions ------------------------------------------------------------------------ */

void fm_store_init(fm_store *store, const fm_plan *plan, fm_cpu_tier tier) {
    const size_t plane = (size_t)plan->out_width * (size_t)plan->out_height;
    const size_t n_planes = plan->layout == FM_NHWC ? 1 : (size_t)plan->channels;
    *store = (fm_store){.row = scalar_row(plan),
                        .one_channel = plane_scalar,
                        .plan = plan,
                        .plane = plane,
                        .px_bytes = plan->sample_bytes / plane / n_planes};
    init_tier(store, tier);
}

static void copy_scalar(void *out, const void *in, size_t n) { memcpy(out, in, n); }

fm_store_copy *fm_store_stream(fm_cpu_tier tier) {
#if defined(__x86_64__)
    if (tier >= FM_CPU_SSE41) return fm_copy_sse41;
#else
    (void)tier;
#endif
    return copy_scalar;
}

void fm_store_drain(const fm_store *store) {
#if defined(__x86_64__)
    if (store->plan->stream) _mm_sfence();
#else
    (void)store;
#endif
}
