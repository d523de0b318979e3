/* Checks a configuration and resolves its defaults. */
#ifndef FM_PIPELINE_CONFIG_H
#define FM_PIPELINE_CONFIG_H

#include "base/error.h"
#include "feedmill/stats.h"
#include "pipeline/views.h"

#define FM_N_STEPS 65536u /* records of steps that are kept; a power of two */

/*
 * Copies *config to *out, with all defaults resolved and the read buffers' size fitted into the
 * memory budget. Sets *n_buffers to the number of batch buffers that fit, *plan to the plan of the
 * values in buffers, and *result to that of the values delivered, which differs if a device
 * converts. *views refers to *plan; the caller closes it, also after a failure.
 * FM_ERR_ARGUMENT, FM_ERR_BUDGET, FM_ERR_NOMEM.
 */
int fm_config_resolve(const fm_config *config, fm_config *out, fm_plan *plan, fm_plan *result,
                      fm_views *views, uint32_t *n_buffers, fm_mem_counter *counter,
                      fm_error *error);

#endif
