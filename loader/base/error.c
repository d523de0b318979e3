#define _GNU_SOURCE
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *fm_status_text(int status) {
    switch (status) {
#define FM_X(name, value, text) \
    case value:                 \
        return text;
        FM_STATUS_LIST(FM_X)
#undef FM_X
    default:
        return "unknown status";
    }
}

const char *fm_version(void) { return FM_VERSION_STRING; }

static void fill(fm_error *error, int status, const char *format, va_list args) {
    error->status = status;
    error->sys_errno = 0;
    error->index = -1;
    vsnprintf(error->message, sizeof(error->message), format, args);
}

int fm_error_set(fm_error *error, int status, const char *format, ...) {
    if (error) {
        va_list args;
        va_start(args, format);
        fill(error, status, format, args);
        va_end(args);
    }
    return status;
}

int fm_error_set_errno(fm_error *error, int status, int sys_errno, const char *format, ...) {
    if (error) {
        va_list args;
        va_start(args, format);
        fill(error, status, format, args);
        va_end(args);
        error->sys_errno = sys_errno;
        char text[128] = "";
        /* The GNU variant returns a pointer that need not be the buffer. */
        const char *const reason = strerror_r(sys_errno, text, sizeof(text));
        const size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof(error->message) - used, ": %s", reason);
    }
    return status;
}

void fm_error_set_index(fm_error *error, int64_t index) {
    if (error) error->index = index;
}

void fm_error_clear(fm_error *error) {
    if (error) *error = (fm_error){.status = FM_OK, .index = -1};
}
