/*
 * The readers of a loader: that of files and, if there is an fm_remote, that of objects; and, if
 * there is an fm_custom_reader, that of names for it. A read goes to the one that its path asks
 * for. Each call is that of reader.h on all.
 */
#ifndef FM_READ_READERS_H
#define FM_READ_READERS_H

#include "read/reader.h"

typedef struct fm_readers {
    fm_reader *files;   /* NULL: not open */
    fm_reader *objects; /* NULL: names of objects are refused */
    fm_reader *custom;  /* NULL: names for it are paths of files */
    void (*on_done)(void *user, fm_read *read);
    void *user;
} fm_readers;

/* config->remote and custom.read are NULL for files alone, which then cost what fm_reader_open()
 * does. Otherwise the others get most of config->buffer_bytes, as more of these are in flight or
 * take longer. *out is zeroed after an error. */
int fm_readers_open(fm_readers *out, const fm_reader_config *config, fm_error *error);
void fm_readers_submit(fm_readers *readers, fm_read *list);
void fm_readers_cancel_queued(fm_readers *readers);
void fm_readers_return(fm_readers *readers, fm_read *read);
/* Sums, and all names. */
void fm_readers_stats_get(fm_readers *readers, fm_reader_stats *out);
void fm_readers_close(fm_readers *readers);

#endif
