/*
 * feedmill - the transcoder for packs: rewrites JPEGs so that their crops decode fast.
 *
 * A transcoder reads a JPEG's coefficients and writes them again as one baseline scan of all
 * components, with Huffman tables optimized for the image and a restart marker every few MCUs, at
 * which a decoder can start. No coefficient changes, so no pixel does:
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
 *         store(bytes, n_bytes);   // unchanged; out.why says why
 *     fm_transcoder_close(&transcoder);
 *
 * Status and error: as in feedmill/feedmill.h. Threads: one thread at a time may use a transcoder;
 * open one for each thread. The output depends only on the input, the configuration and the version
 * of libjpeg-turbo.
 */
#ifndef FEEDMILL_PACK_H
#define FEEDMILL_PACK_H

#include "feedmill/feedmill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether an image was transcoded, or why it is stored unchanged. X(name, value, text) */
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
    /* interval: MCUs from one restart marker to the next, 1 to 65,535; default 4. The transcoder
     * uses the divisor of the MCUs per row that is nearest to it by ratio, the larger one of two.
     * max_cost_ppm: limit of the markers' cost in millionths of the source's bytes; default 3,000;
     * UINT32_MAX: no limit. Above it, the next larger divisor within the limit is used, at most the
     * whole row. */
    uint32_t interval, max_cost_ppm;
    /* Decode source and result, and compare all pixels; default true. Files with several scans
     * whose coefficients take more than 80 MiB (13 million pixels at 4:4:4, 27 million at 4:2:0)
     * can't be compared, and are stored unchanged: FM_PACK_LIMIT. */
    bool verify;
    uint64_t max_image_pixels; /* default 2^27; coefficients take 6 bytes a pixel at most */
    uint64_t max_file_bytes;   /* of a source, and of a result; default 2^30 */
} fm_transcoder_config;

/* Fills in the defaults. */
FM_API void fm_transcoder_config_init(fm_transcoder_config *config);

/* Entries of fm_transcoded.row_offsets. */
#define FM_PACK_ROWS 8

typedef struct fm_transcoded {
    int reason;           /* an fm_pack_reason */
    const uint8_t *bytes; /* the new JPEG, until the next run or close; NULL: stored unchanged */
    size_t n_bytes;
    int32_t width, height; /* pixels; 0 where they are not known */
    /* The fields below are 0 if the image is stored unchanged. */
    int32_t mcu_width_px, mcu_height_px; /* 8 to 32 */
    uint32_t interval; /* MCUs from one restart marker to the next, a divisor of mcus_per_row */
    uint32_t mcus_per_row;
    uint32_t mcu_rows;
    /* The restart index. Entry k: offset in bytes from the JPEG's start to the data of MCU row
     * k * mcu_rows / FM_PACK_ROWS, which begins an interval. The header ends at entry 0. */
    uint64_t row_offsets[FM_PACK_ROWS];
    char why[256]; /* one sentence on why it is stored unchanged; "" if it was transcoded */
} fm_transcoded;

typedef struct fm_transcoder fm_transcoder;

/*
 * Opens a transcoder. On failure *out is NULL. FM_ERR_ARGUMENT: an interval of 0 or above 65,535,
 * or struct_bytes is not set; FM_ERR_NOMEM.
 */
FM_API FM_CHECK_RESULT int fm_transcoder_open(fm_transcoder **out,
                                              const fm_transcoder_config *config, fm_error *error);

/*
 * Transcodes an image. Any input is accepted: an image that is not transcoded gives FM_OK with a
 * reason. All APPn and COM segments before the image data are kept byte by byte and in their order;
 * bytes after the EOI marker are dropped. Without `verify`, a file that libjpeg-turbo reads without
 * a warning counts as undamaged. FM_ERR_ARGUMENT, FM_ERR_NOMEM.
 */
FM_API FM_CHECK_RESULT int fm_transcoder_run(fm_transcoder *transcoder, const void *bytes,
                                             size_t n_bytes, fm_transcoded *out, fm_error *error);

/* Accepts NULL and a pointer to NULL; the pointer is NULL afterwards. */
FM_API void fm_transcoder_close(fm_transcoder **transcoder);

#ifdef __cplusplus
}
#endif

#endif
