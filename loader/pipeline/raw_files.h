/* Files that hold a sample's values as they are (fm_raw_format): checked and copied, not decoded.
 */
#ifndef FM_PIPELINE_RAW_FILES_H
#define FM_PIPELINE_RAW_FILES_H

#include "base/error.h"
#include "transform/plan.h"
#include "transform/store.h"

/* The plan of config->raw, which it checks. FM_ERR_ARGUMENT. */
int fm_raw_plan(fm_plan *plan, const fm_config *config, fm_error *error);

/* Copies a file's values, raw->body_bytes, to `out`. `stream_copy` copies past the CPU's cache;
 * NULL: memcpy(). FM_ERR_FORMAT, FM_ERR_DAMAGED. */
int fm_raw_copy(const fm_raw_format *raw, const uint8_t *bytes, size_t n_bytes, uint8_t *out,
                fm_store_copy *stream_copy, fm_error *error);

#endif
