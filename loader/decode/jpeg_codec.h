/*
 * Helpers for libjpeg that the decoder (jpeg.c) and the pack writer share. Any thread may call
 * them, each on its own codec.
 */
#ifndef FM_DECODE_JPEG_CODEC_H
#define FM_DECODE_JPEG_CODEC_H

#include <stdbool.h>

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

#endif
