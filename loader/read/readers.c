#define _GNU_SOURCE
#include "read/readers.h"

#include <stdio.h>

#include "base/clock.h"
#include "read/remote.h"

/* The share of the buffers that files get beside objects: an eighth of as many reads in flight. */
#define FILES_SHARE 4

int fm_readers_open(fm_readers *out, const fm_reader_config *config, fm_error *error) {
    *out = (fm_readers){.on_done = config->on_done, .user = config->user};
    int status = config->remote ? fm_remote_check_process(config->remote, error) : FM_OK;
    if (status) return status;
    fm_reader_config files = *config;
    files.remote = NULL;
    files.disk_cache = NULL;
    if (config->remote) files.buffer_bytes = (config->buffer_bytes + FILES_SHARE - 1) / FILES_SHARE;
    status = fm_reader_open(&out->files, &files, error);
    if (!status && config->remote) {
        fm_reader_config objects = *config;
        objects.depth = fm_remote_settings(config->remote)->max_requests;
        objects.buffer_bytes = config->buffer_bytes - files.buffer_bytes;
        status = fm_reader_open(&out->objects, &objects, error);
    }
    if (status) fm_readers_close(out);
    return status;
}

/* No reader for these: they end at once. */
static void refuse(const fm_readers *readers, fm_read *list) {
    while (list) {
        fm_read *const read = list;
        list = read->next;
        read->bytes = NULL;
        read->n_bytes = 0;
        read->error = FM_READ_REMOTE;
        if (read->why)
            snprintf(read->why, read->why_bytes,
                     "objects on servers are read only with fm_config.remote, which is not set");
        read->submitted_ns = read->started_ns = read->done_ns = fm_clock_ns();
        read->buffer_wait_ns = 0;
        readers->on_done(readers->user, read);
    }
}

void fm_readers_submit(fm_readers *readers, fm_read *list) {
    fm_read *files = NULL, **files_end = &files, *objects = NULL, **objects_end = &objects;
    for (; list; list = list->next) {
        fm_read ***const end = fm_remote_is_name(list->path) ? &objects_end : &files_end;
        **end = list;
        *end = &list->next;
    }
    *files_end = *objects_end = NULL;
    if (files) fm_reader_submit(readers->files, files);
    if (objects && readers->objects)
        fm_reader_submit(readers->objects, objects);
    else if (objects)
        refuse(readers, objects);
}

void fm_readers_cancel_queued(fm_readers *readers) {
    if (readers->files) fm_reader_cancel_queued(readers->files);
    if (readers->objects) fm_reader_cancel_queued(readers->objects);
}

void fm_readers_return(fm_readers *readers, fm_read *read) {
    if (!read->bytes) return;
    fm_reader_return(fm_remote_is_name(read->path) ? readers->objects : readers->files, read);
}

void fm_readers_stats_get(fm_readers *readers, fm_reader_stats *out) {
    fm_reader_stats more;
    static char *const names[] = {"uring+http", "pread+http"};
    fm_reader_stats_get(readers->files, out);
    if (!readers->objects) return;
    fm_reader_stats_get(readers->objects, &more);
    out->name = names[out->name[0] == 'p'];
    out->n_files += more.n_files;
    out->n_opens += more.n_opens;
    out->n_bytes += more.n_bytes;
    out->n_errors += more.n_errors;
    out->read_ns += more.read_ns;
    out->depth += more.depth;
    out->n_threads += more.n_threads;
    out->n_requests = more.n_requests;
    out->n_retries = more.n_retries;
    out->n_refused = more.n_refused;
    out->fetched_bytes = more.fetched_bytes;
    out->connect_ns = more.connect_ns;
    out->first_byte_ns = more.first_byte_ns;
    out->transfer_ns = more.transfer_ns;
    out->retry_ns = more.retry_ns;
    out->n_disk_hits = more.n_disk_hits;
    out->disk_bytes = more.disk_bytes;
    out->n_disk_misses = more.n_disk_misses;
}

void fm_readers_close(fm_readers *readers) {
    fm_reader_close(&readers->objects);
    fm_reader_close(&readers->files);
}
