/* What is requested for a name: its URL and its headers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "read/remote.h"

#define DATE "20150830T123600Z"
#define KEY "AKIDEXAMPLE"
#define SECRET "the-secret-key"
#define TOKEN "the-session-token"

static fm_remote *open_with(const fm_remote_config *config,
                            const fm_remote_credentials *credentials) {
    fm_remote *remote;
    fm_error error;
    assert_int_equal(fm_remote_open(&remote, config, &error), FM_OK);
    assert_int_equal(fm_remote_set_credentials(remote, credentials, &error), FM_OK);
    return remote;
}

static fm_remote *open_at(const char *endpoint_url, const char *region,
                          const fm_remote_credentials *credentials) {
    fm_remote_config config;
    fm_remote_config_init(&config);
    config.endpoint_url = endpoint_url;
    config.region = region;
    return open_with(&config, credentials);
}

static const char *header_of(const fm_remote_request *request, const char *name) {
    const size_t n = strlen(name);
    for (size_t i = 0; i < request->n_headers; i++)
        if (strncmp(request->headers[i], name, n) == 0 && request->headers[i][n] == ':')
            return request->headers[i] + n + 2;
    return NULL;
}

static fm_remote_request request_of(fm_remote *remote, const char *name) {
    fm_remote_request request;
    fm_error error = {0};
    const fm_remote_wish wish = {.name = name, .date = DATE};
    if (fm_remote_request_make(remote, &wish, &request, &error)) fail_msg("%s", error.message);
    return request;
}

static void check_url(fm_remote *remote, const char *name, const char *url) {
    fm_remote_request request = request_of(remote, name);
    assert_string_equal(request.url, url);
    fm_remote_request_free(&request);
    assert_null(request.url);
    assert_int_equal(request.n_headers, 0);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void which_paths_are_names(void **state) {
    (void)state;
    assert_true(fm_remote_is_name("s3://bucket/key"));
    assert_true(fm_remote_is_name("gs://bucket/key"));
    assert_true(fm_remote_is_name("http://host/"));
    assert_true(fm_remote_is_name("https://host/"));
    assert_false(fm_remote_is_name("/s3://bucket/key"));
    assert_false(fm_remote_is_name("s3:/bucket/key"));
    assert_false(fm_remote_is_name("hf://datasets/a"));
    assert_false(fm_remote_is_name("file.jpg"));
    assert_false(fm_remote_is_name(""));
}

static void aws_urls(void **state) {
    (void)state;
    fm_remote *remote = open_at(NULL, "eu-west-1", NULL);
    check_url(remote, "s3://bucket/a/b.jpg", "https://bucket.s3.eu-west-1.amazonaws.com/a/b.jpg");
    /* The certificate of *.s3.REGION.amazonaws.com is not valid for more labels. */
    check_url(remote, "s3://my.bucket/a", "https://s3.eu-west-1.amazonaws.com/my.bucket/a");
    check_url(remote, "s3://Old_Bucket/a", "https://s3.eu-west-1.amazonaws.com/Old_Bucket/a");
    check_url(remote, "gs://bucket/a b", "https://storage.googleapis.com/bucket/a%20b");
    fm_remote_close(&remote);
    remote = open_at(NULL, "cn-north-1", NULL);
    check_url(remote, "s3://bucket/a", "https://bucket.s3.cn-north-1.amazonaws.com.cn/a");
    fm_remote_close(&remote);
    remote = open_at("", "", NULL);
    check_url(remote, "s3://bucket/a", "https://bucket.s3.us-east-1.amazonaws.com/a");
    fm_remote_close(&remote);
}

