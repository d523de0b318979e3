#include "decode/decoder.h"

#include "decode/exif.h"
#include "decode/jpeg.h"
#include "decode/png.h"
#include "decode/turned.h"
#include "decode/webp.h"

/* CMake defines these. The fallback is for compiling this file alone. */
#ifndef FM_HAVE_SPNG
#define FM_HAVE_SPNG 0
#endif
#ifndef FM_HAVE_WEBP
#define FM_HAVE_WEBP 0
#endif

/* OpenCV refuses larger images. */
#define OPENCV_MAX_PIXELS (1 << 30)

struct fm_decoder {
    fm_jpeg *jpeg;
    fm_png *png;      /* NULL without libspng */
    fm_webp *webp;    /* NULL without libwebp */
    fm_format format; /* of the image that was begun last */
    uint32_t rejected_formats;
};

/* Constants without the library, so that the compiler drops the calls of its decoder. */
#define IS_PNG(decoder) (FM_HAVE_SPNG && (decoder)->format == FM_FORMAT_PNG)
#define IS_WEBP(decoder) (FM_HAVE_WEBP && (decoder)->format == FM_FORMAT_WEBP)

const char *fm_formats(void) {
    return "JPEG"
#if FM_HAVE_SPNG
           ", PNG"
#endif
#if FM_HAVE_WEBP
           ", WebP"
#endif
        ;
}

/* ---- all formats ----------------------------------------------------------------------------- */

int fm_decoder_open(fm_decoder **out, const fm_limits *limits, fm_mem_counter *counter,
                    fm_error *error) {
    fm_decoder *const decoder = fm_mem_zalloc(counter, 1, sizeof(*decoder));
    *out = decoder;
    if (!decoder) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for a decoder");
    decoder->format = FM_FORMAT_JPEG;
    decoder->rejected_formats = limits->rejected_formats;
    int status = FM_OK;
    if (FM_HAVE_SPNG) status = fm_png_open(&decoder->png, limits, counter, error);
    if (FM_HAVE_WEBP && !status) status = fm_webp_open(&decoder->webp, limits, counter, error);
    if (!status) status = fm_jpeg_open(&decoder->jpeg, limits, counter, error);
    if (status) fm_decoder_close(out);
    return status;
}

void fm_decoder_watch(fm_decoder *decoder, const _Atomic bool *cancelled) {
    if (FM_HAVE_SPNG) fm_png_watch(decoder->png, cancelled);
    if (FM_HAVE_WEBP) fm_webp_watch(decoder->webp, cancelled);
    fm_jpeg_watch(decoder->jpeg, cancelled);
}

void fm_decoder_set_interval_skipping(fm_decoder *decoder, bool skip_intervals, bool is_partial) {
    fm_jpeg_set_interval_skipping(decoder->jpeg, skip_intervals, is_partial);
}

void fm_decoder_set_seek(fm_decoder *decoder, fm_jpeg_seek *seek) {
    fm_jpeg_set_seek(decoder->jpeg, seek);
}

bool fm_decoder_is_large(const fm_decoder *decoder) {
    if (FM_HAVE_SPNG && fm_png_is_large(decoder->png)) return true;
    if (FM_HAVE_WEBP && fm_webp_is_large(decoder->webp)) return true;
    return fm_jpeg_is_large(decoder->jpeg);
}

void fm_decoder_trim(fm_decoder *decoder) {
    if (FM_HAVE_SPNG) fm_png_trim(decoder->png);
    if (FM_HAVE_WEBP) fm_webp_trim(decoder->webp);
    fm_jpeg_trim(decoder->jpeg);
}

void fm_decoder_close(fm_decoder **decoder) {
    if (!decoder || !*decoder) return;
    if (FM_HAVE_SPNG) fm_png_close(&(*decoder)->png);
    if (FM_HAVE_WEBP) fm_webp_close(&(*decoder)->webp);
    fm_jpeg_close(&(*decoder)->jpeg);
    fm_mem_free(*decoder);
    *decoder = NULL;
}

/* ---- one image ------------------------------------------------------------------------------- */

/* JPEG for unknown formats, too: its decoder names in its message what it does not accept. */
static fm_format detect_format(const uint8_t *bytes, size_t n_bytes) {
    if (FM_HAVE_SPNG && fm_png_is_one(bytes, n_bytes)) return FM_FORMAT_PNG;
    if (FM_HAVE_WEBP && fm_webp_is_one(bytes, n_bytes)) return FM_FORMAT_WEBP;
    return FM_FORMAT_JPEG;
}

