#define _GNU_SOURCE
#include "read/remote.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "read/http.h"
#include "read/remote_impl.h"

static bool is_empty(const char *text) { return !text || !*text; }

/* Copies a setting; NULL if it is empty. False: out of memory. */
static bool copy_setting(const char *text, char **out) {
    *out = is_empty(text) ? NULL : fm_mem_strdup(NULL, text);
    return *out || is_empty(text);
}

/* ---- settings -------------------------------------------------------------------------------- */

void fm_remote_config_init(fm_remote_config *config) {
    *config = (fm_remote_config){.struct_bytes = sizeof(*config),
                                 .region = "us-east-1",
                                 .max_requests = 256,
                                 .max_attempts = 10,
                                 .connect_timeout_ms = 10000,
                                 .stall_timeout_ms = 20000,
                                 .give_up_ms = 120000,
                                 .hedge_percent = 2};
}

/* Regions become a part of a host's name. */
static bool is_region(const char *region) {
    const size_t n = strlen(region);
    return n <= 63 && region[0] != '-' &&
           strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static int check_numbers(const fm_remote_config *config, fm_error *error) {
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"max_requests", config->max_requests},
                   {"max_attempts", config->max_attempts},
                   {"connect_timeout_ms", config->connect_timeout_ms},
                   {"stall_timeout_ms", config->stall_timeout_ms},
                   {"give_up_ms", config->give_up_ms}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (numbers[i].value == 0)
            return fm_error_set(error, FM_ERR_ARGUMENT, "remote.%s is 0; it must be 1 or more",
                                numbers[i].name);
    if (config->hedge_percent > 100)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "remote.hedge_percent is %u; it must be from 0 to 100",
                            config->hedge_percent);
    return FM_OK;
}

static int check_config(const fm_remote_config *config, fm_error *error) {
    if (config->struct_bytes != sizeof(*config))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "fm_remote_config.struct_bytes is %zu, not %zu: call "
                            "fm_remote_config_init() first, from the headers of feedmill %s",
                            config->struct_bytes, sizeof(*config), FM_VERSION_STRING);
    if (!is_empty(config->region) && !is_region(config->region))
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the region \"%s\" is not of the form of \"us-east-1\"",
                            config->region);
    return check_numbers(config, error);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

/* The host and the port in an endpoint: letters, digits, and brackets and colons of IPv6. */
static bool is_authority(const char *text, size_t n) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]";
    return n > 0 && text[0] != ':' && strspn(text, allowed) >= n;
}

/* Length of host and port without the port that the scheme has anyway, which libcurl leaves out of
 * the Host header. */
static size_t without_default_port(const char *host, size_t n, bool is_https) {
    const char *const port = is_https ? ":443" : ":80";
    const size_t n_port = strlen(port);
    const bool ends = n > n_port && memcmp(host + n - n_port, port, n_port) == 0;
    return ends ? n - n_port : n;
}

static void lower(char *text) {
    for (; text && *text; text++)
        if (*text >= 'A' && *text <= 'Z') *text = (char)(*text - 'A' + 'a');
}

static int refuse_endpoint(const char *name, const char *why, fm_error *error) {
    /* The value may hold a password. */
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "%s %s; it must be of the form of \"http://127.0.0.1:9000\" or "
                        "\"https://host/path\"",
                        name, why);
}

static int parse_endpoint(const char *name, const char *url, fm_remote_endpoint *out,
                          fm_error *error) {
    if (!url) return FM_OK;
    const bool is_https = strncmp(url, "https://", 8) == 0;
    if (!is_https && strncmp(url, "http://", 7) != 0)
        return refuse_endpoint(name, "does not begin with http:// or https://", error);
    const char *const host = url + (is_https ? 8 : 7);
    if (strpbrk(host, "?#@")) return refuse_endpoint(name, "has a user, query or fragment", error);
    const size_t n_host = strcspn(host, "/");
    if (!is_authority(host, n_host)) return refuse_endpoint(name, "has no valid host", error);
    size_t n_prefix = strlen(host + n_host);
    while (n_prefix > 0 && host[n_host + n_prefix - 1] == '/') n_prefix--;

    fm_text origin = {0}, authority = {0}, prefix = {0};
    fm_text_add_n(&authority, host, without_default_port(host, n_host, is_https));
    lower(authority.chars);
    fm_text_format(&origin, "%s://%s", is_https ? "https" : "http",
                   authority.chars ? authority.chars : "");
    fm_text_add_encoded(&prefix, host + n_host, n_prefix, "/-._~%");
    out->origin = fm_text_take(&origin);
    out->host = fm_text_take(&authority);
    out->prefix = fm_text_take(&prefix);
    if (out->origin && out->host && out->prefix) return FM_OK;
    return fm_error_set(error, FM_ERR_NOMEM, "out of memory for %s", name);
}

