/* Signatures: those of AWS's documentation of S3, and of its test suite of Signature Version 4. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/digest.h"
#include "base/mem.h"
#include "read/sigv4.h"

/* Without libcrypto there is nothing to test. */
static bool is_built_without(void) {
    uint8_t digest[FM_DIGEST_BYTES];
    return !fm_digest_sha256("", 0, digest);
}

static void check_end(const fm_sigv4_request *request, const char *access_key, const char *secret,
                      const char *ending) {
    char *value;
    fm_sigv4_key key = {0};
    fm_error error = {0};
    assert_int_equal(fm_sigv4_sign(request, access_key, secret, &key, &value, &error), FM_OK);
    const size_t n = strlen(value), n_ending = strlen(ending);
    assert_true(n > n_ending);
    assert_string_equal(value + n - n_ending, ending);
    char begin[256];
    snprintf(begin, sizeof(begin), "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, ",
             access_key, request->date, request->region, request->service);
    assert_memory_equal(value, begin, strlen(begin));
    fm_mem_free(value);
}

/* ---- the documentation of S3 ----------------------------------------------------------------- */

#define S3_KEY "AKIAIOSFODNN7EXAMPLE"
#define S3_SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

static const fm_sigv4_header s3_headers[] = {{"x-amz-date", "20130524T000000Z"},
                                             {"range", "bytes=0-9"},
                                             {"x-amz-content-sha256", FM_SIGV4_NO_BODY},
                                             {"host", "examplebucket.s3.amazonaws.com"}};
static const fm_sigv4_header list_headers[] = {{"x-amz-date", "20130524T000000Z"},
                                               {"x-amz-content-sha256", FM_SIGV4_NO_BODY},
                                               {"host", "examplebucket.s3.amazonaws.com"}};

static fm_sigv4_request s3_request(const char *path, const char *query,
                                   const fm_sigv4_header *headers, size_t n) {
    return (fm_sigv4_request){.method = "GET",
                              .path = path,
                              .query = query,
                              .date = "20130524T000000Z",
                              .region = "us-east-1",
                              .service = "s3",
                              .body_hash = FM_SIGV4_NO_BODY,
                              .headers = headers,
                              .n_headers = n};
}

static void s3_get_object(void **state) {
    (void)state;
    const fm_sigv4_request request = s3_request("/test.txt", NULL, s3_headers, 4);
    char *const canonical = fm_sigv4_canonical(&request);
    assert_string_equal(canonical, "GET\n/test.txt\n\nhost:examplebucket.s3.amazonaws.com\n"
                                   "range:bytes=0-9\nx-amz-content-sha256:" FM_SIGV4_NO_BODY
                                   "\nx-amz-date:20130524T000000Z\n\n"
                                   "host;range;x-amz-content-sha256;x-amz-date\n" FM_SIGV4_NO_BODY);
    fm_mem_free(canonical);
    check_end(&request, S3_KEY, S3_SECRET,
              "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
              "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

static void s3_get_with_query(void **state) {
    (void)state;
    fm_sigv4_request request = s3_request("/", "lifecycle", list_headers, 3);
    check_end(&request, S3_KEY, S3_SECRET,
              "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    request.query = "prefix=J&max-keys=2";
    check_end(&request, S3_KEY, S3_SECRET,
              "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* ---- AWS's test suite ------------------------------------------------------------------------ */

#define SUITE_HOST \
    { "host", "example.amazonaws.com" }
#define SUITE_DATE \
    { "x-amz-date", "20150830T123600Z" }

static void check_suite(const char *path, const char *query, const fm_sigv4_header *headers,
                        size_t n, const char *signature) {
    fm_sigv4_request request = s3_request(path, query, headers, n);
    request.date = "20150830T123600Z";
    request.service = "service";
    check_end(&request, "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", signature);
}

static void suite_paths_and_queries(void **state) {
    (void)state;
    static const fm_sigv4_header headers[] = {SUITE_HOST, SUITE_DATE};
    static const struct {
        const char *path, *query, *signature;
    } cases[] = {
        /* get-vanilla */
        {"/", NULL, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
        {"/", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
        /* get-vanilla-empty-query-key */
        {"/", "Param1=value1", "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
        /* get-vanilla-query-order-key-case */
        {"/", "Param2=value2&Param1=value1",
         "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
        /* get-utf8 */
        {"/%E1%88%B4", NULL, "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_suite(cases[i].path, cases[i].query, headers, 2, cases[i].signature);
}

static void suite_headers(void **state) {
    (void)state;
    /* get-header-value-trim */
    static const fm_sigv4_header trimmed[] = {
        SUITE_HOST, {"my-header1", " value1"}, {"my-header2", " \"a   b   c\""}, SUITE_DATE};
    check_suite("/", NULL, trimmed, 4,
                "SignedHeaders=host;my-header1;my-header2;x-amz-date, "
                "Signature=acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
    /* get-header-key-duplicate */
    static const fm_sigv4_header repeated[] = {SUITE_HOST,
                                               {"my-header1", "value2"},
                                               {"my-header1", "value2"},
                                               {"my-header1", "value1"},
                                               SUITE_DATE};
    check_suite("/", NULL, repeated, 5,
                "SignedHeaders=host;my-header1;x-amz-date, "
                "Signature=c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea");
}

/* ---- what can't be signed -------------------------------------------------------------------- */

static void paths_are_signed_as_they_are(void **state) {
    (void)state;
    const fm_sigv4_request request = s3_request("/a//b/../c%20d%2B", NULL, list_headers, 3);
    char *const canonical = fm_sigv4_canonical(&request);
    static const char begin[] = "GET\n/a//b/../c%20d%2B\n\n";
    assert_memory_equal(canonical, begin, sizeof(begin) - 1);
    fm_mem_free(canonical);
}

static void refused(void **state) {
    (void)state;
    static const fm_sigv4_header many[40] = {[0 ... 39] = {"x", "y"}};
    char *value;
    fm_sigv4_key key = {0};
    fm_error error;
    fm_sigv4_request request = s3_request("/", NULL, many, 40);
    assert_int_equal(fm_sigv4_sign(&request, "k", "s", &key, &value, &error), FM_ERR_ARGUMENT);
    assert_null(value);
    request = s3_request("/", NULL, list_headers, 3);
    request.date = "2013-05-24";
    assert_int_equal(fm_sigv4_sign(&request, "k", "s", &key, &value, &error), FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "2013-05-24"));
    assert_null(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s3_get_object),
        cmocka_unit_test(s3_get_with_query),
        cmocka_unit_test(suite_paths_and_queries),
        cmocka_unit_test(suite_headers),
        cmocka_unit_test(paths_are_signed_as_they_are),
        cmocka_unit_test(refused),
    };
    if (is_built_without()) {
        printf("skipped: built without libcrypto\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
