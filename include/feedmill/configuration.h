/* fm_config, and what it names: readers, allocators, the cache of files, devices. */
#ifndef FEEDMILL_CONFIGURATION_H
#define FEEDMILL_CONFIGURATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/source.h"
#include "feedmill/status.h"
#include "feedmill/transform.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fm_reader_kind {
    FM_READER_AUTO = 0,  /* io_uring if it is available, else pread */
    FM_READER_URING = 1, /* io_uring, or open fails */
    FM_READER_PREAD = 2  /* a pool of threads that call pread */
} fm_reader_kind;

/* One read that fm_custom_reader.read() makes; valid during that call, on its thread. */
typedef struct fm_custom_read fm_custom_read;

/*
 * Reads whole objects, or parts of them, whose names feedmill can't read itself: paths that begin
 * with a scheme, as "memory://x" or "cached::https://host/x", other than those of
 * feedmill/remote.h.
 *
 * n_threads threads of the loader call `read`, each for one object at a time; a call may block.
 * With range_bytes, that part from offset_bytes on is wanted, else the whole object, as with
 * fm_sample. `read` ends with one call of fm_custom_read_put() or fm_custom_read_fail().
 *
 * Calls can't be interrupted. If an epoch or the loader ends during one, the loader does not wait
 * for it: it may go on after fm_loader_close(), and its result is dropped. Until it returns, later
 * epochs have one thread less. So `user` must outlive the loader: `retain` is called once while a
 * loader is opened, and `release` when no thread calls `read` any more, by any thread. Both may be
 * NULL.
 */
typedef struct fm_custom_reader {
    void (*read)(void *user, const char *name, uint64_t offset_bytes, uint64_t range_bytes,
                 fm_custom_read *result); /* NULL: no custom reader */
    void (*retain)(void *user);
    void (*release)(void *user);
    void *user;
    uint32_t n_threads; /* default 0: 16 */
} fm_custom_reader;

/* Copies the object or part; fewer bytes than a part has, or more than max_file_bytes, are an error
 * of the sample. */
FM_API void fm_custom_read_put(fm_custom_read *read, const void *bytes, size_t n_bytes);
/* The sample is rejected with FM_ERR_READ and this reason, which is copied, as far as there is
 * room. */
FM_API void fm_custom_read_fail(fm_custom_read *read, const char *why);

/*
 * Allocates the memory of batch buffers. `alloc` returns `bytes` bytes aligned to 64, or NULL, and
 * may set *handle; `free` gets the pointer and that handle. Both are called on the consumer's
 * thread, `free` also on the thread that releases the last batch after the loader was closed. With
 * handover, a buffer's memory belongs to the caller once next() has returned it, together with its
 * handle (fm_batch.memory_handle); next() allocates new memory for the buffer.
 */
typedef struct fm_allocator {
    void *user;
    void *(*alloc)(void *user, size_t bytes, void **handle);
    void (*free)(void *user, void *memory, void *handle);
    bool handover;
} fm_allocator;

/*
 * Keeps encoded files in memory while it is open, over all epochs and loaders that use it. A file
 * that was decoded natively is added while the budget lasts; none is evicted, so the hit
 * rate of a shuffled epoch is the share of the files that fits. Files are identified by their
 * paths: one that changes while the cache is open is not read again. Results are the same with and
 * without a cache. Any thread may use it, but not a forked child.
 */
typedef struct fm_cache fm_cache;

typedef struct fm_cache_usage {
    uint64_t n_files, file_bytes; /* kept */
    uint64_t used_bytes;          /* of the budget: files, their paths, tables, unused remainders */
    uint64_t n_refused;           /* times that a file did not fit */
} fm_cache_usage;

/*
 * budget_bytes: most memory to use. It is allocated in steps, and freed by fm_cache_close() only.
 * FM_ERR_BUDGET (more than this process may use, or too small for anything), NOMEM, THREAD.
 */
