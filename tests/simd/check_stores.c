/*
 * The stores of every tier that the CPU has, for each type and layout: all 768 pairs of channel and
 * value against the plan's table, and rows of any width and place against the scalar version.
 * Outputs begin or end at a page that can't be written, input rows end with their slack at one that
 * can't be read, and no other byte may change. Prints its seed; FM_SEED sets it.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "transform/half.h"
#include "transform/kernels.h"
#include "transform/store.h"

enum { MOST_PX = 300, MOST_GAP = 40 };

static uint32_t lcg_state;
static int32_t random_below(int32_t n) {
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(lcg_state >> 8) * (uint32_t)n >> 24);
}

static fm_cpu_tier best_tier(void) {
    fm_cpu_tier tier;
    assert_int_equal(fm_cpu_tier_get(&tier, NULL), FM_OK);
    return tier;
}

static size_t value_bytes(const fm_plan *plan) {
    return plan->dtype == FM_UINT8 ? 1 : plan->dtype == FM_FLOAT32 ? 4 : 2;
}

static const char *name_of(const fm_plan *plan, int tier) {
    static const char *const dtypes[] = {"", "uint8", "float32", "float16", "bfloat16"};
    static char name[64];
    snprintf(name, sizeof(name), "%s, %s, %s", dtypes[plan->dtype],
             plan->layout == FM_NHWC ? "NHWC" : "NCHW", fm_cpu_tier_name((fm_cpu_tier)tier));
    return name;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static const float usual[][6] = {
    {0, 0, 0, 1, 1, 1},
    {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f},
    {0.485f, 0.456f, 0.406f, 0.229f, 0.224f, 0.225f},
    {0.4914f, 0.4822f, 0.4465f, 0.2470f, 0.2435f, 0.2616f},
    {0.48145466f, 0.4578275f, 0.40821073f, 0.26862954f, 0.26130258f, 0.27577711f},
    {0.1307f, 0.1307f, 0.1307f, 0.3081f, 0.3081f, 0.3081f},
};
enum { N_USUAL = sizeof(usual) / sizeof(*usual) };

static fm_plan make_plan(int dtype, int layout, const float *mean_and_std) {
    const fm_op op = {.kind = FM_OP_CENTER_CROP, .height = 1, .width = 1};
    fm_transform transform = {
        .ops = &op, .n_ops = 1, .dtype = (fm_dtype)dtype, .layout = (fm_layout)layout};
    memcpy(transform.mean, mean_and_std, sizeof(transform.mean));
    memcpy(transform.std, mean_and_std + 3, sizeof(transform.std));
    fm_plan plan;
    assert_int_equal(fm_plan_init(&plan, &transform, NULL), FM_OK);
    return plan;
}

static void random_mean_and_std(float *out) {
    for (int c = 0; c < 3; c++) {
        out[c] = (float)random_below(1 << 24) / (1 << 23) - 1;
        out[3 + c] = (float)(1 + random_below(1 << 24)) / (1 << 23);
    }
}

/* ---- all values ------------------------------------------------------------------------------ */

/* Gray pixels of all values give the plan's table, which does not change. */
static void check_all_values(const fm_plan *plan, int tier) {
    enum { N = 256 };
    uint8_t ramp[3 * N + FM_ROW_SLACK] = {0}, out[3 * N * 4];
    for (int i = 0; i < 3 * N; i++) ramp[i] = (uint8_t)(i / 3);
    fm_store store;
    fm_store_init(&store, plan, (fm_cpu_tier)tier);
    store.plane = N;
    store.row(&store, out, ramp, N);
    fm_store_drain(&store);
    const size_t n_bytes = value_bytes(plan);
    for (size_t i = 0; i < 3 * N; i++) {
        const size_t channel = plan->layout == FM_NHWC ? i % 3 : i / N;
        const size_t value = plan->layout == FM_NHWC ? i / 3 : i % N;
        uint32_t got = 0, want = (uint32_t)value;
        memcpy(&got, out + i * n_bytes, n_bytes);
        if (plan->dtype != FM_UINT8) want = plan->bits[channel][value];
        if (got != want)
            fail_msg("%s: channel %zu, value %zu: 0x%x, not 0x%x", name_of(plan, tier), channel,
                     value, got, want);
    }
}

/* The lowest tier that computes values, and the highest one of a type whose stores do not. */
#if defined(__aarch64__)
enum { ARITHMETIC_TIER = FM_CPU_NEON };
static int table_tier(fm_dtype dtype) { return dtype == FM_UINT8 ? FM_CPU_NEON : FM_CPU_SCALAR; }
#else
enum { ARITHMETIC_TIER = FM_CPU_AVX2 };
static int table_tier(fm_dtype dtype) {
    (void)dtype;
    return FM_CPU_SSE41;
}
#endif

