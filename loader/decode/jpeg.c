#define _GNU_SOURCE
#include "decode/jpeg.h"

#include <assert.h>
#include <string.h>

#include "base/cpu.h"
#include "decode/jpeg_codec.h"
#include "decode/jpeg_impl.h"
#include "decode/jpeg_mem.h"

/* 2.1 added fancy upsampling of 4:4:0, which Pillow's libjpeg-turbo has as well, and fixed
 * jpeg_skip_scanlines() (CVE-2020-35538). */
#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "feedmill needs libjpeg-turbo 2.1 or newer"
#endif

/* ---- libjpeg-turbo's version ----------------------------------------------------------------- */

#define TEXT_OF(value) #value
#define TEXT(macro) TEXT_OF(macro)

const char *fm_jpeg_version(void) { return TEXT(LIBJPEG_TURBO_VERSION); }

bool fm_jpeg_own_huffman(void) { return FM_HAVE_JPEG_INTERNALS; }

/* ---- libjpeg's callbacks --------------------------------------------------------------------- */

static void on_error(j_common_ptr codec) {
    fm_jpeg *const jpeg = codec->client_data;
    longjmp(jpeg->escape, 1);
}

/* Level -1 is a warning, other levels are traces. Keeps the first warning for the error message. */
static void on_message(j_common_ptr codec, int level) {
    fm_jpeg *const jpeg = codec->client_data;
    if (level >= 0) return;
    if (jpeg->is_shortened && codec->err->msg_code == JWRN_EXTRANEOUS_DATA) return;
    if (codec->err->num_warnings++ == 0) codec->err->format_message(codec, jpeg->warning);
}

/* The library never prints. */
static void on_output(j_common_ptr codec) { (void)codec; }

/* libjpeg calls this for each row of blocks, also while it reads all of a progressive file. */
static void on_progress(j_common_ptr codec) {
    fm_jpeg *const jpeg = codec->client_data;
    if (jpeg->cancelled && atomic_load_explicit(jpeg->cancelled, memory_order_relaxed))
        longjmp(jpeg->escape, 1);
}

/* ---- statuses -------------------------------------------------------------------------------- */

/* After a longjmp: sets the error of libjpeg or of the Huffman decoder, and returns its status. */
static int fail(fm_jpeg *jpeg, fm_error *error) {
    jpeg->state = STATE_FAILED;
    if (jpeg->cancelled && atomic_load_explicit(jpeg->cancelled, memory_order_relaxed))
        return fm_error_set(error, FM_ERR_CANCELLED, "decoding was cancelled");
    if (jpeg->damage)
        return fm_error_set(error, FM_ERR_DAMAGED, "damaged image data: %s", jpeg->damage);
    char text[JMSG_LENGTH_MAX] = "";
    jpeg->errors.format_message((j_common_ptr)&jpeg->codec, text);
    int status = FM_ERR_DAMAGED;
    if (jpeg->errors.msg_code == JERR_OUT_OF_MEMORY) status = FM_ERR_NOMEM;
    if (jpeg->errors.msg_code == JERR_FRACT_SAMPLE_NOTIMPL ||
        jpeg->errors.msg_code == JERR_CONVERSION_NOTIMPL)
        status = FM_ERR_KIND;
    return fm_error_set(error, status, "libjpeg: %s", text);
}

/*
 * libjpeg warns where it continues with made-up data. Whether the rows then equal Pillow's depends
 * on the version of libjpeg, so such files are left to Pillow.
 */
static int check_warnings(fm_jpeg *jpeg, fm_error *error) {
    if (jpeg->errors.num_warnings == 0) return FM_OK;
    jpeg->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_DAMAGED, "libjpeg: %s", jpeg->warning);
}

static int check_state(const fm_jpeg *jpeg, enum state wanted, const char *call, fm_error *error) {
    assert(jpeg->state == wanted || jpeg->state == STATE_FAILED);
    if (jpeg->state == wanted) return FM_OK;
    return fm_error_set(error, FM_ERR_STATE, "%s called in the wrong state", call);
}

