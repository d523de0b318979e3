/* Stores in AVX2, FMA and F16C, which compute values instead of reading the table. */
#ifndef FM_TRANSFORM_X86_STORE_AVX2_H
#define FM_TRANSFORM_X86_STORE_AVX2_H

#include <string.h>

#include "transform/store.h"
#include "transform/x86/target.h"

/* A compile-time constant in all functions below. */
typedef enum fm_avx2_kind { FM_AVX2_F32, FM_AVX2_F16, FM_AVX2_BF16 } fm_avx2_kind;

/* The constants for eight adjacent values. */
typedef struct fm_avx2_terms {
    __m256 mean, scale_high, scale_low; /* float32 */
    __m256 slope, offset;               /* 16 bits */
} fm_avx2_terms;

/*
 * Computes eight values. 1/255 and 1/std are sums of two floats, the second being the rounding
 * error of the first, so that products are correctly rounded except in rare cases; fm_store_init()
 * has compared all results with the table.
 */
FM_AVX2_INLINE __m256 fm_values_avx2(__m256i bytes, const fm_avx2_terms *terms,
                                     const fm_avx2_kind kind) {
    const __m256 x = _mm256_cvtepi32_ps(bytes);
    if (kind != FM_AVX2_F32) return _mm256_fmadd_ps(x, terms->slope, terms->offset);
    const __m256 part = _mm256_mul_ps(x, _mm256_set1_ps(FM_STEPS_255TH_LOW));
    const __m256 share = _mm256_fmadd_ps(x, _mm256_set1_ps(FM_STEPS_255TH_HIGH), part);
    const __m256 from_mean = _mm256_sub_ps(share, terms->mean);
    return _mm256_fmadd_ps(from_mean, terms->scale_high,
                           _mm256_mul_ps(from_mean, terms->scale_low));
}

/* Rounds ties up, not to even; fm_store_init() has checked that there are none. */
FM_AVX2_INLINE __m128i fm_bf16_avx2(__m256 values) {
    const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(values), _mm256_set1_epi32(0x8000));
    const __m256i rounded = _mm256_srli_epi32(sum, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

/* Stores eight values in their type. */
FM_AVX2_INLINE void fm_put_avx2(uint8_t *to, __m256 values, const fm_avx2_kind kind) {
    if (kind == FM_AVX2_F32)
        _mm256_storeu_ps((float *)to, values);
    else if (kind == FM_AVX2_F16)
        _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    else
        _mm_storeu_si128((__m128i *)to, fm_bf16_avx2(values));
}

FM_AVX2_INLINE size_t fm_value_bytes_avx2(const fm_avx2_kind kind) {
    return kind == FM_AVX2_F32 ? 4 : 2;
}

/* ---- planes ---------------------------------------------------------------------------------- */

FM_AVX2_INLINE void fm_channel_terms_avx2(fm_avx2_terms *terms, const fm_store *store) {
    for (int channel = 0; channel < 3; channel++)
        terms[channel] =
            (fm_avx2_terms){.mean = _mm256_set1_ps(store->steps.mean[channel]),
                            .scale_high = _mm256_set1_ps(store->steps.scale_high[channel]),
                            .scale_low = _mm256_set1_ps(store->steps.scale_low[channel]),
                            .slope = _mm256_set1_ps(store->line.slope[channel]),
                            .offset = _mm256_set1_ps(store->line.offset[channel])};
}

/* Loads eight pixels for fm_channel_avx2(). Reads 28 bytes, the last four of which may be in the
 * slack. */
FM_AVX2_INLINE __m256i fm_eight_px_avx2(const uint8_t *in) {
    const __m128i low = _mm_loadu_si128((const __m128i *)in);
    const __m128i high = _mm_loadu_si128((const __m128i *)(in + 12));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* One channel of eight pixels, as numbers of 32 bits. */
FM_AVX2_INLINE __m256i fm_channel_avx2(__m256i px, size_t channel) {
    const __m256i places[3] = {_mm256_broadcastsi128_si256(_mm_setr_epi8(
                                   0, -1, -1, -1, 3, -1, -1, -1, 6, -1, -1, -1, 9, -1, -1, -1)),
                               _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                   1, -1, -1, -1, 4, -1, -1, -1, 7, -1, -1, -1, 10, -1, -1, -1)),
                               _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                   2, -1, -1, -1, 5, -1, -1, -1, 8, -1, -1, -1, 11, -1, -1, -1))};
    return _mm256_shuffle_epi8(px, places[channel]);
}

