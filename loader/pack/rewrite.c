#define _GNU_SOURCE
#include "pack/rewrite.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* jpeglib.h uses FILE and size_t without including their headers. */
#include <jerror.h>
#include <jpeglib.h>

#include "base/mem.h"
#include "decode/jpeg_codec.h"

/* First size of the output buffer, and the limit of what is kept for the next image. */
#define FIRST_BYTES ((size_t)256 << 10)
#define KEPT_BYTES ((size_t)16 << 20)
/* Limit of an interleaved scan, for baseline and extended files (ITU-T T.81, B.2.3). */
#define MAX_MCU_BLOCKS 10
#define LONGEST_SEGMENT 0xFFFF
/* Cost of a restart interval in millionths of a byte: 2 bytes for the marker, half a byte of
 * padding before it, and longer DC codes after it. Measured on 4:4:4 and 4:2:0 photographs: 2.7
 * bytes. */
#define MARKER_COST_PPM_BYTES 2700000

struct fm_rewrite {
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct out;
    struct jpeg_error_mgr errors; /* of both codecs */
    struct jpeg_source_mgr source;
    struct jpeg_destination_mgr destination;
    jmp_buf escape; /* set by fm_rewrite_run() */
    bool is_too_long;
    uint8_t *buffer; /* the output */
    size_t n_buffer, max_bytes;
    char warning[JMSG_LENGTH_MAX];
};

/* ---- libjpeg's callbacks --------------------------------------------------------------------- */

static void on_error(j_common_ptr codec) {
    fm_rewrite *const r = codec->client_data;
    longjmp(r->escape, 1);
}

/* Level -1 is a warning, other levels are traces. Keeps the first warning for the error message. */
static void on_message(j_common_ptr codec, int level) {
    fm_rewrite *const r = codec->client_data;
    if (level < 0 && codec->err->num_warnings++ == 0) codec->err->format_message(codec, r->warning);
}

/* The library never prints. */
static void on_output(j_common_ptr codec) { (void)codec; }

static void on_destination(j_compress_ptr codec) {
    fm_rewrite *const r = codec->client_data;
    r->destination.next_output_byte = r->buffer;
    r->destination.free_in_buffer = r->n_buffer;
}

static void on_end_of_destination(j_compress_ptr codec) { (void)codec; }

