/* The CUDA kernel that converts a batch of uint8 pixels to the plan's values. */
#ifndef FM_DEVICE_CUDA_CONVERT_H
#define FM_DEVICE_CUDA_CONVERT_H

#include <cuda_runtime_api.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Queues the conversion of n_samples samples from `from` to `to`, both memory of the current
 * device, in `stream`. Writes the same bytes as fm_device_convert(). Returns the launch's result.
 */
cudaError_t fm_cuda_convert(const fm_device_format *format, const uint8_t *from, void *to,
                            uint32_t n_samples, cudaStream_t stream);

/* Loads the kernel for a format to the current device, so that the first conversion does not have
 * to. Fails if it was not compiled for this GPU. */
cudaError_t fm_cuda_convert_load(const fm_device_format *format);

#ifdef __cplusplus
}
#endif
#endif
