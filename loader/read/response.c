#define _GNU_SOURCE
#include "read/response.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* ---- header lines ---------------------------------------------------------------------------- */

/* The digits at *text, which is moved behind them. False: there are none, or too many. */
static bool parse_number(const char **text, const char *end, uint64_t *out) {
    const char *at = *text;
    uint64_t value = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (value > (UINT64_MAX >> 2) / 10) return false;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    if (at == *text) return false;
    *text = at;
    *out = value;
    return true;
}

static bool skip_char(const char **text, const char *end, char wanted) {
    if (*text == end || **text != wanted) return false;
    ++*text;
    return true;
}

/* "bytes 0-99/1234", "bytes 0-99/" and an asterisk, or, with status 416, "bytes", an asterisk and
 * "/1234". */
static void parse_range(fm_response *response, const char *at, const char *end) {
    if (end - at < 6 || strncasecmp(at, "bytes ", 6)) return;
    at += 6;
    uint64_t first = 0, last = 0, total = FM_RESPONSE_UNKNOWN;
    if (!parse_number(&at, end, &first) || !skip_char(&at, end, '-') ||
        !parse_number(&at, end, &last) || !skip_char(&at, end, '/') || last < first)
        return;
    if (!skip_char(&at, end, '*') && !parse_number(&at, end, &total)) return;
    if (total <= last) return;
    response->has_range = true;
    response->first = first;
    response->last = last;
    response->total = total;
}

static void parse_status(fm_response *response, const char *line, const char *end) {
    *response = (fm_response){.length = FM_RESPONSE_UNKNOWN};
    const char *at = memchr(line, ' ', (size_t)(end - line));
    uint64_t status = 0;
    if (!at) return;
    at++;
    if (parse_number(&at, end, &status) && status < 1000) response->status = (int)status;
}

static void set_etag(fm_response *response, const char *at, const char *end) {
    const size_t n = (size_t)(end - at);
    /* Weak ones, W/"...", do not say that the bytes are the same. */
    if (n < 2 || n >= FM_ETAG_BYTES || *at != '"') return;
    for (const char *c = at; c < end; c++)
        if (iscntrl((unsigned char)*c)) return;
    memcpy(response->etag, at, n);
    response->etag[n] = 0;
}

void fm_response_line(fm_response *response, const char *line, size_t n_bytes) {
    const char *end = line + n_bytes;
    while (end > line && isspace((unsigned char)end[-1])) end--;
    if (end - line > 5 && !strncasecmp(line, "HTTP/", 5)) {
        parse_status(response, line, end);
        return;
    }
    const char *const colon = memchr(line, ':', (size_t)(end - line));
    if (!colon) return;
    const char *at = colon + 1;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    const size_t n_name = (size_t)(colon - line);
    if (n_name == 13 && !strncasecmp(line, "content-range", n_name)) {
        parse_range(response, at, end);
    } else if (n_name == 14 && !strncasecmp(line, "content-length", n_name)) {
        if (!parse_number(&at, end, &response->length)) response->length = FM_RESPONSE_UNKNOWN;
    } else if (n_name == 4 && !strncasecmp(line, "etag", n_name)) {
        set_etag(response, at, end);
    } else if (n_name == 11 && !strncasecmp(line, "retry-after", n_name)) {
        /* A date is left out: it would need a clock that agrees with the server's. */
        if (!parse_number(&at, end, &response->retry_after_s)) response->retry_after_s = 0;
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

void fm_response_error_body(fm_response *response, const char *bytes, size_t n_bytes) {
    const size_t left = sizeof(response->body) - 1 - response->body_bytes;
    const size_t n = n_bytes < left ? n_bytes : left;
    memcpy(response->body + response->body_bytes, bytes, n);
    response->body_bytes += n;
    response->body[response->body_bytes] = 0;
}

static bool is_code_char(char c) {
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-';
}

void fm_response_code(const fm_response *response, char *out, size_t out_bytes) {
    static const char *const marks[] = {"<Code>", "\"reason\": \"", "\"reason\":\""};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks) && n == 0; i++) {
        const char *at = response->body_bytes ? strstr(response->body, marks[i]) : NULL;
        if (!at) continue;
        for (at += strlen(marks[i]); is_code_char(*at) && n + 1 < out_bytes; at++) out[n++] = *at;
    }
    out[n] = 0;
}

/* ---- which bytes ----------------------------------------------------------------------------- */

fm_response_fit fm_response_fits(const fm_response *response, const fm_response_wish *wish,
                                 uint64_t *skip_bytes, uint64_t *left_bytes) {
    uint64_t first = 0, length = response->length, total = length;
    *left_bytes = FM_RESPONSE_UNKNOWN;
    if (response->status == 206) {
        if (!response->has_range) return FM_FIT_WRONG;
        first = response->first;
        total = response->total;
        if (length != FM_RESPONSE_UNKNOWN && length != response->last - first + 1)
            return FM_FIT_WRONG;
        length = response->last - first + 1;
        /* A part of an object that was requested whole. */
        if (!wish->range_bytes && total != first + length) return FM_FIT_WRONG;
    }
    if (first > wish->offset_bytes) return FM_FIT_WRONG;
    *skip_bytes = wish->offset_bytes - first;
    if (total != FM_RESPONSE_UNKNOWN && wish->offset_bytes + wish->range_bytes > total)
        return FM_FIT_ENDS_EARLY;
    if (length == FM_RESPONSE_UNKNOWN) return FM_FIT_OK;
    if (length < *skip_bytes || length - *skip_bytes < wish->range_bytes) return FM_FIT_WRONG;
    *left_bytes = length - *skip_bytes;
    return FM_FIT_OK;
}