/* libjpeg calls this when the buffer is full. */
static boolean on_full(j_compress_ptr codec) {
    fm_rewrite *const r = codec->client_data;
    if (r->n_buffer >= r->max_bytes) {
        r->is_too_long = true;
        longjmp(r->escape, 1);
    }
    const size_t n_more = 2 * r->n_buffer < r->max_bytes ? 2 * r->n_buffer : r->max_bytes;
    uint8_t *const larger = fm_mem_alloc(NULL, n_more, 1);
    if (!larger) ERREXIT1(codec, JERR_OUT_OF_MEMORY, 0);
    memcpy(larger, r->buffer, r->n_buffer);
    fm_mem_free(r->buffer);
    r->buffer = larger;
    r->destination.next_output_byte = larger + r->n_buffer;
    r->destination.free_in_buffer = n_more - r->n_buffer;
    r->n_buffer = n_more;
    return TRUE;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void begin_reading(fm_rewrite *r, const uint8_t *bytes, size_t n_bytes) {
    jpeg_create_decompress(&r->in);
    fm_jpeg_codec_set_source(&r->in, &r->source);
    r->source.next_input_byte = bytes;
    r->source.bytes_in_buffer = n_bytes;
    jpeg_save_markers(&r->in, JPEG_COM, LONGEST_SEGMENT);
    for (int i = 0; i < 16; i++) jpeg_save_markers(&r->in, JPEG_APP0 + i, LONGEST_SEGMENT);
    jpeg_read_header(&r->in, TRUE);
}

static int n_saved_markers(const fm_rewrite *r) {
    int n = 0;
    for (jpeg_saved_marker_ptr one = r->in.marker_list; one; one = one->next) n++;
    return n;
}

static bool can_interleave(const struct jpeg_decompress_struct *in) {
    int n_blocks = 0;
    for (int c = 0; c < in->num_components; c++)
        n_blocks += in->comp_info[c].h_samp_factor * in->comp_info[c].v_samp_factor;
    return in->num_components == 1 || n_blocks <= MAX_MCU_BLOCKS;
}

/* ---- geometry of the output ------------------------------------------------------------------ */

static uint32_t divided_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/* The divisor of n that is closest to `wanted` by ratio; the larger one of two. */
static uint32_t nearest_divisor(uint32_t n, uint32_t wanted) {
    uint32_t best = 1;
    for (uint32_t d = 2; d <= n && best < wanted; d++)
        /* Below `wanted`, the larger one; above it, if d / wanted <= wanted / best. */
        if (n % d == 0 && (uint64_t)d * best <= (uint64_t)wanted * wanted) best = d;
    return best;
}

static uint32_t next_divisor(uint32_t n, uint32_t d) {
    do d++;
    while (n % d != 0);
    return d;
}

/* The restart interval for rows of n MCUs: the divisor closest to the option whose markers do not
 * exceed max_cost_ppm, or the whole row. */
static uint32_t choose_interval(uint32_t n, uint32_t n_rows, const fm_rewrite_options *options,
                                size_t n_bytes) {
    const uint64_t n_most = (uint64_t)n_bytes * options->max_cost_ppm / MARKER_COST_PPM_BYTES;
    uint32_t interval = nearest_divisor(n, options->interval);
    while (interval < n && (uint64_t)n_rows * (n / interval) > n_most)
        interval = next_divisor(n, interval);
    return interval;
}

static void measure(const struct jpeg_decompress_struct *in, const fm_rewrite_options *options,
                    size_t n_bytes, fm_transcoded *out) {
    /* In a scan of a single component an MCU is one block, whatever the sampling factors. */
    const bool is_single = in->num_components == 1;
    const uint32_t width = in->image_width, height = in->image_height;
    const uint32_t mcu_width = DCTSIZE * (uint32_t)(is_single ? 1 : in->max_h_samp_factor);
    const uint32_t mcu_height = DCTSIZE * (uint32_t)(is_single ? 1 : in->max_v_samp_factor);
    out->width = (int32_t)width;
    out->height = (int32_t)height;
    out->mcu_width_px = (int32_t)mcu_width;
    out->mcu_height_px = (int32_t)mcu_height;
    out->mcus_per_row = divided_up(width, mcu_width);
    out->mcu_rows = divided_up(height, mcu_height);
    out->interval = choose_interval(out->mcus_per_row, out->mcu_rows, options, n_bytes);
}

/* Returns where the data of the only scan begins. Needs no checks: libjpeg has just written it. */
static size_t find_scan_data(const uint8_t *bytes) {
    size_t at = 2;
    for (;;) {
        const uint8_t marker = bytes[at + 1];
        at += 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
        if (marker == 0xDA) return at;
    }
}

/* Returns the position after the next restart marker. */
static size_t next_interval(const uint8_t *bytes, size_t n_bytes, size_t at) {
    for (;;) {
        const uint8_t *const found = memchr(bytes + at, 0xFF, n_bytes - at);
        at = (size_t)(found - bytes) + 2;
        if ((found[1] & 0xF8) == 0xD0) return at;
    }
}

/* Fills the restart index: the offsets of FM_PACK_ROWS rows of MCUs. */
static void find_rows(fm_transcoded *out) {
    const uint32_t per_row = out->mcus_per_row / out->interval;
    size_t at = find_scan_data(out->bytes);
    uint64_t interval = 0;
    for (uint32_t k = 0; k < FM_PACK_ROWS; k++) {
        const uint64_t row = (uint64_t)k * out->mcu_rows / FM_PACK_ROWS;
        for (; interval < row * per_row; interval++)
            at = next_interval(out->bytes, out->n_bytes, at);
        out->row_offsets[k] = at;
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_output(fm_rewrite *r, jvirt_barray_ptr *coefficients, uint32_t interval) {
    jpeg_create_compress(&r->out);
    r->destination = (struct jpeg_destination_mgr){.init_destination = on_destination,
                                                   .empty_output_buffer = on_full,
                                                   .term_destination = on_end_of_destination};
    r->out.dest = &r->destination;
    jpeg_copy_critical_parameters(&r->in, &r->out);
    /* These are among the saved markers if the source has them. So decoders that guess the color
     * space by them, or by the components' numbers, guess the same as before. */
    r->out.write_JFIF_header = FALSE;
    r->out.write_Adobe_marker = FALSE;
    r->out.optimize_coding = TRUE;
    r->out.arith_code = FALSE;
    r->out.restart_interval = interval;
    r->out.restart_in_rows = 0;
    jpeg_write_coefficients(&r->out, coefficients);
    for (jpeg_saved_marker_ptr one = r->in.marker_list; one; one = one->next)
        jpeg_write_marker(&r->out, one->marker, one->data, one->data_length);
    jpeg_finish_compress(&r->out);
}

/* ---- one image ------------------------------------------------------------------------------- */

static int refuse(fm_error *error, fm_pack_reason reason) {
    fm_error_set(error, FM_ERR_KIND, "%s", fm_pack_reason_text(reason));
    return reason;
}

static int refuse_damaged(const fm_rewrite *r, fm_error *error) {
    fm_error_set(error, FM_ERR_DAMAGED, "libjpeg: %s", r->warning);
    return FM_PACK_DAMAGED;
}

/* After a longjmp. */
static int fail(fm_rewrite *r, fm_error *error) {
    if (r->is_too_long) return refuse(error, FM_PACK_LIMIT);
    const int code = r->errors.msg_code;
    if (code == JERR_OUT_OF_MEMORY)
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a JPEG's coefficients");
    char text[JMSG_LENGTH_MAX] = "";
    /* Both codecs have the same message table. */
    r->errors.format_message((j_common_ptr)&r->in, text);
    fm_error_set(error, FM_ERR_DAMAGED, "libjpeg: %s", text);
    /* A quantization table that is redefined, or a structure that libjpeg reads but can't write. */
    const bool is_unusual = code == JERR_MISMATCHED_QUANT_TABLE || r->out.global_state != 0;
    return is_unusual ? FM_PACK_UNUSUAL : FM_PACK_DAMAGED;
}

static int run(fm_rewrite *r, const uint8_t *bytes, size_t n_bytes,
               const fm_rewrite_options *options, fm_transcoded *out, fm_error *error) {
    begin_reading(r, bytes, n_bytes);
    if (!can_interleave(&r->in)) return refuse(error, FM_PACK_BLOCKS);
    const int n_markers = n_saved_markers(r);
    jvirt_barray_ptr *const coefficients = jpeg_read_coefficients(&r->in);
    if (r->errors.num_warnings) return refuse_damaged(r, error);
    /* A segment after image data would move before it, where its meaning may differ. */
    if (n_saved_markers(r) != n_markers) return refuse(error, FM_PACK_UNUSUAL);
    if (!fm_jpeg_codec_is_complete(&r->in)) return refuse(error, FM_PACK_INCOMPLETE);
    measure(&r->in, options, n_bytes, out);
    write_output(r, coefficients, out->interval);
    out->bytes = r->buffer;
    out->n_bytes = r->n_buffer - r->destination.free_in_buffer;
    find_rows(out);
    return FM_PACK_TRANSCODED;
}

/* Allocates the output buffer, unless the previous one can be used. */
static bool prepare_buffer(fm_rewrite *r) {
    const size_t n = r->max_bytes < FIRST_BYTES ? r->max_bytes : FIRST_BYTES;
    if (r->buffer && r->n_buffer <= KEPT_BYTES && r->n_buffer <= r->max_bytes) return true;
    fm_mem_free(r->buffer);
    r->buffer = fm_mem_alloc(NULL, n, 1);
    r->n_buffer = n;
    return r->buffer != NULL;
}

int fm_rewrite_run(fm_rewrite *r, const uint8_t *bytes, size_t n_bytes,
                   const fm_rewrite_options *options, fm_transcoded *out, fm_error *error) {
    r->max_bytes = options->max_bytes;
    if (!prepare_buffer(r)) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a JPEG");
    r->is_too_long = false;
    memset(&r->in, 0, sizeof(r->in));
    memset(&r->out, 0, sizeof(r->out));
    r->in.err = r->out.err = jpeg_std_error(&r->errors);
    r->in.client_data = r->out.client_data = r;
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    int reason;
    if (setjmp(r->escape))
        reason = fail(r, error);
    else
        reason = run(r, bytes, n_bytes, options, out, error);
    /* Both calls also work on zeroed objects that were never created. */
    jpeg_destroy_compress(&r->out);
    jpeg_destroy_decompress(&r->in);
    return reason;
}

/* ---- open, close ----------------------------------------------------------------------------- */

fm_rewrite *fm_rewrite_open(void) { return fm_mem_zalloc(NULL, 1, sizeof(fm_rewrite)); }

void fm_rewrite_close(fm_rewrite *r) {
    if (r) fm_mem_free(r->buffer);
    fm_mem_free(r);
}
