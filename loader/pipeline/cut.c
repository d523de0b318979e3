#define _GNU_SOURCE
#include "pipeline/cut.h"

#include "transform/geometry.h"

/* Nothing in it is trusted: the least that makes the arithmetic safe. A table that is not the
 * image's leads to a refusal later, and Pillow. */
static bool is_sane(const fm_jpeg_rows *rows) {
    return rows->width >= 1 && rows->width <= FM_MAX_SIDE && rows->height >= 1 &&
           rows->height <= FM_MAX_SIDE && rows->mcu_height >= 8 && rows->mcu_height <= 32 &&
           rows->n >= 1 && rows->n <= FM_MAX_JPEG_ROWS;
}

uint64_t fm_cut_bytes(const fm_plan *plan, const fm_sample *sample, const fm_draw_key *key) {
    const fm_jpeg_rows *const rows = sample->rows;
    fm_geometry geometry;
    if (!is_sane(rows) || fm_geometry_locate(plan->ops, plan->n_ops, plan->n_front, key,
                                             rows->width, rows->height, &geometry, NULL, NULL))
        return sample->range_bytes;
    /* Fancy upsampling looks at the next row of the coarsest component. */
    const int64_t bottom = (int64_t)geometry.source.top + geometry.source.height - 1;
    const int64_t last = (bottom + rows->mcu_height / 8) / rows->mcu_height;
    const int64_t n_mcu_rows = (rows->height + rows->mcu_height - 1) / rows->mcu_height;
    for (uint32_t k = 0; k < rows->n; k++) {
        if (k * n_mcu_rows / rows->n <= last) continue;
        /* No data begins at byte 0, and to the reader 0 bytes are the whole file. */
        const uint64_t begin = rows->begin[k];
        return begin > 0 && begin < sample->range_bytes ? begin : sample->range_bytes;
    }
    return sample->range_bytes;
}

bool fm_cut_end(uint8_t *bytes, uint64_t n_bytes) {
    const bool is_jpeg = n_bytes >= 4 && bytes[0] == 0xFF && bytes[1] == 0xD8;
    if (!is_jpeg || bytes[n_bytes - 2] != 0xFF || (bytes[n_bytes - 1] & 0xF8) != 0xD0) return false;
    bytes[n_bytes - 1] = 0xD9;
    return true;
}
