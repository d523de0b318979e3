#include "pipeline/views.h"

#include <string.h>

/* Weights and rows of one more fm_resample. */
#define RESAMPLE_BYTES ((uint64_t)2 << 20)

/* ---- plans ----------------------------------------------------------------------------------- */

static int check(const fm_config *config, fm_error *error) {
    if (config->views_have_files && (!config->n_more_views || config->source.locate))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "views_have_files is for several views and batches that are submitted, "
                            "without a source");
    if (!config->n_more_views) return FM_OK;
    if (config->n_more_views >= FM_MAX_VIEWS || !config->more_views)
        return fm_error_set(
            error, FM_ERR_ARGUMENT, "more_views has %zu transforms at %p; it must have at most %d",
            config->n_more_views, (const void *)config->more_views, FM_MAX_VIEWS - 1);
    if (config->arrays.n || config->raw.body_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "more_views is for encoded images, not for arrays or raw files");
    return FM_OK;
}

static int make_plans(fm_views *views, const fm_config *config, const fm_plan *first,
                      fm_mem_counter *counter, fm_error *error) {
    const size_t n = config->n_more_views;
    if (!n) return FM_OK;
    views->more = fm_mem_zalloc(counter, n, sizeof(fm_plan));
    if (!views->more) return fm_error_set(error, FM_ERR_NOMEM, "no memory for %zu views", n);
    for (size_t i = 0; i < n; i++) {
        fm_plan *const plan = &views->more[i];
        const int status = fm_plan_init(plan, &config->more_views[i], error);
        if (status) return status;
        if (plan->dtype != first->dtype || plan->layout != first->layout)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "more_views[%zu] has another dtype or layout than transform", i);
    }
    return FM_OK;
}

/* Plans have no pointers, so those of equal transforms have equal bytes, or at least make equal
 * pixels with tools of their own. */
static uint32_t first_equal(const fm_views *views, size_t number) {
    const fm_plan *const plan = views->list[number].plan;
    for (size_t i = 0; i < number; i++)
        if (!memcmp(views->list[i].plan, plan, sizeof(*plan))) return (uint32_t)i;
    return (uint32_t)number;
}

int fm_views_open(fm_views *out, const fm_config *config, const fm_plan *first,
                  fm_mem_counter *counter, fm_error *error) {
    int status = check(config, error);
    if (!status) status = make_plans(out, config, first, counter, error);
    if (status) return status;
    out->n = 1 + config->n_more_views;
    out->n_files = config->views_have_files ? (uint32_t)out->n : 1;
    size_t n_ops = 0;
    for (size_t i = 0; i < out->n; i++) {
        const fm_plan *const plan = i ? &out->more[i - 1] : first;
        out->list[i] = (fm_view_place){plan, out->batch_bytes, (uint32_t)n_ops, 0};
        out->list[i].tools = first_equal(out, i);
        const size_t bytes = config->batch_size * plan->sample_bytes;
        out->batch_bytes += out->n > 1 ? fm_mem_round_up(bytes) : bytes;
        n_ops += plan->n_ops;
    }
    if (out->n == 1 || n_ops <= FM_MAX_VIEW_OPS) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "the views have %zu ops; the limit is %u", n_ops,
                        FM_MAX_VIEW_OPS);
}

uint64_t fm_views_scratch_bytes(const fm_views *views) {
    uint64_t n = 0;
    for (size_t i = 0; i < views->n; i++)
        if (views->list[i].tools == i)
            n += fm_pixels_scratch_bytes(views->list[i].plan) + (i ? RESAMPLE_BYTES : 0);
    return n;
}

void fm_views_close(fm_views *views) {
    fm_mem_free(views->more);
    *views = (fm_views){0};
}

/* ---- tools of a decode thread ---------------------------------------------------------------- */

int fm_view_tools_open(fm_view_tools *out, const fm_views *views, fm_mem_counter *counter,
                       fm_error *error) {
    fm_scratch_init(&out->scratch, counter);
    for (size_t i = 0; i < views->n; i++) {
        if (views->list[i].tools != i) continue;
        const int status = fm_pixels_open(&out->pixels[i], views->list[i].plan, counter, error);
        if (status) return status;
    }
    return FM_OK;
}

void fm_view_tools_close(fm_view_tools *tools) {
    for (size_t i = 0; i < FM_MAX_VIEWS; i++) fm_pixels_close(&tools->pixels[i]);
    fm_scratch_fini(&tools->scratch);
}
