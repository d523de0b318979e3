/*
 * The files of which ranges are read, kept open: a bounded table by path, of which the least
 * recently used one that nobody reads is closed for a new one.
 *
 * Not thread-safe: the reader's lock covers it. It opens nothing, and closes nothing but in
 * fm_shards_fini(): both may take a round trip to the storage, and are the caller's, unlocked.
 */
#ifndef FM_READ_SHARDS_H
#define FM_READ_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

#define FM_SHARDS_MOST 256
/* A power of two. */
#define FM_SHARDS_BUCKETS 256

typedef struct fm_shard {
    struct fm_shard *next;          /* of its bucket, or unused */
    struct fm_shard *older, *newer; /* by use; of those in the table */
    uint64_t hash;
    char *path;       /* owned */
    size_t path_room; /* bytes that it points to */
    int file;         /* -1: it is being opened */
    uint32_t n_users; /* reads that have it */
    bool listed;      /* in the table; false: the last user's release ends it */
    void *waiting;    /* the caller's: who waits for its being opened */
} fm_shard;

typedef struct fm_shards {
    fm_shard *all; /* [limit] */
    uint32_t limit;
    fm_shard *unused;
    fm_shard *oldest, *newest;
    fm_shard *buckets[FM_SHARDS_BUCKETS];
} fm_shards;

/*
 * Room for FM_SHARDS_MOST files, or an eighth of what RLIMIT_NOFILE allows, at least one. FM_OK or
 * FM_ERR_NOMEM; after a failure nothing is held, and fm_shards_fini() may be called all the same.
 */
int fm_shards_init(fm_shards *shards, fm_mem_counter *counter);
/* Closes all files, also those in use. Accepts a table that is all zero. */
void fm_shards_fini(fm_shards *shards);

/* The path's entry, with one user more; NULL: it has none. */
fm_shard *fm_shards_find(fm_shards *shards, const char *path);
/*
 * An entry for a path that has none, with one user and no file yet. Where the table is full, its
 * least recently used entry without a user makes room, and *to_close gets its file, to be closed by
 * the caller; else -1. NULL: all are in use, or there is no memory.
 */
fm_shard *fm_shards_add(fm_shards *shards, const char *path, fm_mem_counter *counter,
                        int *to_close);
/* Nobody finds the entry any more: its file can't be opened, or not be read. It lasts until its
 * last user releases it. */
void fm_shards_unlist(fm_shards *shards, fm_shard *shard);
/* One user less. The file that the caller is to close, or -1. */
int fm_shards_release(fm_shards *shards, fm_shard *shard);
/* Takes the least recently used entry without a user out: its file, to be closed, or -1. */
int fm_shards_evict(fm_shards *shards);

#endif
