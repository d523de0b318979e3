/*
 * Memory of batch buffers that a device may copy from: pages of their own, page-locked, near the
 * device where the system tells which memory is.
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
    int node;           /* of the memory near the device; -1: not known, or all the same */
    fm_error error;     /* of the first block that could not be had or given back; status 0: none */
} fm_pinned;

/* In the caller's memory, which must outlive all blocks; so must the open device. FM_ERR_DEVICE. */
int fm_pinned_init(fm_pinned *pinned, const fm_device_calls *calls, fm_device *device,
                   size_t block_bytes, fm_mem_counter *counter, fm_error *error);

/* An allocator of blocks of at most block_bytes; what fails is in pinned->error. */
fm_allocator fm_pinned_allocator(fm_pinned *pinned);

#endif
