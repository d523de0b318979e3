#define _GNU_SOURCE
#include "base/normals.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"

#define BLOCK 16
#define N_AT_ONCE 256 /* a multiple of BLOCK */

#define INLINE static inline __attribute__((always_inline))

/* ---- ATen's functions ------------------------------------------------------------------------ */

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

INLINE float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* log256_ps(), for normal numbers above 0. */
INLINE float logarithm(float x) {
    float exponent = (float)((int32_t)(bits_of(x) >> 23) - 127) + 1;
    x = of_bits((bits_of(x) & ~0x7F800000u) | bits_of(0.5F));
    const bool is_low = x < 0.707106781186547524F;
    const float again = is_low ? x : 0;
    exponent -= is_low ? 1.0F : 0.0F;
    x = x - 1 + again;
    const float square = x * x;
    float y = 7.0376836292e-2F;
    y = fmaf(y, x, -1.1514610310e-1F);
    y = fmaf(y, x, 1.1676998740e-1F);
    y = fmaf(y, x, -1.2420140846e-1F);
    y = fmaf(y, x, 1.4249322787e-1F);
    y = fmaf(y, x, -1.6668057665e-1F);
    y = fmaf(y, x, 2.0000714765e-1F);
    y = fmaf(y, x, -2.4999993993e-1F);
    y = fmaf(y, x, 3.3333331174e-1F);
    y = fmaf(y * x, square, exponent * -2.12194440e-4F);
    y = fmaf(-square, 0.5F, y);
    return fmaf(exponent, 0.693359375F, x + y);
}

/* sincos256_ps(), for 0 <= x < 8192. */
INLINE void sine_cosine(float x, float *sine, float *cosine) {
    const int32_t octant = ((int32_t)(x * 1.27323954473516F) + 1) & ~1;
    const float turns = (float)octant;
    x = fmaf(turns, -0.78515625F, x);
    x = fmaf(turns, -2.4187564849853515625e-4F, x);
    x = fmaf(turns, -3.77489497744594108e-8F, x);
    const float square = x * x;
    float by_cosine = fmaf(2.443315711809948e-5F, square, -1.388731625493765e-3F);
    by_cosine = fmaf(by_cosine, square, 4.166664568298827e-2F);
    by_cosine = fmaf(by_cosine * square, square, -(square * 0.5F)) + 1;
    float by_sine = fmaf(-1.9515295891e-4F, square, 8.3321608736e-3F);
    by_sine = fmaf(by_sine, square, -1.6666654611e-1F);
    by_sine = fmaf(by_sine * square, x, x);
    const bool is_sine = (octant & 2) == 0;
    /* Adding 0 makes 0 of -0, as ATen does where it joins both. */
    const float one = (is_sine ? by_sine : by_cosine) + 0.0F;
    const float other = (is_sine ? by_cosine : by_sine) + 0.0F;
    *sine = of_bits(bits_of(one) ^ (uint32_t)(octant & 4) << 29);
    *cosine = of_bits(bits_of(other) ^ (uint32_t)(~(octant - 2) & 4) << 29);
}

INLINE void transform(float *values, size_t n) {
    for (size_t i = 0; i < n; i += BLOCK)
        for (size_t k = i; k < i + BLOCK / 2; k++) {
            const float radius = sqrtf(-2 * logarithm(1 - values[k]));
            float sine, cosine;
            sine_cosine((float)(2 * M_PI) * values[k + BLOCK / 2], &sine, &cosine);
            /* Times the deviation, 1, plus the mean, 0. */
            values[k] = radius * cosine + 0.0F;
            values[k + BLOCK / 2] = radius * sine + 0.0F;
        }
}

void fm_box_muller_scalar(float *values, size_t n) { transform(values, n); }

#if defined(__x86_64__)
/* The same code, of which the compiler makes vectors. */
__attribute__((target("avx2,fma"))) static void transform_avx2(float *values, size_t n) {
    transform(values, n);
}

void fm_box_muller(float *values, size_t n) {
    if (fm_cpu_best_tier() >= FM_CPU_AVX2)
        transform_avx2(values, n);
    else
        transform(values, n);
}
#else
void fm_box_muller(float *values, size_t n) { transform(values, n); }
#endif

/* ---- tensors --------------------------------------------------------------------------------- */

static void make_uniform(fm_mt19937 *generator, float *values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = fm_torch_rand(generator);
}

/* n is 16 at least. */
static void make_blocks(fm_mt19937 *generator, size_t n, fm_write_normals *write, void *user) {
    float values[N_AT_ONCE];
    const size_t rest = n % BLOCK;
    for (size_t done = 0, n_now; done < n - rest; done += n_now) {
        n_now = n - rest - done < N_AT_ONCE ? n - rest - done : N_AT_ONCE;
        make_uniform(generator, values, n_now);
        fm_box_muller(values, n_now);
        write(user, done, values, n_now);
    }
    if (!rest) return;
    make_uniform(generator, values, rest);
    make_uniform(generator, values, BLOCK);
    fm_box_muller(values, BLOCK);
    write(user, n - BLOCK, values, BLOCK);
}

void fm_torch_normals(fm_streams *streams, size_t n, fm_write_normals *write, void *user) {
    if (n >= BLOCK) {
        make_blocks(&streams->torch, n, write, user);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const float value = fm_torch_normal(streams);
        write(user, i, &value, 1);
    }
}

void fm_torch_skip_normals(fm_streams *streams, size_t n) {
    if (n >= BLOCK) {
        const size_t n_words = n % BLOCK ? n + BLOCK : n;
        for (size_t i = 0; i < n_words; i++) fm_mt19937_u32(&streams->torch);
        return;
    }
    for (size_t i = 0; i < n; i++) fm_torch_normal(streams);
}
