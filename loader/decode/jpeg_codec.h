/*
 * Helpers for libjpeg that the decoder (jpeg.c) and the pack writer share. Any thread may call
 * them, each on its own codec.
 */
#ifndef FM_DECODE_JPEG_CODEC_H
#define FM_DECODE_JPEG_CODEC_H

#include <stdbool.h>

#include "decode/jpeg_huffman.h"
#include "decode/jpeg_rows.h"

struct jpeg_decompress_struct;
struct jpeg_source_mgr;

/*
 * Makes `source` the codec's source manager, for images that are wholly in memory. `source` belongs
 * to the caller and must outlive the codec. The caller sets next_input_byte and bytes_in_buffer for
 * each image. At the end of the bytes libjpeg's error_exit is called with JERR_INPUT_EOF.
 */
void fm_jpeg_codec_set_source(struct jpeg_decompress_struct *codec, struct jpeg_source_mgr *source);

/*
 * Whether an image has all bits of its low frequencies; a baseline image always has. libjpeg
 * smooths progressive images that lack some, in ways that differ between its versions. Called after
 * jpeg_start_decompress() or jpeg_read_coefficients().
 */
bool fm_jpeg_codec_is_complete(const struct jpeg_decompress_struct *codec);

/*
 * Starts Huffman decoding of an image with one scan of all components, whose header libjpeg has
 * read, and of whose data libjpeg has read nothing. false, without starting, if a table is not a
 * Huffman code.
 */
bool fm_jpeg_codec_begin_huffman(const struct jpeg_decompress_struct *codec, fm_huffman *huffman);

/*
 * Describes an image whose header libjpeg has read for fm_jpeg_rows_plan(), also one with several
 * scans. *frame points into the codec: to the tables of the header, or if libjpeg has read all
 * scans, to those that they use. false if fm_jpeg_rows does not support its colors, or if libjpeg
 * would warn about the only scan or refuse it.
 */
bool fm_jpeg_codec_frame(const struct jpeg_decompress_struct *codec, fm_jpeg_frame *frame);

#endif
