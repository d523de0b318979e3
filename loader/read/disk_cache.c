#define _GNU_SOURCE
#include "read/disk_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "read/remote.h"

#define N_WRITERS 2
#define STACK_BYTES ((size_t)256 << 10)
/* Most bytes that wait to be written. */
#define MAX_WAITING_BYTES ((uint64_t)128 << 20)
#define CLOSE_LIMIT_NS 10000000000u
/* With lru, the time of an entry's last use is written again after so long. */
#define TOUCH_S 600
#define N_BUCKETS 256
#define MAX_NAME_BYTES 4096

/* An entry to be written. Its bytes and its name lie behind it. */
typedef struct job {
    _Alignas(FM_MEM_ALIGN) struct job *next; /* in the queue */
    struct job *next_in_bucket;
    uint32_t n_references; /* under the cache's lock: lookups copy its bytes without */
    bool replaces;
    fm_disk_header header;
    uint8_t *bytes;
    char *name;
} job;

struct fm_disk_cache {
    /* Constant after open. */
    fm_disk_folder folder;
    bool check;
    pid_t pid;
    fm_thread threads[N_WRITERS];

    _Atomic uint64_t n_damaged;
    _Atomic uint32_t n_jobs; /* in buckets; changed under lock */
    pthread_mutex_t lock;    /* guards what follows */
    pthread_cond_t work, ended;
    uint32_t n_references; /* the owner's, and one for each writer and reader */
    uint32_t n_running;    /* writers */
    bool closing, abandoned;
    job *queue, **queue_end;
    job *buckets[N_BUCKETS]; /* all that is not completely written, by the digest's first byte */
    uint64_t waiting_bytes;
    uint64_t n_stored, stored_bytes, n_refused, n_failed;
};

bool fm_disk_cache_is_ours(const fm_disk_cache *cache) { return cache->pid == getpid(); }
bool fm_disk_cache_checks(const fm_disk_cache *cache) { return cache->check; }

bool fm_disk_key_digest(const fm_disk_key *key, uint8_t out[FM_DIGEST_BYTES]) {
    char text[2 * MAX_NAME_BYTES];
    const int n =
        snprintf(text, sizeof(text), "%llu+%llu\n%s\n%s", (unsigned long long)key->offset_bytes,
                 (unsigned long long)key->range_bytes, key->store, key->name);
    return n > 0 && (size_t)n < sizeof(text) && fm_digest_sha256(text, (size_t)n, out);
}

/* ---- what waits to be written ---------------------------------------------------------------- */

static job **bucket_of(fm_disk_cache *cache, const uint8_t digest[FM_DIGEST_BYTES]) {
    return &cache->buckets[digest[0] % N_BUCKETS];
}

static job *find_locked(fm_disk_cache *cache, const uint8_t digest[FM_DIGEST_BYTES]) {
    job *one = *bucket_of(cache, digest);
    while (one && memcmp(one->header.key, digest, FM_DIGEST_BYTES)) one = one->next_in_bucket;
    return one;
}

static void unlist_locked(fm_disk_cache *cache, job *listed) {
    job **link = bucket_of(cache, listed->header.key);
    while (*link != listed) link = &(*link)->next_in_bucket;
    *link = listed->next_in_bucket;
    cache->n_jobs--;
    cache->waiting_bytes -= listed->header.n_bytes;
}

static void unref_job(fm_disk_cache *cache, job *held) {
    pthread_mutex_lock(&cache->lock);
    const bool is_last = --held->n_references == 0;
    pthread_mutex_unlock(&cache->lock);
    if (is_last) fm_mem_free(held);
}

/* Copies an object that waits to be written; false: it does not. */
static bool read_waiting(fm_disk_cache *cache, const uint8_t digest[FM_DIGEST_BYTES],
                         fm_disk_header *header, fm_disk_memory *memory) {
    if (!atomic_load(&cache->n_jobs)) return false;
    pthread_mutex_lock(&cache->lock);
    job *const found = find_locked(cache, digest);
    if (found) found->n_references++;
    pthread_mutex_unlock(&cache->lock);
    if (!found) return false;
    *header = found->header;
    const uint64_t n_bytes = header->n_bytes;
    const bool fits =
        n_bytes <= memory->most_bytes &&
        (n_bytes <= memory->capacity || (memory->grow && memory->grow(memory, n_bytes)));
    if (fits && n_bytes) memcpy(memory->bytes, found->bytes, n_bytes);
    unref_job(cache, found);
    return fits;
}

