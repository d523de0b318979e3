#define _GNU_SOURCE
#include "read/sigv4.h"

#include <string.h>

#include "base/digest.h"
#include "base/mem.h"
#include "base/text.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define MAX_HEADERS 32
#define MAX_PARAMETERS 64
#define DATE_CHARS 8
#define TIME_CHARS 16

/* ---- the canonical request ------------------------------------------------------------------- */

/* The headers' order in the signature: by name. Insertion sort, which keeps equal names in order.
 */
static size_t sorted_headers(const fm_sigv4_request *request, const fm_sigv4_header **out) {
    size_t n = 0;
    for (; n < request->n_headers && n < MAX_HEADERS; n++) {
        size_t at = n;
        for (; at > 0 && strcmp(request->headers[n].name, out[at - 1]->name) < 0; at--)
            out[at] = out[at - 1];
        out[at] = &request->headers[n];
    }
    return n;
}

/* Appends a header's value without spaces at its ends, and with one space for several. */
static void add_value(fm_text *text, const char *value) {
    static const char spaces[] = " \t";
    for (bool is_first = true; *(value += strspn(value, spaces)); is_first = false) {
        const size_t n = strcspn(value, spaces);
        if (!is_first) fm_text_add(text, " ");
        fm_text_add_n(text, value, n);
        value += n;
    }
}

static void add_names(fm_text *text, const fm_sigv4_header *const *headers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(headers[i]->name, headers[i - 1]->name) == 0) continue;
        if (i > 0) fm_text_add(text, ";");
        fm_text_add(text, headers[i]->name);
    }
}

static void add_headers(fm_text *text, const fm_sigv4_header *const *headers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const bool repeated = i > 0 && strcmp(headers[i]->name, headers[i - 1]->name) == 0;
        if (i > 0 && !repeated) fm_text_add(text, "\n");
        fm_text_add(text, repeated ? "," : headers[i]->name);
        if (!repeated) fm_text_add(text, ":");
        add_value(text, headers[i]->value);
    }
    fm_text_add(text, "\n");
}

typedef struct parameter {
    const char *name, *value;
    size_t name_chars, value_chars;
} parameter;

