/* What a server's response says. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "read/etags.h"

#define UNKNOWN FM_RESPONSE_UNKNOWN

static void line(fm_response *response, const char *text) {
    fm_response_line(response, text, strlen(text));
}

static void header_lines_are_read(void **state) {
    (void)state;
    fm_response response = {.length = UNKNOWN};
    line(&response, "HTTP/1.1 206 Partial Content\r\n");
    line(&response, "content-LENGTH: 100\r\n");
    line(&response, "Content-Range:bytes 900-999/1000\r\n");
    line(&response, "ETag: \"abc\"\r\n");
    line(&response, "Retry-After: 7\r\n");
    line(&response, "\r\n");
    assert_int_equal(response.status, 206);
    assert_int_equal(response.length, 100);
    assert_true(response.has_range);
    assert_int_equal(response.first, 900);
    assert_int_equal(response.last, 999);
    assert_int_equal(response.total, 1000);
    assert_string_equal(response.etag, "\"abc\"");
    assert_int_equal(response.retry_after_s, 7);
    line(&response, "HTTP/2 200\r\n");
    assert_int_equal(response.status, 200);
    assert_int_equal(response.length, UNKNOWN);
    assert_false(response.has_range);
    assert_string_equal(response.etag, "");
}

/* Lines that say nothing of use, or are damaged. */
static void other_lines_are_ignored(void **state) {
    (void)state;
    static const char *const lines[] = {
        "",
        ":",
        "Content-Length",
        "Content-Length:",
        "Content-Length: -5",
        "Content-Length: 99999999999999999999999999",
        "Content-Range: bytes 5-4/10",
        "Content-Range: bytes 5-10/10",
        "Content-Range: bytes */10",
        "Content-Range: bytes 5-/10",
        "Content-Range: bytes 5-8",
        "Content-Range: lines 5-8/10",
        "Content-Range: bytes ",
        "ETag: W/\"weak\"",
        "ETag: bare",
        "ETag: \"",
        "ETag: \"a\nb\"",
        "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT",
        "HTTPS: 1",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
        fm_response response;
        line(memset(&response, 0, sizeof(response)), "HTTP/1.1 200 OK\r\n");
        line(&response, lines[i]);
        if (response.status != 200 || response.length != UNKNOWN || response.has_range ||
            *response.etag || response.retry_after_s)
            fail_msg("'%s' was taken for something", lines[i]);
    }
    fm_response response = {.length = UNKNOWN};
    line(&response, "Content-Range: bytes 5-8/*");
    assert_true(response.has_range);
    assert_int_equal(response.total, UNKNOWN);
    char etag[FM_ETAG_BYTES + 10] = "ETag: \"";
    memset(etag + 7, 'x', sizeof(etag) - 9);
    etag[sizeof(etag) - 2] = '"';
    line(&response, etag);
    assert_string_equal(response.etag, "");
}

static void check_code(const char *body, const char *expected) {
    fm_response response = {0};
    char code[16];
    /* In pieces. */
    for (const char *at = body; *at; at++) fm_response_error_body(&response, at, 1);
    fm_response_code(&response, code, sizeof(code));
    assert_string_equal(code, expected);
}

static void error_codes_are_found(void **state) {
    (void)state;
    check_code("<Error><Code>AccessDenied</Code><Message>x</Message></Error>", "AccessDenied");
    check_code("{\"error\": {\"errors\": [{\"reason\": \"notFound\"}]}}", "notFound");
    check_code("", "");
    check_code("<html>no</html>", "");
    check_code("<Code>", "");
    check_code("<Code><script></Code>", "");
    check_code("<Code>AVeryLongCodeThatDoesNotFit</Code>", "AVeryLongCodeTh");
    fm_response response = {0};
    char large[5000];
    memset(large, 'x', sizeof(large));
    fm_response_error_body(&response, large, sizeof(large));
    fm_response_error_body(&response, large, sizeof(large));
    assert_int_equal(strlen(response.body), FM_RESPONSE_ERROR_BYTES - 1);
}

