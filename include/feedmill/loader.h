/*
 * The loader: open, start an epoch, receive batches, close. What holds for all its functions about
 * status, threads and forks is in feedmill/feedmill.h.
 */
#ifndef FEEDMILL_LOADER_H
#define FEEDMILL_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/configuration.h"
#include "feedmill/source.h"
#include "feedmill/status.h"
#include "feedmill/streams.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_loader fm_loader;

/*
 * Opens a loader: checks the configuration, allocates all batch buffers and starts all threads.
 * On failure *out is NULL, and everything is freed. FM_ERR_ARGUMENT, FM_ERR_NOMEM, FM_ERR_BUDGET
 * (three buffers do not fit; the message names the bytes needed), FM_ERR_THREAD,
 * FM_ERR_UNAVAILABLE (no io_uring with FM_READER_URING; no plug-in, driver or device for the
 * device that is configured), FM_ERR_DEVICE. The kernels use the highest instruction set
 * of the CPU. FEEDMILL_CPU=scalar, sse41, avx2 or avx512, on AArch64 scalar or neon, in the
 * environment chooses a lower one (other names: FM_ERR_ARGUMENT). The results are always the same.
 */
FM_API FM_CHECK_RESULT int fm_loader_open(fm_loader **out, const fm_config *config,
                                          fm_error *error);

/*
 * One pass over a dataset. With an order, the loader splits it into batches and finds the files
 * through config.source. With order NULL the caller submits each batch and ends with
 * fm_loader_finish().
 */
typedef struct fm_epoch {
    uint64_t seed;        /* of the random parameters */
    uint32_t number;      /* of the epoch; also a key of the random parameters */
    const int64_t *order; /* dataset indices; copied */
    size_t n_order;
    bool drop_last; /* skip the last batch if it is not full */
    /*
     * For a caller whose own thread works on each batch (such as a collate function) before the
     * consumer asks for it. That thread submits and calls next(), fallback() and fallback_done();
     * the consumer's thread calls step_request(), step_ready(), step_return() and wake(). next()
     * also waits if no batch is submitted, and its waits are not recorded as steps:
     * fm_loader_step_ready() records them. Not with an order or a device. Default false: one thread
     * does everything.
     */
    bool ahead;
    /*
     * For an epoch that goes on where an earlier one stopped: [config.n_samples] how often each
     * index was used before, as each further use has random parameters of its own. Copied. Default
     * NULL: no index was used.
     */
    const uint32_t *used;
    /*
     * For random parameters as the worker processes of torch's DataLoader draw them, one sample
     * after the other: [n_streams] the generators of each of these processes when the epoch begins.
     * Copied. Before each batch is submitted, fm_loader_choose_worker() says to which of them it
     * belongs. seed, number and `used` then have no effect. The samples must be images; not with an
     * order. The operations that fm_loader_draws_torch() excepts draw other numbers than torch.
     * Takes 5,000 bytes for every eight samples of each pending batch, outside of the memory
     * budget. Default 0 and NULL: each sample's parameters depend on seed, number, its index, and
     * earlier uses of it only.
     */
    const fm_streams *streams;
    uint32_t n_streams;
} fm_epoch;

/*
 * Starts an epoch. Stops a running one first: drops its undelivered batches, within 100 ms;
 * FM_ERR_READ if reads are stuck in the kernel (then close the loader). Borrowed batches stay
 * valid. FM_ERR_ARGUMENT (an index of the order is outside the dataset), FM_ERR_STATE (an order
 * without config.source) and FM_ERR_FORKED leave a running epoch as it is.
 */
FM_API FM_CHECK_RESULT int fm_loader_start(fm_loader *loader, const fm_epoch *epoch,
                                           fm_error *error);

/* Stops the running epoch, as fm_loader_start() does. FM_OK if none is running. */
FM_API FM_CHECK_RESULT int fm_loader_stop(fm_loader *loader, fm_error *error);

/*
 * Submits a batch of 1 to batch_size samples in an epoch started without an order. Paths are
 * copied, data is not (see fm_sample). Does not block: FM_AGAIN if prefetch_batches are pending.
 * Each use of the same index in an epoch has random parameters of its own. n_samples counts
 * fm_samples, of which one of the loader's samples takes several with fm_config.views_have_files.
 */
FM_API FM_CHECK_RESULT int fm_loader_submit(fm_loader *loader, const fm_sample *samples,
                                            size_t n_samples, fm_error *error);

/*
 * The same for a loader with arrays: the samples indices[n_samples] are the rows rows[n_samples] of
 * every array; rows NULL: the indices themselves. Both are copied. FM_ERR_ARGUMENT: an index is
 * outside the dataset, or its row outside the arrays; the message names it.
 */
