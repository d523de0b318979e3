/*
 * An LRU cache of open files, for files of which ranges are read. The number of files is bounded: a
 * new file replaces the least recently used one that no read uses.
 *
 * Not thread-safe: the owner's lock covers every call. The cache opens no files, and closes files
 * only in fm_file_cache_fini(). The caller opens and closes them without the lock, as both may take
 * a round trip to the storage.
 */
#ifndef FM_READ_FILE_CACHE_H
#define FM_READ_FILE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

#define FM_FILE_CACHE_MAX 256
/* A power of two. */
#define FM_FILE_CACHE_BUCKETS 256

/* One open file, by path. */
typedef struct fm_cached_file {
    struct fm_cached_file *next;          /* in its hash bucket, or in the list of unused entries */
    struct fm_cached_file *older, *newer; /* listed entries in order of use */
    uint64_t hash;
    char *path;           /* owned */
    size_t path_capacity; /* bytes allocated for `path` */
    int file;             /* descriptor; -1 while it is being opened */
    uint32_t n_users;     /* reads that use the entry */
    bool listed;          /* find() sees it; if false, the last release() retires it */
    void *waiting;        /* for the caller: the reads that wait until the file is open */
} fm_cached_file;

typedef struct fm_file_cache {
    fm_cached_file *all; /* [limit] */
    uint32_t limit;
    fm_cached_file *unused;
    fm_cached_file *oldest, *newest; /* by use */
    fm_cached_file *buckets[FM_FILE_CACHE_BUCKETS];
} fm_file_cache;

/*
 * Makes a cache for FM_FILE_CACHE_MAX files, or an eighth of RLIMIT_NOFILE if that is less, at
 * least one. FM_OK or FM_ERR_NOMEM. fm_file_cache_fini() may be called also after a failure.
 */
int fm_file_cache_init(fm_file_cache *cache, fm_mem_counter *counter);
/* Closes all files, also those in use. Accepts a zeroed cache. */
void fm_file_cache_fini(fm_file_cache *cache);

/* Returns the entry of `path` and counts one more user of it, or NULL if there is none. */
fm_cached_file *fm_file_cache_find(fm_file_cache *cache, const char *path);
/*
 * Adds an entry for a path that has none, with one user and no file yet. In a full cache it
 * replaces the least recently used entry without users: the caller must close *to_close, which is
 * that entry's file, or -1. Returns NULL if all entries are in use or memory is short.
 */
fm_cached_file *fm_file_cache_add(fm_file_cache *cache, const char *path, fm_mem_counter *counter,
                                  int *to_close);
/* Hides an entry from find(), because its file can't be opened or read. The entry lasts until its
 * last user releases it. Does nothing if it is hidden already. */
void fm_file_cache_unlist(fm_file_cache *cache, fm_cached_file *entry);
/* Counts one user less. Returns the file that the caller must close, or -1. */
int fm_file_cache_release(fm_file_cache *cache, fm_cached_file *entry);
/* Removes the least recently used entry without users. Returns its file, which the caller must
 * close, or -1 if all are in use. */
int fm_file_cache_evict(fm_file_cache *cache);

#endif