static bool is_arithmetic(const fm_plan *plan, int tier) {
    fm_store store, table;
    fm_store_init(&store, plan, (fm_cpu_tier)tier);
    const int highest = table_tier(plan->dtype);
    fm_store_init(&table, plan, (fm_cpu_tier)(tier < highest ? tier : highest));
    return store.row != table.row;
}

static void all_values_are_the_tables(void **state) {
    (void)state;
    for (int dtype = FM_UINT8; dtype <= FM_BFLOAT16; dtype++) {
        for (int layout = FM_NCHW; layout <= FM_NHWC; layout++) {
            for (int tier = 0; tier <= (int)best_tier(); tier++) {
                for (int i = 0; i < N_USUAL; i++) {
                    const fm_plan plan = make_plan(dtype, layout, usual[i]);
                    check_all_values(&plan, tier);
                    const bool wanted = dtype != FM_UINT8 && tier >= ARITHMETIC_TIER;
                    if (is_arithmetic(&plan, tier) != wanted)
                        fail_msg("%s, case %d: %s", name_of(&plan, tier), i,
                                 wanted ? "the table is used" : "there is arithmetic");
                }
            }
        }
    }
}

#if !defined(__aarch64__)
/* There are none of its own. */
static void avx512_takes_the_stores_of_avx2(void **state) {
    (void)state;
    if (best_tier() < FM_CPU_AVX2) skip();
    for (int dtype = FM_UINT8; dtype <= FM_BFLOAT16; dtype++) {
        for (int layout = FM_NCHW; layout <= FM_NHWC; layout++) {
            const fm_plan plan = make_plan(dtype, layout, usual[2]);
            fm_store avx2, avx512;
            fm_store_init(&avx2, &plan, FM_CPU_AVX2);
            fm_store_init(&avx512, &plan, FM_CPU_AVX512);
            assert_true(avx512.row == avx2.row);
        }
    }
}
#endif

/* For most tables constants for arithmetic are found, and their results equal the table. */
static void any_mean_and_std_is_right(void **state) {
    (void)state;
    const int tier = (int)best_tier();
    for (int dtype = FM_FLOAT32; dtype <= FM_BFLOAT16; dtype++) {
        int n_found = 0;
        for (int i = 0; i < 300; i++) {
            float mean_and_std[6];
            random_mean_and_std(mean_and_std);
            const fm_plan plan = make_plan(dtype, i % 2, mean_and_std);
            check_all_values(&plan, tier);
            n_found += is_arithmetic(&plan, tier);
        }
        print_message("type %d: arithmetic for %d of 300 tables\n", dtype, n_found);
        if (tier >= ARITHMETIC_TIER) assert_true(n_found > 270);
    }
}

/* Tables with a small error, of zeros, of NaNs, and random ones. */
static void change_table(fm_plan *plan, int how) {
    const uint32_t mask = plan->dtype == FM_FLOAT32 ? UINT32_MAX : UINT16_MAX;
    if (how == 0) plan->bits[1][200] ^= 1;
    for (int k = 0; how > 0 && k < 768; k++) {
        lcg_state = lcg_state * 1664525u + 1013904223u;
        const uint32_t bits = how == 1 ? 0 : how == 2 ? UINT32_MAX : lcg_state ^ lcg_state >> 16;
        plan->bits[k / 256][k % 256] = bits & mask;
    }
}

