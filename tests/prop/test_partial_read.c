/*
 * Partial reads of verified samples with a restart index: only the bytes down to the crop's bottom
 * are read, and no pixel differs. A wrong index costs at most a fallback. With streams, parameters
 * are drawn when a batch is submitted, for the size in the index.
 */
#define _GNU_SOURCE
#include "folder.h"

#define N_FILES 30
#define N_ENTRIES 8
#define SAMPLE_BYTES ((size_t)3 * 24 * 32)
#define BATCH 8 /* as test_config() */

static test_folder images;
static fm_sample samples[N_FILES];
static fm_restart_index tables[N_FILES];
static char paths[N_FILES][128];

/* Finds the start of MCU rows by the restart markers. `intervals`: in each row. */
static void find_rows(fm_restart_index *rows, const uint8_t *bytes, size_t n, uint32_t intervals) {
    const uint32_t n_rows = (uint32_t)((rows->height + rows->mcu_height - 1) / rows->mcu_height);
    size_t at = 2;
    while (bytes[at + 1] != 0xDA) at += 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
    at += 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
    for (uint32_t k = 0, passed = 0; k < N_ENTRIES; k++) {
        for (; passed < k * n_rows / N_ENTRIES * intervals; at++) {
            assert_true(at + 1 < n);
            passed += bytes[at] == 0xFF && (bytes[at + 1] & 0xF8) == 0xD0;
        }
        rows->begin[k] = (uint32_t)at + (passed > 0);
        if (passed) assert_int_equal(bytes[at - 1], 0xFF);
    }
}

static void make_sample(int i) {
    static const struct {
        const char *sampling;
        int mcu_height, intervals; /* of a row, 64 pixels wide */
    } kinds[] = {{"sampling=420", 16, 1}, {"sampling=444", 8, 2}, {"space=grey", 8, 2},
                 {"sampling=440", 16, 2}, {"sampling=422", 8, 1}, {"sampling=411", 8, 1}};
    static uint8_t bytes[1 << 20];
    char command[512];
    fm_restart_index *const rows = &tables[i];
    *rows = (fm_restart_index){.width = 64,
                               .height = 9 + 11 * i % 150,
                               .mcu_height = kinds[i % 6].mcu_height,
                               .n = N_ENTRIES};
    snprintf(paths[i], sizeof(paths[i]), "%s/%04d.bin", images.dir, i);
    snprintf(command, sizeof(command), "%s size=64x%d seed=%d %s restart=%d %s",
             getenv("FM_MKJPEG"), rows->height, i, kinds[i % 6].sampling, i % 6 == 5 ? 2 : 4,
             paths[i]);
    test_run(command);
    FILE *const in = fopen(paths[i], "rb");
    assert_non_null(in);
    const size_t n = fread(bytes, 1, sizeof(bytes), in);
    fclose(in);
    /* Something follows, as in an archive. */
    FILE *const out = fopen(paths[i], "ab");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, 500, out), 500);
    assert_int_equal(fclose(out), 0);
    find_rows(rows, bytes, n, (uint32_t)kinds[i % 6].intervals);
    samples[i] =
        (fm_sample){.index = i, .path = paths[i], .range_bytes = n, .verified = true, .rows = rows};
}

static int set_up(void **state) {
    (void)state;
    images = test_folder_open(0);
    for (int i = 0; i < N_FILES; i++) make_sample(i);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_folder_close(&images);
    return 0;
}

static int locate(void *user, int64_t index, fm_sample *out) {
    *out = samples[index];
    if (!*(const bool *)user) out->rows = NULL;
    return FM_OK;
}

