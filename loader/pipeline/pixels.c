#define _GNU_SOURCE
#include "pipeline/pixels.h"

#include <string.h>

#include "augment/augment.h"
#include "pipeline/erasing.h"
#include "transform/coeffs.h"
#include "transform/op_check.h"
#include "transform/scaled.h"
#include "transform/store.h"

/* Assumed side of the image before the augmentations if the plan does not fix it. The resample
 * reserves scratch for it, and grows it for larger images. */
#define LIKELY_SIDE 512

struct fm_pixels {
    const fm_plan *plan;
    fm_plan front; /* the resample's plan: *plan, or with augmentations its ops before them */
    fm_resample *resample;
    fm_augment *augment; /* NULL without augmentations */
    fm_plan late_plan;   /* of one op at a time */
    fm_resample *late;   /* resizes images in memory; NULL if no op does */
    fm_store store;
    fm_plan lit_plan; /* with LIGHTING, has the value table of one sample; read by the store */
    void *out;
    bool has_streams; /* the sample was drawn from streams */
    fm_streams before_pixels;
    fm_draw draws[FM_MAX_OPS];
};

static size_t most_bytes(const fm_plan *plan) { return 3 * (size_t)plan->most_px; }

fm_resample *fm_pixels_resample(fm_pixels *pixels) { return pixels->resample; }

/* ---- the batch ------------------------------------------------------------------------------- */

/* Makes the value table that LIGHTING gives a sample, in the original's float32 steps. */
static void light(fm_pixels *pixels) {
    const fm_plan *const plan = pixels->plan;
    const size_t i = plan->n_ops - plan->erases - 1;
    const double *const v = plan->ops[i].values;
    for (int channel = 0; channel < 3; channel++) {
        float shift = 0;
        for (int k = 0; k < 3; k++) {
            const float factor = (float)pixels->draws[i].values[k];
            shift += (float)v[1 + 3 * channel + k] * factor * (float)v[10 + k];
        }
        const float mean = (float)v[13 + channel], divisor = (float)v[16 + channel];
        for (int value = 0; value < 256; value++)
            pixels->lit_plan.table[channel][value] =
                (plan->table[channel][value] + shift - mean) / divisor;
    }
}

static int store_image(const fm_pixels *pixels, const fm_image *image, fm_error *error) {
    const fm_plan *const plan = pixels->plan;
    const size_t width = (size_t)image->width, height = (size_t)image->height;
    if (image->width != plan->out_width || image->height != plan->out_height)
        return fm_error_set(error, FM_ERR_LIMIT,
                            "the transform gives %d x %d pixels; the batch's images have %d x %d",
                            (int)image->width, (int)image->height, (int)plan->out_width,
                            (int)plan->out_height);
    if (image->channels == 1) {
        pixels->store.one_channel(&pixels->store, 0, pixels->out, image->px, width * height);
        return FM_OK;
    }
    /* Grayscale pixels may have three bytes here; a plan with one channel stores one of them. */
    for (size_t row = 0; row < height; row++)
        pixels->store.row(&pixels->store,
                          (uint8_t *)pixels->out + row * width * pixels->store.px_bytes,
                          image->px + 3 * row * width, image->width);
    fm_store_drain(&pixels->store);
    return FM_OK;
}

static void erase(fm_pixels *pixels) {
    fm_erase(pixels->plan, &pixels->draws[pixels->plan->n_ops - 1],
             pixels->has_streams ? &pixels->before_pixels : NULL, pixels->out);
}

/* The key with which to draw a sample's parameters, so that erase() finds its numbers. */
static fm_draw_key begin_drawing(fm_pixels *pixels, const fm_draw_key *key) {
    fm_draw_key own = *key;
    own.before_pixels = &pixels->before_pixels;
    pixels->has_streams = key->streams != NULL;
    return own;
}

/* ---- images in memory ------------------------------------------------------------------------ */

