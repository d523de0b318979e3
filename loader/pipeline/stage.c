/* The device stage's place in the API: no device can be used yet. */
#define _GNU_SOURCE
#include "pipeline/pipeline.h"

int fm_device_count(fm_device_kind kind, int32_t *n_devices, fm_error *error) {
    if (n_devices) *n_devices = 0;
    return fm_error_set(error, FM_ERR_UNAVAILABLE, "devices of kind %d are not built in",
                        (int)kind);
}

void fm_loader_target_bytes(const fm_loader *loader, size_t *image_bytes, size_t *label_bytes) {
    (void)loader;
    if (image_bytes) *image_bytes = 0;
    if (label_bytes) *label_bytes = 0;
}

int fm_loader_offer(fm_loader *loader, const fm_target *target, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    (void)target;
    return status ? status : fm_error_set(error, FM_ERR_STATE, "this loader has no device");
}

size_t fm_loader_n_offered(const fm_loader *loader) {
    (void)loader;
    return 0;
}

int fm_loader_wait(fm_loader *loader, void *stream, fm_error *error) {
    const int status = fm_loader_check(loader, error);
    (void)stream;
    return status ? status : fm_error_set(error, FM_ERR_STATE, "this loader has no device");
}

bool fm_loader_converts(const fm_loader *loader) {
    (void)loader;
    return false;
}
