#define _GNU_SOURCE
#include "transform/draws_timm.h"

#include "transform/numbers.h"

/* Uniform in [0, 1). */
static double share(fm_rng *rng) { return (double)fm_rng_u32(rng) * 0x1p-32; }

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

/* AugmentOp's magnitude, within its bounds. */
static double draw_level(const fm_op *op, fm_rng *rng, double magnitude) {
    const double std = op->values[3], most = op->values[4];
    if (std < 0)
        magnitude *= share(rng);
    else if (std > 0)
        magnitude += fm_normal(fm_rng_u32(rng)) * std;
    return magnitude < 0 ? 0 : magnitude > most ? most : magnitude;
}

/* The fm_filter of a geometric operation, or the radius of GaussianBlurRand. */
static double draw_detail(const fm_op *op, fm_rng *rng, fm_timm_augmentation what, double level) {
    if (what == FM_TIMM_GAUSSIAN_BLUR_RAND) {
        const double factor = level / 10.0 < 1 ? level / 10.0 : 1;
        return 0.1 + (2.0 * factor - 0.1) * share(rng);
    }
    if (!is_geometric(what)) return 0;
    return op->values[7] != 0 && fm_rng_below(rng, 2) ? op->values[7] - 1 : op->filter;
}

/* AugmentOp.__call__() */
static void draw_step(const fm_op *op, fm_rng *rng, fm_timm_augmentation what, double p,
                      double magnitude, fm_draw *draw) {
    if (p < 1 && share(rng) > p) return;
    const double level = draw_level(op, rng, magnitude);
    double *const to = draw->values + draw->n_values;
    to[0] = what;
    to[1] = is_signed(what) && fm_rng_below(rng, 2) ? -level : level;
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

static void draw_rand_augment(const fm_op *op, fm_rng *rng, fm_draw *draw) {
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
        const policy_step *const step = &THREE[fm_rng_below(rng, 3)];
        draw_step(op, rng, (fm_timm_augmentation)step->what, step->p, step->magnitude, draw);
        return;
    }
    const policy_step *const steps = POLICIES[policy / 2][fm_rng_below(rng, 25)];
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
