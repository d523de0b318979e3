/*
 * The contract of a device that batches are copied to: a table of calls, which a host
 * implementation (device_host.c) and plug-ins (cuda/) give. The host's is the definition of what
 * the others leave in a target's memory.
 *
 * An open device belongs to one loader. It has a queue of its own, in which copies run one after
 * the other behind the caller's back, and n_slots copy slots, which are the names of the copies
 * that are not forgotten yet. A copy slot's life: mark() it with the stream whose work the copy
 * must come after, queue its copy(), make streams wait() for it and poll() or sync() until it is
 * done; then mark() it anew. What wait() was asked stays valid for the stream when the slot is
 * marked anew.
 *
 * Streams are handles of the device's driver (cudaStream_t); NULL is the legacy default stream.
 *
 * Threads: calls of one device may run at the same time, but only one mark(), copy(), poll() or
 * sync() per slot, and only one copy() at all. No call but sync(), unpin() and close() waits for
 * the device. No call changes the calling thread's current device.
 *
 * Errors: FM_ERR_DEVICE with the name of the failed call of the driver and its text, FM_ERR_NOMEM
 * where that was a lack of memory, and what stands at the call. What failed has left nothing
 * behind; a copy that failed halfway has been waited for.
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
 * What a copy makes of a sample. Without convert, its bytes. With it, uint8 values of
 * [n_px][channels] become `bits[channel][value]` (of 16-bit types the lower half) in the layout:
 * FM_NCHW: [channels][n_px], FM_NHWC: [n_px][channels].
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
    int32_t index;    /* which device, from 0 */
    uint32_t n_slots; /* at least 1 */
    size_t max_bytes; /* most bytes of a job */
    fm_device_format format;
} fm_device_options;

/* One batch. All of it belongs to the device until the slot's copy is done. */
typedef struct fm_device_job {
    const void *from; /* pinned */
    void *to;         /* memory of the device; with convert aligned to a value of the dtype */
    size_t n_bytes;   /* at `from`; with convert n_samples * n_px * channels */
    uint32_t n_samples;
    const int64_t *labels_from; /* pinned; NULL: none */
    int64_t *labels_to;
    size_t label_bytes;
} fm_device_job;

#define FM_DEVICE_BUS_BYTES 32

typedef struct fm_device fm_device;

typedef struct fm_device_calls {
    uint32_t version;    /* FM_DEVICE_VERSION */
    size_t struct_bytes; /* sizeof(fm_device_calls) */
    /* How many devices there are, at least 1, or FM_ERR_UNAVAILABLE with the reason. */
    int (*count)(int32_t *n_devices, fm_error *error);
    /* FM_ERR_UNAVAILABLE, FM_ERR_ARGUMENT (no such index), FM_ERR_NOMEM, FM_ERR_DEVICE. */
    int (*open)(fm_device **out, const fm_device_options *options, fm_error *error);
    /* Waits for all copies, frees everything, whatever fails, and returns the first failure. */
    int (*close)(fm_device **device, fm_error *error);
    /* Where it is plugged in, such as "0000:3b:00.0" in lower case; "" where it is nowhere. */
    int (*bus)(fm_device *device, char out[FM_DEVICE_BUS_BYTES], fm_error *error);
    /* Page-locks whole pages for copies; unpin() the same memory before it is freed. */
    int (*pin)(fm_device *device, void *memory, size_t n_bytes, fm_error *error);
    int (*unpin)(fm_device *device, void *memory, fm_error *error);
    /* FM_ERR_STATE: the stream is being captured. */
    int (*mark)(fm_device *device, uint32_t slot, void *stream, fm_error *error);
    int (*copy)(fm_device *device, uint32_t slot, const fm_device_job *job, fm_error *error);
    /* FM_ERR_STATE: the stream is being captured. */
    int (*wait)(fm_device *device, uint32_t slot, void *stream, fm_error *error);
    /* FM_OK: the copy is done; FM_AGAIN: not yet. */
    int (*poll)(fm_device *device, uint32_t slot, fm_error *error);
    int (*sync)(fm_device *device, uint32_t slot, fm_error *error);
} fm_device_calls;

typedef const fm_device_calls *fm_device_plugin(void);

/* device_host.c */
const fm_device_calls *fm_device_host(void);
/* What a converting copy leaves at job->to, which is ordinary memory here. */
void fm_device_convert(const fm_device_format *format, const fm_device_job *job);

/*
 * device_find.c: the calls of a kind. FM_ERR_UNAVAILABLE: there is no plug-in, or none for this
 * version; FM_ERR_ARGUMENT: no such kind. A plug-in that was loaded stays loaded.
 */
int fm_device_find(fm_device_kind kind, const fm_device_calls **out, fm_error *error);

#ifdef __cplusplus
}
#endif

#endif
