/* Allocations of the whole pipeline: counts all calls of the C library's allocator in the process,
 * also those by libjpeg and the readers. */
#define _GNU_SOURCE
#include "allocations.h"
#include "folder.h"

#define N_FILES 24
#define N_EPOCHS 3

static test_folder images;
static fm_folder *folder;
/* Images that need more memory than decoders reserve at first: progressive ones; and small ones. */
static test_folder mixed;
static fm_folder *mixed_folder;

static void make_mixed(void) {
    static const char *const kinds[] = {"sampling=420",
                                        "size=1000x700 progressive=1",
                                        "size=900x600 sampling=444 progressive=1",
                                        "size=9000x40 sampling=420",
                                        "size=1200x800 scans=split",
                                        "size=1500x300 space=grey progressive=1"};
    for (int i = 0; i < N_FILES; i++) {
        char command[512];
        snprintf(command, sizeof(command), "%s %s seed=%d %s/%04d.jpg", getenv("FM_MKJPEG"),
                 kinds[i % 6], i, mixed.dir, i);
        test_run(command);
    }
}

static int set_up(void **state) {
    (void)state;
    images = test_folder_open(N_FILES);
    mixed = test_folder_open(0);
    make_mixed();
    return fm_folder_open(&folder, images.dir, NULL) ||
           fm_folder_open(&mixed_folder, mixed.dir, NULL);
}

static int tear_down(void **state) {
    (void)state;
    fm_folder_close(&folder);
    fm_folder_close(&mixed_folder);
    test_folder_close(&images);
    test_folder_close(&mixed);
    return 0;
}

/* Runs an epoch over all files, in another order for each number. Returns how often memory was
 * missing, for the epoch or for a batch; any other error fails the test. */
static int run_epoch(fm_loader *loader, uint32_t number) {
    int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = (i * 31 + 7 * (int64_t)number) % N_FILES;
    const fm_epoch epoch = {.seed = 42, .number = number, .order = order, .n_order = N_FILES};
    fm_batch batch;
    fm_error error;
    int status = fm_loader_start(loader, &epoch, &error), n_refused = 0;
    if (status == FM_ERR_NOMEM) return 1;
    while (!status || status == FM_ERR_NOMEM) {
        status = fm_loader_next(loader, -1, &batch, &error);
        if (!status) fm_batch_release(&batch);
        n_refused += status == FM_ERR_NOMEM;
    }
    if (status != FM_END) fail_msg("%d %s", status, status < 0 ? error.message : "");
    return n_refused;
}

/* Whether each decode thread had a sample in the last epoch: one that got no core had none. */
static bool all_threads_worked(fm_loader *loader, uint32_t n_threads) {
    fm_sample_record records[N_FILES];
    bool worked[8] = {false};
    const size_t n = fm_loader_sample_records(loader, 0, records, N_FILES, NULL);
    for (size_t i = 0; i < n; i++) worked[records[i].worker % 8] = true;
    for (uint32_t i = 0; i < n_threads; i++)
        if (!worked[i]) return false;
    return true;
}

/* After epochs for which everything was new. */
static void check_later_epochs(const fm_config *asked) {
    fm_config config = *asked;
    config.sample_records = N_FILES;
    fm_loader *loader = test_loader_open(&config);
    uint64_t n_new = 0;
    do assert_int_equal(run_epoch(loader, (uint32_t)n_new++), 0);
    while (!all_threads_worked(loader, config.n_threads));
    fm_stats before, after;
    fm_loader_stats(loader, &before);
    test_allocations_settle();
    test_allocations_begin(0);
    for (uint32_t number = 1; number <= N_EPOCHS; number++) run_epoch(loader, number);
    const long n = test_allocations_end();
    fm_loader_stats(loader, &after);
    assert_int_equal(n, 0);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.native_samples, (N_EPOCHS + n_new) * N_FILES);
    fm_loader_close(&loader);
}

/* Whichever thread gets which image. */
static void later_epochs_take_nothing(void **state) {
    (void)state;
    for (int reader = FM_READER_AUTO; reader <= FM_READER_PREAD; reader += 2) {
        for (int dtype = FM_UINT8; dtype <= FM_FLOAT32; dtype++) {
            fm_config config = test_config(fm_folder_source(folder));
            config.reader = (fm_reader_kind)reader;
            config.transform.dtype = (fm_dtype)dtype;
            config.n_threads = 3;
            check_later_epochs(&config);
        }
    }
}

/* Here a decoder must have seen as large an image, which only one thread has for certain. */
static void later_epochs_of_larger_images_take_nothing(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(mixed_folder));
    config.n_threads = 1;
    check_later_epochs(&config);
}

/* Several threads, each of which grows a few times only. */
static void threads_grow_a_few_times(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(mixed_folder));
    config.n_threads = 3;
    fm_loader *loader = test_loader_open(&config);
    test_allocations_begin(0);
    for (uint32_t number = 0; number < 6; number++) run_epoch(loader, number);
    assert_in_range(test_allocations_end(), 0, 3 * 40);
    fm_loader_close(&loader);
}

static void opening_fails_without_a_leak(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(folder));
    bool failed = true;
    int n_refused = 0;
    for (long fail_at = 1; failed; fail_at++) {
        fm_loader *loader = NULL;
        fm_error error;
        test_allocations_begin(fail_at);
        const int status = fm_loader_open(&loader, &config, &error);
        test_allocations_end();
        failed = test_allocations_failed();
        if (status) {
            assert_null(loader);
            assert_true(error.message[0] != '\0');
            assert_true(status == FM_ERR_NOMEM || status == FM_ERR_THREAD);
        } else {
            assert_int_equal(run_epoch(loader, 0), 0);
        }
        n_refused += status != FM_OK;
        fm_loader_close(&loader);
    }
    assert_in_range(n_refused, 20, 1000);
}

/* Memory that a decode thread does not get costs that batch, and nothing else. */
static void running_out_of_memory_costs_one_batch(void **state) {
    (void)state;
    fm_config config = test_config(fm_folder_source(mixed_folder));
    config.n_threads = 1;
    bool failed = true;
    int n_refused = 0;
    for (long fail_at = 1; failed; fail_at++) {
        fm_loader *loader = test_loader_open(&config);
        test_allocations_begin(fail_at);
        const int n = run_epoch(loader, 0);
        test_allocations_end();
        failed = test_allocations_failed();
        assert_in_range(n, 0, failed);
        n_refused += n;
        assert_int_equal(run_epoch(loader, 1), 0);
        fm_loader_close(&loader);
    }
    assert_in_range(n_refused, 3, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(later_epochs_take_nothing),
        cmocka_unit_test(later_epochs_of_larger_images_take_nothing),
        cmocka_unit_test(threads_grow_a_few_times),
        cmocka_unit_test(opening_fails_without_a_leak),
        cmocka_unit_test(running_out_of_memory_costs_one_batch),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
