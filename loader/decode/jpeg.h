/*
 * Decodes a crop of a JPEG row by row, with the same pixels as Pillow's convert("RGB").
 *
 * Sequence per image: fm_jpeg_begin(), fm_jpeg_start(), fm_jpeg_read() until all rows of the box
 * are read, fm_jpeg_end(). One fm_jpeg per thread, which is kept for all images. The image's bytes
 * belong to the caller and must stay until fm_jpeg_end(); nothing after them is read.
 *
 * The pixels are those of libjpeg-turbo's ISLOW inverse DCT and fancy upsampling, which Pillow
 * uses, and only the columns and rows that the crop needs are computed. libjpeg reads the header.
 * jpeg_huffman.h decodes the Huffman codes of files with one scan, libjpeg those of the others.
 * jpeg_rows.h makes pixels of the coefficients, on x86-64 with SSE4.1 and for grayscale and YCbCr.
 * libjpeg does so for all other files, and goes on from the first row with coefficients for which
 * its versions differ (jpeg_kernels.h).
 *
 * The same file must give the same pixels whatever the crop. So a file is only accepted if it is a
 * JPEG with 8-bit samples, one, three or four components (CMYK and YCCK are converted to RGB),
 * Huffman coding, and valid markers up to EOI. All others are refused with FM_ERR_FORMAT,
 * FM_ERR_KIND, FM_ERR_DAMAGED, FM_ERR_LIMIT or FM_ERR_NOMEM: by fm_jpeg_begin() if possible, else
 * by fm_jpeg_start() (damage in progressive data or above the box) or fm_jpeg_read() (damage
 * further down; the caller must drop the rows it has). Everything that libjpeg warns about counts
 * as damage, and some more (jpeg_huffman.h). The caller then falls back to Pillow, which returns
 * the whole image or an error: the crop may decide who decodes, but never the pixels.
 *
 * Memory (jpeg_mem.h): 1 MiB is allocated at open, enough for rows of 8,192 pixels in common
 * samplings; decoding allocates only for an image that needs more than all before it. A file with
 * several scans, such as a progressive one, also needs the coefficients of all rows down to the
 * box's bottom, at most 6 bytes per pixel; if they exceed 80 MiB (13 million pixels at 4:4:4, 27
 * million at 4:2:0), fm_jpeg_start() returns FM_ERR_LIMIT. That memory is kept until 8 images in a
 * row did not need it, or until fm_jpeg_trim().
 */
#ifndef FM_DECODE_JPEG_H
#define FM_DECODE_JPEG_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/types.h"
#include "decode/jpeg_seek.h"

typedef struct fm_jpeg fm_jpeg;

/* FM_ERR_NOMEM. */
int fm_jpeg_open(fm_jpeg **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error);

/*
 * Makes decoding stop with FM_ERR_CANCELLED, within a row of blocks, once *cancelled is true. The
 * flag must live as long as the object. NULL, the default: never.
 */
void fm_jpeg_watch(fm_jpeg *jpeg, const _Atomic bool *cancelled);

/* Sets the order of the bytes of a pixel: B G R if true, R G B (the default) if false. Has no
 * effect on CMYK files. Called between images. */
void fm_jpeg_set_bgr(fm_jpeg *jpeg, bool bgr);

/*
 * With skip_intervals, restart intervals that a box does not need are not decoded: they are passed
 * at the speed of a search for their markers. For files that have been decoded as a whole before,
 * such as those of a pack. The default is false. Called between images.
 *
 * Intervals are only skipped if all restart markers up to EOI are there and in order. Then damage
 * between two markers goes unnoticed if no pixel of the box, nor of the columns beside it, depends
 * on it. The pixels of the box are still libjpeg's, as decoding begins anew at each restart marker,
 * and Pillow, which ignores libjpeg's warnings, accepts such a file, too: again the box does not
 * decide about the pixels. Bytes that changed within an interval and decode to other pixels without
 * an error go unnoticed in any JPEG.
 *
 * is_partial: the bytes are a partial read of a file with a single scan, which ends after some
 * interval with an EOI. Boxes that need more of the file give FM_ERR_DAMAGED. The caller must know
 * that the unread part is valid.
 */
void fm_jpeg_set_interval_skipping(fm_jpeg *jpeg, bool skip_intervals, bool is_partial);

/*
 * Makes the next image use and add seek points; NULL, the default: none. seek->head and ends are
 * those of an earlier decoding of the file, or head.n is 0. After fm_jpeg_end(), seek->is_changed
 * tells whether they should be kept. Has no effect on images with restart intervals or several
 * scans. Called between images.
 */
void fm_jpeg_set_seek(fm_jpeg *jpeg, fm_jpeg_seek *seek);

/*
 * Reads the header and checks the file's markers up to EOI. The caller must call fm_jpeg_end()
 * afterwards, also on failure. The message names what was found, such as "a PNG image, not a JPEG".
 */
int fm_jpeg_begin(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                  fm_error *error);

/* Reads the size only, between images: see fm_jpeg_scan_header(). Nothing is begun. */
int fm_jpeg_measure(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                    fm_error *error);

/*
 * Makes the image that was begun one of 1 / divisor of its size, rounded up; divisor is 1, 2, 4 or
 * 8, and 1 after fm_jpeg_begin(). The box of fm_jpeg_start() is one of that image. Its pixels are
 * libjpeg's with scale_denom = divisor, as of Pillow's Image.draft().
 */
void fm_jpeg_set_divisor(fm_jpeg *jpeg, int32_t divisor);

/*
 * Starts decoding the rows box->top to box->top + box->height - 1; box lies within the image.
 * Each row has *row_px pixels of 3 bytes. The box begins at pixel *skip_px of the row, since
 * libjpeg-turbo moves the left edge to a block boundary.
 * FM_ERR_ARGUMENT if the box is not within the image.
 */
int fm_jpeg_start(fm_jpeg *jpeg, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                  fm_error *error);

/*
 * Decodes the next n_rows rows of the box, or as many as are left, into rows[], each of which has a
 * capacity of 3 * *row_px + 64 bytes. Row pointers should be 16 modulo 32, as libjpeg-turbo writes
 * 32-byte aligned rows past the cache. Returns the number of rows, or a negative status;
 * FM_ERR_STATE if no rows are left.
 */
int fm_jpeg_read(fm_jpeg *jpeg, uint8_t *const *rows, int32_t n_rows, fm_error *error);

/* Ends the image, finished or not. The object is ready for the next one. */
void fm_jpeg_end(fm_jpeg *jpeg);

/*
 * Called between images, by a thread that is about to wait: is_large() tells whether more than 4
 * MiB are kept; trim() returns them to the kernel, which may take milliseconds.
 */
bool fm_jpeg_is_large(const fm_jpeg *jpeg);
void fm_jpeg_trim(fm_jpeg *jpeg);

/* Accepts NULL and a pointer to NULL. */
void fm_jpeg_close(fm_jpeg **jpeg);

#endif
