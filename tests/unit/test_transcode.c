/* The transcoder of feedmill/pack.h: same pixels, same segments, restart markers at the returned
 * offsets; and the reason for each image that is not transcoded. */
#define _GNU_SOURCE
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
#include "feedmill/pack.h"
#include "guarded.h"

enum { MOST_BYTES = 1 << 20 };

/* ---- files ----------------------------------------------------------------------------------- */

/* A JPEG made by the tool mkjpeg, which ends at a guard page. */
static test_guarded make(const char *options) {
    const char *const tool = getenv("FM_MKJPEG");
    assert_non_null(tool);
    char path[] = "/tmp/fm_transcode_XXXXXX", command[512];
    const int file = mkstemp(path);
    assert_true(file >= 0);
    snprintf(command, sizeof(command), "%s %s %s", tool, options, path);
    assert_int_equal(system(command), 0);
    uint8_t *const bytes = test_malloc(MOST_BYTES);
    const ssize_t n = read(file, bytes, MOST_BYTES);
    assert_in_range(n, 100, MOST_BYTES - 1);
    const test_guarded guarded = test_guarded_open(bytes, (size_t)n);
    test_free(bytes);
    close(file);
    unlink(path);
    return guarded;
}

/* Where the n-th (from 0) segment of a kind begins in a JPEG's header or, behind scans, anywhere.
 */
static size_t find_marker(const uint8_t *bytes, size_t n_bytes, uint8_t marker, int n) {
    for (size_t at = 2; at + 4 <= n_bytes;) {
        if (bytes[at + 1] == marker && n-- == 0) return at;
        const bool is_scan = bytes[at + 1] == 0xDA;
        at += 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
        while (is_scan && at + 1 < n_bytes &&
               (bytes[at] != 0xFF || bytes[at + 1] == 0 || (bytes[at + 1] & 0xF8) == 0xD0))
            at++;
    }
    return 0;
}

static fm_transcoder *open_with(uint32_t interval, uint32_t max_cost_ppm, bool verify) {
    fm_transcoder_config config;
    fm_transcoder_config_init(&config);
    config.interval = interval;
    config.max_cost_ppm = max_cost_ppm;
    config.verify = verify;
    fm_transcoder *transcoder = NULL;
    fm_error error;
    if (fm_transcoder_open(&transcoder, &config, &error)) fail_msg("%s", error.message);
    return transcoder;
}

static fm_transcoded run(fm_transcoder *transcoder, const test_guarded *file) {
    fm_transcoded out;
    fm_error error;
    if (fm_transcoder_run(transcoder, file->bytes, file->n, &out, &error))
        fail_msg("%s", error.message);
    if (out.reason) {
        assert_null(out.bytes);
        assert_int_equal(out.n_bytes, 0);
        assert_int_equal(out.interval, 0);
        assert_true(out.why[0] != '\0');
    } else {
        assert_string_equal(out.why, "");
    }
    return out;
}

/* ---- what a result must be ------------------------------------------------------------------- */

static uint8_t *decode(const uint8_t *bytes, size_t n_bytes, int32_t *height, int32_t *width) {
    const fm_sample sample = {.data = bytes, .data_bytes = n_bytes};
    fm_imread *image;
    fm_error error;
    if (fm_imread_open(&image, &sample, 0, &error)) fail_msg("%s", error.message);
    fm_imread_size(image, false, height, width);
    uint8_t *const pixels = test_malloc((size_t)*height * (size_t)*width * 3);
    if (fm_imread_pixels(image, FM_RGB, false, pixels, &error)) fail_msg("%s", error.message);
    fm_imread_close(&image);
    return pixels;
}

static void assert_same_pixels(const test_guarded *file, const fm_transcoded *out) {
    int32_t height, width, new_height, new_width;
    uint8_t *const old = decode(file->bytes, file->n, &height, &width);
    uint8_t *const new = decode(out->bytes, out->n_bytes, &new_height, &new_width);
    assert_int_equal(height, new_height);
    assert_int_equal(width, new_width);
    assert_int_equal(out->height, height);
    assert_int_equal(out->width, width);
    assert_memory_equal(old, new, (size_t)height * (size_t)width * 3);
    test_free(old);
    test_free(new);
}

/* All APPn and COM segments, concatenated. */
static size_t collect_segments(const uint8_t *bytes, size_t n_bytes, uint8_t *out) {
    size_t n = 0;
    for (size_t at = 2; at + 4 <= n_bytes && bytes[at + 1] != 0xDA;) {
        const size_t length = 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
        if ((bytes[at + 1] & 0xF0) == 0xE0 || bytes[at + 1] == 0xFE) {
            memcpy(out + n, bytes + at, length);
            n += length;
        }
        at += length;
    }
    return n;
}