FM_API FM_CHECK_RESULT int fm_loader_submit_rows(fm_loader *loader, const int64_t *indices,
                                                 const int64_t *rows, size_t n_samples,
                                                 fm_error *error);

/* Ends the submission of batches in this epoch: next() returns FM_END after the last one. */
FM_API FM_CHECK_RESULT int fm_loader_finish(fm_loader *loader, fm_error *error);

/*
 * A borrowed batch: images[n][channels][height][width] or, with FM_NHWC,
 * images[n][height][width][channels], contiguous, of the transform's dtype; labels[n]. As a
 * tensor (n, c, height, width) its strides are, in values, (c * height * width, height * width,
 * width, 1) or (c * height * width, 1, c * width, c). The caller owns the memory until
 * fm_batch_release(). Two batches may be held at no cost while the next one is fetched; if more
 * are held, next() returns copies.
 * With arrays: labels is NULL, and `images` is the start of the batch's memory, in which
 * fm_loader_section() locates each array's rows; if no array holds images, channels, height and
 * width are 0.
 * With several views: `images` holds each view as an array like the above, where fm_loader_view()
 * says; channels, height and width are the first view's, whose offset is 0.
 * With a device: images and labels are those of the fm_output that the batch was copied to
 * (fm_loader_add_output()). The caller owns it again, and there is nothing to release.
 */
typedef struct fm_batch {
    void *images;
    const int64_t *labels;
    uint32_t n, channels, height, width;
    fm_dtype dtype;
    fm_layout layout;
    bool copied;         /* a copy, as the caller holds two batches already */
    uint64_t number;     /* counts from 0 in its epoch */
    void *memory_handle; /* with handover: the allocator's handle, now owned by the caller */
    void *output_user;   /* with a device: the output's `user` */
    void *borrowed;      /* private; NULL: nothing to release */
} fm_batch;

/*
 * The next batch in order. Blocks for at most timeout_ns (negative: without limit). FM_OK:
 * *batch is filled. FM_END: the epoch is over. FM_AGAIN: a timeout, or no batch is
 * pending and fm_loader_finish() was not called. FM_FALLBACK: see fm_loader_fallback().
 * With a device, FM_OK means that the batch's copy is queued; see fm_loader_wait().
 * FM_ERR_STATE: no output was added for the batch. FM_ERR_DEVICE, with the name of the failed call:
 * the loader copies no more batches, and next() returns the same error again; close the loader.
 * The error of a bad sample (FM_ERR_READ, FORMAT, KIND, DAMAGED, LIMIT) is returned in place of
 * its batch; the next call continues with the next batch.
 */
FM_API FM_CHECK_RESULT int fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch,
                                          fm_error *error);

/*
 * With fm_epoch.ahead: makes the waiting next(), or the next call of it, return FM_AGAIN, so that
 * its thread can submit more batches, or end. Any thread.
 */
FM_API void fm_loader_wake(fm_loader *loader);

/* Releases a batch and clears *batch. Any thread; accepts NULL and an empty batch. */
FM_API void fm_batch_release(fm_batch *batch);

/*
 * With a device: device memory for one batch, and the stream that uses it.
 *
 * `images` has space for batch_size samples, `labels` for as many labels
 * (fm_loader_output_bytes()); a smaller batch leaves the rest unchanged. With arrays `images` gets
 * the whole memory of a batch, and labels is NULL. `stream` is the stream on which the memory was
 * allocated, as a handle of the device's driver (torch.cuda.Stream.cuda_stream); NULL: the legacy
 * default stream. Work that was queued on it before this call may still use the memory: the copy
 * begins after that work.
 */
typedef struct fm_output {
    void *images;
    size_t image_bytes; /* size of the memory at images; FM_ERR_ARGUMENT if it is too small */
    int64_t *labels;
    size_t label_bytes;
    void *stream;
    void *user; /* handed back in fm_batch.output_user */
} fm_output;

/* Bytes that an output needs; either pointer may be NULL. 0 without a device. */
FM_API void fm_loader_output_bytes(const fm_loader *loader, size_t *image_bytes,
                                   size_t *label_bytes);

/*
 * Provides device memory for one of the next batches. Each batch that next() returns with FM_OK
 * uses one output, in the order in which they were added. With two of them, and another before
 * each next(), a batch is copied while the consumer computes on the one before.
 * Does not block, nor wait for the device. Consumer's thread; an epoch must have been started.
 * Ownership: the loader owns the memory until next() has returned it, or until fm_loader_stop(),
 * fm_loader_start() or fm_loader_close() has returned. Then it may be freed in the order of
 * `stream`, which waits for a copy that still runs.
 * FM_AGAIN: the loader has the maximum of outputs (prefetch_batches + 2, at most 32).
 * FM_ERR_STATE: no device, no epoch, or `stream` is being captured into a graph.
 * FM_ERR_ARGUMENT, FM_ERR_DEVICE.
 */
