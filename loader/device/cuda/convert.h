/* The one kernel: a batch of uint8 pixels on the GPU becomes what the plan says. */
#ifndef FM_DEVICE_CUDA_CONVERT_H
#define FM_DEVICE_CUDA_CONVERT_H

#include <cuda_runtime_api.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Queues the conversion of n_samples samples from `from` to `to`, both memory of the current
 * device, in `stream`; the same bytes as fm_device_convert(). Returns what the launch did.
 */
cudaError_t fm_cuda_convert(const fm_device_format *format, const uint8_t *from, void *to,
                            uint32_t n_samples, cudaStream_t stream);

/* Brings the kernels for a format to the current device, which takes time and memory there. Fails
 * where they were not compiled for such a GPU. */
cudaError_t fm_cuda_convert_load(const fm_device_format *format);

#ifdef __cplusplus
}
#endif
#endif