/* ---- open, close ----------------------------------------------------------------------------- */

int fm_jpeg_open(fm_jpeg **out, const fm_limits *limits, fm_mem_counter *counter, fm_error *error) {
    fm_jpeg *const jpeg = fm_mem_zalloc(counter, 1, sizeof(*jpeg));
    *out = jpeg;
    if (!jpeg) return fm_error_set(error, FM_ERR_NOMEM, "no memory for a JPEG decoder");
    fm_cpu_tier tier; /* what FEEDMILL_CPU names; others report a name that is unknown */
    if (fm_cpu_tier_get(&tier, NULL)) tier = FM_CPU_SCALAR;
    jpeg->huffman = fm_huffman_open(counter, tier);
    if (!jpeg->huffman) {
        fm_jpeg_close(out);
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a JPEG decoder");
    }
#if FM_HAVE_JPEG_INTERNALS
    /* Where there are only scalar kernels, libjpeg-turbo may have faster ones. */
    if (tier > FM_CPU_SCALAR) jpeg->rows = fm_jpeg_rows_open(counter, tier);
    if (tier > FM_CPU_SCALAR && !jpeg->rows) {
        fm_jpeg_close(out);
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for a JPEG decoder");
    }
#endif
    jpeg->limits = *limits;
    jpeg->codec.err = jpeg_std_error(&jpeg->errors);
    jpeg->errors.error_exit = on_error;
    jpeg->errors.emit_message = on_message;
    jpeg->errors.output_message = on_output;
    jpeg->codec.client_data = jpeg;
    if (setjmp(jpeg->escape)) {
        const int status = fail(jpeg, error);
        fm_jpeg_close(out);
        return status;
    }
    jpeg_create_decompress(&jpeg->codec);
    const int status = fm_jpeg_mem_install(&jpeg->codec, counter, error);
    if (status) {
        fm_jpeg_close(out);
        return status;
    }
    fm_jpeg_codec_set_source(&jpeg->codec, &jpeg->source);
    jpeg->progress.progress_monitor = on_progress;
    jpeg->codec.progress = &jpeg->progress;
    return FM_OK;
}

void fm_jpeg_watch(fm_jpeg *jpeg, const _Atomic bool *cancelled) { jpeg->cancelled = cancelled; }

void fm_jpeg_set_bgr(fm_jpeg *jpeg, bool bgr) { jpeg->bgr = bgr; }

void fm_jpeg_set_interval_skipping(fm_jpeg *jpeg, bool skip_intervals, bool is_partial) {
    jpeg->allow_skipping = skip_intervals;
    jpeg->is_partial = is_partial;
}

void fm_jpeg_set_seek(fm_jpeg *jpeg, fm_jpeg_seek *seek) { jpeg->seek = seek; }

void fm_jpeg_close(fm_jpeg **jpeg) {
    if (!jpeg || !*jpeg) return;
    jpeg_destroy_decompress(&(*jpeg)->codec);
    fm_huffman_close(&(*jpeg)->huffman);
    fm_jpeg_rows_close(&(*jpeg)->rows);
    fm_mem_free(*jpeg);
    *jpeg = NULL;
}

void fm_jpeg_end(fm_jpeg *jpeg) {
    if (jpeg->seek_data && jpeg->seek->is_changed)
        fm_jpeg_seek_set_checksum(jpeg->seek, jpeg->bytes, jpeg->seek_data);
    jpeg->seek_data = NULL;
    jpeg_abort_decompress(&jpeg->codec);
    jpeg->state = STATE_IDLE;
}

bool fm_jpeg_is_large(const fm_jpeg *jpeg) { return fm_jpeg_mem_is_large(&jpeg->codec); }

void fm_jpeg_trim(fm_jpeg *jpeg) { fm_jpeg_mem_trim(&jpeg->codec); }

