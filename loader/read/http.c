#define _GNU_SOURCE
#include "read/http.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define RECEIVE_BYTES (128L << 10)

struct fm_http {
    CURLM *multi;
    char *ca_bundle;
    fm_http_settings settings;
    bool is_multiplexed;
};

/* ---- open and close -------------------------------------------------------------------------- */

static CURLcode curl_status;
static void init_curl(void) { curl_status = curl_global_init(CURL_GLOBAL_DEFAULT); }

/* Where distributions keep the certificates of authorities, as Go's crypto/x509 looks for them. For
 * a libcurl that was built without such a place; NULL leaves it to the TLS library. */
static const char *default_ca_bundle(void) {
#if LIBCURL_VERSION_NUM >= 0x074600
    static const char *const paths[] = {
        "/etc/ssl/certs/ca-certificates.crt",                /* Debian, Arch */
        "/etc/pki/tls/certs/ca-bundle.crt",                  /* Fedora, RHEL */
        "/etc/ssl/ca-bundle.pem",                            /* openSUSE */
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* RHEL 10 */
        "/etc/ssl/cert.pem",                                 /* Alpine */
    };
    const curl_version_info_data *const info = curl_version_info(CURLVERSION_NOW);
    const bool knows_a_place = info->age < CURLVERSION_SEVENTH || info->cainfo || info->capath;
    if (knows_a_place || getenv("SSL_CERT_DIR")) return NULL;
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
        if (!access(paths[i], R_OK)) return paths[i];
#endif
    return NULL;
}

int fm_http_open(fm_http **out, const fm_http_settings *settings, fm_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
    *out = NULL;
    if (curl_status)
        return fm_error_set(error, FM_ERR_UNAVAILABLE, "libcurl can't be used: %s",
                            curl_easy_strerror(curl_status));
    fm_http *const http = fm_mem_zalloc(NULL, 1, sizeof(*http));
    if (!http) return fm_error_set(error, FM_ERR_NOMEM, "no memory for HTTP");
    http->settings = *settings;
    http->multi = curl_multi_init();
    const char *const ca_bundle = settings->ca_bundle ? settings->ca_bundle : default_ca_bundle();
    if (ca_bundle) http->settings.ca_bundle = http->ca_bundle = strdup(ca_bundle);
    if (!http->multi || (ca_bundle && !http->ca_bundle)) {
        fm_http_close(http);
        return fm_error_set(error, FM_ERR_NOMEM, "no memory for libcurl");
    }
    curl_multi_setopt(http->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)settings->n_connections);
    *out = http;
    return FM_OK;
}

void fm_http_close(fm_http *http) {
    curl_multi_cleanup(http->multi);
    free(http->ca_bundle);
    fm_mem_free(http);
}

const char *fm_http_version(void) { return curl_version_info(CURLVERSION_NOW)->version; }

/* ---- a request ------------------------------------------------------------------------------- */

/* libcurl tells where a redirect leads only if its body came to its end. */
static void keep_location(fm_http_request *request, const char *line, size_t n_bytes) {
    static const char name[] = "location:";
    const size_t n_name = sizeof(name) - 1;
    const bool is_status = n_bytes > 5 && !strncasecmp(line, "http/", 5);
    const bool is_location = n_bytes > n_name && !strncasecmp(line, name, n_name);
    if (!is_status && !is_location) return;
    free(request->location);
    request->location = NULL;
    if (is_status) return;
    const char *at = line + n_name, *end = line + n_bytes;
    while (at < end && isspace((unsigned char)*at)) at++;
    while (end > at && isspace((unsigned char)end[-1])) end--;
    if (end > at) request->location = strndup(at, (size_t)(end - at));
}

static size_t on_header(char *line, size_t size, size_t n, void *user) {
    fm_http_request *const request = user;
    keep_location(request, line, size * n);
    request->http->settings.calls.on_header(request, line, size * n);
    return size * n;
}

/* Any other result than the number of bytes ends the request. */
static size_t on_body(char *bytes, size_t size, size_t n, void *user) {
    fm_http_request *const request = user;
    return request->http->settings.calls.on_body(request, bytes, size * n) ? size * n : 0;
}

static bool set_headers(fm_http_request *request, const char *const *headers, size_t n_headers) {
    curl_slist_free_all(request->headers);
    request->headers = NULL;
    for (size_t i = 0; i < n_headers; i++) {
        struct curl_slist *const longer = curl_slist_append(request->headers, headers[i]);
        if (!longer) return false;
        request->headers = longer;
    }
    return true;
}

static void set_protocols(CURL *easy) {
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    /* A look-up that hangs is left to its thread, rather than waited for. */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
}

