/* The horizontal kernel in AVX2: as in SSE4.1, with an output in each half of a register. */
#ifndef FM_TRANSFORM_X86_HORIZONTAL_AVX2_H
#define FM_TRANSFORM_X86_HORIZONTAL_AVX2_H

#include "transform/kernels.h"
#include "transform/x86/horizontal_sse41.h"
#include "transform/x86/target.h"

FM_AVX2_INLINE __m256i fm_load_halves_avx2(const void *low, const void *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

/* The same in both halves, from 16 bytes. */
FM_AVX2_INLINE __m256i fm_both_halves_avx2(__m128i half) {
    return _mm256_broadcastsi128_si256(half);
}

/* fm_split4_sse41() for one output in each half. */
FM_AVX2_INLINE __m256i fm_split4_avx2(const int32_t *first, const int32_t *second) {
    const __m256i four = fm_load_halves_avx2(first, second);
    const __m256i low =
        _mm256_slli_epi32(_mm256_and_si256(four, _mm256_set1_epi32(FM_SPLIT_LOW)), 2);
    return _mm256_packus_epi32(_mm256_srli_epi32(four, 10), low);
}

/* fm_taps_sse41 with an output in each half. */
typedef struct fm_taps_avx2 {
    __m256i high[4], low[4], last;
} fm_taps_avx2;

FM_AVX2_INLINE void fm_load_taps_avx2(fm_taps_avx2 *taps, const int32_t *first,
                                      const int32_t *second, const int32_t n_taps) {
    for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
        const __m256i split = fm_split4_avx2(first + t / 4 * 4, second + t / 4 * 4);
        taps->high[t / 2] =
            t % 4 ? _mm256_shuffle_epi32(split, 0x55) : _mm256_shuffle_epi32(split, 0x00);
        taps->low[t / 2] =
            t % 4 ? _mm256_shuffle_epi32(split, 0xff) : _mm256_shuffle_epi32(split, 0xaa);
    }
    if (n_taps % 2)
        taps->last = _mm256_setr_m128i(_mm_set1_epi32(first[n_taps - 1] << 2),
                                       _mm_set1_epi32(second[n_taps - 1] << 2));
}

FM_AVX2_INLINE __m256i fm_sum_taps_avx2(const uint8_t *first, const uint8_t *second,
                                        const fm_taps_avx2 *taps, const int32_t n_taps) {
    const __m256i pair_01 = fm_both_halves_avx2(_mm_setr_epi8(FM_PAIR_01));
    const __m256i pair_23 = fm_both_halves_avx2(_mm_setr_epi8(FM_PAIR_23));
    __m256i high = _mm256_setzero_si256(), low = _mm256_set1_epi32(FM_SPLIT_HALF);
    for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
        const size_t at = 12 * (size_t)(t / 4);
        const __m256i four = fm_load_halves_avx2(first + at, second + at);
        const __m256i two = _mm256_shuffle_epi8(four, t % 4 ? pair_23 : pair_01);
        high = _mm256_add_epi32(high, _mm256_madd_epi16(two, taps->high[t / 2]));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(two, taps->low[t / 2]));
    }
    if (n_taps % 2) {
        const size_t at = 12 * (size_t)(n_taps / 4);
        const __m256i one =
            _mm256_shuffle_epi8(fm_load_halves_avx2(first + at, second + at),
                                fm_both_halves_avx2(n_taps % 4 == 3 ? _mm_setr_epi8(FM_SINGLE_2)
                                                                    : _mm_setr_epi8(FM_SINGLE_0)));
        low = _mm256_add_epi32(low, _mm256_mullo_epi32(one, taps->last));
    }
    return _mm256_add_epi32(_mm256_slli_epi32(high, FM_SPLIT_SHIFT), low);
}

/*
 * Four outputs a turn, all rows: the weights stay in registers. At the end outputs are repeated to
 * make four; these and the four bytes too many of a store fall into the slack.
 */
