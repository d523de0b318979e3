/* A CUDA runtime without a GPU, which checks the calls that it gets; see stub_cudart.h. */
#define _GNU_SOURCE
#include "stub_cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub_streams.h"

static int n_devices_here, n_events, n_contexts[MAX_DEVICES];
static struct CUevent_st *test_events[1024];
static int n_test_events;
static long n_calls, failing_call;
static const char *failed_call;
static __thread enum cudaStreamCaptureMode capture_mode_here;

/* Locked. Whether this call fails; releasing calls do their work all the same. */
static bool fails(const char *name) {
    n_calls++;
    if (failing_call == 0 || n_calls != failing_call) return false;
    failed_call = name;
    return true;
}

/* ---- the runtime ----------------------------------------------------------------------------- */

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorUnknown:
        return "cudaErrorUnknown";
    default:
        return "another error";
    }
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "unknown error";
}

/* The frame of every call: under the lock, counted, and failing at its turn. */
#define BEGIN BEGIN_NAMED(__func__)
#define BEGIN_NAMED(name)             \
    pthread_mutex_lock(&mutex);       \
    cudaError_t result = cudaSuccess; \
    const bool failing = fails(name); \
    if (failing) result = cudaErrorUnknown;
#define END                       \
    pthread_mutex_unlock(&mutex); \
    return result;

static void need_context(const char *call) {
    if (context_here() < 0) add_complaint("context: %s without a current context", call);
}

/* Locked. Calls that a capture by any thread forbids to all that do not say that they know. */
static void need_relaxed(const char *call) {
    if (capture_mode_here == cudaStreamCaptureModeRelaxed) return;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (streams[i].used && streams[i].capturing)
            add_complaint("capture: %s breaks the capture of stream %d", call, i);
}

static int stub_device_get(int *device, int index) {
    BEGIN_NAMED("cuDeviceGet") if (!failing) *device = index + 100;
    END
}

static int stub_retain(void **context, int device) {
    BEGIN_NAMED("cuDevicePrimaryCtxRetain") if (!failing) {
        n_contexts[device - 100]++;
        *context = &n_contexts[device - 100];
    }
    END
}

static int stub_release(int device) {
    BEGIN_NAMED("cuDevicePrimaryCtxRelease") n_contexts[device - 100]--;
    END
}

static int stub_push(void *context) {
    BEGIN_NAMED("cuCtxPushCurrent")
    if (!failing) context_stack[++context_depth] = (int)((int *)context - n_contexts);
    END
}

static int stub_pop(void **context) {
    BEGIN_NAMED("cuCtxPopCurrent")
    if (context_depth) *context = &n_contexts[context_stack[context_depth--]];
    END
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    (void)version, (void)flags;
    union {
        int (*get)(int *, int);
        int (*retain)(void **, int);
        int (*release)(int);
        int (*push)(void *);
        int (*pop)(void **);
        void *data;
    } call = {.data = NULL};
    BEGIN if (strcmp(name, "cuDeviceGet") == 0) call.get = stub_device_get;
    if (strcmp(name, "cuDevicePrimaryCtxRetain") == 0) call.retain = stub_retain;
    if (strcmp(name, "cuDevicePrimaryCtxRelease") == 0) call.release = stub_release;
    if (strcmp(name, "cuCtxPushCurrent") == 0) call.push = stub_push;
    if (strcmp(name, "cuCtxPopCurrent") == 0) call.pop = stub_pop;
    if (!failing) *out = call.data;
    if (!failing)
        *found = call.data ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    END
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    BEGIN const enum cudaStreamCaptureMode before = capture_mode_here;
    if (!failing || before == cudaStreamCaptureModeRelaxed) {
        capture_mode_here = *mode;
        *mode = before;
    }
    END
}

