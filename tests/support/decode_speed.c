/*
 * Decoding of another speed, for builds with FM_TEST_DECODE (tests/decode_speed.cmake): the whole
 * suite passes with decoding ten times slower, and with decoding that takes no time. These
 * functions stand before those of loader/decode/decoder.h and before fm_loader_next(), by the
 * linker's --wrap. No other build has them.
 *
 * "slow": each call of the decoder is followed by nine times the CPU time that it took.
 *
 * "instant": pixels cannot be there before they are decoded, but nobody needs to see it.
 * fm_loader_next() does not look for a batch before the decode threads have done all that they can
 * do, so that its caller meets what a decoder without cost would give him. And rows that were
 * decoded before, of the same box of the same bytes, are copied.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "decode/decoder.h"
#include "pipeline/pipeline.h"

int __real_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error);
int __wrap_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error);
int __real_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error);
int __wrap_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error);
int __real_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error);
int __wrap_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error);

#if FM_TEST_DECODE_SLOW

#define TIMES_SLOWER 10

static uint64_t cpu_ns(void) { return fm_clock_of(CLOCK_THREAD_CPUTIME_ID); }

/* Uses up the rest of ten times what has been used since begin_ns. */
static int slower(uint64_t begin_ns, int result) {
    const uint64_t end_ns = begin_ns + TIMES_SLOWER * (cpu_ns() - begin_ns);
    while (cpu_ns() < end_ns) continue;
    return result;
}

int __wrap_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error) {
    const uint64_t begin_ns = cpu_ns();
    return slower(begin_ns, __real_fm_decoder_begin(decoder, bytes, n_bytes, info, error));
}

int __wrap_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error) {
    const uint64_t begin_ns = cpu_ns();
    return slower(begin_ns, __real_fm_decoder_start(decoder, box, skip_px, row_px, error));
}

int __wrap_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error) {
    const uint64_t begin_ns = cpu_ns();
    return slower(begin_ns, __real_fm_decoder_read(decoder, rows, n_rows, error));
}

#else

/* ---- rows that were decoded before ----------------------------------------------------------- */

#define N_BUCKETS 16384
#define STORE_BYTES ((size_t)4 << 30) /* of addresses; memory comes as it is touched */

/* A box's rows, complete. */
typedef struct record {
    struct record *next;
    uint64_t bytes_hash;
    size_t n_bytes;
    fm_box box;
    int32_t skip_px, row_px;
    uint8_t *px;
} record;

