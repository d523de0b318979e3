/* Histograms, and when a second request is made. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "read/hedge.h"

#define MS ((uint64_t)1000000)

/* The bound is not below the percentile, and less than a quarter above. */
static void percentiles_bound_numbers(void **state) {
    (void)state;
    static const uint64_t numbers[] = {0, 1, 5, 8, 9, 100, 4096, 1000000, 123456789, 1ull << 41};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        fm_histogram histogram = {0};
        for (int n = 0; n < 90; n++) fm_histogram_add(&histogram, numbers[i], 1000);
        for (int n = 0; n < 10; n++) fm_histogram_add(&histogram, UINT64_MAX, 1000);
        const uint64_t bound = fm_histogram_percentile(&histogram, 90);
        assert_true(bound >= numbers[i] && bound <= numbers[i] + numbers[i] / 4 + 5);
        assert_true(fm_histogram_percentile(&histogram, 91) > 1ull << 41);
    }
}

static void histograms_follow_the_latest(void **state) {
    (void)state;
    fm_histogram histogram = {0};
    for (int n = 0; n < 5000; n++) fm_histogram_add(&histogram, 10, 1000);
    assert_true(histogram.n < 1000);
    for (int n = 0; n < 5000; n++) fm_histogram_add(&histogram, 1000000, 1000);
    assert_true(fm_histogram_percentile(&histogram, 50) >= 1000000);
}

static void learn(fm_hedge *hedge, int n) {
    for (int i = 0; i < n; i++) fm_hedge_answered(hedge, (i % 200 == 7 ? 900 : 20 + i % 10) * MS);
}

static void hedges_are_late(void **state) {
    (void)state;
    fm_hedge hedge;
    fm_hedge_init(&hedge, 2);
    learn(&hedge, FM_HEDGE_LEAST_ANSWERS - 1);
    assert_true(fm_hedge_after_ns(&hedge) == UINT64_MAX);
    learn(&hedge, 1000);
    assert_in_range(fm_hedge_after_ns(&hedge), 29 * MS, 40 * MS);
    /* Answers that are quick do not make it hasty. */
    fm_hedge_init(&hedge, 2);
    for (int i = 0; i < 1000; i++) fm_hedge_answered(&hedge, 1000);
    assert_int_equal(fm_hedge_after_ns(&hedge), FM_HEDGE_LEAST_NS);
}

static void hedges_are_few(void **state) {
    (void)state;
    static const uint32_t percents[] = {0, 1, 2, 100};
    for (int i = 0; i < 4; i++) {
        fm_hedge hedge;
        fm_hedge_init(&hedge, percents[i]);
        uint32_t n_made = 0;
        for (int n = 0; n < 5000; n++) {
            fm_hedge_answered(&hedge, 20 * MS);
            if (fm_hedge_after_ns(&hedge) == UINT64_MAX) continue;
            fm_hedge_made(&hedge);
            n_made++;
        }
        assert_true(n_made <= 50 * percents[i]);
        assert_true(n_made + 110 >= 50 * percents[i]);
    }
    /* Nor are many saved up. */
    fm_hedge hedge;
    fm_hedge_init(&hedge, 2);
    learn(&hedge, 10000);
    uint32_t n_made = 0;
    for (; fm_hedge_after_ns(&hedge) != UINT64_MAX; n_made++) fm_hedge_made(&hedge);
    assert_in_range(n_made, 1, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_bound_numbers),
        cmocka_unit_test(histograms_follow_the_latest),
        cmocka_unit_test(hedges_are_late),
        cmocka_unit_test(hedges_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
