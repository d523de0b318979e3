/* Statuses and messages. The list of statuses stands in feedmill/feedmill.h. */
#ifndef FM_BASE_ERROR_H
#define FM_BASE_ERROR_H

#include "feedmill/feedmill.h"

/*
 * Fills *error (may be NULL) and returns `status`. The format is printf's; the text is cut at the
 * buffer's end. index and errno are set to -1 and 0: fm_error_set_index() and
 * fm_error_set_errno() come after it.
 */
int fm_error_set(fm_error *error, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets the errno and appends ": <its text>" to the message. Returns error's status. */
int fm_error_set_errno(fm_error *error, int status, int sys_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fm_error_set_index(fm_error *error, int64_t index);
void fm_error_clear(fm_error *error);

#endif