static void assert_same_segments(const test_guarded *file, const fm_transcoded *out) {
    uint8_t *const old = test_malloc(MOST_BYTES), *const new = test_malloc(MOST_BYTES);
    const size_t n = collect_segments(file->bytes, file->n, old);
    assert_int_equal(collect_segments(out->bytes, out->n_bytes, new), n);
    assert_memory_equal(old, new, n);
    test_free(old);
    test_free(new);
}

/* A sequential JPEG of one scan, with its interval in DRI, and a marker at the end of each. */
static void assert_structure(const fm_transcoded *out) {
    const uint8_t *const b = out->bytes;
    const size_t frame = find_marker(b, out->n_bytes, 0xC0, 0);
    assert_int_not_equal(frame, 0);
    assert_int_equal(find_marker(b, out->n_bytes, 0xDA, 1), 0);
    const size_t scan = find_marker(b, out->n_bytes, 0xDA, 0);
    assert_int_equal(b[scan + 4], b[frame + 9]); /* with all components */
    const size_t dri = find_marker(b, out->n_bytes, 0xDD, 0);
    assert_int_equal((uint32_t)b[dri + 4] << 8 | b[dri + 5], out->interval);
    assert_int_equal(out->mcus_per_row % out->interval, 0);
    assert_int_equal(out->mcus_per_row,
                     (uint32_t)((out->width + out->mcu_width_px - 1) / out->mcu_width_px));
    assert_int_equal(out->mcu_rows,
                     (uint32_t)((out->height + out->mcu_height_px - 1) / out->mcu_height_px));
    uint64_t n_markers = 0;
    const uint64_t per_row = out->mcus_per_row / out->interval;
    size_t at = scan + 2 + ((size_t)b[scan + 2] << 8 | b[scan + 3]);
    for (int k = 0; k < FM_PACK_ROWS; k++) {
        const uint64_t row = (uint64_t)k * out->mcu_rows / FM_PACK_ROWS;
        for (; n_markers < row * per_row; at++)
            if (b[at] == 0xFF && b[at + 1] == 0xD0 + n_markers % 8) n_markers++, at++;
        assert_int_equal(out->row_offsets[k], at);
    }
    for (; at + 2 < out->n_bytes; at++)
        if (b[at] == 0xFF && b[at + 1] == 0xD0 + n_markers % 8) n_markers++, at++;
    assert_int_equal(n_markers, per_row * out->mcu_rows - 1);
    assert_int_equal(b[out->n_bytes - 2] << 8 | b[out->n_bytes - 1], 0xFFD9);
}

/* ---- transcoded images ----------------------------------------------------------------------- */

static void every_kind_keeps_its_pixels(void **state) {
    (void)state;
    static const char *const kinds[] = {"sampling=444",
                                        "sampling=422",
                                        "sampling=420",
                                        "sampling=440",
                                        "sampling=411",
                                        "sampling=2x2,1x1,1x1 restart=5",
                                        "sampling=1x1,1x1,1x1 space=rgb",
                                        "space=grey",
                                        "space=grey sampling=2x2",
                                        "space=cmyk",
                                        "space=ycck",
                                        "progressive=1",
                                        "progressive=1 space=grey",
                                        "progressive=1 space=ycck",
                                        "scans=split sampling=420",
                                        "restart=3 optimize=1",
                                        "orientation=6 apps=5"};
    static const char *const sizes[] = {"64x48", "1x1", "376x17", "33x70", "161x3", "17x129"};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            char options[128];
            snprintf(options, sizeof(options), "size=%s seed=%zu %s", sizes[k], i, kinds[i]);
            test_guarded file = make(options);
            for (uint32_t interval = 1; interval <= 9; interval += 4) {
                fm_transcoder *verified = open_with(interval, UINT32_MAX, true);
                fm_transcoder *quick = open_with(interval, UINT32_MAX, false);
                const fm_transcoded out = run(verified, &file);
                if (out.reason) fail_msg("%s: %s", options, out.why);
                assert_structure(&out);
                assert_same_pixels(&file, &out);
                assert_same_segments(&file, &out);
                const fm_transcoded again = run(quick, &file);
                assert_int_equal(again.n_bytes, out.n_bytes);
                assert_memory_equal(again.bytes, out.bytes, out.n_bytes);
                fm_transcoder_close(&verified);
                fm_transcoder_close(&quick);
            }
            test_guarded_close(&file);
        }
    }
}

