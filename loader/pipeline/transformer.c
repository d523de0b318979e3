/*
 * transformer.h: the processor for encoded images (process_image.c) without a loader around it.
 */
#define _GNU_SOURCE
#include "feedmill/transformer.h"

#include "base/error.h"
#include "base/mem.h"
#include "decode/decoder.h"
#include "pipeline/pixels.h"

struct fm_transformer {
    fm_plan plan;
    fm_decoder *decoder;
    fm_pixels *pixels;
    fm_draw draws[FM_MAX_OPS]; /* of fm_transformer_draw() */
};

int fm_transformer_open(fm_transformer **out, const fm_transform *transform,
                        uint64_t max_image_pixels, fm_error *error) {
    fm_error_clear(error);
    if (!out || !transform) return fm_error_set(error, FM_ERR_ARGUMENT, "out or transform is NULL");
    *out = NULL;
    fm_config defaults;
    fm_config_init(&defaults);
    const fm_limits limits = {.max_file_bytes = UINT64_MAX,
                              .max_image_pixels =
                                  max_image_pixels ? max_image_pixels : defaults.max_image_pixels};
    fm_transformer *transformer = fm_mem_zalloc(NULL, 1, sizeof(*transformer));
    if (!transformer) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a transformer");
    int status = fm_plan_init(&transformer->plan, transform, error);
    if (!status) status = fm_decoder_open(&transformer->decoder, &limits, NULL, error);
    if (!status) status = fm_pixels_open(&transformer->pixels, &transformer->plan, NULL, error);
    if (status) {
        fm_transformer_close(&transformer);
        return status;
    }
    *out = transformer;
    return FM_OK;
}

void fm_transformer_close(fm_transformer **pointer) {
    if (!pointer || !*pointer) return;
    fm_transformer *const transformer = *pointer;
    *pointer = NULL;
    fm_pixels_close(&transformer->pixels);
    fm_decoder_close(&transformer->decoder);
    fm_mem_free(transformer);
}

fm_sample_shape fm_transformer_shape(const fm_transformer *transformer) {
    const fm_plan *const plan = &transformer->plan;
    return (fm_sample_shape){.channels = plan->channels,
                             .height = plan->out_height,
                             .width = plan->out_width,
                             .sample_bytes = plan->sample_bytes};
}

/* Decodes and transforms block by block. */
static int run_rows(fm_transformer *transformer, fm_error *error) {
    uint8_t *rows[FM_RESAMPLE_ROWS];
    fm_resample *const resample = fm_pixels_resample(transformer->pixels);
    for (int32_t n; (n = fm_resample_rows(resample, rows, FM_RESAMPLE_ROWS)) > 0;) {
        n = fm_decoder_read(transformer->decoder, rows, n, error);
        if (n < 0) return n;
        fm_resample_push(resample, n);
    }
    return FM_OK;
}

static int run_encoded(fm_transformer *transformer, const fm_source_image *image,
                       const fm_draw_key *key, void *out, fm_error *error) {
    fm_image_info info;
    fm_box needed;
    int32_t skip_px = 0, row_px = 0;
    int status =
        fm_decoder_begin(transformer->decoder, image->data, image->data_bytes, &info, error);
    if (!status)
        status = fm_pixels_begin(transformer->pixels, key, info.width, info.height, NULL, &needed,
                                 error);
    if (!status && needed.width > 0 && needed.height > 0)
        status = fm_decoder_start(transformer->decoder, &needed, &skip_px, &row_px, error);
    if (!status) status = fm_pixels_start(transformer->pixels, skip_px, row_px, out, error);
    if (!status) status = run_rows(transformer, error);
    if (!status) status = fm_pixels_finish(transformer->pixels, error);
    return status;
}

int fm_transformer_draw(fm_transformer *transformer, int32_t width, int32_t height,
                        fm_streams *streams, fm_error *error) {
    fm_error_clear(error);
    if (!transformer || !streams)
        return fm_error_set(error, FM_ERR_ARGUMENT, "transformer or streams is NULL");
    if (width < 1 || width > FM_MAX_SIDE || height < 1 || height > FM_MAX_SIDE)
        return fm_error_set(error, FM_ERR_ARGUMENT, "the image is %d x %d; sides are 1 to %d",
                            (int)width, (int)height, FM_MAX_SIDE);
    fm_streams drawn = *streams;
    const fm_draw_key key = {.streams = &drawn};
    const fm_plan *const plan = &transformer->plan;
    const int status =
        fm_geometry_draw(plan->ops, plan->n_ops, &key, width, height, transformer->draws, error);
    if (!status) *streams = drawn;
    return status;
}

int fm_transformer_run(fm_transformer *transformer, const fm_source_image *image,
                       const fm_streams *streams, void *out, fm_error *error) {
    fm_error_clear(error);
    if (!transformer || !image || !streams || !out)
        return fm_error_set(error, FM_ERR_ARGUMENT, "transformer, image, streams or out is NULL");
    if (!image->data == !image->pixels)
        return fm_error_set(error, FM_ERR_ARGUMENT, "an image needs either data or pixels");
    if (image->pixels && (image->pixels_width < 1 || image->pixels_width > FM_MAX_SIDE ||
                          image->pixels_height < 1 || image->pixels_height > FM_MAX_SIDE))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the pixels are %d x %d; sides are 1 to %d",
                            (int)image->pixels_width, (int)image->pixels_height, FM_MAX_SIDE);
    fm_streams drawn = *streams;
    const fm_draw_key key = {.streams = &drawn};
    int status;
    if (image->data) {
        status = run_encoded(transformer, image, &key, out, error);
        fm_decoder_end(transformer->decoder);
        if (fm_decoder_is_large(transformer->decoder)) fm_decoder_trim(transformer->decoder);
    } else {
        status = fm_pixels_array(transformer->pixels, &key, image->pixels, image->pixels_width,
                                 image->pixels_height, 3, out, error);
    }
    return status;
}
