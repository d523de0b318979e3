/*
 * The folder of a disk cache: where its files are, and how much of the limit they take. What is in
 * the files is disk_entry.h's.
 *
 *     state       the counters, and two locks: see disk_folder.c
 *     tmp/        files that are being written or removed
 *     00/ ... ff/ entries, named by their key's digest in hexadecimal digits
 *
 * Processes share the counters. A file's bytes are reserved before it is written, and given back
 * after it is removed, so that the files of all processes together never exceed the limit. Where a
 * process is killed between, the counters are too high until the folder is next opened while no
 * other process has it open; then the files are counted.
 *
 * Thread-safe.
 */
#ifndef FM_READ_DISK_FOLDER_H
#define FM_READ_DISK_FOLDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/digest.h"
#include "base/error.h"

/* "ab/cdef..." with its terminating 0. */
#define FM_DISK_NAME_BYTES (2 * FM_DIGEST_BYTES + 2)

typedef struct fm_disk_folder {
    int dir, state; /* constant after open; the descriptors keep their locks in forked children */
    bool lru;
    uint64_t limit_bytes;
    pthread_mutex_t lock;     /* guards the state file between threads */
    pthread_mutex_t evicting; /* so that two threads do not make room for the same file */
    /* The counters when this process last used the state file, for who must not wait for a disk. */
    _Atomic uint64_t seen_bytes, seen_entries;
} fm_disk_folder;

/* The counters, as the state file has them. */
typedef struct fm_disk_counts {
    uint64_t used_bytes, n_entries;
    uint64_t n_busy; /* changes that have begun and not ended; more after a process was killed */
    uint64_t limit_bytes;
    uint32_t lru;
    uint32_t next_folder; /* that is searched for entries to remove */
} fm_disk_counts;

/* limit_bytes 0: only looks at a folder that exists, and keeps its settings. */
int fm_disk_folder_open(fm_disk_folder *folder, const char *path, uint64_t limit_bytes, bool lru,
                        fm_error *error);
void fm_disk_folder_close(fm_disk_folder *folder);
/* False: the state can't be read. */
bool fm_disk_folder_counts(fm_disk_folder *folder, fm_disk_counts *out);

/* The name of an entry's file in the folder. */
void fm_disk_folder_name(const uint8_t digest[FM_DIGEST_BYTES], char out[FM_DISK_NAME_BYTES]);
/* What a file of n_bytes counts for the limit. */
uint64_t fm_disk_folder_file_bytes(uint64_t n_bytes);

/* Reserves the bytes of a new file, with lru by removing entries. 0; ENOSPC: the cache is full; or
 * another errno. After 0 the caller must call fm_disk_folder_settle(). */
int fm_disk_folder_reserve(fm_disk_folder *folder, uint64_t n_bytes);
void fm_disk_folder_settle(fm_disk_folder *folder, uint64_t n_bytes, bool is_stored);
/* Creates a file in tmp/, whose name is written to *name; or a negative errno. */
int fm_disk_folder_create(fm_disk_folder *folder, char name[FM_DISK_NAME_BYTES]);
/* Makes a complete file of tmp/ an entry, unless there is one: EEXIST. Or another errno. The file
 * is gone from tmp/ in any case. */
int fm_disk_folder_publish(fm_disk_folder *folder, const char *temporary, const char *name);
/* Removes an entry, if it is there. is_damaged: its size may not be what was reserved for it, so
 * the files are counted when the folder is next opened while no other process has it open. */
void fm_disk_folder_remove(fm_disk_folder *folder, const char *name, bool is_damaged);

/* Calls visit() with the name of each entry's file, until it returns a negative number, which is
 * returned; a positive one removes the entry. */
int fm_disk_folder_each(fm_disk_folder *folder, int (*visit)(void *user, const char *name),
                        void *user);

#endif
