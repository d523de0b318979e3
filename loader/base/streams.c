#define _GNU_SOURCE
#include "base/streams.h"

#include <math.h>

#define MIDDLE 397

static uint32_t twist(uint32_t upper, uint32_t lower) {
    const uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7FFFFFFFu);
    return mixed >> 1 ^ (mixed & 1 ? 0x9908B0DFu : 0);
}

static void make_words(fm_mt19937 *generator) {
    uint32_t *const words = generator->words;
    for (int i = 0; i < FM_MT19937_N; i++)
        words[i] =
            words[(i + MIDDLE) % FM_MT19937_N] ^ twist(words[i], words[(i + 1) % FM_MT19937_N]);
    generator->next = 0;
}

uint32_t fm_mt19937_u32(fm_mt19937 *generator) {
    if (generator->next >= FM_MT19937_N) make_words(generator);
    uint32_t word = generator->words[generator->next++];
    word ^= word >> 11;
    word ^= word << 7 & 0x9D2C5680u;
    word ^= word << 15 & 0xEFC60000u;
    return word ^ word >> 18;
}

/* ---- torch ----------------------------------------------------------------------------------- */

float fm_torch_rand(fm_mt19937 *generator) {
    return (float)(fm_mt19937_u32(generator) & 0xFFFFFFu) * 0x1p-24f;
}

float fm_torch_uniform(fm_mt19937 *generator, float low, float high) {
    return fmaf(fm_torch_rand(generator), high - low, low);
}

uint32_t fm_torch_randint(fm_mt19937 *generator, uint32_t n) {
    return fm_mt19937_u32(generator) % n;
}

static void swap(double *one, double *other) {
    const double kept = *one;
    *one = *other;
    *other = kept;
}

void fm_torch_randperm(fm_mt19937 *generator, int32_t n, double *order) {
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = 0; i < n - 1; i++)
        swap(&order[i], &order[i + (int32_t)fm_torch_randint(generator, (uint32_t)(n - i))]);
}

/* torch.rand(1, dtype=torch.float64) */
static double torch_rand_double(fm_mt19937 *generator) {
    const uint64_t upper = fm_mt19937_u32(generator), lower = fm_mt19937_u32(generator);
    return (double)((upper << 32 | lower) & 0x1FFFFFFFFFFFFFu) * 0x1p-53;
}

/* torch.empty(1).exponential_(): computed in double, and then rounded. */
static float torch_exponential(fm_mt19937 *generator) {
    return (float)-log1p(-torch_rand_double(generator));
}

int32_t fm_torch_multinomial(fm_mt19937 *generator, const double *probabilities, int32_t n) {
    float most = -1;
    int32_t chosen = 0;
    for (int32_t i = 0; i < n; i++) {
        const float number = (float)probabilities[i] / torch_exponential(generator);
        if (!(number > most)) continue;
        most = number;
        chosen = i;
    }
    return chosen;
}

double fm_torch_normal_double(fm_streams *streams) {
    double normal = streams->torch_normal;
    if (!streams->has_torch_normal) {
        const double angle = 2 * M_PI * torch_rand_double(&streams->torch);
        const double radius = sqrt(-2.0 * log1p(-torch_rand_double(&streams->torch)));
        normal = radius * cos(angle);
        streams->torch_normal = radius * sin(angle);
    } else {
        streams->torch_normal = 0;
    }
    streams->has_torch_normal = !streams->has_torch_normal;
    return normal;
}

float fm_torch_normal(fm_streams *streams) { return (float)fm_torch_normal_double(streams); }

/* ---- Python ---------------------------------------------------------------------------------- */

double fm_python_random(fm_mt19937 *generator) {
    const uint32_t upper = fm_mt19937_u32(generator) >> 5, lower = fm_mt19937_u32(generator) >> 6;
    return (upper * 0x1p26 + lower) * 0x1p-53;
}

double fm_python_uniform(fm_mt19937 *generator, double low, double high) {
    return low + (high - low) * fm_python_random(generator);
}

/* random.Random._randbelow(n): words are drawn until one is below n. */
uint32_t fm_python_below(fm_mt19937 *generator, uint32_t n) {
    const int n_bits = 32 - __builtin_clz(n);
    uint32_t number;
    do number = fm_mt19937_u32(generator) >> (32 - n_bits);
    while (number >= n);
    return number;
}

void fm_python_shuffle(fm_mt19937 *generator, int32_t n, double *order) {
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = n - 1; i > 0; i--)
        swap(&order[i], &order[fm_python_below(generator, (uint32_t)i + 1)]);
}

double fm_python_gauss(fm_streams *streams, double mean, double deviation) {
    double normal = streams->python_normal;
    if (!streams->has_python_normal) {
        const double angle = fm_python_random(&streams->python) * (2 * M_PI);
        const double radius = sqrt(-2.0 * log(1.0 - fm_python_random(&streams->python)));
        normal = cos(angle) * radius;
        streams->python_normal = sin(angle) * radius;
    } else {
        streams->python_normal = 0;
    }
    streams->has_python_normal = !streams->has_python_normal;
    return mean + normal * deviation;
}

/* ---- NumPy ----------------------------------------------------------------------------------- */

double fm_numpy_rand(fm_mt19937 *generator) { return fm_python_random(generator); }

uint32_t fm_numpy_below(fm_mt19937 *generator, uint32_t n) {
    if (n == 1) return 0;
    const uint32_t mask = 0xFFFFFFFFu >> __builtin_clz(n - 1);
    uint32_t number;
    do number = fm_mt19937_u32(generator) & mask;
    while (number >= n);
    return number;
}
