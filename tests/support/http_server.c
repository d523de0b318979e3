#define _GNU_SOURCE
#include "http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_REQUESTS_KEPT 8192
#define MAX_REQUEST_BYTES 8192
#define STACK_BYTES (128u << 10)

typedef struct object {
    struct object *next;
    char *path, *script, *script_at;
    uint8_t *bytes; /* NULL: there is a script alone */
    size_t n_bytes;
    uint32_t version;
} object;

typedef struct connection {
    struct connection *next;
    test_http *server;
    int socket;
} connection;

struct test_http {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int port;
    /* Bound to the port, so that nobody else is given it while the server is gone. */
    int reserved;
    /* Under lock. */
    int listening; /* -1: gone */
    bool is_closing;
    object *objects;
    connection *connections;
    size_t n_requests, n_connections, n_busy, peak;
    char *requests[MAX_REQUESTS_KEPT];
    uint64_t random;
    int percent;
};

/* One request, and what is answered. */
typedef struct exchange {
    test_http *server;
    int socket;
    char head[MAX_REQUEST_BYTES];
    char path[4096], answer[4096];
    uint8_t *bytes;                /* a copy */
    size_t n_bytes, first, n_sent; /* what of it is sent */
    uint32_t version;
    bool has_object, has_range;
} exchange;

