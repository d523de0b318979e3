/*
 * The ETags of objects of which ranges are read, such as the shards of a pack, so that a shard that
 * is replaced while it is read does not yield a mixture of both. A table for some thousand shards:
 * an object that is pushed out of it is taken as it is found the next time. Not thread-safe: the
 * reader's lock guards it.
 */
#ifndef FM_READ_ETAGS_H
#define FM_READ_ETAGS_H

#include "read/response.h"

#define FM_ETAGS_ENTRIES 2048

typedef struct fm_etags {
    struct {
        uint64_t
            hash; /* of the name; a collision, which is as good as impossible, costs an error */
        char etag[FM_ETAG_BYTES]; /* "": unused */
    } entries[FM_ETAGS_ENTRIES];
} fm_etags;

/* The ETag, valid until the next fm_etags_add(); or NULL. */
const char *fm_etags_find(const fm_etags *etags, const char *name);
void fm_etags_add(fm_etags *etags, const char *name, const char *etag);
void fm_etags_forget(fm_etags *etags, const char *name);

#endif
