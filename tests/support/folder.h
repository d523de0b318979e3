/* A temporary folder of small JPEGs for tests, made by the tool named in FM_MKJPEG. */
#ifndef FM_TEST_FOLDER_H
#define FM_TEST_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "feedmill/feedmill.h"

typedef struct test_folder {
    char dir[64];
    int n_files;
} test_folder;

static inline void test_run(const char *command) {
    if (system(command)) {
        fprintf(stderr, "failed: %s\n", command);
        exit(1);
    }
}

/* n_files JPEGs of many sizes and kinds, dir/0000.jpg and on. */
static inline test_folder test_folder_open(int n_files) {
    static const char *const kinds[] = {"sampling=444", "sampling=420",  "sampling=422",
                                        "space=grey",   "progressive=1", "restart=4"};
    test_folder folder = {.n_files = n_files};
    const char *const tool = getenv("FM_MKJPEG");
    if (!tool) {
        fprintf(stderr, "skipped: FM_MKJPEG does not name the tool that makes images\n");
        exit(77);
    }
    strcpy(folder.dir, "/tmp/fm_folder_XXXXXX");
    if (!mkdtemp(folder.dir)) exit(1);
    for (int i = 0; i < n_files; i++) {
        char command[512];
        snprintf(command, sizeof(command), "%s size=%dx%d seed=%d %s %s/%04d.jpg", tool,
                 40 + i * 7 % 60, 30 + i * 11 % 70, i, kinds[i % 6], folder.dir, i);
        test_run(command);
    }
    return folder;
}

static inline void test_folder_close(test_folder *folder) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", folder->dir);
    test_run(command);
}

static const fm_op test_ops[] = {{.kind = FM_OP_RANDOM_RESIZED_CROP,
                                  .height = 24,
                                  .width = 32,
                                  .scale = {0.08, 1},
                                  .ratio = {0.75, 4.0 / 3}},
                                 {.kind = FM_OP_RANDOM_HORIZONTAL_FLIP, .p = 0.5}};

static inline fm_config test_config(fm_source source) {
    fm_config config;
    fm_config_init(&config);
    config.source = source;
    config.transform.ops = test_ops;
    config.transform.n_ops = 2;
    config.transform.dtype = FM_UINT8;
    config.batch_size = 8;
    config.n_threads = 2;
    config.memory_budget_bytes = (uint64_t)256 << 20;
    return config;
}

static inline fm_loader *test_loader_open(const fm_config *config) {
    fm_loader *loader = NULL;
    fm_error error;
    if (fm_loader_open(&loader, config, &error)) fail_msg("open: %s", error.message);
    return loader;
}

#define TEST_SAMPLE_BYTES ((size_t)3 * 24 * 32)

/* An epoch of n samples by test_config(), in an order that `shuffle` picks; the pixels of index i
 * go to out + i * TEST_SAMPLE_BYTES. */
static inline void test_run_shuffled(fm_loader *loader, size_t n, uint32_t shuffle, uint32_t number,
                                     uint8_t *out) {
    int64_t *const order = malloc(n * sizeof(*order));
    assert_non_null(order);
    for (size_t i = 0; i < n; i++) order[i] = (int64_t)((i * 7 + shuffle * 13) % n);
    const fm_epoch epoch = {.seed = 42, .number = number, .order = order, .n_order = n};
    fm_error error;
    if (fm_loader_start(loader, &epoch, &error)) fail_msg("start: %s", error.message);
    fm_batch batch;
    int status;
    size_t n_seen = 0;
    while ((status = fm_loader_next(loader, -1, &batch, &error)) == FM_OK) {
        for (uint32_t i = 0; i < batch.n; i++)
            memcpy(out + (size_t)order[n_seen + i] * TEST_SAMPLE_BYTES,
                   (const uint8_t *)batch.images + i * TEST_SAMPLE_BYTES, TEST_SAMPLE_BYTES);
        n_seen += batch.n;
        fm_batch_release(&batch);
    }
    if (status != FM_END) fail_msg("next: %s", error.message);
    assert_int_equal(n_seen, n);
    free(order);
}

#endif
