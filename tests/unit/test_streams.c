#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/normals.h"
#include "seeded.h"

/* C++ requires the last of these of std::mt19937: the 10,000th word for seed 5489. */
static void the_words_are_those_of_mt19937(void **state) {
    (void)state;
    fm_mt19937 generator = seeded(5489);
    assert_int_equal(fm_mt19937_u32(&generator), 3499211612u);
    assert_int_equal(fm_mt19937_u32(&generator), 581869302u);
    assert_int_equal(fm_mt19937_u32(&generator), 3890346734u);
    for (int i = 4; i < 10000; i++) (void)fm_mt19937_u32(&generator);
    assert_int_equal(fm_mt19937_u32(&generator), 4123659995u);
}

/* Numbers of torch 2.13 after torch.manual_seed(5489), one call after the other. */
static void torchs_numbers(void **state) {
    (void)state;
    fm_mt19937 generator = seeded(5489);
    assert_true(fm_torch_rand(&generator) == 0x1.2376b8p-1f);
    assert_true(fm_torch_rand(&generator) == 0x1.5d3decp-1f);
    assert_true(fm_torch_uniform(&generator, -0.3f, 2.5f) == 0x1.15f8e6p+1f);
    static const uint32_t below_7[] = {1, 2, 6, 2, 5};
    for (size_t i = 0; i < 5; i++) assert_int_equal(fm_torch_randint(&generator, 7), below_7[i]);
    static const int permuted[] = {6, 4, 8, 2, 1, 7, 3, 5, 0};
    double order[9];
    fm_torch_randperm(&generator, 9, order);
    for (int i = 0; i < 9; i++) assert_int_equal((int)order[i], permuted[i]);
}

/* Of torch.empty(3).normal_() and torch.empty(1).normal_(), likewise. */
static void torchs_normal_numbers(void **state) {
    (void)state;
    fm_streams streams = {.torch = seeded(5489)};
    assert_true(fm_torch_normal(&streams) == -0x1.590d4cp-2f);
    assert_int_equal(streams.has_torch_normal, 1);
    assert_true(fm_torch_normal(&streams) == -0x1.e84ff6p-4f);
    assert_true(streams.has_torch_normal == 0 && streams.torch_normal == 0);
    assert_true(fm_torch_normal(&streams) == 0x1.37d472p+0f);
    assert_true(fm_torch_normal(&streams) == 0x1.20a864p-1f);
    assert_true(fm_torch_rand(&streams.torch) == 0x1.c49774p-1f);
}

/* Numbers of Python's random with the same state. */
static void pythons_numbers(void **state) {
    (void)state;
    fm_mt19937 generator = seeded(5489);
    assert_true(fm_python_random(&generator) == 0x1.a1237688aba7bp-1);
    assert_true(fm_python_random(&generator) == 0x1.cfc3f5f570c7dp-1);
    assert_true(fm_python_random(&generator) == 0x1.0411a9f807b7cp-3);
    generator = seeded(5489);
    static const int shuffled[] = {9, 0, 5, 6, 7, 10, 8, 1, 4, 3, 11, 2};
    double order[12];
    fm_python_shuffle(&generator, 12, order);
    for (int i = 0; i < 12; i++) assert_int_equal((int)order[i], shuffled[i]);
}

/* random.uniform() and random.randint(), or random.choice(), with the same state. */
static void pythons_numbers_between_limits(void **state) {
    (void)state;
    fm_mt19937 generator = seeded(5489);
    assert_true(fm_python_uniform(&generator, -0.3, 2.5) == 0x1.fb31a5f289eabp+0);
    assert_true(fm_python_uniform(&generator, -0.3, 2.5) == 0x1.1e3c5f5f02258p+1);
    assert_true(fm_python_uniform(&generator, -0.3, 2.5) == 0x1.c72c3c7389a38p-5);
    static const uint32_t n_of[] = {7, 1, 2, 8};
    static const uint32_t below[4][8] = {
        {1, 5, 2, 0, 4, 2, 1, 4}, {0, 0, 0}, {1, 0, 0, 1, 0, 0}, {5, 3, 6, 7, 6, 6}};
    static const size_t n_numbers[] = {8, 3, 6, 6};
    for (size_t at = 0; at < 4; at++)
        for (size_t i = 0; i < n_numbers[at]; i++)
            assert_int_equal(fm_python_below(&generator, n_of[at]), below[at][i]);
}