FM_API FM_CHECK_RESULT int fm_cache_open(fm_cache **out, uint64_t budget_bytes, fm_error *error);
/* In a forked child everything is 0: the cache is the parent's. */
FM_API void fm_cache_usage_get(fm_cache *cache, fm_cache_usage *out);
/* Closes the cache; all loaders that use it must be closed before. Accepts NULL and a pointer to
 * NULL; sets *cache to NULL. */
FM_API void fm_cache_close(fm_cache **cache);

/* The formats of images, as bits. */
typedef enum fm_format { FM_FORMAT_JPEG = 1, FM_FORMAT_PNG = 2, FM_FORMAT_WEBP = 4 } fm_format;

/* A further bit of rejected_formats, for callers that turn images as their metadata says: images of
 * any format whose EXIF or XMP data may ask for that. Those whose EXIF orientation is 1, upright,
 * are not among them, apart from PNG and WebP images. */
#define FM_REJECT_TURNED 8u

/* A further bit of rejected_formats, for callers that do not convert images to RGB: images that do
 * not hold exactly R, G and B: grayscale, CMYK, those with alpha and PNGs with a palette. */
#define FM_REJECT_NOT_RGB 16u

/* A further bit of rejected_formats, for the pixels of OpenCV's imread(), torchcodec and the like:
 * all images but JPEGs in color or grayscale, of at most 2^30 pixels, that no program turns as
 * their EXIF data says. */
#define FM_REJECT_NOT_UPRIGHT_JPEG 32u

/*
 * Where batches are delivered. With a device, the loader copies them from page-locked buffers to
 * memory that the consumer provides (fm_loader_add_output()), on a stream and a thread of its own.
 * FM_DEVICE_HOST needs no GPU: the memory is host memory, streams are ignored, and a copy is
 * complete when next() returns. It defines the results of the other devices.
 */
typedef enum fm_device_kind {
    FM_DEVICE_NONE = 0, /* in host memory */
    FM_DEVICE_HOST = 1,
    FM_DEVICE_CUDA = 2 /* needs the plug-in libfeedmill_cuda.so: in this library's folder, or the
                          file that the environment variable FEEDMILL_CUDA_LIBRARY names */
} fm_device_kind;

typedef struct fm_device_config {
    fm_device_kind kind; /* default FM_DEVICE_NONE */
    int32_t index;       /* of the GPU, as torch counts them; default 0 */
    /* Copy uint8 in NHWC, a quarter of the bytes of float32, and let the device convert it to the
     * dtype and layout of `transform`, with the same bits as the CPU: default true. Not done with
     * RANDOM_ERASING, with arrays, and where the result is FM_UINT8; see fm_loader_converts(). */
    bool convert;
    /* next() does not make the output's stream wait for the copy. The caller does so by
     * fm_loader_wait(), and can record events around it. Default false. */
    bool defer_wait;
} fm_device_config;

/*
 * Checks that a device of this kind can be used, and sets *n_devices (which may be NULL) to their
 * number. FM_ERR_UNAVAILABLE: no plug-in, no driver or no device; the message says which. Uses no
 * device memory.
 */
FM_API FM_CHECK_RESULT int fm_device_count(fm_device_kind kind, int32_t *n_devices,
                                           fm_error *error);

/* Most views of a sample. */
#define FM_MAX_VIEWS 16

