#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "read/reader_impl.h"
#include "read/remote_impl.h"
#include "read/sigv4.h"

#define AMZ_DATE_BYTES 32
#define GS_ORIGIN "https://storage.googleapis.com"
#define S3_KEPT "/-._~" /* not encoded in a key's path */
#define MAX_BUCKET_CHARS 255
#define LISTING "list-type=2" /* begins the parameters of ListObjectsV2 */

typedef enum scheme_kind { NO_SCHEME, S3, GS, HTTP, HTTPS } scheme_kind;

static const struct {
    scheme_kind scheme;
    const char *prefix;
} schemes[] = {{S3, "s3://"}, {GS, "gs://"}, {HTTP, "http://"}, {HTTPS, "https://"}};

/* The scheme of a name, and in *rest what follows it. */
static scheme_kind scheme_of(const char *name, const char **rest) {
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
        const size_t n = strlen(schemes[i].prefix);
        if (strncasecmp(name, schemes[i].prefix, n) != 0) continue;
        *rest = name + n;
        return schemes[i].scheme;
    }
    return NO_SCHEME;
}

bool fm_remote_is_name(const char *path) {
    const char *rest;
    return scheme_of(path, &rest) != NO_SCHEME;
}

/* Appends one link of a chain of names to `out`, without user, query and fragment. */
static size_t show_link(const char *link, size_t n_link, char *out) {
    const char *const scheme_end = memmem(link, n_link, "://", 3);
    const size_t n_scheme = scheme_end ? (size_t)(scheme_end - link) + 3 : 0;
    const char *rest = link + n_scheme;
    size_t n_rest = n_link - n_scheme;
    for (size_t i = 0; scheme_end && i < n_rest; i++)
        if (rest[i] == '?' || rest[i] == '#') n_rest = i;
    const char *const slash = memchr(rest, '/', n_rest);
    const size_t n_host = scheme_end ? (slash ? (size_t)(slash - rest) : n_rest) : 0;
    const char *const at = n_host ? memrchr(rest, '@', n_host) : NULL;
    if (at) {
        n_rest -= (size_t)(at + 1 - rest);
        rest = at + 1;
    }
    memcpy(out, link, n_scheme);
    memcpy(out + n_scheme, rest, n_rest);
    return n_scheme + n_rest;
}

/* A name for a custom reader: a chain of names between "::", or a single one. */
static void show_chain(const char *name, char *out, size_t out_bytes) {
    char shown[FM_READER_PATH_BYTES];
    if (strlen(name) >= sizeof(shown)) name += strlen(name) - sizeof(shown) + 1;
    size_t n = 0;
    for (const char *end; (end = strstr(name, "::")); name = end + 2) {
        n += show_link(name, (size_t)(end - name), shown + n);
        memcpy(shown + n, "::", 2);
        n += 2;
    }
    n += show_link(name, strlen(name), shown + n);
    shown[n] = 0;
    snprintf(out, out_bytes, "%s", n < out_bytes ? shown : shown + n - (out_bytes - 1));
}