/* ---- one image ------------------------------------------------------------------------------- */

/* Makes libjpeg read the image's header. Errors leave by longjmp(). */
static void read_header(fm_jpeg *jpeg) {
    jpeg->source.next_input_byte = jpeg->bytes;
    jpeg->source.bytes_in_buffer = jpeg->scan.n_bytes;
    jpeg->errors.num_warnings = 0;
    jpeg->is_shortened = false;
    jpeg_read_header(&jpeg->codec, TRUE);
}

int fm_jpeg_begin(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                  fm_error *error) {
    const int wrong = check_state(jpeg, STATE_IDLE, "fm_jpeg_begin()", error);
    if (wrong) return wrong;
    jpeg->state = STATE_FAILED;
    const int status = fm_jpeg_scan_file(&jpeg->scan, bytes, n_bytes, &jpeg->limits, error);
    if (status) return status;
    if (jpeg->is_partial && !jpeg->scan.single_pass)
        return fm_error_set(error, FM_ERR_DAMAGED, "a partial JPEG with several scans");
    jpeg->bytes = bytes;
    jpeg->damage = NULL;
    jpeg->raw_rows = NULL;
    jpeg->divisor = 1;
    if (setjmp(jpeg->escape)) return fail(jpeg, error);
    read_header(jpeg);
    *info = jpeg->scan.info;
    info->n_bytes = jpeg->scan.n_bytes;
    jpeg->state = STATE_BEGUN;
    return check_warnings(jpeg, error);
}

int fm_jpeg_measure(fm_jpeg *jpeg, const uint8_t *bytes, size_t n_bytes, fm_image_info *info,
                    fm_error *error) {
    return fm_jpeg_scan_header(info, bytes, n_bytes, &jpeg->limits, error);
}

void fm_jpeg_set_divisor(fm_jpeg *jpeg, int32_t divisor) { jpeg->divisor = divisor; }

/* The image as it is decoded. */
static fm_image_info decoded_info(const fm_jpeg *jpeg) {
    fm_image_info info = jpeg->scan.info;
    info.width = (info.width + jpeg->divisor - 1) / jpeg->divisor;
    info.height = (info.height + jpeg->divisor - 1) / jpeg->divisor;
    return info;
}

/*
 * The columns to decode: those of the box, and one more on each side for fancy upsampling, at least
 * three of each component: with fewer, libjpeg-turbo upsamples in another way than in the whole
 * image.
 */
static void columns(const fm_jpeg *jpeg, const fm_box *box, JDIMENSION *left, JDIMENSION *width) {
    const int32_t image_width = decoded_info(jpeg).width;
    const int32_t least = 3 * jpeg->scan.max_h_factor;
    int32_t from = box->left > 0 ? box->left - 1 : 0;
    int32_t to = box->left + box->width < image_width ? box->left + box->width + 1 : image_width;
    if (to - from < least) to = from + least < image_width ? from + least : image_width;
    if (to - from < least) from = to > least ? to - least : 0;
    *left = (JDIMENSION)from;
    *width = (JDIMENSION)(to - from);
}

/* Size of the coefficients that libjpeg keeps of an image with several scans. */
static uint64_t coefficient_bytes(const fm_jpeg *jpeg) {
    if (jpeg->scan.single_pass) return 0;
    uint64_t n_bytes = 0;
    for (int c = 0; c < jpeg->codec.num_components; c++) {
        const jpeg_component_info *const component = &jpeg->codec.comp_info[c];
        n_bytes +=
            (uint64_t)component->width_in_blocks * component->height_in_blocks * sizeof(JBLOCK);
    }
    return n_bytes;
}

/*
 * libjpeg reads all scans of a file with several before the first row. This tells libjpeg that the
 * image ends below the box, so that it goes on to the next marker in each scan instead of decoding
 * the rest, which saves most of that time.
 */
