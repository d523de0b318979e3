/*
 * An in-memory cache of encoded files, or of ranges of files, by path: what the loader uses of
 * fm_cache (feedmill/configuration.h).
 *
 * Nothing is evicted. Each epoch of a shuffled training reads every file once, so each cached file
 * is hit once per epoch, and the hit rate is the share of files that fits. An LRU cache would evict
 * most files shortly before their next use.
 *
 * The cache holds encoded bytes, not pixels, because these save more per byte where storage is the
 * bottleneck: for 400 photographs (109 KB encoded, 602 KB as pixels) a KB of files saved 1.5 times
 * the read time, from a cold local disk, of what a KB of pixels saved in reading and decoding
 * (three rounds, one file at a time). With slower storage the difference grows. With files in the
 * page cache only pixels would save anything, but then all of them would have to fit.
 *
 * Thread-safe until fm_cache_close(). The cache owns the bytes that it returns; they stay valid and
 * in place until then.
 */
#ifndef FM_CACHE_CACHE_H
#define FM_CACHE_CACHE_H

#include "base/error.h"

/* A file, or a range of it. */
typedef struct fm_cache_key {
    const char *path;
    uint64_t offset_bytes, range_bytes; /* 0, 0: the whole file */
} fm_cache_key;

/* Returns the key's bytes, 64-byte aligned, and their number, or NULL if they are not cached. */
const uint8_t *fm_cache_get(fm_cache *cache, const fm_cache_key *key, size_t *n_bytes);

/* Adds a copy of the bytes, unless the key is cached already or the budget is exhausted. */
void fm_cache_put(fm_cache *cache, const fm_cache_key *key, const uint8_t *bytes, size_t n_bytes);

/* Whether this process opened the cache. After a fork the child must not use it, as a thread of the
 * parent may have held the lock. */
bool fm_cache_is_ours(const fm_cache *cache);

#endif