static void odd_keys(void **state) {
    (void)state;
    fm_remote *remote = open_at("http://127.0.0.1:9000/", NULL, NULL);
    static const struct {
        const char *key, *path;
    } cases[] = {{"a=b+c d", "a%3Db%2Bc%20d"},
                 {"a//b/../c/./d/", "a//b/../c/./d/"},
                 {"/begins", "/begins"},
                 {"what?is#this&that;", "what%3Fis%23this%26that%3B"},
                 {"100%25", "100%2525"},
                 {"caf\xc3\xa9-_.~", "caf%C3%A9-_.~"},
                 {"latin\xe9", "latin%E9"},
                 {"two\nlines", "two%0Alines"},
                 {"a'b\"c(d)!*@:,$", "a%27b%22c%28d%29%21%2A%40%3A%2C%24"},
                 {"s3://x/y", "s3%3A//x/y"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char name[128], url[128];
        snprintf(name, sizeof(name), "s3://bucket/%s", cases[i].key);
        snprintf(url, sizeof(url), "http://127.0.0.1:9000/bucket/%s", cases[i].path);
        check_url(remote, name, url);
    }
    fm_remote_close(&remote);
}

static void endpoints(void **state) {
    (void)state;
    static const struct {
        const char *endpoint, *begin;
    } cases[] = {{"http://127.0.0.1:9000", "http://127.0.0.1:9000/bucket/a"},
                 {"https://Store.Example:443//", "https://store.example/bucket/a"},
                 {"http://store.example:80/s3/v1/", "http://store.example/s3/v1/bucket/a"},
                 {"https://[::1]:8443", "https://[::1]:8443/bucket/a"},
                 {"http://store:443", "http://store:443/bucket/a"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fm_remote *remote = open_at(cases[i].endpoint, NULL, NULL);
        check_url(remote, "s3://bucket/a", cases[i].begin);
        check_url(remote, "gs://bucket/a", "https://storage.googleapis.com/bucket/a");
        fm_remote_close(&remote);
    }
}

static void urls_stay_as_they_are(void **state) {
    (void)state;
    fm_remote *remote = open_at("http://127.0.0.1:9000", NULL, NULL);
    static const struct {
        const char *name, *url;
    } cases[] = {
        {"http://host/a%20b?x=%2F&y#part", "http://host/a%20b?x=%2F&y"},
        {"https://user:pass@host:8443/a b.jpg", "https://user:pass@host:8443/a%20b.jpg"},
        {"http://host", "http://host"},
        {"http://host/a/../b//c", "http://host/a/../b//c"},
        {"http://host/\xc3\xa9", "http://host/%C3%A9"},
        {"http://[::1]:80/a", "http://[::1]:80/a"},
        {"http://host/a+b;c=d,e(f)~'g'!*@:$[1]", "http://host/a+b;c=d,e(f)~'g'!*@:$[1]"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_url(remote, cases[i].name, cases[i].url);
    fm_remote_close(&remote);
}

/* Of a bucket: the parameters are encoded by the caller, and signed. */
static void listings(void **state) {
    (void)state;
    static const char query[] = "list-type=2&prefix=a%20b%2F&delimiter=%2F";
    const fm_remote_credentials credentials = {.access_key = KEY, .secret_key = SECRET};
    char name[128], url[128];
    fm_remote *remote = open_at("http://127.0.0.1:9000", NULL, &credentials);
    snprintf(name, sizeof(name), "s3://bucket?%s", query);
    snprintf(url, sizeof(url), "http://127.0.0.1:9000/bucket/?%s", query);
    check_url(remote, name, url);
    fm_remote_request with = request_of(remote, name),
                      without = request_of(remote, "s3://bucket/?");
    assert_string_not_equal(header_of(&with, "Authorization"),
                            header_of(&without, "Authorization"));
    fm_remote_request_free(&with);
    fm_remote_request_free(&without);
    snprintf(name, sizeof(name), "gs://bucket?%s", query);
    snprintf(url, sizeof(url), "https://storage.googleapis.com/bucket/?%s", query);
    check_url(remote, name, url);
    fm_remote_close(&remote);
    remote = open_at(NULL, NULL, NULL);
    snprintf(name, sizeof(name), "s3://bucket?%s", query);
    snprintf(url, sizeof(url), "https://bucket.s3.us-east-1.amazonaws.com/?%s", query);
    check_url(remote, name, url);
    fm_remote_close(&remote);
}

static void check_refused(fm_remote *remote, const char *name, const char *why) {
    fm_remote_request request;
    fm_error error = {0};
    const fm_remote_wish wish = {.name = name};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_ERR_ARGUMENT);
    if (!strstr(error.message, why)) fail_msg("\"%s\" is not in: %s", why, error.message);
    assert_null(strstr(error.message, "password"));
    assert_null(strstr(error.message, "signature"));
    assert_null(request.url);
    assert_int_equal(request.n_headers, 0);
}

static void refused_names(void **state) {
    (void)state;
    fm_remote *remote = open_at(NULL, NULL, NULL);
    check_refused(remote, "s3://", "no bucket");
    check_refused(remote, "s3:///key", "no bucket");
    check_refused(remote, "s3://bucket", "no key");
    check_refused(remote, "gs://bucket/", "no key; a name has the form gs://BUCKET/KEY");
    check_refused(remote, "s3://evil.com?/key", "the name of a bucket");
    check_refused(remote, "s3://bucket?acl", "the name of a bucket");
    check_refused(remote, "s3://?list-type=2", "no bucket");
    check_refused(remote, "s3://user:password@host/key", "the name of a bucket");
    check_refused(remote, "s3://a b/key", "the name of a bucket");
    check_refused(remote, "s3://../key", "the name of a bucket");
    check_refused(remote, "s3://arn:aws:s3:eu-west-1:1:accesspoint/a/b", "alias");
    check_refused(remote, "http://", "no host");
    check_refused(remote, "http:///path", "no host");
    check_refused(remote, "http://:80/path", "no host");
    check_refused(remote, "http://user:password@/path?signature", "no host");
    check_refused(remote, "http://user:password@ho st/path?signature", "host");
    check_refused(remote, "http://h\xc3\xb6st/path", "xn--");
    check_refused(remote, "http://host/a\r\nX: y?signature", "control character");
    check_refused(remote, "http://host/a?signature\x7f", "control character");
    check_refused(remote, "/a/path", "does not begin with");
    fm_remote_close(&remote);
}

static void names_in_messages(void **state) {
    (void)state;
    static const struct {
        const char *name, *shown;
    } cases[] = {{"s3://bucket/what?a@b", "s3://bucket/what?a@b"},
                 {"s3://user:pass@host/a@b", "s3://host/a@b"},
                 {"/a/file?x@y#z", "/a/file?x@y#z"},
                 {"https://user:pass@host:1/a@b?c=d@e", "https://host:1/a@b"},
                 {"http://host?secret/x", "http://host"},
                 {"http://us@er:hidden@host?x@y", "http://host"},
                 {"http://host#secret@x", "http://host"},
                 {"http://", "http://"},
                 {"", ""}};
    char shown[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fm_remote_name_shown(cases[i].name, shown, sizeof(shown));
        assert_string_equal(shown, cases[i].shown);
    }
    fm_remote_name_shown("http://user:hidden@host/a.jpg", shown, 17);
    assert_string_equal(shown, "host/a.jpg");
    fm_remote_name_shown("http://user:hidden@host/a.jpg", shown, 5);
    assert_string_equal(shown, ".jpg");
    fm_remote_name_shown("/data/a.jpg", shown, 6);
    assert_string_equal(shown, "a.jpg");
}

/* ---- headers --------------------------------------------------------------------------------- */

static const fm_remote_credentials all_keys = {.access_key = KEY,
                                               .secret_key = SECRET,
                                               .session_token = TOKEN,
                                               .gs_access_key = "GOOG1",
                                               .gs_secret_key = "gs-secret"};

static void ranges_and_versions(void **state) {
    (void)state;
    fm_remote *remote = open_at(NULL, NULL, NULL);
    fm_remote_request request;
    fm_error error;
    fm_remote_wish wish = {
        .name = "http://host/a", .offset_bytes = 10, .range_bytes = 5, .etag = "\"v1\""};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_OK);
    assert_string_equal(header_of(&request, "Range"), "bytes=10-14");
    assert_string_equal(header_of(&request, "If-Match"), "\"v1\"");
    assert_int_equal(request.n_headers, 2);
    fm_remote_request_free(&request);
    wish = (fm_remote_wish){.name = "s3://bucket/a", .etag = "W/\"v1\""};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_OK);
    assert_int_equal(request.n_headers, 0);
    fm_remote_request_free(&request);
    wish = (fm_remote_wish){.name = "s3://bucket/a", .offset_bytes = 7};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_OK);
    assert_string_equal(header_of(&request, "Range"), "bytes=7-");
    fm_remote_request_free(&request);
    wish = (fm_remote_wish){.name = "s3://bucket/a", .offset_bytes = UINT64_MAX, .range_bytes = 2};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_ERR_ARGUMENT);
    wish = (fm_remote_wish){.name = "s3://bucket/a", .etag = "a\r\nX: y"};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_ERR_ARGUMENT);
    fm_remote_close(&remote);
}