static void transcoding_twice_changes_nothing(void **state) {
    (void)state;
    test_guarded file = make("size=200x90 sampling=420 apps=3");
    fm_transcoder *transcoder = open_with(4, UINT32_MAX, true);
    const fm_transcoded once = run(transcoder, &file);
    test_guarded first = test_guarded_open(once.bytes, once.n_bytes);
    const fm_transcoded twice = run(transcoder, &first);
    assert_int_equal(twice.reason, FM_PACK_TRANSCODED);
    assert_int_equal(twice.n_bytes, first.n);
    assert_memory_equal(twice.bytes, first.bytes, first.n);
    fm_transcoder_close(&transcoder);
    assert_null(transcoder);
    test_guarded_close(&first);
    test_guarded_close(&file);
}

/* (pixels a row at 4:4:4, wanted, interval) */
static void the_interval_is_the_nearest_divisor(void **state) {
    (void)state;
    static const struct {
        uint32_t n, wanted, interval;
    } cases[] = {{63, 4, 3}, {64, 4, 4},  {47, 4, 1}, {47, 7, 47}, {32, 6, 8},    {1, 4, 1},
                 {50, 4, 5}, {36, 5, 6},  {42, 4, 3}, {12, 5, 6},  {12, 100, 12}, {9, 1, 1},
                 {30, 4, 5}, {100, 3, 4}, {2, 4, 2},  {26, 6, 13}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char options[64];
        snprintf(options, sizeof(options), "size=%ux8 sampling=444", 8 * cases[i].n - 3);
        test_guarded file = make(options);
        fm_transcoder *transcoder = open_with(cases[i].wanted, UINT32_MAX, true);
        const fm_transcoded out = run(transcoder, &file);
        if (out.interval != cases[i].interval)
            fail_msg("%u MCUs, %u wanted: %u, not %u", cases[i].n, cases[i].wanted, out.interval,
                     cases[i].interval);
        fm_transcoder_close(&transcoder);
        test_guarded_close(&file);
    }
}

static void markers_cost_no_more_than_they_may(void **state) {
    (void)state;
    test_guarded file = make("size=576x400 sampling=444 noise=60");
    size_t n_before = SIZE_MAX;
    static const uint32_t costs[] = {UINT32_MAX, 20000, 8000, 3000, 0};
    static const uint32_t intervals[] = {4, 0, 0, 0, 72};
    for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        fm_transcoder *transcoder = open_with(4, costs[i], true);
        const fm_transcoded out = run(transcoder, &file);
        if (intervals[i]) assert_int_equal(out.interval, intervals[i]);
        assert_true(out.n_bytes <= n_before);
        assert_structure(&out);
        n_before = out.n_bytes;
        fm_transcoder_close(&transcoder);
    }
    test_guarded_close(&file);
}

/* ---- images that are not transcoded ---------------------------------------------------------- */

static int reason_of(const test_guarded *file) {
    fm_transcoder *transcoder = open_with(4, UINT32_MAX, true);
    const int reason = run(transcoder, file).reason;
    fm_transcoder_close(&transcoder);
    return reason;
}

static void reasons_by_the_frame(void **state) {
    (void)state;
    test_guarded file = make("size=40x30 sampling=444");
    const size_t at = find_marker(file.bytes, file.n, 0xC0, 0);
    uint8_t *const frame = file.bytes + at;
    frame[1] = 0xC3;
    assert_int_equal(reason_of(&file), FM_PACK_LOSSLESS);
    frame[1] = 0xC9;
    assert_int_equal(reason_of(&file), FM_PACK_ARITHMETIC);
    frame[1] = 0xC1;
    assert_int_equal(reason_of(&file), FM_PACK_TRANSCODED);
    frame[4] = 12;
    assert_int_equal(reason_of(&file), FM_PACK_PRECISION);
    frame[4] = 8;
    const uint8_t low = frame[6];
    frame[6] = 0;
    assert_int_equal(reason_of(&file), FM_PACK_NO_HEIGHT);
    frame[6] = low;
    frame[1] = 0xC0;
    for (int c = 0; c < 3; c++) frame[11 + 3 * c] = 0x22; /* 12 blocks */
    assert_in_range(reason_of(&file), FM_PACK_BLOCKS, FM_PACK_DAMAGED);
    test_guarded_close(&file);
}