/* Stores eight pixels. Reads as fm_eight_px_avx2(). */
FM_AVX2_INLINE void fm_planar_px_avx2(uint8_t *to, size_t plane_bytes, const uint8_t *in,
                                      const fm_avx2_terms *terms, const fm_avx2_kind kind) {
    const __m256i px = fm_eight_px_avx2(in);
    for (size_t c = 0; c < 3; c++)
        fm_put_avx2(to + c * plane_bytes, fm_values_avx2(fm_channel_avx2(px, c), &terms[c], kind),
                    kind);
}

/* The last eight pixels may overlap the ones before. Fewer than eight go through a buffer. */
FM_AVX2_INLINE void fm_planar_avx2(const fm_store *store, uint8_t *out, const uint8_t *in, size_t n,
                                   const fm_avx2_kind kind) {
    const size_t value_bytes = fm_value_bytes_avx2(kind);
    const size_t plane_bytes = store->plane * value_bytes;
    fm_avx2_terms terms[3];
    fm_channel_terms_avx2(terms, store);
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        fm_planar_px_avx2(out + at * value_bytes, plane_bytes, in + 3 * at, terms, kind);
    }
    if (n >= 8) return;
    uint8_t few[3 * 32];
    fm_planar_px_avx2(few, 32, in, terms, kind);
    for (size_t channel = 0; channel < 3; channel++)
        memcpy(out + channel * plane_bytes, few + 32 * channel, n * value_bytes);
}

/* Whether rows are written past the cache: with fm_plan.stream, if they fill whole cache lines.
 * Then a line need not be read before it is written, which is half the memory traffic. */
FM_AVX2_INLINE bool fm_streams_avx2(const fm_store *store, const void *out, size_t n_px) {
    return store->plan->stream && (uintptr_t)out % 64 == 0 && n_px % 16 == 0;
}

/* Writes a whole cache line of a plane before it goes on to the next plane: the CPU writes a line
 * to memory in one piece only if few other lines are begun in between. */
FM_AVX2_INLINE void fm_planar_stream_avx2(const fm_store *store, float *out, const uint8_t *in,
                                          size_t n) {
    fm_avx2_terms terms[3];
    fm_channel_terms_avx2(terms, store);
    for (size_t i = 0; i < n; i += 16) {
        const __m256i px[2] = {fm_eight_px_avx2(in + 3 * i), fm_eight_px_avx2(in + 3 * i + 24)};
        for (size_t c = 0; c < 3; c++) {
            float *const to = out + c * store->plane + i;
            for (size_t half = 0; half < 2; half++)
                _mm256_stream_ps(to + 8 * half, fm_values_avx2(fm_channel_avx2(px[half], c),
                                                               &terms[c], FM_AVX2_F32));
        }
    }
}

FM_AVX2 void fm_planar_f32_avx2(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    if (fm_streams_avx2(store, out, (size_t)n_px) && store->plane % 16 == 0)
        fm_planar_stream_avx2(store, out, in, (size_t)n_px);
    else
        fm_planar_avx2(store, out, in, (size_t)n_px, FM_AVX2_F32);
}

FM_AVX2 void fm_planar_f16_avx2(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    fm_planar_avx2(store, out, in, (size_t)n_px, FM_AVX2_F16);
}

FM_AVX2 void fm_planar_bf16_avx2(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    fm_planar_avx2(store, out, in, (size_t)n_px, FM_AVX2_BF16);
}

/* ---- one plane ------------------------------------------------------------------------------- */

FM_AVX2_INLINE void fm_plane_eight_avx2(float *to, const uint8_t *in, const fm_avx2_terms *terms) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)in));
    _mm256_storeu_ps(to, fm_values_avx2(bytes, terms, FM_AVX2_F32));
}

