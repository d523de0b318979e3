/*
 * A cache of objects in a folder of a local disk, for loaders that read from object stores and web
 * servers (feedmill/remote.h). Local files are not cached.
 *
 * Each whole object, or range of one, that was read is stored as an entry; later reads, also those
 * of other processes and of later runs, take it from there. Any number of processes may use a
 * folder at the same time; they share its bound. Entries have checksums: one that is damaged, or
 * was not completely written before a crash, is removed and read from its server again. A store
 * that fails, as on a full disk, is counted, and is no error.
 *
 * Versions. An entry has the object's ETag. It is not used for a sample that names another ETag
 * (fm_sample.etag). By default an object is otherwise taken to never change under its name, and an
 * entry is used without asking the server. With `check` the server is asked, by a request with
 * If-None-Match, before each use of a whole object, and before the first use of an object's ranges
 * by a loader; then objects without a strong ETag are not stored.
 *
 * Who may write to the folder decides what is read. It is created for its owner only. Entries hold
 * the names of their objects, without users, queries and fragments of URLs.
 */
#ifndef FEEDMILL_DISK_CACHE_H
#define FEEDMILL_DISK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fm_disk_cache fm_disk_cache;

typedef struct fm_disk_cache_config {
    size_t struct_bytes;  /* sizeof(fm_disk_cache_config), set by fm_disk_cache_config_init() */
    const char *path;     /* the folder; created if only it is missing, and not its parent */
    uint64_t limit_bytes; /* of all entries' files, each rounded up to 4 KiB */
    bool lru;   /* full: removes what was used longest ago, to some minutes; default false: stores
                   nothing more, which gives more hits where each epoch reads everything */
    bool check; /* asks the server whether an entry is still valid; default false */
} fm_disk_cache_config;

typedef struct fm_disk_cache_usage {
    uint64_t n_entries, used_bytes; /* of the folder, by all processes, when it was last written to
                                       by this one */
    uint64_t limit_bytes;           /* of a walk: the limit of who opened the folder last */
    bool lru;
    /* Of this fm_disk_cache: */
    uint64_t n_stored, stored_bytes;
    uint64_t n_refused; /* the cache was full, or the disk too slow */
    uint64_t n_failed;  /* could not be written: the disk is full, for example */
    uint64_t n_damaged; /* entries that were found to be damaged, and were removed */
} fm_disk_cache_usage;

FM_API void fm_disk_cache_config_init(fm_disk_cache_config *config);
/*
 * Opens a folder, and starts the threads that write. After a crash the folder's files are counted,
 * which takes seconds for millions. FM_ERR_ARGUMENT (the path is not absolute, no folder, or a
 * folder that has other files and is no cache; limit_bytes is 0), FM_ERR_READ (a system call has
 * failed; the message says which), FM_ERR_NOMEM, FM_ERR_THREAD, FM_ERR_UNAVAILABLE (built without
 * OpenSSL).
 */
FM_API FM_CHECK_RESULT int fm_disk_cache_open(fm_disk_cache **out,
                                              const fm_disk_cache_config *config, fm_error *error);
/* Any thread. In a forked child everything is 0: the cache is the parent's. */
FM_API void fm_disk_cache_usage_get(fm_disk_cache *cache, fm_disk_cache_usage *out);
/* Closes the cache, once what was read is written, for which it waits up to 10 s; all loaders that
 * use it must be closed before. Does nothing in a forked child. Accepts NULL and a pointer to NULL;
 * sets *cache to NULL. */
FM_API void fm_disk_cache_close(fm_disk_cache **cache);

/* An entry of a folder. */
typedef struct fm_disk_cache_entry {
    const char *name;                   /* without user, query and fragment; "": not readable */
    const char *etag;                   /* "": none */
    uint64_t offset_bytes, range_bytes; /* 0, 0: the whole object */
    uint64_t n_bytes;                   /* of the object or range */
    uint64_t file_bytes;                /* that count for the limit */
    int64_t used_s;                     /* when it was stored or, with lru, used; Unix time */
    bool is_damaged;                    /* its bytes are compared only if `verify` is set */
} fm_disk_cache_entry;

/*
 * Calls visit() with each entry of a folder, also while others use it: a negative result ends the
 * walk, and is returned; 0 keeps the entry; a positive one removes it. The strings are valid during
 * visit(). *usage, unless NULL, is that of the folder before the walk. FM_ERR_ARGUMENT (no disk
 * cache), FM_ERR_READ, FM_ERR_NOMEM.
 */
FM_API FM_CHECK_RESULT int
fm_disk_cache_walk(const char *path, bool verify,
                   int (*visit)(void *user, const fm_disk_cache_entry *entry), void *user,
                   fm_disk_cache_usage *usage, fm_error *error);

#ifdef __cplusplus
}
#endif
#endif
