/* Interpolation by AVX2, for warp.c, whose functions define the results: the four bytes from a
 * pixel on are four numbers of a register. Double operations are in the same order as there, and
 * none is fused; differences of bytes are exact, as numbers of any kind. */
#ifndef FM_AUGMENT_X86_WARP_AVX2_H
#define FM_AUGMENT_X86_WARP_AVX2_H

#include <string.h>

#include "augment/warp.h"
#include "augment/x86/target.h"

/* For each point, the pixel at or before it, and how far it is from that pixel. */
typedef struct fm_warp_split {
    double dx[FM_WARP_ARRAY], dy[FM_WARP_ARRAY];
    int32_t left[FM_WARP_ARRAY], top[FM_WARP_ARRAY];
} fm_warp_split;

FM_AUGMENT_AVX2 void fm_warp_split_axis_avx2(double *rest, int32_t *whole, const double *at,
                                             size_t n) {
    for (size_t i = 0; i < n; i += 4) {
        const __m256d x = _mm256_sub_pd(_mm256_loadu_pd(at + i), _mm256_set1_pd(0.5));
        const __m256d down = _mm256_floor_pd(x);
        _mm256_storeu_pd(rest + i, _mm256_sub_pd(x, down));
        _mm_storeu_si128((__m128i *)(whole + i), _mm256_cvttpd_epi32(down));
    }
}

/* Four bytes as numbers. */
FM_AUGMENT_AVX2 int32_t fm_warp_word_avx2(const uint8_t *bytes) {
    int32_t word;
    memcpy(&word, bytes, 4);
    return word;
}

/* Stores the first three of four numbers from 0 to 255 and, unless is_last, a fourth byte, which
 * the next pixel overwrites. */
FM_AUGMENT_AVX2 void fm_warp_store_avx2(uint8_t *out, __m128i values, bool is_last) {
    const __m128i words = _mm_packs_epi32(values, values);
    const int32_t word = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    memcpy(out, &word, is_last ? 3 : 4);
}

/* The values between two neighbors in a row. */
FM_AUGMENT_AVX2 __m256d fm_warp_line_avx2(const uint8_t *px, __m256d dx) {
    /* Bytes 0 to 3 and 2 to 5: nothing is read beyond the second pixel. */
    const __m128i both =
        _mm_insert_epi32(_mm_cvtsi32_si128(fm_warp_word_avx2(px)), fm_warp_word_avx2(px + 2), 1);
    const __m128i first = _mm_cvtepu8_epi32(both);
    const __m128i second = _mm_cvtepu8_epi32(_mm_srli_epi64(both, 40));
    const __m256d slope = _mm256_cvtepi32_pd(_mm_sub_epi32(second, first));
    return _mm256_add_pd(_mm256_cvtepi32_pd(first), _mm256_mul_pd(slope, dx));
}

FM_FOR_AVX2 static void fm_warp_bilinear_avx2(const fm_image *in, uint8_t *out, const double *x,
                                              const double *y, size_t n) {
    const size_t row_bytes = fm_image_row_bytes(in);
    fm_warp_split at;
    fm_warp_split_axis_avx2(at.dx, at.left, x, n);
    fm_warp_split_axis_avx2(at.dy, at.top, y, n);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *const px = in->px + (size_t)at.top[i] * row_bytes + 3 * (size_t)at.left[i];
        const __m256d dx = _mm256_broadcast_sd(at.dx + i), dy = _mm256_broadcast_sd(at.dy + i);
        const __m256d upper = fm_warp_line_avx2(px, dx);
        const __m256d lower = fm_warp_line_avx2(px + row_bytes, dx);
        const __m256d value = _mm256_add_pd(upper, _mm256_mul_pd(_mm256_sub_pd(lower, upper), dy));
        fm_warp_store_avx2(out + 3 * i, _mm256_cvttpd_epi32(value), i == n - 1);
    }
}

/* p1 + d * (p2 + d * (p3 + d * p4)) */
FM_AUGMENT_AVX2 __m256d fm_warp_polynomial_avx2(__m256d p1, __m256d p2, __m256d p3, __m256d p4,
                                                __m256d d) {
    const __m256d third = _mm256_add_pd(p3, _mm256_mul_pd(d, p4));
    const __m256d second = _mm256_add_pd(p2, _mm256_mul_pd(d, third));
    return _mm256_add_pd(p1, _mm256_mul_pd(d, second));
}

/* The values between the second and third of four neighbors in a row. */
FM_AUGMENT_AVX2 __m256d fm_warp_cubic_row_avx2(const uint8_t *px, __m256d dx) {
    const __m128i first = _mm_loadl_epi64((const __m128i *)px);
    const __m128i all = _mm_insert_epi32(first, fm_warp_word_avx2(px + 8), 2);
    const __m128i v1 = _mm_cvtepu8_epi32(all);
    const __m128i v2 = _mm_cvtepu8_epi32(_mm_srli_si128(all, 3));
    const __m128i v3 = _mm_cvtepu8_epi32(_mm_srli_si128(all, 6));
    const __m128i v4 = _mm_cvtepu8_epi32(_mm_srli_si128(all, 9));
    const __m128i v12 = _mm_sub_epi32(v1, v2), v34 = _mm_sub_epi32(v3, v4);
    const __m128i p2 = _mm_sub_epi32(v3, v1),
                  p4 = _mm_sub_epi32(_mm_setzero_si128(), _mm_add_epi32(v12, v34));
    const __m128i p3 = _mm_add_epi32(_mm_add_epi32(v12, v12), v34);
    return fm_warp_polynomial_avx2(_mm256_cvtepi32_pd(v2), _mm256_cvtepi32_pd(p2),
                                   _mm256_cvtepi32_pd(p3), _mm256_cvtepi32_pd(p4), dx);
}

/* cubic() of doubles. */
FM_AUGMENT_AVX2 __m256d fm_warp_cubic_avx2(const __m256d v[4], __m256d d) {
    const __m256d v12 = _mm256_sub_pd(v[0], v[1]);
    const __m256d p2 = _mm256_sub_pd(v[2], v[0]);
    const __m256d p3 = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(v12, v12), v[2]), v[3]);
    const __m256d v21 = _mm256_sub_pd(v[1], v[0]);
    const __m256d p4 = _mm256_add_pd(_mm256_sub_pd(v21, v[2]), v[3]);
    return fm_warp_polynomial_avx2(v[1], p2, p3, p4, d);
}

FM_FOR_AVX2 static void fm_warp_bicubic_avx2(const fm_image *in, uint8_t *out, const double *x,
                                             const double *y, size_t n) {
    const size_t row_bytes = fm_image_row_bytes(in);
    fm_warp_split at;
    fm_warp_split_axis_avx2(at.dx, at.left, x, n);
    fm_warp_split_axis_avx2(at.dy, at.top, y, n);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *px =
            in->px + (size_t)(at.top[i] - 1) * row_bytes + 3 * (size_t)(at.left[i] - 1);
        const __m256d dx = _mm256_broadcast_sd(at.dx + i), dy = _mm256_broadcast_sd(at.dy + i);
        __m256d rows[4];
        for (size_t k = 0; k < 4; k++, px += row_bytes) rows[k] = fm_warp_cubic_row_avx2(px, dx);
        const __m256d value = fm_warp_cubic_avx2(rows, dy);
        fm_warp_store_avx2(out + 3 * i, _mm256_cvttpd_epi32(value), i == n - 1);
    }
}

#endif
