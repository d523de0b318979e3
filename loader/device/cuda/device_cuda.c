/*
 * NVIDIA GPUs, through the CUDA runtime. Built as a plug-in with the runtime linked statically: its
 * version may differ from torch's, and its sticky errors do not show up in torch's copy. Both
 * copies use the device's primary context, in which stream and event handles are shared.
 *
 * Each call pushes that context onto the driver's context stack and pops it at its end. Restoring
 * the caller's device by cudaSetDevice() would create a context there if the caller never used that
 * device. Each call also switches the thread's stream capture mode to relaxed, as an event query
 * would otherwise invalidate a capture that another thread has begun.
 */
#include "device/cuda/convert.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"

/* Driver functions without an equivalent in the runtime, from cudaGetDriverEntryPoint(). Their
 * results have the same numbers as cudaError_t. */
typedef struct driver {
    int (*device_get)(int *device, int index);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
} driver;

typedef struct slot_events {
    cudaEvent_t marked; /* in the consumer's stream: the copy must follow it */
    cudaEvent_t copied; /* in the device's stream: the copy is done */
} slot_events;

struct fm_device {
    fm_device_format format;
    driver driver;
    int ordinal;         /* the driver's number of the device */
    int index;           /* the runtime's number of the device */
    void *context;       /* retained; NULL: not yet */
    cudaStream_t stream; /* NULL: not yet */
    uint8_t *staging;    /* device memory for the uint8 values of one batch; NULL: no conversion */
    uint32_t n_slots;
    slot_events slots[];
};

/* Converts the result of a call to a status. */
static int check(cudaError_t result, const char *call, fm_error *error) {
    if (result == cudaSuccess) return FM_OK;
    const int status = result == cudaErrorMemoryAllocation ? FM_ERR_NOMEM : FM_ERR_DEVICE;
    return fm_error_set(error, status, "%s failed: %s (%s)", call, cudaGetErrorName(result),
                        cudaGetErrorString(result));
}

/* ---- the driver ------------------------------------------------------------------------------ */

static int find_call(const char *name, void **out, fm_error *error) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t result =
        cudaGetDriverEntryPointByVersion(name, out, 12000, cudaEnableDefault, &found);
    const int status = check(result, "cudaGetDriverEntryPointByVersion", error);
#else
    const cudaError_t result = cudaGetDriverEntryPoint(name, out, cudaEnableDefault, &found);
    const int status = check(result, "cudaGetDriverEntryPoint", error);
#endif
    if (status) return status;
    if (found == cudaDriverEntryPointSuccess && *out) return FM_OK;
    return fm_error_set(error, FM_ERR_UNAVAILABLE, "the CUDA driver has no %s; update it", name);
}

static int find_driver(driver *out, fm_error *error) {
    union {
        void *data;
        int (*get)(int *, int);
        int (*retain)(void **, int);
        int (*release)(int);
        int (*push)(void *);
        int (*pop)(void **);
    } found;
    int status = find_call("cuDeviceGet", &found.data, error);
    if (!status) out->device_get = found.get;
    if (!status) status = find_call("cuDevicePrimaryCtxRetain", &found.data, error);
    if (!status) out->context_retain = found.retain;
    if (!status) status = find_call("cuDevicePrimaryCtxRelease", &found.data, error);
    if (!status) out->context_release = found.release;
    if (!status) status = find_call("cuCtxPushCurrent", &found.data, error);
    if (!status) out->context_push = found.push;
    if (!status) status = find_call("cuCtxPopCurrent", &found.data, error);
    if (!status) out->context_pop = found.pop;
    return status;
}

typedef enum cudaStreamCaptureMode capture_mode;

/* Makes the device's context current and the thread's capture mode relaxed; sets *mode to the mode
 * before. */
static int enter(fm_device *device, capture_mode *mode, fm_error *error) {
    int status =
        check((cudaError_t)device->driver.context_push(device->context), "cuCtxPushCurrent", error);
    if (status) return status;
    *mode = cudaStreamCaptureModeRelaxed;
    status = check(cudaThreadExchangeStreamCaptureMode(mode), "cudaThreadExchangeStreamCaptureMode",
                   error);
    void *context;
    if (status) (void)device->driver.context_pop(&context);
    return status;
}

