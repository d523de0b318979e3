/*
 * The inverse DCT in one set (target.h): one block in each 16 bytes of a register.
 *
 * Products are summed by pmaddwd, for which jidctint.c's terms are regrouped, as in libjpeg-turbo's
 * own SIMD code:
 *
 *     z1 = (v2 + v6) * a; z1 - v6 * b   is   v2 * a + v6 * (a - b)
 *
 * All numbers are exact for blocks in range (jpeg_kernels.h), so that the results equal the scalar
 * version's.
 */
#ifdef FM_SET /* compiled alone, there is no set */

/* pmaddwd's factors for words that alternate. */
#define FM_PAIR(first, second) \
    MM(set1_epi32)             \
    ((int32_t)((uint32_t)(uint16_t)(int16_t)(first) | (uint32_t)(uint16_t)(int16_t)(second) << 16))

/* One pass over columns: sums[0] are columns 0 to 3 of each row as double words, sums[1] columns 4
 * to 7, neither shifted yet. `half` is added to all. */
FM_SET_INLINE void FM_NAME(fm_idct_pass)(V sums[2][8], const V *r, int32_t half) {
    const V z3 = MM(add_epi16)(r[3], r[7]), z4 = MM(add_epi16)(r[1], r[5]);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
#define FM_UNPACK(a, b) (h ? MM(unpackhi_epi16)(a, b) : MM(unpacklo_epi16)(a, b))
        const V p04 = FM_UNPACK(r[0], r[4]), p26 = FM_UNPACK(r[2], r[6]);
        const V p17 = FM_UNPACK(r[1], r[7]), p35 = FM_UNPACK(r[3], r[5]);
        const V pz = FM_UNPACK(z3, z4);
#undef FM_UNPACK
        const V round = MM(set1_epi32)(half);
        const V e0 = MM(add_epi32)(MM(madd_epi16)(p04, FM_PAIR(8192, 8192)), round);
        const V e1 = MM(add_epi32)(MM(madd_epi16)(p04, FM_PAIR(8192, -8192)), round);
        const V e2 = MM(madd_epi16)(p26, FM_PAIR(4433, 4433 - 15137));
        const V e3 = MM(madd_epi16)(p26, FM_PAIR(4433 + 6270, 4433));
        const V q3 = MM(madd_epi16)(pz, FM_PAIR(9633 - 16069, 9633));
        const V q4 = MM(madd_epi16)(pz, FM_PAIR(9633, 9633 - 3196));
        const V o0 = MM(add_epi32)(MM(madd_epi16)(p17, FM_PAIR(12299 - 7373, -7373)), q4);
        const V o1 = MM(add_epi32)(MM(madd_epi16)(p35, FM_PAIR(25172 - 20995, -20995)), q3);
        const V o2 = MM(add_epi32)(MM(madd_epi16)(p35, FM_PAIR(-20995, 16819 - 20995)), q4);
        const V o3 = MM(add_epi32)(MM(madd_epi16)(p17, FM_PAIR(-7373, 2446 - 7373)), q3);
        const V even0 = MM(add_epi32)(e0, e3), even3 = MM(sub_epi32)(e0, e3);
        const V even1 = MM(add_epi32)(e1, e2), even2 = MM(sub_epi32)(e1, e2);
        V *const s = sums[h];
        s[0] = MM(add_epi32)(even0, o0), s[7] = MM(sub_epi32)(even0, o0);
        s[1] = MM(add_epi32)(even1, o1), s[6] = MM(sub_epi32)(even1, o1);
        s[2] = MM(add_epi32)(even2, o2), s[5] = MM(sub_epi32)(even2, o2);
        s[3] = MM(add_epi32)(even3, o3), s[4] = MM(sub_epi32)(even3, o3);
    }
}

/* The first pass's shift by 11, and transposition. A pair of rows is interleaved by shifting one of
 * them to the upper halves of the double words, which saves packing. */
FM_SET_INLINE void FM_NAME(fm_idct_middle)(V *r, const V sums[2][8]) {
    V pairs[2][4], quads[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            pairs[h][i] = MM(blend_epi16)(MM(srli_epi32)(sums[h][2 * i], 11),
                                          MM(slli_epi32)(sums[h][2 * i + 1], 5), 0xAA);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            quads[h][2 * i] = MM(unpacklo_epi32)(pairs[h][2 * i], pairs[h][2 * i + 1]);
            quads[h][2 * i + 1] = MM(unpackhi_epi32)(pairs[h][2 * i], pairs[h][2 * i + 1]);
        }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            r[4 * h + 2 * i] = MM(unpacklo_epi64)(quads[h][i], quads[h][2 + i]);
            r[4 * h + 2 * i + 1] = MM(unpackhi_epi64)(quads[h][i], quads[h][2 + i]);
        }
}

