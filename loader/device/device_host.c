/* The host as a device, by memcpy() and loops. Defines the results that other devices must equal.
 */
#include "device/device.h"

#include <string.h>

#include "base/mem.h"

struct fm_device {
    fm_device_format format;
};

static int host_count(int32_t *n_devices, fm_error *error) {
    (void)error;
    *n_devices = 1;
    return FM_OK;
}

static int host_open(fm_device **out, const fm_device_options *options, fm_error *error) {
    *out = NULL;
    if (options->index != 0)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "device index %d: the host is one device, with index 0",
                            (int)options->index);
    fm_device *const device = fm_mem_alloc(NULL, 1, sizeof(*device));
    if (!device) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a device");
    device->format = options->format;
    *out = device;
    return FM_OK;
}

static int host_close(fm_device **device, fm_error *error) {
    (void)error;
    fm_mem_free(*device);
    *device = NULL;
    return FM_OK;
}

static int host_bus(fm_device *device, char out[FM_DEVICE_BUS_BYTES], fm_error *error) {
    (void)device, (void)error;
    out[0] = '\0';
    return FM_OK;
}

static int host_pin(fm_device *device, void *memory, size_t n_bytes, fm_error *error) {
    (void)device, (void)memory, (void)n_bytes, (void)error;
    return FM_OK;
}

static int host_unpin(fm_device *device, void *memory, fm_error *error) {
    (void)device, (void)memory, (void)error;
    return FM_OK;
}

/* Does nothing: copies are done when copy() returns. */
static int host_with_stream(fm_device *device, uint32_t slot, void *stream, fm_error *error) {
    (void)device, (void)slot, (void)stream, (void)error;
    return FM_OK;
}

static int host_done(fm_device *device, uint32_t slot, fm_error *error) {
    (void)device, (void)slot, (void)error;
    return FM_OK;
}

void fm_device_convert(const fm_device_format *format, const fm_device_job *job) {
    const uint8_t *from = job->from;
    uint32_t *const out32 = job->to;
    uint16_t *const out16 = job->to;
    const uint64_t n_channels = format->channels;
    const bool packed = format->layout == FM_NHWC;
    /* Values from one pixel to the next, and from one channel to the next. */
    const uint64_t px_step = packed ? n_channels : 1, channel_step = packed ? 1 : format->n_px;
    for (uint64_t sample = 0; sample < job->n_samples; sample++) {
        const uint64_t first = sample * format->n_px * n_channels;
        for (uint64_t px = 0; px < format->n_px; px++) {
            for (uint64_t channel = 0; channel < n_channels; channel++) {
                const uint32_t bits = format->bits[channel][*from++];
                const uint64_t at = first + px * px_step + channel * channel_step;
                if (format->dtype == FM_FLOAT32)
                    out32[at] = bits;
                else
                    out16[at] = (uint16_t)bits;
            }
        }
    }
}

static int host_copy(fm_device *device, uint32_t slot, const fm_device_job *job, fm_error *error) {
    (void)slot, (void)error;
    if (device->format.convert)
        fm_device_convert(&device->format, job);
    else
        memcpy(job->to, job->from, job->n_bytes);
    if (job->labels_from) memcpy(job->labels_to, job->labels_from, job->label_bytes);
    return FM_OK;
}

const fm_device_calls *fm_device_host(void) {
    static const fm_device_calls calls = {
        .version = FM_DEVICE_VERSION,
        .struct_bytes = sizeof(fm_device_calls),
        .count = host_count,
        .open = host_open,
        .close = host_close,
        .bus = host_bus,
        .pin = host_pin,
        .unpin = host_unpin,
        .mark = host_with_stream,
        .copy = host_copy,
        .wait = host_with_stream,
        .poll = host_done,
        .sync = host_done,
    };
    return &calls;
}
