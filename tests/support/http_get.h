/* A read of an object of the tests' web server. */
#ifndef FM_TEST_HTTP_GET_H
#define FM_TEST_HTTP_GET_H

#include <stdio.h>

#include "http_server.h"
#include "read/reader.h"

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
