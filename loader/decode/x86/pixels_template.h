/*
 * Upsampling and conversion to RGB in one set (target.h). Registers of 32 bytes are processed as
 * two halves; FM_STORE_PAIR(out, low, high) stores the halves of `low` and `high`, which are
 * consecutive in each half, in the order of the samples.
 */
#ifdef FM_SET /* compiled alone, there is no set */

#define FM_LOAD(at) FM_NAME(fm_load)(at)

/* 3 * near + far of bytes, as words. */
#define FM_BLEND(unpack, near, far) MM(maddubs_epi16)(MM(unpack)(near, far), MM(set1_epi16)(0x0103))

/* (3 * here + other + bias) >> shift of words. */
FM_SET_INLINE V FM_NAME(fm_weigh)(V here, V other, int16_t bias, int shift) {
    const V triple = MM(add_epi16)(MM(add_epi16)(here, here), here);
    return MM(srli_epi16)(MM(add_epi16)(MM(add_epi16)(triple, other), MM(set1_epi16)(bias)), shift);
}

FM_SET void FM_NAME(fm_upsample_h2)(uint8_t *out, const uint8_t *in, int32_t n) {
    const V one = MM(set1_epi16)(1), two = MM(set1_epi16)(2);
    for (int32_t i = 0; i < n; i += VBYTES) {
        const V here = FM_LOAD(in + i), before = FM_LOAD(in + i - 1), after = FM_LOAD(in + i + 1);
        V words[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const V b =
                h ? FM_BLEND(unpackhi_epi8, here, before) : FM_BLEND(unpacklo_epi8, here, before);
            const V a =
                h ? FM_BLEND(unpackhi_epi8, here, after) : FM_BLEND(unpacklo_epi8, here, after);
            const V even = MM(srli_epi16)(MM(add_epi16)(b, one), 2);
            const V odd = MM(srli_epi16)(MM(add_epi16)(a, two), 2);
            words[h] = FM_OR(even, MM(slli_epi16)(odd, 8));
        }
        FM_STORE_PAIR(out + 2 * (ptrdiff_t)i, words[0], words[1]);
    }
}

FM_SET void FM_NAME(fm_upsample_h2v2)(uint8_t *out, const uint8_t *near, const uint8_t *far,
                                      int32_t n) {
    for (int32_t i = 0; i < n; i += VBYTES) {
        const V near0 = FM_LOAD(near + i - 1), near1 = FM_LOAD(near + i),
                near2 = FM_LOAD(near + i + 1);
        const V far0 = FM_LOAD(far + i - 1), far1 = FM_LOAD(far + i), far2 = FM_LOAD(far + i + 1);
        V words[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
#define FM_HALF(a, b) (h ? FM_BLEND(unpackhi_epi8, a, b) : FM_BLEND(unpacklo_epi8, a, b))
            const V before = FM_HALF(near0, far0), here = FM_HALF(near1, far1);
            const V after = FM_HALF(near2, far2);
#undef FM_HALF
            const V even = FM_NAME(fm_weigh)(here, before, 8, 4);
            const V odd = FM_NAME(fm_weigh)(here, after, 7, 4);
            words[h] = FM_OR(even, MM(slli_epi16)(odd, 8));
        }
        FM_STORE_PAIR(out + 2 * (ptrdiff_t)i, words[0], words[1]);
    }
}

FM_SET void FM_NAME(fm_upsample_v2)(uint8_t *out, const uint8_t *near, const uint8_t *far,
                                    int32_t n, bool is_lower) {
    const V bias = MM(set1_epi16)(is_lower ? 2 : 1);
    for (int32_t i = 0; i < n; i += VBYTES) {
        const V a = FM_LOAD(near + i), b = FM_LOAD(far + i);
        const V low = MM(srli_epi16)(MM(add_epi16)(FM_BLEND(unpacklo_epi8, a, b), bias), 2);
        const V high = MM(srli_epi16)(MM(add_epi16)(FM_BLEND(unpackhi_epi8, a, b), bias), 2);
        FM_NAME(fm_store)(out + i, MM(packus_epi16)(low, high));
    }
}

/*
 * Eight pixels in each half, from bytes less 128. pmulhrsw rounds x * factor / 2^15; with factor
 * 13173 that is (26345 * x + 2^15) >> 16 for x from -128 to 127, and with -7471 it is
 * (-14942 * x + 2^15) >> 16, the fractions of 1.402 and 1.772 - 2.
 */
