/* What functions return, what an fm_error tells, and the library's version. */
#ifndef FEEDMILL_STATUS_H
#define FEEDMILL_STATUS_H

#include <stdint.h>

#include "feedmill/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text) */
#define FM_STATUS_LIST(X)                                               \
    X(OK, 0, "success")                                                 \
    X(END, 1, "the epoch is over")                                      \
    X(AGAIN, 2, "nothing yet; try again")                               \
    X(FALLBACK, 3, "a sample needs the caller's decoder")               \
    X(ERR_ARGUMENT, -1, "invalid argument")                             \
    X(ERR_NOMEM, -2, "out of memory")                                   \
    X(ERR_BUDGET, -3, "memory budget too small")                        \
    X(ERR_STATE, -4, "call not allowed in this state")                  \
    X(ERR_FORKED, -5, "loader belongs to another process")              \
    X(ERR_THREAD, -6, "thread could not be created")                    \
    X(ERR_READ, -7, "file could not be read")                           \
    X(ERR_FORMAT, -8, "bytes are not an image of a known format")       \
    X(ERR_KIND, -9, "image kind is not decoded natively")               \
    X(ERR_DAMAGED, -10, "image is damaged or cut short")                \
    X(ERR_LIMIT, -11, "image or file exceeds a limit")                  \
    X(ERR_UNAVAILABLE, -12, "facility is not available on this system") \
    X(ERR_CANCELLED, -13, "operation was cancelled")                    \
    X(ERR_DEVICE, -14, "a call of the GPU's runtime failed")

typedef enum fm_status {
#define FM_X(name, value, text) FM_##name = value,
    FM_STATUS_LIST(FM_X)
#undef FM_X
} fm_status;

/* What went wrong. */
typedef struct fm_error {
    int status;         /* an fm_status */
    int sys_errno;      /* errno of the failed system call, or 0 */
    int64_t index;      /* dataset index of the failed sample, or -1 */
    char message[1024]; /* one sentence; UTF-8 unless it contains a path that is not */
} fm_error;

/* Short text of a status, such as "out of memory"; "unknown status" for other values. */
FM_API const char *fm_status_text(int status);

/* Version of the loaded library, such as "0.1.0". */
FM_API const char *fm_version(void);

#ifdef __cplusplus
}
#endif
#endif