static void end_image_below(fm_jpeg *jpeg, const fm_box *box) {
    struct jpeg_decompress_struct *const codec = &jpeg->codec;
    const JDIMENSION unit_rows = (JDIMENSION)codec->max_v_samp_factor * DCTSIZE;
    /* One row more than the box has, for fancy upsampling. */
    const JDIMENSION n_rows = (JDIMENSION)((box->top + box->height) * jpeg->divisor);
    const JDIMENSION n_units = n_rows / unit_rows + 1;
    if (jpeg->scan.single_pass || n_units >= codec->total_iMCU_rows) return;
    codec->total_iMCU_rows = n_units;
    codec->image_height = n_units * unit_rows;
    for (int c = 0; c < codec->num_components; c++) {
        jpeg_component_info *const component = &codec->comp_info[c];
        component->height_in_blocks = n_units * (JDIMENSION)component->v_samp_factor;
        component->downsampled_height = component->height_in_blocks * DCTSIZE;
    }
    jpeg->is_shortened = true;
}

/* Before libjpeg reads the coefficients: shortens the image, and checks their size. */
static int prepare_scans(fm_jpeg *jpeg, const fm_box *box, fm_error *error) {
    end_image_below(jpeg, box);
    const uint64_t n_bytes = coefficient_bytes(jpeg);
    /* Larger images are left to Pillow, which decodes one at a time. */
    if (n_bytes <= FM_JPEG_MEM_COEFFICIENT_BYTES) return FM_OK;
    jpeg->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_LIMIT,
                        "a JPEG of %dx%d pixels and several scans; its coefficients take %llu MB, "
                        "the limit is %llu",
                        jpeg->scan.info.width, jpeg->scan.info.height,
                        (unsigned long long)(n_bytes >> 20),
                        (unsigned long long)(FM_JPEG_MEM_COEFFICIENT_BYTES >> 20));
}

/* After libjpeg has read them. */
static int check_complete(fm_jpeg *jpeg, fm_error *error) {
    if (fm_jpeg_codec_is_complete(&jpeg->codec)) return FM_OK;
    jpeg->state = STATE_FAILED;
    return fm_error_set(error, FM_ERR_DAMAGED, "a progressive JPEG that lacks some scans");
}

/* ---- CMYK ------------------------------------------------------------------------------------ */

/* a * b / 255, rounded, as Pillow computes it. */
static uint32_t times(uint32_t a, uint32_t b) {
    const uint32_t product = a * b + 128;
    return ((product >> 8) + product) >> 8;
}

/*
 * As Pillow (Convert.c), which assumes that all CMYK files are inverted as Adobe's are (255 means
 * no ink), and converts to RGB without a color profile.
 */
static void cmyk_to_rgb(const uint8_t *cmyk, uint8_t *rgb, size_t n_px) {
    for (size_t i = 0; i < n_px; i++) {
        const uint32_t light = cmyk[4 * i + 3];
        for (size_t c = 0; c < 3; c++)
            rgb[3 * i + c] = (uint8_t)(light - times(255u - cmyk[4 * i + c], light));
    }
}

/* ---- rows without libjpeg's help ------------------------------------------------------------- */

#if FM_HAVE_JPEG_INTERNALS
/* Leaves by longjmp() unless the status is FM_JPEG_ROWS_OK. */
static void check_rows(fm_jpeg *jpeg, fm_jpeg_rows_status status) {
    if (status == FM_JPEG_ROWS_OK) return;
    if (status == FM_JPEG_ROWS_DAMAGED) jpeg->damage = fm_huffman_damage(jpeg->huffman);
    longjmp(jpeg->escape, 1);
}

static const int16_t *blocks_of(void *owner, int32_t component, int32_t row) {
    fm_jpeg *const jpeg = owner;
    return jpeg->codec.mem->access_virt_barray(
        (j_common_ptr)&jpeg->codec, jpeg->coefficients[component], (JDIMENSION)row, 1, FALSE)[0][0];
}

