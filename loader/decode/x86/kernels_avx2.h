/* The kernels for AVX2. */
#ifndef FM_DECODE_X86_KERNELS_AVX2_H
#define FM_DECODE_X86_KERNELS_AVX2_H

#include "decode/x86/kernels_sse41.h"

FM_DECODE_AVX2_INLINE __m256i fm_load_avx2(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

FM_DECODE_AVX2_INLINE void fm_store_avx2(void *at, __m256i bytes) {
    _mm256_storeu_si256((__m256i *)at, bytes);
}

FM_DECODE_AVX2_INLINE void fm_store_halves_avx2(uint8_t *first, uint8_t *second, __m256i bytes) {
    _mm_storeu_si128((__m128i *)first, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)second, _mm256_extracti128_si256(bytes, 1));
}

#define V __m256i
#define VBYTES 32
#define MM(name) _mm256_##name
#define FM_NAME(name) name##_avx2
#define FM_SET FM_DECODE_AVX2
#define FM_SET_INLINE FM_DECODE_AVX2_INLINE
#define FM_OR _mm256_or_si256
#define FM_AND _mm256_and_si256
#define FM_XOR _mm256_xor_si256
#define FM_IS_ZERO(bits) _mm256_testz_si256(bits, bits)
#define FM_ROW(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
#define FM_LOAD_ROW(at) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(at)))
#define FM_STORE_PAIR(out, low, high)                                \
    (fm_store_avx2(out, _mm256_permute2x128_si256(low, high, 0x20)), \
     fm_store_avx2((uint8_t *)(out) + 32, _mm256_permute2x128_si256(low, high, 0x31)))
#define FM_STORE_THIRDS(out, thirds)                            \
    (fm_store_halves_avx2(out, (out) + 48, (thirds)[0]),        \
     fm_store_halves_avx2((out) + 16, (out) + 64, (thirds)[1]), \
     fm_store_halves_avx2((out) + 32, (out) + 80, (thirds)[2]))
#include "decode/x86/idct_template.h"
#include "decode/x86/pixels_template.h"

/* Two adjacent blocks. */
FM_DECODE_AVX2_INLINE void fm_load_pair_avx2(__m256i *c, const int16_t *blocks) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m128i *const row = (const __m128i *)(blocks + 8 * i);
        c[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(row)),
                                       _mm_loadu_si128(row + 8), 1);
    }
}

FM_DECODE_AVX2_INLINE void fm_store_pair_avx2(uint8_t *out, size_t stride, const __m256i *rows) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        fm_store_halves_avx2(out + 2 * i * stride, out + (2 * i + 1) * stride,
                             _mm256_permute4x64_epi64(rows[i], 0xD8));
}

/* Two blocks that may be out of range: returns false if one is. */
FM_DECODE_AVX2_COLD bool fm_idct_check_avx2(uint8_t *out, size_t stride, const int16_t *blocks,
                                            const fm_jpeg_quant *quant) {
    __m256i c[8], rows[4], dc;
    fm_load_pair_avx2(c, blocks);
    const bool exceeds = fm_exceeds_avx2(fm_idct_weigh_avx2(c, quant, &dc), FM_JPEG_EXACT_SUM);
    if (exceeds &&
        (!fm_jpeg_block_in_range(blocks, quant) || !fm_jpeg_block_in_range(blocks + 64, quant)))
        return false;
    if (!fm_idct_blocks_avx2(rows, c, quant, true)) return false;
    fm_store_pair_avx2(out, stride, rows);
    return true;
}

FM_DECODE_AVX2 bool fm_idct_avx2(uint8_t *out, size_t stride, const int16_t *blocks,
                                 const fm_jpeg_quant *quant, int32_t n) {
    for (; n >= 2; n -= 2, blocks += 128, out += 16) {
        __m256i c[8], rows[4], dc;
        fm_load_pair_avx2(c, blocks);
        const __m256i sums = fm_idct_weigh_avx2(c, quant, &dc);
        if (__builtin_expect(fm_exceeds_avx2(sums, FM_JPEG_SAFE_SUM), 0)) {
            if (!fm_idct_check_avx2(out, stride, blocks, quant)) return false;
            continue;
        }
        if ((~_mm256_movemask_epi8(_mm256_cmpeq_epi32(sums, dc)) & 0x000F000F) == 0) {
            const __m256i flat = fm_idct_flat_avx2(c[0], quant);
            const __m128i row =
                _mm_unpacklo_epi64(_mm256_castsi256_si128(flat), _mm256_extracti128_si256(flat, 1));
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++) fm_store_sse41(out + i * stride, row);
            continue;
        }
        (void)fm_idct_blocks_avx2(rows, c, quant, false);
        fm_store_pair_avx2(out, stride, rows);
    }
    return n == 0 || fm_idct_sse41(out, stride, blocks, quant, 1);
}

/* A step of 32 pixels writes 96 bytes; for 10 pixels and fewer that would be too many. */
#define FM_LEAST_PX 11

FM_DECODE_AVX2_INLINE void fm_ycc_row_avx2(uint8_t *out, const uint8_t *y, const uint8_t *cb,
                                           const uint8_t *cr, int32_t n, const bool bgr) {
    int32_t i = 0;
    for (; n - i >= FM_LEAST_PX; i += 32, out += 96)
        fm_ycc_step_avx2(out, fm_load_avx2(y + i), fm_load_avx2(cb + i), fm_load_avx2(cr + i), bgr);
    if (i < n)
        fm_ycc_step_sse41(out, fm_load_sse41(y + i), fm_load_sse41(cb + i), fm_load_sse41(cr + i),
                          bgr);
}

FM_DECODE_AVX2 void fm_ycc_to_rgb_avx2(uint8_t *out, const uint8_t *y, const uint8_t *cb,
                                       const uint8_t *cr, int32_t n, bool bgr) {
    if (bgr)
        fm_ycc_row_avx2(out, y, cb, cr, n, true);
    else
        fm_ycc_row_avx2(out, y, cb, cr, n, false);
}

FM_DECODE_AVX2 void fm_gray_to_rgb_avx2(uint8_t *out, const uint8_t *y, int32_t n) {
    int32_t i = 0;
    for (; n - i >= FM_LEAST_PX; i += 32, out += 96) fm_gray_step_avx2(out, fm_load_avx2(y + i));
    if (i < n) fm_gray_step_sse41(out, fm_load_sse41(y + i));
}

#endif
