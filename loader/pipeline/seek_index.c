#define _GNU_SOURCE
#include "pipeline/seek_index.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

/* What is kept of an image. The ends of all its intervals have room from the start. */
typedef struct image {
    fm_jpeg_seek_head head;
    uint32_t capacity;
    fm_jpeg_seek_end ends[];
} image;

#define UNIT_BYTES 8u
/* Images whose ends may take less than this have few rows to gain from. */
#define LEAST_ENDS_BYTES 128u
/* More than any image's ends take. */
#define MOST_IMAGE_BYTES (sizeof(image) + FM_JPEG_SEEK_MAX * sizeof(fm_jpeg_seek_end))

struct fm_seek_index {
    /* Fixed after open. */
    uint8_t *memory;
    uint64_t n_samples, n_bytes;
    uint32_t max_bytes; /* see fm_jpeg_seek */
    pthread_mutex_t lock; /* guards what follows, and the memory */
    uint64_t n_used;
    uint64_t n_images;
};

/* Where each image's place is kept, in units from the memory's begin; 0: it has none. */
static uint32_t *places(const fm_seek_index *index) { return (uint32_t *)(void *)index->memory; }

static image *image_at(const fm_seek_index *index, uint32_t place) {
    return (image *)(void *)(index->memory + (uint64_t)place * UNIT_BYTES);
}

/* Locked. A place with room for n ends, or 0. */
static uint32_t allocate(fm_seek_index *index, uint32_t n) {
    const uint64_t n_bytes = sizeof(image) + n * sizeof(fm_jpeg_seek_end);
    if (n_bytes > index->n_bytes - index->n_used) return 0;
    const uint32_t place = (uint32_t)(index->n_used / UNIT_BYTES);
    image_at(index, place)->capacity = n;
    index->n_used += (n_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    return place;
}

int fm_seek_index_open(fm_seek_index **out, uint64_t n_samples, uint64_t max_bytes,
                       fm_error *error) {
    *out = NULL;
    const uint64_t least = sizeof(uint32_t) + sizeof(image) + LEAST_ENDS_BYTES;
    if (n_samples == 0 || max_bytes / least < n_samples) return FM_OK;
    const uint64_t most = sizeof(uint32_t) + MOST_IMAGE_BYTES + UNIT_BYTES;
    if (max_bytes / most > n_samples) max_bytes = n_samples * most;
    const uint64_t addressable = (uint64_t)UINT32_MAX * UNIT_BYTES;
    if (max_bytes > addressable) max_bytes = addressable;
    fm_seek_index *index = fm_mem_zalloc(NULL, 1, sizeof(*index));
    if (!index) return fm_error_set(error, FM_ERR_NOMEM, "no memory for an index of seek points");
    if (pthread_mutex_init(&index->lock, NULL)) {
        fm_mem_free(index);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    }
    index->n_samples = n_samples;
    index->n_bytes = max_bytes;
    index->memory = fm_mem_map(NULL, max_bytes);
    if (!index->memory) {
        fm_seek_index_close(&index);
        return fm_error_set(error, FM_ERR_NOMEM,
                            "no memory of %llu bytes for seek points; lower seek_index_bytes",
                            (unsigned long long)max_bytes);
    }
    index->n_used =
        (n_samples * sizeof(uint32_t) + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    const uint64_t of_image = max_bytes / n_samples - sizeof(uint32_t) - sizeof(image);
    index->max_bytes = of_image < UINT32_MAX ? (uint32_t)of_image : UINT32_MAX;
    *out = index;
    return FM_OK;
}

void fm_seek_index_get(fm_seek_index *index, uint64_t sample, fm_jpeg_seek *seek) {
    seek->head = (fm_jpeg_seek_head){0};
    seek->max_bytes = index->max_bytes;
    seek->is_changed = false;
    seek->n_used = 0;
    if (sample >= index->n_samples) return;
    pthread_mutex_lock(&index->lock);
    const uint32_t place = places(index)[sample];
    if (place) {
        const image *const known = image_at(index, place);
        seek->head = known->head;
        memcpy(seek->ends, known->ends, known->head.n * sizeof(*known->ends));
    }
    pthread_mutex_unlock(&index->lock);
}

void fm_seek_index_put(fm_seek_index *index, uint64_t sample, const fm_jpeg_seek *seek) {
    if (!seek->is_changed || sample >= index->n_samples) return;
    const uint32_t n = seek->head.n;
    pthread_mutex_lock(&index->lock);
    uint32_t *const place = &places(index)[sample];
    /* The intervals of an image that was replaced may be more than those before. */
    if (n > 0 && (!*place || image_at(index, *place)->capacity < seek->head.n_all)) {
        index->n_images += !*place;
        *place = allocate(index, seek->head.n_all);
        index->n_images -= !*place;
    }
    if (*place) {
        image *const kept = image_at(index, *place);
        kept->head = seek->head;
        memcpy(kept->ends, seek->ends, n * sizeof(*kept->ends));
    }
    pthread_mutex_unlock(&index->lock);
}

void fm_seek_index_usage(fm_seek_index *index, uint64_t *n_images, uint64_t *n_bytes) {
    pthread_mutex_lock(&index->lock);
    *n_images = index->n_images;
    *n_bytes = index->n_used;
    pthread_mutex_unlock(&index->lock);
}

void fm_seek_index_close(fm_seek_index **pointer) {
    if (!pointer || !*pointer) return;
    fm_seek_index *const index = *pointer;
    *pointer = NULL;
    if (index->memory) fm_mem_unmap(index->memory, index->n_bytes);
    pthread_mutex_destroy(&index->lock);
    fm_mem_free(index);
}
