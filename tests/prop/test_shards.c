/*
 * Samples that are ranges of a few large files, such as tar archives: they have the pixels of the
 * archived files; io_uring opens each file once; errors name the file and the bytes; the cache
 * works by range. With both readers.
 */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "folder.h"

#define N_FILES 48
#define N_SHARDS 3

typedef struct shards {
    char paths[N_SHARDS][128];
    fm_sample samples[N_FILES];
    bool verified;
} shards;

static test_folder images;
static fm_folder *folder;
static shards packed;

/* The files, one after another, each after a block of 512 bytes. */
static void pack(void) {
    static const char header[512] = "a header";
    FILE *out[N_SHARDS];
    uint64_t at[N_SHARDS] = {0};
    static uint8_t bytes[1 << 20];
    for (int s = 0; s < N_SHARDS; s++) {
        snprintf(packed.paths[s], sizeof(packed.paths[s]), "%s/shard-%d.tar", images.dir, s);
        assert_non_null(out[s] = fopen(packed.paths[s], "wb"));
    }
    for (int i = 0; i < N_FILES; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%04d.jpg", images.dir, i);
        FILE *const in = fopen(path, "rb");
        assert_non_null(in);
        const size_t n = fread(bytes, 1, sizeof(bytes), in);
        fclose(in);
        const int s = i % N_SHARDS;
        packed.samples[i] = (fm_sample){.index = i,
                                        .path = packed.paths[s],
                                        .offset_bytes = at[s] + sizeof(header),
                                        .range_bytes = n};
        at[s] += sizeof(header) + n;
        assert_int_equal(fwrite(header, 1, sizeof(header), out[s]), sizeof(header));
        assert_int_equal(fwrite(bytes, 1, n, out[s]), n);
    }
    for (int s = 0; s < N_SHARDS; s++) assert_int_equal(fclose(out[s]), 0);
}

static int set_up(void **state) {
    (void)state;
    images = test_folder_open(N_FILES);
    if (fm_folder_open(&folder, images.dir, NULL)) return 1;
    pack();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    fm_folder_close(&folder);
    test_folder_close(&images);
    return 0;
}

static int locate(void *user, int64_t index, fm_sample *out) {
    const shards *const from = user;
    *out = from->samples[index];
    out->verified = from->verified;
    return FM_OK;
}

static fm_source source_of(shards *from) { return (fm_source){from, N_FILES, locate}; }

static uint8_t wanted[2][N_FILES * TEST_SAMPLE_BYTES], got[N_FILES * TEST_SAMPLE_BYTES];

static fm_loader *open_loader(fm_source source, fm_reader_kind reader, fm_cache *cache) {
    fm_config config = test_config(source);
    config.reader = reader;
    config.cache = cache;
    return test_loader_open(&config);
}

static void want(void) {
    fm_loader *loader = open_loader(fm_folder_source(folder), FM_READER_PREAD, NULL);
    for (uint32_t e = 0; e < 2; e++) test_run_shuffled(loader, N_FILES, e, e, wanted[e]);
    fm_loader_close(&loader);
}

static void pixels_are_those_of_the_files(void **state) {
    (void)state;
    want();
    for (int round = 0; round < 4; round++) {
        const bool uring = round / 2;
        packed.verified = round % 2;
        fm_loader *loader =
            open_loader(source_of(&packed), uring ? FM_READER_AUTO : FM_READER_PREAD, NULL);
        fm_stats first, stats;
        for (uint32_t e = 0; e < 2; e++) {
            fm_loader_stats(loader, &first);
            test_run_shuffled(loader, N_FILES, e, e, got);
            assert_memory_equal(got, wanted[e], sizeof(got));
        }
        fm_loader_stats(loader, &stats);
        assert_int_equal(stats.allocations, first.allocations);
        assert_int_equal(stats.native_samples, 2 * N_FILES);
        assert_int_equal(stats.read_files, 2 * N_FILES);
        /* Threads that want a file at the same time may each open it. */
        const bool is_ring = strcmp(stats.reader, "uring") == 0;
        assert_in_range(stats.read_opens, N_SHARDS, is_ring ? N_SHARDS : N_SHARDS * 32);
        fm_loader_close(&loader);
    }
}

