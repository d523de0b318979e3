/*
 * Lookups of objects in the disk cache, by the HTTP reader: what an entry that was found is good
 * for. An entry of another version than the one that the caller wishes, or than that of other
 * ranges of the same object, is of no use.
 */
#ifndef FM_READ_LOOKUPS_H
#define FM_READ_LOOKUPS_H

#include "read/disk_cache.h"
#include "read/etags.h"
#include "read/reader_impl.h"

#define FM_STORE_BYTES (2 * FM_DIGEST_BYTES + 2)

typedef enum fm_lookup {
    FM_LOOKUP_HIT,   /* the object is in the read's buffer; the read is complete */
    FM_LOOKUP_CHECK, /* it is if the server says that the version is current: op->is_kept */
    FM_LOOKUP_MISS
} fm_lookup;

/* What the lookups of a reader share. */
typedef struct fm_lookups {
    fm_etags etags; /* under the reader's lock */
    /* Tell apart stores in which different objects have the same name; constant after open. */
    char s3_store[FM_STORE_BYTES], gs_store[FM_STORE_BYTES];
} fm_lookups;

/* Sets all but the etags. */
void fm_lookups_init(fm_lookups *lookups, const fm_remote_config *settings);
/* On any thread, not locked. */
fm_lookup fm_lookup_find(fm_reader *reader, fm_lookups *lookups, fm_reader_op *op);
/* What is to be done with an entry for which FM_LOOKUP_CHECK was said, now that other ranges of the
 * object may have been read. */
fm_lookup fm_lookup_again(fm_reader *reader, fm_lookups *lookups, fm_reader_op *op);
/* The server has confirmed the entry in the buffer: the read is complete. */
void fm_lookup_confirm(fm_reader_op *op);
/* Stores an object that was fetched completely. etag "": it has no strong one. */
void fm_lookup_store(fm_reader *reader, const fm_reader_op *op, const char *etag,
                     uint64_t object_bytes);

#endif
