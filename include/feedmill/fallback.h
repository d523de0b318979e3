/* Samples that the loader does not decode, which the caller's decoder then finishes. */
#ifndef FEEDMILL_FALLBACK_H
#define FEEDMILL_FALLBACK_H

#include <stddef.h>
#include <stdint.h>

#include "feedmill/loader.h"
#include "feedmill/status.h"
#include "feedmill/transform.h"
#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * After next() returned FM_FALLBACK: the sample that the caller must finish. The caller either
 * writes it to `out` (channels x height x width values of `dtype` in `layout`: the transform's or,
 * if the device converts, uint8 and NHWC) and calls fm_loader_fallback_done() with FM_OK, or calls
 * it with an error status: next() then drops the sample's batch and returns that status. With
 * several views `out` is the first view's place, and fm_loader_fallback_view() has the others. If
 * these have files of their own, each rejected file is passed alone: `out` is its view's place.
 */
typedef struct fm_fallback {
    int64_t index;
    uint32_t occurrence; /* earlier uses of this index in this epoch */
    uint32_t position;   /* in its batch, of fm_samples */
    int cause;           /* FM_ERR_READ, FORMAT, KIND, DAMAGED or LIMIT */
    const char *path;    /* valid until fm_loader_fallback_done(); with data: a name, or empty */
    const void *data;    /* as submitted; NULL: the file at path */
    size_t data_bytes;
    uint64_t offset_bytes, range_bytes; /* as submitted */
    void *out;
    size_t out_bytes;
    fm_dtype dtype;
    fm_layout layout;
    fm_error error; /* why it was not decoded natively */
} fm_fallback;
FM_API FM_CHECK_RESULT int fm_loader_fallback(fm_loader *loader, fm_fallback *out);
FM_API FM_CHECK_RESULT int fm_loader_fallback_done(fm_loader *loader, int status, fm_error *error);

/* After next() returned FM_FALLBACK: the place of a view of the sample, and its size. FM_ERR_STATE:
 * no fallback is pending. FM_ERR_ARGUMENT: there is no such view, or it is another file's. */
FM_API FM_CHECK_RESULT int fm_loader_fallback_view(fm_loader *loader, size_t number, void **out,
                                                   size_t *out_bytes);

#ifdef __cplusplus
}
#endif
#endif
