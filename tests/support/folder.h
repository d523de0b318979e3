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

#endif
