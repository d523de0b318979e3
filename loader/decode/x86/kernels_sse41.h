/* The kernels for SSE4.1. */
#ifndef FM_DECODE_X86_KERNELS_SSE41_H
#define FM_DECODE_X86_KERNELS_SSE41_H

#include "decode/x86/target.h"

FM_DECODE_SSE41_INLINE __m128i fm_load_sse41(const void *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

FM_DECODE_SSE41_INLINE void fm_store_sse41(void *at, __m128i bytes) {
    _mm_storeu_si128((__m128i *)at, bytes);
}

#define V __m128i
#define VBYTES 16
#define MM(name) _mm_##name
#define FM_NAME(name) name##_sse41
#define FM_SET FM_DECODE_SSE41
#define FM_SET_INLINE FM_DECODE_SSE41_INLINE
#define FM_OR _mm_or_si128
#define FM_AND _mm_and_si128
#define FM_XOR _mm_xor_si128
#define FM_IS_ZERO(bits) _mm_testz_si128(bits, bits)
/* 16 bytes in each half of a register. */
#define FM_ROW _mm_setr_epi8
#define FM_LOAD_ROW(at) fm_load_sse41(at)
#define FM_STORE_PAIR(out, low, high) \
    (fm_store_sse41(out, low), fm_store_sse41((uint8_t *)(out) + 16, high))
#define FM_STORE_THIRDS(out, thirds)                                            \
    (fm_store_sse41(out, (thirds)[0]), fm_store_sse41((out) + 16, (thirds)[1]), \
     fm_store_sse41((out) + 32, (thirds)[2]))
#include "decode/x86/idct_template.h"
#include "decode/x86/pixels_template.h"

FM_DECODE_SSE41_INLINE void fm_load_block_sse41(__m128i *c, const int16_t *block) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) c[i] = fm_load_sse41(block + 8 * i);
}

FM_DECODE_SSE41_INLINE void fm_store_block_sse41(uint8_t *out, size_t stride, const __m128i *rows) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm_storel_epi64((__m128i *)(out + 2 * i * stride), rows[i]);
        _mm_storel_epi64((__m128i *)(out + (2 * i + 1) * stride),
                         _mm_unpackhi_epi64(rows[i], rows[i]));
    }
}

/* A block that may be out of range: returns false if it is. */
FM_DECODE_SSE41_COLD bool fm_idct_check_sse41(uint8_t *out, size_t stride, const int16_t *block,
                                              const fm_jpeg_quant *quant) {
    __m128i c[8], rows[4], dc;
    fm_load_block_sse41(c, block);
    const bool exceeds = fm_exceeds_sse41(fm_idct_weigh_sse41(c, quant, &dc), FM_JPEG_EXACT_SUM);
    if (exceeds && !fm_jpeg_block_in_range(block, quant)) return false;
    if (!fm_idct_blocks_sse41(rows, c, quant, true)) return false;
    fm_store_block_sse41(out, stride, rows);
    return true;
}

FM_DECODE_SSE41 bool fm_idct_sse41(uint8_t *out, size_t stride, const int16_t *blocks,
                                   const fm_jpeg_quant *quant, int32_t n) {
    for (int32_t b = 0; b < n; b++, blocks += 64, out += 8) {
        __m128i c[8], rows[4], dc;
        fm_load_block_sse41(c, blocks);
        const __m128i sums = fm_idct_weigh_sse41(c, quant, &dc);
        if (__builtin_expect(fm_exceeds_sse41(sums, FM_JPEG_SAFE_SUM), 0)) {
            if (!fm_idct_check_sse41(out, stride, blocks, quant)) return false;
            continue;
        }
        if ((_mm_movemask_epi8(_mm_cmpeq_epi32(sums, dc)) & 0xF) == 0xF) {
            const __m128i flat = fm_idct_flat_sse41(c[0], quant);
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++) _mm_storel_epi64((__m128i *)(out + i * stride), flat);
            continue;
        }
        (void)fm_idct_blocks_sse41(rows, c, quant, false);
        fm_store_block_sse41(out, stride, rows);
    }
    return true;
}

/* A step writes 48 bytes, at least 3 of which are pixels. */
FM_DECODE_SSE41 void fm_ycc_to_rgb_sse41(uint8_t *out, const uint8_t *y, const uint8_t *cb,
                                         const uint8_t *cr, int32_t n, bool bgr) {
    for (int32_t i = 0; i < n; i += 16, out += 48) {
        const __m128i luma = fm_load_sse41(y + i);
        if (bgr)
            fm_ycc_step_sse41(out, luma, fm_load_sse41(cb + i), fm_load_sse41(cr + i), true);
        else
            fm_ycc_step_sse41(out, luma, fm_load_sse41(cb + i), fm_load_sse41(cr + i), false);
    }
}

FM_DECODE_SSE41 void fm_gray_to_rgb_sse41(uint8_t *out, const uint8_t *y, int32_t n) {
    for (int32_t i = 0; i < n; i += 16, out += 48) fm_gray_step_sse41(out, fm_load_sse41(y + i));
}

#endif