/* The seek points of a file with a single scan, of which libjpeg has read nothing yet. */
static fm_jpeg_seek *begin_seek(fm_jpeg *jpeg) {
    if (!jpeg->seek || jpeg->is_partial || jpeg->codec.restart_interval) return NULL;
    jpeg->seek_data = jpeg->codec.src->next_input_byte;
    fm_jpeg_seek_check(jpeg->seek, jpeg->bytes, jpeg->scan.n_bytes, jpeg->seek_data);
    return jpeg->seek;
}

static void start_source(fm_jpeg *jpeg, size_t n_bytes, fm_huffman *huffman) {
    struct jpeg_decompress_struct *const codec = &jpeg->codec;
    const fm_jpeg_rows_source source = {.huffman = huffman,
                                        .blocks = blocks_of,
                                        .owner = jpeg,
                                        .cancelled = jpeg->cancelled,
                                        .skips_intervals =
                                            huffman && fm_jpeg_can_skip_intervals(jpeg),
                                        .seek = huffman ? begin_seek(jpeg) : NULL,
                                        .n_bytes = jpeg->scan.n_bytes,
                                        .bgr = jpeg->bgr};
    uint8_t *const memory = codec->mem->alloc_large((j_common_ptr)codec, JPOOL_IMAGE, n_bytes);
    check_rows(jpeg, fm_jpeg_rows_start(jpeg->rows, memory, &source));
}

/* Makes libjpeg begin anew with an image of several scans, which it has decoded. */
static void rewind_scans(fm_jpeg *jpeg) {
    jpeg_abort_decompress(&jpeg->codec);
    read_header(jpeg);
}

/*
 * Starts decoding the box by jpeg->rows. Of a file with several scans, libjpeg decodes all
 * coefficients first. Sets jpeg->uses_rows to false, without effect, if the image is not supported.
 * Errors leave by longjmp(), or are returned.
 */
static int start_rows(fm_jpeg *jpeg, const fm_box *box, fm_error *error) {
    struct jpeg_decompress_struct *const codec = &jpeg->codec;
    fm_jpeg_frame frame;
    size_t n_bytes;
    jpeg->uses_rows = jpeg->rows && fm_jpeg_codec_frame(codec, &frame) &&
                      fm_jpeg_rows_plan(jpeg->rows, &frame, box, &n_bytes);
    if (!jpeg->uses_rows) return FM_OK;
    if (jpeg->scan.single_pass) {
        jpeg->uses_rows = fm_jpeg_codec_begin_huffman(codec, jpeg->huffman);
        if (jpeg->uses_rows) start_source(jpeg, n_bytes, jpeg->huffman);
        return FM_OK;
    }
    const int32_t height = frame.height;
    int status = prepare_scans(jpeg, box, error);
    if (status) return status;
    jpeg->coefficients = jpeg_read_coefficients(codec);
    status = check_complete(jpeg, error);
    if (status) return status;
    /* The scans may have used other tables than those of the header. */
    jpeg->uses_rows = fm_jpeg_codec_frame(codec, &frame);
    frame.height = height;
    jpeg->uses_rows = jpeg->uses_rows && fm_jpeg_rows_plan(jpeg->rows, &frame, box, &n_bytes);
    if (jpeg->uses_rows)
        start_source(jpeg, n_bytes, NULL);
    else
        rewind_scans(jpeg);
    return FM_OK;
}
#else
static int start_rows(fm_jpeg *jpeg, const fm_box *box, fm_error *error) {
    (void)jpeg, (void)box, (void)error;
    return FM_OK;
}
#endif

/* ---- rows by libjpeg ------------------------------------------------------------------------- */

/* Most rows that libjpeg returns in one call: a row group with the highest sampling factor. */
#define N_RAW_ROWS 4
/* Writable bytes after a row, for libjpeg-turbo's SIMD code. */
#define SLACK_BYTES 64

