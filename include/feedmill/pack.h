/*
 * feedmill - making packs: JPEGs rewritten so that a crop of them decodes fast.
 *
 * A transcoder takes a JPEG apart into its coefficients and writes them anew: one baseline scan of
 * all components, Huffman tables made for the image, and a restart marker every few MCUs, so that a
 * reader can begin in the middle. No coefficient changes, and so no pixel does:
 *
 *     fm_transcoder_config config;
 *     fm_transcoder_config_init(&config);
 *     fm_transcoder *transcoder = NULL;
 *     fm_error error;
 *     if (fm_transcoder_open(&transcoder, &config, &error)) die(error.message);
 *     fm_transcoded out;
 *     if (fm_transcoder_run(transcoder, bytes, n_bytes, &out, &error)) die(error.message);
 *     if (out.reason == FM_PACK_TRANSCODED)
 *         store(out.bytes, out.n_bytes);
 *     else
 *         store(bytes, n_bytes);   // as it is; out.why says why
 *     fm_transcoder_close(&transcoder);
 *
 * Status and error: as in feedmill.h. Threads: one thread at a time may use a transcoder; open one
 * for each thread. The bytes that come out depend on the input, the configuration and the version
 * of libjpeg-turbo, on nothing else.
 */
#ifndef FEEDMILL_PACK_H
#define FEEDMILL_PACK_H

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether an image was transcoded, or why it is stored as it is. X(name, value, text) */
#define FM_PACK_REASON_LIST(X)                                        \
    X(TRANSCODED, 0, "transcoded")                                    \
    X(NOT_JPEG, 1, "not a JPEG")                                      \
    X(ARITHMETIC, 2, "arithmetic coding")                             \
    X(PRECISION, 3, "more than 8 bits a sample")                      \
    X(LOSSLESS, 4, "lossless or hierarchical")                        \
    X(NO_HEIGHT, 5, "the height is not in the header (DNL)")          \
    X(BLOCKS, 6, "more than 10 blocks an MCU")                        \
    X(DAMAGED, 7, "damaged or cut short")                             \
    X(INCOMPLETE, 8, "progressive, and some scans are missing")       \
    X(UNUSUAL, 9, "of a structure that can't be kept exactly")        \
    X(LIMIT, 10, "more pixels or bytes than the transcoder may take") \
    X(DIFFERS, 11, "the transcoded image's pixels are not the source's")

typedef enum fm_pack_reason {
#define FM_X(name, value, text) FM_PACK_##name = value,
    FM_PACK_REASON_LIST(FM_X)
#undef FM_X
} fm_pack_reason;

/* The text of a reason; "unknown reason" for other values. */
FM_API const char *fm_pack_reason_text(int reason);

typedef struct fm_transcoder_config {
    size_t struct_bytes; /* sizeof(fm_transcoder_config), set by init */
    /* MCUs from one restart marker to the next, 1 to 65,535; default 4. The divisor of the MCUs per
     * row that is nearest to it by ratio is taken, the larger one of two; or, where the markers
     * would then cost more than max_cost_ppm millionths of the source's bytes, the next larger
     * divisor with which they do not, at most the whole row. Default 3,000; UINT32_MAX: whatever
     * they cost. */
    uint32_t interval, max_cost_ppm;
    /* Decode source and result, and compare all pixels; default true. Files of several scans whose
     * coefficients take more than 80 MiB (13 million pixels at 4:4:4, 27 million at 4:2:0) can't be
     * compared, and are stored as they are then: FM_PACK_LIMIT. */
    bool verify;
    uint64_t max_image_pixels; /* default 2^27; coefficients take 6 bytes a pixel at most */
    uint64_t max_file_bytes;   /* of a source, and of a result; default 2^30 */
} fm_transcoder_config;

/* Fills in the defaults. */
FM_API void fm_transcoder_config_init(fm_transcoder_config *config);

/* Where rows of MCUs begin is noted of so many of them. */
#define FM_PACK_ROWS 8

typedef struct fm_transcoded {
    int reason;           /* an fm_pack_reason */
    const uint8_t *bytes; /* the new JPEG, until the next run or close; NULL: stored as it is */
    size_t n_bytes;
    int32_t width, height;               /* pixels; 0 where they are not known */
    int32_t mcu_width_px, mcu_height_px; /* 8 to 32; this and what follows: 0 if stored as it is */
    uint32_t interval;     /* MCUs from one restart marker to the next, a divisor of mcus_per_row */
    uint32_t mcus_per_row; /* MCUs side by side */
    uint32_t mcu_rows;     /* MCUs one above the other */
    /* Bytes from the JPEG's start to the first of row k * mcu_rows / FM_PACK_ROWS of MCUs, which
     * begins an interval. What stands before [0] is the header. */
    uint64_t row_offsets[FM_PACK_ROWS];
    char why[256]; /* one sentence on why it is stored as it is; "" if it is not */
} fm_transcoded;

typedef struct fm_transcoder fm_transcoder;

/*
 * Opens a transcoder. On failure *out is NULL. FM_ERR_ARGUMENT: an interval of 0 or above 65,535,
 * or struct_bytes is not set; FM_ERR_NOMEM.
 */
FM_API FM_CHECK_RESULT int fm_transcoder_open(fm_transcoder **out,
                                              const fm_transcoder_config *config, fm_error *error);

/*
 * Transcodes an image of any format; what is not transcoded is FM_OK with a reason, too. All APPn
 * and COM segments that stand before the image data are kept, byte by byte and in their order; what
 * lies behind the image's end marker is left out. Without `verify` whatever libjpeg-turbo reads
 * without a warning is taken for whole. FM_ERR_ARGUMENT, FM_ERR_NOMEM.
 */
FM_API FM_CHECK_RESULT int fm_transcoder_run(fm_transcoder *transcoder, const void *bytes,
                                             size_t n_bytes, fm_transcoded *out, fm_error *error);

/* Accepts NULL and a pointer to NULL; the pointer is NULL afterwards. */
FM_API void fm_transcoder_close(fm_transcoder **transcoder);

#ifdef __cplusplus
}
#endif

#endif
