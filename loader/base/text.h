/*
 * Strings that grow. An append that fails for lack of memory sets `failed`, and later ones do
 * nothing, so that only the end result must be checked. One thread at a time.
 */
#ifndef FM_BASE_TEXT_H
#define FM_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts zeroed. */
typedef struct fm_text {
    char *chars; /* ends in a 0; NULL: nothing was appended */
    size_t n;    /* without the 0 */
    size_t capacity;
    bool failed;
} fm_text;

void fm_text_add(fm_text *text, const char *chars);
void fm_text_add_n(fm_text *text, const char *chars, size_t n);
void fm_text_format(fm_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends bytes as hexadecimal digits in lower case. */
void fm_text_add_hex(fm_text *text, const uint8_t *bytes, size_t n_bytes);
/* Appends bytes, of which all but letters, digits and the characters of `kept` become %XX. */
void fm_text_add_encoded(fm_text *text, const char *bytes, size_t n_bytes, const char *kept);
/* The string, which the caller frees by fm_mem_free(), or NULL if an append failed. The text is
 * empty afterwards. */
char *fm_text_take(fm_text *text);
/* Frees the string, after it was overwritten, as it may be a secret. */
void fm_text_fini(fm_text *text);

#endif
