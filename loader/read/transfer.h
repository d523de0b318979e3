/*
 * One read of an object, as the HTTP reader sees it (reader_http.c): the attempts, what is
 * requested, and what becomes of the responses. The body goes into the read's buffer as it comes.
 * An attempt that breaks off is resumed behind the bytes that came if the object has a strong ETag,
 * and otherwise starts at the beginning. So does one whose response does not have that ETag. If the
 * ETag is another one, a whole object is read anew, as none of it was delivered yet; a range fails,
 * as the pack's other ranges are of the earlier version.
 *
 * Two things make requests fewer or more than reads. The first attempt of a range may bring the
 * ranges close behind it, which are transfers of their own in the list `behind`. And an attempt
 * that is not answered for long may make a second request for the same bytes (hedge.h): the one
 * that is answered first is the attempt's, and nothing of the other one is used.
 */
#ifndef FM_READ_TRANSFER_H
#define FM_READ_TRANSFER_H

#include "read/etags.h"
#include "read/http.h"
#include "read/reader_impl.h"
#include "read/remote.h"
#include "read/response.h"
#include "read/retry.h"

#define FM_TRANSFER_WHY_BYTES 224

/* How an attempt went. */
typedef enum fm_attempt {
    FM_ATTEMPT_DONE,      /* the bytes are in the buffer */
    FM_ATTEMPT_AGAIN,     /* may pass */
    FM_ATTEMPT_NO_SERVER, /* may pass, and nobody has answered */
    FM_ATTEMPT_FEWER,     /* may pass, and the server wants fewer requests */
    FM_ATTEMPT_ALONE,     /* the object ends before `behind`: again, without it */
    FM_ATTEMPT_FAILED     /* for good; op->error is set */
} fm_attempt;

/* One read in flight, at the place of its op in fm_http_reader.transfers. */
typedef struct fm_transfer {
    fm_reader *reader;
    fm_etags *etags;  /* of all transfers: the ETags of packs; the reader's lock guards it */
    fm_reader_op *op; /* NULL: not in use */
    struct fm_transfer *next;    /* of those that wait for their next attempt */
    fm_http_request requests[2]; /* the attempt's, and a second one; their `user` is this */
    fm_http_request *request;    /* the one that was answered, or may be */
    fm_retry retry;
    /* When it waits: since when, when the next attempt begins, and for which reason. */
    uint64_t failed_ns, at_ns;
    bool was_refused; /* with status 429 or 503 */
    char etag[FM_ETAG_BYTES];
    uint64_t n_total;           /* the bytes wanted; FM_RESPONSE_UNKNOWN until a response says */
    struct fm_transfer *behind; /* of the next range that the attempt brings; or NULL */
    char *redirect;             /* the URL that the next attempt goes to; NULL: the object's own */
    uint32_t n_redirects;
    bool is_elsewhere; /* the redirect leads to another origin */
    bool is_fresh;     /* the next attempt needs a new connection */
    char why[FM_TRANSFER_WHY_BYTES];
    /* Of the attempt. */
    uint64_t prepared_ns, begun_ns; /* clock: its request was made, and begun */
    uint64_t progress_ns;           /* the last progress: see note_body() */
    uint64_t counted_bytes;         /* n_fetched then */
    bool has_header;                /* a line of the header has come */
    uint64_t answered_ns;           /* when the first one came */
    uint64_t hedged_ns;             /* when a second request was tried; 0: not yet */
    bool is_hedged;                 /* there is or was one */
    uint64_t behind_offset_bytes;   /* in the object, of the next byte for `behind` */
    fm_response response;
    bool has_begun;   /* the response was found to have the bytes */
    bool has_failed;  /* op->error or `why` is set: the transfer was broken off here */
    bool is_too_long; /* the object ends before the ranges behind */
    bool is_wrong;    /* the response has other bytes than requested */
    bool is_other;    /* it may be of another version than the bytes so far; `etag` is cleared */
    uint64_t skip_bytes, n_error_bytes, n_fetched;
} fm_transfer;

/* Of the requests, whose `user` must be a transfer. */
extern const fm_http_calls fm_transfer_calls;

/* How large the response says that the object is, or FM_RESPONSE_UNKNOWN. */
uint64_t fm_transfer_object_bytes(const fm_response *response);
/* Before an attempt: forgets what the last one left. */
void fm_transfer_reset(fm_transfer *transfer);
/* What the attempt requests: all, or what is left of it; and the ranges behind it. */
fm_remote_wish fm_transfer_wish(const fm_transfer *transfer);
/* The attempt's other request. */
fm_http_request *fm_transfer_other(fm_transfer *transfer, const fm_http_request *request);
/* How the attempt went; `why` holds what fm_http_judge() said. */
fm_attempt fm_transfer_judge(fm_transfer *transfer, fm_http_result result);
/* Whether the response leads to another URL, which the next attempt then goes to. */
bool fm_transfer_follow(fm_transfer *transfer);
void fm_transfer_forget_redirect(fm_transfer *transfer);
/* The read fails for good: with the reason in `why`, or with an error that needs no text. */
fm_attempt fm_transfer_fail(fm_transfer *transfer);
fm_attempt fm_transfer_fail_code(fm_transfer *transfer, int error);
__attribute__((format(printf, 2, 3))) void fm_transfer_say(fm_transfer *transfer,
                                                           const char *format, ...);

#endif
