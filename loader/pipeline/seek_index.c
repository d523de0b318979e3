#define _GNU_SOURCE
#include "pipeline/seek_index.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/mem.h"

#define UNIT_BYTES 8u
/* Room for the ends of a photograph of some 500 x 400 pixels. */
#define USUAL_ENDS_BYTES 480u
/* Images whose ends may take less than this have few rows to gain from. */
#define LEAST_ENDS_BYTES 128u
/* A file is reserved in parts of this size. */
#define PART_BYTES ((uint64_t)16 << 20)

static const char MAGIC[16] = "feedmill seek 1\n";

/* At the begin of the memory or file. Then follows each image's place, in units from there on; 0:
 * it has none; and then the images. */
typedef struct header {
    char magic[16];
    uint64_t n_samples;
    _Atomic uint64_t n_used, n_images; /* bytes, and images that have a place */
    uint64_t unused[3];
} header;

typedef _Atomic uint32_t image_place;

/* What is kept of an image, with room for the ends of all its intervals. */
typedef struct image {
    uint64_t checksum; /* of what follows, down to the last end that is known */
    fm_jpeg_seek_head head;
    uint32_t capacity;
    fm_jpeg_seek_end ends[];
} image;

#define MOST_IMAGE_BYTES (sizeof(image) + FM_JPEG_SEEK_MAX * sizeof(fm_jpeg_seek_end))

