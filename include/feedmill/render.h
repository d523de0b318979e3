/*
 * Renders a part of one image: decodes only the rows and columns that are needed, turns them,
 * resizes them and crops the result, into the caller's memory, on the calling thread.
 *
 *     fm_renderer *renderer = NULL;
 *     if (fm_renderer_open(&renderer, 0, &error)) die(error.message);
 *     fm_image_header header;
 *     if (fm_renderer_header(renderer, data, n_bytes, &header, &error)) die(error.message);
 *     fm_render job = {.struct_bytes = sizeof(job), .data = data, .data_bytes = n_bytes};
 *     job.box = (fm_rect){100, 50, 300, 200};
 *     job.resized_width = job.resized_height = 224;
 *     job.window = (fm_rect){0, 0, 224, 224};
 *     uint8_t *const pixels = malloc(224 * 224 * 3);
 *     if (fm_renderer_run(renderer, &job, pixels, &error)) die(error.message);
 *     fm_renderer_close(&renderer);
 *
 * The pixels equal those of the same calls in Pillow, bit for bit:
 *
 *     image = Image.open(file).convert("RGB").crop(box)  # then transposed by `orientation`
 *     image = image.resize((resized_width, resized_height), filter).crop(window)
 *     # then transposed by `window_orientation`
 *
 * One thread at a time may use a renderer; it keeps its memory for the next image.
 */
#ifndef FEEDMILL_RENDER_H
#define FEEDMILL_RENDER_H

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_renderer fm_renderer;

/* A part of an image in pixels: columns left to left + width - 1, rows top to top + height - 1. */
typedef struct fm_rect {
    int32_t left, top, width, height;
} fm_rect;

/*
 * How an image is turned, with the numbers of EXIF's tag Orientation: what has to be done to an
 * image that is stored with this tag. Pillow's name of the method is beside it. 0 is FM_UPRIGHT,
 * too.
 */
typedef enum fm_orientation {
    FM_UPRIGHT = 1,
    FM_MIRRORED = 2,      /* FLIP_LEFT_RIGHT */
    FM_ROTATED_180 = 3,   /* ROTATE_180 */
    FM_FLIPPED = 4,       /* FLIP_TOP_BOTTOM */
    FM_TRANSPOSED = 5,    /* TRANSPOSE */
    FM_ROTATED_RIGHT = 6, /* ROTATE_270 */
    FM_TRANSVERSED = 7,   /* TRANSVERSE */
    FM_ROTATED_LEFT = 8   /* ROTATE_90 */
} fm_orientation;

/* The bytes of one pixel of the result. */
typedef enum fm_pixel_format {
    FM_PIXEL_RGB = 0,  /* three bytes */
    FM_PIXEL_RGBX = 1, /* four bytes, the fourth is fm_render.fourth_byte; Pillow's own layout */
    FM_PIXEL_BGR = 2   /* three bytes; OpenCV's layout; only of the result */
} fm_pixel_format;

/* What is known about an image from its header. */
typedef struct fm_image_header {
    fm_format format;
    int32_t width, height;
    int32_t n_components; /* 1 gray, 2 gray and alpha, 3 RGB, 4 CMYK or RGB and alpha */
    bool progressive;     /* all of it is decoded, whatever part is rendered */
    size_t n_bytes;       /* of a JPEG, including the EOI marker; 0 of other formats */
} fm_image_header;

/* What to render. A member that is 0 means what its comment says about 0. */
typedef struct fm_render {
    size_t struct_bytes; /* sizeof(fm_render) */
    /* The encoded image, or NULL: */
    const void *data;
    size_t data_bytes;
    /* its decoded pixels in contiguous rows. */
    const uint8_t *pixels;
    int32_t pixels_width, pixels_height;
    fm_pixel_format pixels_format; /* their layout; the fourth byte is ignored */

    fm_rect box;                           /* the part of the image; must lie within it */
    fm_orientation orientation;            /* how that part is turned */
    int32_t resized_width, resized_height; /* 0, 0: not resized; the members below are not used */
    fm_filter filter;
    fm_resize_order resize_order;
    /* The part that is resized, in pixels of the turned box: left, top, right, bottom. Pixels
     * around it are used at its edges, as by Pillow's resize(box=...). All 0: the whole box. Not
     * with FM_FILTER_NEAREST. */
    float resize_box[4];
    fm_rect window; /* the part of the resized image; must lie within it */
    fm_orientation window_orientation;

    fm_pixel_format format;
    uint8_t fourth_byte;
} fm_render;

/*
 * Opens a renderer. max_image_pixels: larger images are refused with FM_ERR_LIMIT; 0: fm_config's
 * default. FM_ERR_NOMEM, or FM_ERR_ARGUMENT if FEEDMILL_CPU is invalid.
 */
FM_API FM_CHECK_RESULT int fm_renderer_open(fm_renderer **out, uint64_t max_image_pixels,
                                            fm_error *error);

/*
 * Reads an image's header and, of a JPEG, all markers up to its end: an image that is cut short or
 * has damaged markers or tables fails with FM_ERR_DAMAGED (tables of a progressive one only when it
 * is rendered). Also FM_ERR_FORMAT, KIND, LIMIT, NOMEM.
 */
FM_API FM_CHECK_RESULT int fm_renderer_header(fm_renderer *renderer, const void *data,
                                              size_t data_bytes, fm_image_header *header,
                                              fm_error *error);

/* The size of the result in pixels. */
FM_API void fm_render_size(const fm_render *job, int32_t *width, int32_t *height);

/*
 * Renders into out[height][width][3 or 4], contiguous, of the size above. After a failure
 * (FM_ERR_DAMAGED, FORMAT, KIND, LIMIT, NOMEM, ARGUMENT) `out` holds anything.
 */
FM_API FM_CHECK_RESULT int fm_renderer_run(fm_renderer *renderer, const fm_render *job,
                                           uint8_t *out, fm_error *error);

/* Accepts NULL and a pointer to NULL; sets *renderer to NULL. */
FM_API void fm_renderer_close(fm_renderer **renderer);

#ifdef __cplusplus
}
#endif
#endif
