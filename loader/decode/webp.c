#define _GNU_SOURCE
#include "decode/webp.h"

#include <assert.h>
#include <string.h>

#include <webp/decode.h>

#include "decode/scratch.h"
#include "decode/webp_scan.h"

#define MAX_IMAGE_BYTES ((size_t)80 << 20)
#define WEBP_MAX_DIMENSION 16383 /* of a side, as libwebp's encode.h has it */
/* Pixels that are decoded between two checks of the cancel flag. */
#define STEP_PX ((size_t)1 << 20)

enum state {
    STATE_IDLE,    /* between images */
    STATE_BEGUN,   /* the header is read */
    STATE_STARTED, /* rows can be read */
    STATE_FAILED   /* only fm_webp_end() may be called */
};

struct fm_webp {
    fm_scratch scratch;
    fm_limits limits;
    const _Atomic bool *cancelled; /* NULL: never */
    fm_webp_picture picture;
    fm_image_info info;
    fm_box box;
    enum state state;
    int32_t next_row; /* of the box */
    uint8_t *image;   /* all pixels, R G B */
};

/* ---- open, close ----------------------------------------------------------------------------- */

int fm_webp_open(fm_webp **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error) {
    fm_webp *const webp = fm_mem_zalloc(counter, 1, sizeof(*webp));
    *out = webp;
    if (!webp) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a WebP decoder");
    webp->limits = *limits;
    fm_scratch_init(&webp->scratch, counter);
    return FM_OK;
}

void fm_webp_watch(fm_webp *webp, const _Atomic bool *cancelled) { webp->cancelled = cancelled; }

void fm_webp_end(fm_webp *webp) {
    fm_scratch_reset(&webp->scratch);
    webp->state = STATE_IDLE;
}

void fm_webp_close(fm_webp **webp) {
    if (!webp || !*webp) return;
    fm_scratch_fini(&(*webp)->scratch);
    fm_mem_free(*webp);
    *webp = NULL;
}

bool fm_webp_is_large(const fm_webp *webp) { return fm_scratch_is_large(&webp->scratch); }

void fm_webp_trim(fm_webp *webp) { fm_scratch_trim(&webp->scratch); }

/* ---- statuses -------------------------------------------------------------------------------- */

static int check_state(const fm_webp *webp, enum state wanted, const char *call, fm_error *error) {
    assert(webp->state == wanted || webp->state == STATE_FAILED);
    if (webp->state == wanted) return FM_OK;
    return fm_error_set(error, FM_ERR_STATE, "%s called in the wrong state", call);
}

/* Turns libwebp's code into a status. The data is complete, so a request for more means damage. */
static int status_of(VP8StatusCode code, fm_error *error) {
    switch (code) {
    case VP8_STATUS_OK:
        return FM_OK;
    case VP8_STATUS_OUT_OF_MEMORY:
        return fm_error_set(error, FM_ERR_NOMEM, "libwebp: out of memory");
    /* libwebp returns this for damaged alpha data, and if memory for its output rows is short. As
     * the two can't be told apart, the caller falls back to Pillow. */
    case VP8_STATUS_USER_ABORT:
        return fm_error_set(error, FM_ERR_DAMAGED,
                            "libwebp: damaged image data, or out of memory for its rows");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return fm_error_set(error, FM_ERR_KIND, "libwebp: unsupported feature");
    default:
        return fm_error_set(error, FM_ERR_DAMAGED, "libwebp: damaged image data (%d)", (int)code);
    }
}

static bool is_cancelled(const fm_webp *webp) {
    return webp->cancelled && atomic_load_explicit(webp->cancelled, memory_order_relaxed);
}

/* ---- one image ------------------------------------------------------------------------------- */

