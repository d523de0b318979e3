/*
 * The vertical kernel in SSE4.1 and AVX2 (width.h): FM_WIDTH columns per step, with the bytes of
 * two rows interleaved. For two to four rows and weights that are not negative it sums digits in 16
 * bits (vertical_digits.h), which is faster; else it uses the 32-bit sums of target.h.
 */
#include "transform/kernels.h"
#include "transform/x86/vector_avx2.h"
#include "transform/x86/vector_sse41.h"
#include "transform/x86/vertical_digits.h"
#include "transform/x86/width.h"

/* ---- digits ---------------------------------------------------------------------------------- */

/* The digits of each pair of rows, repeated in all words. */
typedef struct FM_W(fm_digits) {
    fm_vector top[2], middle[2], lowest[2];
} FM_W(fm_digits);

/* Computes one register of 16-bit results, minus 128 each, from pairs of rows' bytes. */
FM_FN_INLINE fm_vector FM_W(fm_sum_digits)(const fm_vector *pairs, const FM_W(fm_digits) * digits,
                                           const int32_t n_pairs) {
    const fm_vector sign = FM_OP(set1_epi8)(-128);
    fm_vector top = FM_W(fm_zero)(), middle = top, lowest = top;
    for (int32_t k = 0; k < n_pairs; k++) {
        const fm_vector tops = FM_OP(maddubs_epi16)(digits->top[k], FM_W(fm_xor)(pairs[k], sign));
        const fm_vector middles = FM_OP(maddubs_epi16)(pairs[k], digits->middle[k]);
        const fm_vector lowests = FM_OP(maddubs_epi16)(pairs[k], digits->lowest[k]);
        top = k ? FM_OP(add_epi16)(top, tops) : tops;
        middle = k ? FM_OP(add_epi16)(middle, middles) : middles;
        lowest = k ? FM_OP(add_epi16)(lowest, lowests) : lowests;
    }
    middle = FM_OP(add_epi16)(middle, FM_OP(srai_epi16)(lowest, FM_DIGIT_BITS));
    top = FM_OP(add_epi16)(top, FM_OP(srai_epi16)(middle, FM_DIGIT_BITS));
    return FM_OP(mulhrs_epi16)(top, FM_OP(set1_epi16)(128)); /* (top + 128) >> 8 */
}

FM_FN_INLINE void FM_W(fm_vertical_digits)(uint8_t *restrict out, const uint8_t *const *in,
                                           const fm_digit_pairs *pairs, const int32_t n_taps,
                                           size_t n_bytes) {
    const int32_t n_pairs = (n_taps + 1) / 2;
    FM_W(fm_digits) digits;
    const uint8_t *rows[4];
    for (int32_t t = 0; t < n_taps; t++) rows[t] = in[t];
    for (int32_t k = 0; k < n_pairs; k++) {
        digits.top[k] = FM_OP(set1_epi16)(pairs->top[k]);
        digits.middle[k] = FM_OP(set1_epi16)(pairs->middle[k]);
        digits.lowest[k] = FM_OP(set1_epi16)(pairs->lowest[k]);
    }
    for (size_t i = 0; i < n_bytes; i += FM_WIDTH) {
        fm_vector left[2], right[2];
        for (int32_t t = 0; t < n_taps; t += 2) {
            const fm_vector first = FM_W(fm_load)(rows[t] + i);
            const fm_vector second =
                t + 1 < n_taps ? FM_W(fm_load)(rows[t + 1] + i) : FM_W(fm_zero)();
            left[t / 2] = FM_OP(unpacklo_epi8)(first, second);
            right[t / 2] = FM_OP(unpackhi_epi8)(first, second);
        }
        const fm_vector values = FM_OP(packs_epi16)(FM_W(fm_sum_digits)(left, &digits, n_pairs),
                                                    FM_W(fm_sum_digits)(right, &digits, n_pairs));
        FM_W(fm_store)(out + i, FM_W(fm_xor)(values, FM_OP(set1_epi8)(-128)));
    }
}

/* ---- 32-bit sums ----------------------------------------------------------------------------- */

/* Interleaves the bytes of two rows as words, in four registers. */
FM_FN_INLINE void FM_W(fm_pair_rows)(fm_vector *pairs, fm_vector first, fm_vector second) {
    const fm_vector zero = FM_W(fm_zero)();
    const fm_vector left = FM_OP(unpacklo_epi8)(first, second);
    const fm_vector right = FM_OP(unpackhi_epi8)(first, second);
    pairs[0] = FM_OP(unpacklo_epi8)(left, zero);
    pairs[1] = FM_OP(unpackhi_epi8)(left, zero);
    pairs[2] = FM_OP(unpacklo_epi8)(right, zero);
    pairs[3] = FM_OP(unpackhi_epi8)(right, zero);
}