/* Undoes enter(). Returns `status`, or the first failure if that is FM_OK. */
static int leave(fm_device *device, capture_mode mode, int status, fm_error *error) {
    fm_error *const first = status ? NULL : error;
    const int restored = check(cudaThreadExchangeStreamCaptureMode(&mode),
                               "cudaThreadExchangeStreamCaptureMode", first);
    if (!status) status = restored;
    void *context;
    const int popped = check((cudaError_t)device->driver.context_pop(&context), "cuCtxPopCurrent",
                             status ? NULL : error);
    return status ? status : popped;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int cuda_count(int32_t *n_devices, fm_error *error) {
    int n = 0;
    const cudaError_t result = cudaGetDeviceCount(&n);
    *n_devices = 0;
    if (result == cudaSuccess && n > 0) {
        *n_devices = n;
        return FM_OK;
    }
    if (result == cudaSuccess || result == cudaErrorNoDevice)
        return fm_error_set(error, FM_ERR_UNAVAILABLE,
                            "no CUDA: there is no GPU, or CUDA_VISIBLE_DEVICES hides it");
    if (result == cudaErrorInsufficientDriver)
        return fm_error_set(error, FM_ERR_UNAVAILABLE,
                            "no CUDA: there is no driver by NVIDIA, or it is older than CUDA %d.%d",
                            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return fm_error_set(error, FM_ERR_UNAVAILABLE, "no CUDA: cudaGetDeviceCount failed: %s (%s)",
                        cudaGetErrorName(result), cudaGetErrorString(result));
}

static int open_slots(fm_device *device, uint32_t n_slots, fm_error *error) {
    for (; device->n_slots < n_slots; device->n_slots++) {
        slot_events *const slot = &device->slots[device->n_slots];
        int status = check(cudaEventCreateWithFlags(&slot->marked, cudaEventDisableTiming),
                           "cudaEventCreateWithFlags", error);
        if (status) return status;
        /* cudaEventSynchronize() sleeps instead of spinning. */
        status = check(
            cudaEventCreateWithFlags(&slot->copied, cudaEventDisableTiming | cudaEventBlockingSync),
            "cudaEventCreateWithFlags", error);
        if (status) {
            /* close() does not destroy this event, as n_slots does not count the slot yet. */
            (void)cudaEventDestroy(slot->marked);
            return status;
        }
    }
    return FM_OK;
}

/* Called with the context current. */
static int open_inside(fm_device *device, const fm_device_options *options, fm_error *error) {
    int least = 0, greatest = 0;
    int status = check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                       "cudaDeviceGetStreamPriorityRange", error);
    /* The highest priority: the kernel takes a fraction of a training step, which waits for it. */
    cudaStream_t stream;
    if (!status)
        status = check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                       "cudaStreamCreateWithPriority", error);
    if (status) return status;
    device->stream = stream;
    void *staging = NULL;
    if (device->format.convert)
        status = check(cudaMalloc(&staging, options->max_bytes), "cudaMalloc", error);
    if (status) return status;
    device->staging = staging;
    if (device->format.convert)
        status = check(fm_cuda_convert_load(&device->format), "cudaFuncGetAttributes", error);
    if (status) return status;
    return open_slots(device, options->n_slots, error);
}

/* Keeps the first failure in *first and *error. */
static void note(int *first, fm_error *error, int status, const fm_error *why) {
    if (*first || !status) return;
    *first = status;
    if (error) *error = *why;
}

/* Called with the context current, unless enter() failed. */
static int close_inside(fm_device *device, fm_error *error) {
    int first = FM_OK;
    fm_error why;
    if (device->stream)
        note(&first, error,
             check(cudaStreamSynchronize(device->stream), "cudaStreamSynchronize", &why), &why);
    for (uint32_t i = 0; i < device->n_slots; i++) {
        note(&first, error,
             check(cudaEventDestroy(device->slots[i].marked), "cudaEventDestroy", &why), &why);
        note(&first, error,
             check(cudaEventDestroy(device->slots[i].copied), "cudaEventDestroy", &why), &why);
    }
    if (device->staging)
        note(&first, error, check(cudaFree(device->staging), "cudaFree", &why), &why);
    if (device->stream)
        note(&first, error, check(cudaStreamDestroy(device->stream), "cudaStreamDestroy", &why),
             &why);
    return first;
}

