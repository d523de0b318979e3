/* The operations of color.h that replace each byte by the entry of a table, or could. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <string.h>

#include "augment/color.h"

static void apply_table(const fm_image *image, const uint8_t table[256]) {
    const size_t n = fm_image_bytes(image);
    uint8_t *const px = image->px;
    for (size_t i = 0; i < n; i++) px[i] = table[px[i]];
}

static void apply_tables(const fm_color_kernels *kernels, const fm_image *image,
                         const uint8_t tables[3 * 256]) {
    if (image->channels == 1)
        apply_table(image, tables);
    else
        kernels->lookup(image->px, (size_t)image->width * (size_t)image->height, tables);
}

/* The threshold of fm_color_solarize() with this table, or -1. */
static int solarize_threshold(const uint8_t table[256]) {
    int threshold = 0;
    while (threshold < 255 && table[threshold] == threshold) threshold++;
    for (int i = threshold; i < 256; i++)
        if (table[i] != 255 - i) return -1;
    return threshold;
}

/* Whether a table clears the bits that are 0 in its last entry. */
static bool is_mask(const uint8_t table[256]) {
    for (int i = 0; i < 256; i++)
        if (table[i] != (i & table[255])) return false;
    return true;
}

/* These two need no table, so that their loops are vectorized. */
static void invert_from(uint8_t *px, size_t n, uint8_t threshold) {
    for (size_t i = 0; i < n; i++) px[i] = (uint8_t)(px[i] ^ (px[i] >= threshold ? 255 : 0));
}

static void mask_bits(uint8_t *px, size_t n, uint8_t mask) {
    for (size_t i = 0; i < n; i++) px[i] &= mask;
}

void fm_color_point(const fm_color_kernels *kernels, const fm_image *image,
                    const uint8_t tables[3 * 256]) {
    const bool is_one = !memcmp(tables, tables + 256, 256) && !memcmp(tables, tables + 512, 256);
    const int threshold = is_one ? solarize_threshold(tables) : -1;
    if (threshold >= 0)
        invert_from(image->px, fm_image_bytes(image), (uint8_t)threshold);
    else if (is_one && is_mask(tables))
        mask_bits(image->px, fm_image_bytes(image), tables[255]);
    else
        apply_tables(kernels, image, tables);
}

void fm_color_invert(const fm_image *image) {
    const size_t n = fm_image_bytes(image);
    uint8_t *const px = image->px;
    for (size_t i = 0; i < n; i++) px[i] = (uint8_t)~px[i];
}

void fm_color_posterize(const fm_image *image, int bits) {
    mask_bits(image->px, fm_image_bytes(image), (uint8_t) ~((1 << (8 - bits)) - 1));
}

void fm_color_solarize(const fm_image *image, double threshold) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)((double)i < threshold ? i : 255 - i);
    apply_table(image, table);
}

void fm_color_count(const uint8_t *px, size_t n_px, uint64_t counts[3][256]) {
    /* Neighbors are often equal. They are counted in two arrays, as an addition to a counter has to
     * wait for the one before. */
    uint64_t others[3][256] = {{0}};
    memset(counts, 0, sizeof(others));
    for (size_t i = 0; i < n_px / 2; i++, px += 6) {
        counts[0][px[0]]++;
        counts[1][px[1]]++;
        counts[2][px[2]]++;
        others[0][px[3]]++;
        others[1][px[4]]++;
        others[2][px[5]]++;
    }
    for (size_t channel = 0; channel < 3; channel++) {
        if (n_px % 2) counts[channel][px[channel]]++;
        for (size_t i = 0; i < 256; i++) counts[channel][i] += others[channel][i];
    }
}

static void count_values(const fm_image *image, uint64_t counts[3][256]) {
    const size_t n = fm_image_bytes(image);
    if (image->channels == 3) {
        fm_color_count(image->px, n / 3, counts);
        return;
    }
    memset(counts, 0, 3 * sizeof(counts[0]));
    for (size_t i = 0; i < n; i++) counts[0][image->px[i]]++;
}

static void stretch(const uint64_t counts[256], uint8_t table[256]) {
    int low = 0, high = 255;
    while (low < 255 && !counts[low]) low++;
    while (high > 0 && !counts[high]) high--;
    const double scale = high > low ? 255.0 / (high - low) : 1;
    const double offset = high > low ? -low * scale : 0;
    for (int i = 0; i < 256; i++) {
        const int value = (int)(i * scale + offset);
        table[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

static void spread(const uint64_t counts[256], uint8_t table[256]) {
    uint64_t total = 0, last = 0, n_used = 0;
    for (int i = 0; i < 256; i++) {
        total += counts[i];
        if (counts[i]) {
            last = counts[i];
            n_used++;
        }
    }
    const uint64_t step = n_used > 1 ? (total - last) / 255 : 0;
    uint64_t sum = step / 2;
    for (int i = 0; i < 256; i++) {
        const uint64_t value = step ? sum / step : (uint64_t)i;
        table[i] = (uint8_t)(value > 255 ? 255 : value);
        sum += counts[i];
    }
}

/* Replaces the bytes of each channel by the table that is made from how often each occurs. */
static void apply_by_counts(const fm_color_kernels *kernels, const fm_image *image,
                            void (*make_table)(const uint64_t counts[256], uint8_t table[256])) {
    uint64_t counts[3][256];
    uint8_t tables[3 * 256];
    count_values(image, counts);
    for (int32_t channel = 0; channel < image->channels; channel++)
        make_table(counts[channel], tables + 256 * channel);
    apply_tables(kernels, image, tables);
}

void fm_color_autocontrast(const fm_color_kernels *kernels, const fm_image *image) {
    apply_by_counts(kernels, image, stretch);
}

void fm_color_equalize(const fm_color_kernels *kernels, const fm_image *image) {
    apply_by_counts(kernels, image, spread);
}
