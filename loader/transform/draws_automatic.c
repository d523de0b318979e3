#define _GNU_SOURCE
#include "transform/draws_automatic.h"

#include <math.h>

/* torch.linspace(start, end, n)[i], in float32. Its kernels for AVX2 and newer round once. */
static double linspace(double start, double end, int32_t n, int32_t i) {
    if (n == 1) return (double)(float)start;
    const float step = ((float)end - (float)start) / (float)(n - 1);
    return (double)(i < n / 2 ? fmaf(step, (float)i, (float)start)
                              : fmaf(-step, (float)(n - i - 1), (float)end));
}

/* The maximal magnitudes and the number of bins. */
typedef struct magnitudes {
    double shear, translate_x, translate_y, rotate, factor, bits;
    int32_t n_bins;
    /* torchvision.transforms.v2: posterize rounds differently, solarize goes from 1 to 0. */
    bool v2;
} magnitudes;

static double magnitude_of(const magnitudes *most, int what, int32_t i) {
    const int32_t n = most->n_bins;
    switch ((fm_augmentation)what) {
    case FM_AUGMENT_SHEAR_X:
    case FM_AUGMENT_SHEAR_Y:
        return linspace(0, most->shear, n, i);
    case FM_AUGMENT_TRANSLATE_X:
        return linspace(0, most->translate_x, n, i);
    case FM_AUGMENT_TRANSLATE_Y:
        return linspace(0, most->translate_y, n, i);
    case FM_AUGMENT_ROTATE:
        return linspace(0, most->rotate, n, i);
    case FM_AUGMENT_BRIGHTNESS:
    case FM_AUGMENT_COLOR:
    case FM_AUGMENT_CONTRAST:
    case FM_AUGMENT_SHARPNESS:
        return linspace(0, most->factor, n, i);
    case FM_AUGMENT_POSTERIZE: {
        const float fewer = (float)i / (float)((double)(n - 1) / most->bits);
        return (double)(most->v2 ? nearbyintf(8 - fewer) : 8 - nearbyintf(fewer));
    }
    case FM_AUGMENT_SOLARIZE:
        return linspace(most->v2 ? 1 : 255, 0, n, i);
    case FM_AUGMENT_IDENTITY:
    case FM_AUGMENT_AUTOCONTRAST:
    case FM_AUGMENT_EQUALIZE:
    case FM_AUGMENT_INVERT:
        break;
    }
    return 0;
}

static bool is_signed(int what) {
    return what >= FM_AUGMENT_SHEAR_X && what <= FM_AUGMENT_SHARPNESS;
}

static bool has_magnitudes(int what) {
    return what >= FM_AUGMENT_SHEAR_X && what <= FM_AUGMENT_SOLARIZE;
}

/* Whether a magnitude is negated: v1 draws torch.randint(2), v2 torch.rand() <= 0.5. */
static bool draw_sign(fm_rng *rng, bool v2) {
    if (rng->key.streams && v2) return fm_rng_f32(rng) <= 0.5f;
    return fm_rng_below(rng, 2) != 0;
}

static void add_augmentation(fm_draw *draw, int what, double magnitude) {
    draw->values[draw->n_values++] = what;
    draw->values[draw->n_values++] = magnitude;
}

static void draw_trivial_augment(const fm_op *op, fm_rng *rng, fm_draw *draw) {
    const magnitudes most = {.shear = 0.99,
                             .translate_x = 32,
                             .translate_y = 32,
                             .rotate = 135,
                             .factor = 0.99,
                             .bits = 6,
                             .n_bins = (int32_t)op->values[0],
                             .v2 = op->values[6] != 0};
    const int what = (int)fm_rng_below(rng, FM_AUGMENT_INVERT);
    int32_t bin = 0;
    if (!rng->key.streams || has_magnitudes(what))
        bin = (int32_t)fm_rng_below(rng, (uint32_t)most.n_bins);
    double magnitude = magnitude_of(&most, what, bin);
    if (is_signed(what) && draw_sign(rng, most.v2)) magnitude = -magnitude;
    add_augmentation(draw, what, magnitude);
}

static magnitudes usual_magnitudes(const fm_op *op, int32_t n_bins, int32_t width, int32_t height) {
    return (magnitudes){.shear = 0.3,
                        .translate_x = 150.0 / 331.0 * width,
                        .translate_y = 150.0 / 331.0 * height,
                        .rotate = 30,
                        .factor = 0.9,
                        .bits = 4,
                        .n_bins = n_bins,
                        .v2 = op->values[6] != 0};
}

static void draw_rand_augment(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                              fm_draw *draw) {
    const magnitudes most = usual_magnitudes(op, (int32_t)op->values[2], width, height);
    for (int i = 0; i < (int)op->values[0]; i++) {
        const int what = (int)fm_rng_below(rng, FM_AUGMENT_INVERT);
        double magnitude = magnitude_of(&most, what, (int32_t)op->values[1]);
        if (is_signed(what) && draw_sign(rng, most.v2)) magnitude = -magnitude;
        add_augmentation(draw, what, magnitude);
    }
}

