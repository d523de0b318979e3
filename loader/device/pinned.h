/*
 * Page-locked memory for batch buffers that a device copies from, in separate pages, on the
 * device's NUMA node if that is known.
 */
#ifndef FM_DEVICE_PINNED_H
#define FM_DEVICE_PINNED_H

#include "base/mem.h"
#include "device/device.h"

typedef struct fm_pinned {
    const fm_device_calls *calls;
    fm_device *device;
    fm_mem_counter *counter;
    size_t block_bytes; /* of every block */
    int node;           /* the device's NUMA node; -1: unknown */
    fm_error error;     /* of the first failed allocation or release; status 0: none */
} fm_pinned;

/* Initializes the caller's struct. It and the open device must outlive all blocks. FM_ERR_DEVICE.
 */
int fm_pinned_init(fm_pinned *pinned, const fm_device_calls *calls, fm_device *device,
                   size_t block_bytes, fm_mem_counter *counter, fm_error *error);

/* Returns an allocator of blocks of at most block_bytes. Its errors are in pinned->error. */
fm_allocator fm_pinned_allocator(fm_pinned *pinned);

#endif
