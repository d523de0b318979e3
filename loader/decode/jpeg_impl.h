/*
 * The state of a JPEG decoder, for jpeg.c and jpeg_entropy.c alone.
 */
#ifndef FM_DECODE_JPEG_IMPL_H
#define FM_DECODE_JPEG_IMPL_H

#include <setjmp.h>
#include <stdio.h>

/* jpeglib.h uses FILE and size_t without including their headers. */
#include <jerror.h>
/* CMake defines this. The fallback is for compiling a file alone. */
#ifndef FM_HAVE_JPEG_INTERNALS
#if __has_include(<jpegint.h>)
#define FM_HAVE_JPEG_INTERNALS 1
#else
#define FM_HAVE_JPEG_INTERNALS 0
#endif
#endif
#if FM_HAVE_JPEG_INTERNALS
#define JPEG_INTERNALS
#endif
#include <jpeglib.h>

#include "decode/jpeg.h"
#include "decode/jpeg_huffman.h"
#include "decode/jpeg_rows.h"
#include "decode/jpeg_scan.h"

enum state {
    STATE_IDLE,    /* between images */
    STATE_BEGUN,   /* the header is read */
    STATE_STARTED, /* rows can be read */
    STATE_FAILED   /* only fm_jpeg_end() may be called */
};

struct fm_jpeg {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    const _Atomic bool *cancelled; /* NULL: never */
    jmp_buf escape;                /* set by each function that calls libjpeg */
    fm_limits limits;
    fm_jpeg_scan scan;
    fm_huffman *huffman;
    const uint8_t *bytes;                 /* the image's */
    jvirt_barray_ptr *coefficients;       /* of all components, if the file has several scans */
    fm_jpeg_rows *rows;                   /* NULL: not used on this CPU */
    bool uses_rows;                       /* for this image, instead of libjpeg */
    JDIMENSION mcu_column, mcu_row;       /* of the next MCU */
    JDIMENSION first_column, last_column; /* MCUs that the crop needs */
    JDIMENSION last_row; /* last row of MCUs to read; all rows unless skips_intervals */
    uint32_t n_pending;  /* MCUs before the next one that the Huffman decoder has not skipped yet */
    enum state state;
    bool allow_skipping, is_partial; /* see fm_jpeg_set_interval_skipping() */
    bool skips_intervals;            /* this image's restart intervals can be skipped */
    bool bgr;                        /* order of a pixel's bytes */
    fm_jpeg_seek *seek;              /* NULL: not used */
    const uint8_t *seek_data;        /* of the scan for which it is used; NULL: none */
    int32_t divisor;                 /* the image is decoded at 1 / divisor of its size */
    bool is_shortened; /* libjpeg sees a lower image, and ignores the rest of each scan */
    fm_box box;
    int32_t n_rows_left; /* of the box */
    /* Rows as libjpeg returns them, if they have to be changed: from CMYK, or to those of `rows`
     * that libjpeg goes on with. Else NULL. */
    JSAMPARRAY raw_rows;
    int32_t cut_px, kept_px; /* of raw rows that are not CMYK */
    const char *damage;      /* why the Huffman decoder refused the data, or NULL */
    char warning[JMSG_LENGTH_MAX];
};

/*
 * Whether restart intervals can be skipped: the file has all restart markers of the frame, in
 * order. Then an interval begins at its marker for libjpeg as well, and changes no pixel of another
 * one, whatever lies between the markers. Needs the header only.
 */
bool fm_jpeg_can_skip_intervals(const fm_jpeg *jpeg);

/*
 * Makes libjpeg call jpeg_huffman.h for entropy decoding, in a file with one scan, of which libjpeg
 * has read nothing yet. `left` and `width` come from jpeg_crop_scanline(); `bottom` is the last row
 * needed. All three count pixels of the whole image, even if it is decoded at a reduced size. If a
 * table is not a Huffman code, libjpeg's function stays and reports it. No effect without
 * jpegint.h.
 */
void fm_jpeg_replace_entropy_decoder(fm_jpeg *jpeg, JDIMENSION left, JDIMENSION width,
                                     JDIMENSION bottom);

#endif