static void signed_requests(void **state) {
    (void)state;
    fm_remote *remote = open_at("http://127.0.0.1:9000", "eu-west-1", &all_keys);
    fm_remote_request request;
    fm_error error;
    const fm_remote_wish wish = {.name = "s3://bucket/a b",
                                 .offset_bytes = 10,
                                 .range_bytes = 5,
                                 .etag = "\"v1\"",
                                 .date = DATE};
    assert_int_equal(fm_remote_request_make(remote, &wish, &request, &error), FM_OK);
    assert_string_equal(header_of(&request, "x-amz-date"), DATE);
    assert_string_equal(header_of(&request, "x-amz-security-token"), TOKEN);
    assert_string_equal(header_of(&request, "range"), "bytes=10-14");
    assert_string_equal(header_of(&request, "if-match"), "\"v1\"");
    static const char begin[] =
        "AWS4-HMAC-SHA256 Credential=" KEY "/20150830/eu-west-1/s3/aws4_request, SignedHeaders="
        "host;if-match;range;x-amz-content-sha256;x-amz-date;x-amz-security-token, Signature=";
    assert_memory_equal(header_of(&request, "Authorization"), begin, sizeof(begin) - 1);
    for (size_t i = 0; i < request.n_headers; i++) assert_null(strstr(request.headers[i], SECRET));
    fm_remote_request_free(&request);

    /* Later requests are signed with the new credentials, or not at all. */
    const fm_remote_credentials other = {.access_key = "OTHER", .secret_key = "s"};
    assert_int_equal(fm_remote_set_credentials(remote, &other, &error), FM_OK);
    request = request_of(remote, "s3://bucket/a");
    assert_non_null(strstr(header_of(&request, "Authorization"), "Credential=OTHER/"));
    assert_null(header_of(&request, "x-amz-security-token"));
    fm_remote_request_free(&request);
    assert_int_equal(fm_remote_set_credentials(remote, NULL, &error), FM_OK);
    request = request_of(remote, "s3://bucket/a");
    assert_int_equal(request.n_headers, 0);
    fm_remote_request_free(&request);
    fm_remote_close(&remote);
}