/* An epoch of all samples by turns; those that need the fallback are left as they are. How many. */
static int run_epoch(fm_loader *loader, uint32_t number, uint8_t *out) {
    int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    const fm_epoch epoch = {.seed = 3, .number = number, .order = order, .n_order = N_FILES};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
    fm_batch batch;
    int status, n_fallback = 0;
    size_t n = 0;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) != FM_END) {
        if (status == FM_FALLBACK) {
            fm_fallback asked;
            assert_int_equal(fm_loader_fallback(loader, &asked), FM_OK);
            assert_int_equal(asked.range_bytes, samples[asked.index].range_bytes);
            memset(asked.out, 0xEE, asked.out_bytes);
            n_fallback++;
            assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_OK);
            continue;
        }
        if (status) fail_msg("next: %s", error.message);
        memcpy(out + n * SAMPLE_BYTES, batch.images, batch.n * SAMPLE_BYTES);
        n += batch.n;
        fm_batch_release(&batch);
    }
    assert_int_equal(n, N_FILES);
    return n_fallback;
}

static bool with_rows[2] = {false, true};

static fm_loader *open_loader(bool rows, fm_cache *cache) {
    fm_config config = test_config((fm_source){&with_rows[rows], N_FILES, locate});
    config.fallback = true;
    config.cache = cache;
    return test_loader_open(&config);
}

static uint64_t read_bytes(fm_loader *loader) {
    fm_stats stats;
    fm_loader_stats(loader, &stats);
    return stats.read_bytes;
}

static uint8_t wanted[N_FILES * SAMPLE_BYTES], got[N_FILES * SAMPLE_BYTES];

/* Closes both. Without feedmill's own Huffman decoder all is read. */
static void close_after_reading_less(fm_loader **cut, fm_loader **whole) {
    if (fm_jpeg_own_huffman())
        assert_true(read_bytes(*cut) < read_bytes(*whole) * 95 / 100);
    else
        assert_int_equal(read_bytes(*cut), read_bytes(*whole));
    fm_loader_close(cut);
    fm_loader_close(whole);
}

static void less_is_read_and_no_pixel_differs(void **state) {
    (void)state;
    fm_loader *whole = open_loader(false, NULL), *cut = open_loader(true, NULL);
    for (uint32_t e = 0; e < 40; e++) {
        assert_int_equal(run_epoch(whole, e, wanted), 0);
        assert_int_equal(run_epoch(cut, e, got), 0);
        assert_memory_equal(got, wanted, sizeof(got));
    }
    close_after_reading_less(&cut, &whole);
}

/* Another epoch needs other parts. */
static void a_cache_gets_whole_images(void **state) {
    (void)state;
    fm_cache *cache;
    assert_int_equal(fm_cache_open(&cache, 16 << 20, NULL), FM_OK);
    fm_loader *whole = open_loader(false, NULL), *cached = open_loader(true, cache);
    for (uint32_t e = 0; e < 3; e++) {
        run_epoch(whole, e, wanted);
        assert_int_equal(run_epoch(cached, e, got), 0);
        assert_memory_equal(got, wanted, sizeof(got));
    }
    assert_int_equal(3 * read_bytes(cached), read_bytes(whole));
    fm_loader_close(&cached);
    fm_loader_close(&whole);
    fm_cache_close(&cache);
}

/* The whole range is read, and no byte after it. */
static void entries_of_zero_ask_for_the_range(void **state) {
    (void)state;
    fm_restart_index before[N_FILES];
    memcpy(before, tables, sizeof(tables));
    fm_loader *whole = open_loader(false, NULL), *cut = open_loader(true, NULL);
    for (int i = 0; i < N_FILES; i++) memset(tables[i].begin, 0, sizeof(tables[i].begin));
    for (uint32_t e = 0; e < 5; e++) {
        assert_int_equal(run_epoch(whole, e, wanted), 0);
        assert_int_equal(run_epoch(cut, e, got), 0);
        assert_memory_equal(got, wanted, sizeof(got));
    }
    assert_int_equal(read_bytes(cut), read_bytes(whole));
    memcpy(tables, before, sizeof(tables));
    fm_loader_close(&cut);
    fm_loader_close(&whole);
}

