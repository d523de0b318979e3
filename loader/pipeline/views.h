/*
 * Views: several images made from one decode of a sample, each by a plan of its own. A loader
 * without fm_config.more_views has one view.
 *
 * In a batch's memory each view is an array of all its images, one array after the other. Equal
 * plans share the tools of a decode thread.
 *
 * With fm_config.views_have_files each view is made from a file of its own: each file is a task of
 * the batch, those of a sample one after the other.
 */
#ifndef FM_PIPELINE_VIEWS_H
#define FM_PIPELINE_VIEWS_H

#include "decode/scratch.h"
#include "pipeline/pixels.h"

/* Ops of all views together: their numbers have 8 bits in base/rng.h, and 255 is left for random
 * numbers of the caller's. */
#define FM_MAX_VIEW_OPS 255u

typedef struct fm_view_place {
    const fm_plan *plan;
    size_t offset;     /* of the view's array, in bytes from the start of a batch's memory */
    uint32_t first_op; /* number of ops of the views before it; see fm_draw_key */
    uint32_t tools;    /* the first view with an equal plan */
} fm_view_place;

/* Fixed after fm_views_open(); all zero before. */
typedef struct fm_views {
    size_t n;
    uint32_t n_files;   /* tasks of a sample: n if the views have files of their own, else 1 */
    size_t batch_bytes; /* of all arrays of a full batch */
    fm_plan *more;      /* [n - 1], of the views after the first; owned */
    fm_view_place list[FM_MAX_VIEWS];
} fm_views;

/* Makes the plans of config->more_views, and lays out batches of config->batch_size samples.
 * `first` is the plan of config->transform, and must outlive *out. FM_ERR_ARGUMENT, FM_ERR_NOMEM;
 * the caller then closes *out. */
int fm_views_open(fm_views *out, const fm_config *config, const fm_plan *first,
                  fm_mem_counter *counter, fm_error *error);

/* Bytes of memory that a decode thread needs for the views' plans, apart from what every thread
 * needs. */
uint64_t fm_views_scratch_bytes(const fm_views *views);

/* Accepts a zeroed struct. */
void fm_views_close(fm_views *views);

/* Numbers of the views that one task makes: from begin to end - 1. */
typedef struct fm_view_range {
    size_t begin, end;
} fm_view_range;

/* Of the task at a position of its batch. */
static inline fm_view_range fm_views_at(const fm_views *views, uint32_t position) {
    if (views->n_files <= 1) return (fm_view_range){0, views->n};
    const size_t view = position % views->n_files;
    return (fm_view_range){view, view + 1};
}

/* The place of a view's image of the task at a position of a batch, whose memory this is. */
static inline uint8_t *fm_view_out(const fm_views *views, size_t view, void *memory,
                                   uint32_t position) {
    const fm_view_place *const place = &views->list[view];
    return (uint8_t *)memory + place->offset +
           position / views->n_files * place->plan->sample_bytes;
}

/* What a decode thread needs to make several views. All zero with one view. */
typedef struct fm_view_tools {
    fm_pixels *pixels[FM_MAX_VIEWS]; /* by fm_view_place.tools */
    fm_scratch scratch;              /* the decoded part of the image */
} fm_view_tools;

/* FM_ERR_NOMEM, FM_ERR_ARGUMENT; the caller then closes *out. */
int fm_view_tools_open(fm_view_tools *out, const fm_views *views, fm_mem_counter *counter,
                       fm_error *error);

/* Accepts a zeroed struct. */
void fm_view_tools_close(fm_view_tools *tools);

#endif