cudaError_t cudaGetDeviceCount(int *n) {
    BEGIN if (failing || n_devices_here <= 0) {
        *n = 0;
        if (!failing) result = n_devices_here < 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice;
    }
    else {
        *n = n_devices_here;
    }
    END
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int n, int device) {
    BEGIN if (!failing) snprintf(out, (size_t)n, "FFFF:%02X:00.0", (unsigned)device);
    END
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN need_context(__func__);
    *least = 0;
    *greatest = -5;
    END
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    (void)priority;
    BEGIN need_context(__func__);
    if (!failing) {
        *out = any_stream(context_here());
        (*out)->own = true;
        (*out)->nonblocking = flags & cudaStreamNonBlocking;
    }
    END
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    BEGIN close_stream(stream);
    END
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    BEGIN need_relaxed(__func__);
    const struct CUstream_st *const stream = stream_of(handle);
    /* Waits even if the call must fail, so that no work outlives the test. */
    while (stream->n_run < stream->n_queued) pthread_cond_wait(&changed, &mutex);
    merge(&known_here, &stream->known);
    END
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    BEGIN const struct CUstream_st *const stream = stream_of(handle);
    *status = stream->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    for (int i = 0; i < MAX_STREAMS && !handle && !failing; i++)
        if (streams[i].used && streams[i].capturing) result = cudaErrorStreamCaptureImplicit;
    END
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    BEGIN need_context(__func__);
    if (!failing) {
        *out = calloc(1, sizeof(**out));
        (*out)->device = context_here();
        n_events++;
    }
    END
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    BEGIN while (event->n_waiting || event->n_done < event->n_recorded)
        pthread_cond_wait(&changed, &mutex);
    free(event);
    n_events--;
    END
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    BEGIN struct CUstream_st *const stream = stream_of(handle);
    if (!failing && stream->device != event->device) {
        add_complaint("context: an event of device %d recorded on device %d", event->device,
                      stream->device);
        result = cudaErrorInvalidResourceHandle;
    } else if (!failing) {
        push(stream,
             &(stream_op){.kind = OP_RECORD, .event = event, .version = ++event->n_recorded});
        event->known = stream->known;
    }
    END
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    (void)flags;
    BEGIN struct CUstream_st *const stream = stream_of(handle);
    if (!failing) {
        event->n_waiting++;
        push(stream, &(stream_op){.kind = OP_WAIT, .event = event, .version = event->n_recorded});
        merge(&stream->known, &event->known);
    }
    END
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    BEGIN need_relaxed(__func__);
    if (!failing && event->n_done < event->n_recorded) result = cudaErrorNotReady;
    END
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    BEGIN need_relaxed(__func__);
    while (!failing && event->n_done < event->n_recorded) pthread_cond_wait(&changed, &mutex);
    if (!failing) merge(&known_here, &event->known);
    END
}

static void *take_memory(size_t n_bytes, bool own) {
    char *const memory = malloc(n_bytes ? n_bytes : 1);
    block *const place = place_for(device_blocks, NULL);
    if (!memory || !place) abort();
    memset(memory, 0xcc, n_bytes);
    *place = (block){memory, n_bytes, own};
    return memory;
}

cudaError_t cudaMalloc(void **out, size_t n_bytes) {
    BEGIN need_context(__func__);
    need_relaxed(__func__);
    if (failing)
        result = cudaErrorMemoryAllocation;
    else
        *out = take_memory(n_bytes, true);
    END
}

static void forget_accesses(const char *start, const char *end) {
    size_t kept = 0;
    for (size_t i = 0; i < n_accesses; i++)
        if (accesses[i].end <= start || accesses[i].start >= end) accesses[kept++] = accesses[i];
    n_accesses = kept;
}

cudaError_t cudaFree(void *memory) {
    BEGIN need_relaxed(__func__);
    block *const place = place_for(device_blocks, memory);
    if (is_being_read(memory, place->n_bytes))
        add_complaint("slot reused: memory of the device was freed under a kernel");
    forget_accesses(memory, (char *)memory + place->n_bytes);
    *place = (block){0};
    free(memory);
    END
}

cudaError_t cudaHostRegister(void *memory, size_t n_bytes, unsigned flags) {
    (void)flags;
    BEGIN need_context(__func__);
    if (!failing) *place_for(registered, NULL) = (block){memory, n_bytes, true};
    END
}

cudaError_t cudaHostUnregister(void *memory) {
    BEGIN block *const place = place_for(registered, memory);
    if (!place) {
        add_complaint("pageable: memory was unregistered that is not registered");
        result = cudaErrorHostMemoryNotRegistered;
    } else {
        if (is_being_read(memory, place->n_bytes))
            add_complaint("slot reused: memory was unregistered under a copy");
        *place = (block){0};
    }
    END
}

