/* Files that hold a sample's values as they are: checked and copied, not decoded. */
#ifndef FM_PIPELINE_PLAIN_H
#define FM_PIPELINE_PLAIN_H

#include "feedmill/feedmill.h"
#include "transform/plan.h"
#include "transform/store.h"

/* The plan of config->plain, which is checked. FM_ERR_ARGUMENT. */
int fm_plain_init(fm_plan *plan, const fm_config *config, fm_error *error);

/*
 * The values of a file's n_bytes bytes to `out`, plain->body_bytes. `stream`: how they are copied
 * past the cache; NULL: they are not. FM_ERR_FORMAT, FM_ERR_DAMAGED.
 */
int fm_plain_copy(const fm_plain *plain, const uint8_t *bytes, size_t n_bytes, uint8_t *out,
                  fm_store_copy *stream, fm_error *error);

#endif
