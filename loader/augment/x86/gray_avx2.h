/* Gray values by AVX2, for color.c, whose gray_of() defines them. */
#ifndef FM_AUGMENT_X86_GRAY_AVX2_H
#define FM_AUGMENT_X86_GRAY_AVX2_H

#include "augment/x86/color_avx2.h"

/* Pixels that are converted at a time, and how many must be left, as more bytes are read. */
enum { FM_GRAY_PX = 32, FM_GRAY_LEAST_PX = 34 };

/* The gray values of eight pixels as 32-bit numbers. Reads 28 bytes. The weight of green does not
 * fit 16 bits with a sign, so that green is added twice with half of it. */
FM_AUGMENT_AVX2 __m256i fm_gray_eight_avx2(const uint8_t *px) {
    const __m256i red_green = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1));
    const __m256i green_blue = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, -1, 2, -1, 4, -1, 5, -1, 7, -1, 8, -1, 10, -1, 11, -1));
    const __m256i bytes =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)px)),
                                _mm_loadu_si128((const __m128i *)(px + 12)), 1);
    const __m256i first = _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, red_green),
                                            _mm256_set1_epi32(19235 << 16 | 19595));
    const __m256i second = _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, green_blue),
                                             _mm256_set1_epi32(7471 << 16 | 19235));
    const __m256i sum =
        _mm256_add_epi32(_mm256_add_epi32(first, second), _mm256_set1_epi32(0x8000));
    return _mm256_srli_epi32(sum, 16);
}

/* The gray values of 32 pixels. Reads 100 bytes. */
FM_AUGMENT_AVX2 __m256i fm_gray_bytes_avx2(const uint8_t *px) {
    const __m256i values[4] = {fm_gray_eight_avx2(px), fm_gray_eight_avx2(px + 24),
                               fm_gray_eight_avx2(px + 48), fm_gray_eight_avx2(px + 72)};
    return fm_color_bytes_avx2(values);
}

/* These return how many of the n_px pixels they converted. */

FM_AUGMENT_AVX2 size_t fm_gray_avx2(uint8_t *out, const uint8_t *px, size_t n_px) {
    size_t i = 0;
    for (; i + FM_GRAY_LEAST_PX <= n_px; i += FM_GRAY_PX)
        _mm256_storeu_si256((__m256i *)(out + i), fm_gray_bytes_avx2(px + 3 * i));
    return i;
}

/* Stores each of 16 bytes three times. */
FM_AUGMENT_AVX2 void fm_gray_triple_avx2(uint8_t *out, __m128i gray) {
    const __m128i orders[3] = {
        _mm_setr_epi8(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5),
        _mm_setr_epi8(5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10),
        _mm_setr_epi8(10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15)};
    for (size_t i = 0; i < 3; i++)
        _mm_storeu_si128((__m128i *)(out + 16 * i), _mm_shuffle_epi8(gray, orders[i]));
}

FM_AUGMENT_AVX2 size_t fm_gray_rgb_avx2(uint8_t *out, const uint8_t *px, size_t n_px) {
    size_t i = 0;
    for (; i + FM_GRAY_LEAST_PX <= n_px; i += FM_GRAY_PX) {
        const __m256i gray = fm_gray_bytes_avx2(px + 3 * i);
        fm_gray_triple_avx2(out + 3 * i, _mm256_castsi256_si128(gray));
        fm_gray_triple_avx2(out + 3 * i + 48, _mm256_extracti128_si256(gray, 1));
    }
    return i;
}

FM_AUGMENT_AVX2 size_t fm_gray_sum_avx2(uint64_t *sum, const uint8_t *px, size_t n_px) {
    __m256i sums = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + FM_GRAY_LEAST_PX <= n_px; i += FM_GRAY_PX) {
        const __m256i gray = fm_gray_bytes_avx2(px + 3 * i);
        sums = _mm256_add_epi64(sums, _mm256_sad_epu8(gray, _mm256_setzero_si256()));
    }
    uint64_t parts[4];
    _mm256_storeu_si256((__m256i *)parts, sums);
    *sum = parts[0] + parts[1] + parts[2] + parts[3];
    return i;
}

#endif
