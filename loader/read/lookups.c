#define _GNU_SOURCE
#include "read/lookups.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "read/remote.h"

/* ---- keys ------------------------------------------------------------------------------------ */

/* Names of buckets mean other objects at another endpoint, or in the regions of another country. */
static void name_store(const char *endpoint, const char *region, char out[FM_STORE_BYTES]) {
    uint8_t digest[FM_DIGEST_BYTES];
    fm_text text = {0};
    *out = 0;
    fm_text_format(&text, "%s %s", endpoint ? endpoint : "", region ? region : "");
    if (!text.failed && fm_digest_sha256(text.chars, text.n, digest))
        fm_disk_folder_name(digest, out);
    fm_text_fini(&text);
}

void fm_lookups_init(fm_lookups *lookups, const fm_remote_config *settings) {
    name_store(settings->endpoint_url, settings->region, lookups->s3_store);
    name_store(settings->gs_endpoint_url, "", lookups->gs_store);
}

static bool make_key(const fm_lookups *lookups, fm_reader_op *op) {
    const bool is_s3 = !strncasecmp(op->path, "s3:", 3), is_gs = !strncasecmp(op->path, "gs:", 3);
    const char *const store = is_s3 ? lookups->s3_store : is_gs ? lookups->gs_store : "any";
    const fm_disk_key key = {op->path, op->offset_bytes, op->range_bytes, store};
    return *store && fm_disk_key_digest(&key, op->disk_key);
}

/* ---- versions -------------------------------------------------------------------------------- */

/* Whether a range's entry is of the version that the object's other ranges have. *is_known: there
 * are such. With `pins` the entry's version becomes that of later ranges. */
static bool fits_others(fm_reader *reader, fm_lookups *lookups, const fm_reader_op *op, bool pins,
                        bool *is_known) {
    pthread_mutex_lock(&reader->lock);
    if (op->is_first) fm_etags_forget(&lookups->etags, op->path);
    const char *const known = fm_etags_find(&lookups->etags, op->path);
    const bool fits = !known || !strcmp(known, op->kept_etag);
    *is_known = known != NULL;
    if (!known && pins && *op->kept_etag) fm_etags_add(&lookups->etags, op->path, op->kept_etag);
    pthread_mutex_unlock(&reader->lock);
    return fits;
}

static fm_lookup judge(fm_reader *reader, fm_lookups *lookups, const fm_reader_op *op) {
    const bool checks = fm_disk_cache_checks(reader->config.disk_cache);
    bool is_known = false;
    if (*op->etag) {
        if (strcmp(op->etag, op->kept_etag)) return FM_LOOKUP_MISS;
        /* The version is the wished one, whatever the server has now. */
        if (op->range_bytes) fits_others(reader, lookups, op, true, &is_known);
        return FM_LOOKUP_HIT;
    }
    if (checks && !*op->kept_etag) return FM_LOOKUP_MISS;
    if (!op->range_bytes) return checks ? FM_LOOKUP_CHECK : FM_LOOKUP_HIT;
    if (!fits_others(reader, lookups, op, !checks, &is_known)) return FM_LOOKUP_MISS;
    return checks && !is_known ? FM_LOOKUP_CHECK : FM_LOOKUP_HIT;
}

/* ---- lookups --------------------------------------------------------------------------------- */

typedef struct place {
    fm_reader *reader;
    fm_reader_op *op;
} place;

static bool grow(fm_disk_memory *memory, uint64_t n_bytes) {
    const place *const self = memory->user;
    fm_reader_op *const op = self->op;
    /* What has been read of the entry is copied. */
    op->n_bytes = memory->capacity;
    const bool has_grown = fm_reader_grow_buffer(self->reader, op, n_bytes);
    op->n_bytes = 0;
    if (!has_grown) op->capacity = memory->capacity;
    memory->bytes = op->buffer;
    memory->capacity = op->capacity;
    return has_grown && memory->capacity >= n_bytes;
}

static void fill_first(fm_reader *reader, fm_reader_op *op) {
    pthread_mutex_lock(&reader->lock);
    fm_read_object *const first = op->read ? op->read->first : NULL;
    if (first) {
        snprintf(first->etag, sizeof(first->etag), "%s", op->kept_etag);
        first->object_bytes = op->object_bytes;
    }
    pthread_mutex_unlock(&reader->lock);
}

static fm_lookup take(fm_reader *reader, fm_reader_op *op, fm_lookup found) {
    op->is_kept = found == FM_LOOKUP_CHECK;
    op->replaces = found == FM_LOOKUP_MISS;
    if (found != FM_LOOKUP_HIT) return found;
    fm_lookup_confirm(op);
    if (op->is_first) fill_first(reader, op);
    return found;
}

fm_lookup fm_lookup_find(fm_reader *reader, fm_lookups *lookups, fm_reader_op *op) {
    place self = {reader, op};
    fm_disk_memory memory = {.bytes = op->buffer,
                             .capacity = op->capacity,
                             .most_bytes = reader->config.max_file_bytes,
                             .grow = grow,
                             .user = &self};
    fm_disk_header header;
    op->has_key = make_key(lookups, op);
    if (!op->has_key ||
        !fm_disk_cache_read(reader->config.disk_cache, op->disk_key, &header, &memory))
        return FM_LOOKUP_MISS;
    if (op->range_bytes && op->range_bytes != header.n_bytes) return FM_LOOKUP_MISS;
    op->kept_bytes = header.n_bytes;
    op->object_bytes = header.object_bytes;
    memcpy(op->kept_etag, header.etag, sizeof(op->kept_etag));
    return take(reader, op, judge(reader, lookups, op));
}

fm_lookup fm_lookup_again(fm_reader *reader, fm_lookups *lookups, fm_reader_op *op) {
    return take(reader, op, judge(reader, lookups, op));
}

void fm_lookup_confirm(fm_reader_op *op) {
    op->is_kept = false;
    op->from_disk = true;
    op->n_bytes = op->kept_bytes;
}

void fm_lookup_store(fm_reader *reader, const fm_reader_op *op, const char *etag,
                     uint64_t object_bytes) {
    fm_disk_cache *const cache = reader->config.disk_cache;
    if (!op->has_key || op->from_disk || (fm_disk_cache_checks(cache) && !*etag)) return;
    fm_disk_header header = {.offset_bytes = op->offset_bytes,
                             .range_bytes = op->range_bytes,
                             .object_bytes = op->range_bytes ? object_bytes : op->n_bytes,
                             .n_bytes = op->n_bytes};
    memcpy(header.key, op->disk_key, sizeof(header.key));
    snprintf(header.etag, sizeof(header.etag), "%s", etag);
    fm_disk_cache_put(cache, op->path, &header, op->buffer, op->replaces);
}