struct fm_seek_index {
    header *header; /* NULL: not mapped */
    image_place *places;
    uint64_t n_samples, n_bytes;
    uint32_t max_bytes; /* see fm_jpeg_seek */
    bool is_file;
    pthread_mutex_t lock; /* guards the images against other threads of this process */
};

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t n_bytes) {
    return (n_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

/* Where the images begin. */
static uint64_t images_at(uint64_t n_samples) {
    return sizeof(header) + round_up(n_samples * sizeof(image_place));
}

static uint64_t bytes_of(uint64_t n_samples, uint64_t image_bytes) {
    return images_at(n_samples) + n_samples * round_up(image_bytes);
}

/* The image at a place; NULL if there can't be one. */
static image *image_at(const fm_seek_index *index, uint32_t place) {
    const uint64_t at = (uint64_t)place * UNIT_BYTES;
    if (at < images_at(index->n_samples) || at > index->n_bytes - sizeof(image)) return NULL;
    image *const found = (image *)(void *)((uint8_t *)index->header + at);
    const uint64_t n_ends = (index->n_bytes - at - sizeof(image)) / sizeof(fm_jpeg_seek_end);
    return found->capacity <= n_ends ? found : NULL;
}

/* A place with room for n ends, or 0. */
static uint32_t allocate(fm_seek_index *index, uint32_t n) {
    const uint64_t n_bytes = round_up(sizeof(image) + n * sizeof(fm_jpeg_seek_end));
    uint64_t at = atomic_load(&index->header->n_used);
    do {
        if (at > index->n_bytes || n_bytes > index->n_bytes - at) return 0;
    } while (!atomic_compare_exchange_weak(&index->header->n_used, &at, at + n_bytes));
    const uint32_t place = (uint32_t)(at / UNIT_BYTES);
    ((image *)(void *)((uint8_t *)index->header + at))->capacity = n;
    return place;
}

static uint64_t checksum_of(const fm_jpeg_seek_head *head, const fm_jpeg_seek_end *ends,
                            uint64_t sample) {
    /* Member by member: padding has no value. */
    const uint64_t words[] = {head->checksum,
                              head->n_bytes,
                              head->n,
                              head->n_all,
                              head->interval_mcus,
                              head->row_intervals,
                              fm_checksum(ends, head->n * sizeof(*ends)),
                              sample};
    return fm_checksum(words, sizeof(words));
}

/* ---- open, close ----------------------------------------------------------------------------- */

static int open_index(fm_seek_index **out, uint64_t n_samples, uint64_t n_bytes, fm_error *error) {
    fm_seek_index *index = fm_mem_zalloc(NULL, 1, sizeof(*index));
    if (!index) return fm_error_set(error, FM_ERR_NOMEM, "no memory for an index of seek points");
    if (pthread_mutex_init(&index->lock, NULL)) {
        fm_mem_free(index);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    }
    index->n_samples = n_samples;
    index->n_bytes = n_bytes;
    const uint64_t of_image = (n_bytes - images_at(n_samples)) / n_samples - sizeof(image);
    index->max_bytes = of_image < UINT32_MAX ? (uint32_t)of_image : UINT32_MAX;
    *out = index;
    return FM_OK;
}

static void set_memory(fm_seek_index *index, void *memory) {
    index->header = memory;
    index->places = (image_place *)(index->header + 1);
}

static void begin_empty(fm_seek_index *index) {
    header *const h = index->header;
    atomic_store(&h->n_used, images_at(index->n_samples));
    h->n_samples = index->n_samples;
    memcpy(h->magic, MAGIC, sizeof(h->magic));
}

int fm_seek_index_open(fm_seek_index **out, uint64_t n_samples, uint64_t max_bytes,
                       fm_error *error) {
    *out = NULL;
    const uint64_t least = sizeof(image_place) + sizeof(image) + LEAST_ENDS_BYTES;
    if (n_samples == 0 || max_bytes < sizeof(header) + UNIT_BYTES ||
        (max_bytes - sizeof(header) - UNIT_BYTES) / least < n_samples)
        return FM_OK;
    const uint64_t most = bytes_of(n_samples, MOST_IMAGE_BYTES);
    const uint64_t addressable = (uint64_t)UINT32_MAX * UNIT_BYTES;
    uint64_t n_bytes = max_bytes < most ? max_bytes : most;
    if (n_bytes > addressable) n_bytes = addressable;
    fm_seek_index *index;
    const int status = open_index(&index, n_samples, n_bytes, error);
    if (status) return status;
    void *const memory = fm_mem_map(NULL, n_bytes);
    if (!memory) { /* a limit of address space, for example: it goes without */
        fm_seek_index_close(&index);
        return FM_OK;
    }
    set_memory(index, memory);
    begin_empty(index);
    *out = index;
    return FM_OK;
}

static int failed(const char *what, const char *path, fm_error *error) {
    return fm_error_set(error, FM_ERR_READ, "can't %s %s for seek points: %s", what, path,
                        strerror(errno));
}

/* Reserves the file's blocks. Before Linux 6.8 a signal interrupts fallocate() on a tmpfs, which
 * then gives back all that it had reserved. So a part is short enough to get done between two
 * signals of a profiler's timer. False: errno is set. */
static bool reserve_blocks(int fd, uint64_t n_bytes) {
    for (uint64_t at = 0; at < n_bytes;) {
        const uint64_t n_left = n_bytes - at, n = n_left < PART_BYTES ? n_left : PART_BYTES;
        if (!fallocate(fd, 0, (off_t)at, (off_t)n))
            at += n;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

/* Maps the file, whose lock is held. A new one gets its size, with all blocks reserved: a write to
 * a mapped hole on a full disk would end the process. */
static int map_file(fm_seek_index *index, int fd, const char *path, fm_error *error) {
    struct stat info;
    if (fstat(fd, &info)) return failed("look at", path, error);
    header found = {.magic = ""};
    if (pread(fd, &found, sizeof(found), 0) < 0) return failed("read", path, error);
    /* Also one whose maker was killed before it had begun. */
    const bool has_size = (uint64_t)info.st_size == index->n_bytes;
    const bool is_new = info.st_size == 0 || (has_size && !found.magic[0]);
    if (is_new && !reserve_blocks(fd, index->n_bytes)) {
        const int status = failed("reserve the size of", path, error);
        /* Some file systems keep what they could reserve. */
        const int emptied = ftruncate(fd, 0);
        (void)emptied;
        return status;
    }
    if (!is_new && memcmp(found.magic, MAGIC, sizeof(found.magic)))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "%s is no index of seek points; name another file", path);
    if (!is_new && (!has_size || found.n_samples != index->n_samples))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "%s has the seek points of a dataset of %llu samples, not of %llu; "
                            "name another file, or remove it",
                            path, (unsigned long long)found.n_samples,
                            (unsigned long long)index->n_samples);
    void *const memory = mmap(NULL, index->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return failed("map", path, error);
    set_memory(index, memory);
    const uint64_t n_used = atomic_load(&index->header->n_used);
    if (is_new)
        begin_empty(index);
    else if (n_used < images_at(index->n_samples) || n_used % UNIT_BYTES)
        atomic_store(&index->header->n_used,
                     index->n_bytes); /* other bytes than ours: it is full */
    return FM_OK;
}

static int open_file(fm_seek_index *index, const char *path, fm_error *error) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return failed("open", path, error);
    int status = FM_OK;
    /* Of processes that open it at the same time, one makes it. */
    while (flock(fd, LOCK_EX) && !status)
        if (errno != EINTR) status = failed("lock", path, error);
    if (!status) status = map_file(index, fd, path, error);
    (void)flock(fd, LOCK_UN); /* which close() does not do while the file is mapped */
    close(fd);
    return status;
}

int fm_seek_index_open_file(fm_seek_index **out, const char *path, uint64_t n_samples,
                            fm_error *error) {
    *out = NULL;
    if (n_samples == 0 || n_samples > UINT32_MAX / 128)
        return fm_error_set(error, FM_ERR_ARGUMENT, "no index of seek points for %llu samples",
                            (unsigned long long)n_samples);
    fm_seek_index *index;
    int status =
        open_index(&index, n_samples, bytes_of(n_samples, sizeof(image) + USUAL_ENDS_BYTES), error);
    if (status) return status;
    index->is_file = true;
    status = open_file(index, path, error);
    if (status)
        fm_seek_index_close(&index);
    else
        *out = index;
    return status;
}

void fm_seek_index_close(fm_seek_index **pointer) {
    if (!pointer || !*pointer) return;
    fm_seek_index *const index = *pointer;
    *pointer = NULL;
    if (index->header && index->is_file)
        (void)munmap(index->header, index->n_bytes);
    else if (index->header)
        fm_mem_unmap(index->header, index->n_bytes);
    pthread_mutex_destroy(&index->lock);
    fm_mem_free(index);
}

/* ---- images ---------------------------------------------------------------------------------- */

/* Locked. Copies an image's points. false if another process changes them, or left them so. */
static bool copy_points(const image *from, uint64_t sample, fm_jpeg_seek *to) {
    const uint64_t checksum = from->checksum;
    to->head = from->head;
    const fm_jpeg_seek_head *const head = &to->head;
    const uint32_t capacity = from->capacity < FM_JPEG_SEEK_MAX ? from->capacity : FM_JPEG_SEEK_MAX;
    if (head->n > head->n_all || head->n_all > capacity || !head->row_intervals ||
        !head->interval_mcus)
        return false;
    memcpy(to->ends, from->ends, head->n * sizeof(*from->ends));
    return checksum_of(head, to->ends, sample) == checksum;
}

bool fm_seek_index_get(fm_seek_index *index, uint64_t sample, fm_jpeg_seek *seek) {
    seek->head = (fm_jpeg_seek_head){0};
    seek->max_bytes = index->max_bytes;
    seek->is_changed = false;
    seek->n_used = 0;
    if (sample >= index->n_samples) return false;
    const uint32_t place = atomic_load(&index->places[sample]);
    const image *const known = place ? image_at(index, place) : NULL;
    if (!known) {
        const uint64_t least = sizeof(image) + LEAST_ENDS_BYTES;
        return atomic_load(&index->header->n_used) + least <= index->n_bytes;
    }
    pthread_mutex_lock(&index->lock);
    if (!copy_points(known, sample, seek)) seek->head = (fm_jpeg_seek_head){0};
    pthread_mutex_unlock(&index->lock);
    return true;
}

/* Locked. The image's place, with room for n_all ends; NULL if there is none left. */
static image *find_room(fm_seek_index *index, uint64_t sample, uint32_t n_all) {
    image_place *const kept = &index->places[sample];
    const uint32_t before = atomic_load(kept);
    image *const known = before ? image_at(index, before) : NULL;
    if (known && known->capacity >= n_all) return known;
    const uint32_t place = allocate(index, n_all);
    if (!place) return NULL;
    if (!atomic_exchange(kept, place)) atomic_fetch_add(&index->header->n_images, 1);
    return image_at(index, place);
}

void fm_seek_index_put(fm_seek_index *index, uint64_t sample, const fm_jpeg_seek *seek) {
    if (!seek->is_changed || seek->head.n == 0 || sample >= index->n_samples) return;
    pthread_mutex_lock(&index->lock);
    image *const kept = find_room(index, sample, seek->head.n_all);
    if (kept) {
        kept->head = seek->head;
        memcpy(kept->ends, seek->ends, seek->head.n * sizeof(*seek->ends));
        kept->checksum = checksum_of(&seek->head, seek->ends, sample);
    }
    pthread_mutex_unlock(&index->lock);
}

void fm_seek_index_usage(fm_seek_index *index, uint64_t *n_images, uint64_t *n_bytes) {
    *n_images = atomic_load(&index->header->n_images);
    *n_bytes = atomic_load(&index->header->n_used) - images_at(index->n_samples);
}