/* Copies n pixels as R G B. */
static void copy_px(uint8_t *to, const uint8_t *from, int32_t n, int32_t channels) {
    if (channels == 3) {
        memcpy(to, from, 3 * (size_t)n);
        return;
    }
    for (int32_t i = 0; i < n; i++, to += 3) to[0] = to[1] = to[2] = from[i];
}

/* Passes a box of an image to a resample, row by row. */
static void feed(fm_resample *resample, const fm_image *in, fm_box needed) {
    uint8_t *rows[FM_RESAMPLE_ROWS];
    const size_t row_bytes = fm_image_row_bytes(in);
    const uint8_t *from =
        in->px + (size_t)needed.top * row_bytes + (size_t)needed.left * (size_t)in->channels;
    for (int32_t n; (n = fm_resample_rows(resample, rows, FM_RESAMPLE_ROWS)) > 0;) {
        for (int32_t i = 0; i < n; i++, from += row_bytes)
            copy_px(rows[i], from, needed.width, in->channels);
        fm_resample_push(resample, n);
    }
}

/* Resizes the current image by one resample. */
static int resample_late(fm_pixels *pixels, const fm_geometry *geometry, fm_error *error) {
    const fm_image in = *fm_augment_image(pixels->augment);
    const int32_t width = geometry->window.width, height = geometry->window.height;
    fm_image out;
    fm_box needed;
    int status = fm_augment_replace(pixels->augment, width, height, 3, &out, error);
    if (status) return status;
    pixels->late_plan.out_width = width;
    pixels->late_plan.out_height = height;
    status = fm_resample_begin(pixels->late, geometry, &needed, error);
    if (!status) status = fm_resample_start(pixels->late, 0, needed.width, out.px, error);
    if (status) return status;
    feed(pixels->late, &in, needed);
    return FM_OK;
}

/* Applies a HALVING_CENTER_CROP to the current image. */
static int halve_and_crop(fm_pixels *pixels, const fm_op *op, const fm_draw *draw,
                          fm_error *error) {
    const fm_image *in = fm_augment_image(pixels->augment);
    while (fm_geometry_halves(op, in->width, in->height)) {
        const int32_t width = in->width / 2, height = in->height / 2;
        const fm_geometry geometry = {.source = {0, 0, in->width, in->height},
                                      .resized_width = width,
                                      .resized_height = height,
                                      .window = {0, 0, width, height},
                                      .second_filter = true};
        const int status = resample_late(pixels, &geometry, error);
        if (status) return status;
        in = fm_augment_image(pixels->augment);
    }
    const fm_geometry geometry = {.source = {0, 0, in->width, in->height},
                                  .resized_width = (int32_t)draw->values[0],
                                  .resized_height = (int32_t)draw->values[1],
                                  .window = {draw->left, draw->top, draw->width, draw->height}};
    return resample_late(pixels, &geometry, error);
}

/* fm_augment_resize_fn: applies an op that resizes to the current image. */
static int resize_late(void *context, const fm_op *op, const fm_draw *draw, fm_error *error) {
    fm_pixels *const pixels = context;
    pixels->late_plan.filter = op->filter;
    pixels->late_plan.second_filter = fm_op_second_filter(op);
    if (op->kind == FM_OP_HALVING_CENTER_CROP) return halve_and_crop(pixels, op, draw, error);
    const fm_image in = *fm_augment_image(pixels->augment);
    const bool crops = op->kind == FM_OP_RANDOM_RESIZED_CROP;
    const int32_t width = crops ? op->width : draw->width;
    const int32_t height = crops ? op->height : draw->height;
    const fm_box drawn = {draw->left, draw->top, draw->width, draw->height};
    const fm_box whole = {0, 0, in.width, in.height};
    const fm_geometry geometry = {.source = crops ? drawn : whole,
                                  .resized_width = width,
                                  .resized_height = height,
                                  .window = {0, 0, width, height},
                                  .second_filter = draw->n_values && draw->values[0] != op->filter};
    return resample_late(pixels, &geometry, error);
}