/* The sample is delivered as usual, or becomes a fallback. */
static void tables_that_lie_change_no_pixel(void **state) {
    (void)state;
    fm_restart_index before[N_FILES];
    memcpy(before, tables, sizeof(tables));
    fm_loader *whole = open_loader(false, NULL), *cut = open_loader(true, NULL);
    int n_fallback = 0;
    srand(5);
    for (uint32_t e = 0; e < 40; e++) {
        for (int i = 0; i < N_FILES; i++) {
            fm_restart_index *const rows = &tables[i];
            const int kind = rand() % 8;
            if (kind == 0) rows->height = rand() % 300;
            if (kind == 1) rows->width = -rand();
            if (kind == 2) rows->mcu_height = rand() % 40;
            if (kind == 3) rows->n = (uint32_t)rand() % 3 * 40;
            if (kind == 4) rows->begin[rand() % N_ENTRIES] = (uint32_t)rand();
            if (kind == 5) rows->begin[rand() % N_ENTRIES] = (uint32_t)rand() % 2000;
            if (kind == 6) memmove(rows->begin + 1, rows->begin, sizeof(rows->begin) - 4);
            if (kind == 7) memmove(rows->begin, rows->begin + 1, sizeof(rows->begin) - 4);
        }
        run_epoch(whole, e, wanted);
        n_fallback += run_epoch(cut, e, got);
        for (int i = 0; i < N_FILES; i++) {
            const uint8_t *const image = got + (size_t)i * SAMPLE_BYTES;
            bool is_left = true;
            for (size_t k = 0; k < SAMPLE_BYTES && is_left; k++) is_left = image[k] == 0xEE;
            if (!is_left)
                assert_memory_equal(image, wanted + (size_t)i * SAMPLE_BYTES, SAMPLE_BYTES);
        }
        memcpy(tables, before, sizeof(tables));
    }
    assert_in_range(n_fallback, fm_jpeg_own_huffman() ? 40 : 0, 40 * N_FILES / 2);
    fm_loader_close(&cut);
    fm_loader_close(&whole);
}

/* ---- streams --------------------------------------------------------------------------------- */

static fm_streams seeded(uint32_t seed) {
    fm_streams streams = {0};
    for (int i = 0; i < FM_MT19937_N; i++)
        streams.torch.words[i] = seed = seed * 1664525u + 1013904223u;
    streams.torch.next = streams.python.next = streams.numpy.next = FM_MT19937_N;
    return streams;
}

/* Finishes a rejected sample, whose image has 64 x `height` pixels. Its pixels tell what was drawn.
 * Returns false if its index gave another size. */
static bool finish_sample(fm_loader *loader, const int32_t heights[N_FILES]) {
    fm_fallback asked;
    fm_draw draws[2];
    fm_error error;
    assert_int_equal(fm_loader_fallback(loader, &asked), FM_OK);
    const int status = fm_loader_fallback_draws(loader, 0, 64, heights[asked.index], draws, &error);
    if (status) assert_int_equal(status, FM_ERR_STATE);
    if (!status) memset(asked.out, 1 + (draws[0].left + draws[0].top) % 99, asked.out_bytes);
    assert_int_equal(fm_loader_fallback_done(loader, status, &error), FM_OK);
    return !status;
}

/* The batches of an epoch with streams of so many virtual workers. Returns how many samples were
 * delivered: all, unless an index gave a size that the image does not have. */
static size_t run_streams(fm_loader *loader, bool rows, uint32_t n_virtual, uint32_t seed,
                          const int32_t heights[N_FILES], uint8_t *out) {
    fm_streams streams[5];
    for (uint32_t i = 0; i < n_virtual; i++) streams[i] = seeded(9 * seed + i);
    const fm_epoch epoch = {.streams = streams, .n_streams = n_virtual};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
    for (int i = 0; i < N_FILES; i += BATCH) {
        fm_sample batch[BATCH];
        const int n = N_FILES - i < BATCH ? N_FILES - i : BATCH;
        for (int k = 0; k < n; k++) {
            locate(&with_rows[rows], i + k, &batch[k]);
            /* Those behind a sample without an index wait for its size. */
            if (seed % 4 == 3 && (i + k) % 9 == 4) batch[k].rows = NULL;
        }
        const uint32_t number = (uint32_t)(i / BATCH) % n_virtual;
        assert_int_equal(fm_loader_choose_worker(loader, number, false, NULL), FM_OK);
        assert_int_equal(fm_loader_submit(loader, batch, (size_t)n, NULL), FM_OK);
    }
    size_t n = 0;
    while (n < N_FILES) {
        fm_batch batch;
        int status;
        while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_FALLBACK)
            if (!finish_sample(loader, heights)) return n;
        if (status) fail_msg("next: %s", error.message);
        memcpy(out + n * SAMPLE_BYTES, batch.images, batch.n * SAMPLE_BYTES);
        n += batch.n;
        fm_batch_release(&batch);
    }
    return n;
}