static void each_store_its_own_keys(void **state) {
    (void)state;
    fm_remote *remote = open_at(NULL, NULL, &all_keys);
    fm_remote_request request = request_of(remote, "gs://bucket/a");
    assert_non_null(
        strstr(header_of(&request, "Authorization"), "Credential=GOOG1/20150830/auto/s3/"));
    assert_null(header_of(&request, "x-amz-security-token"));
    fm_remote_request_free(&request);
    request = request_of(remote, "https://bucket.s3.us-east-1.amazonaws.com/a");
    assert_int_equal(request.n_headers, 0);
    fm_remote_request_free(&request);

    fm_remote_credentials with_bearer = all_keys;
    with_bearer.bearer_token = "ya29.token";
    fm_error error;
    assert_int_equal(fm_remote_set_credentials(remote, &with_bearer, &error), FM_OK);
    request = request_of(remote, "gs://bucket/a");
    assert_int_equal(request.n_headers, 1);
    assert_string_equal(header_of(&request, "Authorization"), "Bearer ya29.token");
    fm_remote_request_free(&request);
    request = request_of(remote, "s3://bucket/a");
    assert_non_null(strstr(header_of(&request, "Authorization"), "Credential=" KEY "/"));
    fm_remote_request_free(&request);
    request = request_of(remote, "https://storage.googleapis.com/bucket/a");
    assert_int_equal(request.n_headers, 0);
    fm_remote_request_free(&request);
    fm_remote_close(&remote);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void check_config_refused(const fm_remote_config *config, const char *why) {
    fm_remote *remote;
    fm_error error = {0};
    assert_int_equal(fm_remote_open(&remote, config, &error), FM_ERR_ARGUMENT);
    if (!strstr(error.message, why)) fail_msg("\"%s\" is not in: %s", why, error.message);
    assert_null(strstr(error.message, "password"));
    assert_null(remote);
}

static void refused_settings(void **state) {
    (void)state;
    fm_remote_config config;
    static const char *const endpoints[] = {
        "127.0.0.1:9000", "ftp://host",       "http://",   "http://user:password@host",
        "http://host?a",  "http://host#a",    "http:///a", "http://h ost",
        "http://:80",     "https://h\r\nX: y"};
    for (size_t i = 0; i < sizeof(endpoints) / sizeof(*endpoints); i++) {
        fm_remote_config_init(&config);
        config.endpoint_url = endpoints[i];
        check_config_refused(&config, "endpoint_url");
        fm_remote_config_init(&config);
        config.gs_endpoint_url = endpoints[i];
        check_config_refused(&config, "gs_endpoint_url");
    }
    static const char *const regions[] = {"EU", "eu/west", "eu.evil.com", "-a", "a b"};
    for (size_t i = 0; i < sizeof(regions) / sizeof(*regions); i++) {
        fm_remote_config_init(&config);
        config.region = regions[i];
        check_config_refused(&config, "region");
    }
    fm_remote_config_init(&config);
    config.max_requests = 0;
    check_config_refused(&config, "max_requests");
    fm_remote_config_init(&config);
    config.hedge_percent = 101;
    check_config_refused(&config, "hedge_percent");
    fm_remote_config_init(&config);
    config.struct_bytes--;
    check_config_refused(&config, "fm_remote_config_init");
}

static void refused_credentials(void **state) {
    (void)state;
    static const struct {
        fm_remote_credentials credentials;
        const char *why;
    } cases[] = {
        {{.access_key = "password"}, "s3:// have an access key without"},
        {{.secret_key = "password"}, "s3:// have a secret key without"},
        {{.gs_access_key = "password"}, "gs:// have an access key without"},
        {{.access_key = "password\n", .secret_key = "s"}, "access_key"},
        {{.session_token = "password\r\nX: y"}, "session_token"},
        {{.bearer_token = "pass word"}, "bearer_token"},
        {{.gs_access_key = "password\x80", .gs_secret_key = "s"}, "gs_access_key"},
    };
    fm_remote *remote = open_at(NULL, NULL, &all_keys);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fm_error error = {0};
        assert_int_equal(fm_remote_set_credentials(remote, &cases[i].credentials, &error),
                         FM_ERR_ARGUMENT);
        if (!strstr(error.message, cases[i].why))
            fail_msg("\"%s\" is not in: %s", cases[i].why, error.message);
        assert_null(strstr(error.message, "pass"));
        /* The earlier ones stay. */
        fm_remote_request request = request_of(remote, "s3://bucket/a");
        assert_non_null(strstr(header_of(&request, "Authorization"), KEY));
        fm_remote_request_free(&request);
    }
    fm_remote_close(&remote);
}