void fm_remote_name_shown(const char *name, char *out, size_t out_bytes) {
    if (!fm_remote_is_name(name) && fm_custom_is_name(name)) {
        show_chain(name, out, out_bytes);
        return;
    }
    const char *rest = name;
    const scheme_kind scheme = scheme_of(name, &rest);
    const bool is_url = scheme == HTTP || scheme == HTTPS, is_name = scheme != NO_SCHEME;
    const char *const at = is_name ? memrchr(rest, '@', strcspn(rest, is_url ? "/?#" : "/")) : NULL;
    const char *const host = at ? at + 1 : is_name ? rest : name;
    const size_t n_scheme = is_name ? (size_t)(rest - name) : 0;
    const size_t n_host = is_url ? strcspn(host, "?#") : strlen(host);
    const size_t n_shown = n_host < out_bytes ? n_host : out_bytes - 1;
    if (n_scheme + n_host < out_bytes)
        snprintf(out, out_bytes, "%.*s%.*s", (int)n_scheme, name, (int)n_host, host);
    else
        snprintf(out, out_bytes, "%.*s", (int)n_shown, host + n_host - n_shown);
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Appends the header "name: value". False: out of memory. */
static bool add_header(fm_remote_request *out, const char *name, const char *value) {
    fm_text line = {0};
    fm_text_add(&line, name);
    fm_text_add(&line, ": ");
    fm_text_add(&line, value);
    char *const taken = fm_text_take(&line);
    if (!taken) return false;
    out->headers[out->n_headers++] = taken;
    return true;
}

/* Texts of headers; those that a request does not have are empty. */
typedef struct header_values {
    char range[64];
    char date[AMZ_DATE_BYTES];
    const char *etag, *unless_etag;
} header_values;

static int fill_values(const fm_remote_wish *wish, header_values *out, fm_error *error) {
    *out = (header_values){.etag = "", .unless_etag = ""};
    if (wish->range_bytes > 0) {
        if (wish->offset_bytes > UINT64_MAX - wish->range_bytes)
            return fm_error_set(error, FM_ERR_ARGUMENT, "the range from %" PRIu64 " is too long",
                                wish->offset_bytes);
        snprintf(out->range, sizeof(out->range), "bytes=%" PRIu64 "-%" PRIu64, wish->offset_bytes,
                 wish->offset_bytes + wish->range_bytes - 1);
    } else if (wish->offset_bytes > 0) {
        snprintf(out->range, sizeof(out->range), "bytes=%" PRIu64 "-", wish->offset_bytes);
    }
    /* If-Match compares strongly: a weak ETag never matches. */
    if (wish->etag && strncmp(wish->etag, "W/", 2) != 0) out->etag = wish->etag;
    if (wish->unless_etag && !*out->etag) out->unless_etag = wish->unless_etag;
    if (strpbrk(out->etag, "\r\n") || strpbrk(out->unless_etag, "\r\n"))
        return fm_error_set(error, FM_ERR_ARGUMENT, "the ETag has a line break");
    const time_t now = (time_t)(fm_clock_of(CLOCK_REALTIME) / 1000000000u);
    struct tm utc;
    if (wish->date)
        snprintf(out->date, sizeof(out->date), "%s", wish->date);
    else if (!gmtime_r(&now, &utc) ||
             !strftime(out->date, sizeof(out->date), "%Y%m%dT%H%M%SZ", &utc))
        return fm_error_set(error, FM_ERR_UNAVAILABLE, "the system's date can't be read");
    return FM_OK;
}

static int no_memory(fm_error *error) {
    return fm_error_set(error, FM_ERR_NOMEM, "out of memory for a request");
}

static int add_plain_headers(fm_remote_request *out, const header_values *values, fm_error *error) {
    const bool added =
        (!*values->range || add_header(out, "Range", values->range)) &&
        (!*values->etag || add_header(out, "If-Match", values->etag)) &&
        (!*values->unless_etag || add_header(out, "If-None-Match", values->unless_etag));
    return added ? FM_OK : no_memory(error);
}

/* Where a signed request goes, and with which keys. */
typedef struct signing {
    const char *host, *path, *query, *region;
    const char *access_key, *secret_key, *session_token;
    fm_sigv4_key *key;
} signing;

/*
 * Adds the headers of a signed request. Range, If-Match and If-None-Match are signed as well,
 * though S3 asks for host and x-amz-* only: so nobody between can change over http:// which bytes
 * are asked for.
 */
static int add_signed_headers(fm_remote_request *out, const signing *by,
                              const header_values *values, fm_error *error) {
    fm_sigv4_header headers[FM_REMOTE_MAX_HEADERS] = {{"host", by->host},
                                                      {"x-amz-content-sha256", FM_SIGV4_NO_BODY},
                                                      {"x-amz-date", values->date}};
    size_t n = 3;
    if (by->session_token)
        headers[n++] = (fm_sigv4_header){"x-amz-security-token", by->session_token};
    if (*values->range) headers[n++] = (fm_sigv4_header){"range", values->range};
    if (*values->etag) headers[n++] = (fm_sigv4_header){"if-match", values->etag};
    if (*values->unless_etag)
        headers[n++] = (fm_sigv4_header){"if-none-match", values->unless_etag};
    const fm_sigv4_request request = {.method = "GET",
                                      .path = by->path,
                                      .query = by->query,
                                      .date = values->date,
                                      .region = by->region,
                                      .service = "s3",
                                      .body_hash = FM_SIGV4_NO_BODY,
                                      .headers = headers,
                                      .n_headers = n};
    char *authorization;
    const int status =
        fm_sigv4_sign(&request, by->access_key, by->secret_key, by->key, &authorization, error);
    if (status) return status;
    /* libcurl sends the Host header itself. */
    bool added = add_header(out, "Authorization", authorization);
    fm_mem_free(authorization);
    for (size_t i = 1; added && i < n; i++)
        added = add_header(out, headers[i].name, headers[i].value);
    return added ? FM_OK : no_memory(error);
}

/* ---- s3:// and gs:// ------------------------------------------------------------------------- */

typedef struct object_name {
    const char *bucket, *key;
    const char *query; /* of a listing, whose key is empty; NULL: an object */
    size_t bucket_chars;
} object_name;

static int parse_object(const char *name, const char *rest, object_name *out, fm_error *error) {
    /* No bucket's name has a "?". */
    const size_t n = strcspn(rest, "/?");
    *out = (object_name){.bucket = rest, .key = rest + n + (rest[n] == '/'), .bucket_chars = n};
    if (rest[n] == '?' && strncmp(rest + n + 1, LISTING, sizeof(LISTING) - 1) == 0) {
        out->query = rest + n + 1;
        out->key = "";
    }
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    const bool is_bucket = n <= MAX_BUCKET_CHARS && strspn(rest, allowed) >= n && rest[0] != '.' &&
                           (rest[n] != '?' || out->query);
    if (n > 0 && is_bucket && (*out->key || out->query)) return FM_OK;
    char shown[256];
    fm_remote_name_shown(name, shown, sizeof(shown));
    if (n > 0 && !is_bucket)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "\"%s\" does not begin with the name of a bucket: these have letters, "
                            "digits, dots, hyphens and underscores only (an access point is named "
                            "by its alias)",
                            shown);
    return fm_error_set(error, FM_ERR_ARGUMENT,
                        "\"%s\" has no %s; a name has the form %.5sBUCKET/KEY", shown,
                        n == 0 ? "bucket" : "key", name);
}

