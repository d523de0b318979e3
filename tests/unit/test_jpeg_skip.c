/*
 * Skipping of restart intervals that a box does not need (fm_jpeg_set_interval_skipping()): the
 * pixels equal those of libjpeg's full decode, for any sampling, size, interval and box. The same
 * with damage: between two markers, the box's pixels equal libjpeg's of the damaged file, or the
 * file is refused; with damaged markers, the result is the one without skipping.
 */
#define _GNU_SOURCE
#include "jpeg_boxes.h"

static fm_jpeg *open_jpeg(bool skips) {
    fm_jpeg *const jpeg = open_decoder();
    fm_jpeg_set_interval_skipping(jpeg, skips, false);
    return jpeg;
}

static file copy_of(const file *f, size_t n) {
    const file g = test_guarded_open(NULL, n);
    memcpy(g.bytes, f->bytes, n < f->n ? n : f->n);
    return g;
}

/* The n-th restart marker (from 0); the file's size: there are fewer. */
static size_t restart_of(const file *f, size_t n) {
    for (size_t i = data_of(f); i + 1 < f->n; i++)
        if (f->bytes[i] == 0xFF && (f->bytes[i + 1] & 0xF8) == 0xD0 && n-- == 0) return i;
    return f->n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* 1: none; a row of MCUs, two, and more than the image has; those that divide a row and not. */
static unsigned random_interval(const kind *k) {
    const int mcu = k->n_components == 1 ? 8 : 8 * k->h;
    const unsigned n_columns = (unsigned)((k->width + mcu - 1) / mcu);
    const unsigned choices[] = {1, 2, 3, 4, 5, 8, n_columns, 2 * n_columns, 60000};
    return choices[random_below(sizeof(choices) / sizeof(choices[0]))];
}

static kind random_kind(uint32_t number) {
    kind k = SAMPLINGS[number % N_SAMPLINGS];
    k.width = 1 + (int)random_below(number % 5 ? 300 : 40);
    k.height = 1 + (int)random_below(number % 5 ? 200 : 40);
    k.interval = random_interval(&k);
    k.optimized = random_below(2);
    return k;
}

static void boxes_equal_the_full_decode(void **state) {
    (void)state;
    fm_jpeg *jpeg = open_jpeg(true);
    for (uint32_t i = 0; i < 40 * N_SAMPLINGS; i++) {
        const kind k = random_kind(i);
        const file f = make(&k);
        uint8_t *const full = full_decode(&f);
        for (int n = 0; n < 20; n++) {
            const fm_box box = random_box(&k);
            assert_int_equal(decode(jpeg, &f, &box, pixels), FM_OK);
            check_pixels(&k, &box, pixels, full);
        }
        free(full);
        test_guarded_close(&f);
    }
    fm_jpeg_close(&jpeg);
}

/* An accepted file has libjpeg's pixels of the damaged file, and files accepted without skipping
 * are accepted with it. */
static void damage_between_markers_changes_no_pixel(void **state) {
    (void)state;
    fm_jpeg *skipping = open_jpeg(true), *plain = open_jpeg(false);
    int n_accepted = 0, n_more = 0;
    for (uint32_t i = 0; i < 30 * N_SAMPLINGS; i++) {
        const kind k = random_kind(i);
        const file f = make(&k);
        injure(&f, 1 + random_below(3));
        uint8_t *const full = full_decode(&f);
        for (int n = 0; n < 20; n++) {
            const fm_box box = random_box(&k);
            const int status = decode(skipping, &f, &box, pixels);
            assert_true(status == FM_OK || status == FM_ERR_DAMAGED);
            if (!status) check_pixels(&k, &box, pixels, full);
            const bool is_accepted = decode(plain, &f, &box, pixels) == FM_OK;
            if (is_accepted) assert_int_equal(status, FM_OK);
            n_accepted += !status;
            n_more += !status && !is_accepted;
        }
        free(full);
        test_guarded_close(&f);
    }
    assert_true(n_accepted > 500);
#if FM_HAVE_JPEG_INTERNALS
    assert_true(n_more > 100); /* so intervals were skipped */
#else
    assert_int_equal(n_more, 0);
#endif
    fm_jpeg_close(&skipping);
    fm_jpeg_close(&plain);
}

/* For every box both have the same outcome, which is not FM_OK for the whole image. */
static void check_same(const kind *k, const file *f, bool is_sane) {
    fm_jpeg *skipping = open_jpeg(true), *plain = open_jpeg(false);
    static uint8_t others[sizeof(pixels)];
    for (int n = 0; n < 20; n++) {
        const fm_box all = {0, 0, k->width, k->height};
        const fm_box box = n ? random_box(k) : all;
        const int status = decode(skipping, f, &box, pixels);
        assert_int_equal(status, decode(plain, f, &box, others));
        if (!n) assert_int_equal(status == FM_OK, is_sane);
        if (!status)
            assert_memory_equal(pixels, others, 3 * (size_t)box.width * (size_t)box.height);
    }
    fm_jpeg_close(&skipping);
    fm_jpeg_close(&plain);
    test_guarded_close(f);
}

static const kind PLAIN = {
    .width = 200, .height = 120, .h = 2, .v = 2, .n_components = 3, .interval = 4};

static void markers_must_be_complete_and_in_order(void **state) {
    (void)state;
    const file whole = make(&PLAIN);
    const size_t marker = restart_of(&whole, 11);
    file f = copy_of(&whole, whole.n); /* another number */
    f.bytes[marker + 1] = 0xD0 + 5;
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n); /* one is missing */
    memset(f.bytes + marker, 0, 2);
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n); /* one too many */
    f.bytes[marker - 2] = 0xFF;
    f.bytes[marker - 1] = 0xD0 + 3;
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n); /* eight are missing: the others are in order */
    memmove(f.bytes + marker, f.bytes + restart_of(&whole, 19), whole.n - restart_of(&whole, 19));
    f.n = marker + whole.n - restart_of(&whole, 19);
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n - 1); /* no EOI */
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, marker); /* cut short */
    check_same(&PLAIN, &f, false);
    f = copy_of(&whole, whole.n + 1); /* FF as padding before a marker */
    memmove(f.bytes + marker + 1, whole.bytes + marker, whole.n - marker);
    check_same(&PLAIN, &f, true);
    f = copy_of(&whole, whole.n); /* the header names another interval */
    for (size_t i = 2; i < data_of(&whole); i++)
        if (f.bytes[i] == 0xFF && f.bytes[i + 1] == 0xDD) f.bytes[i + 5] = 5;
    check_same(&PLAIN, &f, false);
    test_guarded_close(&whole);
}

static void files_without_intervals_are_decoded_as_ever(void **state) {
    (void)state;
    kind k = PLAIN;
    k.interval = 0;
    const file f = make(&k);
    check_same(&k, &f, true);
    const file damaged = make(&k);
    injure(&damaged, 3);
    damaged.bytes[data_of(&damaged) + 500] = 0xFF;
    damaged.bytes[data_of(&damaged) + 501] = 0xD0;
    check_same(&k, &damaged, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_equal_the_full_decode),
        cmocka_unit_test(damage_between_markers_changes_no_pixel),
        cmocka_unit_test(markers_must_be_complete_and_in_order),
        cmocka_unit_test(files_without_intervals_are_decoded_as_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