/* As fm_planar_avx2(). */
FM_AVX2 void fm_plane_f32_avx2(const fm_store *store, int channel, void *out, const uint8_t *in,
                               size_t n) {
    float *const to = out, few_values[8];
    uint8_t few[8] = {0};
    fm_avx2_terms terms[3];
    fm_channel_terms_avx2(terms, store);
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        fm_plane_eight_avx2(to + at, in + at, &terms[channel]);
    }
    if (n >= 8) return;
    memcpy(few, in, n);
    fm_plane_eight_avx2(few_values, few, &terms[channel]);
    memcpy(to, few_values, n * sizeof(float));
}

/* ---- interleaved channels -------------------------------------------------------------------- */

/* Repeats the three channels' numbers eight times in all, beginning with channel first % 3. */
FM_AVX2_INLINE __m256 fm_in_turn_avx2(const float *by_channel, int first) {
    float turn[8];
    for (int i = 0; i < 8; i++) turn[i] = by_channel[(first + i) % 3];
    return _mm256_loadu_ps(turn);
}

/* The constants for the three groups of eight values in eight pixels. */
FM_AVX2_INLINE void fm_turn_terms_avx2(fm_avx2_terms *terms, const fm_store *store) {
    for (int k = 0; k < 3; k++)
        terms[k] = (fm_avx2_terms){.mean = fm_in_turn_avx2(store->steps.mean, 8 * k),
                                   .scale_high = fm_in_turn_avx2(store->steps.scale_high, 8 * k),
                                   .scale_low = fm_in_turn_avx2(store->steps.scale_low, 8 * k),
                                   .slope = fm_in_turn_avx2(store->line.slope, 8 * k),
                                   .offset = fm_in_turn_avx2(store->line.offset, 8 * k)};
}

/* Computes group k, 0 to 2, of eight values in eight pixels. */
FM_AVX2_INLINE __m256 fm_packed_values_avx2(const uint8_t *in, size_t k, const fm_avx2_terms *terms,
                                            const fm_avx2_kind kind) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(in + 8 * k));
    return fm_values_avx2(_mm256_cvtepu8_epi32(bytes), &terms[k], kind);
}

FM_AVX2_INLINE void fm_packed_px_avx2(uint8_t *to, const uint8_t *in, const fm_avx2_terms *terms,
                                      const fm_avx2_kind kind) {
    for (size_t k = 0; k < 3; k++)
        fm_put_avx2(to + 8 * k * fm_value_bytes_avx2(kind),
                    fm_packed_values_avx2(in, k, terms, kind), kind);
}

FM_AVX2_INLINE void fm_packed_avx2(const fm_avx2_terms *terms, uint8_t *out, const uint8_t *in,
                                   size_t n, const fm_avx2_kind kind) {
    const size_t px_bytes = 3 * fm_value_bytes_avx2(kind);
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        const size_t at = i + 8 <= n ? i : n - 8;
        fm_packed_px_avx2(out + at * px_bytes, in + 3 * at, terms, kind);
    }
    if (n >= 8) return;
    uint8_t few[3 * 32];
    fm_packed_px_avx2(few, in, terms, kind);
    memcpy(out, few, n * px_bytes);
}

FM_AVX2 void fm_packed_f32_avx2(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    const size_t n = (size_t)n_px;
    fm_avx2_terms terms[3];
    fm_turn_terms_avx2(terms, store);
    if (!fm_streams_avx2(store, out, n)) {
        fm_packed_avx2(terms, out, in, n, FM_AVX2_F32);
        return;
    }
    float *to = out;
    for (size_t i = 0; i < n; i += 8, to += 24, in += 24)
        for (size_t k = 0; k < 3; k++)
            _mm256_stream_ps(to + 8 * k, fm_packed_values_avx2(in, k, terms, FM_AVX2_F32));
}

FM_AVX2 void fm_packed_f16_avx2(const fm_store *store, void *out, const uint8_t *in, int32_t n_px) {
    fm_avx2_terms terms[3];
    fm_turn_terms_avx2(terms, store);
    fm_packed_avx2(terms, out, in, (size_t)n_px, FM_AVX2_F16);
}

FM_AVX2 void fm_packed_bf16_avx2(const fm_store *store, void *out, const uint8_t *in,
                                 int32_t n_px) {
    fm_avx2_terms terms[3];
    fm_turn_terms_avx2(terms, store);
    fm_packed_avx2(terms, out, in, (size_t)n_px, FM_AVX2_BF16);
}

#endif
