/* fm_may_be_turned: EXIF, XMP and chunks of each format, whole and cut off. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "decode/turned.h"
#include "guarded.h"

/* A file that grows. */
typedef struct text {
    uint8_t bytes[512];
    size_t n;
} text;

static void add(text *t, const void *bytes, size_t n) {
    assert_true(t->n + n <= sizeof(t->bytes));
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
}

static void add_segment(text *t, uint8_t marker, const void *body, size_t n) {
    const uint8_t head[] = {0xFF, marker, (uint8_t)((n + 2) >> 8), (uint8_t)(n + 2)};
    add(t, head, sizeof(head));
    add(t, body, n);
}

static void add_number(text *t, uint32_t value, size_t n, bool little) {
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)(value >> 8 * (little ? i : n - 1 - i));
        add(t, &byte, 1);
    }
}

/* A segment with a directory of two entries, the second an orientation. */
static void add_exif(text *t, bool little, uint32_t type, uint32_t count, uint32_t value) {
    text body = {.n = 0};
    add(&body, "Exif\0", 6);
    add(&body, little ? "II*\0" : "MM\0*", 4);
    add_number(&body, 8, 4, little);
    add_number(&body, 2, 2, little);
    const uint32_t entries[2][3] = {{0x010F, 2, 4}, {0x0112, type, count}};
    for (int i = 0; i < 2; i++) {
        add_number(&body, entries[i][0], 2, little);
        add_number(&body, entries[i][1], 2, little);
        add_number(&body, entries[i][2], 4, little);
        add_number(&body, i ? value : 'x', 2, little);
        add_number(&body, 0, 2, little);
    }
    add_number(&body, 0, 4, little);
    add_segment(t, 0xE1, body.bytes, body.n);
}

static text begun(void) {
    text t = {.n = 0};
    add(&t, "\xff\xd8", 2);
    add_segment(&t, 0xE0, "JFIF\0\1\1\0\0\1\0\1\0\0", 14);
    return t;
}

static bool ended(text *t) {
    add_segment(t, 0xDA, "\3\1\0\2\0\3\0\0\77\0", 10);
    const test_guarded f = test_guarded_open(t->bytes, t->n);
    const bool is_turned = fm_may_be_turned(FM_FORMAT_JPEG, f.bytes, f.n);
    test_guarded_close(&f);
    return is_turned;
}

static void orientations_of_jpegs(void **state) {
    (void)state;
    text plain = begun();
    assert_false(ended(&plain));
    for (int value = 0; value < 10; value++) {
        for (int little = 0; little < 2; little++) {
            text t = begun();
            add_exif(&t, little, 3, 1, (uint32_t)value);
            assert_int_equal(ended(&t), value != 1);
        }
    }
    for (int little = 0; little < 2; little++) {
        text other_type = begun(), two = begun(), twice = begun();
        add_exif(&other_type, little, 4, 1, 1);
        assert_true(ended(&other_type));
        add_exif(&two, little, 3, 2, 1);
        assert_true(ended(&two));
        add_exif(&twice, little, 3, 1, 1);
        add_exif(&twice, little, 3, 1, 1);
        assert_true(ended(&twice));
    }
}

static void xmp_counts_without_an_upright_orientation(void **state) {
    (void)state;
    static const char xmp[] = "http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation=\"6\"/>";
    text alone = begun(), before = begun(), behind = begun(), turned = begun();
    add_segment(&alone, 0xE1, xmp, sizeof(xmp));
    assert_true(ended(&alone));
    add_exif(&before, true, 3, 1, 1);
    add_segment(&before, 0xE1, xmp, sizeof(xmp));
    assert_false(ended(&before));
    add_segment(&behind, 0xE1, xmp, sizeof(xmp));
    add_exif(&behind, false, 3, 1, 1);
    assert_false(ended(&behind));
    add_segment(&turned, 0xE1, xmp, sizeof(xmp));
    add_exif(&turned, false, 3, 1, 8);
    assert_true(ended(&turned));
}

static void exif_that_is_cut_is_doubtful(void **state) {
    (void)state;
    static const uint8_t exif[] = {'E',  'x',  'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0,
                                   0x0F, 0x01, 2,   0,   4, 0, 0,   0,   0,  0, 0, 0, 0, 0, 0, 0};
    text whole = begun();
    add_segment(&whole, 0xE1, exif, sizeof(exif));
    assert_false(ended(&whole)); /* it has no orientation */
    for (size_t n = 4; n < sizeof(exif) - 4; n++) {
        text t = begun();
        add_segment(&t, 0xE1, exif, n);
        assert_true(ended(&t));
    }
}

enum { N_OTHER = 10 }; /* bytes behind the directory of three entries */

/* Whether an image is doubtful that has an entry before the orientation, 1, and one behind it. Both
   are {type, count, offset}. XMP tells to turn it. */