static void reasons_of_whole_files(void **state) {
    (void)state;
    static const struct {
        const char *options;
        int reason;
    } cases[] = {{"arithmetic=1", FM_PACK_ARITHMETIC},
                 {"sampling=2x2,2x2,2x2 scans=split", FM_PACK_BLOCKS},
                 {"sampling=4x2,2x1,1x2 scans=split", FM_PACK_BLOCKS}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char options[128];
        snprintf(options, sizeof(options), "size=70x50 %s", cases[i].options);
        test_guarded file = make(options);
        if (reason_of(&file) != cases[i].reason)
            fail_msg("%s: %s", options, fm_pack_reason_text(reason_of(&file)));
        test_guarded_close(&file);
    }
    const test_guarded text = {.bytes = (uint8_t *)(uintptr_t) "some text", .n = 9};
    assert_int_equal(reason_of(&text), FM_PACK_NOT_JPEG);
    const test_guarded nothing = {.bytes = NULL, .n = 0};
    assert_int_equal(reason_of(&nothing), FM_PACK_NOT_JPEG);
    assert_string_equal(fm_pack_reason_text(FM_PACK_NOT_JPEG), "not a JPEG");
    assert_string_equal(fm_pack_reason_text(-1), "unknown reason");
}

static void progressive_files_that_lack_scans(void **state) {
    (void)state;
    test_guarded file = make("size=90x70 progressive=1");
    const size_t second = find_marker(file.bytes, file.n, 0xDA, 1);
    memcpy(file.bytes + second, "\xFF\xD9", 2);
    assert_int_equal(reason_of(&file), FM_PACK_INCOMPLETE);
    test_guarded_close(&file);
}

/* A comment between two scans: in front of them it would be another file. */
static void segments_behind_the_first_scan(void **state) {
    (void)state;
    test_guarded file = make("size=90x70 progressive=1");
    const size_t second = find_marker(file.bytes, file.n, 0xDA, 1);
    test_guarded longer = test_guarded_open(NULL, file.n + 6);
    memcpy(longer.bytes, file.bytes, second);
    memcpy(longer.bytes + second, "\xFF\xFE\0\4ab", 6);
    memcpy(longer.bytes + second + 6, file.bytes + second, file.n - second);
    assert_int_equal(reason_of(&longer), FM_PACK_UNUSUAL);
    test_guarded_close(&longer);
    test_guarded_close(&file);
}

static void files_cut_short_are_damaged(void **state) {
    (void)state;
    static const char *const kinds[] = {"size=50x40 sampling=420", "size=50x40 progressive=1",
                                        "size=50x40 restart=2"};
    for (size_t i = 0; i < 3; i++) {
        test_guarded file = make(kinds[i]);
        fm_transcoder *transcoder = open_with(4, UINT32_MAX, false);
        for (size_t n = 3; n < file.n; n++) {
            test_guarded shorter = test_guarded_open(file.bytes, n);
            if (run(transcoder, &shorter).reason != FM_PACK_DAMAGED)
                fail_msg("%s, cut at %zu of %zu", kinds[i], n, file.n);
            test_guarded_close(&shorter);
        }
        assert_int_equal(run(transcoder, &file).reason, FM_PACK_TRANSCODED);
        fm_transcoder_close(&transcoder);
        test_guarded_close(&file);
    }
}

/* What is transcoded in spite of a changed byte has the pixels that the source has; a transcoder is
 * not impressed by what came before. */
static void changed_bytes_change_no_pixel_unseen(void **state) {
    (void)state;
    static const char *const kinds[] = {"size=50x40 sampling=420", "size=50x40 progressive=1"};
    for (size_t i = 0; i < 2; i++) {
        test_guarded file = make(kinds[i]);
        fm_transcoder *kept = open_with(4, UINT32_MAX, true);
        for (size_t at = 2; at < file.n; at += 3) {
            const uint8_t before = file.bytes[at];
            file.bytes[at] ^= (uint8_t)(1 + at % 255);
            fm_transcoder *fresh = open_with(4, UINT32_MAX, true);
            const fm_transcoded a = run(kept, &file), b = run(fresh, &file);
            assert_int_equal(a.reason, b.reason);
            assert_int_equal(a.n_bytes, b.n_bytes);
            if (a.bytes) assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
            fm_transcoder_close(&fresh);
            file.bytes[at] = before;
        }
        fm_transcoder_close(&kept);
        test_guarded_close(&file);
    }
}

