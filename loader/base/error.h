/*
 * Functions that set the caller's fm_error. The statuses are listed in feedmill/status.h. All
 * functions accept NULL for `error`. Any thread, each with its own fm_error.
 */
#ifndef FM_BASE_ERROR_H
#define FM_BASE_ERROR_H

#include "feedmill/feedmill.h"

/*
 * Sets status and message, and returns `status`. The format is printf's; a long message is
 * truncated. Resets index to -1 and sys_errno to 0, so call fm_error_set_index() afterwards.
 */
int fm_error_set(fm_error *error, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Like fm_error_set(); also sets sys_errno, and appends ": " and its text to the message. */
int fm_error_set_errno(fm_error *error, int status, int sys_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fm_error_set_index(fm_error *error, int64_t index);
void fm_error_clear(fm_error *error);

#endif