/* No allocation that a test would count; for the life of the process. */
static struct {
    pthread_mutex_t lock;
    uint8_t *memory; /* MAP_FAILED: none can be had */
    size_t used;
    record *buckets[N_BUCKETS];
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What this thread decodes: one image at a time. */
static _Thread_local struct {
    const fm_decoder *decoder;
    uint64_t bytes_hash;
    size_t n_bytes;
    record *current;       /* NULL: decoded and not recorded */
    bool replays;          /* the record is complete; else it is being made */
    int32_t n_rows_so_far; /* of the box */
} image;

static uint64_t hash_of(const uint8_t *bytes, size_t n_bytes) {
    uint64_t hash = 1469598103934665603u;
    size_t i = 0;
    for (uint64_t word; i + sizeof(word) <= n_bytes; i += sizeof(word)) {
        memcpy(&word, bytes + i, sizeof(word));
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    for (; i < n_bytes; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

static bool is_same_box(const fm_box *one, const fm_box *other) {
    return one->left == other->left && one->top == other->top && one->width == other->width &&
           one->height == other->height;
}

/* Locked. NULL where there is no room. */
static void *take(size_t n_bytes) {
    const size_t rounded = (n_bytes + 63) / 64 * 64;
    if (!store.memory)
        store.memory = mmap(NULL, STORE_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (store.memory == MAP_FAILED || store.used + rounded > STORE_BYTES) return NULL;
    void *const taken = store.memory + store.used;
    store.used += rounded;
    return taken;
}

static record *find(const fm_box *box) {
    pthread_mutex_lock(&store.lock);
    record *found = store.buckets[image.bytes_hash % N_BUCKETS];
    while (found && (found->bytes_hash != image.bytes_hash || found->n_bytes != image.n_bytes ||
                     !is_same_box(&found->box, box)))
        found = found->next;
    pthread_mutex_unlock(&store.lock);
    return found;
}

/* A record to be filled; NULL where there is no room. */
static record *begin_record(const fm_box *box, int32_t skip_px, int32_t row_px) {
    pthread_mutex_lock(&store.lock);
    record *const new = take(sizeof(*new));
    uint8_t *const px = take(3 * (size_t)row_px * (size_t)box->height);
    pthread_mutex_unlock(&store.lock);
    if (!new || !px) return NULL;
    *new = (record){.bytes_hash = image.bytes_hash,
                    .n_bytes = image.n_bytes,
                    .box = *box,
                    .skip_px = skip_px,
                    .row_px = row_px,
                    .px = px};
    return new;
}

static void keep(record *complete) {
    pthread_mutex_lock(&store.lock);
    record **const bucket = &store.buckets[complete->bytes_hash % N_BUCKETS];
    complete->next = *bucket;
    *bucket = complete;
    pthread_mutex_unlock(&store.lock);
}

/* The rows of the record from the one that is due, to or from the caller's. */
static void copy_rows(uint8_t *const *rows, int32_t n_rows, bool to_record) {
    const size_t row_bytes = 3 * (size_t)image.current->row_px;
    uint8_t *px = image.current->px + (size_t)image.n_rows_so_far * row_bytes;
    for (int32_t i = 0; i < n_rows; i++, px += row_bytes)
        memcpy(to_record ? px : rows[i], to_record ? rows[i] : px, row_bytes);
    image.n_rows_so_far += n_rows;
}

int __wrap_fm_decoder_begin(fm_decoder *decoder, const uint8_t *bytes, size_t n_bytes,
                            fm_image_info *info, fm_error *error) {
    memset(&image, 0, sizeof(image));
    image.decoder = decoder;
    image.bytes_hash = hash_of(bytes, n_bytes);
    image.n_bytes = n_bytes;
    return __real_fm_decoder_begin(decoder, bytes, n_bytes, info, error);
}

int __wrap_fm_decoder_start(fm_decoder *decoder, const fm_box *box, int32_t *skip_px,
                            int32_t *row_px, fm_error *error) {
    const bool is_this = image.decoder == decoder;
    image.n_rows_so_far = 0;
    image.current = is_this ? find(box) : NULL;
    image.replays = image.current != NULL;
    if (image.replays) {
        *skip_px = image.current->skip_px;
        *row_px = image.current->row_px;
        return FM_OK;
    }
    const int status = __real_fm_decoder_start(decoder, box, skip_px, row_px, error);
    if (!status && is_this) image.current = begin_record(box, *skip_px, *row_px);
    return status;
}

int __wrap_fm_decoder_read(fm_decoder *decoder, uint8_t *const *rows, int32_t n_rows,
                           fm_error *error) {
    record *const current = image.decoder == decoder ? image.current : NULL;
    if (current && image.replays) {
        const int32_t n_left = current->box.height - image.n_rows_so_far;
        if (n_left == 0) return fm_error_set(error, FM_ERR_STATE, "no rows are left");
        if (n_rows > n_left) n_rows = n_left;
        copy_rows(rows, n_rows, false);
        return n_rows;
    }
    const int n_decoded = __real_fm_decoder_read(decoder, rows, n_rows, error);
    if (!current || n_decoded <= 0) return n_decoded;
    copy_rows(rows, n_decoded, true);
    if (image.n_rows_so_far == current->box.height) {
        keep(current);
        image.current = NULL;
    }
    return n_decoded;
}

static void lock_store(void) { pthread_mutex_lock(&store.lock); }
static void unlock_store(void) { pthread_mutex_unlock(&store.lock); }

/* Other threads may be in it at a fork. */
__attribute__((constructor)) static void keep_store_usable_in_children(void) {
    pthread_atfork(lock_store, unlock_store, unlock_store);
}

/* ---- the consumer ---------------------------------------------------------------------------- */

/* A read that a test holds back is not waited for. */
#define MOST_READ_NS 10000000u
#define LOOK_US 100

int __real_fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error);
int __wrap_fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error);
int __real_fm_loader_stop(fm_loader *loader, fm_error *error);
int __wrap_fm_loader_stop(fm_loader *loader, fm_error *error);

/* Whether all is decoded for which there are bytes and a slot. */
static bool is_all_decoded(fm_loader *loader, bool *is_reading) {
    fm_ring_lock(loader->ring);
    bool is_all = loader->n_active == 0;
    for (uint32_t i = 0; i < loader->n_with_slot; i++)
        is_all = is_all && fm_group_at(loader, i)->sizes == 0;
    is_all = is_all || atomic_load(&loader->cancelled) || loader->stopping;
    *is_reading = loader->n_reading > 0;
    fm_ring_unlock(loader->ring);
    return is_all;
}

static void wait_for_decoding(fm_loader *loader) {
    if (fm_loader_check(loader, NULL)) return;
    const uint64_t begin_ns = fm_clock_ns();
    for (bool is_reading; !is_all_decoded(loader, &is_reading) ||
                          (is_reading && fm_clock_ns() - begin_ns < MOST_READ_NS);)
        usleep(LOOK_US);
}

int __wrap_fm_loader_next(fm_loader *loader, int64_t timeout_ns, fm_batch *batch, fm_error *error) {
    wait_for_decoding(loader);
    return __real_fm_loader_next(loader, timeout_ns, batch, error);
}

int __wrap_fm_loader_stop(fm_loader *loader, fm_error *error) {
    wait_for_decoding(loader);
    return __real_fm_loader_stop(loader, error);
}

#endif