static int read_header(fm_webp *webp, const uint8_t *bytes, size_t n_bytes, fm_error *error) {
    WebPBitstreamFeatures features;
    int status = fm_webp_scan_file(&webp->picture, bytes, n_bytes, error);
    if (!status) status = status_of(WebPGetFeatures(bytes, n_bytes, &features), error);
    if (status) return status;
    if (features.has_animation) return fm_error_set(error, FM_ERR_KIND, "an animated WebP");
    /* An extended file's header may give a larger size, which no picture has. */
    if (features.width > WEBP_MAX_DIMENSION || features.height > WEBP_MAX_DIMENSION)
        return fm_error_set(error, FM_ERR_DAMAGED, "a WebP of %d x %d pixels; the most are %d",
                            features.width, features.height, WEBP_MAX_DIMENSION);
    const uint64_t n_px = (uint64_t)features.width * (uint64_t)features.height;
    if (n_px > webp->limits.max_image_pixels)
        return fm_error_set(error, FM_ERR_LIMIT, "%d x %d pixels; max_image_pixels allows %llu",
                            features.width, features.height,
                            (unsigned long long)webp->limits.max_image_pixels);
    if (3 * n_px > MAX_IMAGE_BYTES)
        return fm_error_set(error, FM_ERR_LIMIT, "a WebP of %d x %d pixels takes more than %zu MB",
                            features.width, features.height, MAX_IMAGE_BYTES >> 20);
    webp->info = (fm_image_info){.width = features.width,
                                 .height = features.height,
                                 .n_components = features.has_alpha ? 4 : 3,
                                 .progressive = true};
    return FM_OK;
}

int fm_webp_begin(fm_webp *webp, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                  fm_error *error) {
    const int wrong = check_state(webp, STATE_IDLE, "fm_webp_begin()", error);
    if (wrong) return wrong;
    webp->state = STATE_FAILED;
    const int status = read_header(webp, bytes, n_bytes, error);
    if (status) return status;
    *info = webp->info;
    webp->state = STATE_BEGUN;
    return FM_OK;
}

/* Passes the picture's bytes to libwebp, without other chunks, as Pillow does; in several steps if
 * the image is large. */
static int feed(const fm_webp *webp, WebPIDecoder *codec, fm_error *error) {
    const size_t n_px = (size_t)webp->info.width * (size_t)webp->info.height;
    const size_t n_steps = n_px / STEP_PX + 1;
    VP8StatusCode code = VP8_STATUS_SUSPENDED;
    for (size_t step = 1; step <= n_steps && code == VP8_STATUS_SUSPENDED; step++) {
        if (is_cancelled(webp))
            return fm_error_set(error, FM_ERR_CANCELLED, "decoding was cancelled");
        const uint64_t n_bytes = (uint64_t)webp->picture.n_bytes * step / n_steps;
        code = WebPIUpdate(codec, webp->picture.bytes, (size_t)n_bytes);
    }
    return status_of(code, error);
}

static int decode(fm_webp *webp, fm_error *error) {
    const size_t row_bytes = 3 * (size_t)webp->info.width;
    const size_t n_bytes = row_bytes * (size_t)webp->info.height;
    webp->image = fm_scratch_alloc(&webp->scratch, n_bytes);
    WebPIDecoder *const codec =
        webp->image ? WebPINewRGB(MODE_RGB, webp->image, n_bytes, (int)row_bytes) : NULL;
    if (!codec)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a WebP of %d x %d pixels",
                            webp->info.width, webp->info.height);
    const int status = feed(webp, codec, error);
    WebPIDelete(codec);
    return status;
}

int fm_webp_start(fm_webp *webp, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                  fm_error *error) {
    const int wrong = check_state(webp, STATE_BEGUN, "fm_webp_start()", error);
    if (wrong) return wrong;
    if (!fm_box_is_within(box, &webp->info))
        return fm_error_set(error, FM_ERR_ARGUMENT, "box %d,%d %dx%d is not within %dx%d pixels",
                            box->left, box->top, box->width, box->height, webp->info.width,
                            webp->info.height);
    webp->state = STATE_FAILED;
    const int status = decode(webp, error);
    if (status) return status;
    webp->box = *box;
    webp->next_row = 0;
    *skip_px = 0;
    *row_px = box->width;
    webp->state = STATE_STARTED;
    return FM_OK;
}

int fm_webp_read(fm_webp *webp, uint8_t *const *rows, int32_t n_rows, fm_error *error) {
    const int wrong = check_state(webp, STATE_STARTED, "fm_webp_read()", error);
    if (wrong) return wrong;
    const int32_t n_left = webp->box.height - webp->next_row;
    const int32_t n = n_rows < n_left ? n_rows : n_left;
    if (n < 1) return fm_error_set(error, FM_ERR_STATE, "fm_webp_read(): no rows are left");
    for (int32_t i = 0; i < n; i++) {
        const size_t y = (size_t)(webp->box.top + webp->next_row++);
        const size_t at = y * (size_t)webp->info.width + (size_t)webp->box.left;
        memcpy(rows[i], webp->image + 3 * at, 3 * (size_t)webp->box.width);
    }
    return n;
}