static void limits_hold(void **state) {
    (void)state;
    test_guarded file = make("size=100x100 noise=90");
    const struct {
        uint64_t pixels, bytes;
        int reason;
    } cases[] = {{10000, 1 << 20, FM_PACK_TRANSCODED},
                 {9999, 1 << 20, FM_PACK_LIMIT},
                 {10000, file.n - 1, FM_PACK_LIMIT}};
    for (size_t i = 0; i < 3; i++) {
        fm_transcoder_config config;
        fm_transcoder_config_init(&config);
        config.max_image_pixels = cases[i].pixels;
        config.max_file_bytes = cases[i].bytes;
        fm_transcoder *transcoder = NULL;
        assert_int_equal(fm_transcoder_open(&transcoder, &config, NULL), FM_OK);
        assert_int_equal(run(transcoder, &file).reason, cases[i].reason);
        fm_transcoder_close(&transcoder);
    }
    test_guarded_close(&file);
}

/* A result that would grow beyond the limit, and one that outgrows its first buffer. */
static void results_may_grow(void **state) {
    (void)state;
    test_guarded file = make("size=1200x400 noise=250 quality=97 optimize=1 progressive=1");
    assert_true(file.n > 256 << 10);
    for (int k = 0; k < 2; k++) {
        fm_transcoder_config config;
        fm_transcoder_config_init(&config);
        config.interval = 1;
        config.max_cost_ppm = UINT32_MAX;
        config.max_file_bytes = k ? file.n : 1 << 30;
        fm_transcoder *transcoder = NULL;
        assert_int_equal(fm_transcoder_open(&transcoder, &config, NULL), FM_OK);
        const fm_transcoded out = run(transcoder, &file);
        assert_int_equal(out.reason, k ? FM_PACK_LIMIT : FM_PACK_TRANSCODED);
        if (!k) assert_same_pixels(&file, &out);
        fm_transcoder_close(&transcoder);
    }
    test_guarded_close(&file);
}

static void what_stands_behind_the_end_is_left_out(void **state) {
    (void)state;
    test_guarded file = make("size=40x30 apps=2");
    test_guarded longer = test_guarded_open(NULL, file.n + 500);
    memcpy(longer.bytes, file.bytes, file.n);
    fm_transcoder *a = open_with(4, UINT32_MAX, true), *b = open_with(4, UINT32_MAX, true);
    const fm_transcoded plain = run(a, &file), with_more = run(b, &longer);
    assert_int_equal(with_more.n_bytes, plain.n_bytes);
    assert_memory_equal(with_more.bytes, plain.bytes, plain.n_bytes);
    fm_transcoder_close(&a);
    fm_transcoder_close(&b);
    test_guarded_close(&longer);
    test_guarded_close(&file);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    fm_transcoder *transcoder = NULL;
    fm_transcoder_config config;
    fm_error error;
    fm_transcoder_config_init(&config);
    config.interval = 0;
    assert_int_equal(fm_transcoder_open(&transcoder, &config, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "interval is 0"));
    config.interval = 65536;
    assert_int_equal(fm_transcoder_open(&transcoder, &config, &error), FM_ERR_ARGUMENT);
    config = (fm_transcoder_config){.interval = 4};
    assert_int_equal(fm_transcoder_open(&transcoder, &config, &error), FM_ERR_ARGUMENT);
    assert_int_equal(fm_transcoder_open(NULL, &config, &error), FM_ERR_ARGUMENT);
    assert_null(transcoder);
    fm_transcoded out;
    assert_int_equal(fm_transcoder_run(NULL, "", 0, &out, &error), FM_ERR_ARGUMENT);
    fm_transcoder_close(&transcoder);
    fm_transcoder_close(NULL);
}

int main(void) {
    if (!getenv("FM_MKJPEG")) {
        fprintf(stderr, "skipped: FM_MKJPEG does not name the tool that makes images\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_keeps_its_pixels),
        cmocka_unit_test(transcoding_twice_changes_nothing),
        cmocka_unit_test(the_interval_is_the_nearest_divisor),
        cmocka_unit_test(markers_cost_no_more_than_they_may),
        cmocka_unit_test(reasons_by_the_frame),
        cmocka_unit_test(reasons_of_whole_files),
        cmocka_unit_test(progressive_files_that_lack_scans),
        cmocka_unit_test(segments_behind_the_first_scan),
        cmocka_unit_test(files_cut_short_are_damaged),
        cmocka_unit_test(changed_bytes_change_no_pixel_unseen),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(results_may_grow),
        cmocka_unit_test(what_stands_behind_the_end_is_left_out),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