static void settings_are_copies(void **state) {
    (void)state;
    char endpoint[] = "http://127.0.0.1:9000", region[] = "eu-west-1", bundle[] = "/a/bundle";
    fm_remote_config config;
    fm_remote_config_init(&config);
    config.endpoint_url = endpoint;
    config.region = region;
    config.ca_bundle = bundle;
    config.max_requests = 7;
    fm_remote *remote = open_with(&config, NULL);
    memset(endpoint, 'x', sizeof(endpoint) - 1);
    memset(region, 'x', sizeof(region) - 1);
    memset(bundle, 'x', sizeof(bundle) - 1);
    const fm_remote_config *const kept = fm_remote_settings(remote);
    assert_string_equal(kept->endpoint_url, "http://127.0.0.1:9000");
    assert_string_equal(kept->region, "eu-west-1");
    assert_string_equal(kept->ca_bundle, "/a/bundle");
    assert_int_equal(kept->max_requests, 7);
    check_url(remote, "s3://bucket/a", "http://127.0.0.1:9000/bucket/a");
    fm_remote_close(&remote);
    fm_remote_close(NULL);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Each key belongs to one token: a request never has a part of two credentials. */
static void *request_often(void *argument) {
    fm_remote *remote = argument;
    for (int i = 0; i < 500; i++) {
        fm_remote_request request;
        const fm_remote_wish wish = {.name = "s3://bucket/a"};
        if (fm_remote_request_make(remote, &wish, &request, NULL)) return argument;
        const char *const token = header_of(&request, "x-amz-security-token");
        char expected[64];
        snprintf(expected, sizeof(expected), "Credential=%s/", token);
        const bool fits = strstr(header_of(&request, "Authorization"), expected) != NULL;
        fm_remote_request_free(&request);
        if (!fits) return argument;
    }
    return NULL;
}

static void credentials_change_meanwhile(void **state) {
    (void)state;
    const fm_remote_credentials keys[] = {
        {.access_key = "A", .secret_key = "a", .session_token = "A"},
        {.access_key = "BBBB", .secret_key = "b", .session_token = "BBBB"}};
    fm_remote *remote = open_at(NULL, NULL, &keys[0]);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, request_often, remote), 0);
    for (int i = 0; i < 500; i++)
        assert_int_equal(fm_remote_set_credentials(remote, &keys[i % 2], NULL), FM_OK);
    for (int i = 0; i < 3; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    fm_remote_close(&remote);
}

