/*
 * Rewrites a JPEG without loss: libjpeg-turbo reads its coefficients and writes them as one
 * interleaved baseline scan with optimized Huffman tables and restart markers.
 *
 * One fm_rewrite per thread. libjpeg's objects are created for each image, so that images can't
 * influence each other; only the output buffer is kept. Memory: at most 6 bytes per pixel for the
 * coefficients, and the output.
 */
#ifndef FM_PACK_REWRITE_H
#define FM_PACK_REWRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "feedmill/pack.h"

typedef struct fm_rewrite fm_rewrite;

/* Returns NULL when out of memory. */
fm_rewrite *fm_rewrite_open(void);

typedef struct fm_rewrite_options {
    uint32_t interval, max_cost_ppm; /* as in fm_transcoder_config */
    size_t max_bytes;                /* limit of the output */
} fm_rewrite_options;

/*
 * Rewrites a JPEG that fm_jpeg_scan_file() has accepted, and that ends with EOI. Returns an
 * fm_pack_reason, with details in *error if it is not FM_PACK_TRANSCODED, or FM_ERR_NOMEM. After
 * FM_PACK_TRANSCODED all fields of *out but `reason` and `why` are set; out->bytes belongs to
 * `rewrite` and is valid until the next run.
 */
int fm_rewrite_run(fm_rewrite *rewrite, const uint8_t *bytes, size_t n_bytes,
                   const fm_rewrite_options *options, fm_transcoded *out, fm_error *error);

/* Accepts NULL. */
void fm_rewrite_close(fm_rewrite *rewrite);

#endif
