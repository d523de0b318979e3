#define _GNU_SOURCE
#include "decode/jpeg_codec.h"
#include "decode/jpeg_impl.h"

/* In the only scan of a file. */
static uint64_t count_mcus(const struct jpeg_decompress_struct *codec) {
    const bool is_single = codec->comps_in_scan == 1;
    const uint64_t width = DCTSIZE * (is_single ? 1u : (uint64_t)codec->max_h_samp_factor);
    const uint64_t height = DCTSIZE * (is_single ? 1u : (uint64_t)codec->max_v_samp_factor);
    return (codec->image_width + width - 1) / width * ((codec->image_height + height - 1) / height);
}

bool fm_jpeg_can_skip_intervals(const fm_jpeg *jpeg) {
    const struct jpeg_decompress_struct *const codec = &jpeg->codec;
    const uint64_t n_mcus = count_mcus(codec);
    if (!jpeg->allow_skipping || !codec->restart_interval || !jpeg->scan.in_order) return false;
    const uint64_t n_restarts = (n_mcus - 1) / codec->restart_interval;
    return jpeg->scan.n_restarts == n_restarts ||
           (jpeg->is_partial && jpeg->scan.n_restarts < n_restarts);
}

#if FM_HAVE_JPEG_INTERNALS
/* Reads the next MCU's coefficients. */
static bool read_mcu(fm_jpeg *jpeg, JBLOCKROW *blocks) {
    int16_t *coefficients[FM_HUFFMAN_MAX_BLOCKS];
    for (int i = 0; i < jpeg->codec.blocks_in_MCU; i++) coefficients[i] = *blocks[i];
    if (jpeg->n_pending && !fm_huffman_skip_intervals(jpeg->huffman, jpeg->n_pending)) return false;
    jpeg->n_pending = 0;
    return fm_huffman_read(jpeg->huffman, coefficients);
}

/* Replaces libjpeg's function. Only the MCUs that the crop needs get coefficients. */
static boolean decode_mcu(j_decompress_ptr codec, JBLOCKROW *blocks) {
    fm_jpeg *const jpeg = codec->client_data;
    const JDIMENSION column = jpeg->mcu_column;
    jpeg->mcu_column = column + 1 < codec->MCUs_per_row ? column + 1 : 0;
    const JDIMENSION row = jpeg->mcu_row;
    jpeg->mcu_row = row + (jpeg->mcu_column == 0);
    bool is_sane = true;
    if (blocks && column >= jpeg->first_column && column <= jpeg->last_column &&
        row <= jpeg->last_row)
        is_sane = read_mcu(jpeg, blocks);
    else if (jpeg->skips_intervals)
        jpeg->n_pending++;
    else
        is_sane = fm_huffman_skip(jpeg->huffman);
    if (!is_sane) {
        jpeg->damage = fm_huffman_damage(jpeg->huffman);
        longjmp(jpeg->escape, 1);
    }
    return TRUE;
}

void fm_jpeg_replace_entropy_decoder(fm_jpeg *jpeg, JDIMENSION left, JDIMENSION width,
                                     JDIMENSION bottom) {
    struct jpeg_decompress_struct *const codec = &jpeg->codec;
    /* In a scan of a single component an MCU is one block. */
    const bool is_single = codec->comps_in_scan == 1;
    const JDIMENSION v_factor = is_single ? 1 : (JDIMENSION)codec->max_v_samp_factor;
    const JDIMENSION mcu_px = DCTSIZE * (is_single ? 1 : (JDIMENSION)codec->max_h_samp_factor);
    jpeg->mcu_column = jpeg->mcu_row = 0;
    jpeg->n_pending = 0;
    jpeg->skips_intervals = fm_jpeg_can_skip_intervals(jpeg);
    /* Fancy upsampling needs the next row of the coarsest component. */
    const JDIMENSION divisor = (JDIMENSION)jpeg->divisor;
    const JDIMENSION last = bottom + (v_factor > divisor ? v_factor : divisor);
    jpeg->last_row = jpeg->skips_intervals ? last / (DCTSIZE * v_factor) : codec->MCU_rows_in_scan;
    jpeg->first_column = left / mcu_px;
    jpeg->last_column = (left + width - 1) / mcu_px;
    if (fm_jpeg_codec_begin_huffman(codec, jpeg->huffman)) codec->entropy->decode_mcu = decode_mcu;
}
#else
void fm_jpeg_replace_entropy_decoder(fm_jpeg *jpeg, JDIMENSION left, JDIMENSION width,
                                     JDIMENSION bottom) {
    (void)jpeg, (void)left, (void)width, (void)bottom;
}
#endif
