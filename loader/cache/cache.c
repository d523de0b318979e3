#define _GNU_SOURCE
#include "cache/cache.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"

/* Memory is allocated in chunks of a quarter of the remaining budget, at most this much, so that
 * the table can still grow. Untouched pages cost nothing. The remainder of a chunk, less than a
 * file, is lost. */
#define MAX_CHUNK_BYTES ((uint64_t)64 << 20)
#define FIRST_SLOTS 64

typedef struct entry {
    uint64_t hash;
    fm_cache_key key;     /* path NULL: the slot is free */
    const uint8_t *bytes; /* NULL: being copied */
    size_t n_bytes;
} entry;

/* Header before a chunk's storage; its size keeps the storage aligned. */
typedef struct chunk {
    _Alignas(FM_MEM_ALIGN) struct chunk *next;
} chunk;

struct fm_cache {
    uint64_t budget_bytes; /* constant after open */
    pid_t pid;             /* constant after open */
    pthread_mutex_t lock;  /* guards what follows */
    entry *slots;          /* open addressing; a power of two, at most three quarters full */
    size_t n_slots;
    chunk *chunks;
    uint8_t *free_bytes; /* unused part of the newest chunk */
    uint64_t n_free;
    fm_cache_usage usage;
};

/* ---- the table ------------------------------------------------------------------------------- */

/* FNV-1a: paths are short, and no attacker chooses them. */
static uint64_t hash_of(const fm_cache_key *key) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = key->path; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    hash = (hash ^ key->offset_bytes ^ key->range_bytes << 40) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static bool is_same(const fm_cache_key *a, const fm_cache_key *b) {
    return a->offset_bytes == b->offset_bytes && a->range_bytes == b->range_bytes &&
           strcmp(a->path, b->path) == 0;
}

/* Returns the key's slot, or the free slot where it must go. */
static entry *find(entry *slots, size_t n_slots, const fm_cache_key *key, uint64_t hash) {
    for (size_t i = hash & (n_slots - 1);; i = (i + 1) & (n_slots - 1)) {
        entry *const slot = &slots[i];
        if (!slot->key.path || (slot->hash == hash && is_same(&slot->key, key))) return slot;
    }
}

/* Called with the lock held. Makes sure that one more entry fits; false: budget or memory is short.
 */
static bool reserve_slot(fm_cache *cache) {
    if (4 * (cache->usage.n_files + 1) <= 3 * cache->n_slots) return true;
    const size_t n_slots = 2 * cache->n_slots;
    if (cache->usage.used_bytes + n_slots * sizeof(entry) > cache->budget_bytes) return false;
    entry *const slots = fm_mem_zalloc(NULL, n_slots, sizeof(entry));
    if (!slots) return false;
    for (size_t i = 0; i < cache->n_slots; i++) {
        const entry *const old = &cache->slots[i];
        if (old->key.path) *find(slots, n_slots, &old->key, old->hash) = *old;
    }
    fm_mem_free(cache->slots);
    cache->usage.used_bytes += (n_slots - cache->n_slots) * sizeof(entry);
    cache->slots = slots;
    cache->n_slots = n_slots;
    return true;
}

/* ---- storage --------------------------------------------------------------------------------- */

/* Size of a new chunk for n_bytes, given the remaining budget. */
static uint64_t chunk_bytes(uint64_t n_bytes, uint64_t left) {
    uint64_t bytes = left / 4;
    if (bytes > MAX_CHUNK_BYTES) bytes = MAX_CHUNK_BYTES;
    return bytes > sizeof(chunk) + n_bytes ? bytes : sizeof(chunk) + n_bytes;
}

/* Called with the lock held. Returns n_bytes of aligned storage, or NULL. n_bytes is a multiple of
 * the alignment. */
static uint8_t *reserve_bytes(fm_cache *cache, uint64_t n_bytes) {
    if (n_bytes > cache->n_free) {
        const uint64_t left = cache->budget_bytes - cache->usage.used_bytes;
        const uint64_t new_bytes = chunk_bytes(n_bytes, left);
        if (new_bytes > left) return NULL;
        chunk *const fresh = fm_mem_alloc(NULL, new_bytes, 1);
        if (!fresh) return NULL;
        fresh->next = cache->chunks;
        cache->chunks = fresh;
        cache->usage.used_bytes += new_bytes;
        cache->free_bytes = (uint8_t *)(fresh + 1);
        cache->n_free = (new_bytes - sizeof(chunk)) / FM_MEM_ALIGN * FM_MEM_ALIGN;
    }
    uint8_t *const bytes = cache->free_bytes;
    cache->free_bytes += n_bytes;
    cache->n_free -= n_bytes;
    return bytes;
}