static void the_cache_knows_ranges(void **state) {
    (void)state;
    want();
    fm_cache *cache;
    assert_int_equal(fm_cache_open(&cache, 16 << 20, NULL), FM_OK);
    fm_loader *loader = open_loader(source_of(&packed), FM_READER_AUTO, cache);
    for (uint32_t e = 0; e < 2; e++) {
        test_run_shuffled(loader, N_FILES, e, e, got);
        assert_memory_equal(got, wanted[e], sizeof(got));
    }
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    assert_int_equal(stats.cache_files, N_FILES);
    assert_int_equal(stats.cache_hits, N_FILES);
    assert_int_equal(stats.read_files, N_FILES);
    fm_loader_close(&loader);
    fm_cache_close(&cache);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void check_error(const fm_sample *sample, int status, const char *text) {
    static const fm_reader_kind readers[] = {FM_READER_PREAD, FM_READER_AUTO};
    for (int r = 0; r < 2; r++) {
        for (int fallback = 0; fallback < 2; fallback++) {
            fm_config config = test_config(source_of(&packed));
            config.reader = readers[r];
            config.fallback = fallback;
            fm_loader *loader = test_loader_open(&config);
            const fm_sample samples[2] = {packed.samples[3], *sample};
            fm_batch batch;
            fm_error error;
            assert_int_equal(fm_loader_start(loader, &(fm_epoch){.seed = 1}, &error), FM_OK);
            assert_int_equal(fm_loader_submit(loader, samples, 2, &error), FM_OK);
            const int got_status = fm_loader_next(loader, -1, &batch, &error);
            assert_int_equal(got_status, fallback ? FM_FALLBACK : status);
            if (fallback) {
                fm_fallback asked;
                assert_int_equal(fm_loader_fallback(loader, &asked), FM_OK);
                assert_int_equal(asked.cause, status);
                assert_string_equal(asked.path, sample->path);
                assert_int_equal(asked.offset_bytes, sample->offset_bytes);
                assert_int_equal(asked.range_bytes, sample->range_bytes);
                assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
                error = asked.error;
                assert_int_equal(fm_loader_next(loader, -1, &batch, NULL), FM_OK);
                fm_batch_release(&batch);
            }
            assert_int_equal(error.index, sample->index);
            if (!strstr(error.message, text) || !strstr(error.message, sample->path))
                fail_msg("\"%s\" lacks \"%s\"", error.message, text);
            fm_loader_close(&loader);
        }
    }
}

static void errors_name_file_and_bytes(void **state) {
    (void)state;
    struct stat file;
    fm_sample sample = packed.samples[7];
    char text[128];
    assert_int_equal(stat(sample.path, &file), 0);
    sample.offset_bytes = (uint64_t)file.st_size - 10;
    sample.range_bytes = 100;
    snprintf(text, sizeof(text), "sample 7 (bytes %llu to %llu of ",
             (unsigned long long)sample.offset_bytes, (unsigned long long)sample.offset_bytes + 99);
    check_error(&sample, FM_ERR_READ, text);
    check_error(&sample, FM_ERR_READ, "the file ends before these bytes do");
    sample = packed.samples[7];
    sample.offset_bytes += 3;
    check_error(&sample, FM_ERR_FORMAT, "an unknown format");
    sample = packed.samples[7];
    sample.range_bytes /= 2;
    check_error(&sample, FM_ERR_DAMAGED, "the file ends");
    sample = packed.samples[7];
    sample.range_bytes = (uint64_t)1 << 40;
    check_error(&sample, FM_ERR_LIMIT, "max_file_bytes");
    sample.path = "/nonexistent/shard.tar";
    sample.range_bytes = 5;
    check_error(&sample, FM_ERR_READ, "No such file");
}

static void senseless_ranges_are_refused(void **state) {
    (void)state;
    fm_loader *loader = open_loader(source_of(&packed), FM_READER_AUTO, NULL);
    assert_int_equal(fm_loader_start(loader, &(fm_epoch){.seed = 1}, NULL), FM_OK);
    const fm_sample senseless[] = {
        {.path = "a", .offset_bytes = 5},
        {.path = "a", .offset_bytes = UINT64_MAX, .range_bytes = 5},
        {.path = "a", .offset_bytes = 5, .range_bytes = UINT64_MAX},
        {.data = "a", .data_bytes = 1, .range_bytes = 1},
        {.data = "a", .data_bytes = 1, .offset_bytes = 1},
    };
    for (size_t i = 0; i < sizeof(senseless) / sizeof(senseless[0]); i++) {
        fm_error error;
        assert_int_equal(fm_loader_submit(loader, &senseless[i], 1, &error), FM_ERR_ARGUMENT);
        assert_non_null(strstr(error.message, "index 0"));
    }
    fm_imread *image = NULL;
    assert_int_equal(fm_imread_open(&image, &packed.samples[0], 0, NULL), FM_ERR_ARGUMENT);
    fm_loader_close(&loader);
}

/* Epochs that are stopped in the middle have no effect on the next one. */
static void epochs_may_end_early(void **state) {
    (void)state;
    want();
    fm_loader *loader = open_loader(source_of(&packed), FM_READER_AUTO, NULL);
    for (int round = 0; round < 30; round++) {
        int64_t order[N_FILES];
        for (int i = 0; i < N_FILES; i++) order[i] = i;
        const fm_epoch epoch = {.seed = 1, .order = order, .n_order = N_FILES};
        fm_batch batch;
        assert_int_equal(fm_loader_start(loader, &epoch, NULL), FM_OK);
        assert_int_equal(fm_loader_next(loader, round % 3 - 1, &batch, NULL) < 0, 0);
        fm_batch_release(&batch);
    }
    test_run_shuffled(loader, N_FILES, 1, 1, got);
    assert_memory_equal(got, wanted[1], sizeof(got));
    fm_loader_close(&loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_are_those_of_the_files),
        cmocka_unit_test(the_cache_knows_ranges),
        cmocka_unit_test(errors_name_file_and_bytes),
        cmocka_unit_test(senseless_ranges_are_refused),
        cmocka_unit_test(epochs_may_end_early),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
