#define _GNU_SOURCE
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "feedmill/feedmill.h"

static char root[64];

static int set_up(void **state) {
    (void)state;
    strcpy(root, "/tmp/fm_source_dir_XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void touch(const char *relative) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", root, relative);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *const file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

static void expect(const fm_source *source, int64_t index, const char *relative, int64_t label) {
    fm_sample sample;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", root, relative);
    assert_int_equal(source->locate(source->user, index, &sample), FM_OK);
    assert_string_equal(sample.path, path);
    assert_int_equal(sample.label, label);
    assert_int_equal(sample.index, index);
}

/* The order is torchvision's: classes, then directories, then files, each by code point. */
static void order_is_that_of_image_folder(void **state) {
    (void)state;
    touch("b/2.JPEG");
    touch("b/10.jpg");
    touch("b/sub/1.png");
    touch("b/notes.txt");
    touch("Zebra/x.WebP");
    touch("\xc3\xa4/y.jpeg");
    touch("stray.jpg");
    fm_folder *folder = NULL;
    fm_error error;
    assert_int_equal(fm_folder_open(&folder, root, &error), FM_OK);
    const fm_source source = fm_folder_source(folder);
    assert_int_equal(fm_folder_n_classes(folder), 3);
    assert_int_equal(source.n_samples, 5);
    expect(&source, 0, "Zebra/x.WebP", 0);
    expect(&source, 1, "b/10.jpg", 1);
    expect(&source, 2, "b/2.JPEG", 1);
    expect(&source, 3, "b/sub/1.png", 1);
    expect(&source, 4, "\xc3\xa4/y.jpeg", 2);
    fm_sample sample;
    assert_int_equal(source.locate(source.user, 5, &sample), FM_ERR_ARGUMENT);
    assert_int_equal(source.locate(source.user, -1, &sample), FM_ERR_ARGUMENT);
    fm_folder_close(&folder);
    assert_null(folder);
    fm_folder_close(&folder);
    fm_folder_close(NULL);
}

static void a_folder_without_classes_is_one_class(void **state) {
    (void)state;
    touch("b.jpg");
    touch("a.jpg");
    fm_folder *folder = NULL;
    assert_int_equal(fm_folder_open(&folder, root, NULL), FM_OK);
    const fm_source source = fm_folder_source(folder);
    assert_int_equal(fm_folder_n_classes(folder), 1);
    expect(&source, 0, "a.jpg", 0);
    expect(&source, 1, "b.jpg", 0);
    fm_folder_close(&folder);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    fm_folder *folder = NULL;
    fm_error error;
    assert_int_equal(fm_folder_open(&folder, "/does/not/exist", &error), FM_ERR_READ);
    assert_non_null(strstr(error.message, "/does/not/exist"));
    assert_null(folder);
    assert_int_equal(fm_folder_open(&folder, root, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, root));
    assert_int_equal(fm_folder_open(NULL, root, &error), FM_ERR_ARGUMENT);
}

/* A loop of links ends where the kernel gives up following it, as it does for torchvision. */
static void a_loop_of_links_ends(void **state) {
    (void)state;
    touch("a/x.jpg");
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/a/loop", root);
    assert_int_equal(symlink("..", path), 0);
    fm_folder *folder = NULL;
    assert_int_equal(fm_folder_open(&folder, root, NULL), FM_OK);
    const fm_source source = fm_folder_source(folder);
    assert_true(source.n_samples > 1 && source.n_samples < 100);
    fm_folder_close(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(order_is_that_of_image_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_without_classes_is_one_class, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_loop_of_links_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_named, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