static int cuda_close(fm_device **pointer, fm_error *error) {
    fm_device *const device = *pointer;
    *pointer = NULL;
    int first = FM_OK;
    if (device->context) {
        fm_error why;
        capture_mode mode;
        const int entered = enter(device, &mode, &why);
        note(&first, error, entered, &why);
        /* Also after a failure, as some of it can be freed without the context. */
        note(&first, error, close_inside(device, &why), &why);
        if (!entered) note(&first, error, leave(device, mode, FM_OK, &why), &why);
        const int released = device->driver.context_release(device->ordinal);
        note(&first, error, check((cudaError_t)released, "cuDevicePrimaryCtxRelease", &why), &why);
    }
    fm_mem_free(device);
    return first;
}

static int open_context(fm_device *device, fm_error *error) {
    int status = find_driver(&device->driver, error);
    if (!status)
        status = check((cudaError_t)device->driver.device_get(&device->ordinal, device->index),
                       "cuDeviceGet", error);
    if (status) return status;
    void *context = NULL;
    status = check((cudaError_t)device->driver.context_retain(&context, device->ordinal),
                   "cuDevicePrimaryCtxRetain", error);
    if (!status) device->context = context;
    return status;
}

static int cuda_open(fm_device **out, const fm_device_options *options, fm_error *error) {
    *out = NULL;
    int32_t n_devices;
    int status = cuda_count(&n_devices, error);
    if (status) return status;
    if (options->index < 0 || options->index >= n_devices)
        return fm_error_set(error, FM_ERR_ARGUMENT, "device index %d: there are %d GPUs, from 0",
                            (int)options->index, (int)n_devices);
    fm_device *device =
        fm_mem_zalloc(NULL, 1, sizeof(*device) + options->n_slots * sizeof(slot_events));
    if (!device) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a device");
    device->format = options->format;
    device->index = options->index;
    status = open_context(device, error);
    capture_mode mode;
    if (!status) status = enter(device, &mode, error);
    if (!status) status = leave(device, mode, open_inside(device, options, error), error);
    if (status) {
        /* Errors of close() would only follow from this one. */
        (void)cuda_close(&device, NULL);
        return status;
    }
    *out = device;
    return FM_OK;
}

static int cuda_bus(fm_device *device, char out[FM_DEVICE_BUS_BYTES], fm_error *error) {
    memset(out, 0, FM_DEVICE_BUS_BYTES);
    const int status = check(cudaDeviceGetPCIBusId(out, FM_DEVICE_BUS_BYTES - 1, device->index),
                             "cudaDeviceGetPCIBusId", error);
    for (char *c = out; *c; c++) *c = (char)tolower((unsigned char)*c);
    return status;
}

/* ---- page-locked memory ---------------------------------------------------------------------- */

static int cuda_pin(fm_device *device, void *memory, size_t n_bytes, fm_error *error) {
    capture_mode mode;
    int status = enter(device, &mode, error);
    if (status) return status;
    /* Portable: page-locked for all GPUs. torch's is_pinned() then returns True. */
    const cudaError_t result = cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable);
    status = leave(device, mode, check(result, "cudaHostRegister", error), error);
    if (status && result == cudaSuccess) (void)cudaHostUnregister(memory);
    return status;
}

