/* Checks that every call on a loader makes first. */
#define _GNU_SOURCE
#include <unistd.h>

#include "pipeline/state.h"

int fm_loader_check(const fm_loader *loader, fm_error *error) {
    if (!loader) return fm_error_set(error, FM_ERR_ARGUMENT, "loader is NULL");
    if (loader->pid != getpid()) {
        return fm_error_set(
            error, FM_ERR_FORKED,
            "this loader belongs to process %ld; a forked process must open its own",
            (long)loader->pid);
    }
    return FM_OK;
}

int fm_loader_check_open(const fm_loader *loader, fm_error *error) {
    if (loader->epoch.state == FM_EPOCH_OPEN) return FM_OK;
    return fm_error_set(error, FM_ERR_STATE,
                        loader->epoch.state == FM_EPOCH_NONE
                            ? "no epoch is running: start one first"
                            : "the epoch is finished: start another");
}