static void free_endpoint(fm_remote_endpoint *endpoint) {
    fm_mem_free(endpoint->origin);
    fm_mem_free(endpoint->host);
    fm_mem_free(endpoint->prefix);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Sets remote->config, whose strings are copies. */
static int copy_config(fm_remote *remote, const fm_remote_config *config, fm_error *error) {
    const char *const region = is_empty(config->region) ? "us-east-1" : config->region;
    if (!copy_setting(config->endpoint_url, &remote->endpoint_url) ||
        !copy_setting(config->gs_endpoint_url, &remote->gs_endpoint_url) ||
        !copy_setting(region, &remote->region) ||
        !copy_setting(config->ca_bundle, &remote->ca_bundle))
        return fm_error_set(error, FM_ERR_NOMEM, "out of memory for the settings of a fm_remote");
    remote->config = *config;
    remote->config.endpoint_url = remote->endpoint_url;
    remote->config.gs_endpoint_url = remote->gs_endpoint_url;
    remote->config.region = remote->region;
    remote->config.ca_bundle = remote->ca_bundle;
    return FM_OK;
}

static int set_up(fm_remote *remote, const fm_remote_config *config, fm_error *error) {
    int status = copy_config(remote, config, error);
    if (!status) status = parse_endpoint("endpoint_url", remote->endpoint_url, &remote->s3, error);
    if (!status)
        status = parse_endpoint("gs_endpoint_url", remote->gs_endpoint_url, &remote->gs, error);
    return status;
}

static bool init_locks(fm_remote *remote) {
    if (pthread_mutex_init(&remote->lock, NULL)) return false;
    if (!pthread_mutex_init(&remote->fetch_lock, NULL)) return true;
    pthread_mutex_destroy(&remote->lock);
    return false;
}

int fm_remote_open(fm_remote **out, const fm_remote_config *config, fm_error *error) {
    *out = NULL;
#if !FM_HAVE_HTTP
    return fm_error_set(error, FM_ERR_UNAVAILABLE,
                        "feedmill was built without libcurl, so it can't read s3://, gs://, "
                        "http:// and https:// names; install libcurl and OpenSSL with their "
                        "headers (Debian, Ubuntu: apt-get install libcurl4-openssl-dev "
                        "libssl-dev) and build feedmill again");
#endif
    int status = check_config(config, error);
    if (status) return status;
    fm_remote *remote = fm_mem_zalloc(NULL, 1, sizeof(*remote));
    if (!remote) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for a fm_remote");
    remote->pid = getpid();
    if (!init_locks(remote)) {
        fm_mem_free(remote);
        return fm_error_set(error, FM_ERR_THREAD, "a mutex could not be created");
    }
    status = set_up(remote, config, error);
    if (status) {
        fm_remote_close(&remote);
        return status;
    }
    *out = remote;
    return FM_OK;
}

void fm_remote_close(fm_remote **handle) {
    if (!handle || !*handle) return;
    fm_remote *const remote = *handle;
    *handle = NULL;
    /* In a forked child the fetcher's thread does not exist, and a lock may be held for ever. */
    if (remote->pid != getpid()) return;
    if (remote->close_fetcher) remote->close_fetcher(&remote->fetcher);
    fm_remote_keys_fini(&remote->keys);
    pthread_mutex_destroy(&remote->lock);
    pthread_mutex_destroy(&remote->fetch_lock);
    free_endpoint(&remote->s3);
    free_endpoint(&remote->gs);
    fm_mem_free(remote->endpoint_url);
    fm_mem_free(remote->gs_endpoint_url);
    fm_mem_free(remote->region);
    fm_mem_free(remote->ca_bundle);
    fm_mem_free(remote);
}

int fm_remote_check_process(const fm_remote *remote, fm_error *error) {
    if (remote->pid == getpid()) return FM_OK;
    return fm_error_set(error, FM_ERR_FORKED, "the fm_remote belongs to another process");
}

const fm_remote_config *fm_remote_settings(const fm_remote *remote) { return &remote->config; }

const char *fm_libcurl_version(void) {
#if FM_HAVE_HTTP
    return fm_http_version();
#else
    return "";
#endif
}

/* ---- credentials ----------------------------------------------------------------------------- */

static void free_secret(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    fm_mem_free(secret);
}

void fm_remote_keys_fini(fm_remote_keys *keys) {
    free_secret(keys->access_key);
    free_secret(keys->secret_key);
    free_secret(keys->session_token);
    free_secret(keys->bearer_token);
    free_secret(keys->gs_access_key);
    free_secret(keys->gs_secret_key);
    explicit_bzero(keys, sizeof(*keys));
}

static int copy_keys(const fm_remote_credentials *from, fm_remote_keys *out, fm_error *error) {
    *out = (fm_remote_keys){0};
    if (copy_setting(from->access_key, &out->access_key) &&
        copy_setting(from->secret_key, &out->secret_key) &&
        copy_setting(from->session_token, &out->session_token) &&
        copy_setting(from->bearer_token, &out->bearer_token) &&
        copy_setting(from->gs_access_key, &out->gs_access_key) &&
        copy_setting(from->gs_secret_key, &out->gs_secret_key))
        return FM_OK;
    fm_remote_keys_fini(out);
    return fm_error_set(error, FM_ERR_NOMEM, "out of memory for credentials");
}

/* Whether a text can stand in a header: visible ASCII. */
static bool is_visible(const char *text) {
    for (; text && *text; text++)
        if (*text <= ' ' || *text > '~') return false;
    return true;
}

static int check_pair(const char *name, const char *key, const char *secret, fm_error *error) {
    if (is_empty(key) == is_empty(secret)) return FM_OK;
    return fm_error_set(error, FM_ERR_ARGUMENT, "the credentials for %s have %s", name,
                        is_empty(key) ? "a secret key without an access key"
                                      : "an access key without a secret key");
}

static int check_credentials(const fm_remote_credentials *credentials, fm_error *error) {
    const struct {
        const char *name, *value;
    } sent[] = {{"access_key", credentials->access_key},
                {"session_token", credentials->session_token},
                {"bearer_token", credentials->bearer_token},
                {"gs_access_key", credentials->gs_access_key}};
    for (size_t i = 0; i < sizeof(sent) / sizeof(*sent); i++)
        if (!is_visible(sent[i].value))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "the credentials' %s has a space, a line break or another "
                                "character that no HTTP header may have",
                                sent[i].name);
    const int status = check_pair("s3://", credentials->access_key, credentials->secret_key, error);
    if (status) return status;
    return check_pair("gs://", credentials->gs_access_key, credentials->gs_secret_key, error);
}

