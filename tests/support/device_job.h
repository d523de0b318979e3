/* The dataset of the device stage's tests: a folder of images whose pixels differ between layouts,
 * dtypes and channels. */
#ifndef FM_TEST_DEVICE_JOB_H
#define FM_TEST_DEVICE_JOB_H

#include "folder.h"

static inline fm_config test_device_config(const fm_folder *source, fm_device_kind kind,
                                           fm_dtype dtype, fm_layout layout) {
    fm_config config = test_config(fm_folder_source(source));
    config.transform.dtype = dtype;
    config.transform.layout = layout;
    config.transform.mean[1] = 0.25f;
    config.transform.std[2] = 0.5f;
    config.device.kind = kind;
    return config;
}

/* The same images in the one class of a folder source. */
static inline fm_folder *test_source_open(const test_folder *folder) {
    char moved[256];
    snprintf(moved, sizeof(moved), "mkdir %s/a && mv %s/*.jpg %s/a", folder->dir, folder->dir,
             folder->dir);
    test_run(moved);
    fm_folder *source = NULL;
    if (fm_folder_open(&source, folder->dir, NULL)) exit(1);
    return source;
}

#endif
