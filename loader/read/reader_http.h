/* The HTTP reader's files: reader_http.c has the reads and the thread, http_attempts.c the requests
 * that the thread makes for them. */
#ifndef FM_READ_READER_HTTP_H
#define FM_READ_READER_HTTP_H

#include "read/hedge.h"
#include "read/lookups.h"
#include "read/transfer.h"

#define FM_HTTP_MS_NS 1000000u

typedef struct fm_http_reader {
    fm_reader *reader;
    fm_remote *remote; /* not used any more once the reader is closing */
    fm_http *http;
    fm_thread thread;
    bool waits, has_ended; /* under the reader's lock */
    bool any_cancelled;    /* under the reader's lock */
    /* Under the reader's lock: reads that the disk cache does not have, in order; or the one that
     * was found not to share the request of the one before. */
    fm_reader_op *missed, **missed_end;
    fm_lookups lookups;
    /* The thread's. */
    uint64_t stall_ns, connect_ns;
    fm_retry_policy policy;
    fm_flow flow;
    fm_transfer *waiting;
    uint32_t n_running;
    uint64_t random, stall_check_ns;
    fm_hedge hedge;
    uint64_t hedge_check_ns; /* when fm_http_hedge() next has something to do */
    fm_transfer transfers[]; /* [reader->n_ops] */
} fm_http_reader;

/* What follows runs on the thread, without the reader's lock. */

/* Begins the next attempt, or ends the read if there can be none. */
void fm_http_begin_attempt(fm_http_reader *self, fm_transfer *transfer);
/* A request has ended by itself, with a code for fm_http_judge(). */
void fm_http_request_ended(fm_http_reader *self, fm_http_request *request, int code);
/* Ends what is running for a transfer. */
void fm_http_end_requests(fm_http_reader *self, fm_transfer *transfer);
/* Begins all attempts whose pause is over, as far as the limit allows. */
void fm_http_begin_due(fm_http_reader *self);
/* Makes second requests for what has not been answered for long. */
void fm_http_hedge(fm_http_reader *self);
/* Ends attempts that have made no progress for too long. */
void fm_http_end_stalled(fm_http_reader *self);
/* When one of the last three has something to do, from now_ns on; UINT64_MAX: none has. */
uint64_t fm_http_next_ns(const fm_http_reader *self, uint64_t now_ns);
/* Ends a read that has its bytes or an error. */
void fm_http_end_read(fm_http_reader *self, fm_transfer *transfer);

#endif