/* Redirects are not followed: libcurl would send the store's session token on to another host. */
static void set_options(const fm_http *http, fm_http_request *request, const char *url,
                        bool is_fresh) {
    CURL *const easy = request->easy;
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, request);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, request);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, request->curl_error);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L); /* keys may contain "..", and are signed */
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, RECEIVE_BYTES);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)http->settings.connect_timeout_ms);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "feedmill/" FM_VERSION_STRING);
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, (long)is_fresh);
    if (http->ca_bundle) curl_easy_setopt(easy, CURLOPT_CAINFO, http->ca_bundle);
    const bool is_secure = !strncasecmp(url, "https:", 6);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION,
                     is_secure ? (long)CURL_HTTP_VERSION_2TLS : (long)CURL_HTTP_VERSION_1_1);
    /* Waits for the first connection to say whether it serves several requests at once. */
    curl_easy_setopt(easy, CURLOPT_PIPEWAIT, (long)is_secure);
    set_protocols(easy);
}

bool fm_http_begin(fm_http *http, fm_http_request *request, const char *url,
                   const char *const *headers, size_t n_headers, bool is_fresh) {
    if (!request->easy) request->easy = curl_easy_init();
    if (!request->curl_error) request->curl_error = fm_mem_alloc(NULL, CURL_ERROR_SIZE, 1);
    if (!request->easy || !request->curl_error || !set_headers(request, headers, n_headers))
        return false;
    request->http = http;
    *request->curl_error = 0;
    free(request->location);
    request->location = NULL;
    set_options(http, request, url, is_fresh);
    request->is_running = !curl_multi_add_handle(http->multi, request->easy);
    return request->is_running;
}

void fm_http_end(fm_http_request *request) {
    if (request->is_running) curl_multi_remove_handle(request->http->multi, request->easy);
    request->is_running = false;
}

void fm_http_request_free(fm_http_request *request) {
    if (request->easy) curl_easy_cleanup(request->easy);
    curl_slist_free_all(request->headers);
    fm_mem_free(request->curl_error);
    free(request->location);
    *request = (fm_http_request){.user = request->user};
}

/* ---- the loop -------------------------------------------------------------------------------- */

void fm_http_run(fm_http *http) {
    int n_running;
    curl_multi_perform(http->multi, &n_running);
}

fm_http_request *fm_http_next(fm_http *http, int *code) {
    int n_left;
    for (CURLMsg *message; (message = curl_multi_info_read(http->multi, &n_left));) {
        if (message->msg != CURLMSG_DONE) continue;
        fm_http_request *request = NULL;
        *code = (int)message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)(void *)&request);
        long version = 0;
        curl_easy_getinfo(message->easy_handle, CURLINFO_HTTP_VERSION, &version);
        if (version) http->is_multiplexed = version >= CURL_HTTP_VERSION_2_0;
        return request;
    }
    return NULL;
}

void fm_http_wait(fm_http *http, int timeout_ms) {
    curl_multi_poll(http->multi, NULL, 0, timeout_ms, NULL);
}

bool fm_http_is_multiplexed(const fm_http *http) { return http->is_multiplexed; }

void fm_http_wake(fm_http *http) { curl_multi_wakeup(http->multi); }

/* ---- how a request ended --------------------------------------------------------------------- */

bool fm_http_is_connected(const fm_http_request *request) {
    double seconds = 0; /* until the request was about to be sent */
    curl_easy_getinfo(request->easy, CURLINFO_PRETRANSFER_TIME, &seconds);
    return seconds > 0;
}

/* "host:port" of the request. */
static void describe_server(const fm_http_request *request, char *out, size_t out_bytes) {
    const char *address = NULL;
    char *host = NULL, *port = NULL;
    CURLU *const url = curl_url();
    snprintf(out, out_bytes, "the server");
    if (url && !curl_easy_getinfo(request->easy, CURLINFO_EFFECTIVE_URL, &address) && address &&
        !curl_url_set(url, CURLUPART_URL, address, 0) &&
        !curl_url_get(url, CURLUPART_HOST, &host, 0) &&
        !curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT))
        snprintf(out, out_bytes, "%s:%s", host, port);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(url);
}

static void describe_connect(const fm_http_request *request, const char *server, char *why,
                             size_t why_bytes) {
    long os_errno = 0;
    curl_easy_getinfo(request->easy, CURLINFO_OS_ERRNO, &os_errno);
    if (os_errno == ECONNREFUSED)
        snprintf(why, why_bytes, "connection refused by %s", server);
    else
        snprintf(why, why_bytes, "can't connect to %s%s%s", server, os_errno ? ": " : "",
                 os_errno ? strerror((int)os_errno) : "");
}

