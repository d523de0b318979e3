/* Algorithm AS241 (Wichura: The Percentage Points of the Normal Distribution, Applied Statistics
 * 37, 1988), which divides two polynomials. The words need no branch for the outermost tails. */
#define _GNU_SOURCE
#include "transform/numbers.h"

#include <math.h>
#include <string.h>

#include "base/normals.h"
#include "base/rng.h"
#include "feedmill/feedmill.h"

/* ---- logarithm and exponential --------------------------------------------------------------- */

/*
 * The C library's functions may differ in the last bit between versions and CPUs, which can change
 * a crop. These only use IEEE's basic operations in double, and are accurate to about 1e-15, so
 * that the rounding to float32 dominates.
 */

static const double LN2 = 0x1.62e42fefa39efp-1;

double fm_draws_log(double x) {
    int exponent;
    double mantissa = frexp(x, &exponent);
    if (mantissa < 0x1.6a09e667f3bcdp-1) { /* sqrt(1/2): center the mantissa around 1 */
        mantissa *= 2;
        exponent--;
    }
    /* log(m) = 2 atanh((m - 1) / (m + 1)); the argument is at most 0.172. */
    const double t = (mantissa - 1) / (mantissa + 1), t2 = t * t;
    double sum = 0;
    for (int n = 25; n >= 1; n -= 2) sum = sum * t2 + 1.0 / n;
    return exponent * LN2 + 2 * t * sum;
}

double fm_draws_exp(double x) {
    const double n = nearbyint(x / LN2);
    const double rest = x - n * LN2; /* at most 0.347 in size */
    double sum = 1;
    for (int k = 17; k >= 1; k--) sum = 1 + sum * rest / k;
    return ldexp(sum, (int)n);
}

/* ---- the normal distribution ----------------------------------------------------------------- */

/*
 * Algorithm AS241 (Wichura: The Percentage Points of the Normal Distribution, Applied Statistics
 * 37, 1988), which divides two polynomials. The 2^32 numbers do not need its form for the
 * outermost tails. Coefficients from the highest power on, of the center and of the tails.
 */
static const double CENTER_ABOVE[8] = {2.5090809287301226727e+3, 3.3430575583588128105e+4,
                                       6.7265770927008700853e+4, 4.5921953931549871457e+4,
                                       1.3731693765509461125e+4, 1.9715909503065514427e+3,
                                       1.3314166789178437745e+2, 3.3871328727963666080e+0};
static const double CENTER_BELOW[8] = {5.2264952788528545610e+3, 2.8729085735721942674e+4,
                                       3.9307895800092710610e+4, 2.1213794301586595867e+4,
                                       5.3941960214247511077e+3, 6.8718700749205790830e+2,
                                       4.2313330701600911252e+1, 1};
static const double TAIL_ABOVE[8] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                     2.41780725177450611770e-1, 1.27045825245236838258e+0,
                                     3.64784832476320460504e+0, 5.76949722146069140550e+0,
                                     4.63033784615654529590e+0, 1.42343711074968357734e+0};
static const double TAIL_BELOW[8] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                     1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                     6.89767334985100004550e-1, 1.67638483018380384940e+0,
                                     2.05319162663775882187e+0, 1};

static double polynomial(const double coefficients[8], double x) {
    double sum = coefficients[0];
    for (int i = 1; i < 8; i++) sum = sum * x + coefficients[i];
    return sum;
}

double fm_normal(uint32_t word) {
    const double p = ((double)word + 0.5) * 0x1p-32, q = p - 0.5;
    if (fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return polynomial(CENTER_ABOVE, r) * q / polynomial(CENTER_BELOW, r);
    }
    const double r = sqrt(-fm_draws_log(q < 0 ? p : 1 - p)) - 1.6;
    const double size = polynomial(TAIL_ABOVE, r) / polynomial(TAIL_BELOW, r);
    return q < 0 ? -size : size;
}

static void keep(void *user, size_t first, const float *values, size_t n) {
    memcpy((float *)user + first, values, n * sizeof(*values));
}

void fm_noise_torch(fm_streams *streams, size_t n, float *out) {
    fm_torch_normals(streams, n, keep, out);
}

void fm_noise(uint64_t seed, uint64_t first, size_t n, float *out) {
    uint32_t words[4] = {0};
    for (uint64_t i = first; i < first + n; i++) {
        if (i == first || i % 4 == 0) {
            words[0] = (uint32_t)(i / 4);
            words[1] = (uint32_t)(i / 4 >> 32);
            words[2] = words[3] = 0;
            fm_rng_philox(words, (uint32_t)seed, (uint32_t)(seed >> 32));
        }
        out[i - first] = (float)fm_normal(words[i % 4]);
    }
}
