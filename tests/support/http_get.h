/* Objects of the tests' web server, and reads of them. */
#ifndef FM_TEST_HTTP_GET_H
#define FM_TEST_HTTP_GET_H

#include <stdio.h>
#include <stdlib.h>

#include "http_server.h"
#include "read/reader.h"
#include "reads.h"

/* Adds or replaces an object whose bytes are test_byte()'s. */
static inline void test_http_put_made(test_http *server, const char *path, uint32_t seed,
                                      size_t n_bytes) {
    uint8_t *const bytes = malloc(n_bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = test_byte(seed, i);
    test_http_put(server, path, bytes, n_bytes);
    free(bytes);
}

typedef struct get {
    fm_read read;
    char url[256], why[224];
} get;

static inline void get_init(get *self, const test_http *server, const char *path) {
    *self = (get){0};
    snprintf(self->url, sizeof(self->url), "http://127.0.0.1:%d%s", test_http_port(server), path);
    self->read = (fm_read){.path = self->url, .why = self->why, .why_bytes = sizeof(self->why)};
}

#endif
