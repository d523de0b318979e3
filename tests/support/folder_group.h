/* For a group of tests that share a folder of N_FILES small JPEGs, which set_up() makes. */
#ifndef FM_TEST_FOLDER_GROUP_H
#define FM_TEST_FOLDER_GROUP_H

#include "folder.h"

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

#endif