#if JPEG_LIB_VERSION >= 70
#define SCALED_WIDTH(component) (component)->DCT_h_scaled_size
#define LEAST_SCALED_WIDTH(codec) (codec)->min_DCT_h_scaled_size
#else
#define SCALED_WIDTH(component) (component)->DCT_scaled_size
#define LEAST_SCALED_WIDTH(codec) (codec)->min_DCT_scaled_size
#endif

/*
 * jpeg_crop_scanline() of libjpeg-turbo 2.1 sets each component's width as if none of its
 * upsampling were done by the inverse DCT, as it is at a reduced size. Fancy upsampling would then
 * take pixels within the crop for its right edge.
 */
static void correct_widths(j_decompress_ptr codec) {
    for (int c = 0; c < codec->num_components; c++) {
        jpeg_component_info *const component = &codec->comp_info[c];
        const JDIMENSION n = (JDIMENSION)(component->h_samp_factor * SCALED_WIDTH(component));
        const JDIMENSION of = (JDIMENSION)(codec->max_h_samp_factor * LEAST_SCALED_WIDTH(codec));
        component->downsampled_width = (codec->output_width * n + of - 1) / of;
    }
}

/* Starts libjpeg's decoding of a box; its rows are those of the box's columns and some more, which
 * begin at *left. Errors leave by longjmp(), or are returned. */
static int start_libjpeg(fm_jpeg *jpeg, const fm_box *box, JDIMENSION *left, JDIMENSION *width,
                         fm_error *error) {
    struct jpeg_decompress_struct *const codec = &jpeg->codec;
    int status = prepare_scans(jpeg, box, error);
    if (status) return status;
    const JDIMENSION divisor = (JDIMENSION)jpeg->divisor;
    const bool is_cmyk = jpeg->scan.info.n_components == 4;
    codec->out_color_space = is_cmyk ? JCS_CMYK : jpeg->bgr ? JCS_EXT_BGR : JCS_RGB;
    codec->dct_method = JDCT_ISLOW;
    codec->do_fancy_upsampling = TRUE;
    codec->scale_num = 1;
    codec->scale_denom = (unsigned)jpeg->divisor;
    codec->do_block_smoothing = FALSE; /* only for incomplete images, which are refused */
    jpeg_start_decompress(codec);
    status = check_complete(jpeg, error);
    if (status) return status;
    columns(jpeg, box, left, width);
    jpeg_crop_scanline(codec, left, width);
    if (divisor > 1) correct_widths(codec);
    if (jpeg->scan.single_pass)
        fm_jpeg_replace_entropy_decoder(jpeg, *left * divisor, *width * divisor,
                                        (JDIMENSION)(box->top + box->height) * divisor - 1);
    if (is_cmyk || jpeg->uses_rows)
        jpeg->raw_rows = codec->mem->alloc_sarray((j_common_ptr)codec, JPOOL_IMAGE,
                                                  4 * *width + SLACK_BYTES, N_RAW_ROWS);
    if (box->top > 0) jpeg_skip_scanlines(codec, (JDIMENSION)box->top);
    return FM_OK;
}

#if FM_HAVE_JPEG_INTERNALS
/* Makes libjpeg go on with the rows that are left, where jpeg->rows can't. */
static void resume_by_libjpeg(fm_jpeg *jpeg) {
    fm_box rest = jpeg->box;
    rest.top += rest.height - jpeg->n_rows_left;
    rest.height = jpeg->n_rows_left;
    int32_t skip_px;
    fm_jpeg_rows_layout(jpeg->rows, &skip_px, &jpeg->kept_px);
    if (!jpeg->scan.single_pass) rewind_scans(jpeg);
    JDIMENSION left, width;
    /* What is returned as an error was checked before. */
    if (start_libjpeg(jpeg, &rest, &left, &width, NULL)) ERREXIT(&jpeg->codec, JERR_NOT_COMPILED);
    jpeg->cut_px = rest.left - skip_px - (int32_t)left;
    jpeg->uses_rows = false;
}
#endif

