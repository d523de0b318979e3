#define _GNU_SOURCE
#include "read/etags.h"

#include <stdio.h>

/* A name lies in one of so many entries from its hash on. */
#define PROBES 16

/* FNV-1a; its last bits are mixed for the place in the table. */
static uint64_t hash_of(const char *name) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001B3u;
    return hash ^ hash >> 32;
}

/* The entry of a name, or, if there is none, the first unused one, or one to replace. */
static size_t entry_of(const fm_etags *etags, uint64_t hash) {
    size_t unused = FM_ETAGS_ENTRIES;
    for (size_t i = 0; i < PROBES; i++) {
        const size_t at = (hash + i) % FM_ETAGS_ENTRIES;
        const bool is_used = *etags->entries[at].etag;
        if (is_used && etags->entries[at].hash == hash) return at;
        if (!is_used && unused == FM_ETAGS_ENTRIES) unused = at;
    }
    return unused < FM_ETAGS_ENTRIES ? unused : hash % FM_ETAGS_ENTRIES;
}

const char *fm_etags_find(const fm_etags *etags, const char *name) {
    const uint64_t hash = hash_of(name);
    const size_t at = entry_of(etags, hash);
    const char *const etag = etags->entries[at].etag;
    return *etag && etags->entries[at].hash == hash ? etag : NULL;
}

void fm_etags_add(fm_etags *etags, const char *name, const char *etag) {
    const uint64_t hash = hash_of(name);
    const size_t at = entry_of(etags, hash);
    etags->entries[at].hash = hash;
    snprintf(etags->entries[at].etag, FM_ETAG_BYTES, "%s", etag);
}

void fm_etags_forget(fm_etags *etags, const char *name) {
    const uint64_t hash = hash_of(name);
    const size_t at = entry_of(etags, hash);
    if (etags->entries[at].hash == hash) *etags->entries[at].etag = 0;
}