/* ---- for the loader -------------------------------------------------------------------------- */

const uint8_t *fm_cache_get(fm_cache *cache, const fm_cache_key *key, size_t *n_bytes) {
    const uint64_t hash = hash_of(key);
    pthread_mutex_lock(&cache->lock);
    const entry *const slot = find(cache->slots, cache->n_slots, key, hash);
    const uint8_t *const bytes = slot->key.path ? slot->bytes : NULL;
    *n_bytes = bytes ? slot->n_bytes : 0;
    pthread_mutex_unlock(&cache->lock);
    return bytes;
}

void fm_cache_put(fm_cache *cache, const fm_cache_key *key, const uint8_t *bytes, size_t n_bytes) {
    const uint64_t hash = hash_of(key);
    const size_t path_bytes = strlen(key->path) + 1;
    pthread_mutex_lock(&cache->lock);
    uint8_t *memory = NULL;
    const bool is_new = !find(cache->slots, cache->n_slots, key, hash)->key.path;
    if (is_new && reserve_slot(cache))
        memory = reserve_bytes(cache, fm_mem_round_up(n_bytes) + fm_mem_round_up(path_bytes));
    if (memory) {
        char *const name = (char *)memory + fm_mem_round_up(n_bytes);
        memcpy(name, key->path, path_bytes);
        const fm_cache_key kept = {name, key->offset_bytes, key->range_bytes};
        *find(cache->slots, cache->n_slots, key, hash) =
            (entry){.hash = hash, .key = kept, .n_bytes = n_bytes};
        cache->usage.n_files++;
        cache->usage.file_bytes += n_bytes;
    } else if (is_new) {
        cache->usage.n_refused++;
    }
    pthread_mutex_unlock(&cache->lock);
    if (!memory) return;
    /* Without the lock, so that several threads can copy at the same time. */
    memcpy(memory, bytes, n_bytes);
    pthread_mutex_lock(&cache->lock);
    find(cache->slots, cache->n_slots, key, hash)->bytes = memory;
    pthread_mutex_unlock(&cache->lock);
}

bool fm_cache_is_ours(const fm_cache *cache) { return cache->pid == getpid(); }

/* ---- public functions ------------------------------------------------------------------------ */

int fm_cache_open(fm_cache **out, uint64_t budget_bytes, fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    const uint64_t memory_bytes = fm_cpu_memory_bytes();
    if (budget_bytes > memory_bytes)
        return fm_error_set(error, FM_ERR_BUDGET,
                            "a cache of %llu bytes is more than the memory of %llu bytes that this "
                            "process may use; lower it",
                            (unsigned long long)budget_bytes, (unsigned long long)memory_bytes);
    fm_cache *cache = fm_mem_zalloc(NULL, 1, sizeof(*cache));
    if (!cache) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a cache");
    if (pthread_mutex_init(&cache->lock, NULL)) {
        fm_mem_free(cache);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    }
    cache->budget_bytes = budget_bytes;
    cache->pid = getpid();
    cache->n_slots = FIRST_SLOTS;
    cache->usage.used_bytes = FIRST_SLOTS * sizeof(entry);
    cache->slots = fm_mem_zalloc(NULL, FIRST_SLOTS, sizeof(entry));
    int status = FM_OK;
    if (!cache->slots) status = fm_error_set(error, FM_ERR_NOMEM, "no memory for a cache");
    if (cache->usage.used_bytes > budget_bytes)
        status = fm_error_set(
            error, FM_ERR_BUDGET, "a cache of %llu bytes is too small; the minimum is %llu",
            (unsigned long long)budget_bytes, (unsigned long long)cache->usage.used_bytes);
    if (status) {
        fm_cache_close(&cache);
        return status;
    }
    *out = cache;
    return FM_OK;
}

void fm_cache_usage_get(fm_cache *cache, fm_cache_usage *out) {
    *out = (fm_cache_usage){0};
    /* A thread of the parent may have held the lock at the fork. */
    if (!fm_cache_is_ours(cache)) return;
    pthread_mutex_lock(&cache->lock);
    *out = cache->usage;
    pthread_mutex_unlock(&cache->lock);
}

void fm_cache_close(fm_cache **pointer) {
    if (!pointer || !*pointer) return;
    fm_cache *const cache = *pointer;
    *pointer = NULL;
    for (chunk *one = cache->chunks; one;) {
        chunk *const next = one->next;
        fm_mem_free(one);
        one = next;
    }
    fm_mem_free(cache->slots);
    pthread_mutex_destroy(&cache->lock);
    fm_mem_free(cache);
}
