/*
 * Decodes a crop of a JPEG to rows of RGB: reads the coefficients of one row of MCUs after another
 * (jpeg_huffman.h), and computes the samples of the blocks and the pixels of the rows that the crop
 * needs (jpeg_kernels.h). So all intermediate results stay in the cache. The coefficients of a file
 * with several scans come from the caller.
 *
 * The pixels are libjpeg-turbo's of a full decode with JDCT_ISLOW and fancy upsampling.
 * Coefficients beyond what an encoder can write, for which its versions differ, are not decoded:
 * see FM_JPEG_ROWS_OUT_OF_RANGE.
 *
 * Per image: fm_jpeg_rows_plan(), fm_jpeg_rows_start(), fm_jpeg_rows_read() until all rows of the
 * box are read. One fm_jpeg_rows per thread. Knows nothing of libjpeg.
 */
#ifndef FM_DECODE_JPEG_ROWS_H
#define FM_DECODE_JPEG_ROWS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/types.h"
#include "decode/jpeg_huffman.h"
#include "decode/jpeg_kernels.h"
#include "decode/jpeg_seek.h"

#define FM_JPEG_ROWS_MAX_COMPONENTS 3

typedef struct fm_jpeg_component {
    int32_t h, v;          /* sampling factors, 1 to 4 */
    const uint16_t *steps; /* the quantization table, 64 steps in natural order */
} fm_jpeg_component;

/* The components of an only scan are in the frame's order. */
typedef struct fm_jpeg_frame {
    int32_t width, height;
    int32_t n_components; /* 1: gray; 3: Y, Cb and Cr */
    fm_jpeg_component components[FM_JPEG_ROWS_MAX_COMPONENTS];
} fm_jpeg_frame;

typedef enum fm_jpeg_rows_status {
    FM_JPEG_ROWS_OK,
    FM_JPEG_ROWS_DAMAGED, /* see fm_huffman_damage() */
    FM_JPEG_ROWS_CANCELLED,
    /* Coefficients out of range (FM_JPEG_SAFE_SUM) in a block that the box needs, not necessarily
     * in the rows that are read. */
    FM_JPEG_ROWS_OUT_OF_RANGE
} fm_jpeg_rows_status;

typedef struct fm_jpeg_rows fm_jpeg_rows;

/* NULL when out of memory. */
fm_jpeg_rows *fm_jpeg_rows_open(fm_mem_counter *counter, fm_cpu_tier tier);

/*
 * Plans the decoding of a box, which must be within the image. false if the image is not supported:
 * other components, steps above FM_JPEG_MAX_STEP, sampling factors of which one is no multiple of
 * the other, or more than FM_HUFFMAN_MAX_BLOCKS blocks per MCU. Else *n_bytes is the memory that
 * fm_jpeg_rows_start() needs.
 */
bool fm_jpeg_rows_plan(fm_jpeg_rows *rows, const fm_jpeg_frame *frame, const fm_box *box,
                       size_t *n_bytes);

/* Rows have *row_px pixels, and the box begins at pixel *skip_px. After fm_jpeg_rows_plan(). */
void fm_jpeg_rows_layout(const fm_jpeg_rows *rows, int32_t *skip_px, int32_t *row_px);

typedef struct fm_jpeg_rows_source {
    fm_huffman *huffman; /* begun for the frame's only scan; NULL: see `blocks` */
    /* Returns a row of a component's blocks, 64 coefficients in natural order each. */
    const int16_t *(*blocks)(void *owner, int32_t component, int32_t row);
    void *owner;
    /* Seek points that hold for the scan, which are used, and to which others are added. NULL:
     * none. Must stay until the last row is read. */
    fm_jpeg_seek *seek;
    size_t n_bytes;                /* of the file; for `seek` */
    const _Atomic bool *cancelled; /* NULL: never */
    bool skips_intervals;          /* whether restart intervals may be passed without decoding */
    bool bgr;                      /* the order of a pixel's bytes */
} fm_jpeg_rows_source;

/*
 * Skips the MCUs above the box. `memory` is of fm_jpeg_rows_plan()'s size and aligned to
 * FM_MEM_ALIGN. It and the source's Huffman decoder must stay until the last row is read.
 */
fm_jpeg_rows_status fm_jpeg_rows_start(fm_jpeg_rows *rows, uint8_t *memory,
                                       const fm_jpeg_rows_source *source);

/* Decodes the box's next n rows into out[], each of which has a capacity of 3 * *row_px +
 * FM_JPEG_SLACK bytes. */
fm_jpeg_rows_status fm_jpeg_rows_read(fm_jpeg_rows *rows, uint8_t *const *out, int32_t n);

/* Accepts NULL and a pointer to NULL. */
void fm_jpeg_rows_close(fm_jpeg_rows **rows);

#endif