int fm_remote_set_credentials(fm_remote *remote, const fm_remote_credentials *credentials,
                              fm_error *error) {
    int status = fm_remote_check_process(remote, error);
    if (status) return status;
    const fm_remote_credentials none = {0};
    const fm_remote_credentials *const given = credentials ? credentials : &none;
    fm_remote_keys keys;
    status = check_credentials(given, error);
    if (!status) status = copy_keys(given, &keys, error);
    if (status) return status;
    pthread_mutex_lock(&remote->lock);
    fm_remote_keys before = remote->keys;
    remote->keys = keys;
    pthread_mutex_unlock(&remote->lock);
    fm_remote_keys_fini(&before);
    return FM_OK;
}

int fm_remote_keys_get(fm_remote *remote, fm_remote_keys *out, fm_error *error) {
    pthread_mutex_lock(&remote->lock);
    const fm_remote_credentials kept = {.access_key = remote->keys.access_key,
                                        .secret_key = remote->keys.secret_key,
                                        .session_token = remote->keys.session_token,
                                        .bearer_token = remote->keys.bearer_token,
                                        .gs_access_key = remote->keys.gs_access_key,
                                        .gs_secret_key = remote->keys.gs_secret_key};
    const int status = copy_keys(&kept, out, error);
    if (!status) {
        out->signing = remote->keys.signing;
        out->gs_signing = remote->keys.gs_signing;
    }
    pthread_mutex_unlock(&remote->lock);
    return status;
}

static bool is_same(const char *a, const char *b) { return a && b && !strcmp(a, b); }

void fm_remote_keys_keep(fm_remote *remote, const fm_remote_keys *keys) {
    pthread_mutex_lock(&remote->lock);
    if (is_same(remote->keys.secret_key, keys->secret_key)) remote->keys.signing = keys->signing;
    if (is_same(remote->keys.gs_secret_key, keys->gs_secret_key))
        remote->keys.gs_signing = keys->gs_signing;
    pthread_mutex_unlock(&remote->lock);
}