static void built_without(void **state) {
    (void)state;
    fm_remote_config config;
    fm_remote_config_init(&config);
    fm_remote *remote;
    fm_error error;
    assert_int_equal(fm_remote_open(&remote, &config, &error), FM_ERR_UNAVAILABLE);
    assert_non_null(strstr(error.message, "libcurl"));
    assert_null(remote);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_paths_are_names),
        cmocka_unit_test(aws_urls),
        cmocka_unit_test(odd_keys),
        cmocka_unit_test(endpoints),
        cmocka_unit_test(urls_stay_as_they_are),
        cmocka_unit_test(listings),
        cmocka_unit_test(refused_names),
        cmocka_unit_test(names_in_messages),
        cmocka_unit_test(ranges_and_versions),
        cmocka_unit_test(signed_requests),
        cmocka_unit_test(each_store_its_own_keys),
        cmocka_unit_test(refused_settings),
        cmocka_unit_test(refused_credentials),
        cmocka_unit_test(settings_are_copies),
        cmocka_unit_test(credentials_change_meanwhile),
    };
    const struct CMUnitTest tests_without[] = {cmocka_unit_test(which_paths_are_names),
                                               cmocka_unit_test(names_in_messages),
                                               cmocka_unit_test(built_without)};
    if (!FM_HAVE_HTTP) return cmocka_run_group_tests(tests_without, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
