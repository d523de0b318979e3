#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

/* The known-answer vectors that Random123 publishes for philox4x32 with 10 rounds. */
static void philox_gives_the_published_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], result[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        uint32_t words[4];
        for (int j = 0; j < 4; j++) words[j] = known[i].counter[j];
        fm_rng_philox(words, known[i].key[0], known[i].key[1]);
        for (int j = 0; j < 4; j++) assert_int_equal(words[j], known[i].result[j]);
    }
}

/* Word 0: op and block; 1: low index; 2: high index and occurrence; 3: epoch. */
static void the_counter_is_laid_out_as_documented(void **state) {
    (void)state;
    const fm_draw_key key = {.seed = 0x0123456789abcdefu,
                             .epoch = 0xfedcba98u,
                             .occurrence = 0x654321u,
                             .index = 0x8a76543210};
    fm_rng rng = fm_rng_init(&key, 0xc5);
    for (uint32_t block = 0; block < 3; block++) {
        uint32_t words[4] = {0xc5000000u | block, 0x76543210u, 0x8a654321u, 0xfedcba98u};
        fm_rng_philox(words, 0x89abcdefu, 0x01234567u);
        for (int j = 0; j < 4; j++) assert_int_equal(fm_rng_u32(&rng), words[j]);
    }
}

static void every_part_of_the_key_changes_the_stream(void **state) {
    (void)state;
    const fm_draw_key keys[] = {
        {.seed = 1, .epoch = 1, .occurrence = 1, .index = 1},
        {.seed = 2, .epoch = 1, .occurrence = 1, .index = 1},
        {.seed = 1 + (1ull << 32), .epoch = 1, .occurrence = 1, .index = 1},
        {.seed = 1, .epoch = 2, .occurrence = 1, .index = 1},
        {.seed = 1, .epoch = 1, .occurrence = 2, .index = 1},
        {.seed = 1, .epoch = 1, .occurrence = 1, .index = 2},
        {.seed = 1, .epoch = 1, .occurrence = 1, .index = 1 + (1ll << 39)},
    };
    enum { N_KEYS = sizeof(keys) / sizeof(*keys), N = 2 * N_KEYS };
    uint64_t first[N];
    for (int i = 0; i < N; i++) {
        fm_rng rng = fm_rng_init(&keys[i / 2], (uint32_t)(i % 2));
        first[i] = (uint64_t)fm_rng_u32(&rng) << 32;
        first[i] |= fm_rng_u32(&rng);
        for (int j = 0; j < i; j++) assert_true(first[i] != first[j]);
    }
}

static void floats_are_multiples_of_two_to_the_minus_24_below_one(void **state) {
    (void)state;
    const fm_draw_key key = {.seed = 5};
    fm_rng rng = fm_rng_init(&key, 0), words = rng;
    double sum = 0;
    for (int i = 0; i < 100000; i++) {
        const float value = fm_rng_f32(&rng);
        assert_true(value >= 0 && value < 1);
        assert_true((double)value * 0x1p24 == (double)(fm_rng_u32(&words) >> 8));
        sum += value;
    }
    assert_true(sum > 49500 && sum < 50500); /* five standard deviations */
}

static void below_is_in_range_and_even(void **state) {
    (void)state;
    const fm_draw_key key = {.seed = 6};
    fm_rng rng = fm_rng_init(&key, 0);
    static const uint32_t limits[] = {1, 2, 3, 7, 65535, 0x80000001u, 0xffffffffu};
    for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++)
        for (int j = 0; j < 1000; j++) assert_true(fm_rng_below(&rng, limits[i]) < limits[i]);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) counts[fm_rng_below(&rng, 7)]++;
    for (int i = 0; i < 7; i++) assert_in_range(counts[i], 9500, 10500);
    /* Just above half the range a draw without rejection would favour every other value. */
    int even = 0;
    for (int i = 0; i < 20000; i++) even += fm_rng_below(&rng, 0xaaaaaaabu) % 2 == 0;
    assert_in_range(even, 9600, 10400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(the_counter_is_laid_out_as_documented),
        cmocka_unit_test(every_part_of_the_key_changes_the_stream),
        cmocka_unit_test(floats_are_multiples_of_two_to_the_minus_24_below_one),
        cmocka_unit_test(below_is_in_range_and_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