static job *new_job(const char *name, const fm_disk_header *header, const uint8_t *bytes,
                    bool replaces) {
    char shown[MAX_NAME_BYTES];
    fm_remote_name_shown(name, shown, sizeof(shown));
    const size_t n_name = strlen(shown), n_bytes = header->n_bytes;
    job *const made = fm_mem_alloc(NULL, sizeof(*made) + n_bytes + n_name + 1, 1);
    if (!made) return NULL;
    *made = (job){.n_references = 1, .replaces = replaces, .header = *header};
    made->header.name_bytes = n_name;
    made->bytes = (uint8_t *)(made + 1);
    made->name = (char *)made->bytes + n_bytes;
    if (n_bytes) memcpy(made->bytes, bytes, n_bytes);
    memcpy(made->name, shown, n_name + 1);
    return made;
}

void fm_disk_cache_put(fm_disk_cache *cache, const char *name, const fm_disk_header *header,
                       const uint8_t *bytes, bool replaces) {
    pthread_mutex_lock(&cache->lock);
    const bool is_full = cache->waiting_bytes + header->n_bytes > MAX_WAITING_BYTES;
    cache->n_refused += is_full;
    pthread_mutex_unlock(&cache->lock);
    job *const made = is_full ? NULL : new_job(name, header, bytes, replaces);
    pthread_mutex_lock(&cache->lock);
    const bool is_new = made && !cache->closing && !find_locked(cache, header->key);
    if (is_new) {
        job **const bucket = bucket_of(cache, header->key);
        made->next_in_bucket = *bucket;
        *bucket = made;
        *cache->queue_end = made;
        cache->queue_end = &made->next;
        cache->n_jobs++;
        cache->waiting_bytes += header->n_bytes;
        pthread_cond_signal(&cache->work);
    }
    cache->n_failed += !made && !is_full;
    pthread_mutex_unlock(&cache->lock);
    if (!is_new) fm_mem_free(made);
}

/* ---- the writers ----------------------------------------------------------------------------- */

/* Writes an entry's file and gives it its name. 0 or an errno. */
static int write_entry(fm_disk_cache *cache, job *given) {
    fm_disk_folder *const folder = &cache->folder;
    char temporary[FM_DISK_NAME_BYTES], name[FM_DISK_NAME_BYTES];
    const int file = fm_disk_folder_create(folder, temporary);
    if (file < 0) return -file;
    int error = fm_disk_entry_write(file, &given->header, given->bytes, given->name);
    if (close(file) && !error) error = errno;
    fm_disk_folder_name(given->header.key, name);
    if (error)
        unlinkat(folder->dir, temporary, 0);
    else
        error = fm_disk_folder_publish(folder, temporary, name);
    return error;
}

static void store(fm_disk_cache *cache, job *given) {
    fm_disk_folder *const folder = &cache->folder;
    const uint64_t n_bytes = fm_disk_entry_bytes(&given->header);
    if (given->replaces) {
        char name[FM_DISK_NAME_BYTES];
        fm_disk_folder_name(given->header.key, name);
        fm_disk_folder_remove(folder, name, false);
    }
    int error = fm_disk_folder_reserve(folder, n_bytes);
    const bool is_full = error == ENOSPC;
    if (!error) {
        error = write_entry(cache, given);
        fm_disk_folder_settle(folder, n_bytes, error == 0);
    }
    pthread_mutex_lock(&cache->lock);
    cache->n_stored += error == 0;
    cache->stored_bytes += error == 0 ? given->header.n_bytes : 0;
    cache->n_refused += is_full;
    cache->n_failed += error && !is_full && error != EEXIST;
    pthread_mutex_unlock(&cache->lock);
}

/* The next job, or NULL when the cache is closed. */
static job *next_job_locked(fm_disk_cache *cache) {
    while (!cache->queue && !cache->closing) pthread_cond_wait(&cache->work, &cache->lock);
    job *const next = cache->queue;
    if (!next) return NULL;
    cache->queue = next->next;
    if (!cache->queue) cache->queue_end = &cache->queue;
    return next;
}

