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

/* Whether all codes of a table are shorter than libjpeg allows: it refuses a code of ones only. */
static bool is_allowed(const JHUFF_TBL *table) {
    uint32_t next = 0;
    for (int length = 1; length <= 16; length++, next *= 2) {
        next += table->bits[length];
        if (table->bits[length] && next >= 1u << length) return false;
    }
    return true;
}

bool fm_jpeg_codec_begin_huffman(const struct jpeg_decompress_struct *codec, fm_huffman *huffman) {
    fm_huffman_scan scan = {.bytes = codec->src->next_input_byte,
                            .n_bytes = codec->src->bytes_in_buffer,
                            .restart_interval = codec->restart_interval};
    const bool is_single = codec->comps_in_scan == 1;
    for (int c = 0; c < codec->comps_in_scan; c++) {
        const jpeg_component_info *const component = codec->cur_comp_info[c];
        const int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        /* In a scan of a single component an MCU is one block. */
        const int n = is_single ? 1 : component->h_samp_factor * component->v_samp_factor;
        if (scan.n_blocks + n > FM_HUFFMAN_MAX_BLOCKS) return false;
        for (int i = 0; i < n; i++)
            scan.blocks[scan.n_blocks++] = (fm_huffman_block){(uint8_t)c, (uint8_t)dc, (uint8_t)ac};
        const JHUFF_TBL *const dc_table = codec->dc_huff_tbl_ptrs[dc];
        const JHUFF_TBL *const ac_table = codec->ac_huff_tbl_ptrs[ac];
        if (!dc_table || !ac_table || !is_allowed(dc_table) || !is_allowed(ac_table)) return false;
        scan.dc[dc] = (fm_huffman_code){dc_table->bits, dc_table->huffval};
        scan.ac[ac] = (fm_huffman_code){ac_table->bits, ac_table->huffval};
    }
    return fm_huffman_begin(huffman, &scan);
}

/* Whether libjpeg decodes an only scan without a warning, its components in the frame's order. */
static bool is_whole_scan(const struct jpeg_decompress_struct *codec) {
    for (int c = 0; c < codec->comps_in_scan; c++)
        if (codec->cur_comp_info[c] != &codec->comp_info[c]) return false;
    return codec->Ss == 0 && codec->Se == DCTSIZE2 - 1 && codec->Ah == 0 && codec->Al == 0;
}

bool fm_jpeg_codec_frame(const struct jpeg_decompress_struct *codec, fm_jpeg_frame *frame) {
    const bool is_gray = codec->jpeg_color_space == JCS_GRAYSCALE && codec->num_components == 1;
    const bool is_ycc = codec->jpeg_color_space == JCS_YCbCr && codec->num_components == 3;
    const bool is_single =
        codec->comps_in_scan == codec->num_components && !codec->progressive_mode;
    if ((!is_gray && !is_ycc) || (is_single && !is_whole_scan(codec))) return false;
    *frame = (fm_jpeg_frame){.width = (int32_t)codec->image_width,
                             .height = (int32_t)codec->image_height,
                             .n_components = codec->num_components};
    for (int c = 0; c < codec->num_components; c++) {
        const jpeg_component_info *const component = &codec->comp_info[c];
        const JQUANT_TBL *table = component->quant_table;
        if (!table) table = codec->quant_tbl_ptrs[component->quant_tbl_no];
        if (!table) return false;
        frame->components[c] = (fm_jpeg_component){component->h_samp_factor,
                                                   component->v_samp_factor, table->quantval};
    }
    return true;
}