/* Applies the ops from number `first` on, stores the values, and erases. */
static int finish(fm_pixels *pixels, size_t first, fm_error *error) {
    const fm_plan *const plan = pixels->plan;
    const size_t n = plan->n_ops - plan->erases - plan->lights;
    for (size_t i = first; i < n; i += 1 + (size_t)plan->ops[i].n_within) {
        const int status =
            fm_augment_apply(pixels->augment, &plan->ops[i], pixels->draws + i, error);
        if (status) return status;
    }
    if (plan->lights) light(pixels);
    const int status = store_image(pixels, fm_augment_image(pixels->augment), error);
    if (!status && plan->erases) erase(pixels);
    return status;
}

/* ---- decoded rows ---------------------------------------------------------------------------- */

int fm_pixels_begin(fm_pixels *pixels, const fm_draw_key *key, int32_t width, int32_t height,
                    int32_t *divisor, fm_box *needed, fm_error *error) {
    const fm_plan *const plan = pixels->plan;
    fm_geometry geometry;
    fm_draw *const draws = plan->augments || plan->erases ? pixels->draws : NULL;
    const fm_draw_key own = begin_drawing(pixels, key);
    const int status = fm_geometry_locate(plan->ops, plan->n_ops, plan->n_front, &own, width,
                                          height, &geometry, draws, error);
    if (status) return status;
    if (plan->augments) {
        pixels->front.out_width = geometry.window.width;
        pixels->front.out_height = geometry.window.height;
    }
    /* torch's resize of floats has no part of the input to resize. */
    if (divisor && plan->resizes_floats) *divisor = 1;
    if (divisor && *divisor > 1) {
        const bool second = geometry.second_filter;
        const fm_filter filter = second ? plan->second_filter : plan->filter;
        *divisor = fm_scaled_divisor(&geometry, filter, *divisor);
        fm_scaled_reduce(&geometry, *divisor);
    }
    return fm_resample_begin(pixels->resample, &geometry, needed, error);
}

int fm_pixels_start(fm_pixels *pixels, int32_t skip_px, int32_t row_px, void *out,
                    fm_error *error) {
    pixels->out = out;
    if (pixels->plan->augments) {
        fm_image image;
        const int status = fm_augment_begin(pixels->augment, pixels->front.out_width,
                                            pixels->front.out_height, 3, &image, error);
        if (status) return status;
        out = image.px;
    }
    return fm_resample_start(pixels->resample, skip_px, row_px, out, error);
}

int fm_pixels_finish(fm_pixels *pixels, fm_error *error) {
    const fm_plan *const plan = pixels->plan;
    if (plan->augments) return finish(pixels, plan->n_front, error);
    if (plan->erases) erase(pixels);
    return FM_OK;
}