static void bytes_are_found(void **state) {
    (void)state;
    static const struct {
        fm_response response;
        fm_response_wish wish;
        fm_response_fit fit;
        uint64_t skip, left;
    } cases[] = {
        {{.status = 200, .length = 100}, {0, 0}, FM_FIT_OK, 0, 100},
        {{.status = 200, .length = 0}, {0, 0}, FM_FIT_OK, 0, 0},
        {{.status = 200, .length = UNKNOWN}, {0, 0}, FM_FIT_OK, 0, UNKNOWN},
        /* The range was ignored. */
        {{.status = 200, .length = 100}, {10, 20}, FM_FIT_OK, 10, 90},
        {{.status = 200, .length = 100}, {10, 90}, FM_FIT_OK, 10, 90},
        {{.status = 200, .length = 100}, {10, 91}, FM_FIT_ENDS_EARLY, 0, 0},
        {{.status = 200, .length = 5}, {10, 1}, FM_FIT_ENDS_EARLY, 0, 0},
        {{.status = 200, .length = UNKNOWN}, {10, 20}, FM_FIT_OK, 10, UNKNOWN},
        /* It was not. */
        {{.status = 206, .length = 20, .has_range = true, .first = 10, .last = 29, .total = 100},
         {10, 20},
         FM_FIT_OK,
         0,
         20},
        {{.status = 206,
          .length = UNKNOWN,
          .has_range = true,
          .first = 10,
          .last = 29,
          .total = UNKNOWN},
         {10, 20},
         FM_FIT_OK,
         0,
         20},
        /* More than was requested, and less. */
        {{.status = 206, .length = 30, .has_range = true, .first = 5, .last = 34, .total = 100},
         {10, 20},
         FM_FIT_OK,
         5,
         25},
        {{.status = 206, .length = 19, .has_range = true, .first = 11, .last = 29, .total = 100},
         {10, 20},
         FM_FIT_WRONG,
         0,
         0},
        {{.status = 206, .length = 19, .has_range = true, .first = 10, .last = 28, .total = 100},
         {10, 20},
         FM_FIT_WRONG,
         0,
         0},
        {{.status = 206, .length = 5, .has_range = true, .first = 0, .last = 4, .total = 100},
         {10, 20},
         FM_FIT_WRONG,
         0,
         0},
        /* The object ends. */
        {{.status = 206, .length = 5, .has_range = true, .first = 10, .last = 14, .total = 15},
         {10, 20},
         FM_FIT_ENDS_EARLY,
         0,
         0},
        /* Damaged. */
        {{.status = 206, .length = 20}, {10, 20}, FM_FIT_WRONG, 0, 0},
        {{.status = 206, .length = 21, .has_range = true, .first = 10, .last = 29, .total = 100},
         {10, 20},
         FM_FIT_WRONG,
         0,
         0},
        /* A part in answer to a request of all. */
        {{.status = 206, .length = 20, .has_range = true, .first = 0, .last = 19, .total = 100},
         {0, 0},
         FM_FIT_WRONG,
         0,
         0},
        {{.status = 206, .length = 20, .has_range = true, .first = 0, .last = 19, .total = 20},
         {0, 0},
         FM_FIT_OK,
         0,
         20},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint64_t skip = 0, left = 0;
        const fm_response_fit fit =
            fm_response_fits(&cases[i].response, &cases[i].wish, &skip, &left);
        if (fit != cases[i].fit) fail_msg("case %zu: %d instead of %d", i, fit, cases[i].fit);
        if (fit != FM_FIT_OK) continue;
        assert_int_equal(skip, cases[i].skip);
        assert_int_equal(left, cases[i].left);
    }
}

static void etags_are_remembered(void **state) {
    (void)state;
    static fm_etags etags;
    assert_null(fm_etags_find(&etags, "s3://b/a"));
    fm_etags_add(&etags, "s3://b/a", "\"1\"");
    assert_string_equal(fm_etags_find(&etags, "s3://b/a"), "\"1\"");
    assert_null(fm_etags_find(&etags, "s3://b/b"));
    fm_etags_add(&etags, "s3://b/a", "\"2\"");
    assert_string_equal(fm_etags_find(&etags, "s3://b/a"), "\"2\"");
    fm_etags_forget(&etags, "s3://b/b");
    fm_etags_forget(&etags, "s3://b/a");
    assert_null(fm_etags_find(&etags, "s3://b/a"));
    /* As many as a pack has shards are all kept. */
    char name[16];
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        fm_etags_add(&etags, name, name);
    }
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        assert_string_equal(fm_etags_find(&etags, name), name);
    }
    /* The table is full at some time; what it finds is right. */
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "x%d", i);
        assert_null(fm_etags_find(&etags, name));
        fm_etags_add(&etags, name, name);
        assert_string_equal(fm_etags_find(&etags, name), name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_lines_are_read), cmocka_unit_test(other_lines_are_ignored),
        cmocka_unit_test(error_codes_are_found), cmocka_unit_test(bytes_are_found),
        cmocka_unit_test(etags_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
