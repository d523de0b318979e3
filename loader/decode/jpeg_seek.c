#include "decode/jpeg_seek.h"

#include <string.h>

#include "base/checksum.h"

/* Shorter intervals are not worth their memory. */
#define LEAST_MCUS 4u
/* Longer ones, of common qualities, would have more bits than fm_jpeg_seek_end can hold. */
#define MOST_BLOCKS 192u
/* The ends of an image take at most this part of its bytes, if its intervals are not too long. */
#define BYTES_PER_END_BYTE 256u

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/* The file's bytes that the points depend on: the byte with the next bit, and the zero that is
 * stuffed behind it if it is FF. A marker follows the last one, so that there are two. */
static size_t covered_bytes(const fm_jpeg_seek *seek, const uint8_t *bytes, const uint8_t *data) {
    return (size_t)(data - bytes) + seek->begin_bits[seek->head.n] / 8 + 2;
}

static void drop(fm_jpeg_seek *seek) {
    seek->is_changed = true;
    seek->n_used = 0;
    seek->head = (fm_jpeg_seek_head){0};
}

void fm_jpeg_seek_check(fm_jpeg_seek *seek, const uint8_t *bytes, size_t n_bytes,
                        const uint8_t *data) {
    const fm_jpeg_seek_head *const head = &seek->head;
    seek->is_changed = false;
    seek->n_used = head->n;
    seek->begin_bits[0] = 0;
    for (uint32_t i = 0; i < head->n; i++)
        seek->begin_bits[i + 1] = seek->begin_bits[i] + seek->ends[i].n_bits;
    /* Points that lead out of the file were not found in it, whatever their checksum is. */
    if (head->n == 0)
        seek->head = (fm_jpeg_seek_head){0};
    else if (head->n_bytes > n_bytes || head->n_bytes != covered_bytes(seek, bytes, data) ||
             fm_checksum(bytes, head->n_bytes) != head->checksum)
        drop(seek);
}

/* Whether the intervals that are known divide the image. */
static bool divides(const fm_jpeg_seek_head *head, const fm_jpeg_seek_image *image) {
    return head->interval_mcus <= image->row_mcus &&
           head->row_intervals == ceil_div(image->row_mcus, head->interval_mcus) &&
           head->n_all == (uint64_t)head->row_intervals * image->n_rows && head->n <= head->n_all;
}

bool fm_jpeg_seek_begin(fm_jpeg_seek *seek, const fm_jpeg_seek_image *image) {
    fm_jpeg_seek_head *const head = &seek->head;
    if (head->interval_mcus && divides(head, image)) return true;
    if (head->n > 0) drop(seek);
    const size_t max_bytes = image->n_bytes / BYTES_PER_END_BYTE;
    const uint32_t max_ends = max_bytes < seek->max_bytes ? (uint32_t)max_bytes : seek->max_bytes;
    uint32_t row_intervals = max_ends / (uint32_t)sizeof(*seek->ends) / image->n_rows;
    row_intervals = least(row_intervals, image->row_mcus / LEAST_MCUS);
    row_intervals = most(row_intervals, ceil_div(image->row_mcus * image->mcu_blocks, MOST_BLOCKS));
    row_intervals = least(row_intervals, image->row_mcus);
    head->interval_mcus = ceil_div(image->row_mcus, row_intervals);
    head->row_intervals = ceil_div(image->row_mcus, head->interval_mcus);
    head->n_all = head->row_intervals * image->n_rows;
    if (head->n_all <= FM_JPEG_SEEK_MAX) return true;
    *head = (fm_jpeg_seek_head){0};
    return false;
}

bool fm_jpeg_seek_add(fm_jpeg_seek *seek, const fm_huffman_point *end) {
    fm_jpeg_seek_head *const head = &seek->head;
    fm_jpeg_seek_end *const added = &seek->ends[head->n];
    const uint64_t n_bits = end->bit - seek->begin_bits[head->n];
    if (n_bits > UINT16_MAX) return false;
    added->n_bits = (uint16_t)n_bits;
    for (int c = 0; c < FM_JPEG_SEEK_COMPONENTS; c++) {
        added->dc[c] = (int16_t)end->dc[c];
        if (added->dc[c] != end->dc[c]) return false;
    }
    seek->begin_bits[++head->n] = end->bit;
    seek->is_changed = true;
    return head->n < head->n_all;
}

uint32_t fm_jpeg_seek_last(const fm_jpeg_seek *seek, uint32_t mcu, uint32_t row_mcus) {
    const fm_jpeg_seek_head *const head = &seek->head;
    const uint32_t interval =
        mcu / row_mcus * head->row_intervals + mcu % row_mcus / head->interval_mcus;
    return least(interval, head->n);
}

void fm_jpeg_seek_get(const fm_jpeg_seek *seek, uint32_t interval, fm_huffman_point *point) {
    *point = (fm_huffman_point){.bit = seek->begin_bits[interval]};
    for (int c = 0; interval > 0 && c < FM_JPEG_SEEK_COMPONENTS; c++)
        point->dc[c] = seek->ends[interval - 1].dc[c];
}

void fm_jpeg_seek_set_checksum(fm_jpeg_seek *seek, const uint8_t *bytes, const uint8_t *data) {
    seek->head.n_bytes = (uint32_t)covered_bytes(seek, bytes, data);
    seek->head.checksum = fm_checksum(bytes, seek->head.n_bytes);
}