typedef struct policy_step {
    int8_t what, bin;
    float p;
} policy_step;

#define SX FM_AUGMENT_SHEAR_X
#define SY FM_AUGMENT_SHEAR_Y
#define TX FM_AUGMENT_TRANSLATE_X
#define TY FM_AUGMENT_TRANSLATE_Y
#define RO FM_AUGMENT_ROTATE
#define BR FM_AUGMENT_BRIGHTNESS
#define CL FM_AUGMENT_COLOR
#define CN FM_AUGMENT_CONTRAST
#define SH FM_AUGMENT_SHARPNESS
#define PO FM_AUGMENT_POSTERIZE
#define SO FM_AUGMENT_SOLARIZE
#define AC FM_AUGMENT_AUTOCONTRAST
#define EQ FM_AUGMENT_EQUALIZE
#define IN FM_AUGMENT_INVERT

/* AutoAugment's policies: two steps each, with kind, bin and probability. */
static const policy_step POLICIES[3][25][2] = {
    {{{PO, 8, 0.4f}, {RO, 9, 0.6f}}, {{SO, 5, 0.6f}, {AC, 0, 0.6f}}, {{EQ, 0, 0.8f}, {EQ, 0, 0.6f}},
     {{PO, 7, 0.6f}, {PO, 6, 0.6f}}, {{EQ, 0, 0.4f}, {SO, 4, 0.2f}}, {{EQ, 0, 0.4f}, {RO, 8, 0.8f}},
     {{SO, 3, 0.6f}, {EQ, 0, 0.6f}}, {{PO, 5, 0.8f}, {EQ, 0, 1.0f}}, {{RO, 3, 0.2f}, {SO, 8, 0.6f}},
     {{EQ, 0, 0.6f}, {PO, 6, 0.4f}}, {{RO, 8, 0.8f}, {CL, 0, 0.4f}}, {{RO, 9, 0.4f}, {EQ, 0, 0.6f}},
     {{EQ, 0, 0.0f}, {EQ, 0, 0.8f}}, {{IN, 0, 0.6f}, {EQ, 0, 1.0f}}, {{CL, 4, 0.6f}, {CN, 8, 1.0f}},
     {{RO, 8, 0.8f}, {CL, 2, 1.0f}}, {{CL, 8, 0.8f}, {SO, 7, 0.8f}}, {{SH, 7, 0.4f}, {IN, 0, 0.6f}},
     {{SX, 5, 0.6f}, {EQ, 0, 1.0f}}, {{CL, 0, 0.4f}, {EQ, 0, 0.6f}}, {{EQ, 0, 0.4f}, {SO, 4, 0.2f}},
     {{SO, 5, 0.6f}, {AC, 0, 0.6f}}, {{IN, 0, 0.6f}, {EQ, 0, 1.0f}}, {{CL, 4, 0.6f}, {CN, 8, 1.0f}},
     {{EQ, 0, 0.8f}, {EQ, 0, 0.6f}}},
    {{{IN, 0, 0.1f}, {CN, 6, 0.2f}}, {{RO, 2, 0.7f}, {TX, 9, 0.3f}}, {{SH, 1, 0.8f}, {SH, 3, 0.9f}},
     {{SY, 8, 0.5f}, {TY, 9, 0.7f}}, {{AC, 0, 0.5f}, {EQ, 0, 0.9f}}, {{SY, 7, 0.2f}, {PO, 7, 0.3f}},
     {{CL, 3, 0.4f}, {BR, 7, 0.6f}}, {{SH, 9, 0.3f}, {BR, 9, 0.7f}}, {{EQ, 0, 0.6f}, {EQ, 0, 0.5f}},
     {{CN, 7, 0.6f}, {SH, 5, 0.6f}}, {{CL, 7, 0.7f}, {TX, 8, 0.5f}}, {{EQ, 0, 0.3f}, {AC, 0, 0.4f}},
     {{TY, 3, 0.4f}, {SH, 6, 0.2f}}, {{BR, 6, 0.9f}, {CL, 8, 0.2f}}, {{SO, 2, 0.5f}, {IN, 0, 0.0f}},
     {{EQ, 0, 0.2f}, {AC, 0, 0.6f}}, {{EQ, 0, 0.2f}, {EQ, 0, 0.6f}}, {{CL, 9, 0.9f}, {EQ, 0, 0.6f}},
     {{AC, 0, 0.8f}, {SO, 8, 0.2f}}, {{BR, 3, 0.1f}, {CL, 0, 0.7f}}, {{SO, 5, 0.4f}, {AC, 0, 0.9f}},
     {{TY, 9, 0.9f}, {TY, 9, 0.7f}}, {{AC, 0, 0.9f}, {SO, 3, 0.8f}}, {{EQ, 0, 0.8f}, {IN, 0, 0.1f}},
     {{TY, 9, 0.7f}, {AC, 0, 0.9f}}},
    {{{SX, 4, 0.9f}, {IN, 0, 0.2f}}, {{SY, 8, 0.9f}, {IN, 0, 0.7f}}, {{EQ, 0, 0.6f}, {SO, 6, 0.6f}},
     {{IN, 0, 0.9f}, {EQ, 0, 0.6f}}, {{EQ, 0, 0.6f}, {RO, 3, 0.9f}}, {{SX, 4, 0.9f}, {AC, 0, 0.8f}},
     {{SY, 8, 0.9f}, {IN, 0, 0.4f}}, {{SY, 5, 0.9f}, {SO, 6, 0.2f}}, {{IN, 0, 0.9f}, {AC, 0, 0.8f}},
     {{EQ, 0, 0.6f}, {RO, 3, 0.9f}}, {{SX, 4, 0.9f}, {SO, 3, 0.3f}}, {{SY, 8, 0.8f}, {IN, 0, 0.7f}},
     {{EQ, 0, 0.9f}, {TY, 6, 0.6f}}, {{IN, 0, 0.9f}, {EQ, 0, 0.6f}}, {{CN, 3, 0.3f}, {RO, 4, 0.8f}},
     {{IN, 0, 0.8f}, {TY, 2, 0.0f}}, {{SY, 6, 0.7f}, {SO, 8, 0.4f}}, {{IN, 0, 0.6f}, {RO, 4, 0.8f}},
     {{SY, 7, 0.3f}, {TX, 3, 0.9f}}, {{SX, 6, 0.1f}, {IN, 0, 0.6f}}, {{SO, 2, 0.7f}, {TY, 7, 0.6f}},
     {{SY, 4, 0.8f}, {IN, 0, 0.8f}}, {{SX, 9, 0.7f}, {TY, 3, 0.8f}}, {{SY, 5, 0.8f}, {AC, 0, 0.7f}},
     {{SX, 2, 0.7f}, {IN, 0, 0.1f}}},
};

