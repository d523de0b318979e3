/* Files that hold a sample's values as they are (fm_raw_format): checked and copied, not decoded.
 */
#ifndef FM_PIPELINE_RAW_FILES_H
#define FM_PIPELINE_RAW_FILES_H

#include "base/error.h"
#include "transform/plan.h"
#include "transform/store.h"

/* Checks config->raw and makes its plan. FM_ERR_ARGUMENT. */
int fm_raw_plan(fm_plan *plan, const fm_config *config, fm_error *error);

/* Copies a file's values, raw->body_bytes, to `out` by `stream_copy`, a non-temporal copy, or by
 * memcpy() if it is NULL. FM_ERR_FORMAT, FM_ERR_DAMAGED. */
int fm_raw_copy(const fm_raw_format *raw, const uint8_t *bytes, size_t n_bytes, uint8_t *out,
                fm_store_copy *stream_copy, fm_error *error);

#endif
