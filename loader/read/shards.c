#define _GNU_SOURCE
#include "read/shards.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"

/* The process needs files of its own. */
#define SHARE 8

static uint64_t hash_of(const char *path) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *path; path++) hash = (hash ^ (uint8_t)*path) * 0x100000001b3u;
    return hash;
}

static fm_shard **bucket_of(fm_shards *shards, uint64_t hash) {
    return &shards->buckets[(hash ^ hash >> 32) & (FM_SHARDS_BUCKETS - 1)];
}

int fm_shards_init(fm_shards *shards, fm_mem_counter *counter) {
    *shards = (fm_shards){.limit = FM_SHARDS_MOST};
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur / SHARE < shards->limit)
        shards->limit = files.rlim_cur < SHARE ? 1 : (uint32_t)(files.rlim_cur / SHARE);
    shards->all = fm_mem_zalloc(counter, shards->limit, sizeof(*shards->all));
    if (!shards->all) return FM_ERR_NOMEM;
    for (uint32_t i = shards->limit; i-- > 0;) {
        fm_shard *const shard = &shards->all[i];
        shard->file = -1;
        shard->next = shards->unused;
        shards->unused = shard;
    }
    return FM_OK;
}

void fm_shards_fini(fm_shards *shards) {
    for (uint32_t i = 0; shards->all && i < shards->limit; i++) {
        if (shards->all[i].file >= 0) close(shards->all[i].file);
        fm_mem_free(shards->all[i].path);
    }
    fm_mem_free(shards->all);
    *shards = (fm_shards){0};
}

/* ---- the order of use ------------------------------------------------------------------------ */

static void take_out_of_order(fm_shards *shards, fm_shard *shard) {
    *(shard->older ? &shard->older->newer : &shards->oldest) = shard->newer;
    *(shard->newer ? &shard->newer->older : &shards->newest) = shard->older;
}

static void make_newest(fm_shards *shards, fm_shard *shard) {
    shard->newer = NULL;
    shard->older = shards->newest;
    *(shard->older ? &shard->older->newer : &shards->oldest) = shard;
    shards->newest = shard;
}

/* ---- entries --------------------------------------------------------------------------------- */

fm_shard *fm_shards_find(fm_shards *shards, const char *path) {
    const uint64_t hash = hash_of(path);
    fm_shard *shard = *bucket_of(shards, hash);
    while (shard && (shard->hash != hash || strcmp(shard->path, path) != 0)) shard = shard->next;
    if (!shard) return NULL;
    shard->n_users++;
    if (shards->newest == shard) return shard;
    take_out_of_order(shards, shard);
    make_newest(shards, shard);
    return shard;
}

/* Its file, which the caller closes. */
static int end(fm_shards *shards, fm_shard *shard) {
    const int file = shard->file;
    shard->file = -1;
    shard->next = shards->unused;
    shards->unused = shard;
    return file;
}

void fm_shards_unlist(fm_shards *shards, fm_shard *shard) {
    if (!shard->listed) return;
    shard->listed = false;
    take_out_of_order(shards, shard);
    fm_shard **link = bucket_of(shards, shard->hash);
    while (*link != shard) link = &(*link)->next;
    *link = shard->next;
}

int fm_shards_evict(fm_shards *shards) {
    fm_shard *shard = shards->oldest;
    while (shard && shard->n_users) shard = shard->newer;
    if (!shard) return -1;
    fm_shards_unlist(shards, shard);
    return end(shards, shard);
}

int fm_shards_release(fm_shards *shards, fm_shard *shard) {
    if (--shard->n_users || shard->listed) return -1;
    return end(shards, shard);
}

fm_shard *fm_shards_add(fm_shards *shards, const char *path, fm_mem_counter *counter,
                        int *to_close) {
    *to_close = -1;
    if (!shards->unused) *to_close = fm_shards_evict(shards);
    fm_shard *const shard = shards->unused;
    if (!shard) return NULL;
    const size_t path_bytes = strlen(path) + 1;
    if (path_bytes > shard->path_room) {
        char *const room = fm_mem_alloc(counter, path_bytes, 1);
        if (!room) return NULL;
        fm_mem_free(shard->path);
        shard->path = room;
        shard->path_room = path_bytes;
    }
    shards->unused = shard->next;
    memcpy(shard->path, path, path_bytes);
    shard->hash = hash_of(path);
    shard->n_users = 1;
    shard->listed = true;
    shard->waiting = NULL;
    fm_shard **const bucket = bucket_of(shards, shard->hash);
    shard->next = *bucket;
    *bucket = shard;
    make_newest(shards, shard);
    return shard;
}