static int compare(const char *a, size_t n_a, const char *b, size_t n_b) {
    const int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

static bool is_before(const parameter *a, const parameter *b) {
    const int order = compare(a->name, a->name_chars, b->name, b->name_chars);
    if (order) return order < 0;
    return compare(a->value, a->value_chars, b->value, b->value_chars) < 0;
}

static parameter parameter_of(const char *text, size_t n) {
    const char *const equals = memchr(text, '=', n);
    const size_t name_chars = equals ? (size_t)(equals - text) : n;
    const size_t begin = equals ? name_chars + 1 : n;
    return (parameter){text, text + begin, name_chars, n - begin};
}

/* Appends the parameters in the order of their encoded names and values; each has a "=". */
static void add_query(fm_text *text, const char *query) {
    parameter sorted[MAX_PARAMETERS];
    size_t n = 0;
    while (query && *query) {
        const size_t chars = strcspn(query, "&");
        if (n == MAX_PARAMETERS) {
            text->failed = true;
            return;
        }
        const parameter one = parameter_of(query, chars);
        size_t at = n++;
        for (; at > 0 && is_before(&one, &sorted[at - 1]); at--) sorted[at] = sorted[at - 1];
        sorted[at] = one;
        query += chars + (query[chars] == '&');
    }
    for (size_t i = 0; i < n; i++) {
        if (i > 0) fm_text_add(text, "&");
        fm_text_add_n(text, sorted[i].name, sorted[i].name_chars);
        fm_text_add(text, "=");
        fm_text_add_n(text, sorted[i].value, sorted[i].value_chars);
    }
}

char *fm_sigv4_canonical(const fm_sigv4_request *request) {
    const fm_sigv4_header *headers[MAX_HEADERS];
    const size_t n = sorted_headers(request, headers);
    fm_text text = {0};
    fm_text_format(&text, "%s\n%s\n", request->method, request->path);
    add_query(&text, request->query);
    fm_text_add(&text, "\n");
    add_headers(&text, headers, n);
    fm_text_add(&text, "\n");
    add_names(&text, headers, n);
    fm_text_format(&text, "\n%s", request->body_hash);
    return fm_text_take(&text);
}

/* ---- the signature --------------------------------------------------------------------------- */

static bool sign_text(uint8_t key[FM_DIGEST_BYTES], const char *text) {
    return fm_digest_hmac(key, FM_DIGEST_BYTES, text, strlen(text), key);
}

/* Makes it the key of the request's day. */
static bool renew_key(const fm_sigv4_request *request, const char *secret_key, fm_sigv4_key *key) {
    if (!strncmp(key->day, request->date, DATE_CHARS)) return true;
    fm_text secret = {0};
    *key->day = 0;
    fm_text_format(&secret, "AWS4%s", secret_key);
    const bool derived =
        !secret.failed &&
        fm_digest_hmac(secret.chars, secret.n, request->date, DATE_CHARS, key->bytes) &&
        sign_text(key->bytes, request->region) && sign_text(key->bytes, request->service) &&
        sign_text(key->bytes, "aws4_request");
    if (secret.chars) explicit_bzero(secret.chars, secret.n);
    fm_text_fini(&secret);
    if (derived) memcpy(key->day, request->date, DATE_CHARS);
    return derived;
}

/* Appends the signature of the canonical request in hexadecimal. */
static bool add_signature(const fm_sigv4_request *request, const char *canonical, const char *scope,
                          const char *secret_key, fm_sigv4_key *key, fm_text *out) {
    uint8_t hash[FM_DIGEST_BYTES], signature[FM_DIGEST_BYTES];
    if (!fm_digest_sha256(canonical, strlen(canonical), hash)) return false;
    fm_text to_sign = {0};
    fm_text_format(&to_sign, ALGORITHM "\n%s\n%s\n", request->date, scope);
    fm_text_add_hex(&to_sign, hash, sizeof(hash));
    const bool is_signed =
        !to_sign.failed && renew_key(request, secret_key, key) &&
        fm_digest_hmac(key->bytes, sizeof(key->bytes), to_sign.chars, to_sign.n, signature);
    if (is_signed) fm_text_add_hex(out, signature, sizeof(signature));
    fm_text_fini(&to_sign);
    return is_signed;
}

int fm_sigv4_sign(const fm_sigv4_request *request, const char *access_key, const char *secret_key,
                  fm_sigv4_key *key, char **out, fm_error *error) {
    *out = NULL;
    if (strlen(request->date) != TIME_CHARS || request->date[DATE_CHARS] != 'T')
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the date \"%s\" is not of the form 20150830T123600Z", request->date);
    if (request->n_headers > MAX_HEADERS)
        return fm_error_set(error, FM_ERR_ARGUMENT, "a request has %zu headers to sign; at most %d",
                            request->n_headers, MAX_HEADERS);
    const fm_sigv4_header *headers[MAX_HEADERS];
    const size_t n = sorted_headers(request, headers);
    fm_text scope = {0}, text = {0};
    fm_text_format(&scope, "%.*s/%s/%s/aws4_request", DATE_CHARS, request->date, request->region,
                   request->service);
    char *const canonical = fm_sigv4_canonical(request);
    bool is_signed = true;
    if (canonical && !scope.failed) {
        fm_text_format(&text, ALGORITHM " Credential=%s/%s, SignedHeaders=", access_key,
                       scope.chars);
        add_names(&text, headers, n);
        fm_text_add(&text, ", Signature=");
        is_signed = add_signature(request, canonical, scope.chars, secret_key, key, &text);
        *out = is_signed ? fm_text_take(&text) : NULL;
    }
    fm_text_fini(&scope);
    fm_text_fini(&text);
    fm_mem_free(canonical);
    if (*out) return FM_OK;
    return is_signed ? fm_error_set(error, FM_ERR_NOMEM, "out of memory for a request's signature")
                     : fm_error_set(error, FM_ERR_UNAVAILABLE,
                                    "a request can't be signed: libcrypto failed or is missing");
}
