/*
 * What the readers use of fm_disk_cache (feedmill/disk_cache.h): entries are looked up on the
 * reader's threads, and written by threads of the cache, from copies of the objects' bytes, so that
 * a slow disk delays no sample. What waits to be written is found by lookups, too. If too much
 * waits, further objects are not stored.
 *
 *     disk_folder.c   the folder, and the bound that processes share
 *     disk_entry.c    the file of an entry
 *     disk_cache.c    the queue of what is to be written, and lookups
 */
#ifndef FM_READ_DISK_CACHE_H
#define FM_READ_DISK_CACHE_H

#include "feedmill/disk_cache.h"
#include "read/disk_entry.h"

/* Whether this process opened the cache; a forked child must not use it. */
bool fm_disk_cache_is_ours(const fm_disk_cache *cache);
/* Whether entries are used only after their server was asked. */
bool fm_disk_cache_checks(const fm_disk_cache *cache);
/* A reader's threads may be stuck in a lookup when the cache is closed, so each reader holds a
 * reference. */
void fm_disk_cache_ref(fm_disk_cache *cache);
void fm_disk_cache_unref(fm_disk_cache *cache);

/* An object, or a range of it. */
typedef struct fm_disk_key {
    const char *name;
    uint64_t offset_bytes, range_bytes; /* 0, 0: the whole object */
    const char *store; /* tells apart stores in which different objects have the same name */
} fm_disk_key;

/* False: there is no SHA-256, or no memory. */
bool fm_disk_key_digest(const fm_disk_key *key, uint8_t out[FM_DIGEST_BYTES]);

/* True: a hit. memory->bytes then begins with the header->n_bytes bytes of the object. */
bool fm_disk_cache_read(fm_disk_cache *cache, const uint8_t digest[FM_DIGEST_BYTES],
                        fm_disk_header *header, fm_disk_memory *memory);
/* Stores a copy of the bytes, later. `header` has the key's digest and ranges, the sizes and the
 * ETag. replaces: an entry that is there is of another version. */
void fm_disk_cache_put(fm_disk_cache *cache, const char *name, const fm_disk_header *header,
                       const uint8_t *bytes, bool replaces);

#endif
