#define _GNU_SOURCE
#include "read/readers.h"

#include <stdio.h>

#include "base/clock.h"
#include "read/remote.h"

/* The share of the buffers that files get beside objects: an eighth of as many reads in flight. */
#define FILES_SHARE 4

int fm_readers_open(fm_readers *out, const fm_reader_config *config, fm_error *error) {
    *out = (fm_readers){.on_done = config->on_done, .user = config->user};
    const bool has_custom = config->custom.read != NULL, has_others = config->remote || has_custom;
    int status = config->remote ? fm_remote_check_process(config->remote, error) : FM_OK;
    if (status) return status;
    fm_reader_config files = *config;
    files.remote = NULL;
    files.disk_cache = NULL;
    files.custom = (fm_custom_reader){0};
    if (has_others) files.buffer_bytes = (config->buffer_bytes + FILES_SHARE - 1) / FILES_SHARE;
    status = fm_reader_open(&out->files, &files, error);
    fm_reader_config others = files;
    others.buffer_bytes = config->buffer_bytes - files.buffer_bytes;
    if (config->remote && has_custom) others.buffer_bytes = (others.buffer_bytes + 1) / 2;
    if (!status && config->remote) {
        fm_reader_config objects = others;
        objects.remote = config->remote;
        objects.disk_cache = config->disk_cache;
        objects.depth = fm_remote_settings(config->remote)->max_requests;
        status = fm_reader_open(&out->objects, &objects, error);
    }
    if (!status && has_custom) {
        others.custom = config->custom;
        others.depth = config->custom.n_threads;
        status = fm_reader_open(&out->custom, &others, error);
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
        read->times = (fm_read_times){0};
        readers->on_done(readers->user, read);
    }
}

/* The list that a path belongs to: 0: files, 1: objects, 2: custom. */
static int list_of(const fm_readers *readers, const char *path) {
    if (fm_remote_is_name(path)) return 1;
    return readers->custom && fm_custom_is_name(path) ? 2 : 0;
}

void fm_readers_submit(fm_readers *readers, fm_read *list) {
    fm_reader *const by_list[] = {readers->files, readers->objects, readers->custom};
    fm_read *lists[3], **ends[3] = {&lists[0], &lists[1], &lists[2]};
    for (; list; list = list->next) {
        fm_read ***const end = &ends[list_of(readers, list->path)];
        **end = list;
        *end = &list->next;
    }
    for (int i = 0; i < 3; i++) *ends[i] = NULL;
    for (int i = 0; i < 3; i++) {
        if (lists[i] && by_list[i])
            fm_reader_submit(by_list[i], lists[i]);
        else if (lists[i])
            refuse(readers, lists[i]);
    }
}

void fm_readers_cancel_queued(fm_readers *readers) {
    if (readers->files) fm_reader_cancel_queued(readers->files);
    if (readers->objects) fm_reader_cancel_queued(readers->objects);
    if (readers->custom) fm_reader_cancel_queued(readers->custom);
}

void fm_readers_return(fm_readers *readers, fm_read *read) {
    fm_reader *const by_list[] = {readers->files, readers->objects, readers->custom};
    if (read->bytes) fm_reader_return(by_list[list_of(readers, read->path)], read);
}

/* Adds what both kinds of readers count. */
static void add_stats(const fm_reader_stats *more, fm_reader_stats *out) {
    out->n_files += more->n_files;
    out->n_opens += more->n_opens;
    out->n_bytes += more->n_bytes;
    out->n_errors += more->n_errors;
    out->read_ns += more->read_ns;
    out->depth += more->depth;
    out->n_threads += more->n_threads;
}

void fm_readers_stats_get(fm_readers *readers, fm_reader_stats *out) {
    static char *const names[2][4] = {{"uring", "uring+http", "uring+custom", "uring+http+custom"},
                                      {"pread", "pread+http", "pread+custom", "pread+http+custom"}};
    fm_reader_stats more;
    fm_reader_stats_get(readers->files, out);
    out->name =
        names[out->name[0] == 'p'][(readers->objects != NULL) + 2 * (readers->custom != NULL)];
    if (readers->custom) {
        fm_reader_stats_get(readers->custom, &more);
        add_stats(&more, out);
    }
    if (!readers->objects) return;
    fm_reader_stats_get(readers->objects, &more);
    add_stats(&more, out);
    out->n_requests = more.n_requests;
    out->n_retries = more.n_retries;
    out->n_refused = more.n_refused;
    out->n_hedged = more.n_hedged;
    out->n_shared = more.n_shared;
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
    fm_reader_close(&readers->custom);
    fm_reader_close(&readers->objects);
    fm_reader_close(&readers->files);
}
