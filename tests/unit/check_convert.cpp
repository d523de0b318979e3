/*
 * The kernel of the CUDA plug-in, its own source, run on the CPU: the same bytes as the host's
 * conversion for all types, layouts and channels, whole groups of pixels and others.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

/* Replaces what nvcc provides. A block's threads run one after another; __shared__ is static. */
#define __global__
#define __shared__ static
#define __launch_bounds__(n)
struct dim3 {
    unsigned x;
    explicit dim3(unsigned n = 1) : x(n) {}
};
static dim3 threadIdx, blockIdx, gridDim;
static void __syncthreads() {}

#include "device/cuda/convert.h"

struct cudaFuncAttributes {};
static cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *) { return cudaSuccess; }
static cudaError_t cudaLaunchKernel(const void *kernel, dim3 n_blocks, dim3 n_threads,
                                    void **arguments, size_t shared_bytes, cudaStream_t stream);

#include "device/cuda/convert.cu"

static cudaError_t cudaLaunchKernel(const void *kernel, dim3 n_blocks, dim3 n_threads,
                                    void **arguments, size_t, cudaStream_t) {
    typedef void kernel_function(table, const uint8_t *, void *, uint64_t, uint64_t);
    kernel_function *const function = (kernel_function *)kernel;
    gridDim = n_blocks;
    for (unsigned block = 0; block < n_blocks.x; block++) {
        blockIdx = dim3(block);
        /* Twice: the first round only has all of the table shared by its end, as a barrier would.
         */
        for (int round = 0; round < 2; round++) {
            for (unsigned thread = 0; thread < n_threads.x; thread++) {
                threadIdx = dim3(thread);
                function(*(table *)arguments[0], *(const uint8_t **)arguments[1],
                         *(void **)arguments[2], *(uint64_t *)arguments[3],
                         *(uint64_t *)arguments[4]);
            }
        }
    }
    return cudaSuccess;
}

static int n_failed;

static void check(fm_dtype dtype, fm_layout layout, uint32_t channels, uint64_t n_px,
                  uint32_t n_samples, size_t shift) {
    fm_device_format format = {};
    format.convert = true;
    format.dtype = dtype;
    format.layout = layout;
    format.channels = channels;
    format.n_px = n_px;
    for (uint32_t i = 0; i < 768; i++) format.bits[i / 256][i % 256] = i * 2654435761u;
    const size_t n = n_samples * n_px * channels, value_bytes = dtype == FM_FLOAT32 ? 4 : 2;
    std::vector<uint8_t> in(n + 8), got(n * value_bytes + 64, 7), want(got);
    for (size_t i = 0; i < n; i++) in[i] = (uint8_t)(rand() >> 7);
    fm_device_job job = {};
    job.from = in.data();
    job.to = want.data() + shift;
    job.n_bytes = n;
    job.n_samples = n_samples;
    fm_device_convert(&format, &job);
    cudaError_t result = fm_cuda_convert_load(&format);
    if (result == cudaSuccess)
        result = fm_cuda_convert(&format, in.data(), got.data() + shift, n_samples, nullptr);
    if (result == cudaSuccess && got == want) return;
    n_failed++;
    printf("differs: dtype %d, layout %d, %u channels, %u x %llu pixels, %zu bytes off\n", dtype,
           layout, channels, n_samples, (unsigned long long)n_px, shift);
}

int main() {
    static const fm_dtype dtypes[] = {FM_FLOAT32, FM_FLOAT16, FM_BFLOAT16};
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 8, 35, 64, 768, 1023, 1024};
    int n = 0;
    for (const fm_dtype dtype : dtypes)
        for (int layout = FM_NCHW; layout <= FM_NHWC; layout++)
            for (uint32_t channels = 1; channels <= 3; channels += 2)
                for (const uint64_t n_px : sizes)
                    for (uint32_t n_samples = 0; n_samples <= 5; n_samples++, n++)
                        check(dtype, (fm_layout)layout, channels, n_px, n_samples, n % 3 ? 0 : 4);
    /* More groups than threads in all blocks: the grid goes round. */
    check(FM_FLOAT16, FM_NCHW, 3, 1 << 18, 5, 0);
    printf("%d of %d differ\n", n_failed, n + 1);
    return n_failed != 0;
}