FM_SET_INLINE void FM_NAME(fm_ycc_words)(V *rgb, V y, V cb8, V cr8) {
    const V cb = MM(srai_epi16)(cb8, 8), cr = MM(srai_epi16)(cr8, 8);
    const V red = MM(add_epi16)(cr, MM(mulhrs_epi16)(cr, MM(set1_epi16)(13173)));
    const V blue =
        MM(add_epi16)(MM(add_epi16)(cb, cb), MM(mulhrs_epi16)(cb, MM(set1_epi16)(-7471)));
    /* -0.34414 * cb + 0.28586 * cr - cr; cb8 and cr8 are 256 times cb and cr. */
    const V factors = MM(set1_epi32)((int32_t)((uint32_t)18734 << 16 | (uint16_t)-22554));
    const V half = MM(set1_epi32)(1 << 23);
    const V low = MM(add_epi32)(MM(madd_epi16)(MM(unpacklo_epi16)(cb8, cr8), factors), half);
    const V high = MM(add_epi32)(MM(madd_epi16)(MM(unpackhi_epi16)(cb8, cr8), factors), half);
    const V green = MM(packs_epi32)(MM(srai_epi32)(low, 24), MM(srai_epi32)(high, 24));
    rgb[0] = MM(add_epi16)(y, red);
    rgb[1] = MM(add_epi16)(y, MM(sub_epi16)(green, cr));
    rgb[2] = MM(add_epi16)(y, blue);
}

/* Bytes of red, green and blue, as the three thirds of each half's 48 bytes. */
FM_SET_INLINE void FM_NAME(fm_interleave)(V *thirds, V red, V green, V blue) {
    const V low = MM(unpacklo_epi8)(red, green), high = MM(unpackhi_epi8)(red, green);
    const V middle = MM(alignr_epi8)(high, low, 8);
    thirds[0] = FM_OR(
        MM(shuffle_epi8)(low, FM_ROW(0, 1, -1, 2, 3, -1, 4, 5, -1, 6, 7, -1, 8, 9, -1, 10)),
        MM(shuffle_epi8)(blue, FM_ROW(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1)));
    thirds[1] = FM_OR(
        MM(shuffle_epi8)(middle, FM_ROW(3, -1, 4, 5, -1, 6, 7, -1, 8, 9, -1, 10, 11, -1, 12, 13)),
        MM(shuffle_epi8)(blue, FM_ROW(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1)));
    thirds[2] = FM_OR(
        MM(shuffle_epi8)(high, FM_ROW(-1, 6, 7, -1, 8, 9, -1, 10, 11, -1, 12, 13, -1, 14, 15, -1)),
        MM(shuffle_epi8)(blue,
                         FM_ROW(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15)));
}

/* VBYTES pixels. */
FM_SET_INLINE void FM_NAME(fm_ycc_step)(uint8_t *out, V y, V cb, V cr, bool bgr) {
    const V zero = FM_XOR(y, y), sign = MM(set1_epi8)(-128);
    const V u = FM_XOR(cb, sign), v = FM_XOR(cr, sign);
    V low[3], high[3], rgb[3], thirds[3];
    FM_NAME(fm_ycc_words)
    (low, MM(unpacklo_epi8)(y, zero), MM(unpacklo_epi8)(zero, u), MM(unpacklo_epi8)(zero, v));
    FM_NAME(fm_ycc_words)
    (high, MM(unpackhi_epi8)(y, zero), MM(unpackhi_epi8)(zero, u), MM(unpackhi_epi8)(zero, v));
#pragma GCC unroll 3
    for (int c = 0; c < 3; c++) rgb[c] = MM(packus_epi16)(low[c], high[c]);
    FM_NAME(fm_interleave)(thirds, rgb[bgr ? 2 : 0], rgb[1], rgb[bgr ? 0 : 2]);
    FM_STORE_THIRDS(out, thirds);
}

FM_SET_INLINE void FM_NAME(fm_gray_step)(uint8_t *out, V y) {
    V thirds[3];
    thirds[0] = MM(shuffle_epi8)(y, FM_ROW(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5));
    thirds[1] = MM(shuffle_epi8)(y, FM_ROW(5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10));
    thirds[2] =
        MM(shuffle_epi8)(y, FM_ROW(10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15));
    FM_STORE_THIRDS(out, thirds);
}

#undef FM_LOAD
#undef FM_BLEND

/* This is the last template of a set. */
#undef V
#undef VBYTES
#undef MM
#undef FM_NAME
#undef FM_SET
#undef FM_SET_INLINE
#undef FM_OR
#undef FM_AND
#undef FM_XOR
#undef FM_IS_ZERO
#undef FM_ROW
#undef FM_LOAD_ROW
#undef FM_STORE_PAIR
#undef FM_STORE_THIRDS

#endif
