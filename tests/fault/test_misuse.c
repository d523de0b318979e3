/* Every misuse of the public API gets a status and a message, never a crash. */
#define _GNU_SOURCE

#define N_FILES 3
#include "folder_group.h"

static fm_error error;

static void expect_refused(const fm_config *config, int status, const char *word) {
    fm_loader *loader = (fm_loader *)&error;
    assert_int_equal(fm_loader_open(&loader, config, &error), status);
    assert_null(loader);
    if (!strstr(error.message, word)) fail_msg("'%s' does not name '%s'", error.message, word);
    assert_int_equal(fm_loader_open(&loader, config, NULL), status);
}

static void bad_configurations_are_refused_by_name(void **state) {
    (void)state;
    const fm_source source = fm_folder_source(folder);
    fm_loader *loader = NULL;
    assert_int_equal(fm_loader_open(NULL, NULL, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_open(&loader, NULL, &error), FM_ERR_ARGUMENT);
#define REFUSED(change, status, word)      \
    do {                                   \
        fm_config c = test_config(source); \
        change;                            \
        expect_refused(&c, status, word);  \
    } while (0)
    REFUSED(c.struct_bytes = 8, FM_ERR_ARGUMENT, "struct_bytes");
    REFUSED(c.batch_size = 0, FM_ERR_ARGUMENT, "batch_size");
    REFUSED(c.batch_size = 1u << 20, FM_ERR_ARGUMENT, "batch_size");
    REFUSED(c.n_threads = 5000, FM_ERR_ARGUMENT, "n_threads");
    REFUSED(c.prefetch_batches = 0, FM_ERR_ARGUMENT, "prefetch_batches");
    REFUSED(c.source.n_samples = 0, FM_ERR_ARGUMENT, "n_samples");
    REFUSED(c.memory_budget_bytes = 1 << 20, FM_ERR_BUDGET, "memory_budget");
    REFUSED(c.transform.n_ops = 0, FM_ERR_ARGUMENT, "");
    REFUSED(c.transform.n_ops = 4096, FM_ERR_ARGUMENT, "4096 ops");
    REFUSED(c.transform.ops = NULL, FM_ERR_ARGUMENT, "");
    REFUSED(c.transform.dtype = (fm_dtype)9, FM_ERR_ARGUMENT, "");
    REFUSED((c.transform.dtype = FM_FLOAT32, c.transform.std[1] = 0), FM_ERR_ARGUMENT, "");
    REFUSED(c.max_file_bytes = 0, FM_ERR_ARGUMENT, "max_file_bytes");
    REFUSED(c.max_image_pixels = 0, FM_ERR_ARGUMENT, "max_image_pixels");
    REFUSED(c.allocator.handover = true, FM_ERR_ARGUMENT, "allocator");
    REFUSED(setenv("FEEDMILL_READER", "carrier-pigeon", 1), FM_ERR_ARGUMENT, "carrier-pigeon");
    unsetenv("FEEDMILL_READER");
    REFUSED(setenv("FEEDMILL_CPU", "abacus", 1), FM_ERR_ARGUMENT, "abacus");
#if defined(__aarch64__)
    const char *const tiers = "scalar or neon";
#else
    const char *const tiers = "scalar, sse41, avx2 or avx512";
#endif
    REFUSED(setenv("FEEDMILL_CPU", "AVX2", 1), FM_ERR_ARGUMENT, tiers);
    unsetenv("FEEDMILL_CPU");
#undef REFUSED
}

static void calls_out_of_order_are_refused(void **state) {
    (void)state;
    const fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = NULL;
    fm_batch batch;
    fm_fallback fallback;
    const fm_epoch epoch = {.seed = 1};
    char path[128];
    snprintf(path, sizeof(path), "%s/0000.jpg", images.dir);
    const fm_sample good = {.path = path};
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_OK);
    assert_int_equal(fm_loader_next(loader, 0, &batch, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_submit(loader, &good, 1, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_finish(loader, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_fallback(loader, &fallback), FM_ERR_STATE);
    assert_int_equal(fm_loader_fallback_done(loader, FM_OK, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_stop(loader, &error), FM_OK);
    assert_int_equal(fm_loader_start(loader, NULL, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
    assert_int_equal(fm_loader_next(loader, 0, NULL, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_AGAIN);
    fm_batch_release(&batch);

    const fm_sample wrong[] = {{.index = -1, .path = path},
                               {.index = 3, .path = path},
                               {.path = NULL},
                               {.path = ""},
                               {.path = path, .data_bytes = 1}};
    for (int i = 0; i < 5; i++)
        assert_int_equal(fm_loader_submit(loader, &wrong[i], 1, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_submit(loader, NULL, 1, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_submit(loader, &good, 0, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_submit(loader, &good, 9, &error), FM_ERR_ARGUMENT);
    char *const long_path = malloc(5001);
    memset(long_path, 'x', 5000);
    long_path[5000] = 0;
    const fm_sample too_long[] = {{.path = long_path}, {.path = long_path, .data = "x"}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(fm_loader_submit(loader, &too_long[i], 1, &error), FM_ERR_ARGUMENT);
    free(long_path);

    assert_int_equal(fm_loader_submit(loader, &good, 1, &error), FM_OK);
    assert_int_equal(fm_loader_finish(loader, &error), FM_OK);
    assert_int_equal(fm_loader_submit(loader, &good, 1, &error), FM_ERR_STATE);
    assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
    fm_loader_close(&loader);
    assert_null(loader);
    fm_batch_release(&batch);
    fm_batch_release(&batch);
}

static void null_handles_are_refused_everywhere(void **state) {
    (void)state;
    fm_loader *loader = NULL;
    fm_batch batch;
    fm_fallback fallback;
    fm_draw draws[16];
    fm_step step;
    fm_stats stats;
    const fm_epoch epoch = {.seed = 1};
    const fm_sample sample = {.path = "x"};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_stop(loader, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_submit(loader, &sample, 1, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_finish(loader, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_next(loader, 0, &batch, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_fallback(loader, &fallback), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_fallback_done(loader, 0, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_draws(loader, 0, 0, 0, 0, 0, 9, 9, draws, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_steps(loader, 0, &step, 1), 0);
    assert_int_equal(fm_loader_n_pending(loader), 0);
    fm_loader_stats(loader, &stats);
    fm_loader_stats(loader, NULL);
    fm_loader_step_request(loader);
    fm_loader_step_return(loader);
    fm_loader_out_size(loader, NULL, NULL);
    fm_loader_close(&loader);
    fm_loader_close(NULL);
    fm_batch_release(NULL);
}

static void orders_outside_the_source_are_refused(void **state) {
    (void)state;
    const fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = NULL;
    const int64_t order[] = {0, 1, 99};
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_OK);
    const fm_epoch epoch = {.order = order, .n_order = 3};
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "99"));
    fm_loader_close(&loader);
    fm_config no_source = test_config((fm_source){0});
    no_source.n_samples = 3;
    assert_int_equal(fm_loader_open(&loader, &no_source, &error), FM_OK);
    assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_ERR_STATE);
    fm_loader_close(&loader);
}

/* A wrong call does not end the running epoch: its batch is still delivered. */
static void refused_starts_leave_the_epoch_running(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof(path), "%s/0000.jpg", images.dir);
    const fm_sample sample = {.path = path};
    const int64_t order[] = {0, 99};
    const fm_epoch bad_order = {.order = order, .n_order = 2}, good = {.seed = 1};
    for (int with_source = 0; with_source < 2; with_source++) {
        fm_config config = test_config(with_source ? fm_folder_source(folder) : (fm_source){0});
        config.n_samples = 3;
        fm_loader *loader = test_loader_open(&config);
        fm_batch batch;
        assert_int_equal(fm_loader_start(loader, &good, &error), FM_OK);
        assert_int_equal(fm_loader_submit(loader, &sample, 1, &error), FM_OK);
        assert_int_equal(fm_loader_start(loader, NULL, &error), FM_ERR_ARGUMENT);
        assert_int_equal(fm_loader_start(loader, &bad_order, &error),
                         with_source ? FM_ERR_ARGUMENT : FM_ERR_STATE);
        assert_int_equal(fm_loader_n_pending(loader), 1);
        assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
        fm_batch_release(&batch);
        fm_loader_close(&loader);
    }
}

typedef struct gap {
    fm_source around;
    int status; /* that says that index 2 is not there */
} gap;

static int locate_around_gap(void *user, int64_t index, fm_sample *out) {
    const gap *const self = user;
    return index == 2 ? self->status : self->around.locate(self->around.user, index, out);
}

/* What the source does not find is an error at its batch's turn, and not one of start(). */
static void samples_that_are_not_found_are_errors_in_their_turn(void **state) {
    (void)state;
    static const int statuses[][2] = {
        {FM_ERR_READ, FM_ERR_READ},  {FM_ERR_ARGUMENT, FM_ERR_ARGUMENT}, {FM_END, FM_ERR_ARGUMENT},
        {FM_AGAIN, FM_ERR_ARGUMENT}, {FM_FALLBACK, FM_ERR_ARGUMENT},     {99, FM_ERR_ARGUMENT}};
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        gap user = {fm_folder_source(folder), statuses[i][0]};
        fm_config config = test_config((fm_source){&user, 3, locate_around_gap});
        config.batch_size = 1;
        fm_loader *loader = test_loader_open(&config);
        for (int first = 0; first < 2; first++) {
            const int64_t order[] = {first ? 2 : 0, 2, 1};
            const fm_epoch epoch = {.order = order, .n_order = 3};
            fm_batch batch;
            assert_int_equal(fm_loader_start(loader, &epoch, &error), FM_OK);
            if (!first) assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_OK);
            if (!first) fm_batch_release(&batch);
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), statuses[i][1]);
            assert_int_equal(error.status, statuses[i][1]);
            assert_int_equal(error.index, 2);
            assert_non_null(strstr(error.message, "sample 2"));
            assert_int_equal(fm_loader_next(loader, -1, &batch, &error), FM_END);
        }
        fm_loader_close(&loader);
    }
}

static void draws_are_checked_and_pure(void **state) {
    (void)state;
    const fm_config config = test_config(fm_folder_source(folder));
    fm_loader *loader = NULL;
    assert_int_equal(fm_loader_open(&loader, &config, &error), FM_OK);
    fm_draw a[2], b[2];
    assert_int_equal(fm_loader_draws(loader, 0, 1, 2, 0, 0, 640, 480, a, &error), FM_OK);
    assert_int_equal(fm_loader_draws(loader, 0, 1, 2, 0, 0, 640, 480, b, &error), FM_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(a[i].kind, test_ops[i].kind);
        assert_true(a[i].top == b[i].top && a[i].left == b[i].left && a[i].flip == b[i].flip);
        assert_true(a[i].height == b[i].height && a[i].width == b[i].width);
    }
    assert_int_equal(fm_loader_draws(loader, 0, 1, 2, 3, 0, 640, 480, a, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_draws(loader, 0, 1, 2, 0, 0, 0, 480, a, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_loader_draws(loader, 0, 1, 2, 0, 0, 640, 480, NULL, &error),
                     FM_ERR_ARGUMENT);
    fm_loader_close(&loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configurations_are_refused_by_name),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(null_handles_are_refused_everywhere),
        cmocka_unit_test(orders_outside_the_source_are_refused),
        cmocka_unit_test(refused_starts_leave_the_epoch_running),
        cmocka_unit_test(samples_that_are_not_found_are_errors_in_their_turn),
        cmocka_unit_test(draws_are_checked_and_pure),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
