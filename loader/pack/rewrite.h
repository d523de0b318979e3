/*
 * A JPEG's coefficients, read and written anew by libjpeg-turbo: one interleaved baseline scan with
 * optimized Huffman tables and restart markers.
 *
 * One fm_rewrite per thread. libjpeg's objects are made for each image, so that nothing of one
 * image reaches the next; only the buffer of the result is kept. Memory: 6 bytes a pixel for the
 * coefficients at most, and the result.
 */
#ifndef FM_PACK_REWRITE_H
#define FM_PACK_REWRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "feedmill/pack.h"

typedef struct fm_rewrite fm_rewrite;

/* NULL: out of memory. */
fm_rewrite *fm_rewrite_open(void);

/* What the result should be; the first two as in fm_transcoder_config. */
typedef struct fm_rewrite_wish {
    uint32_t interval, max_cost_ppm;
    size_t max_bytes;
} fm_rewrite_wish;

/*
 * Rewrites a JPEG whose markers are sane and that ends with EOI (fm_jpeg_scan_file() took it).
 * Returns an fm_pack_reason, with the why in *error where it is not FM_PACK_TRANSCODED, or
 * FM_ERR_NOMEM. After FM_PACK_TRANSCODED all fields of *out but reason and why are set; the bytes
 * stay until the next run.
 */
int fm_rewrite_run(fm_rewrite *rewrite, const uint8_t *bytes, size_t n_bytes,
                   const fm_rewrite_wish *wish, fm_transcoded *out, fm_error *error);

/* Accepts NULL. */
void fm_rewrite_close(fm_rewrite *rewrite);

#endif
