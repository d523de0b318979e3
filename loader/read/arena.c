#include "read/arena.h"

#include <string.h>

#include "base/error.h"

#define NONE UINT32_MAX
/* Before each buffer stands the index of its node. A whole cache line, to keep the alignment. */
#define HEADER_BYTES FM_MEM_ALIGN
/* A smaller remainder stays with its buffer: tiny free parts would only lengthen the search. */
#define MIN_REMAINDER_BYTES 1024
/* One node per this many bytes of block: images are larger, and nodes take below 1% of it. */
#define BYTES_PER_NODE 8192

static uint64_t region_bytes(uint64_t bytes) { return HEADER_BYTES + fm_mem_round_up(bytes); }

static uint64_t capacity_of(const fm_arena_node *node) { return node->bytes - HEADER_BYTES; }

static uint8_t *buffer_of(const fm_arena *arena, uint32_t index) {
    uint8_t *const region = arena->block + arena->nodes[index].offset;
    memcpy(region, &index, sizeof(index));
    return region + HEADER_BYTES;
}

static uint32_t node_of(const uint8_t *buffer) {
    uint32_t index;
    memcpy(&index, buffer - HEADER_BYTES, sizeof(index));
    return index;
}

int fm_arena_init(fm_arena *arena, uint64_t block_bytes, fm_mem_counter *counter) {
    *arena = (fm_arena){0};
    block_bytes = block_bytes / FM_MEM_ALIGN * FM_MEM_ALIGN;
    if (block_bytes < 4096) block_bytes = 4096;
    uint64_t n_nodes = block_bytes / BYTES_PER_NODE + 64;
    if (n_nodes >= NONE) n_nodes = NONE - 1;
    arena->block = fm_mem_map_huge(counter, block_bytes);
    arena->nodes = fm_mem_alloc(counter, n_nodes, sizeof(*arena->nodes));
    arena->block_bytes = block_bytes;
    if (!arena->block || !arena->nodes) {
        fm_arena_fini(arena);
        return FM_ERR_NOMEM;
    }
    for (uint32_t i = 1; i < n_nodes; i++) arena->nodes[i].next = i + 1 < n_nodes ? i + 1 : NONE;
    arena->unused_node = n_nodes > 1 ? 1 : NONE;
    arena->nodes[0] = (fm_arena_node){.bytes = block_bytes,
                                      .previous = NONE,
                                      .next = NONE,
                                      .free_previous = NONE,
                                      .free_next = NONE,
                                      .free = true};
    return FM_OK;
}

void fm_arena_fini(fm_arena *arena) {
    fm_mem_unmap(arena->block, arena->block_bytes);
    fm_mem_free(arena->nodes);
    *arena = (fm_arena){0};
}

uint64_t fm_arena_limit(const fm_arena *arena) { return arena->block_bytes - HEADER_BYTES; }

bool fm_arena_owns(const fm_arena *arena, const uint8_t *buffer) {
    return (uintptr_t)buffer - (uintptr_t)arena->block < arena->block_bytes;
}

static void free_list_remove(fm_arena *arena, uint32_t index) {
    const fm_arena_node *const node = &arena->nodes[index];
    if (node->free_next != NONE) arena->nodes[node->free_next].free_previous = node->free_previous;
    if (node->free_previous != NONE)
        arena->nodes[node->free_previous].free_next = node->free_next;
    else
        arena->first_free = node->free_next;
}

/* Inserts a free part in order of offset. There are few free parts, so the walk is short. */
static void free_list_insert(fm_arena *arena, uint32_t index) {
    fm_arena_node *const node = &arena->nodes[index];
    uint32_t previous = NONE, next = arena->first_free;
    while (next != NONE && arena->nodes[next].offset < node->offset) {
        previous = next;
        next = arena->nodes[next].free_next;
    }
    node->free = true;
    node->free_previous = previous;
    node->free_next = next;
    if (next != NONE) arena->nodes[next].free_previous = index;
    if (previous != NONE)
        arena->nodes[previous].free_next = index;
    else
        arena->first_free = index;
}

