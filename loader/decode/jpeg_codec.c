#include "decode/jpeg_codec.h"

#include <stddef.h>
#include <stdio.h>

/* jpeglib.h uses FILE and size_t without including their headers. */
#include <jerror.h>
#include <jpeglib.h>

/* The DC and the coefficients on which libjpeg's smoothing of incomplete images depends. */
#define N_SMOOTHED 10

static void on_source(j_decompress_ptr codec) { (void)codec; }

static boolean on_end_of_source(j_decompress_ptr codec) {
    ERREXIT(codec, JERR_INPUT_EOF);
    return FALSE;
}

static void on_skip(j_decompress_ptr codec, long n) {
    if (n <= 0) return;
    if ((size_t)n > codec->src->bytes_in_buffer) ERREXIT(codec, JERR_INPUT_EOF);
    codec->src->next_input_byte += n;
    codec->src->bytes_in_buffer -= (size_t)n;
}

void fm_jpeg_codec_set_source(struct jpeg_decompress_struct *codec,
                              struct jpeg_source_mgr *source) {
    source->init_source = on_source;
    source->fill_input_buffer = on_end_of_source;
    source->skip_input_data = on_skip;
    source->resync_to_restart = jpeg_resync_to_restart;
    source->term_source = on_source;
    codec->src = source;
}

bool fm_jpeg_codec_is_complete(const struct jpeg_decompress_struct *codec) {
    if (!codec->progressive_mode) return true;
    for (int c = 0; c < codec->num_components; c++)
        for (int k = 0; k < N_SMOOTHED; k++)
            if (codec->coef_bits[c][k] != 0) return false;
    return true;
}
