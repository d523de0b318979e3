/* Files of raw values: delivered values, and refused files. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "feedmill/feedmill.h"

#define N_FILES 12
#define HEADER "a header"
#define HEADER_BYTES (sizeof(HEADER) - 1)
#define BODY_BYTES 100003u /* a prime: not a multiple of a cache line or page */

static char dir[] = "/tmp/fm_plain_XXXXXX";

static const char *path_of(int64_t index) {
    static char paths[N_FILES][64];
    snprintf(paths[index], sizeof(paths[index]), "%s/%d", dir, (int)index);
    return paths[index];
}

static uint8_t value(int64_t index, size_t i) { return (uint8_t)(i * 31 + (size_t)index * 7); }

static void write_file(int64_t index, const char *header, size_t body_bytes) {
    FILE *const out = fopen(path_of(index), "wb");
    assert_non_null(out);
    fputs(header, out);
    for (size_t i = 0; i < body_bytes; i++) fputc(value(index, i), out);
    fclose(out);
}

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    for (int i = 0; i < N_FILES; i++) write_file(i, HEADER, BODY_BYTES);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) unlink(path_of(i));
    return rmdir(dir);
}

static int locate(void *user, int64_t index, fm_sample *out) {
    (void)user;
    out->index = out->label = index;
    out->path = path_of(index);
    return FM_OK;
}

static fm_config make_config(fm_reader_kind reader) {
    fm_config config;
    fm_config_init(&config);
    config.source = (fm_source){NULL, N_FILES, locate};
    config.raw = (fm_raw_format){HEADER, HEADER_BYTES, BODY_BYTES};
    config.batch_size = 5;
    config.n_threads = 2;
    config.reader = reader;
    return config;
}

/* The status at the end of an epoch in order. */
static int run(const fm_config *config, fm_error *error) {
    int64_t order[N_FILES];
    for (int i = 0; i < N_FILES; i++) order[i] = i;
    fm_loader *loader = NULL;
    int status = fm_loader_open(&loader, config, error);
    if (status) return status;
    const fm_epoch epoch = {.order = order, .n_order = N_FILES};
    assert_int_equal(fm_loader_start(loader, &epoch, error), FM_OK);
    fm_batch batch;
    int64_t n = 0;
    while ((status = fm_loader_next(loader, -1, &batch, error)) == FM_OK) {
        assert_int_equal(batch.channels * batch.height, 1);
        assert_int_equal(batch.width, BODY_BYTES);
        assert_int_equal(batch.dtype, FM_UINT8);
        const uint8_t *at = batch.images;
        for (uint32_t b = 0; b < batch.n; b++, n++) {
            assert_int_equal(batch.labels[b], n);
            for (size_t i = 0; i < BODY_BYTES; i++)
                if (*at++ != value(n, i)) fail_msg("sample %d, byte %zu", (int)n, i);
        }
        fm_batch_release(&batch);
    }
    fm_loader_close(&loader);
    return status;
}

static void values_are_the_files(void **state) {
    (void)state;
    for (fm_reader_kind reader = FM_READER_AUTO; reader <= FM_READER_PREAD; reader++) {
        const fm_config config = make_config(reader);
        fm_error error;
        const int status = run(&config, &error);
        if (status != FM_ERR_UNAVAILABLE) assert_int_equal(status, FM_END);
    }
}

static void files_that_differ_are_named(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t body_bytes;
        int status;
    } wrong[] = {
        {"a reader", BODY_BYTES, FM_ERR_FORMAT},
        {"a h", 0, FM_ERR_FORMAT},
        {"", 0, FM_ERR_FORMAT},
        {HEADER, 0, FM_ERR_DAMAGED},
        {HEADER, BODY_BYTES - 1, FM_ERR_DAMAGED},
        {HEADER, BODY_BYTES + 1, FM_ERR_DAMAGED},
    };
    const fm_config config = make_config(FM_READER_AUTO);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        write_file(7, wrong[i].header, wrong[i].body_bytes);
        fm_error error;
        assert_int_equal(run(&config, &error), wrong[i].status);
        assert_int_equal(error.index, 7);
        assert_non_null(strstr(error.message, path_of(7)));
    }
    write_file(7, HEADER, BODY_BYTES);
}

static void configurations_are_checked(void **state) {
    (void)state;
    const fm_op op = {.kind = FM_OP_CENTER_CROP, .height = 8, .width = 8};
    fm_error error;
    fm_config config = make_config(FM_READER_AUTO);
    config.transform.ops = &op;
    config.transform.n_ops = 1;
    assert_int_equal(run(&config, &error), FM_ERR_ARGUMENT);
    config = make_config(FM_READER_AUTO);
    config.raw.header = NULL;
    assert_int_equal(run(&config, &error), FM_ERR_ARGUMENT);
    config = make_config(FM_READER_AUTO);
    config.raw.body_bytes = (size_t)1 << 31;
    assert_int_equal(run(&config, &error), FM_ERR_ARGUMENT);
    config = make_config(FM_READER_AUTO);
    config.memory_budget_bytes = 4 * BODY_BYTES;
    assert_int_equal(run(&config, &error), FM_ERR_BUDGET);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_the_files),
        cmocka_unit_test(files_that_differ_are_named),
        cmocka_unit_test(configurations_are_checked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
