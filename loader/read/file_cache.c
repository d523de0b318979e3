#define _GNU_SOURCE
#include "read/file_cache.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"

/* The cache takes at most this fraction of the process's file descriptors: 1/8. */
#define DESCRIPTOR_SHARE 8

static uint64_t hash_of(const char *path) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *path; path++) hash = (hash ^ (uint8_t)*path) * 0x100000001b3u;
    return hash;
}

static fm_cached_file **bucket_of(fm_file_cache *cache, uint64_t hash) {
    return &cache->buckets[(hash ^ hash >> 32) & (FM_FILE_CACHE_BUCKETS - 1)];
}

int fm_file_cache_init(fm_file_cache *cache, fm_mem_counter *counter) {
    *cache = (fm_file_cache){.limit = FM_FILE_CACHE_MAX};
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur / DESCRIPTOR_SHARE < cache->limit)
        cache->limit =
            files.rlim_cur < DESCRIPTOR_SHARE ? 1 : (uint32_t)(files.rlim_cur / DESCRIPTOR_SHARE);
    cache->all = fm_mem_zalloc(counter, cache->limit, sizeof(*cache->all));
    if (!cache->all) return FM_ERR_NOMEM;
    for (uint32_t i = cache->limit; i-- > 0;) {
        fm_cached_file *const entry = &cache->all[i];
        entry->file = -1;
        entry->next = cache->unused;
        cache->unused = entry;
    }
    return FM_OK;
}

void fm_file_cache_fini(fm_file_cache *cache) {
    for (uint32_t i = 0; cache->all && i < cache->limit; i++) {
        if (cache->all[i].file >= 0) close(cache->all[i].file);
        fm_mem_free(cache->all[i].path);
    }
    fm_mem_free(cache->all);
    *cache = (fm_file_cache){0};
}

/* ---- use order --------------------------------------------------------------------------------
 */

static void remove_from_use_order(fm_file_cache *cache, fm_cached_file *entry) {
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
}

static void make_newest(fm_file_cache *cache, fm_cached_file *entry) {
    entry->newer = NULL;
    entry->older = cache->newest;
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry;
    cache->newest = entry;
}

/* ---- entries --------------------------------------------------------------------------------- */

fm_cached_file *fm_file_cache_find(fm_file_cache *cache, const char *path) {
    const uint64_t hash = hash_of(path);
    fm_cached_file *entry = *bucket_of(cache, hash);
    while (entry && (entry->hash != hash || strcmp(entry->path, path) != 0)) entry = entry->next;
    if (!entry) return NULL;
    entry->n_users++;
    if (cache->newest == entry) return entry;
    remove_from_use_order(cache, entry);
    make_newest(cache, entry);
    return entry;
}

/* Makes an unlisted entry reusable. Returns its file, which the caller must close. */
static int retire(fm_file_cache *cache, fm_cached_file *entry) {
    const int file = entry->file;
    entry->file = -1;
    entry->next = cache->unused;
    cache->unused = entry;
    return file;
}

void fm_file_cache_unlist(fm_file_cache *cache, fm_cached_file *entry) {
    if (!entry->listed) return;
    entry->listed = false;
    remove_from_use_order(cache, entry);
    fm_cached_file **link = bucket_of(cache, entry->hash);
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
}

int fm_file_cache_evict(fm_file_cache *cache) {
    fm_cached_file *entry = cache->oldest;
    while (entry && entry->n_users) entry = entry->newer;
    if (!entry) return -1;
    fm_file_cache_unlist(cache, entry);
    return retire(cache, entry);
}

int fm_file_cache_release(fm_file_cache *cache, fm_cached_file *entry) {
    if (--entry->n_users || entry->listed) return -1;
    return retire(cache, entry);
}

fm_cached_file *fm_file_cache_add(fm_file_cache *cache, const char *path, fm_mem_counter *counter,
                                  int *to_close) {
    *to_close = -1;
    if (!cache->unused) *to_close = fm_file_cache_evict(cache);
    fm_cached_file *const entry = cache->unused;
    if (!entry) return NULL;
    const size_t path_bytes = strlen(path) + 1;
    if (path_bytes > entry->path_capacity) {
        char *const grown = fm_mem_alloc(counter, path_bytes, 1);
        if (!grown) return NULL;
        fm_mem_free(entry->path);
        entry->path = grown;
        entry->path_capacity = path_bytes;
    }
    cache->unused = entry->next;
    memcpy(entry->path, path, path_bytes);
    entry->hash = hash_of(path);
    entry->n_users = 1;
    entry->listed = true;
    entry->waiting = NULL;
    fm_cached_file **const bucket = bucket_of(cache, entry->hash);
    entry->next = *bucket;
    *bucket = entry;
    make_newest(cache, entry);
    return entry;
}
