/*
 * The seek points (decode/jpeg_seek.h) of all images of a dataset, in a memory of fixed size.
 *
 * Threads that decode get what is known of an image, and put back what they have added. An image
 * for which no memory is left has no seek points; those that are there stay.
 *
 * All functions may be called by any thread.
 */
#ifndef FM_PIPELINE_SEEK_INDEX_H
#define FM_PIPELINE_SEEK_INDEX_H

#include "base/error.h"
#include "decode/jpeg_seek.h"

typedef struct fm_seek_index fm_seek_index;

/*
 * Takes at most max_bytes, of which pages that no image needs cost nothing. *out is NULL, without
 * an error, if that is too little for n_samples images to gain from. FM_ERR_NOMEM, FM_ERR_THREAD.
 */
int fm_seek_index_open(fm_seek_index **out, uint64_t n_samples, uint64_t max_bytes,
                       fm_error *error);

/* Sets *seek to what is known of image `sample`, for fm_jpeg_set_seek(). */
void fm_seek_index_get(fm_seek_index *index, uint64_t sample, fm_jpeg_seek *seek);

/* Keeps it, if seek->is_changed. */
void fm_seek_index_put(fm_seek_index *index, uint64_t sample, const fm_jpeg_seek *seek);

/* Images that have seek points, and the memory that they take. */
void fm_seek_index_usage(fm_seek_index *index, uint64_t *n_images, uint64_t *n_bytes);

/* Accepts NULL and a pointer to NULL. */
void fm_seek_index_close(fm_seek_index **index);

#endif
