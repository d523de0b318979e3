#include "pipeline/raw_files.h"

#include <string.h>

int fm_raw_plan(fm_plan *plan, const fm_config *config, fm_error *error) {
    const fm_raw_format *const raw = &config->raw;
    if (config->arrays.n || config->transform.n_ops)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "config.raw can't be combined with arrays (%zu) or ops (%zu)",
                            config->arrays.n, config->transform.n_ops);
    if (raw->body_bytes > INT32_MAX || (raw->header_bytes && !raw->header))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "config.raw has a header of %zu bytes at %p and %zu bytes of values; "
                            "it must have 1 to %d bytes of values",
                            raw->header_bytes, raw->header, raw->body_bytes, INT32_MAX);
    plan->channels = plan->out_height = 1;
    plan->out_width = (int32_t)raw->body_bytes;
    plan->dtype = FM_UINT8;
    plan->sample_bytes = raw->body_bytes;
    return FM_OK;
}

int fm_raw_copy(const fm_raw_format *raw, const uint8_t *bytes, size_t n_bytes, uint8_t *out,
                fm_store_copy *stream_copy, fm_error *error) {
    const size_t header_bytes = raw->header_bytes;
    if (n_bytes < header_bytes || (header_bytes && memcmp(bytes, raw->header, header_bytes) != 0))
        return fm_error_set(
            error, FM_ERR_FORMAT,
            "the file's header differs from the header of the dataset's first file");
    if (n_bytes - header_bytes != raw->body_bytes)
        return fm_error_set(error, FM_ERR_DAMAGED,
                            "the file has %zu bytes of values after its header, not %zu",
                            n_bytes - header_bytes, raw->body_bytes);
    if (stream_copy)
        stream_copy(out, bytes + header_bytes, raw->body_bytes);
    else
        memcpy(out, bytes + header_bytes, raw->body_bytes);
    return FM_OK;
}
