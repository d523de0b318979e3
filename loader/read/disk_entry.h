/*
 * The file of an entry of the disk cache: a header, the object's bytes, and its name. The header
 * and the bytes have checksums, so that a file that is damaged, or of which a part was lost in a
 * crash, is noticed when it is read. Byte order and layout are this machine's.
 */
#ifndef FM_READ_DISK_ENTRY_H
#define FM_READ_DISK_ENTRY_H

#include "read/disk_folder.h"
#include "read/reader.h"

typedef struct fm_disk_header {
    char magic[8];
    uint8_t key[FM_DIGEST_BYTES]; /* also the file's name */
    uint64_t offset_bytes, range_bytes;
    uint64_t object_bytes; /* UINT64_MAX: not known */
    uint64_t n_bytes, bytes_checksum;
    uint64_t name_bytes, name_checksum; /* the name follows the bytes, without a terminating 0 */
    char etag[FM_ETAG_BYTES];           /* "": none */
    uint64_t checksum;                  /* of all before it */
} fm_disk_header;

/* Size of an entry's file. */
static inline uint64_t fm_disk_entry_bytes(const fm_disk_header *header) {
    return sizeof(*header) + header->n_bytes + header->name_bytes;
}

/* Writes all, the header with its magic and checksums. 0 or an errno. */
int fm_disk_entry_write(int file, const fm_disk_header *header, const uint8_t *bytes,
                        const char *name);

/* Where an entry's bytes go. */
typedef struct fm_disk_memory {
    uint8_t *bytes;
    uint64_t capacity;
    uint64_t most_bytes; /* longer entries are not read */
    /* Makes `bytes` and `capacity` large enough; false: no memory. May be NULL. */
    bool (*grow)(struct fm_disk_memory *memory, uint64_t n_bytes);
    void *user;
} fm_disk_memory;

typedef enum fm_disk_found {
    FM_DISK_HIT,
    FM_DISK_MISS,   /* not there, or it can't be read now */
    FM_DISK_DAMAGED /* the file is of no use */
} fm_disk_found;

/* Reads an open entry, whose checksums are right if it is a hit. */
fm_disk_found fm_disk_entry_read(int file, const uint8_t key[FM_DIGEST_BYTES],
                                 fm_disk_header *header, fm_disk_memory *memory);
/* Reads the header and the name, of at most name_capacity - 1 bytes; and, if verifies, checks the
 * bytes. */
fm_disk_found fm_disk_entry_describe(int file, fm_disk_header *header, char *name,
                                     size_t name_capacity, bool verifies);

#endif