static void add_step(const policy_step *step, const magnitudes *most, bool is_negative,
                     fm_draw *draw) {
    const double magnitude = magnitude_of(most, step->what, step->bin);
    add_augmentation(draw, step->what,
                     is_signed(step->what) && is_negative ? -magnitude : magnitude);
}

static void add_policy(const policy_step steps[2], const magnitudes *most, fm_rng *rng,
                       fm_draw *draw) {
    for (int i = 0; i < 2; i++) {
        const float chance = fm_rng_f32(rng);
        const bool is_negative = fm_rng_below(rng, 2) == 0;
        if (chance <= steps[i].p) add_step(&steps[i], most, is_negative, draw);
    }
}

/* v1 draws two chances, then two signs, before it looks at the steps. */
static void add_policy_v1(const policy_step steps[2], const magnitudes *most, fm_rng *rng,
                          fm_draw *draw) {
    float chances[2];
    bool are_negative[2];
    for (int i = 0; i < 2; i++) chances[i] = fm_rng_f32(rng);
    for (int i = 0; i < 2; i++) are_negative[i] = fm_rng_below(rng, 2) == 0;
    for (int i = 0; i < 2; i++)
        if (chances[i] <= steps[i].p) add_step(&steps[i], most, are_negative[i], draw);
}

static void add_policy_v2(const policy_step steps[2], const magnitudes *most, fm_rng *rng,
                          fm_draw *draw) {
    for (int i = 0; i < 2; i++) {
        if (!(fm_rng_f32(rng) <= steps[i].p)) continue;
        add_step(&steps[i], most, is_signed(steps[i].what) && draw_sign(rng, true), draw);
    }
}

static void draw_auto_augment(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                              fm_draw *draw) {
    const magnitudes most = usual_magnitudes(op, 10, width, height);
    const policy_step *const steps = POLICIES[(int)op->values[0]][fm_rng_below(rng, 25)];
    if (rng->key.streams && most.v2)
        add_policy_v2(steps, &most, rng, draw);
    else if (rng->key.streams)
        add_policy_v1(steps, &most, rng, draw);
    else
        add_policy(steps, &most, rng, draw);
}

void fm_draws_automatic(const fm_op *op, fm_rng *rng, int32_t width, int32_t height,
                        fm_draw *draw) {
    if (op->kind == FM_OP_TRIVIAL_AUGMENT_WIDE)
        draw_trivial_augment(op, rng, draw);
    else if (op->kind == FM_OP_RAND_AUGMENT)
        draw_rand_augment(op, rng, width, height, draw);
    else
        draw_auto_augment(op, rng, width, height, draw);
}
