/*
 * Converts uint8 pixels by table look-up rather than arithmetic, so that results do not depend on
 * the GPU's rounding.
 *
 * The table is a kernel argument (3 KiB of at most 4). Each block copies it to shared memory, where
 * threads can look up different values at the same time.
 */
#include "device/cuda/convert.h"

#define THREADS 256
/* Pixels per thread if a sample's number of pixels is a multiple: reads and writes whole words. */
#define GROUP 4

struct table {
    uint32_t bits[3][256];
};

/* N values that are written by one store. */
template <typename Value, int N> struct alignas(sizeof(Value) * N) run {
    Value values[N];
};

template <typename Value, int Channels, bool Packed, int N>
__global__ void __launch_bounds__(THREADS)
    convert(const table all, const uint8_t *__restrict__ from, Value *__restrict__ to,
            const uint64_t n_px, const uint64_t n_groups) {
    __shared__ Value shared[Channels][256];
    for (unsigned i = threadIdx.x; i < Channels * 256; i += THREADS)
        shared[i / 256][i % 256] = (Value)all.bits[i / 256][i % 256];
    __syncthreads();
    const uint64_t step = (uint64_t)gridDim.x * THREADS;
    for (uint64_t group = (uint64_t)blockIdx.x * THREADS + threadIdx.x; group < n_groups;
         group += step) {
        const uint64_t first_px = group * N; /* of the whole batch */
        union {
            uint8_t bytes[N * Channels];
            uint32_t words[(N * Channels + 3) / 4];
        } in;
        if (N % 4 == 0) {
            const uint32_t *const words = (const uint32_t *)(from + first_px * Channels);
            for (int i = 0; i < N * Channels / 4; i++) in.words[i] = words[i];
        } else {
            for (int i = 0; i < N * Channels; i++) in.bytes[i] = from[first_px * Channels + i];
        }
        const uint64_t sample = first_px / n_px, px = first_px - sample * n_px;
        for (int part = 0; part < Channels; part++) {
            run<Value, N> out;
            for (int i = 0; i < N; i++) {
                /* The part-th N values: of one channel, or of interleaved pixels if Packed. */
                const int at = Packed ? part * N + i : i * Channels + part;
                out.values[i] = shared[at % Channels][in.bytes[at]];
            }
            Value *const place = Packed ? to + first_px * Channels + part * N
                                        : to + (sample * Channels + part) * n_px + px;
            *(run<Value, N> *)place = out;
        }
    }
}

/* One batch to convert; with `from` NULL the kernel is only loaded. */
struct job {
    const fm_device_format *format;
    const uint8_t *from;
    void *to;
    uint32_t n_samples;
    cudaStream_t stream;
};

template <typename Value, int Channels, bool Packed, int N>
static cudaError_t launch(const job &job) {
    const void *const kernel = (const void *)convert<Value, Channels, Packed, N>;
    cudaFuncAttributes attributes;
    if (!job.from) return cudaFuncGetAttributes(&attributes, kernel);
    table all;
    for (int channel = 0; channel < 3; channel++)
        for (int value = 0; value < 256; value++)
            all.bits[channel][value] = job.format->bits[channel][value];
    const uint8_t *from = job.from;
    Value *to = (Value *)job.to;
    uint64_t n_px = job.format->n_px, n_groups = job.n_samples * n_px / N;
    /* Enough blocks to fill any GPU, and few enough that copying the table costs nothing. */
    const uint64_t n_needed = (n_groups + THREADS - 1) / THREADS;
    const unsigned n_blocks = (unsigned)(n_needed < 1024 ? n_needed : 1024);
    void *arguments[] = {&all, &from, &to, &n_px, &n_groups};
    return cudaLaunchKernel(kernel, dim3(n_blocks), dim3(THREADS), arguments, 0, job.stream);
}

template <typename Value, int N> static cudaError_t choose(const job &job) {
    if (job.format->channels == 1) return launch<Value, 1, true, N>(job);
    if (job.format->layout == FM_NHWC) return launch<Value, 3, true, N>(job);
    return launch<Value, 3, false, N>(job);
}

template <typename Value> static cudaError_t choose_group(const job &job) {
    const bool whole = job.format->n_px % GROUP == 0 && (uintptr_t)job.from % 4 == 0 &&
                       (uintptr_t)job.to % (sizeof(Value) * GROUP) == 0;
    return whole ? choose<Value, GROUP>(job) : choose<Value, 1>(job);
}

static cudaError_t run_job(const job &job) {
    return job.format->dtype == FM_FLOAT32 ? choose_group<uint32_t>(job)
                                           : choose_group<uint16_t>(job);
}

extern "C" cudaError_t fm_cuda_convert(const fm_device_format *format, const uint8_t *from,
                                       void *to, uint32_t n_samples, cudaStream_t stream) {
    if (n_samples == 0 || format->n_px == 0) return cudaSuccess;
    return run_job(job{format, from, to, n_samples, stream});
}

extern "C" cudaError_t fm_cuda_convert_load(const fm_device_format *format) {
    /* All kernels of a module are loaded together, so loading one is enough. */
    return run_job(job{format, nullptr, nullptr, 0, nullptr});
}