static void any_table_is_right(void **state) {
    (void)state;
    for (int dtype = FM_FLOAT32; dtype <= FM_BFLOAT16; dtype++) {
        for (int tier = 0; tier <= (int)best_tier(); tier++) {
            for (int i = 0; i < 20; i++) {
                fm_plan plan = make_plan(dtype, i % 2, usual[2]);
                change_table(&plan, i / 2);
                check_all_values(&plan, tier);
                if (i / 2 >= 2) assert_false(is_arithmetic(&plan, tier));
            }
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static size_t page_bytes, area_bytes;

/* Writable bytes between two pages that are not. */
static uint8_t *map_area(void) {
    uint8_t *const memory = mmap(NULL, area_bytes + 2 * page_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory, page_bytes, PROT_NONE), 0);
    assert_int_equal(mprotect(memory + page_bytes + area_bytes, page_bytes, PROT_NONE), 0);
    return memory + page_bytes;
}

/* A row at an offset into both areas; all of both must be the same then. */
static void check_row(const fm_store *scalar, const fm_store *store, int tier, uint8_t *want,
                      uint8_t *got, size_t offset, const uint8_t *in, int32_t n_px) {
    memset(want, 0xa5, area_bytes);
    memset(got, 0xa5, area_bytes);
    scalar->row(scalar, want + offset, in, n_px);
    store->row(store, got + offset, in, n_px);
    fm_store_drain(store);
    for (size_t i = 0; i < area_bytes; i++)
        if (got[i] != want[i])
            fail_msg("%s, %d pixels: byte %zd is %d, not %d", name_of(store->plan, tier), n_px,
                     (ssize_t)i - (ssize_t)offset, got[i], want[i]);
}

static void check_rows(fm_plan *plan, int tier, uint8_t *in_area, uint8_t *want, uint8_t *got) {
    fm_store scalar, store;
    fm_store_init(&scalar, plan, FM_CPU_SCALAR);
    fm_store_init(&store, plan, (fm_cpu_tier)tier);
    for (int32_t n_px = 1; n_px <= MOST_PX; n_px++) {
        uint8_t *const in = in_area + area_bytes - FM_ROW_SLACK - 3 * n_px;
        for (int32_t i = 0; i < 3 * n_px + FM_ROW_SLACK; i++) in[i] = (uint8_t)random_below(256);
        const size_t n_bytes = value_bytes(plan);
        plan->stream = random_below(2);
        /* Some gaps that keep all planes at the start of a cache line. */
        const size_t gap = (size_t)random_below(MOST_GAP);
        store.plane = scalar.plane = (size_t)n_px + (random_below(2) ? gap : gap / 16 * 16);
        const size_t n_values =
            plan->layout == FM_NHWC ? 3 * (size_t)n_px : 2 * store.plane + (size_t)n_px;
        const size_t last = area_bytes - n_values * n_bytes;
        check_row(&scalar, &store, tier, want, got, 0, in, n_px);
        check_row(&scalar, &store, tier, want, got, last, in, n_px);
        check_row(&scalar, &store, tier, want, got, n_bytes * (size_t)random_below(64), in, n_px);
    }
}

static void rows_equal_the_scalar_ones(void **state) {
    (void)state;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    area_bytes = (3 * (MOST_PX + MOST_GAP) + 64) * sizeof(float);
    area_bytes = (area_bytes + page_bytes - 1) / page_bytes * page_bytes;
    uint8_t *const in = map_area(), *const want = map_area(), *const got = map_area();
    for (int dtype = FM_UINT8; dtype <= FM_BFLOAT16; dtype++) {
        for (int layout = FM_NCHW; layout <= FM_NHWC; layout++) {
            for (int tier = 1; tier <= (int)best_tier(); tier++) {
                fm_plan plan = make_plan(dtype, layout, usual[2]);
                check_rows(&plan, tier, in, want, got);
            }
        }
    }
}

/* ---- 16-bit numbers -------------------------------------------------------------------------- */

/* `bits` is the number next to value, and at a tie the even one. */
static void check_nearest(float value, uint32_t bits, int n_digits) {
    const double size = fabs((double)value);
    const uint32_t got = bits & 0x7fff;
    assert_int_equal(bits >> 15, signbit(value) ? 1 : 0);
    const double error = fabs(fm_half_size(got, n_digits) - size);
    const double above = fm_half_size(got + 1, n_digits) - size;
    const double below = got ? size - fm_half_size(got - 1, n_digits) : INFINITY;
    if (error > above || error > below || (got & 1 && (error == above || error == below)))
        fail_msg("%a is rounded to 0x%x (%d digits)", (double)value, bits, n_digits);
}

static void rounding_is_to_the_nearest(void **state) {
    (void)state;
    for (int n_digits = 7; n_digits <= 10; n_digits += 3) {
        const uint32_t infinity = n_digits == 10 ? 0x7c00 : 0x7f80;
        uint16_t (*const round)(float) = n_digits == 10 ? fm_float16_bits : fm_bfloat16_bits;
        for (uint32_t bits = 0; bits < infinity; bits++) {
            const double value = fm_half_size(bits, n_digits);
            const double tie = (value + fm_half_size(bits + 1, n_digits)) / 2;
            assert_int_equal(round((float)value), bits);
            assert_int_equal(round((float)-value), bits | 0x8000);
            check_nearest((float)tie, round((float)tie), n_digits);
            check_nearest(nextafterf((float)tie, 0), round(nextafterf((float)tie, 0)), n_digits);
            const float more = nextafterf((float)tie, INFINITY);
            if (isfinite(more)) check_nearest(more, round(more), n_digits);
        }
        assert_int_equal(round(INFINITY), infinity);
        assert_int_equal(round(-INFINITY), infinity | 0x8000);
        assert_true((round(NAN) & 0x7fff) > infinity);
    }
}

int main(void) {
    const char *const seed = getenv("FM_SEED");
    lcg_state = seed ? (uint32_t)strtoul(seed, NULL, 10) : 1;
    fm_cpu_tier tier;
    fm_error error;
    if (fm_cpu_tier_get(&tier, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    print_message("seed %u, tier %s\n", lcg_state, fm_cpu_tier_name(tier));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_values_are_the_tables),
#if !defined(__aarch64__)
        cmocka_unit_test(avx512_takes_the_stores_of_avx2),
#endif
        cmocka_unit_test(any_mean_and_std_is_right),
        cmocka_unit_test(any_table_is_right),
        cmocka_unit_test(rows_equal_the_scalar_ones),
        cmocka_unit_test(rounding_is_to_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