static void *writer_main(void *argument) {
    fm_disk_cache *const cache = argument;
    pthread_mutex_lock(&cache->lock);
    for (job *one; (one = next_job_locked(cache));) {
        const bool is_dropped = cache->abandoned;
        pthread_mutex_unlock(&cache->lock);
        if (!is_dropped) store(cache, one);
        pthread_mutex_lock(&cache->lock);
        unlist_locked(cache, one);
        pthread_mutex_unlock(&cache->lock);
        unref_job(cache, one);
        pthread_mutex_lock(&cache->lock);
    }
    cache->n_running--;
    pthread_cond_broadcast(&cache->ended);
    pthread_mutex_unlock(&cache->lock);
    fm_disk_cache_unref(cache);
    return NULL;
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* Notes the use of an entry for lru, if the last note is old. */
static void touch(int file) {
    struct stat found;
    const int64_t now_s = (int64_t)(fm_clock_of(CLOCK_REALTIME) / 1000000000u);
    if (!fstat(file, &found) && found.st_mtime < now_s - TOUCH_S) futimens(file, NULL);
}

bool fm_disk_cache_read(fm_disk_cache *cache, const uint8_t digest[FM_DIGEST_BYTES],
                        fm_disk_header *header, fm_disk_memory *memory) {
    if (read_waiting(cache, digest, header, memory)) return true;
    char name[FM_DISK_NAME_BYTES];
    fm_disk_folder_name(digest, name);
    const int file = openat(cache->folder.dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return false;
    const fm_disk_found found = fm_disk_entry_read(file, digest, header, memory);
    if (found == FM_DISK_HIT && cache->folder.lru) touch(file);
    close(file);
    if (found == FM_DISK_DAMAGED) {
        atomic_fetch_add(&cache->n_damaged, 1);
        fm_disk_folder_remove(&cache->folder, name, true);
    }
    return found == FM_DISK_HIT;
}

/* ---- open and close -------------------------------------------------------------------------- */

void fm_disk_cache_config_init(fm_disk_cache_config *config) {
    *config = (fm_disk_cache_config){.struct_bytes = sizeof(*config)};
}

static int check_config(const fm_disk_cache_config *config, fm_error *error) {
    uint8_t digest[FM_DIGEST_BYTES];
    if (!config || config->struct_bytes != sizeof(*config))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the config was not made by fm_disk_cache_config_init()");
    if (config->limit_bytes == 0)
        return fm_error_set(error, FM_ERR_ARGUMENT, "a disk cache needs a limit above 0 bytes");
    if (!fm_digest_sha256("", 0, digest))
        return fm_error_set(error, FM_ERR_UNAVAILABLE,
                            "feedmill was built without OpenSSL, which a disk cache needs");
    return FM_OK;
}

static int start_writers(fm_disk_cache *cache, fm_error *error) {
    int status = FM_OK;
    pthread_mutex_lock(&cache->lock);
    for (int i = 0; !status && i < N_WRITERS; i++) {
        status =
            fm_thread_start(&cache->threads[i], "fm-store", STACK_BYTES, writer_main, cache, error);
        if (status) break;
        cache->n_references++;
        cache->n_running++;
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

/* False: a lock can't be created, and none is left. */
static bool init_locks(fm_disk_cache *cache) {
    if (pthread_mutex_init(&cache->lock, NULL)) return false;
    if (!fm_cond_init(&cache->work)) {
        if (!fm_cond_init(&cache->ended)) return true;
        pthread_cond_destroy(&cache->work);
    }
    pthread_mutex_destroy(&cache->lock);
    return false;
}

int fm_disk_cache_open(fm_disk_cache **out, const fm_disk_cache_config *config, fm_error *error) {
    fm_error_clear(error);
    if (!out) return fm_error_set(error, FM_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    int status = check_config(config, error);
    if (status) return status;
    fm_disk_cache *cache = fm_mem_zalloc(NULL, 1, sizeof(*cache));
    if (!cache) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a disk cache");
    if (!init_locks(cache)) {
        fm_mem_free(cache);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a lock");
    }
    cache->folder.dir = cache->folder.state = -1;
    cache->check = config->check;
    cache->pid = getpid();
    cache->queue_end = &cache->queue;
    cache->n_references = 1;
    status =
        fm_disk_folder_open(&cache->folder, config->path, config->limit_bytes, config->lru, error);
    if (!status) {
        status = start_writers(cache, error);
        if (!status) {
            *out = cache;
            return FM_OK;
        }
        fm_disk_cache_close(&cache);
        return status;
    }
    pthread_cond_destroy(&cache->ended);
    pthread_cond_destroy(&cache->work);
    pthread_mutex_destroy(&cache->lock);
    fm_mem_free(cache);
    return status;
}

void fm_disk_cache_ref(fm_disk_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    cache->n_references++;
    pthread_mutex_unlock(&cache->lock);
}

void fm_disk_cache_unref(fm_disk_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    const bool is_last = --cache->n_references == 0;
    pthread_mutex_unlock(&cache->lock);
    if (!is_last) return;
    fm_disk_folder_close(&cache->folder);
    pthread_cond_destroy(&cache->ended);
    pthread_cond_destroy(&cache->work);
    pthread_mutex_destroy(&cache->lock);
    fm_mem_free(cache);
}

void fm_disk_cache_close(fm_disk_cache **pointer) {
    if (!pointer || !*pointer) return;
    fm_disk_cache *const cache = *pointer;
    *pointer = NULL;
    /* A forked child has none of the threads; the parent's locks may be held. */
    if (!fm_disk_cache_is_ours(cache)) return;
    const uint64_t deadline_ns = fm_clock_ns() + CLOSE_LIMIT_NS;
    pthread_mutex_lock(&cache->lock);
    cache->closing = true;
    pthread_cond_broadcast(&cache->work);
    while (cache->n_running && fm_clock_ns() < deadline_ns)
        fm_cond_wait_until(&cache->ended, &cache->lock, deadline_ns);
    cache->abandoned = true;
    const bool has_ended = cache->n_running == 0;
    pthread_mutex_unlock(&cache->lock);
    for (int i = 0; i < N_WRITERS; i++) {
        if (has_ended)
            fm_thread_join(&cache->threads[i]);
        else
            fm_thread_detach(&cache->threads[i]);
    }
    fm_disk_cache_unref(cache);
}

static void fill_usage(const fm_disk_counts *counts, fm_disk_cache_usage *out) {
    *out = (fm_disk_cache_usage){.n_entries = counts->n_entries,
                                 .used_bytes = counts->used_bytes,
                                 .limit_bytes = counts->limit_bytes,
                                 .lru = counts->lru != 0};
}

void fm_disk_cache_usage_get(fm_disk_cache *cache, fm_disk_cache_usage *out) {
    *out = (fm_disk_cache_usage){0};
    if (!fm_disk_cache_is_ours(cache)) return;
    const fm_disk_folder *const folder = &cache->folder;
    out->n_entries = atomic_load_explicit(&folder->seen_entries, memory_order_relaxed);
    out->used_bytes = atomic_load_explicit(&folder->seen_bytes, memory_order_relaxed);
    out->limit_bytes = folder->limit_bytes;
    out->lru = folder->lru;
    out->n_damaged = atomic_load(&cache->n_damaged);
    pthread_mutex_lock(&cache->lock);
    out->n_stored = cache->n_stored;
    out->stored_bytes = cache->stored_bytes;
    out->n_refused = cache->n_refused;
    out->n_failed = cache->n_failed;
    pthread_mutex_unlock(&cache->lock);
}

/* ---- showing and clearing -------------------------------------------------------------------- */

typedef struct walk {
    fm_disk_folder *folder;
    bool verify;
    int (*visit)(void *user, const fm_disk_cache_entry *entry);
    void *user;
} walk;

static int visit_file(void *user, const char *file_name) {
    const walk *const self = user;
    fm_disk_header header = {0};
    struct stat found;
    char name[MAX_NAME_BYTES];
    const int file = openat(self->folder->dir, file_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return 0; /* removed by another process, for example */
    const int code = fstat(file, &found);
    const fm_disk_found what =
        fm_disk_entry_describe(file, &header, name, sizeof(name), self->verify);
    close(file);
    if (code) return 0;
    const bool is_readable = what == FM_DISK_HIT;
    const fm_disk_cache_entry entry = {
        .name = is_readable ? name : "",
        .etag = is_readable ? header.etag : "",
        .offset_bytes = is_readable ? header.offset_bytes : 0,
        .range_bytes = is_readable ? header.range_bytes : 0,
        .n_bytes = is_readable ? header.n_bytes : 0,
        .file_bytes = fm_disk_folder_file_bytes((uint64_t)found.st_size),
        .used_s = found.st_mtime,
        .is_damaged = what == FM_DISK_DAMAGED,
    };
    return self->visit(self->user, &entry);
}

int fm_disk_cache_walk(const char *path, bool verify,
                       int (*visit)(void *user, const fm_disk_cache_entry *entry), void *user,
                       fm_disk_cache_usage *usage, fm_error *error) {
    fm_disk_folder folder;
    fm_disk_counts counts;
    fm_error_clear(error);
    int status = fm_disk_folder_open(&folder, path, 0, false, error);
    if (status) return status;
    fm_disk_folder_counts(&folder, &counts);
    if (usage) fill_usage(&counts, usage);
    walk self = {.folder = &folder, .verify = verify, .visit = visit, .user = user};
    status = fm_disk_folder_each(&folder, visit_file, &self);
    fm_disk_folder_close(&folder);
    return status;
}
