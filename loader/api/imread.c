/*
 * feedmill/imread.h: reads and decodes one image on the caller's thread.
 *
 * Emulates OpenCV's imread() for JPEGs: FM_BGR is its channel order, and `upright` applies the EXIF
 * orientation as it does. Both are refused for images whose OpenCV pixels would differ: other
 * formats and CMYK.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/orientation.h"
#include "decode/decoder.h"
#include "decode/exif.h"
#include "decode/jpeg.h"

/* Rows that are decoded at a time. */
#define BLOCK_ROWS 16
/* What fm_jpeg_read() may write after a row. */
#define ROW_PAD_BYTES 64

struct fm_imread {
    fm_jpeg *jpeg; /* for JPEGs, the only format with OpenCV's channel order and orientation */
    fm_decoder *decoder; /* for other formats */
    uint8_t *file;       /* owned copy of the file, or NULL if the caller passed the bytes */
    const uint8_t *bytes;
    size_t n_bytes;
    fm_image_info info;
    int orientation;
    bool is_read;
};

/* ---- reading --------------------------------------------------------------------------------- */

static int read_all(int file, uint8_t *out, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = read(file, out + done, n_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO; /* the file became shorter */
        done += (size_t)n;
    }
    return 0;
}

static int read_open_file(fm_imread *image, int file, uint64_t max_file_bytes, fm_error *error) {
    struct stat about;
    if (fstat(file, &about))
        return fm_error_set_errno(error, FM_ERR_READ, errno, "can't read the file");
    if (!S_ISREG(about.st_mode))
        return fm_error_set(error, FM_ERR_READ, "can't read the file: it is not a regular one");
    if ((uint64_t)about.st_size > max_file_bytes)
        return fm_error_set(error, FM_ERR_LIMIT, "the file is larger than %llu bytes",
                            (unsigned long long)max_file_bytes);
    image->n_bytes = (size_t)about.st_size;
    image->file = fm_mem_alloc(NULL, image->n_bytes, 1);
    if (!image->file) return fm_error_set(error, FM_ERR_NOMEM, "no memory for the file");
    image->bytes = image->file;
    const int failure = read_all(file, image->file, image->n_bytes);
    if (failure) return fm_error_set_errno(error, FM_ERR_READ, failure, "can't read the file");
    return FM_OK;
}