/* Reads up to n rows from libjpeg, in RGB, and returns their number. Errors leave by longjmp(). */
static int32_t read_libjpeg(fm_jpeg *jpeg, uint8_t *const *rows, int32_t n) {
    struct jpeg_decompress_struct *const codec = &jpeg->codec;
    /* libjpeg writes to the rows, not to the array of pointers. */
    JSAMPARRAY into = (JSAMPARRAY)(uintptr_t)rows;
    if (jpeg->raw_rows) {
        into = jpeg->raw_rows;
        if (n > N_RAW_ROWS) n = N_RAW_ROWS;
    }
    const int32_t got = (int32_t)jpeg_read_scanlines(codec, into, (JDIMENSION)n);
    if (got == 0) ERREXIT(codec, JERR_CANT_SUSPEND);
    for (int32_t y = 0; jpeg->raw_rows && y < got; y++) {
        if (codec->out_color_space == JCS_CMYK)
            cmyk_to_rgb(into[y], rows[y], codec->output_width);
        else
            memcpy(rows[y], into[y] + 3 * (size_t)jpeg->cut_px, 3 * (size_t)jpeg->kept_px);
    }
    return got;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Reads up to n rows and returns their number. Errors leave by longjmp(). */
static int32_t read_rows(fm_jpeg *jpeg, uint8_t *const *rows, int32_t n) {
#if FM_HAVE_JPEG_INTERNALS
    if (jpeg->uses_rows) {
        const fm_jpeg_rows_status status = fm_jpeg_rows_read(jpeg->rows, rows, n);
        if (status == FM_JPEG_ROWS_OK) return n;
        if (status != FM_JPEG_ROWS_OUT_OF_RANGE) check_rows(jpeg, status);
        resume_by_libjpeg(jpeg);
    }
#endif
    return read_libjpeg(jpeg, rows, n);
}

int fm_jpeg_start(fm_jpeg *jpeg, const fm_box *box, int32_t *skip_px, int32_t *row_px,
                  fm_error *error) {
    const int wrong = check_state(jpeg, STATE_BEGUN, "fm_jpeg_start()", error);
    if (wrong) return wrong;
    const fm_image_info info = decoded_info(jpeg);
    if (!fm_box_is_within(box, &info))
        return fm_error_set(error, FM_ERR_ARGUMENT, "box %d,%d %dx%d is not within %dx%d pixels",
                            box->left, box->top, box->width, box->height, info.width, info.height);
    if (setjmp(jpeg->escape)) return fail(jpeg, error);
    jpeg->uses_rows = false;
    int status = jpeg->divisor == 1 ? start_rows(jpeg, box, error) : FM_OK;
    if (status) return status;
    if (jpeg->uses_rows) {
        fm_jpeg_rows_layout(jpeg->rows, skip_px, row_px);
    } else {
        JDIMENSION left = 0, width = 0;
        status = start_libjpeg(jpeg, box, &left, &width, error);
        if (status) return status;
        *skip_px = box->left - (int32_t)left;
        *row_px = (int32_t)width;
    }
    jpeg->box = *box;
    jpeg->n_rows_left = box->height;
    jpeg->state = STATE_STARTED;
    return check_warnings(jpeg, error);
}

int fm_jpeg_read(fm_jpeg *jpeg, uint8_t *const *rows, int32_t n_rows, fm_error *error) {
    const int wrong = check_state(jpeg, STATE_STARTED, "fm_jpeg_read()", error);
    if (wrong) return wrong;
    const int32_t n = n_rows < jpeg->n_rows_left ? n_rows : jpeg->n_rows_left;
    if (n < 1) return fm_error_set(error, FM_ERR_STATE, "fm_jpeg_read(): no rows are left");
    if (setjmp(jpeg->escape)) return fail(jpeg, error);
    for (int32_t done = 0; done < n;) done += read_rows(jpeg, rows + done, n - done);
    jpeg->n_rows_left -= n;
    const int status = check_warnings(jpeg, error);
    return status ? status : n;
}
