/* Look-up tables by AVX-512 VBMI, for color.c: a table of 256 bytes is four registers. */
#ifndef FM_AUGMENT_X86_LOOKUP_AVX512_H
#define FM_AUGMENT_X86_LOOKUP_AVX512_H

#include "augment/x86/target.h"

/* Bytes that are looked up at a time: three registers, so that channels are at the same places. */
enum { FM_LOOKUP_BYTES = 192 };

typedef struct fm_lookup_table {
    __m512i quarters[4];
} fm_lookup_table;

FM_AUGMENT_AVX512 __m512i fm_lookup_one_avx512(const fm_lookup_table *table, __m512i bytes) {
    /* A permutation looks at the lower seven bits. */
    const __m512i low = _mm512_permutex2var_epi8(table->quarters[0], bytes, table->quarters[1]);
    const __m512i high = _mm512_permutex2var_epi8(table->quarters[2], bytes, table->quarters[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high);
}

/* Replaces each byte of pixels of three bytes by its entry in its channel's table. Returns how many
 * of the n bytes it did. */
FM_AUGMENT_AVX512 size_t fm_lookup_avx512(uint8_t *px, size_t n, const uint8_t tables[3 * 256]) {
    /* Every third bit, from bit 0, 1 and 2 on. */
    static const uint64_t THIRDS[3] = {0x9249249249249249, 0x2492492492492492, 0x4924924924924924};
    fm_lookup_table by_channel[3];
    for (size_t i = 0; i < 12; i++)
        by_channel[i / 4].quarters[i % 4] = _mm512_loadu_si512(tables + 64 * i);
    size_t i = 0;
    for (; i + FM_LOOKUP_BYTES <= n; i += FM_LOOKUP_BYTES) {
        for (size_t k = 0; k < 3; k++) {
            /* The register's first byte is byte 64 * k, of channel k. */
            uint8_t *const at = px + i + 64 * k;
            const __m512i bytes = _mm512_loadu_si512(at);
            const __mmask64 greens = THIRDS[(4 - k) % 3], blues = THIRDS[(5 - k) % 3];
            __m512i found = fm_lookup_one_avx512(&by_channel[0], bytes);
            found =
                _mm512_mask_blend_epi8(greens, found, fm_lookup_one_avx512(&by_channel[1], bytes));
            found =
                _mm512_mask_blend_epi8(blues, found, fm_lookup_one_avx512(&by_channel[2], bytes));
            _mm512_storeu_si512(at, found);
        }
    }
    return i;
}

#endif
