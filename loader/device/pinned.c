#define _GNU_SOURCE
#include "device/pinned.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* mbind()'s MPOL_PREFERRED, for which the C library has no header. */
#define PREFER_NODE 1
#define MAX_NODES 1024
#define BITS_PER_WORD (8 * sizeof(unsigned long))

/* The NUMA node of the device with this PCI bus ID; -1 if it is unknown. */
static int node_of(const char *bus) {
    char path[128];
    int node = -1;
    if (!*bus) return -1;
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *const file = fopen(path, "re");
    if (!file) return -1;
    if (fscanf(file, "%d", &node) != 1 || node < 0 || node >= MAX_NODES) node = -1;
    fclose(file);
    return node;
}

/* Makes the kernel prefer a NUMA node for pages that were not touched yet. If the node is full, it
 * uses others. */
static void prefer_node(void *pages, size_t n_bytes, int node) {
    if (node < 0) return;
    unsigned long mask[MAX_NODES / BITS_PER_WORD] = {0};
    mask[(size_t)node / BITS_PER_WORD] = 1ul << ((size_t)node % BITS_PER_WORD);
    (void)syscall(SYS_mbind, pages, n_bytes, PREFER_NODE, mask, MAX_NODES, 0);
}

static void note(fm_pinned *pinned, const fm_error *error) {
    if (!pinned->error.status) pinned->error = *error;
}

static void *alloc_block(void *user, size_t bytes, void **handle) {
    fm_pinned *const pinned = user;
    (void)handle;
    fm_error error;
    void *const pages = fm_mem_map(pinned->counter, pinned->block_bytes);
    if (!pages) {
        fm_error_set(&error, FM_ERR_NOMEM, "no memory for a batch buffer of %zu bytes", bytes);
        note(pinned, &error);
        return NULL;
    }
    prefer_node(pages, pinned->block_bytes, pinned->node);
    if (!pinned->calls->pin(pinned->device, pages, pinned->block_bytes, &error)) return pages;
    note(pinned, &error);
    fm_mem_unmap(pages, pinned->block_bytes);
    return NULL;
}

static void free_block(void *user, void *memory, void *handle) {
    fm_pinned *const pinned = user;
    (void)handle;
    fm_error error;
    if (pinned->calls->unpin(pinned->device, memory, &error)) note(pinned, &error);
    fm_mem_unmap(memory, pinned->block_bytes);
}

int fm_pinned_init(fm_pinned *pinned, const fm_device_calls *calls, fm_device *device,
                   size_t block_bytes, fm_mem_counter *counter, fm_error *error) {
    char bus[FM_DEVICE_BUS_BYTES];
    const int status = calls->bus(device, bus, error);
    if (status) return status;
    *pinned = (fm_pinned){.calls = calls,
                          .device = device,
                          .counter = counter,
                          .block_bytes = block_bytes,
                          .node = node_of(bus)};
    return FM_OK;
}

fm_allocator fm_pinned_allocator(fm_pinned *pinned) {
    return (fm_allocator){.user = pinned, .alloc = alloc_block, .free = free_block};
}
