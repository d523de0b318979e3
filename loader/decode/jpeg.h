/*
 * Decodes a crop of a JPEG, row by row, with the pixels that Pillow gives for convert("RGB").
 *
 * One fm_jpeg per thread, kept for life. The bytes must stay until fm_jpeg_end(); nothing behind
 * them is read. libjpeg-turbo's ISLOW inverse DCT and fancy upsampling, which Pillow uses; only the
 * columns and rows that the crop needs are computed. The Huffman decoder of files with one scan is
 * our own (jpeg_huffman.h).
 *
 * A file is taken only if its verdict can't depend on the crop: it must be a JPEG with 8-bit
 * samples, one, three or four components (CMYK and YCCK, which come as RGB too), Huffman coding,
 * and sane markers from start to EOI. All else is refused with a status (FM_ERR_FORMAT,
 * FM_ERR_KIND, FM_ERR_DAMAGED, FM_ERR_LIMIT, or FM_ERR_NOMEM), from fm_jpeg_begin() as far as that
 * can tell, else from fm_jpeg_start() (damage inside progressive data, or above the box) or
 * fm_jpeg_read() (damage up to there; the caller drops the rows that he has). Damage is whatever
 * libjpeg warns about, and some more (jpeg_huffman.h). The caller then asks Pillow, who gives the
 * whole image or an error. A box thus decides who decodes, never what comes out.
 *
 * Decoding takes no memory from the C library but for an image that needs more than all before it
 * (jpeg_mem.h): 1 MiB lies ready, enough for rows of 8,192 pixels. A file with several scans, such
 * as a progressive one, needs the coefficients of all rows down to the box's bottom besides, 6
 * bytes a pixel at most; where that is more than 80 MiB (13 million pixels at 4:4:4, 27 million at
 * 4:2:0), fm_jpeg_start() gives FM_ERR_LIMIT. That memory is kept for the next such image, until 8
 * others have come or fm_jpeg_trim() is called.
 */
#ifndef FM_DECODE_JPEG_H
#define FM_DECODE_JPEG_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/types.h"

typedef struct fm_jpeg fm_jpeg;

/* FM_ERR_NOMEM. */
int fm_jpeg_open(fm_jpeg **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error);

/*
 * From now on decoding ends with FM_ERR_CANCELLED, within a row of blocks, when *cancelled is true.
 * The flag must live as long as the object. NULL: never (the default).
 */
void fm_jpeg_watch(fm_jpeg *jpeg, const _Atomic bool *cancelled);

/*
 * From now on rows have the bytes B G R instead of R G B (false, the default), but for files with
 * four inks. Between images.
 */
void fm_jpeg_set_bgr(fm_jpeg *jpeg, bool bgr);

/*
 * From now on (true) the restart intervals that a box does not need are left out where the file has
 * them: passed at the speed of a search for their markers. For files that have been decoded whole
 * once, such as a pack's; false is the default. Between images.
 *
 * What is left out is not looked at but for the file's markers, all of which must be there and in
 * order, up to EOI; else the file is decoded as any other. So damage between two markers is not
 * seen where no pixel of the box depends on it. The box's pixels are libjpeg's all the same, which
 * begins anew at each restart marker, and Pillow, who ignores libjpeg's warnings, takes such a file
 * too: what comes out does not depend on the box here either. Bytes that changed within an interval
 * after the file was checked, and decode to other pixels without an error, are seen by nobody: that
 * is so for every JPEG.
 *
 * is_cut: the file is one of a single scan, of which nothing was read behind some interval; an EOI
 * stands there. Boxes that need no more are decoded as ever, and others are FM_ERR_DAMAGED. That
 * what was not read is sane must be known from elsewhere.
 */
void fm_jpeg_set_leaps(fm_jpeg *jpeg, bool leaps, bool is_cut);

/*
 * Reads the header and checks the file's markers to its end. Afterwards fm_jpeg_end() is due, also
 * on failure. The message names what was found, such as "a PNG image, not a JPEG".
 */
int fm_jpeg_begin(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                  fm_error *error);

/*
 * Starts decoding the rows box->top to box->top + box->height - 1; box lies within the image.
 * Each delivered row has *row_px pixels (3 bytes each, R G B), of which those from *skip_px on are
 * box->left and following: libjpeg-turbo moves the left edge to a block boundary.
 * FM_ERR_ARGUMENT if the box is not within the image.
 */
int fm_jpeg_start(fm_jpeg *jpeg, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                  fm_error *error);

/*
 * Decodes up to n_rows next rows of the box into rows[], each with room for 3 * *row_px + 64 bytes.
 * Row pointers should be 16 modulo 32: libjpeg-turbo writes 32-byte aligned rows past the cache.
 * Returns the number of rows written (all n_rows, or what is left of the box), or a negative
 * status; FM_ERR_STATE if no rows are left.
 */
int fm_jpeg_read(fm_jpeg *jpeg, uint8_t *const *rows, int32_t n_rows, fm_error *error);

/* Ends the image, finished or not. The object is ready for the next one. */
void fm_jpeg_end(fm_jpeg *jpeg);

/*
 * Between images, for a thread that is about to wait: whether more than 4 MiB are kept, and giving
 * them back to the kernel, which may take milliseconds.
 */
bool fm_jpeg_is_large(const fm_jpeg *jpeg);
void fm_jpeg_trim(fm_jpeg *jpeg);

/* Accepts NULL and a pointer to NULL. */
void fm_jpeg_close(fm_jpeg **jpeg);

#endif