/* Whether an image is a JPEG in color or grayscale that no program turns. OpenCV 4 and torchcodec
 * may take another segment for EXIF data than other programs do. */
static bool is_upright_jpeg(const fm_decoder *decoder, const fm_image_info *info,
                            const uint8_t *bytes, size_t n_bytes) {
    return decoder->format == FM_FORMAT_JPEG &&
           (info->n_components == 3 || info->n_components == 1) &&
           (int64_t)info->width * info->height <= OPENCV_MAX_PIXELS &&
           !fm_may_be_turned(FM_FORMAT_JPEG, bytes, n_bytes) &&
           fm_exif_orientation(bytes, n_bytes) == 1;
}

typedef int jpeg_reader(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                        fm_error *error);

/* Detects the format and reads the header, of a JPEG by read_jpeg(). */
static int read_header(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                       jpeg_reader *read_jpeg, fm_image_info *info, fm_error *error) {
    decoder->format = detect_format(bytes, n_bytes);
    if (decoder->rejected_formats & (uint32_t)decoder->format)
        return fm_error_set(error, FM_ERR_KIND, "%s images are rejected (rejected_formats)",
                            IS_PNG(decoder)    ? "PNG"
                            : IS_WEBP(decoder) ? "WebP"
                                               : "JPEG");
    int status;
    if (IS_PNG(decoder))
        status = fm_png_begin(decoder->png, bytes, n_bytes, info, error);
    else if (IS_WEBP(decoder))
        status = fm_webp_begin(decoder->webp, bytes, n_bytes, info, error);
    else
        status = read_jpeg(decoder->jpeg, bytes, n_bytes, info, error);
    if (!status && decoder->rejected_formats & FM_REJECT_TURNED &&
        fm_may_be_turned(decoder->format, bytes, n_bytes))
        return fm_error_set(error, FM_ERR_KIND, "an image that its metadata may turn or mirror");
    const bool has_palette = !status && IS_PNG(decoder) && fm_png_has_palette(decoder->png);
    if (!status && decoder->rejected_formats & FM_REJECT_NOT_RGB &&
        (info->n_components != 3 || has_palette))
        return fm_error_set(error, FM_ERR_KIND, "an image that does not hold R, G and B");
    if (!status && decoder->rejected_formats & FM_REJECT_NOT_UPRIGHT_JPEG &&
        !is_upright_jpeg(decoder, info, bytes, n_bytes))
        return fm_error_set(error, FM_ERR_KIND, "no JPEG, or CMYK, or one that may be turned");
    return status;
}

int fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                     fm_error *error) {
    return read_header(decoder, bytes, n_bytes, fm_jpeg_begin, info, error);
}

int fm_decoder_measure(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                       fm_image_info *info, fm_error *error) {
    const int status = read_header(decoder, bytes, n_bytes, fm_jpeg_measure, info, error);
    fm_decoder_end(decoder); /* other formats than JPEG were begun */
    return status;
}

fm_format fm_decoder_format(const fm_decoder *decoder) { return decoder->format; }

bool fm_decoder_can_reduce(const fm_decoder *decoder) { return decoder->format == FM_FORMAT_JPEG; }

void fm_decoder_set_divisor(fm_decoder *decoder, int32_t divisor) {
    fm_jpeg_set_divisor(decoder->jpeg, divisor);
}

int fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                     fm_error *error) {
    if (IS_PNG(decoder)) return fm_png_start(decoder->png, box, skip_px, row_px, error);
    if (IS_WEBP(decoder)) return fm_webp_start(decoder->webp, box, skip_px, row_px, error);
    return fm_jpeg_start(decoder->jpeg, box, skip_px, row_px, error);
}

int fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows, fm_error *error) {
    if (IS_PNG(decoder)) return fm_png_read(decoder->png, rows, n_rows, error);
    if (IS_WEBP(decoder)) return fm_webp_read(decoder->webp, rows, n_rows, error);
    return fm_jpeg_read(decoder->jpeg, rows, n_rows, error);
}

void fm_decoder_end(fm_decoder *decoder) {
    if (IS_PNG(decoder))
        fm_png_end(decoder->png);
    else if (IS_WEBP(decoder))
        fm_webp_end(decoder->webp);
    else
        fm_jpeg_end(decoder->jpeg);
}
