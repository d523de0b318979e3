#define _GNU_SOURCE
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define FIRST_BYTES 256

/* Makes room for n more characters and the 0. */
static bool reserve(fm_text *text, size_t n) {
    if (text->failed) return false;
    const size_t needed = text->n + n + 1;
    if (needed <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity : FIRST_BYTES;
    while (capacity < needed) capacity *= 2;
    char *const chars = fm_mem_alloc(NULL, capacity, 1);
    if (!chars) {
        text->failed = true;
        return false;
    }
    if (text->n > 0) memcpy(chars, text->chars, text->n);
    chars[text->n] = '\0';
    const size_t n_before = text->n;
    fm_text_fini(text);
    *text = (fm_text){.chars = chars, .n = n_before, .capacity = capacity};
    return true;
}

void fm_text_add_n(fm_text *text, const char *chars, size_t n) {
    if (!reserve(text, n)) return;
    if (n > 0) memcpy(text->chars + text->n, chars, n);
    text->n += n;
    text->chars[text->n] = '\0';
}

void fm_text_add(fm_text *text, const char *chars) { fm_text_add_n(text, chars, strlen(chars)); }

/* Writes to the space that is left, and a second time only if that is too short. */
void fm_text_format(fm_text *text, const char *format, ...) {
    if (!reserve(text, 0)) return;
    const size_t left_bytes = text->capacity - text->n;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text->chars + text->n, left_bytes, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= left_bytes && reserve(text, (size_t)n)) {
        va_start(args, format);
        vsnprintf(text->chars + text->n, (size_t)n + 1, format, args);
        va_end(args);
    }
    if (n < 0) text->failed = true;
    if (text->failed)
        text->chars[text->n] = '\0';
    else
        text->n += (size_t)n;
}

void fm_text_add_hex(fm_text *text, const uint8_t *bytes, size_t n_bytes) {
    static const char digits[] = "0123456789abcdef";
    if (!reserve(text, 2 * n_bytes)) return;
    for (size_t i = 0; i < n_bytes; i++) {
        text->chars[text->n++] = digits[bytes[i] >> 4];
        text->chars[text->n++] = digits[bytes[i] & 15];
    }
    text->chars[text->n] = '\0';
}

static bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void fm_text_add_encoded(fm_text *text, const char *bytes, size_t n_bytes, const char *kept) {
    static const char digits[] = "0123456789ABCDEF";
    size_t n_written = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        const char c = bytes[i];
        const uint8_t value = (uint8_t)c;
        if (is_letter_or_digit(c) || (c && strchr(kept, c))) continue;
        fm_text_add_n(text, bytes + n_written, i - n_written);
        fm_text_add_n(text, (const char[]){'%', digits[value >> 4], digits[value & 15]}, 3);
        n_written = i + 1;
    }
    fm_text_add_n(text, bytes + n_written, n_bytes - n_written);
}

char *fm_text_take(fm_text *text) {
    if (!reserve(text, 0)) {
        fm_text_fini(text);
        return NULL;
    }
    char *const chars = text->chars;
    *text = (fm_text){0};
    return chars;
}

void fm_text_fini(fm_text *text) {
    if (text->chars) explicit_bzero(text->chars, text->capacity);
    fm_mem_free(text->chars);
    *text = (fm_text){0};
}