static int cuda_unpin(fm_device *device, void *memory, fm_error *error) {
    capture_mode mode;
    const int entered = enter(device, &mode, error);
    /* Also after a failure, as the caller frees the memory next. */
    const int status =
        check(cudaHostUnregister(memory), "cudaHostUnregister", entered ? NULL : error);
    return entered ? entered : leave(device, mode, status, error);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Refuses a stream that is being captured: its work would become part of a graph and run with it.
 */
static int refuse_capture(cudaStream_t stream, fm_error *error) {
    enum cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(stream, &captured);
    /* cudaErrorStreamCaptureImplicit: the legacy default stream, while another one is captured. */
    if (result == cudaSuccess && captured == cudaStreamCaptureStatusNone) return FM_OK;
    if (result != cudaSuccess && result != cudaErrorStreamCaptureImplicit)
        return check(result, "cudaStreamIsCapturing", error);
    return fm_error_set(error, FM_ERR_STATE,
                        "a CUDA graph is being captured: batches can't be taken from a loader "
                        "within a capture; take the batch before it, and copy it into the graph's "
                        "static input");
}

static int cuda_mark(fm_device *device, uint32_t slot, void *stream, fm_error *error) {
    capture_mode mode;
    int status = enter(device, &mode, error);
    if (status) return status;
    status = refuse_capture(stream, error);
    if (!status)
        status =
            check(cudaEventRecord(device->slots[slot].marked, stream), "cudaEventRecord", error);
    return leave(device, mode, status, error);
}

static int queue_copy(fm_device *device, const slot_events *slot, const fm_device_job *job,
                      fm_error *error) {
    const cudaStream_t stream = device->stream;
    const bool convert = device->format.convert;
    const enum cudaMemcpyKind kind = cudaMemcpyHostToDevice;
    /* Only this stream uses the staging memory, so only writes to the target wait for the mark. */
    int status = FM_OK;
    if (convert)
        status = check(cudaMemcpyAsync(device->staging, job->from, job->n_bytes, kind, stream),
                       "cudaMemcpyAsync", error);
    if (!status)
        status = check(cudaStreamWaitEvent(stream, slot->marked, 0), "cudaStreamWaitEvent", error);
    if (!status && convert)
        status = check(
            fm_cuda_convert(&device->format, device->staging, job->to, job->n_samples, stream),
            "cudaLaunchKernel", error);
    if (!status && !convert)
        status = check(cudaMemcpyAsync(job->to, job->from, job->n_bytes, kind, stream),
                       "cudaMemcpyAsync", error);
    if (!status && job->labels_from)
        status =
            check(cudaMemcpyAsync(job->labels_to, job->labels_from, job->label_bytes, kind, stream),
                  "cudaMemcpyAsync", error);
    if (!status) status = check(cudaEventRecord(slot->copied, stream), "cudaEventRecord", error);
    return status;
}

static int cuda_copy(fm_device *device, uint32_t slot, const fm_device_job *job, fm_error *error) {
    capture_mode mode;
    int status = enter(device, &mode, error);
    if (status) return status;
    status = queue_copy(device, &device->slots[slot], job, error);
    status = leave(device, mode, status, error);
    /* Part of the copy may be queued, and the caller may reuse the memory now. If this fails as
     * well, the context is lost and so is the work queued in it. */
    if (status) (void)cudaStreamSynchronize(device->stream);
    return status;
}

static int cuda_wait(fm_device *device, uint32_t slot, void *stream, fm_error *error) {
    capture_mode mode;
    int status = enter(device, &mode, error);
    if (status) return status;
    status = refuse_capture(stream, error);
    if (!status)
        status = check(cudaStreamWaitEvent(stream, device->slots[slot].copied, 0),
                       "cudaStreamWaitEvent", error);
    return leave(device, mode, status, error);
}

static int cuda_poll(fm_device *device, uint32_t slot, fm_error *error) {
    capture_mode mode;
    int status = enter(device, &mode, error);
    if (status) return status;
    const cudaError_t result = cudaEventQuery(device->slots[slot].copied);
    if (result != cudaErrorNotReady) status = check(result, "cudaEventQuery", error);
    status = leave(device, mode, status, error);
    return !status && result == cudaErrorNotReady ? FM_AGAIN : status;
}

static int cuda_sync(fm_device *device, uint32_t slot, fm_error *error) {
    capture_mode mode;
    const int entered = enter(device, &mode, error);
    /* Also after a failure, as the caller reuses the memory next. */
    int status = check(cudaEventSynchronize(device->slots[slot].copied), "cudaEventSynchronize",
                       entered ? NULL : error);
    /* The error may come from other work, while the copy still runs. */
    if (status) (void)cudaStreamSynchronize(device->stream);
    return entered ? entered : leave(device, mode, status, error);
}

FM_API const fm_device_calls *fm_device_calls_cuda(void);

const fm_device_calls *fm_device_calls_cuda(void) {
    static const fm_device_calls calls = {
        .version = FM_DEVICE_VERSION,
        .struct_bytes = sizeof(fm_device_calls),
        .count = cuda_count,
        .open = cuda_open,
        .close = cuda_close,
        .bus = cuda_bus,
        .pin = cuda_pin,
        .unpin = cuda_unpin,
        .mark = cuda_mark,
        .copy = cuda_copy,
        .wait = cuda_wait,
        .poll = cuda_poll,
        .sync = cuda_sync,
    };
    return &calls;
}
