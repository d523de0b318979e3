/*
 * Splits up to four weights into digits whose products with bytes can be summed in 16 bits.
 *
 * A weight from 0 to 2^22 is split into three digits,
 *
 *     weight = top * 2^14 + middle * 2^7 + lowest,
 *
 * and an output is (sum of top + ((sum of middle + (sum of lowest >> 7)) >> 7) + 128) >> 8,
 * exactly, as the sums are integers and the bits that a shift drops do not change the floor of the
 * next one. Each sum must fit 16 signed bits, and so must each of pmaddubsw's pairs, which
 * saturates.
 *
 * Middle and lowest digits can each be one of two numbers that are 128 apart. They are chosen so
 * that they nearly cancel. Weights w add up to 2^22 + e, where e is a rounding error. The residues
 * r = w mod 128 add up to 128 * m + e; the m largest become r - 128. With at most four digits, the
 * positive ones then add up to at most 128, and the negative ones to at least -128, for e from -2
 * to 2: the average of the others is at most the average of all, so their sum is at most (4 - m) *
 * (128 * m + e) / 4, which for integers is at most 128 (m = 2). So any partial sum is within 128 *
 * 255 = 32,640 on either side.
 *
 * The middle digits are chosen likewise from (w - lowest) / 128, whose sum is exactly 2^15. The
 * carry of the lowest digits, -255 to 255, fits as well, as the positive middle digits add up to at
 * most 127 unless the digits are 64, 64, -64 and -64; such weights use the 32-bit sums.
 *
 * The top digits then add up to 256. They are unsigned, and multiplied by bytes minus 128: sums lie
 * between -128 * 256 and 127 * 256, and so does the result with its carry, which is the whole sum
 * divided by 2^14, minus 128 * 256. So results are too low by 128.
 */
#ifndef FM_TRANSFORM_X86_VERTICAL_DIGITS_H
#define FM_TRANSFORM_X86_VERTICAL_DIGITS_H

#include "transform/x86/target.h"

#define FM_DIGIT_BITS 7
#define FM_DIGIT_BASE (1 << FM_DIGIT_BITS)

/* For each pair of an output's rows: the digits of both, as bytes of a word. */
typedef struct fm_digit_pairs {
    int16_t top[2], middle[2], lowest[2];
    bool fit; /* false: the weights can't be split */
} fm_digit_pairs;

/* The sum of all four double words, in each. */
FM_SSE41_INLINE __m128i fm_sum4(__m128i four) {
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1));
}

/* Digits from residues, by subtracting the base from the m largest ones. */
FM_SSE41_INLINE __m128i fm_balance4(__m128i residues) {
    const __m128i sum = _mm_add_epi32(fm_sum4(residues), _mm_set1_epi32(FM_DIGIT_BASE / 2));
    const __m128i m = _mm_srai_epi32(sum, FM_DIGIT_BITS);
    /* Unique keys in the order of the residues. */
    const __m128i keys = _mm_add_epi32(_mm_slli_epi32(residues, 2), _mm_setr_epi32(0, 1, 2, 3));
    /* Counts -1 for each larger key. */
    const __m128i larger_1 = _mm_cmpgt_epi32(_mm_shuffle_epi32(keys, 0x39), keys);
    const __m128i larger_2 = _mm_cmpgt_epi32(_mm_shuffle_epi32(keys, 0x4e), keys);
    const __m128i larger_3 = _mm_cmpgt_epi32(_mm_shuffle_epi32(keys, 0x93), keys);
    const __m128i n_larger = _mm_add_epi32(larger_1, _mm_add_epi32(larger_2, larger_3));
    const __m128i chosen = _mm_cmpgt_epi32(_mm_add_epi32(n_larger, m), _mm_setzero_si128());
    return _mm_sub_epi32(residues, _mm_and_si128(chosen, _mm_set1_epi32(FM_DIGIT_BASE)));
}

/* Stores the lowest byte of each double word. */
FM_SSE41_INLINE void fm_store_digits(int16_t *pairs, __m128i digits) {
    const __m128i gather =
        _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm_storeu_si32(pairs, _mm_shuffle_epi8(digits, gather));
}

/* Splits the weights. false if the digits' sums would not fit. */
FM_SSE41_INLINE bool fm_find_digits(fm_digit_pairs *digits, const int32_t *weights,
                                    int32_t n_taps) {
    if (n_taps < 2 || n_taps > 4) return false;
    const __m128i used = _mm_cmpgt_epi32(_mm_set1_epi32(n_taps), _mm_setr_epi32(0, 1, 2, 3));
    const __m128i mask = _mm_set1_epi32(FM_DIGIT_BASE - 1);
    const __m128i four = _mm_and_si128(_mm_loadu_si128((const __m128i *)weights), used);
    const __m128i too_large = _mm_cmpgt_epi32(four, _mm_set1_epi32(254 << 2 * FM_DIGIT_BITS));
    if (_mm_movemask_ps(_mm_castsi128_ps(_mm_or_si128(four, too_large)))) return false;
    const int32_t rest = _mm_cvtsi128_si32(fm_sum4(four)) - (1 << FM_COEFFS_BITS);
    if (rest < -2 || rest > 2) return false;

    const __m128i lowest = fm_balance4(_mm_and_si128(four, mask));
    const __m128i upper = _mm_srai_epi32(_mm_sub_epi32(four, lowest), FM_DIGIT_BITS);
    const __m128i residues = _mm_and_si128(upper, mask);
    const __m128i halves = _mm_cmpeq_epi32(residues, _mm_set1_epi32(FM_DIGIT_BASE / 2));
    if (_mm_movemask_ps(_mm_castsi128_ps(halves)) == 15) return false;
    const __m128i middle = fm_balance4(residues);
    fm_store_digits(digits->lowest, lowest);
    fm_store_digits(digits->middle, middle);
    fm_store_digits(digits->top, _mm_srai_epi32(_mm_sub_epi32(upper, middle), FM_DIGIT_BITS));
    return true;
}

/* Fills the table with an fm_digit_pairs for each output. */
FM_SSE41 int fm_prepare_rows(fm_coeffs *coeffs, fm_mem_counter *counter, fm_error *error) {
    const int status =
        fm_coeffs_reserve_table(coeffs, (size_t)coeffs->n * sizeof(fm_digit_pairs), counter, error);
    coeffs->has_table = !status && !coeffs->clips;
    if (!coeffs->has_table) return status;
    fm_digit_pairs *const digits = (fm_digit_pairs *)(void *)coeffs->table;
    for (int32_t i = 0; i < coeffs->n; i++)
        digits[i].fit = fm_find_digits(
            &digits[i], coeffs->weights + (size_t)i * (size_t)coeffs->stride, coeffs->n_taps[i]);
    return FM_OK;
}

#endif