static int read_file(fm_imread *image, const char *path, uint64_t max_file_bytes, fm_error *error) {
    /* O_NONBLOCK: opening a FIFO would wait for a writer. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return fm_error_set_errno(error, FM_ERR_READ, errno, "can't open the file");
    const int status = read_open_file(image, file, max_file_bytes, error);
    close(file);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_jpeg(const fm_imread *image) {
    return image->n_bytes > 1 && image->bytes[0] == 0xFF && image->bytes[1] == 0xD8;
}

static int begin_jpeg(fm_imread *image, const fm_limits *limits, fm_error *error) {
    int status = fm_jpeg_open(&image->jpeg, limits, NULL, error);
    if (!status)
        status = fm_jpeg_begin(image->jpeg, image->bytes, image->n_bytes, &image->info, error);
    if (!status) image->orientation = fm_exif_orientation(image->bytes, image->n_bytes);
    return status;
}

static int begin_other(fm_imread *image, const fm_limits *limits, fm_error *error) {
    const int status = fm_decoder_open(&image->decoder, limits, NULL, error);
    if (status) return status;
    return fm_decoder_begin(image->decoder, image->bytes, image->n_bytes, &image->info, error);
}

static int begin(fm_imread *image, const fm_sample *sample, const fm_limits *limits,
                 fm_error *error) {
    int status = FM_OK;
    if (sample->data) {
        image->bytes = sample->data;
        image->n_bytes = sample->data_bytes;
    } else {
        status = read_file(image, sample->path, limits->max_file_bytes, error);
    }
    if (!status && image->n_bytes == 0)
        status = fm_error_set(error, FM_ERR_FORMAT, "the file is empty");
    if (status) return status;
    return is_jpeg(image) ? begin_jpeg(image, limits, error) : begin_other(image, limits, error);
}

int fm_imread_open(fm_imread **out, const fm_sample *sample, uint64_t max_image_pixels,
                   fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!sample || (!sample->data && !sample->path))
        return fm_error_set(error, FM_ERR_ARGUMENT, "an image needs a path or data");
    if (sample->range_bytes)
        return fm_error_set(error, FM_ERR_ARGUMENT, "only a loader reads a range of a file");
    fm_config defaults;
    fm_config_init(&defaults);
    const fm_limits limits = {.max_file_bytes = defaults.max_file_bytes,
                              .max_image_pixels =
                                  max_image_pixels ? max_image_pixels : defaults.max_image_pixels};
    fm_imread *image = fm_mem_zalloc(NULL, 1, sizeof(*image));
    if (!image) return fm_error_set(error, FM_ERR_NOMEM, "no memory for an image");
    const int status = begin(image, sample, &limits, error);
    if (status) {
        fm_imread_close(&image);
        return status;
    }
    *out = image;
    return FM_OK;
}

fm_format fm_imread_format(const fm_imread *image) {
    return image->jpeg ? FM_FORMAT_JPEG : fm_decoder_format(image->decoder);
}

void fm_imread_close(fm_imread **pointer) {
    if (!pointer || !*pointer) return;
    fm_imread *const image = *pointer;
    *pointer = NULL;
    if (image->jpeg) fm_jpeg_end(image->jpeg);
    if (image->decoder) fm_decoder_end(image->decoder);
    fm_jpeg_close(&image->jpeg);
    fm_decoder_close(&image->decoder);
    fm_mem_free(image->file);
    fm_mem_free(image);
}

/* ---- pixels ---------------------------------------------------------------------------------- */

static int read_rows(fm_imread *image, uint8_t *block, size_t stride_bytes, int32_t skip_px,
                     const fm_placement *at, uint8_t *out, fm_error *error) {
    uint8_t *rows[BLOCK_ROWS];
    for (int i = 0; i < BLOCK_ROWS; i++) rows[i] = block + i * stride_bytes;
    for (int32_t y = 0; y < image->info.height;) {
        const int n = image->jpeg ? fm_jpeg_read(image->jpeg, rows, BLOCK_ROWS, error)
                                  : fm_decoder_read(image->decoder, rows, BLOCK_ROWS, error);
        if (n < 0) return n;
        for (int i = 0; i < n; i++, y++)
            fm_placement_put_row(at, out, rows[i] + 3 * (size_t)skip_px, image->info.width, y);
    }
    return FM_OK;
}

void fm_imread_size(const fm_imread *image, bool upright, int32_t *height, int32_t *width) {
    const bool on_side = upright && fm_orientation_swaps(image->orientation);
    *height = on_side ? image->info.width : image->info.height;
    *width = on_side ? image->info.height : image->info.width;
}

int fm_imread_pixels(fm_imread *image, fm_channels channels, bool upright, uint8_t *out,
                     fm_error *error) {
    fm_error_clear(error);
    if (!image || !out) return fm_error_set(error, FM_ERR_ARGUMENT, "image or out is NULL");
    if (image->is_read)
        return fm_error_set(error, FM_ERR_STATE, "the image was already read; open it again");
    image->is_read = true;
    const fm_image_info *const info = &image->info;
    const bool as_opencv = channels == FM_BGR || upright;
    if (as_opencv && (!image->jpeg || info->n_components == 4))
        return fm_error_set(error, FM_ERR_KIND, "upright and B G R need a JPEG that is not CMYK");
    const fm_box box = {0, 0, info->width, info->height};
    int32_t skip_px, row_px;
    if (image->jpeg) fm_jpeg_set_bgr(image->jpeg, channels == FM_BGR);
    int status = image->jpeg ? fm_jpeg_start(image->jpeg, &box, &skip_px, &row_px, error)
                             : fm_decoder_start(image->decoder, &box, &skip_px, &row_px, error);
    if (status) return status;
    /* Rows begin 16 bytes after a multiple of 32; see fm_jpeg_read(). */
    const size_t stride_bytes = fm_mem_round_up(3 * (size_t)row_px + ROW_PAD_BYTES);
    uint8_t *const block = fm_mem_alloc(NULL, BLOCK_ROWS * stride_bytes + FM_MEM_ALIGN, 1);
    if (!block) return fm_error_set(error, FM_ERR_NOMEM, "no memory for rows of %d pixels", row_px);
    const fm_placement at =
        fm_orientation_place(upright ? image->orientation : 1, info->width, info->height, 3);
    status = read_rows(image, block + 16, stride_bytes, skip_px, &at, out, error);
    fm_mem_free(block);
    return status;
}