/* Inlined with a constant n_taps, so that the weights stay in registers. An odd last row takes one
 * 32-bit multiplication. */
FM_FN_INLINE void FM_W(fm_vertical_taps)(uint8_t *restrict out, const uint8_t *const *in,
                                         const int32_t *weights, const int32_t n_taps,
                                         size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += FM_WIDTH) {
        fm_vector high[4], low[4], pairs[4];
        for (int k = 0; k < 4; k++) {
            high[k] = FM_W(fm_zero)();
            low[k] = FM_OP(set1_epi32)(FM_SPLIT_HALF);
        }
        for (int32_t t = 0; t + 2 <= n_taps; t += 2) {
            const fm_vector weight_high =
                FM_OP(set1_epi32)(fm_split_high(weights[t], weights[t + 1]));
            const fm_vector weight_low =
                FM_OP(set1_epi32)(fm_split_low(weights[t], weights[t + 1]));
            FM_W(fm_pair_rows)(pairs, FM_W(fm_load)(in[t] + i), FM_W(fm_load)(in[t + 1] + i));
            for (int k = 0; k < 4; k++) {
                high[k] = FM_OP(add_epi32)(high[k], FM_OP(madd_epi16)(pairs[k], weight_high));
                low[k] = FM_OP(add_epi32)(low[k], FM_OP(madd_epi16)(pairs[k], weight_low));
            }
        }
        if (n_taps % 2) {
            const fm_vector weight = FM_OP(set1_epi32)(weights[n_taps - 1]);
            FM_W(fm_pair_rows)(pairs, FM_W(fm_load)(in[n_taps - 1] + i), FM_W(fm_zero)());
            for (int k = 0; k < 4; k++)
                low[k] = FM_OP(add_epi32)(low[k], FM_OP(mullo_epi32)(pairs[k], weight));
        }
        for (int k = 0; k < 4; k++) {
            const fm_vector sum =
                FM_OP(add_epi32)(FM_OP(slli_epi32)(high[k], FM_SPLIT_SHIFT), low[k]);
            low[k] = FM_OP(srai_epi32)(sum, FM_COEFFS_BITS);
        }
        FM_W(fm_store)
        (out + i, FM_OP(packus_epi16)(FM_OP(packs_epi32)(low[0], low[1]),
                                      FM_OP(packs_epi32)(low[2], low[3])));
    }
}

FM_FN void FM_W(fm_vertical)(uint8_t *out, const uint8_t *const *in, const fm_coeffs *coeffs,
                             int32_t i, size_t n_bytes) {
    const int32_t n_taps = coeffs->n_taps[i];
    const fm_digit_pairs *const digits = (const fm_digit_pairs *)(const void *)coeffs->table + i;
    if (coeffs->has_table && digits->fit) {
        if (n_taps == 2)
            FM_W(fm_vertical_digits)(out, in, digits, 2, n_bytes);
        else if (n_taps == 3)
            FM_W(fm_vertical_digits)(out, in, digits, 3, n_bytes);
        else
            FM_W(fm_vertical_digits)(out, in, digits, 4, n_bytes);
        return;
    }
    const int32_t *const weights = coeffs->weights + (size_t)i * (size_t)coeffs->stride;
    /* Local copies of constant size, which can't alias `out`. */
    const uint8_t *rows[8];
    int32_t kept[8];
    for (int32_t t = 0; t < n_taps && t < 8; t++) {
        rows[t] = in[t];
        kept[t] = weights[t];
    }
    switch (n_taps) {
    case 1:
        FM_W(fm_vertical_taps)(out, rows, kept, 1, n_bytes);
        break;
    case 2:
        FM_W(fm_vertical_taps)(out, rows, kept, 2, n_bytes);
        break;
    case 3:
        FM_W(fm_vertical_taps)(out, rows, kept, 3, n_bytes);
        break;
    case 4:
        FM_W(fm_vertical_taps)(out, rows, kept, 4, n_bytes);
        break;
    case 5:
        FM_W(fm_vertical_taps)(out, rows, kept, 5, n_bytes);
        break;
    case 6:
        FM_W(fm_vertical_taps)(out, rows, kept, 6, n_bytes);
        break;
    case 7:
        FM_W(fm_vertical_taps)(out, rows, kept, 7, n_bytes);
        break;
    case 8:
        FM_W(fm_vertical_taps)(out, rows, kept, 8, n_bytes);
        break;
    default:
        FM_W(fm_vertical_taps)(out, in, weights, n_taps, n_bytes);
    }
}