static void die(const char *what) {
    fprintf(stderr, "test server: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- objects and scripts --------------------------------------------------------------------- */

static object *find_locked(test_http *server, const char *path, bool add) {
    object *one = server->objects;
    while (one && strcmp(one->path, path)) one = one->next;
    if (one || !add) return one;
    one = calloc(1, sizeof(*one));
    if (!one || !(one->path = strdup(path))) die("memory");
    one->next = server->objects;
    server->objects = one;
    return one;
}

void test_http_put(test_http *server, const char *path, const void *bytes, size_t n_bytes) {
    pthread_mutex_lock(&server->lock);
    object *const one = find_locked(server, path, true);
    free(one->bytes);
    if (!(one->bytes = malloc(n_bytes + 1))) die("memory");
    if (n_bytes) memcpy(one->bytes, bytes, n_bytes);
    one->n_bytes = n_bytes;
    one->version++;
    pthread_mutex_unlock(&server->lock);
}

void test_http_script(test_http *server, const char *path, const char *script) {
    pthread_mutex_lock(&server->lock);
    object *const one = find_locked(server, path, true);
    free(one->script);
    if (!(one->script_at = one->script = strdup(script))) die("memory");
    pthread_mutex_unlock(&server->lock);
}

void test_http_random(test_http *server, uint32_t seed, int percent) {
    pthread_mutex_lock(&server->lock);
    server->random = seed * 0x9E3779B97F4A7C15u | 1;
    server->percent = percent;
    pthread_mutex_unlock(&server->lock);
}

static uint32_t random_locked(test_http *server, uint32_t n) {
    server->random ^= server->random << 13;
    server->random ^= server->random >> 7;
    server->random ^= server->random << 17;
    return (uint32_t)(server->random >> 33) % n;
}

static void random_answer_locked(test_http *server, char *out, size_t out_bytes) {
    static const char *const kinds[] = {
        "status=500",       "status=503,code=SlowDown",
        "status=429",       "status=408",
        "reset=%u",         "short=%u",
        "wrong-range",      "no-range",
        "delay=%u",         "close",
        "stall=%u",         "unsized",
        "chunked",          "reset=0",
        "status=502,close",
    };
    const uint32_t kind = random_locked(server, sizeof(kinds) / sizeof(*kinds));
    snprintf(out, out_bytes, "ok");
    if ((int)random_locked(server, 100) >= server->percent) return;
    const char *const number = strchr(kinds[kind], '%');
    snprintf(out, out_bytes, "%s", kinds[kind]);
    if (number)
        snprintf(out + (number - kinds[kind]), 16, "%u",
                 random_locked(server, kind == 8 ? 30 : 3000));
}

/* Whether the answer has this part; its value, up to the next comma, is copied to `out`. */
static bool has_part(const exchange *one, const char *name, char *out, size_t out_bytes) {
    const size_t n = strlen(name);
    for (const char *at = one->answer; *at;) {
        const size_t length = strcspn(at, ",");
        if (!strncmp(at, name, n) && (at[n] == '=' || n == length)) {
            if (out) snprintf(out, out_bytes, "%.*s", (int)(length - n), at + n + (at[n] == '='));
            char *const comma = out ? strchr(out, ',') : NULL;
            if (comma) *comma = 0;
            return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

/* Takes the next answer of the script, and a copy of the object. */
static void look_up(exchange *one) {
    test_http *const server = one->server;
    pthread_mutex_lock(&server->lock);
    object *found = find_locked(server, one->path, false);
    const size_t n = found && found->script_at ? strcspn(found->script_at, " ") : 0;
    if (n) {
        snprintf(one->answer, sizeof(one->answer), "%.*s", (int)n, found->script_at);
        found->script_at += n + (found->script_at[n] == ' ');
    } else {
        random_answer_locked(server, one->answer, sizeof(one->answer));
    }
    char other[256];
    if (has_part(one, "from", other, sizeof(other))) found = find_locked(server, other, false);
    one->has_object = found && found->bytes;
    if (one->has_object) {
        one->bytes = malloc(found->n_bytes + 1);
        if (!one->bytes) die("memory");
        memcpy(one->bytes, found->bytes, found->n_bytes);
        one->n_bytes = found->n_bytes;
        one->version = found->version;
    }
    server->n_busy++;
    if (server->n_busy > server->peak) server->peak = server->n_busy;
    char **const place = &server->requests[server->n_requests++ % MAX_REQUESTS_KEPT];
    free(*place);
    *place = strdup(one->head);
    pthread_mutex_unlock(&server->lock);
}

static long number_of(const exchange *one, const char *name, long otherwise) {
    char text[64];
    return has_part(one, name, text, sizeof(text)) ? atol(text) : otherwise;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static bool send_all(int socket, const void *bytes, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = send(socket, (const char *)bytes + done, n_bytes - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool send_text(int socket, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool send_text(int socket, const char *format, ...) {
    char text[8192];
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return send_all(socket, text, (size_t)n);
}

static void reset(int socket) {
    const struct linger now = {.l_onoff = 1};
    setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

/* Until the client goes away, or the server does. */
static void stall(int socket) {
    char byte;
    while (recv(socket, &byte, 1, 0) > 0) continue;
}

static void pause_ms(const exchange *one, long ms) {
    for (; ms > 0; ms -= 5) {
        pthread_mutex_lock(&one->server->lock);
        const bool gone = one->server->is_closing || one->server->listening < 0;
        pthread_mutex_unlock(&one->server->lock);
        if (gone) return;
        usleep(5000);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The value of a request's header, or NULL. */
static const char *header(const exchange *one, const char *name, char *out, size_t out_bytes) {
    char mark[64];
    snprintf(mark, sizeof(mark), "\r\n%s: ", name);
    const char *const at = strcasestr(one->head, mark);
    if (!at) return NULL;
    snprintf(out, out_bytes, "%.*s", (int)strcspn(at + strlen(mark), "\r"), at + strlen(mark));
    return out;
}

/* Until all is sent, or the client goes away. */
static bool drip(const exchange *one, size_t from) {
    for (size_t done = from; done < one->n_sent; done++) {
        pause_ms(one, 20);
        if (!send_all(one->socket, one->bytes + one->first + done, 1)) return false;
    }
    return true;
}

static bool send_body(const exchange *one) {
    static const char *const faults[] = {"reset", "short", "stall", "drip"};
    const bool is_chunked = has_part(one, "chunked", NULL, 0);
    size_t n = one->n_sent, fault = 4;
    for (size_t i = 0; i < 4; i++) {
        const long limit = number_of(one, faults[i], -1);
        if (limit < 0) continue;
        fault = i;
        if ((size_t)limit < n) n = (size_t)limit;
    }
    /* In pieces, so that clients see parts. */
    for (size_t done = 0; done < n;) {
        const size_t piece = n - done < 16384 ? n - done : 16384;
        if (is_chunked && !send_text(one->socket, "%zx\r\n", piece)) return false;
        if (!send_all(one->socket, one->bytes + one->first + done, piece)) return false;
        if (is_chunked && !send_text(one->socket, "\r\n")) return false;
        done += piece;
    }
    if (fault == 0) reset(one->socket);
    if (fault == 2) stall(one->socket);
    if (fault == 3) return drip(one, n);
    if (fault < 4) return false;
    return !is_chunked || send_text(one->socket, "0\r\n\r\n");
}

/* Of an error or redirect. */
static bool send_long_body(const exchange *one, size_t n_bytes) {
    exchange body = {.server = one->server, .socket = one->socket, .n_sent = n_bytes};
    snprintf(body.answer, sizeof(body.answer), "%s", one->answer);
    body.bytes = malloc(n_bytes + 1);
    if (!body.bytes) die("memory");
    memset(body.bytes, 'x', n_bytes);
    const bool ok = send_body(&body);
    free(body.bytes);
    return ok;
}

static bool answer_status(const exchange *one, int status) {
    char code[64] = "", body[256], more[4200] = "", url[4096];
    if (has_part(one, "code", code, sizeof(code)))
        snprintf(body, sizeof(body), "<?xml?><Error><Code>%s</Code></Error>", code);
    else
        snprintf(body, sizeof(body), "no");
    if (has_part(one, "redirect", url, sizeof(url)))
        snprintf(more, sizeof(more), "Location: %s\r\n", url);
    const long wait = number_of(one, "retry-after", -1);
    if (wait >= 0) snprintf(more, sizeof(more), "Retry-After: %ld\r\n", wait);
    const long long_bytes = number_of(one, "body", -1);
    const size_t n_bytes = long_bytes < 0 ? strlen(body) : (size_t)long_bytes;
    if (long_bytes >= 0 || status == 304) *body = 0; /* 304 never has one */
    if (!send_text(one->socket, "HTTP/1.1 %d Said\r\n%sContent-Length: %zu\r\n\r\n%s", status, more,
                   n_bytes, body))
        return false;
    if (long_bytes >= 0 && !send_long_body(one, n_bytes)) return false;
    return !has_part(one, "close", NULL, 0);
}

/* Sets what is sent. Returns the status. */
static int choose_bytes(exchange *one) {
    char text[256];
    unsigned long long first, last;
    one->n_sent = one->n_bytes;
    if (!header(one, "Range", text, sizeof(text)) || has_part(one, "no-range", NULL, 0)) return 200;
    if (sscanf(text, "bytes=%llu-%llu", &first, &last) != 2) return 400;
    if (first >= one->n_bytes) return 416;
    if (last >= one->n_bytes) last = one->n_bytes - 1;
    one->has_range = true;
    one->first = first;
    one->n_sent = last - first + 1;
    if (!has_part(one, "wrong-range", NULL, 0)) return 206;
    if (one->first + one->n_sent < one->n_bytes)
        one->first++;
    else if (one->n_sent > 1)
        one->first++, one->n_sent--;
    return 206;
}

/* False: the connection must be closed. */
static bool answer(exchange *one) {
    char etag[256], text[256];
    pause_ms(one, number_of(one, "delay", 0));
    if (has_part(one, "hangup", NULL, 0)) return false;
    const bool is_redirect = has_part(one, "redirect", NULL, 0);
    const long status = number_of(one, "status", is_redirect ? 302 : 0);
    if (status) return answer_status(one, (int)status);
    if (!one->has_object) return answer_status(one, 404);
    snprintf(etag, sizeof(etag), "v%u", one->version);
    has_part(one, "etag", etag, sizeof(etag));
    if (!has_part(one, "no-if-match", NULL, 0) && header(one, "If-Match", text, sizeof(text)) &&
        (strncmp(text + 1, etag, strlen(etag)) || text[1 + strlen(etag)] != '"'))
        return answer_status(one, 412);
    if (header(one, "If-None-Match", text, sizeof(text)) &&
        !strncmp(text + 1, etag, strlen(etag)) && text[1 + strlen(etag)] == '"') {
        return send_text(one->socket, "HTTP/1.1 304 Not Modified\r\nETag: \"%s\"\r\n\r\n", etag);
    }
    const int chosen = choose_bytes(one);
    if (chosen >= 400) return answer_status(one, chosen);
    const bool is_unsized = has_part(one, "unsized", NULL, 0);
    bool ok = send_text(one->socket, "HTTP/1.1 %d OK\r\n", chosen);
    const char *const weak = has_part(one, "weak", NULL, 0) ? "W/" : "";
    if (ok && strcmp(etag, "none")) ok = send_text(one->socket, "ETag: %s\"%s\"\r\n", weak, etag);
    if (ok && one->has_range)
        ok = send_text(one->socket, "Content-Range: bytes %zu-%zu/%zu\r\n", one->first,
                       one->first + one->n_sent - 1, one->n_bytes);
    if (ok && has_part(one, "chunked", NULL, 0))
        ok = send_text(one->socket, "Transfer-Encoding: chunked\r\n");
    else if (ok && !is_unsized)
        ok = send_text(one->socket, "Content-Length: %zu\r\n", one->n_sent);
    ok = ok && send_text(one->socket, "\r\n") && send_body(one);
    return ok && !is_unsized && !has_part(one, "close", NULL, 0);
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Reads the head of a request; false: there is none. */
static bool receive(exchange *one) {
    size_t n = 0;
    for (;;) {
        const ssize_t got = recv(one->socket, one->head + n, sizeof(one->head) - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        one->head[n] = 0;
        if (n >= 4 && !strcmp(one->head + n - 4, "\r\n\r\n")) break;
        if (n == sizeof(one->head) - 1) return false;
    }
    if (strncmp(one->head, "GET ", 4)) return false;
    snprintf(one->path, sizeof(one->path), "%.*s", (int)strcspn(one->head + 4, " ?"),
             one->head + 4);
    return true;
}

static bool serve_one(test_http *server, int socket) {
    exchange *const one = calloc(1, sizeof(*one));
    if (!one) die("memory");
    one->server = server;
    one->socket = socket;
    bool keep = receive(one);
    if (keep) {
        look_up(one);
        keep = answer(one);
        pthread_mutex_lock(&server->lock);
        server->n_busy--;
        pthread_mutex_unlock(&server->lock);
    }
    free(one->bytes);
    free(one);
    return keep;
}

static void *connection_main(void *argument) {
    connection *const self = argument;
    test_http *const server = self->server;
    while (serve_one(server, self->socket)) continue;
    pthread_mutex_lock(&server->lock);
    connection **link = &server->connections;
    while (*link != self) link = &(*link)->next;
    *link = self->next;
    close(self->socket);
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    free(self);
    return NULL;
}

static void start_connection_locked(test_http *server, int socket) {
    connection *const one = malloc(sizeof(*one));
    pthread_attr_t attributes;
    pthread_t thread;
    if (!one) die("memory");
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    *one = (connection){.next = server->connections, .server = server, .socket = socket};
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    server->connections = one;
    server->n_connections++;
    if ((errno = pthread_create(&thread, &attributes, connection_main, one))) die("thread");
    pthread_attr_destroy(&attributes);
}

/* Sockets are only shut down by others; their threads close them. */
static void *listen_main(void *argument) {
    test_http *const server = argument;
    pthread_mutex_lock(&server->lock);
    while (!server->is_closing) {
        const int listening = server->listening;
        if (listening < 0) {
            pthread_cond_wait(&server->changed, &server->lock);
            continue;
        }
        pthread_mutex_unlock(&server->lock);
        const int socket = accept(listening, NULL, NULL);
        pthread_mutex_lock(&server->lock);
        const bool is_open = server->listening == listening && !server->is_closing;
        if (socket >= 0 && is_open)
            start_connection_locked(server, socket);
        else if (socket >= 0)
            close(socket);
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* A socket bound to a port of the loopback interface; 0: to any free one, which is written back. */
static int bind_to(int *port) {
    const int one = 1, bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)*port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(address);
    if (bound < 0) die("socket");
    setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(bound, (struct sockaddr *)&address, n)) die("bind");
    if (getsockname(bound, (struct sockaddr *)&address, &n)) die("getsockname");
    *port = ntohs(address.sin_port);
    return bound;
}

static int listen_on(int port) {
    const int listening = bind_to(&port);
    if (listen(listening, 1024)) die("listen");
    return listening;
}

static void drop_all_locked(test_http *server) {
    if (server->listening >= 0) {
        shutdown(server->listening, SHUT_RDWR);
        close(server->listening);
    }
    server->listening = -1;
    for (connection *one = server->connections; one; one = one->next)
        shutdown(one->socket, SHUT_RDWR);
    while (server->connections) pthread_cond_wait(&server->changed, &server->lock);
}

void test_http_vanish(test_http *server, bool is_gone) {
    pthread_mutex_lock(&server->lock);
    if (is_gone) drop_all_locked(server);
    if (!is_gone && server->listening < 0) server->listening = listen_on(server->port);
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

test_http *test_http_open(void) {
    test_http *const server = calloc(1, sizeof(*server));
    if (!server) die("memory");
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->changed, NULL);
    server->reserved = bind_to(&server->port);
    server->listening = listen_on(server->port);
    server->random = 1;
    if ((errno = pthread_create(&server->thread, NULL, listen_main, server))) die("thread");
    return server;
}

void test_http_close(test_http *server) {
    pthread_mutex_lock(&server->lock);
    server->is_closing = true;
    drop_all_locked(server);
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->thread, NULL);
    close(server->reserved);
    for (object *one; (one = server->objects);) {
        server->objects = one->next;
        free(one->path);
        free(one->script);
        free(one->bytes);
        free(one);
    }
    for (size_t i = 0; i < MAX_REQUESTS_KEPT; i++) free(server->requests[i]);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

int test_http_port(const test_http *server) { return server->port; }

/* ---- what was seen --------------------------------------------------------------------------- */

static size_t take(test_http *server, const size_t *value) {
    pthread_mutex_lock(&server->lock);
    const size_t taken = *value;
    pthread_mutex_unlock(&server->lock);
    return taken;
}

size_t test_http_n_requests(test_http *server) { return take(server, &server->n_requests); }
size_t test_http_n_connections(test_http *server) { return take(server, &server->n_connections); }

size_t test_http_peak(test_http *server) {
    pthread_mutex_lock(&server->lock);
    const size_t peak = server->peak;
    server->peak = server->n_busy;
    pthread_mutex_unlock(&server->lock);
    return peak;
}

size_t test_http_count(test_http *server, const char *text) {
    size_t n = 0;
    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < MAX_REQUESTS_KEPT; i++)
        n += server->requests[i] && strcasestr(server->requests[i], text) != NULL;
    pthread_mutex_unlock(&server->lock);
    return n;
}