/* Whether a bucket's name can begin a host's name, under the certificate of the store. */
static bool is_host_label(const object_name *object) {
    const size_t n = object->bucket_chars;
    return n >= 3 && n <= 63 && object->bucket[0] != '-' && object->bucket[n - 1] != '-' &&
           strspn(object->bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") >= n;
}

/* The parts of an object's URL. */
typedef struct object_address {
    fm_text origin, host, path;
    const char *query; /* the object_name's */
} object_address;

static void free_address(object_address *address) {
    fm_text_fini(&address->origin);
    fm_text_fini(&address->host);
    fm_text_fini(&address->path);
}

static void add_aws_host(object_address *out, const object_name *object, const char *region,
                         bool in_host) {
    if (in_host) fm_text_format(&out->host, "%.*s.", (int)object->bucket_chars, object->bucket);
    const bool is_china = strncmp(region, "cn-", 3) == 0;
    fm_text_format(&out->host, "s3.%s.amazonaws.com%s", region, is_china ? ".cn" : "");
    fm_text_format(&out->origin, "https://%s", out->host.chars ? out->host.chars : "");
}

/* Fills *out, which starts zeroed. False: out of memory. */
static bool fill_address(const fm_remote *remote, scheme_kind scheme, const object_name *object,
                         object_address *out) {
    const fm_remote_endpoint *const endpoint = scheme == S3 ? &remote->s3 : &remote->gs;
    bool in_host = false;
    out->query = object->query;
    if (endpoint->origin) {
        fm_text_add(&out->origin, endpoint->origin);
        fm_text_add(&out->host, endpoint->host);
        fm_text_add(&out->path, endpoint->prefix);
    } else if (scheme == GS) {
        fm_text_add(&out->origin, GS_ORIGIN);
        fm_text_add(&out->host, strrchr(GS_ORIGIN, '/') + 1);
    } else {
        in_host = is_host_label(object);
        add_aws_host(out, object, remote->region, in_host);
    }
    if (!in_host) fm_text_format(&out->path, "/%.*s", (int)object->bucket_chars, object->bucket);
    fm_text_add(&out->path, "/");
    fm_text_add_encoded(&out->path, object->key, strlen(object->key), S3_KEPT);
    return !out->origin.failed && !out->host.failed && !out->path.failed;
}

/* Adds the headers of a store's request, with credentials if there are any. */
static int add_store_headers(scheme_kind scheme, fm_remote *remote, fm_remote_keys *keys,
                             const object_address *address, const header_values *values,
                             fm_remote_request *out, fm_error *error) {
    if (scheme == GS && keys->bearer_token) {
        fm_text bearer = {0};
        fm_text_format(&bearer, "Bearer %s", keys->bearer_token);
        const bool added = !bearer.failed && add_header(out, "Authorization", bearer.chars);
        fm_text_fini(&bearer);
        return added ? add_plain_headers(out, values, error) : no_memory(error);
    }
    signing by = {
        .host = address->host.chars, .path = address->path.chars, .query = address->query};
    if (scheme == GS) {
        by.region = "auto";
        by.access_key = keys->gs_access_key;
        by.secret_key = keys->gs_secret_key;
        by.key = &keys->gs_signing;
    } else {
        by.region = remote->region;
        by.access_key = keys->access_key;
        by.secret_key = keys->secret_key;
        by.session_token = keys->session_token;
        by.key = &keys->signing;
    }
    if (!by.access_key) return add_plain_headers(out, values, error);
    const bool is_new = strncmp(by.key->day, values->date, strlen("20150830")) != 0;
    const int status = add_signed_headers(out, &by, values, error);
    if (!status && is_new) fm_remote_keys_keep(remote, keys);
    return status;
}

static int make_store_request(fm_remote *remote, scheme_kind scheme, const object_name *object,
                              const header_values *values, fm_remote_request *out,
                              fm_error *error) {
    object_address address = {0};
    fm_remote_keys keys = {0};
    int status = fill_address(remote, scheme, object, &address) ? FM_OK : no_memory(error);
    if (!status) status = fm_remote_keys_get(remote, &keys, error);
    if (!status) status = add_store_headers(scheme, remote, &keys, &address, values, out, error);
    if (!status) {
        fm_text url = {0};
        fm_text_format(&url, "%s%s%s%s", address.origin.chars, address.path.chars,
                       address.query ? "?" : "", address.query ? address.query : "");
        out->url = fm_text_take(&url);
        if (!out->url) status = no_memory(error);
    }
    fm_remote_keys_fini(&keys);
    free_address(&address);
    return status;
}

/* ---- http:// and https:// -------------------------------------------------------------------- */

static int check_url(const char *name, const char *rest, fm_error *error) {
    char shown[256];
    fm_remote_name_shown(name, shown, sizeof(shown));
    for (const char *c = name; *c; c++)
        if ((uint8_t)*c < ' ' || *c == 0x7f)
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "the URL \"%s\" has a control character; in URLs these are written "
                                "as %%XX",
                                shown);
    const size_t n_authority = strcspn(rest, "/?#");
    const char *const at = memrchr(rest, '@', n_authority);
    const size_t n_host = at ? n_authority - (size_t)(at + 1 - rest) : n_authority;
    const char *const host = at ? at + 1 : rest;
    if (n_host == 0 || host[0] == ':')
        return fm_error_set(error, FM_ERR_ARGUMENT, "the URL \"%s\" has no host", shown);
    for (size_t i = 0; i < n_authority; i++)
        if (rest[i] <= ' ' || rest[i] > '~' || strchr("\"<>\\^`{|}", rest[i]))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "the host of the URL \"%s\" has a character that no host has; "
                                "international names are written in ASCII (xn--...)",
                                shown);
    return FM_OK;
}

