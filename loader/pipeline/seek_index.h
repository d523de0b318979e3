/*
 * The seek points (decode/jpeg_seek.h) of all images of a dataset: in memory, or in a file that
 * processes share and later runs find again.
 *
 * Threads that decode get what is known of an image, and put back what they have added. An image
 * for which no room is left has no seek points; those that are there stay.
 *
 * Processes do not lock each other out. Each image's points have a checksum, so that points which
 * another process is just changing, or did not finish, count as not known; and they are only used
 * for bytes that they were found in.
 */
#ifndef FM_PIPELINE_SEEK_INDEX_H
#define FM_PIPELINE_SEEK_INDEX_H

#include "base/error.h"
#include "decode/jpeg_seek.h"

typedef struct fm_seek_index fm_seek_index;

/*
 * In memory: takes at most max_bytes, of which pages that no image needs cost nothing. *out is
 * NULL, without an error, if that is too little for n_samples images to gain from, or can't be had.
 * FM_ERR_NOMEM, FM_ERR_THREAD.
 */
int fm_seek_index_open(fm_seek_index **out, uint64_t n_samples, uint64_t max_bytes,
                       fm_error *error);

/*
 * In a file of a local disk or of /dev/shm, which is made if it is missing, for its owner alone,
 * with room for the usual points of all images. Nobody may truncate it while it is open, and only
 * who is trusted may write to it: forged points give other pixels. FM_ERR_READ: a system call has
 * failed. FM_ERR_ARGUMENT: the file is something else, or of a dataset of another length.
 * FM_ERR_NOMEM, FM_ERR_THREAD.
 */
int fm_seek_index_open_file(fm_seek_index **out, const char *path, uint64_t n_samples,
                            fm_error *error);

/* Sets *seek to what is known of image `sample`, for fm_jpeg_set_seek(). false: nothing is, and
 * there is no room for more. Any thread. */
bool fm_seek_index_get(fm_seek_index *index, uint64_t sample, fm_jpeg_seek *seek);

/* Keeps it, if seek->is_changed. Any thread. */
void fm_seek_index_put(fm_seek_index *index, uint64_t sample, const fm_jpeg_seek *seek);

/* Images that have seek points, and the memory that they take; with a file, of all processes. Any
 * thread. */
void fm_seek_index_usage(fm_seek_index *index, uint64_t *n_images, uint64_t *n_bytes);

/* Accepts NULL and a pointer to NULL. */
void fm_seek_index_close(fm_seek_index **index);

#endif
