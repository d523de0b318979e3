/* Where samples come from: folders, lists of files, bytes in memory, arrays. */
#ifndef FEEDMILL_SOURCE_H
#define FEEDMILL_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/status.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The restart index of a JPEG: where its rows of MCUs begin. The image has a single scan and
 * restart intervals that divide a row, so that each row but the first begins after a restart
 * marker. With the index, a loader without a cache reads only the bytes down to the bottom of the
 * crop; the rest may be damaged or missing. The index of another image costs time, but never
 * changes a pixel. In an epoch with streams, of samples that do not wait for others to be drawn,
 * the random parameters are drawn for the index's width and height: an image of another size is
 * then an error, FM_ERR_DAMAGED or that of fm_loader_fallback_draws().
 */
#define FM_MAX_RESTARTS 64
typedef struct fm_restart_index {
    int32_t width, height; /* of the image, in pixels */
    int32_t mcu_height;    /* 8 times the largest vertical sampling factor; 8 with one component */
    uint32_t n;            /* entries, 1 to FM_MAX_RESTARTS */
    /* Entry k: offset in bytes, from the image's first byte, of the data of MCU row k * n_rows / n.
     */
    uint32_t begin[FM_MAX_RESTARTS];
} fm_restart_index;

/*
 * One sample: the file to read, or the encoded image itself. `path` must only stay valid during the
 * call that passes it.
 *
 * With `data` no file is opened: the image is these data_bytes bytes, and the result is that of
 * a file with the same bytes. 0 bytes are an empty file; more than max_file_bytes are
 * FM_ERR_LIMIT when the batch is delivered. `path` is then only the sample's name in messages; a
 * sample without one is called "in memory".
 *
 * With `range_bytes` the image is that part of the file from `offset_bytes` on, such as a member
 * of a tar archive; with data both must be 0. The loader keeps such files open until it is
 * closed, the latest 256 or an eighth of RLIMIT_NOFILE: a sample then costs one read, and a file
 * that is replaced meanwhile may be read as it was. A file that ends within the range is
 * FM_ERR_READ.
 *
 * Ownership: `data` is not copied, and the caller keeps ownership. If the call that takes it
 * succeeds, it must stay readable and unchanged until fm_loader_next() has returned its batch or
 * the error in its place (FM_FALLBACK is neither), or until fm_loader_stop(), fm_loader_start() or
 * fm_loader_close() has returned. The first two end the epoch also when they fail, except with
 * FM_ERR_ARGUMENT, FM_ERR_STATE and FM_ERR_FORKED.
 * Threads: decode threads read it at any time until then, and nothing after its end. Samples,
 * batches and loaders may share it.
 */
typedef struct fm_sample {
    int64_t index;     /* dataset index, 0 <= index < n_samples; keys the random draws */
    int64_t label;     /* delivered in fm_batch.labels */
    const char *path;  /* file, absolute or relative to the working directory; under 4,096 bytes;
                          with data: a name, also under 4,096 bytes; NULL or empty for none */
    const void *data;  /* the encoded image in memory; NULL: the file at path is read */
    size_t data_bytes; /* its size; 0 without data */
    uint64_t offset_bytes; /* start of the image in the file; 0 without range_bytes */
    uint64_t range_bytes;  /* size of the image, at most max_file_bytes; 0: the whole file */
    /* The caller asserts that the whole image was decoded before without an error. Then only the
     * restart intervals of a JPEG that the transform needs are decoded. Damage in the others, which
     * no pixel of the result depends on, is not noticed. */
    bool verified;
    const fm_restart_index *rows; /* restart index of a verified range; NULL: none. Must stay valid
                                 during the call only */
    /* Of an object on a server: the ETag, with its quotes and under 136 bytes, that it had when it
     * was indexed. If it has another one now, the sample is rejected with FM_ERR_READ. NULL, empty
     * or weak (W/"..."): any version is read. Without effect on files and data. Must stay valid
     * during the call only. */
    const char *etag;
} fm_sample;

/*
 * Finds the file, or the image in memory, of each index of an epoch's order. `locate` gets *out all
 * zero, fills it for `index` and returns FM_OK, or a negative status: fm_loader_next() then returns
 * that when the batch is due, and the epoch ends. It is called on the consumer's thread only.
 * `data` that it sets must live as long as fm_sample says.
 */
typedef struct fm_source {
    void *user;
    size_t n_samples;
    int (*locate)(void *user, int64_t index, fm_sample *out);
} fm_source;

/*
 * An image folder: one sub-folder per class, sorted by name and numbered from 0; its files, sub-
 * folders included, with an image's extension (.jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp in
 * any case), sorted as torchvision's ImageFolder sorts them.
 */
typedef struct fm_folder fm_folder;
FM_API FM_CHECK_RESULT int fm_folder_open(fm_folder **out, const char *dir, fm_error *error);
/* The folder as a source. It stays valid until fm_folder_close(). */
FM_API fm_source fm_folder_source(const fm_folder *folder);
FM_API size_t fm_folder_n_classes(const fm_folder *folder);
/* Accepts NULL and a pointer to NULL; sets *folder to NULL. */
FM_API void fm_folder_close(fm_folder **folder);

/*
 * An array in memory with one row per sample: row i is the row_bytes bytes from data + i *
 * stride_bytes on. It stays the caller's and must stay readable until the loader is closed or no
 * epoch runs. Values written to it meanwhile appear in some of the following batches;
 * fm_loader_next() itself never reads it.
 */
typedef struct fm_array {
    const void *data;
    size_t n_rows;       /* at least 1 */
    size_t row_bytes;    /* at least 1 */
    size_t stride_bytes; /* at least row_bytes; 0: row_bytes */
} fm_array;

/*
 * Arrays as the source of all samples, in place of files. A batch then has one section for each
 * array (fm_loader_section()), which holds its samples' rows one after the other. With `images` the
 * first array's rows are images of transform.in_height x in_width pixels of in_channels bytes, and
 * its section holds what the transform makes of them; all others are copied as they are.
 */
typedef struct fm_arrays {
    const fm_array *list; /* copied at open */
    size_t n;             /* 1 to FM_MAX_ARRAYS; 0: the samples are files */
    bool images;
    /* The layout of an image in its row: bytes from one channel, line or pixel to the next. All 0:
     * contiguous [height][width][channels]. */
    uint32_t channel_stride, line_stride, pixel_stride;
} fm_arrays;
#define FM_MAX_ARRAYS 64

/*
 * Files of raw values, such as arrays in .npy files: each begins with the same header, and the
 * body_bytes bytes after it, up to the file's end, are copied to the sample's place in the batch. A
 * file with another header is FM_ERR_FORMAT, one of another size FM_ERR_DAMAGED. There are no ops;
 * fm_batch says 1 channel, 1 row and body_bytes columns of FM_UINT8.
 */
typedef struct fm_raw_format {
    const void *header; /* copied at open */
    size_t header_bytes;
    size_t body_bytes; /* 1 to 2^31 - 1; 0: the files are images */
} fm_raw_format;

#ifdef __cplusplus
}
#endif
#endif