static void need_own_stream(const struct CUstream_st *stream, const char *call) {
    if (!stream->nonblocking)
        add_complaint("default stream: %s in stream %d, which waits for the default stream", call,
                      stream->number);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
    (void)kind;
    BEGIN struct CUstream_st *const stream = stream_of(handle);
    const bool pinned = is_within(registered, from, n_bytes);
    const bool known = is_within(device_blocks, to, n_bytes);
    need_own_stream(stream, __func__);
    if (!pinned) add_complaint("pageable: a copy of %zu bytes from memory that is not", n_bytes);
    if (!known) add_complaint("target: a copy of %zu bytes to no memory of the device", n_bytes);
    if (!failing && pinned && known) {
        note_access(stream, to, n_bytes, true);
        push(stream, &(stream_op){.kind = OP_COPY,
                                  .from = from,
                                  .to = to,
                                  .n_bytes = n_bytes,
                                  .before = sum_of(from, n_bytes)});
    }
    END
}

/* In place of the kernel. */
cudaError_t fm_cuda_convert(const fm_device_format *format, const uint8_t *from, void *to,
                            uint32_t n_samples, cudaStream_t handle) {
    pthread_mutex_lock(&mutex);
    struct CUstream_st *const stream = stream_of(handle);
    const bool failing = fails("cudaLaunchKernel");
    const size_t in_bytes = n_samples * format->n_px * format->channels;
    const size_t out_bytes = in_bytes * (format->dtype == FM_FLOAT32 ? 4 : 2);
    need_own_stream(stream, "cudaLaunchKernel");
    if (!is_within(device_blocks, from, in_bytes) || !is_within(device_blocks, to, out_bytes)) {
        add_complaint("target: a kernel on %zu bytes that are no memory of the device", out_bytes);
    } else if (!failing) {
        note_access(stream, from, in_bytes, false);
        note_access(stream, to, out_bytes, true);
        push(stream,
             &(stream_op){
                 .kind = OP_CONVERT,
                 .from = from,
                 .n_bytes = in_bytes,
                 .format = *format,
                 .job = {.from = from, .to = to, .n_bytes = in_bytes, .n_samples = n_samples}});
    }
    pthread_mutex_unlock(&mutex);
    return failing ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t fm_cuda_convert_load(const fm_device_format *format) {
    (void)format;
    BEGIN_NAMED("cudaFuncGetAttributes")
    need_context("cudaFuncGetAttributes");
    END
}

/* ---- the test's side ------------------------------------------------------------------------- */

static void stub_finish(int device, void *handle) {
    pthread_mutex_lock(&mutex);
    const struct CUstream_st *const stream = handle ? handle : &streams[device];
    while (stream->n_run < stream->n_queued) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void stub_reset(int n_devices, uint64_t delay_ns) {
    pthread_mutex_lock(&mutex);
    is_held = false;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (streams[i].used) close_stream(&streams[i]);
    for (int i = 0; i < MAX_BLOCKS; i++) free((void *)(uintptr_t)device_blocks[i].start);
    memset(streams, 0, sizeof(streams));
    memset(device_blocks, 0, sizeof(device_blocks));
    memset(registered, 0, sizeof(registered));
    memset(n_contexts, 0, sizeof(n_contexts));
    while (n_test_events) free(test_events[--n_test_events]);
    n_accesses = 0;
    n_events = 0;
    n_devices_here = n_devices;
    op_delay_ns = delay_ns;
    n_calls = failing_call = 0;
    failed_call = NULL;
    complaint_text[0] = '\0';
    for (int i = 0; i < MAX_DEVICES; i++) open_stream(i, i);
    pthread_mutex_unlock(&mutex);
}

static void stub_fail_at(long n) {
    pthread_mutex_lock(&mutex);
    n_calls = 0;
    failing_call = n;
    failed_call = NULL;
    pthread_mutex_unlock(&mutex);
}

static const char *stub_failed(void) {
    pthread_mutex_lock(&mutex);
    const char *const name = failed_call;
    pthread_mutex_unlock(&mutex);
    return name;
}

static void stub_complain(const char *text) {
    pthread_mutex_lock(&mutex);
    add_complaint("%s", text);
    pthread_mutex_unlock(&mutex);
}

static const char *stub_complaints(void) { return complaint_text; }

static void stub_check_leaks(void) {
    pthread_mutex_lock(&mutex);
    int n_streams = 0, n_memory = 0, n_registered = 0;
    for (int i = 0; i < MAX_STREAMS; i++) n_streams += streams[i].used && streams[i].own;
    for (int i = 0; i < MAX_BLOCKS; i++) {
        n_memory += device_blocks[i].start && device_blocks[i].own;
        n_registered += registered[i].start != NULL;
    }
    if (n_streams) add_complaint("leak: %d streams", n_streams);
    if (n_events) add_complaint("leak: %d events", n_events);
    if (n_memory) add_complaint("leak: %d blocks of memory of the device", n_memory);
    if (n_registered) add_complaint("leak: %d registrations of memory", n_registered);
    for (int i = 0; i < MAX_DEVICES; i++)
        if (n_contexts[i]) add_complaint("leak: context of device %d (%d)", i, n_contexts[i]);
    pthread_mutex_unlock(&mutex);
}

static void *stub_stream(int device) {
    pthread_mutex_lock(&mutex);
    struct CUstream_st *const stream = any_stream(device);
    pthread_mutex_unlock(&mutex);
    return stream;
}

static void *stub_memory(size_t n_bytes) {
    pthread_mutex_lock(&mutex);
    void *const memory = take_memory(n_bytes, false);
    pthread_mutex_unlock(&mutex);
    return memory;
}

static void stub_use(int device, void *handle, void *memory, size_t n_bytes, uint64_t *sum) {
    pthread_mutex_lock(&mutex);
    struct CUstream_st *const stream = handle ? handle : &streams[device];
    note_access(stream, memory, n_bytes, true);
    push(stream, &(stream_op){
                     .kind = OP_USE, .from = memory, .to = memory, .n_bytes = n_bytes, .sum = sum});
    pthread_mutex_unlock(&mutex);
}

static void stub_after(int device, void *then, void *first) {
    pthread_mutex_lock(&mutex);
    struct CUstream_st *const before = first ? first : &streams[device];
    struct CUstream_st *const behind = then ? then : &streams[device];
    struct CUevent_st *const event = calloc(1, sizeof(*event));
    if (!event || n_test_events == 1024) abort();
    test_events[n_test_events++] = event;
    event->n_recorded = event->n_waiting = 1;
    push(before, &(stream_op){.kind = OP_RECORD, .event = event, .version = 1});
    push(behind, &(stream_op){.kind = OP_WAIT, .event = event, .version = 1});
    merge(&behind->known, &before->known);
    pthread_mutex_unlock(&mutex);
}

static void stub_spin(int device, void *handle, uint64_t time_ns) {
    pthread_mutex_lock(&mutex);
    struct CUstream_st *const stream = handle ? handle : &streams[device];
    push(stream, &(stream_op){.kind = OP_SPIN, .time_ns = time_ns});
    pthread_mutex_unlock(&mutex);
}

static void stub_hold(int device, void *handle) {
    pthread_mutex_lock(&mutex);
    struct CUstream_st *const stream = handle ? handle : &streams[device];
    is_held = true;
    push(stream, &(stream_op){.kind = OP_HOLD});
    pthread_mutex_unlock(&mutex);
}

static void stub_end_hold(void) {
    pthread_mutex_lock(&mutex);
    is_held = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void stub_capture(void *handle, int on) {
    pthread_mutex_lock(&mutex);
    ((struct CUstream_st *)handle)->capturing = on;
    pthread_mutex_unlock(&mutex);
}

static void stub_set_context(int device) {
    context_depth = 0;
    context_stack[0] = device;
    memset(&known_here, 0, sizeof(known_here));
}

static void stub_check_context(int device) {
    if (context_depth == 0 && context_stack[0] == device &&
        capture_mode_here == cudaStreamCaptureModeGlobal)
        return;
    stub_complain("context: a call left another context, or capture mode, behind");
    context_depth = 0;
    capture_mode_here = cudaStreamCaptureModeGlobal;
}

FM_API const stub_cudart_calls *stub_cudart(void);

const stub_cudart_calls *stub_cudart(void) {
    static const stub_cudart_calls calls = {
        .reset = stub_reset,
        .fail_at = stub_fail_at,
        .failed = stub_failed,
        .complain = stub_complain,
        .complaints = stub_complaints,
        .check_leaks = stub_check_leaks,
        .stream = stub_stream,
        .memory = stub_memory,
        .use = stub_use,
        .after = stub_after,
        .spin = stub_spin,
        .finish = stub_finish,
        .capture = stub_capture,
        .set_context = stub_set_context,
        .check_context = stub_check_context,
        .sum = sum_of,
        .hold = stub_hold,
        .release = stub_end_hold,
    };
    return &calls;
}