FM_API FM_CHECK_RESULT int fm_loader_add_output(fm_loader *loader, const fm_output *output,
                                                fm_error *error);

/* Outputs that were added and not used by next() yet. Consumer's thread. */
FM_API size_t fm_loader_n_outputs(const fm_loader *loader);

/*
 * Makes `stream` wait, on the device, for the copy of the batch that next() returned last;
 * returns at once. next() does this for the output's own stream, unless defer_wait is set; any
 * other stream that uses the batch needs a call of its own.
 * Consumer's thread, before the following next(). FM_ERR_STATE: there is no such batch, or
 * `stream` is being captured into a graph (repeat the call when that has ended). FM_ERR_DEVICE.
 */
FM_API FM_CHECK_RESULT int fm_loader_wait(fm_loader *loader, void *stream, fm_error *error);

/* Whether buffers hold uint8 in NHWC that the device converts (fm_device_config.convert). */
FM_API bool fm_loader_converts(const fm_loader *loader);

/*
 * In an epoch with streams (fm_epoch.streams), each of which stands for a virtual worker: a worker
 * process of torch's DataLoader, of which only the generators exist. Consumer's thread.
 *
 * choose_worker(): the batches that are submitted from now on belong to this virtual worker; until
 * the first call to number 0. It draws for its batches in the order in which they are submitted.
 * With `waits` it draws for them only once give_streams() was called for the batch.
 * FM_ERR_ARGUMENT: there is no such virtual worker.
 *
 * give_streams(): sets a virtual worker's generators, and lets its next batch with `waits` begin,
 * which may be submitted later. FM_ERR_STATE: the virtual worker has begun a batch, and not drawn
 * for all of its samples.
 *
 * streams(): a virtual worker's generators behind its last batch that next() returned.
 *
 * fallback_streams(): the virtual worker's generators before the sample that next() returned with
 * FM_FALLBACK. What torch's worker process draws next if it can't load the sample: it leaves out
 * the rest of the batch.
 *
 * A batch whose sample fails is not dropped: next() returns its error again and again, as the
 * samples behind it were drawn for as if it had been made. Start another epoch, with the generators
 * of streams() and fallback_streams().
 */
FM_API FM_CHECK_RESULT int fm_loader_choose_worker(fm_loader *loader, uint32_t worker, bool waits,
                                                   fm_error *error);
FM_API FM_CHECK_RESULT int fm_loader_give_streams(fm_loader *loader, uint32_t worker,
                                                  const fm_streams *streams, fm_error *error);
FM_API FM_CHECK_RESULT int fm_loader_streams(const fm_loader *loader, uint32_t worker,
                                             fm_streams *out, fm_error *error);
FM_API FM_CHECK_RESULT int fm_loader_fallback_streams(fm_loader *loader, fm_streams *out,
                                                      fm_error *error);

/* Batches that were submitted and not returned yet. Consumer's thread. */
FM_API size_t fm_loader_n_pending(const fm_loader *loader);

/* Rows and columns of a delivered image; either pointer may be NULL. */
FM_API void fm_loader_out_size(const fm_loader *loader, int *height, int *width);

/* Channels of a delivered image: 3, or 1 for grayscale arrays and after GRAYSCALE to 1 channel. */
FM_API int fm_loader_out_channels(const fm_loader *loader);

/* With arrays: sets *offset to the start of array `number`'s rows in a batch, in bytes from
 * fm_batch.images, aligned to 64, and *row_bytes to the size of each row. Either pointer may be
 * NULL. FM_ERR_ARGUMENT: there is no such array. */
FM_API FM_CHECK_RESULT int fm_loader_section(const fm_loader *loader, size_t number, size_t *offset,
                                             size_t *row_bytes);

/* A view in a batch's memory: images[n][channels][height][width], or [height][width][channels]. */
typedef struct fm_view {
    size_t offset; /* in bytes from fm_batch.images, aligned to 64 */
    uint32_t channels, height, width;
} fm_view;

/* Views of a sample, at least 1; 0 with arrays. */
FM_API size_t fm_loader_n_views(const fm_loader *loader);

/* FM_ERR_ARGUMENT: there is no such view. */
FM_API FM_CHECK_RESULT int fm_loader_view(const fm_loader *loader, size_t number, fm_view *out);

/*
 * Ends all threads and frees everything but borrowed batches, within 100 ms. Reads that are
 * stuck in the kernel keep their buffers, which are freed when the reads return.
 * With a device it waits for queued copies, and therefore for the work in the outputs' streams that
 * the copies follow. Accepts NULL and a pointer to NULL; sets *loader to NULL.
 */
FM_API void fm_loader_close(fm_loader **loader);

#ifdef __cplusplus
}
#endif
#endif
