#include "decode/jpeg_restart.h"

#define MAX_SIDE 65535 /* of a JPEG, in pixels */

bool fm_jpeg_restart_is_sane(const fm_restart_index *index) {
    return index->width >= 1 && index->width <= MAX_SIDE && index->height >= 1 &&
           index->height <= MAX_SIDE && index->mcu_height >= 8 && index->mcu_height <= 32 &&
           index->n >= 1 && index->n <= FM_MAX_RESTARTS;
}

uint64_t fm_jpeg_restart_bytes(const fm_restart_index *index, int64_t bottom,
                               uint64_t image_bytes) {
    /* Fancy upsampling reads the next row of the coarsest component. */
    const int64_t last = (bottom + index->mcu_height / 8) / index->mcu_height;
    const int64_t n_mcu_rows = (index->height + index->mcu_height - 1) / index->mcu_height;
    for (uint32_t k = 0; k < index->n; k++) {
        if (k * n_mcu_rows / index->n <= last) continue;
        /* No data begins at byte 0, and to the reader 0 bytes mean the whole file. */
        const uint64_t begin = index->begin[k];
        return begin > 0 && begin < image_bytes ? begin : image_bytes;
    }
    return image_bytes;
}

bool fm_jpeg_restart_end(uint8_t *bytes, uint64_t n_bytes) {
    const bool is_jpeg = n_bytes >= 4 && bytes[0] == 0xFF && bytes[1] == 0xD8;
    if (!is_jpeg || bytes[n_bytes - 2] != 0xFF || (bytes[n_bytes - 1] & 0xF8) != 0xD0) return false;
    bytes[n_bytes - 1] = 0xD9;
    return true;
}
