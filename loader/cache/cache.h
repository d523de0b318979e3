/*
 * Encoded files, or ranges of them, in memory by path: fm_cache of feedmill.h from the loader's
 * side.
 *
 * First come, first kept: nothing is ever dropped. Each epoch of a shuffled training asks for every
 * file once, so whatever is kept is hit once an epoch, and the hit rate is the share that fits. A
 * cache that drops the least recently used file would drop most of them shortly before their turn.
 *
 * Encoded bytes, not pixels, as they save more per byte where storage is what is waited for: of 400
 * photographs (109 KB encoded, 602 KB of pixels) a KB of files saved one and a half times as much,
 * of reads from a cold local disk, as a KB of pixels, of such reads and decoding together (each of
 * three rounds, one file at a time). With storage further away the difference grows; with files in
 * the page cache only pixels would save anything, and then a whole set of them would have to fit.
 *
 * Any thread may call any of these at any time until fm_cache_close(). Bytes that were handed out
 * stay where they are until then.
 */
#ifndef FM_CACHE_CACHE_H
#define FM_CACHE_CACHE_H

#include "base/error.h"

/* What is kept: a file, or so many of its bytes from an offset on. */
typedef struct fm_cache_key {
    const char *path;
    uint64_t offset_bytes, range_bytes; /* 0, 0: the whole file */
} fm_cache_key;

/* The key's bytes, 64-byte aligned, and how many; NULL: they are not here. */
const uint8_t *fm_cache_get(fm_cache *cache, const fm_cache_key *key, size_t *n_bytes);

/* Keeps a copy, if the budget has room for it and it is not here yet. */
void fm_cache_put(fm_cache *cache, const fm_cache_key *key, const uint8_t *bytes, size_t n_bytes);

/* Whether this process opened it: the lock of a parent's may be held for ever. */
bool fm_cache_is_ours(const fm_cache *cache);

#endif
