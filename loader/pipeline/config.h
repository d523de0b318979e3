/* Checks a configuration and resolves its defaults. */
#ifndef FM_PIPELINE_CONFIG_H
#define FM_PIPELINE_CONFIG_H

#include "base/error.h"
#include "feedmill/stats.h"
#include "transform/plan.h"

#define FM_N_STEPS 65536u /* records of steps that are kept; a power of two */

/*
 * Copies *config to *out, with all defaults resolved and the read buffers' size fitted into the
 * memory budget. Sets *n_buffers to the number of batch buffers that fit, *plan to the plan of the
 * values in buffers, and *result to that of the values delivered, which differs if a device
 * converts. FM_ERR_ARGUMENT, FM_ERR_BUDGET.
 */
int fm_config_resolve(const fm_config *config, fm_config *out, fm_plan *plan, fm_plan *result,
                      uint32_t *n_buffers, fm_error *error);

#endif
