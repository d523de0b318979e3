/* What the reader and its backends share: the text of the reason, and the reference count. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "read/reader_impl.h"

void fm_reader_note(fm_reader *reader, const char *format, ...) {
    char *const reason = reader->stats.reason;
    size_t used = strlen(reason);
    const size_t capacity = sizeof(reader->stats.reason);
    if (used) used += (size_t)snprintf(reason + used, capacity - used, "; ");
    if (used >= capacity) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason + used, capacity - used, format, arguments);
    va_end(arguments);
}

void fm_reader_unref(fm_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    const bool last = --reader->n_references == 0;
    pthread_mutex_unlock(&reader->lock);
    if (!last) return;
    if (reader->backend) reader->backend->destroy(reader);
    fm_reader_buffers_fini(reader);
    fm_file_cache_fini(&reader->file_cache);
    fm_mem_free(reader->ops);
    pthread_cond_destroy(&reader->quiet);
    pthread_mutex_destroy(&reader->lock);
    fm_mem_free(reader);
}