FM_AVX2_INLINE void fm_horizontal_taps_avx2(uint8_t *const *out, const uint8_t *const *in,
                                            int32_t n_rows, const fm_coeffs *coeffs,
                                            const int32_t n_taps) {
    const __m256i gather =
        _mm256_setr_epi8(1, 5, 9, 3, 7, 11, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /* 0, 1 */
                         -1, -1, -1, -1, -1, -1, 1, 5, 9, 3, 7, 11, -1, -1, -1, -1 /* 2, 3 */);
    for (int32_t i = 0; i < coeffs->n; i += 4) {
        size_t start[4];
        const int32_t *weights[4];
        for (int32_t k = 0; k < 4; k++) {
            const int32_t output = i + k < coeffs->n ? i + k : coeffs->n - 1;
            start[k] = 3 * (size_t)coeffs->first[output];
            weights[k] = coeffs->weights + (size_t)output * (size_t)coeffs->stride;
        }
        fm_taps_avx2 taps_02, taps_13;
        fm_load_taps_avx2(&taps_02, weights[0], weights[2], n_taps);
        fm_load_taps_avx2(&taps_13, weights[1], weights[3], n_taps);
        for (int32_t row = 0; row < n_rows; row++) {
            const uint8_t *const px = in[row];
            const __m256i sum_02 = fm_sum_taps_avx2(px + start[0], px + start[2], &taps_02, n_taps);
            const __m256i sum_13 = fm_sum_taps_avx2(px + start[1], px + start[3], &taps_13, n_taps);
            const __m256i all = _mm256_shuffle_epi8(
                _mm256_blend_epi16(_mm256_srli_epi32(sum_02, 16), sum_13, 0xaa), gather);
            _mm_storeu_si128(
                (__m128i *)(out[row] + 3 * (size_t)i),
                _mm_or_si128(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
        }
    }
}

/* Any number of taps: four rows, one in each half of two registers, share the work on the weights;
 * at the end the last row is repeated. */
FM_AVX2_INLINE void fm_horizontal_long_avx2(uint8_t *const *out, const uint8_t *const *in,
                                            int32_t n_rows, const fm_coeffs *coeffs) {
    const size_t n_bytes = 3 * (size_t)coeffs->max_taps;
    const __m256i half = _mm256_set1_epi32(FM_SPLIT_HALF);
    const __m256i pair_01 = fm_both_halves_avx2(_mm_setr_epi8(FM_PAIR_01));
    const __m256i pair_23 = fm_both_halves_avx2(_mm_setr_epi8(FM_PAIR_23));
    for (int32_t i = 0; i < coeffs->n; i++) {
        const size_t start = 3 * (size_t)coeffs->first[i];
        for (int32_t row = 0; row < n_rows; row += 4) {
            int32_t rows[4];
            for (int32_t k = 0; k < 4; k++) rows[k] = row + k < n_rows ? row + k : n_rows - 1;
            const int32_t *weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
            __m256i high[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            __m256i low[2] = {half, half};
            for (size_t at = start; at < start + n_bytes; at += 12, weights += 4) {
                const __m256i split = fm_both_halves_avx2(fm_split4_sse41(weights));
                const __m256i high_01 = _mm256_shuffle_epi32(split, 0x00);
                const __m256i high_23 = _mm256_shuffle_epi32(split, 0x55);
                const __m256i low_01 = _mm256_shuffle_epi32(split, 0xaa);
                const __m256i low_23 = _mm256_shuffle_epi32(split, 0xff);
                for (int k = 0; k < 2; k++) {
                    const __m256i four =
                        fm_load_halves_avx2(in[rows[2 * k]] + at, in[rows[2 * k + 1]] + at);
                    const __m256i two = _mm256_shuffle_epi8(four, pair_01);
                    const __m256i next = _mm256_shuffle_epi8(four, pair_23);
                    high[k] = _mm256_add_epi32(high[k], _mm256_madd_epi16(two, high_01));
                    high[k] = _mm256_add_epi32(high[k], _mm256_madd_epi16(next, high_23));
                    low[k] = _mm256_add_epi32(low[k], _mm256_madd_epi16(two, low_01));
                    low[k] = _mm256_add_epi32(low[k], _mm256_madd_epi16(next, low_23));
                }
            }
            for (int k = 0; k < 2; k++) {
                const __m256i sums =
                    _mm256_add_epi32(_mm256_slli_epi32(high[k], FM_SPLIT_SHIFT), low[k]);
                fm_store_px_sse41(out[rows[2 * k]] + 3 * (size_t)i, _mm256_castsi256_si128(sums));
                fm_store_px_sse41(out[rows[2 * k + 1]] + 3 * (size_t)i,
                                  _mm256_extracti128_si256(sums, 1));
            }
        }
    }
}

FM_AVX2 void fm_horizontal_avx2(uint8_t *const *out, const uint8_t *const *in, int32_t n_rows,
                                const fm_coeffs *coeffs) {
    if (coeffs->clips) {
        fm_horizontal_scalar(out, in, n_rows, coeffs);
        return;
    }
    switch (coeffs->max_taps) {
    case 2:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 2);
        break;
    case 3:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 3);
        break;
    case 4:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 4);
        break;
    case 5:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 5);
        break;
    case 6:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 6);
        break;
    case 7:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 7);
        break;
    case 8:
        fm_horizontal_taps_avx2(out, in, n_rows, coeffs, 8);
        break;
    default:
        fm_horizontal_long_avx2(out, in, n_rows, coeffs);
    }
}

#endif
