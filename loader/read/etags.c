#define _GNU_SOURCE
#include "read/etags.h"

#include <stdio.h>

/* FNV-1a; its last bits are mixed for the place in the table. */
static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001B3u;
    return hash ^ hash >> 32;
}

const char *fm_etags_find(const fm_etags *etags, const char *name) {
    const uint64_t hash = hash_of(name);
    const size_t place = hash % FM_ETAGS_ENTRIES;
    const char *const etag = etags->entries[place].etag;
    return *etag && etags->entries[place].hash == hash ? etag : NULL;
}

void fm_etags_add(fm_etags *etags, const char *name, const char *etag) {
    const uint64_t hash = hash_of(name);
    const size_t place = hash % FM_ETAGS_ENTRIES;
    etags->entries[place].hash = hash;
    snprintf(etags->entries[place].etag, FM_ETAG_BYTES, "%s", etag);
}
