/*
 * GPUs of NVIDIA's, through the CUDA runtime. Built as a plug-in with the runtime linked
 * statically: its version need not be torch's, and errors that it keeps for a thread stay out of
 * torch's own copy. Both use the device's primary context, in which handles of streams and events
 * are the driver's and mean the same to all.
 *
 * Every call makes that context the thread's current one for its time, by the driver's stack of
 * contexts: cudaSetDevice() back to a device that the caller never used would create a context
 * there. And it takes no part in a capture that another thread may be in the middle of, which an
 * event query would break.
 */
#include "device/cuda/convert.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"

/* The driver's calls that the runtime has none for, as the runtime hands them out. They return
 * numbers that mean the same as the runtime's errors. */
typedef struct driver {
    int (*device_get)(int *device, int index);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
} driver;

typedef struct slot_events {
    cudaEvent_t marked; /* the consumer's stream has come so far */
    cudaEvent_t copied;
} slot_events;

struct fm_device {
    fm_device_format format;
    driver driver;
    int ordinal; /* of the driver */
    int index;
    void *context;       /* retained; NULL: not yet */
    cudaStream_t stream; /* NULL: not yet */
    uint8_t *staging;    /* memory of the device for the uint8 of one batch; NULL: none */
    uint32_t n_slots;
    slot_events slots[];
};

/* What a call returned, as a status. */
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
    return fm_error_set(error, FM_ERR_UNAVAILABLE, "this driver of CUDA has no %s; update it",
                        name);
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

/* The thread's part in captures, while it is in a call. */
typedef enum cudaStreamCaptureMode capture_mode;

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

/* Ends what enter() began; the first failure is the one that counts. */
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
                            "no CUDA: there is no driver of NVIDIA's, or one older than CUDA %d.%d",
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
        /* Who waits for it sleeps. */
        status = check(
            cudaEventCreateWithFlags(&slot->copied, cudaEventDisableTiming | cudaEventBlockingSync),
            "cudaEventCreateWithFlags", error);
        if (status) {
            /* The slot does not count yet: close() won't find its first event. */
            (void)cudaEventDestroy(slot->marked);
            return status;
        }
    }
    return FM_OK;
}

/* With the context current. */
static int open_inside(fm_device *device, const fm_device_options *options, fm_error *error) {
    int least = 0, greatest = 0;
    int status = check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                       "cudaDeviceGetStreamPriorityRange", error);
    /* The highest priority: the kernel takes a fraction of a step's time, and a step waits for it.
     */
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

static void note(int *first, fm_error *error, int status, const fm_error *why) {
    if (*first || !status) return;
    *first = status;
    if (error) *error = *why;
}

/* With the context current, as far as it could be made so. */
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
        /* Also where that failed: what can be freed without it should be. */
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
        /* The caller sees why it failed, not what failed because of that. */
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
    /* Portable: it is page-locked for all GPUs, also to torch's is_pinned(). */
    const cudaError_t result = cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable);
    status = leave(device, mode, check(result, "cudaHostRegister", error), error);
    if (status && result == cudaSuccess) (void)cudaHostUnregister(memory);
    return status;
}

static int cuda_unpin(fm_device *device, void *memory, fm_error *error) {
    capture_mode mode;
    const int entered = enter(device, &mode, error);
    /* Also where that failed: the memory goes next. */
    const int status =
        check(cudaHostUnregister(memory), "cudaHostUnregister", entered ? NULL : error);
    return entered ? entered : leave(device, mode, status, error);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* What is queued in a captured stream becomes part of a graph, and runs when that does. */
static int refuse_capture(cudaStream_t stream, fm_error *error) {
    enum cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(stream, &captured);
    /* The legacy default stream must not be asked while any other is captured. */
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
    /* Staging is this stream's own: only what is written to the target comes after the mark. */
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
    /* A part of it may be queued, and the memory is the caller's again. Where this fails as well,
     * the context is lost, and with it what was queued there. */
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
    /* Also where that failed: who calls this is about to use the memory for something else. */
    int status = check(cudaEventSynchronize(device->slots[slot].copied), "cudaEventSynchronize",
                       entered ? NULL : error);
    /* The failure may be of something else, which came up meanwhile. */
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
