/*
 * A loader with a cache: in each later epoch the hit rate is the share of files that fit, cached
 * files are not opened again, and no pixel differs.
 */
#define _GNU_SOURCE

#define N_FILES 60
#include "folder_group.h"

static fm_loader *open_loader(fm_cache *cache) {
    fm_config config = test_config(fm_folder_source(folder));
    config.cache = cache;
    return test_loader_open(&config);
}

static void the_hit_rate_is_the_share_that_fits(void **state) {
    (void)state;
    uint8_t *const wanted = test_malloc(N_FILES * TEST_SAMPLE_BYTES);
    uint8_t *const got = test_malloc(N_FILES * TEST_SAMPLE_BYTES);
    fm_loader *plain = open_loader(NULL);
    test_run_shuffled(plain, N_FILES, 0, 0, wanted);
    fm_loader_close(&plain);
    static const uint64_t budgets[] = {8 << 10, 40 << 10, 90 << 10, 16 << 20};
    for (size_t b = 0; b < sizeof(budgets) / sizeof(budgets[0]); b++) {
        fm_cache *cache;
        assert_int_equal(fm_cache_open(&cache, budgets[b], NULL), FM_OK);
        fm_loader *loader = open_loader(cache);
        fm_stats before, after;
        test_run_shuffled(loader, N_FILES, 0, 0, got);
        assert_memory_equal(got, wanted, N_FILES * TEST_SAMPLE_BYTES);
        fm_loader_stats(loader, &before);
        assert_int_equal(before.cache_hits, 0);
        assert_int_equal(before.cache_misses, N_FILES);
        assert_in_range(before.cache_files, 1, N_FILES);
        assert_in_range(before.cache_bytes, 1, budgets[b]);
        for (uint32_t number = 1; number < 4; number++) {
            test_run_shuffled(loader, N_FILES, number, 0, got);
            assert_memory_equal(got, wanted, N_FILES * TEST_SAMPLE_BYTES);
            fm_loader_stats(loader, &after);
            assert_int_equal(after.cache_files, before.cache_files);
            assert_int_equal(after.cache_hits - before.cache_hits, before.cache_files);
            assert_int_equal(after.read_opens - before.read_opens, N_FILES - before.cache_files);
            before = after;
        }
        /* Another loader finds the files, too. */
        fm_loader *other = open_loader(cache);
        test_run_shuffled(other, N_FILES, 0, 0, got);
        assert_memory_equal(got, wanted, N_FILES * TEST_SAMPLE_BYTES);
        fm_loader_stats(other, &after);
        assert_int_equal(after.cache_hits, before.cache_files);
        if (b == 3) assert_int_equal(after.read_opens, 0);
        fm_loader_close(&other);
        fm_loader_close(&loader);
        fm_cache_close(&cache);
    }
    test_free(wanted);
    test_free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_hit_rate_is_the_share_that_fits)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