fm_http_result fm_http_judge(const fm_http_request *request, int code, bool is_stalled, char *why,
                             size_t why_bytes) {
    char server[160];
    describe_server(request, server, sizeof(server));
    if (is_stalled) code = CURLE_OPERATION_TIMEDOUT;
    switch (code) {
    case CURLE_OK:
        return FM_HTTP_OK;
    case CURLE_OUT_OF_MEMORY:
        return FM_HTTP_NO_MEMORY;
    case CURLE_COULDNT_RESOLVE_HOST:
        snprintf(why, why_bytes, "the address of %s can't be found", server);
        return FM_HTTP_NO_SERVER;
    case CURLE_COULDNT_RESOLVE_PROXY:
        snprintf(why, why_bytes, "the address of the proxy can't be found");
        return FM_HTTP_NO_SERVER;
    case CURLE_COULDNT_CONNECT:
        describe_connect(request, server, why, why_bytes);
        return FM_HTTP_NO_SERVER;
    case CURLE_OPERATION_TIMEDOUT:
        if (fm_http_is_connected(request)) {
            snprintf(why, why_bytes, "%s has stopped sending, or sends too slowly", server);
            return FM_HTTP_TIMED_OUT;
        }
        snprintf(why, why_bytes, "no connection to %s in time", server);
        return FM_HTTP_NO_SERVER;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
        /* libcurl's text names the certificate's flaw, or the file, and no URL. */
        snprintf(why, why_bytes, "the certificate of %s: %.100s", server,
                 *request->curl_error ? request->curl_error : curl_easy_strerror((CURLcode)code));
        return FM_HTTP_REFUSED;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        snprintf(why, why_bytes, "this is not the URL of an object");
        return FM_HTTP_REFUSED;
    default:
        snprintf(why, why_bytes, "%s: %s", server, curl_easy_strerror((CURLcode)code));
        return FM_HTTP_FAILED;
    }
}

static bool is_same_origin(const char *from, const char *to) {
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *const a = curl_url(), *const b = curl_url();
    bool same = a && b && from && !curl_url_set(a, CURLUPART_URL, from, 0) &&
                !curl_url_set(b, CURLUPART_URL, to, 0);
    for (size_t i = 0; same && i < sizeof(parts) / sizeof(*parts); i++) {
        char *left = NULL, *right = NULL;
        same = !curl_url_get(a, parts[i], &left, CURLU_DEFAULT_PORT) &&
               !curl_url_get(b, parts[i], &right, CURLU_DEFAULT_PORT) && !strcasecmp(left, right);
        curl_free(left);
        curl_free(right);
    }
    curl_url_cleanup(a);
    curl_url_cleanup(b);
    return same;
}

/* Where `location`, which may be relative, leads from a URL; for curl_free(). NULL: nowhere. */
static char *resolve(const char *from, const char *location) {
    char *to = NULL;
    CURLU *const url = curl_url();
    if (url && !curl_url_set(url, CURLUPART_URL, from, CURLU_PATH_AS_IS) &&
        !curl_url_set(url, CURLUPART_URL, location, CURLU_PATH_AS_IS | CURLU_URLENCODE))
        curl_url_get(url, CURLUPART_URL, &to, 0);
    curl_url_cleanup(url);
    return to;
}

char *fm_http_redirect(const fm_http_request *request, bool *is_elsewhere) {
    const char *from = NULL, *to = NULL;
    char *resolved = NULL, *out = NULL;
    curl_easy_getinfo(request->easy, CURLINFO_EFFECTIVE_URL, &from);
    curl_easy_getinfo(request->easy, CURLINFO_REDIRECT_URL, &to);
    if (!to && from && request->location) to = resolved = resolve(from, request->location);
    if (to && (!strncasecmp(to, "http://", 7) || !strncasecmp(to, "https://", 8))) {
        *is_elsewhere = !is_same_origin(from, to);
        out = strdup(to);
    }
    curl_free(resolved);
    return out;
}

static uint64_t info_ns(CURL *easy, CURLINFO info) {
    double seconds = 0;
    curl_easy_getinfo(easy, info, &seconds);
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

fm_http_times fm_http_times_of(const fm_http_request *request) {
    const uint64_t connect_ns = info_ns(request->easy, CURLINFO_PRETRANSFER_TIME);
    const uint64_t first_ns = info_ns(request->easy, CURLINFO_STARTTRANSFER_TIME);
    const uint64_t total_ns = info_ns(request->easy, CURLINFO_TOTAL_TIME);
    return (fm_http_times){
        .connect_ns = connect_ns,
        .first_byte_ns = first_ns > connect_ns ? first_ns - connect_ns : 0,
        .transfer_ns = first_ns && total_ns > first_ns ? total_ns - first_ns : 0,
    };
}
