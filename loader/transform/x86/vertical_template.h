/*
 * The vertical kernel of SSE4.1 and of AVX2 (see width.h): FM_WIDTH columns a turn, bytes of two
 * rows side by side. Clipped and other passes are one and the same, see target.h.
 */
#include "transform/kernels.h"
#include "transform/x86/vector_avx2.h"
#include "transform/x86/vector_sse41.h"
#include "transform/x86/width.h"

/* Bytes of two rows as pairs of words, in four registers. */
FM_FN_INLINE void FM_W(fm_pair_rows)(fm_vector *pairs, fm_vector first, fm_vector second) {
    const fm_vector zero = FM_W(fm_zero)();
    const fm_vector left = FM_OP(unpacklo_epi8)(first, second);
    const fm_vector right = FM_OP(unpackhi_epi8)(first, second);
    pairs[0] = FM_OP(unpacklo_epi8)(left, zero);
    pairs[1] = FM_OP(unpackhi_epi8)(left, zero);
    pairs[2] = FM_OP(unpacklo_epi8)(right, zero);
    pairs[3] = FM_OP(unpackhi_epi8)(right, zero);
}

/* Inlined with a constant n_taps, the weights stay in registers. An odd last row takes one full
 * multiplication in place of two halves. */
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

FM_FN void FM_W(fm_vertical)(uint8_t *out, const uint8_t *const *in, const int32_t *weights,
                             int32_t n_taps, size_t n_bytes, bool clips) {
    (void)clips;
    /* Copies of a known number, which the stores to `out` can't change. */
    const uint8_t *rows[6];
    int32_t kept[6];
    for (int32_t t = 0; t < n_taps && t < 6; t++) {
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
    default:
        FM_W(fm_vertical_taps)(out, in, weights, n_taps, n_bytes);
    }
}
