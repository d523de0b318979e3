/*
 * A loader with a cache: in each later epoch the share of files that fit is the hit rate, those are
 * not opened again, and not a pixel differs.
 */
#define _GNU_SOURCE
#include "folder.h"

#define N_FILES 60
#define SAMPLE_BYTES ((size_t)3 * 24 * 32)

static test_folder images;
static fm_folder *folder;

static int set_up(void **state) {
    (void)state;
    images = test_folder_open(N_FILES);
    return fm_folder_open(&folder, images.dir, NULL);
}

static int tear_down(void **state) {
    (void)state;
    fm_folder_close(&folder);
    test_folder_close(&images);
    return 0;
}

/* A shuffled epoch; the pixels of index i go to out + i * SAMPLE_BYTES. */
static void run_epoch(fm_loader *loader, uint32_t number, uint8_t *out) {
    int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = (i * 7 + (int)number * 13) % N_FILES;
    const fm_epoch epoch = {.seed = 42, .order = order, .n_order = N_FILES};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
    fm_batch batch;
    int status;
    size_t n = 0;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
        for (uint32_t i = 0; i < batch.n; i++)
            memcpy(out + (size_t)order[n + i] * SAMPLE_BYTES,
                   (const uint8_t *)batch.images + i * SAMPLE_BYTES, SAMPLE_BYTES);
        n += batch.n;
        fm_batch_release(&batch);
    }
    assert_int_equal(status, FM_END);
    assert_int_equal(n, N_FILES);
}

static fm_loader *open_loader(fm_cache *cache) {
    fm_config config = test_config(fm_folder_source(folder));
    config.cache = cache;
    return test_loader_open(&config);
}

static void the_hit_rate_is_the_share_that_fits(void **state) {
    (void)state;
    uint8_t *const wanted = test_malloc(N_FILES * SAMPLE_BYTES);
    uint8_t *const got = test_malloc(N_FILES * SAMPLE_BYTES);
    fm_loader *plain = open_loader(NULL);
    run_epoch(plain, 0, wanted);
    fm_loader_close(&plain);
    static const uint64_t budgets[] = {8 << 10, 40 << 10, 90 << 10, 16 << 20};
    for (size_t b = 0; b < sizeof(budgets) / sizeof(budgets[0]); b++) {
        fm_cache *cache;
        assert_int_equal(fm_cache_open(&cache, budgets[b], NULL), FM_OK);
        fm_loader *loader = open_loader(cache);
        fm_stats before, after;
        run_epoch(loader, 0, got);
        assert_memory_equal(got, wanted, N_FILES * SAMPLE_BYTES);
        fm_loader_stats(loader, &before);
        assert_int_equal(before.cache_hits, 0);
        assert_int_equal(before.cache_misses, N_FILES);
        assert_in_range(before.cache_files, 1, N_FILES);
        assert_in_range(before.cache_bytes, 1, budgets[b]);
        for (uint32_t number = 1; number < 4; number++) {
            run_epoch(loader, number, got);
            assert_memory_equal(got, wanted, N_FILES * SAMPLE_BYTES);
            fm_loader_stats(loader, &after);
            assert_int_equal(after.cache_files, before.cache_files);
            assert_int_equal(after.cache_hits - before.cache_hits, before.cache_files);
            assert_int_equal(after.read_opens - before.read_opens, N_FILES - before.cache_files);
            before = after;
        }
        /* Another loader finds the files, too. */
        fm_loader *other = open_loader(cache);
        run_epoch(other, 0, got);
        assert_memory_equal(got, wanted, N_FILES * SAMPLE_BYTES);
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
