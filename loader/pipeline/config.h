/* Checks a configuration and works out what it leaves open. */
#ifndef FM_PIPELINE_CONFIG_H
#define FM_PIPELINE_CONFIG_H

#include "base/error.h"
#include "feedmill/stats.h"
#include "transform/plan.h"

#define FM_N_STEPS 65536u /* records of steps that are kept; a power of two */

/*
 * Fills *out from *config with every default resolved, the buffers and read buffers fitted into the
 * memory budget (*n_buffers), the plan of what buffers hold and that of what is delivered
 * (*result), which differ where a device converts. FM_ERR_ARGUMENT, FM_ERR_BUDGET.
 */
int fm_config_resolve(const fm_config *config, fm_config *out, fm_plan *plan, fm_plan *result,
                      uint32_t *n_buffers, fm_error *error);

#endif