typedef struct fm_config {
    size_t struct_bytes; /* sizeof(fm_config), set by fm_config_init() */
    fm_transform transform;
    /*
     * Further views: images that are made from the same sample by transforms of their own, such as
     * the two crops of contrastive learning. A sample is read and decoded once for all its views,
     * and has one label. The first view is that of `transform`; the random parameters of all views
     * are independent. At most FM_MAX_VIEWS views with 255 ops in total, of one dtype and layout;
     * only for images in files or memory (fm_sample). With a device, the device converts nothing.
     * Default none. The array may be freed when the loader is open.
     */
    const fm_transform *more_views;
    size_t n_more_views;
    /*
     * Each view is made from a file of its own, such as the two images of a pair: a sample is then
     * given to fm_loader_submit() as n_more_views + 1 fm_samples with one index, in the order of
     * the views, the first of which has the label. Files are read, decoded and rejected one by one.
     * Only for batches that are submitted, so not with `source`. Default false.
     */
    bool views_have_files;
    fm_source source;    /* may be left empty if every batch is submitted with its paths */
    fm_arrays arrays;    /* in place of files; default none */
    fm_raw_format raw;   /* for files of raw values; default: the files are images */
    uint64_t n_samples;  /* dataset length; default 0: source.n_samples, or the arrays' rows */
    uint32_t batch_size; /* most samples in a batch, 1 to 65,536; default 64 */
    uint32_t n_threads;  /* decode threads; default 0: usable CPUs - 1, at least 1 */
    uint32_t prefetch_batches; /* most batches submitted and not yet returned; default 4 */
    /* Limit of batch buffers, read buffers, row buffers and tables. Default 0: a quarter of the
     * memory that this process may use. Not included: copies of batches, and the coefficients of
     * progressive images, at most 80 MiB a thread (a larger image is rejected with FM_ERR_LIMIT). A
     * thread frees these when it has no work, or after 8 other images. With several views also not
     * the decoded part of an image: as much, until a thread has no work. */
    uint64_t memory_budget_bytes;
    uint64_t read_ahead_bytes; /* read buffers; default 0: 64 MiB, within the budget */
    /*
     * Most memory for seek points, within the budget; 0: none are kept. Default 512 MiB. When a
     * baseline JPEG without restart intervals is decoded, the loader notes where its rows of blocks
     * begin, in about 0.4% of the file's size, as long as memory is left. Later epochs begin to
     * decode at the rows that are needed, and decode several of them at once. Files are still read
     * whole, and one whose bytes have changed is decoded anew. The pixels are the same.
     *
     * With a path, the seek points are in that file instead, with room for those of usual
     * photographs, so that later runs have them from the start, and processes that decode parts of
     * the same dataset share them. It is made if it is missing, must be on a local disk or in
     * /dev/shm, and nobody may truncate it. Its contents are trusted. fm_loader_open() fails with
     * FM_ERR_READ or FM_ERR_ARGUMENT if it can't be used. Default NULL; copied.
     */
    uint64_t seek_index_bytes;
    const char *seek_index_path;
    fm_reader_kind reader;     /* default AUTO; FEEDMILL_READER in the environment
                                  (uring, pread, auto) overrides it */
    uint32_t read_depth;       /* files in flight; default 0: 64 with uring, 32 threads */
    uint64_t max_file_bytes;   /* of a file, or an image in memory; default 256 MiB */
    uint64_t max_image_pixels; /* default 89,478,485, where Pillow begins to warn */
    uint32_t rejected_formats; /* of fm_format: their images are rejected with FM_ERR_KIND, for the
                                  caller's own decoder; and FM_REJECT_*; default 0: none */
    bool decodes_scaled;       /* decodes JPEGs at 1/2, 1/4 or 1/8 of their size where a crop has as
                                  many times the pixels per side that the resize makes of it. Faster
                                  for large images, with other pixels: those of Pillow's
                                  Image.draft(). Default false */
    bool fallback;             /* next() returns FM_FALLBACK for rejected samples; default false:
                                  an error */
    fm_allocator allocator;    /* default: aligned memory of the C library, no handover */
    uint32_t sample_records;   /* how many of the latest to keep, at most 2^24; default 0 */
    fm_cache *cache;           /* files in memory, owned by the caller; default NULL */
    /* Reads paths that begin with s3://, gs://, http:// or https:// (feedmill/remote.h). Owned by
     * the caller, and closed after the loader. Default NULL: samples with such paths are rejected
     * with FM_ERR_READ. */
    struct fm_remote *remote;
    /* Keeps what is read from there in a folder (feedmill/disk_cache.h). Owned by the caller, and
     * closed after the loader. Default NULL. */
    struct fm_disk_cache *disk_cache;
    fm_custom_reader custom_reader; /* of other names; default: none, they are paths of files */
    fm_device_config device;        /* not together with an allocator; default: none */
} fm_config;

/* Fills *config with the defaults named above. */
FM_API void fm_config_init(fm_config *config);

#ifdef __cplusplus
}
#endif
#endif