int fm_pixels_part(fm_pixels *pixels, const fm_draw_key *key, int32_t width, int32_t height,
                   int32_t divisor, const fm_image *part, int32_t left, int32_t top, void *out,
                   fm_error *error) {
    fm_box needed;
    int status = fm_pixels_begin(pixels, key, width, height, &divisor, &needed, error);
    if (!status) status = fm_pixels_start(pixels, 0, needed.width, out, error);
    if (status) return status;
    if (needed.width > 0 && needed.height > 0) {
        needed.left -= left;
        needed.top -= top;
        feed(pixels->resample, part, needed);
    }
    return fm_pixels_finish(pixels, error);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static int resample_array(fm_pixels *pixels, const fm_draw_key *key, const fm_image *in, void *out,
                          fm_error *error) {
    fm_box needed;
    int status = fm_pixels_begin(pixels, key, in->width, in->height, NULL, &needed, error);
    if (!status) status = fm_pixels_start(pixels, 0, needed.width, out, error);
    if (status) return status;
    feed(pixels->resample, in, needed);
    return fm_pixels_finish(pixels, error);
}

static bool resizes(const fm_plan *plan) {
    for (size_t i = 0; i < plan->n_front; i++)
        if (fm_op_resizes(&plan->ops[i])) return true;
    return false;
}

int fm_pixels_array(fm_pixels *pixels, const fm_draw_key *key, const uint8_t *px, int32_t width,
                    int32_t height, int32_t channels, void *out, fm_error *error) {
    const fm_plan *const plan = pixels->plan;
    const fm_image image = {(uint8_t *)(uintptr_t)px, width, height, channels};
    if (resizes(plan) || !plan->augments) return resample_array(pixels, key, &image, out, error);
    /* Without a resize, crops and flips are applied one by one like the augmentations. */
    const fm_draw_key own = begin_drawing(pixels, key);
    int status =
        fm_geometry_draw(plan->ops, plan->n_ops, &own, width, height, pixels->draws, error);
    if (!status) status = fm_augment_begin_with(pixels->augment, &image, error);
    pixels->out = out;
    return status ? status : finish(pixels, 0, error);
}

/* ---- open and close -------------------------------------------------------------------------- */

uint64_t fm_pixels_scratch_bytes(const fm_plan *plan) {
    return plan->augments ? fm_augment_scratch_bytes(most_bytes(plan), FM_MAX_SIDE, plan->blurs)
                          : 0;
}

/* With augmentations the resample writes an R G B image in memory, not the batch's values. */
static void plan_front(fm_plan *front) {
    front->dtype = FM_UINT8;
    front->layout = FM_NHWC;
    front->channels = 3;
    front->stream = false;
    front->out_width = front->front_width ? front->front_width : LIKELY_SIDE;
    front->out_height = front->front_height ? front->front_height : LIKELY_SIDE;
    front->sample_bytes = 3 * (size_t)front->out_width * (size_t)front->out_height;
}

/* Opens what resizes images in memory, with scratch memory for the widest filter. */
static int open_late(fm_pixels *pixels, fm_mem_counter *counter, fm_error *error) {
    const fm_plan *const plan = pixels->plan;
    pixels->late_plan = pixels->front;
    fm_filter widest = plan->filter;
    for (size_t i = plan->n_front; i < plan->n_ops; i++)
        if (fm_op_resizes(&plan->ops[i]))
            widest = fm_coeffs_wider(
                widest, fm_coeffs_wider(plan->ops[i].filter, fm_op_second_filter(&plan->ops[i])));
    pixels->late_plan.filter = pixels->late_plan.second_filter = widest;
    fm_augment_set_resize(pixels->augment, resize_late, pixels);
    return fm_resample_open(&pixels->late, &pixels->late_plan, counter, error);
}

int fm_pixels_open(fm_pixels **out, const fm_plan *plan, fm_mem_counter *counter, fm_error *error) {
    fm_cpu_tier tier;
    *out = NULL;
    int status = fm_cpu_tier_get(&tier, error);
    if (status) return status;
    fm_pixels *const pixels = fm_mem_zalloc(counter, 1, sizeof(*pixels));
    *out = pixels;
    if (!pixels) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a thread's pixels");
    pixels->plan = plan;
    pixels->front = *plan;
    if (plan->augments) plan_front(&pixels->front);
    if (plan->lights) pixels->lit_plan = *plan;
    /* Only the scalar code always reads the table. */
    if (plan->lights)
        fm_store_init(&pixels->store, &pixels->lit_plan, FM_CPU_SCALAR);
    else
        fm_store_init(&pixels->store, plan, tier);
    status = fm_resample_open(&pixels->resample, &pixels->front, counter, error);
    if (!status && plan->augments)
        status = fm_augment_open(&pixels->augment, tier, most_bytes(plan), FM_MAX_SIDE, plan->blurs,
                                 counter, error);
    if (!status && plan->resizes_late) status = open_late(pixels, counter, error);
    if (status) fm_pixels_close(out);
    return status;
}

void fm_pixels_close(fm_pixels **pixels) {
    if (!pixels || !*pixels) return;
    fm_resample_close(&(*pixels)->resample);
    fm_resample_close(&(*pixels)->late);
    fm_augment_close(&(*pixels)->augment);
    fm_mem_free(*pixels);
    *pixels = NULL;
}