/* Merges the part after `index` into it. */
static void absorb_next(fm_arena *arena, uint32_t index) {
    fm_arena_node *const node = &arena->nodes[index];
    const uint32_t merged = node->next;
    node->bytes += arena->nodes[merged].bytes;
    node->next = arena->nodes[merged].next;
    if (node->next != NONE) arena->nodes[node->next].previous = index;
    arena->nodes[merged].next = arena->unused_node;
    arena->unused_node = merged;
}

/*
 * Shortens a used part to `bytes`. The remainder joins the next part if that one is free, else it
 * becomes a free part of its own.
 */
static void free_remainder(fm_arena *arena, uint32_t index, uint64_t bytes) {
    fm_arena_node *const node = &arena->nodes[index];
    const uint64_t remainder = node->bytes - bytes;
    if (remainder == 0) return;
    if (node->next != NONE && arena->nodes[node->next].free) {
        /* The next part keeps its place in the free list. */
        arena->nodes[node->next].offset -= remainder;
        arena->nodes[node->next].bytes += remainder;
    } else {
        if (remainder < MIN_REMAINDER_BYTES || arena->unused_node == NONE) return;
        const uint32_t added = arena->unused_node;
        arena->unused_node = arena->nodes[added].next;
        arena->nodes[added] = (fm_arena_node){.offset = node->offset + bytes,
                                              .bytes = remainder,
                                              .previous = index,
                                              .next = node->next};
        if (node->next != NONE) arena->nodes[node->next].previous = added;
        node->next = added;
        free_list_insert(arena, added);
    }
    node->bytes = bytes;
    arena->used_bytes -= remainder;
}

uint8_t *fm_arena_alloc(fm_arena *arena, uint64_t bytes, uint64_t *capacity) {
    if (bytes > fm_arena_limit(arena)) return NULL;
    const uint64_t wanted = region_bytes(bytes);
    uint32_t index = arena->first_free;
    while (index != NONE && arena->nodes[index].bytes < wanted)
        index = arena->nodes[index].free_next;
    if (index == NONE) return NULL;
    fm_arena_node *const node = &arena->nodes[index];
    /* Without a node for the remainder, a small buffer must not take a large part whole. */
    if (arena->unused_node == NONE && node->bytes - wanted >= BYTES_PER_NODE) return NULL;
    free_list_remove(arena, index);
    node->free = false;
    arena->n_used++;
    arena->used_bytes += node->bytes;
    free_remainder(arena, index, wanted);
    *capacity = capacity_of(node);
    return buffer_of(arena, index);
}

bool fm_arena_grow(fm_arena *arena, uint8_t *buffer, uint64_t bytes, uint64_t *capacity) {
    if (bytes > fm_arena_limit(arena)) return false;
    const uint32_t index = node_of(buffer);
    fm_arena_node *const node = &arena->nodes[index];
    const uint64_t wanted = region_bytes(bytes);
    if (node->bytes < wanted) {
        const uint32_t next = node->next;
        if (next == NONE || !arena->nodes[next].free) return false;
        if (node->bytes + arena->nodes[next].bytes < wanted) return false;
        free_list_remove(arena, next);
        arena->used_bytes += arena->nodes[next].bytes;
        absorb_next(arena, index);
        free_remainder(arena, index, wanted);
    }
    *capacity = capacity_of(node);
    return true;
}

void fm_arena_trim(fm_arena *arena, uint8_t *buffer, uint64_t bytes) {
    const uint32_t index = node_of(buffer);
    const uint64_t wanted = region_bytes(bytes);
    if (wanted < arena->nodes[index].bytes) free_remainder(arena, index, wanted);
}

void fm_arena_free(fm_arena *arena, uint8_t *buffer) {
    const uint32_t index = node_of(buffer);
    const fm_arena_node *const node = &arena->nodes[index];
    arena->n_used--;
    arena->used_bytes -= node->bytes;
    if (node->next != NONE && arena->nodes[node->next].free) {
        free_list_remove(arena, node->next);
        absorb_next(arena, index);
    }
    if (node->previous != NONE && arena->nodes[node->previous].free)
        absorb_next(arena, node->previous);
    else
        free_list_insert(arena, index);
}
