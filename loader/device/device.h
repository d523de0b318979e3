/*
 * The interface of a device that batches are copied to: a table of calls, implemented by the host
 * (device_host.c) and by plug-ins (cuda/). The host's implementation defines the bytes that all
 * others must write.
 *
 * An open device belongs to one loader. It has a stream of its own, in which copies run one after
 * another, asynchronously to the caller, and n_slots copy slots, each of which identifies one copy.
 * The calls for a copy: mark() the slot with the stream whose queued work the copy must follow;
 * queue the copy by copy(); make streams wait() for it; poll() or sync() until it is done. Then the
 * slot can be marked again. A stream's wait() stays valid after that.
 *
 * Streams are handles of the device's driver (cudaStream_t); NULL is the legacy default stream.
 *
 * Threads: calls of one device may run concurrently, except that at any time there may be one
 * mark(), copy(), poll() or sync() per slot, and one copy() per device. Only sync(), unpin() and
 * close() wait for the device. No call changes the calling thread's current device.
 *
 * Errors: FM_ERR_DEVICE with the name and the text of the failed driver call, FM_ERR_NOMEM if that
 * call was out of memory, and the statuses named at each call. A failed call leaves nothing
 * allocated or queued; copy() waits for the part of a copy that was queued before it failed.
 */
#ifndef FM_DEVICE_DEVICE_H
#define FM_DEVICE_DEVICE_H

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FM_DEVICE_VERSION 1u
/* The plug-in's one exported function, of the type fm_device_plugin. */
#define FM_DEVICE_SYMBOL "fm_device_calls_cuda"

/*
 * The format of a sample on the device. Without convert, the sample's bytes are copied. With
 * convert, its uint8 values, [n_px][channels], are replaced by `bits[channel][value]` (the lower
 * half for 16-bit types) in the layout FM_NCHW, [channels][n_px], or FM_NHWC, [n_px][channels].
 */
typedef struct fm_device_format {
    bool convert;
    fm_dtype dtype;
    fm_layout layout;
    uint32_t channels; /* 1 or 3 */
    uint64_t n_px;     /* height * width */
    uint32_t bits[3][256];
} fm_device_format;

typedef struct fm_device_options {
    int32_t index;    /* of the device, from 0 */
    uint32_t n_slots; /* at least 1 */
    size_t max_bytes; /* limit of fm_device_job.n_bytes */
    fm_device_format format;
} fm_device_options;

/* The copy of one batch. Its memory must stay, unused by others, until the slot's copy is done. */
typedef struct fm_device_job {
    const void *from; /* pinned */
    void *to;         /* device memory; with convert, aligned to the dtype's size */
    size_t n_bytes;   /* at `from`; with convert, n_samples * n_px * channels */
    uint32_t n_samples;
    const int64_t *labels_from; /* pinned; NULL: no labels */
    int64_t *labels_to;
    size_t label_bytes;
} fm_device_job;

#define FM_DEVICE_BUS_BYTES 32

typedef struct fm_device fm_device;

typedef struct fm_device_calls {
    uint32_t version;    /* FM_DEVICE_VERSION */
    size_t struct_bytes; /* sizeof(fm_device_calls) */
    /* The number of devices, at least 1; or FM_ERR_UNAVAILABLE with the reason. */
    int (*count)(int32_t *n_devices, fm_error *error);
    /* FM_ERR_UNAVAILABLE, FM_ERR_ARGUMENT (no such index), FM_ERR_NOMEM, FM_ERR_DEVICE. */
    int (*open)(fm_device **out, const fm_device_options *options, fm_error *error);
    /* Waits for all copies and frees everything, also after failures; returns the first failure. */
    int (*close)(fm_device **device, fm_error *error);
    /* The PCI bus ID, such as "0000:3b:00.0", in lower case; "" if it has none. */
    int (*bus)(fm_device *device, char out[FM_DEVICE_BUS_BYTES], fm_error *error);
    /* Page-locks whole pages for copies. The caller must unpin() them before it frees them. */
    int (*pin)(fm_device *device, void *memory, size_t n_bytes, fm_error *error);
    int (*unpin)(fm_device *device, void *memory, fm_error *error);
    /* FM_ERR_STATE if the stream is being captured into a graph. */
    int (*mark)(fm_device *device, uint32_t slot, void *stream, fm_error *error);
    int (*copy)(fm_device *device, uint32_t slot, const fm_device_job *job, fm_error *error);
    /* FM_ERR_STATE if the stream is being captured into a graph. */
    int (*wait)(fm_device *device, uint32_t slot, void *stream, fm_error *error);
    /* FM_OK: the copy is done; FM_AGAIN: not yet. */
    int (*poll)(fm_device *device, uint32_t slot, fm_error *error);
    int (*sync)(fm_device *device, uint32_t slot, fm_error *error);
} fm_device_calls;

typedef const fm_device_calls *fm_device_plugin(void);

/* The host's calls, in device_host.c. */
const fm_device_calls *fm_device_host(void);
/* Converts a batch as copy() does, to host memory at job->to. */
void fm_device_convert(const fm_device_format *format, const fm_device_job *job);

/*
 * Sets *out to the calls of a kind of device, in device_find.c. Loads the kind's plug-in, which
 * stays loaded. FM_ERR_UNAVAILABLE: there is no plug-in, or one of another version;
 * FM_ERR_ARGUMENT: no such kind.
 */
int fm_device_find(fm_device_kind kind, const fm_device_calls **out, fm_error *error);

#ifdef __cplusplus
}
#endif

#endif