/* The URL as it is given: only the fragment is dropped, and what no URL may have is encoded. */
static int make_url(const char *name, const char *rest, fm_remote_request *out, fm_error *error) {
    const int status = check_url(name, rest, error);
    if (status) return status;
    fm_text url = {0};
    fm_text_add_encoded(&url, name, strcspn(name, "#"), "!$%&'()*+,-./:;=?@[]_~|\\^`{}\"<>");
    out->url = fm_text_take(&url);
    return out->url ? FM_OK : no_memory(error);
}

/* ---- all ------------------------------------------------------------------------------------- */

int fm_remote_request_make(fm_remote *remote, const fm_remote_wish *wish, fm_remote_request *out,
                           fm_error *error) {
    *out = (fm_remote_request){0};
    const char *rest = NULL;
    const scheme_kind scheme = scheme_of(wish->name, &rest);
    if (scheme == NO_SCHEME)
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the name does not begin with s3://, gs://, http:// or https://");
    header_values values;
    object_name object;
    int status = fill_values(wish, &values, error);
    if (!status && (scheme == S3 || scheme == GS)) {
        status = parse_object(wish->name, rest, &object, error);
        if (!status) status = make_store_request(remote, scheme, &object, &values, out, error);
    } else if (!status) {
        status = make_url(wish->name, rest, out, error);
        if (!status) status = add_plain_headers(out, &values, error);
    }
    if (status) fm_remote_request_free(out);
    return status;
}

void fm_remote_request_free(fm_remote_request *request) {
    fm_mem_free(request->url);
    for (size_t i = 0; i < request->n_headers; i++) {
        /* A bearer or session token is a secret. */
        explicit_bzero(request->headers[i], strlen(request->headers[i]));
        fm_mem_free(request->headers[i]);
    }
    *request = (fm_remote_request){0};
}