/* The second pass's shift by 18, limiting to bytes, and transposition: rows 2 * i and 2 * i + 1 in
 * rows[i]. If `checks`, the result has bits of each sample that is not between -512 and 511, to
 * which 128 has been added. */
FM_SET_INLINE V FM_NAME(fm_idct_end)(V *rows, const V sums[2][8], const bool checks) {
    V pairs[4], quads[4], wrong = FM_XOR(sums[0][0], sums[0][0]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        V words[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            words[h] = MM(blend_epi16)(MM(srai_epi32)(sums[h][2 * i], 18),
                                       MM(srai_epi32)(sums[h][2 * i + 1], 2), 0xAA);
            if (checks)
                wrong = FM_OR(
                    wrong, MM(srli_epi16)(MM(add_epi16)(words[h], MM(set1_epi16)(512 - 128)), 10));
        }
        pairs[i] = MM(packus_epi16)(words[0], words[1]);
    }
    quads[0] = MM(unpacklo_epi16)(pairs[0], pairs[1]);
    quads[1] = MM(unpackhi_epi16)(pairs[0], pairs[1]);
    quads[2] = MM(unpacklo_epi16)(pairs[2], pairs[3]);
    quads[3] = MM(unpackhi_epi16)(pairs[2], pairs[3]);
    rows[0] = MM(unpacklo_epi32)(quads[0], quads[2]);
    rows[1] = MM(unpackhi_epi32)(quads[0], quads[2]);
    rows[2] = MM(unpacklo_epi32)(quads[1], quads[3]);
    rows[3] = MM(unpackhi_epi32)(quads[1], quads[3]);
    return wrong;
}

/* The weighted sums of the blocks' coefficients, in all double words; *dc gets those of the DC
 * alone, in the first double word of each 16 bytes. */
FM_SET_INLINE V FM_NAME(fm_idct_weigh)(const V *c, const fm_jpeg_quant *quant, V *dc) {
    /* A DC of -32768 counts as 32767. */
    const V first = MM(min_epu16)(MM(abs_epi16)(c[0]), MM(set1_epi16)(INT16_MAX));
    const V weight = FM_LOAD_ROW(quant->weight);
    *dc = MM(madd_epi16)(FM_AND(first, MM(set1_epi32)(0xffff)), weight);
    V sum = MM(madd_epi16)(first, weight);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++)
        sum = MM(add_epi32)(
            sum, MM(madd_epi16)(MM(abs_epi16)(c[i]), FM_LOAD_ROW(quant->weight + 8 * i)));
    sum = MM(add_epi32)(sum, MM(shuffle_epi32)(sum, 0x4E));
    return MM(add_epi32)(sum, MM(shuffle_epi32)(sum, 0xB1));
}

/* The sample that blocks in range without other coefficients than the DC consist of, in all bytes.
 * Both passes of the inverse DCT together: (DC + 4) >> 3. */
FM_SET_INLINE V FM_NAME(fm_idct_flat)(V first, const fm_jpeg_quant *quant) {
    const V dc = MM(mullo_epi16)(first, FM_LOAD_ROW(quant->step));
    const V sample = MM(srai_epi16)(MM(add_epi16)(dc, MM(set1_epi16)(4 + (128 << 3))), 3);
    return MM(shuffle_epi8)(MM(packus_epi16)(sample, sample), FM_XOR(dc, dc));
}

/* Whether a double word exceeds the limit. */
FM_SET_INLINE bool FM_NAME(fm_exceeds)(V sums, int32_t limit) {
    return MM(movemask_epi8)(MM(cmpgt_epi32)(sums, MM(set1_epi32)(limit))) != 0;
}

/* c has the coefficients' rows; rows[i] gets rows 2 * i and 2 * i + 1 of samples. Returns whether
 * the samples are in range, if `checks`. */
FM_SET_INLINE bool FM_NAME(fm_idct_blocks)(V *rows, const V *c, const fm_jpeg_quant *quant,
                                           const bool checks) {
    V r[8], sums[2][8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = MM(mullo_epi16)(c[i], FM_LOAD_ROW(quant->step + 8 * i));
    FM_NAME(fm_idct_pass)(sums, r, 1 << 10);
    FM_NAME(fm_idct_middle)(r, (const V(*)[8])sums);
    /* Half a unit, and 128, around which samples lie. */
    FM_NAME(fm_idct_pass)(sums, r, (1 << 17) + (128 << 18));
    const V wrong = FM_NAME(fm_idct_end)(rows, (const V(*)[8])sums, checks);
    return !checks || FM_IS_ZERO(wrong);
}

#undef FM_PAIR

#endif
