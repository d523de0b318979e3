/*
 * What those who use libjpeg share: the decoder, and the packer. Any thread may call these, each on
 * a codec of its own.
 */
#ifndef FM_DECODE_JPEG_CODEC_H
#define FM_DECODE_JPEG_CODEC_H

#include <stdbool.h>

struct jpeg_decompress_struct;
struct jpeg_source_mgr;

/*
 * Makes `source`, which belongs to the caller and outlives the codec, the codec's source: of bytes
 * that are all in memory from the start. The caller sets next_input_byte and bytes_in_buffer for
 * each image. Behind the last byte libjpeg's error_exit is called with JERR_INPUT_EOF.
 */
void fm_jpeg_codec_set_source(struct jpeg_decompress_struct *codec, struct jpeg_source_mgr *source);

/*
 * Whether all bits of the low frequencies came. libjpeg smooths a progressive image where they did
 * not, in ways that changed between its versions, and no baseline image. Behind
 * jpeg_start_decompress() or jpeg_read_coefficients().
 */
bool fm_jpeg_codec_is_complete(const struct jpeg_decompress_struct *codec);

#endif
