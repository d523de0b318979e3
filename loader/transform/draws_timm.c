#define _GNU_SOURCE
#include "transform/draws_timm.h"

#include "transform/numbers.h"

/* Uniform in [0, 1); with streams random.random(). */
static double share(fm_rng *rng) {
    if (rng->key.streams) return fm_python_random(&rng->key.streams->python);
    return (double)fm_rng_u32(rng) * 0x1p-32;
}

/* Uniform in 0 .. n-1; with streams, the number of what random.choice() chooses. */
static uint32_t below(fm_rng *rng, uint32_t n) {
    if (rng->key.streams) return fm_python_below(&rng->key.streams->python, n);
    return fm_rng_below(rng, n);
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool is_geometric(fm_timm_augmentation what) {
    return what == FM_TIMM_ROTATE || (what >= FM_TIMM_SHEAR_X && what <= FM_TIMM_TRANSLATE_Y_REL);
}

/* Whether timm calls _randomly_negate(). */
static bool is_signed(fm_timm_augmentation what) {
    return is_geometric(what) || what == FM_TIMM_COLOR_INCREASING ||
           what == FM_TIMM_CONTRAST_INCREASING || what == FM_TIMM_BRIGHTNESS_INCREASING ||
           what == FM_TIMM_SHARPNESS_INCREASING;
}

/* _randomly_negate() */
static bool draw_sign(fm_rng *rng) {
    return rng->key.streams ? share(rng) > 0.5 : fm_rng_below(rng, 2) != 0;
}

static double draw_normal(fm_rng *rng, double mean, double std) {
    if (rng->key.streams) return fm_python_gauss(rng->key.streams, mean, std);
    return mean + fm_normal(fm_rng_u32(rng)) * std;
}

/* AugmentOp's magnitude, within its bounds. */
static double draw_level(const fm_op *op, fm_rng *rng, double magnitude) {
    const double std = op->values[3], most = op->values[4];
    if (std < 0)
        magnitude *= share(rng);
    else if (std > 0)
        magnitude = draw_normal(rng, magnitude, std);
    return magnitude < 0 ? 0 : magnitude > most ? most : magnitude;
}

/* Whether a geometric operation uses the second filter. With streams a number is also drawn if the
 * original lists the same filter twice, or one only. */
static bool draw_filter(const fm_op *op, fm_rng *rng) {
    const uint32_t n_listed = rng->key.streams     ? (uint32_t)op->values[FM_DRAWS_TIMM_FILTERS]
                              : op->values[7] != 0 ? 2
                                                   : 0;
    return n_listed > 0 && below(rng, n_listed) == 1 && op->values[7] != 0;
}

/* The fm_filter of a geometric operation, or the radius of GaussianBlurRand. */
static double draw_detail(const fm_op *op, fm_rng *rng, fm_timm_augmentation what, double level) {
    if (what == FM_TIMM_GAUSSIAN_BLUR_RAND) {
        const double factor = level / 10.0 < 1 ? level / 10.0 : 1;
        return 0.1 + (2.0 * factor - 0.1) * share(rng);
    }
    if (!is_geometric(what)) return 0;
    return draw_filter(op, rng) ? op->values[7] - 1 : op->filter;
}

/* AugmentOp.__call__() */
static void draw_step(const fm_op *op, fm_rng *rng, fm_timm_augmentation what, double p,
                      double magnitude, fm_draw *draw) {
    if (p < 1 && share(rng) > p) return;
    const double level = draw_level(op, rng, magnitude);
    double *const to = draw->values + draw->n_values;
    to[0] = what;
    to[1] = is_signed(what) && draw_sign(rng) ? -level : level;
    to[2] = draw_detail(op, rng, what, level);
    draw->n_values += 3;
}

/* ---- RandAugment ----------------------------------------------------------------------------- */

/* numpy.random.choice() of one, by weights of which one at least is above 0. */
static int choose(const double weights[FM_N_TIMM_AUGMENTATIONS], fm_rng *rng) {
    double sum = 0, so_far = 0;
    int last = 0;
    for (int i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++) sum += weights[i];
    const double at = share(rng) * sum;
    for (int i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++) {
        if (weights[i] <= 0) continue;
        last = i;
        so_far += weights[i];
        if (at < so_far) break;
    }
    return last;
}

/* numpy.ndarray.searchsorted(x, side="right") in the running sums of weights, whose last one is
 * made 1. */
static int search(const double *weights, int n, double x) {
    double sums[FM_N_TIMM_AUGMENTATIONS], sum = 0;
    for (int i = 0; i < n; i++) sums[i] = sum += weights[i];
    int place = 0;
    while (place < n - 1 && sums[place] / sum <= x) place++;
    return place;
}

/* numpy.random.choice(n, n_chosen, replace=False, p=weights), which draws again for those that were
 * chosen twice. Changes the weights. */
static void choose_different(double *weights, int n, int n_chosen, fm_mt19937 *generator,
                             int *chosen) {
    for (int n_found = 0; n_found < n_chosen;) {
        int places[FM_DRAWS_TIMM_MOST];
        const int n_drawn = n_chosen - n_found;
        for (int i = 0; i < n_drawn; i++) places[i] = search(weights, n, fm_numpy_rand(generator));
        for (int i = 0; i < n_drawn; i++) {
            if (weights[places[i]] <= 0) continue;
            weights[places[i]] = 0;
            chosen[n_found++] = places[i];
        }
    }
}

/* As timm chooses operations of its list. */
static void draw_rand_augment_of_timm(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    const int n_listed = (int)op->values[FM_DRAWS_TIMM_N_LISTED], n = (int)op->values[0];
    const double *const listed = op->values + FM_DRAWS_TIMM_LISTED;
    fm_mt19937 *const numpy = &rng->key.streams->numpy;
    int chosen[FM_DRAWS_TIMM_MOST];
    double weights[FM_N_TIMM_AUGMENTATIONS];
    for (int i = 0; i < n_listed; i++)
        weights[i] = op->values[FM_DRAWS_TIMM_WEIGHTS + (int)listed[i]];
    if (op->values[11] != 0)
        choose_different(weights, n_listed, n, numpy, chosen);
    else
        for (int i = 0; i < n; i++) chosen[i] = (int)fm_numpy_below(numpy, (uint32_t)n_listed);
    for (int i = 0; i < n; i++)
        draw_step(op, rng, (fm_timm_augmentation)listed[chosen[i]], op->values[1], op->values[2],
                  draw);
}

static void draw_rand_augment(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    if (rng->key.streams && op->values[FM_DRAWS_TIMM_N_LISTED] != 0) {
        draw_rand_augment_of_timm(op, rng, draw);
        return;
    }
    double weights[FM_N_TIMM_AUGMENTATIONS];
    for (int i = 0; i < FM_N_TIMM_AUGMENTATIONS; i++)
        weights[i] = op->values[FM_DRAWS_TIMM_WEIGHTS + i];
    for (int i = 0; i < (int)op->values[0]; i++) {
        const int what = choose(weights, rng);
        if (op->values[11] != 0) weights[what] = 0;
        draw_step(op, rng, (fm_timm_augmentation)what, op->values[1], op->values[2], draw);
    }
}

/* ---- AutoAugment ----------------------------------------------------------------------------- */

typedef struct policy_step {
    int8_t what, magnitude;
    double p;
} policy_step;

#define AC FM_TIMM_AUTO_CONTRAST
#define CL FM_TIMM_COLOR
#define CN FM_TIMM_CONTRAST
#define EQ FM_TIMM_EQUALIZE
#define IN FM_TIMM_INVERT
#define PO FM_TIMM_POSTERIZE
#define RO FM_TIMM_ROTATE
#define SA FM_TIMM_SOLARIZE_ADD
#define SH FM_TIMM_SHARPNESS
#define SO FM_TIMM_SOLARIZE
#define SX FM_TIMM_SHEAR_X
#define SY FM_TIMM_SHEAR_Y
#define TY FM_TIMM_TRANSLATE_Y_REL

/* The policies v0 and original, with Posterize for each of its variants. */
static const policy_step POLICIES[2][25][2] = {
    {{{EQ, 1, 0.8}, {SY, 4, 0.8}}, {{CL, 9, 0.4}, {EQ, 3, 0.6}},  {{CL, 1, 0.4}, {RO, 8, 0.6}},
     {{SO, 3, 0.8}, {EQ, 7, 0.4}}, {{SO, 2, 0.4}, {SO, 2, 0.6}},  {{CL, 0, 0.2}, {EQ, 8, 0.8}},
     {{EQ, 8, 0.4}, {SA, 3, 0.8}}, {{SX, 9, 0.2}, {RO, 8, 0.6}},  {{CL, 1, 0.6}, {EQ, 2, 1.0}},
     {{IN, 9, 0.4}, {RO, 0, 0.6}}, {{EQ, 9, 1.0}, {SY, 3, 0.6}},  {{CL, 7, 0.4}, {EQ, 0, 0.6}},
     {{PO, 6, 0.4}, {AC, 7, 0.4}}, {{SO, 8, 0.6}, {CL, 9, 0.6}},  {{SO, 4, 0.2}, {RO, 9, 0.8}},
     {{RO, 7, 1.0}, {TY, 9, 0.8}}, {{SX, 0, 0.0}, {SO, 4, 0.8}},  {{SY, 0, 0.8}, {CL, 4, 0.6}},
     {{CL, 0, 1.0}, {RO, 2, 0.6}}, {{EQ, 4, 0.8}, {EQ, 8, 0.0}},  {{EQ, 4, 1.0}, {AC, 2, 0.6}},
     {{SY, 7, 0.4}, {SA, 7, 0.6}}, {{PO, 2, 0.8}, {SO, 10, 0.6}}, {{SO, 8, 0.6}, {EQ, 1, 0.6}},
     {{CL, 6, 0.8}, {RO, 5, 0.4}}},
    {{{PO, 8, 0.4}, {RO, 9, 0.6}}, {{SO, 5, 0.6}, {AC, 5, 0.6}}, {{EQ, 8, 0.8}, {EQ, 3, 0.6}},
     {{PO, 7, 0.6}, {PO, 6, 0.6}}, {{EQ, 7, 0.4}, {SO, 4, 0.2}}, {{EQ, 4, 0.4}, {RO, 8, 0.8}},
     {{SO, 3, 0.6}, {EQ, 7, 0.6}}, {{PO, 5, 0.8}, {EQ, 2, 1.0}}, {{RO, 3, 0.2}, {SO, 8, 0.6}},
     {{EQ, 8, 0.6}, {PO, 6, 0.4}}, {{RO, 8, 0.8}, {CL, 0, 0.4}}, {{RO, 9, 0.4}, {EQ, 2, 0.6}},
     {{EQ, 7, 0.0}, {EQ, 8, 0.8}}, {{IN, 4, 0.6}, {EQ, 8, 1.0}}, {{CL, 4, 0.6}, {CN, 8, 1.0}},
     {{RO, 8, 0.8}, {CL, 2, 1.0}}, {{CL, 8, 0.8}, {SO, 7, 0.8}}, {{SH, 7, 0.4}, {IN, 8, 0.6}},
     {{SX, 5, 0.6}, {EQ, 9, 1.0}}, {{CL, 0, 0.4}, {EQ, 3, 0.6}}, {{EQ, 7, 0.4}, {SO, 4, 0.2}},
     {{SO, 5, 0.6}, {AC, 5, 0.6}}, {{IN, 4, 0.6}, {EQ, 8, 1.0}}, {{CL, 4, 0.6}, {CN, 8, 1.0}},
     {{EQ, 8, 0.8}, {EQ, 3, 0.6}}},
};

/* The policy 3a: one of three single steps. */
static const policy_step THREE[3] = {
    {FM_TIMM_SOLARIZE, 5, 1}, {FM_TIMM_DESATURATE, 10, 1}, {FM_TIMM_GAUSSIAN_BLUR_RAND, 10, 1}};

/* Posterize in each policy. */
static const fm_timm_augmentation POSTERIZE[4] = {FM_TIMM_POSTERIZE, FM_TIMM_POSTERIZE_INCREASING,
                                                  FM_TIMM_POSTERIZE_ORIGINAL,
                                                  FM_TIMM_POSTERIZE_INCREASING};

static void draw_auto_augment(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    const int policy = (int)op->values[0];
    if (policy == FM_DRAWS_TIMM_POLICIES - 1) {
        const policy_step *const step = &THREE[below(rng, 3)];
        draw_step(op, rng, (fm_timm_augmentation)step->what, step->p, step->magnitude, draw);
        return;
    }
    const policy_step *const steps = POLICIES[policy / 2][below(rng, 25)];
    for (int i = 0; i < 2; i++) {
        const fm_timm_augmentation what = (fm_timm_augmentation)steps[i].what;
        draw_step(op, rng, what == FM_TIMM_POSTERIZE ? POSTERIZE[policy] : what, steps[i].p,
                  steps[i].magnitude, draw);
    }
}

/* ---- public functions ------------------------------------------------------------------------ */

bool fm_draws_timm_blurs(const fm_op *op) {
    const double *const weights = op->values + FM_DRAWS_TIMM_WEIGHTS;
    if (op->kind == FM_OP_TIMM_AUTO_AUGMENT) return op->values[0] == FM_DRAWS_TIMM_POLICIES - 1;
    return weights[FM_TIMM_GAUSSIAN_BLUR] > 0 || weights[FM_TIMM_GAUSSIAN_BLUR_RAND] > 0;
}

void fm_draws_timm(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    if (op->kind == FM_OP_TIMM_RAND_AUGMENT)
        draw_rand_augment(op, rng, draw);
    else
        draw_auto_augment(op, rng, draw);
}