/* random.gauss(), which makes two numbers at once, with the same state. */
static void pythons_normal_numbers(void **state) {
    (void)state;
    fm_streams streams = {.python = seeded(5489)};
    assert_true(fm_python_gauss(&streams, 9, 0.5) == 0x1.2dc1a0ee92c3bp+3);
    assert_int_equal(streams.has_python_normal, 1);
    assert_true(fm_python_gauss(&streams, 9, 0.5) == 0x1.000f13ac8465fp+3);
    assert_true(streams.has_python_normal == 0 && streams.python_normal == 0);
    assert_true(fm_python_gauss(&streams, 9, 0.5) == 0x1.38b5c7aad2ec6p+3);
    assert_true(fm_python_gauss(&streams, 9, 0.5) == 0x1.3955b898aae6ap+3);
    assert_true(fm_python_random(&streams.python) == 0x1.43c49753b9024p-1);
}

/* torch.multinomial() of torch 2.13 and numpy.random's rand() and randint(), likewise. */
static void numbers_of_choices(void **state) {
    (void)state;
    fm_mt19937 generator = seeded(5489);
    static const double probabilities[] = {0.2, 0.5, 1.3};
    static const int chosen[] = {2, 1, 1, 0, 1, 2, 1, 1, 0, 2, 2, 2, 2, 2, 2, 0};
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(fm_torch_multinomial(&generator, probabilities, 3), chosen[i]);
    assert_true(fm_torch_rand(&generator) == 0x1.31ddecp-1f);
    generator = seeded(5489);
    assert_true(fm_numpy_rand(&generator) == 0x1.a1237688aba7bp-1);
    assert_true(fm_numpy_rand(&generator) == 0x1.cfc3f5f570c7dp-1);
    generator = seeded(5489);
    static const uint32_t n_of[] = {1, 2, 7, 8, 15, 27};
    static const uint32_t below[] = {0, 0, 6, 6, 9, 12, 0, 1, 5, 1, 10, 11, 0, 1, 5, 4, 10, 16};
    for (size_t i = 0; i < 18; i++)
        assert_int_equal(fm_numpy_below(&generator, n_of[i % 6]), below[i]);
    assert_true(fm_numpy_rand(&generator) == 0x1.ea3e55ffc605bp-1);
}

static void orders_of_one_draw_nothing(void **state) {
    (void)state;
    fm_mt19937 generator = seeded(1);
    double order = 7;
    fm_torch_randperm(&generator, 1, &order);
    fm_python_shuffle(&generator, 1, &order);
    assert_true(order == 0);
    assert_int_equal(generator.next, FM_MT19937_N);
}

/* Vectors give the bits of the code that defines the numbers, for all uniform numbers of either
 * kind, in steps. */
static void vectors_equal_the_scalar_code(void **state) {
    (void)state;
    enum { N = 4096 };
    static float one[N], other[N];
    for (uint32_t first = 0; first < 1u << 24; first += 1u << 14) {
        for (uint32_t i = 0; i < N; i++)
            one[i] = other[i] = (float)((first + 5 * i * (i + 3)) & 0xFFFFFFu) * 0x1p-24f;
        fm_box_muller(one, N);
        fm_box_muller_scalar(other, N);
        assert_memory_equal(one, other, sizeof(one));
    }
}

static void count(void *user, size_t first, const float *values, size_t n) {
    (void)values;
    if (first + n > *(size_t *)user) *(size_t *)user = first + n;
}

/* Skipping advances the generators as drawing does. */
static void normals_are_skipped(void **state) {
    (void)state;
    for (size_t n = 0; n < 700; n += n < 40 ? 1 : 13) {
        fm_streams drawn = {.torch = seeded(3)}, skipped = drawn;
        size_t n_written = 0;
        fm_torch_normals(&drawn, n, count, &n_written);
        fm_torch_skip_normals(&skipped, n);
        assert_int_equal(n_written, n);
        assert_memory_equal(&drawn, &skipped, sizeof(drawn));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_equal_the_scalar_code),
        cmocka_unit_test(normals_are_skipped),
        cmocka_unit_test(the_words_are_those_of_mt19937),
        cmocka_unit_test(torchs_numbers),
        cmocka_unit_test(torchs_normal_numbers),
        cmocka_unit_test(pythons_numbers),
        cmocka_unit_test(pythons_numbers_between_limits),
        cmocka_unit_test(pythons_normal_numbers),
        cmocka_unit_test(numbers_of_choices),
        cmocka_unit_test(orders_of_one_draw_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