static void find_heights(int32_t heights[N_FILES]) {
    for (int i = 0; i < N_FILES; i++) heights[i] = tables[i].height;
}

static void with_streams_less_is_read_as_well(void **state) {
    (void)state;
    int32_t heights[N_FILES];
    find_heights(heights);
    fm_loader *whole = open_loader(false, NULL), *cut = open_loader(true, NULL);
    for (uint32_t e = 0; e < 40; e++) {
        const uint32_t n_virtual = 1 + e % 5;
        assert_int_equal(run_streams(whole, false, n_virtual, e, heights, wanted), N_FILES);
        assert_int_equal(run_streams(cut, true, n_virtual, e, heights, got), N_FILES);
        assert_memory_equal(got, wanted, sizeof(got));
    }
    close_after_reading_less(&cut, &whole);
}

/* Files that end early can't be read. Those behind them are drawn as ever. */
static void with_streams_reads_may_fail(void **state) {
    (void)state;
    int32_t heights[N_FILES];
    find_heights(heights);
    fm_loader *whole = open_loader(false, NULL), *cut = open_loader(true, NULL);
    for (int i = 0; i < N_FILES; i += 7) samples[i].offset_bytes = (uint64_t)1 << 40;
    for (uint32_t e = 0; e < 40; e++) {
        assert_int_equal(run_streams(whole, false, 1 + e % 5, e, heights, wanted), N_FILES);
        assert_int_equal(run_streams(cut, true, 1 + e % 5, e, heights, got), N_FILES);
        assert_memory_equal(got, wanted, sizeof(got));
    }
    for (int i = 0; i < N_FILES; i += 7) samples[i].offset_bytes = 0;
    fm_loader_close(&cut);
    fm_loader_close(&whole);
}

/* An index that gives another size is an error. Batches before it are as ever. */
static void with_streams_sizes_that_lie_are_errors(void **state) {
    (void)state;
    int32_t heights[N_FILES];
    fm_restart_index before[N_FILES];
    find_heights(heights);
    memcpy(before, tables, sizeof(tables));
    fm_loader *whole = open_loader(false, NULL), *cut = open_loader(true, NULL);
    for (uint32_t e = 0; e < 40; e++) {
        if (e % 4 == 3) continue;
        tables[e % N_FILES].height += 1 + (int32_t)e % 20;
        const size_t n = run_streams(cut, true, 1 + e % 5, e, heights, got);
        run_streams(whole, false, 1 + e % 5, e, heights, wanted);
        assert_int_equal(n, fm_jpeg_own_huffman() ? e % N_FILES / BATCH * BATCH : N_FILES);
        assert_memory_equal(got, wanted, n * SAMPLE_BYTES);
        memcpy(tables, before, sizeof(tables));
    }
    fm_loader_close(&cut);
    fm_loader_close(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(less_is_read_and_no_pixel_differs),
        cmocka_unit_test(a_cache_gets_whole_images),
        cmocka_unit_test(entries_of_zero_ask_for_the_range),
        cmocka_unit_test(tables_that_lie_change_no_pixel),
        cmocka_unit_test(with_streams_less_is_read_as_well),
        cmocka_unit_test(with_streams_reads_may_fail),
        cmocka_unit_test(with_streams_sizes_that_lie_are_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