static bool is_doubtful(bool little, const uint32_t before[3], const uint32_t behind[3]) {
    static const char xmp[] = "http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation=\"6\"/>";
    const uint32_t orientation[3] = {3, 1, little ? 1 : 1 << 16};
    const uint32_t *const entries[] = {before, orientation, behind};
    const uint32_t tags[] = {0x010F, 0x0112, 0x0131};
    text body = {.n = 0}, t = begun();
    add(&body, "Exif\0", 6);
    add(&body, little ? "II*\0" : "MM\0*", 4);
    add_number(&body, 8, 4, little);
    add_number(&body, 3, 2, little);
    for (int i = 0; i < 3; i++) {
        add_number(&body, tags[i], 2, little);
        add_number(&body, entries[i][0], 2, little);
        add_number(&body, entries[i][1], 4, little);
        add_number(&body, entries[i][2], 4, little);
    }
    add_number(&body, 0, 4, little);
    add(&body, "0123456789", N_OTHER);
    add_segment(&t, 0xE1, body.bytes, body.n);
    add_segment(&t, 0xE1, xmp, sizeof(xmp));
    return ended(&t);
}

/* Pillow ignores an orientation behind a value that it can't read. */
static void values_beyond_the_end_are_doubtful(void **state) {
    (void)state;
    enum { N = 8 + 2 + 3 * 12 + 4 + N_OTHER }; /* bytes of the structure */
    static const struct {
        uint32_t entry[3];
        bool is_doubtful;
    } cases[] = {
        {{2, 4, 9999}, false}, /* the offset is the value */
        {{2, N_OTHER, N - N_OTHER}, false},
        {{2, N_OTHER, N - N_OTHER + 1}, true},
        {{2, N_OTHER, 9999}, true},
        {{2, N, 0}, false},
        {{2, N + 1, 0}, true},
        {{2, 5, UINT32_MAX}, true}, /* the end is no number of 32 bits, */
        {{2, UINT32_MAX, 5}, true},
        {{12, 1U << 29, 0}, true}, /* nor is the size */
        {{5, 1, N - 8}, false},
        {{5, 1, N - 7}, true},
        {{3, 2, 9999}, false},
        {{3, 3, 9999}, true},
        {{16, 1, 9999}, true},
        {{0, 100, 9999}, false}, /* types that Pillow ignores */
        {{14, 100, 9999}, false},
        {{17, 100, 9999}, false},
        {{UINT16_MAX, 100, 9999}, false},
    };
    static const uint32_t good[3] = {2, 4, 0}, half[3] = {7, N / 2, 0};
    static const uint32_t more[3] = {7, N / 2 + 1, 0};
    for (int little = 0; little < 2; little++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            assert_int_equal(is_doubtful(little, cases[i].entry, good), cases[i].is_doubtful);
            assert_int_equal(is_doubtful(little, good, cases[i].entry), cases[i].is_doubtful);
        }
        /* Values that overlap, and together are larger than the structure. */
        assert_false(is_doubtful(little, half, half));
        assert_true(is_doubtful(little, half, more));
    }
}

static void chunks_of_pngs(void **state) {
    (void)state;
    static const struct {
        const char *name, *body;
        bool is_turned;
    } chunks[] = {{"tEXt", "Comment..", false},        {"eXIf", "II*......", true},
                  {"tEXt", "exif.....", true},         {"zTXt", "Raw profile type exif", true},
                  {"iTXt", "XML:com.adobe.xmp", true}, {"iTXt", "Title....", false},
                  {"iCCP", "exif.....", false}};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        text t = {.n = 0};
        const size_t n = strlen(chunks[i].body);
        const uint8_t length[] = {0, 0, 0, (uint8_t)n};
        add(&t, "\x89PNG\r\n\x1a\n", 8);
        add(&t, length, 4);
        add(&t, chunks[i].name, 4);
        add(&t, chunks[i].body, n);
        add(&t, "crc.\0\0\0\0IENDcrc.", 16);
        for (size_t cut = 8; cut <= t.n; cut++) {
            const test_guarded f = test_guarded_open(t.bytes, cut);
            const bool is_turned = fm_may_be_turned(FM_FORMAT_PNG, f.bytes, f.n);
            assert_int_equal(is_turned, chunks[i].is_turned || cut < t.n);
            test_guarded_close(&f);
        }
    }
}

static void chunks_of_webps(void **state) {
    (void)state;
    static const char *const names[] = {"VP8 ", "EXIF", "XMP "};
    for (int i = 0; i < 3; i++) {
        text t = {.n = 0};
        add(&t, "RIFF....WEBPVP8X\2\0\0\0..", 22);
        add(&t, names[i], 4);
        add(&t, "\3\0\0\0...\0", 8);
        for (size_t cut = 23; cut <= t.n; cut++) {
            const test_guarded f = test_guarded_open(t.bytes, cut);
            assert_int_equal(fm_may_be_turned(FM_FORMAT_WEBP, f.bytes, f.n), i > 0 || cut < t.n);
            test_guarded_close(&f);
        }
    }
}

static void cut_jpegs_are_doubtful(void **state) {
    (void)state;
    text t = begun();
    add_exif(&t, true, 3, 1, 1);
    for (size_t cut = 0; cut <= t.n; cut++) {
        const test_guarded f = test_guarded_open(t.bytes, cut);
        assert_true(fm_may_be_turned(FM_FORMAT_JPEG, f.bytes, f.n));
        test_guarded_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orientations_of_jpegs),
        cmocka_unit_test(xmp_counts_without_an_upright_orientation),
        cmocka_unit_test(exif_that_is_cut_is_doubtful),
        cmocka_unit_test(values_beyond_the_end_are_doubtful),
        cmocka_unit_test(chunks_of_pngs),
        cmocka_unit_test(chunks_of_webps),
        cmocka_unit_test(cut_jpegs_are_doubtful),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
