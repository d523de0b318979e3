/*
 * A small HTTP/1.1 server for tests, on a port of 127.0.0.1, with a thread for each connection. It
 * serves objects from memory, honours Range and If-Match, If-None-Match, and does what can go wrong as scripts
 * say.
 *
 * A script is a list of answers, one for each request of its path in turn, separated by spaces;
 * then all goes well. An answer is a list of these, separated by commas:
 *
 *     ok               nothing goes wrong
 *     status=503       an error; code=SlowDown in its body; retry-after=1
 *     delay=50         milliseconds before the answer
 *     hangup           the connection is closed without an answer
 *     reset=1000       the connection is reset after so many bytes of the body
 *     short=1000       it is closed after so many
 *     stall=1000       nothing more is sent after so many
 *     drip=1000        after so many, one byte each 20 milliseconds
 *     redirect=URL     with status 302, or the one given
 *     body=100000      a body of so many bytes for a status or redirect; may be cut by the above
 *     wrong-range      other bytes than requested; no-range: all of them
 *     unsized          without Content-Length, up to the connection's end; chunked: in chunks
 *     etag=x           this ETag; "none": none; weak: a weak one
 *     no-if-match      If-Match is ignored
 *     from=/path       the bytes are those of another object
 *     close            the connection is closed behind the answer
 *
 * Paths in scripts are those of the request, with their query left out. All calls are thread-safe.
 */
#ifndef FM_TEST_HTTP_SERVER_H
#define FM_TEST_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct test_http test_http;

/* Exits if there can be no server. */
test_http *test_http_open(void);
void test_http_close(test_http *server);
int test_http_port(const test_http *server);

/* Adds or replaces an object; bytes are copied. */
void test_http_put(test_http *server, const char *path, const void *bytes, size_t n_bytes);
/* Any path; it need not have an object. Replaces an earlier script of the path. */
void test_http_script(test_http *server, const char *path, const char *script);
/* So many percent of the requests without a script go wrong, in ways that may pass. 0: none. */
void test_http_random(test_http *server, uint32_t seed, int percent);
/* Drops all connections and refuses new ones, until called with false. */
void test_http_vanish(test_http *server, bool is_gone);

size_t test_http_n_requests(test_http *server);
size_t test_http_n_connections(test_http *server);
/* Most requests that were being answered at the same time, since the last call. */
size_t test_http_peak(test_http *server);
/* How many requests had this text in their first line or headers. The latest 8,192 are searched. */
size_t test_http_count(test_http *server, const char *text);

#endif
