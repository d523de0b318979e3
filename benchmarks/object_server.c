/*
 * Serves the files of a folder as objects of an S3 bucket, for bench_remote.py:
 *
 *     object_server FOLDER --ms 20
 *
 * prints the port of 127.0.0.1 on which it listens, and then answers until its standard input ends.
 * Each answer begins so many milliseconds after its request, during which the server computes
 * nothing. FOLDER's files are read once and held in memory, so that no disk takes part.
 *
 * A path-style client finds file a/b.jpg at /BUCKET/a/b.jpg, whatever BUCKET is. GET and HEAD, with
 * Range, and ListObjectsV2, in one page for all keys, are answered; signatures are not
 * looked at. There is a thread for each connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_HEAD_BYTES 16384
#define STACK_BYTES (128u << 10)

typedef struct object {
    char *key;
    const uint8_t *bytes;
    size_t n_bytes;
} object;

/* Filled before the first connection, and constant since. */
static object *objects;
static size_t n_objects, n_allocated, root_bytes;
static long delay_ms;
static char *listing;
static size_t listing_bytes;

static void die(const char *what) {
    fprintf(stderr, "object_server: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- objects --------------------------------------------------------------------------------- */

static int add_file(const char *path, const struct stat *status, int kind, struct FTW *walk) {
    (void)walk;
    if (kind != FTW_F) return 0;
    if (n_objects == n_allocated) {
        n_allocated = n_allocated ? 2 * n_allocated : 1024;
        objects = realloc(objects, n_allocated * sizeof(*objects));
        if (!objects) die("memory");
    }
    object *const one = &objects[n_objects++];
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) die(path);
    one->key = strdup(path + root_bytes);
    one->n_bytes = (size_t)status->st_size;
    one->bytes = one->n_bytes
                     ? mmap(NULL, one->n_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0)
                     : NULL;
    if (!one->key || one->bytes == MAP_FAILED) die(path);
    close(file);
    return 0;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(((const object *)a)->key, ((const object *)b)->key);
}

static const object *find(const char *key) {
    const object wanted = {.key = (char *)key};
    return bsearch(&wanted, objects, n_objects, sizeof(*objects), compare_keys);
}

/* Keys are taken to need no escapes of XML; those of bench_remote.py don't. */
static void make_listing(void) {
    FILE *const out = open_memstream(&listing, &listing_bytes);
    if (!out) die("memory");
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult>"
            "<IsTruncated>false</IsTruncated><KeyCount>%zu</KeyCount>",
            n_objects);
    for (size_t i = 0; i < n_objects; i++)
        fprintf(out,
                "<Contents><Key>%s</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
                "<ETag>&quot;%zx&quot;</ETag><Size>%zu</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>",
                objects[i].key, objects[i].n_bytes, objects[i].n_bytes);
    fprintf(out, "</ListBucketResult>");
    if (fclose(out)) die("memory");
}

/* ---- answers --------------------------------------------------------------------------------- */

static bool send_parts(int socket, struct iovec *parts, int n) {
    while (n > 0) {
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        for (; n > 0 && (size_t)sent >= parts->iov_len; parts++, n--) sent -= parts->iov_len;
        if (n > 0) {
            parts->iov_base = (char *)parts->iov_base + sent;
            parts->iov_len -= (size_t)sent;
        }
    }
    return true;
}

static bool send_answer(int socket, const char *head, const void *body, size_t body_bytes) {
    struct iovec parts[] = {{(void *)head, strlen(head)}, {(void *)body, body_bytes}};
    return send_parts(socket, parts, body_bytes ? 2 : 1);
}

static bool answer_object(int socket, const object *one, const char *range, bool with_body) {
    char head[512], content_range[128] = "";
    unsigned long long first = 0, last = one->n_bytes ? one->n_bytes - 1 : 0;
    size_t n_bytes = one->n_bytes;
    if (range) {
        if (sscanf(range, "bytes=%llu-%llu", &first, &last) < 1 || first >= one->n_bytes)
            return send_answer(
                socket, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n", NULL, 0);
        if (last >= one->n_bytes) last = one->n_bytes - 1;
        n_bytes = last - first + 1;
        snprintf(content_range, sizeof(content_range), "Content-Range: bytes %llu-%llu/%zu\r\n",
                 first, last, one->n_bytes);
    }
    snprintf(head, sizeof(head),
             "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%sAccept-Ranges: bytes\r\nETag: \"%zx\"\r\n"
             "Last-Modified: Wed, 01 Jan 2020 00:00:00 GMT\r\n\r\n",
             range ? "206 Partial Content" : "200 OK", n_bytes, content_range, one->n_bytes);
    return send_answer(socket, head, one->bytes + first, with_body ? n_bytes : 0);
}

static int hex(char c) {
    const char *const digits = "0123456789abcdef";
    const char *const at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

static void decode_percent(char *text) {
    char *out = text;
    for (const char *at = text; *at; at++) {
        if (*at == '%' && hex(at[1]) >= 0 && hex(at[2]) >= 0) {
            *out++ = (char)(hex(at[1]) * 16 + hex(at[2]));
            at += 2;
        } else {
            *out++ = *at;
        }
    }
    *out = 0;
}

/* The value of a header, ended by 0 in place; or NULL. */
static char *header(char *head, const char *name) {
    char mark[64];
    snprintf(mark, sizeof(mark), "\r\n%s:", name);
    char *at = strcasestr(head, mark);
    if (!at) return NULL;
    at += strlen(mark);
    at += strspn(at, " ");
    return at;
}

static bool answer(int socket, char *head) {
    const bool is_head = !strncmp(head, "HEAD ", 5);
    char *const target = strchr(head, ' ') + 1;
    char *const range = header(head, "Range");
    target[strcspn(target, " \r")] = 0;
    char *const query = strchr(target, '?');
    if (query) *query = 0;
    char *key = strchr(target + 1, '/');
    key = key ? key + 1 : "";
    if (query && strstr(query + 1, "list-type=2")) {
        char text[256];
        snprintf(text, sizeof(text),
                 "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %zu\r\n\r\n",
                 listing_bytes);
        return send_answer(socket, text, listing, listing_bytes);
    }
    if (*key) decode_percent(key);
    const object *const one = find(key);
    if (one) return answer_object(socket, one, range, !is_head);
    return send_answer(socket, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", NULL, 0);
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Reads the head of a request; false: there is none. */
static bool receive(int socket, char *head) {
    for (size_t n = 0; n < MAX_HEAD_BYTES - 1;) {
        const ssize_t got = recv(socket, head + n, MAX_HEAD_BYTES - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        head[n] = 0;
        if (n >= 4 && !strcmp(head + n - 4, "\r\n\r\n"))
            return !strncmp(head, "GET ", 4) || !strncmp(head, "HEAD ", 5);
    }
    return false;
}

static void *serve(void *argument) {
    const int socket = (int)(intptr_t)argument;
    const struct timespec delay = {delay_ms / 1000, delay_ms % 1000 * 1000000};
    char head[MAX_HEAD_BYTES];
    do {
        if (!receive(socket, head)) break;
        nanosleep(&delay, NULL);
    } while (answer(socket, head));
    close(socket);
    return NULL;
}

static void start_connection(int socket) {
    pthread_attr_t attributes;
    pthread_t thread;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if ((errno = pthread_create(&thread, &attributes, serve, (void *)(intptr_t)socket)))
        die("thread");
    pthread_attr_destroy(&attributes);
}

static void *accept_all(void *argument) {
    const int listening = (int)(intptr_t)argument;
    for (int socket; (socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        start_connection(socket);
    die("accept");
    return NULL;
}

static int listen_anywhere(int *port) {
    const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(address);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, n) ||
        listen(listening, 1024) || getsockname(listening, (struct sockaddr *)&address, &n))
        die("socket");
    *port = ntohs(address.sin_port);
    return listening;
}

int main(int argc, char **argv) {
    if (argc != 4 || strcmp(argv[2], "--ms")) {
        fprintf(stderr, "usage: %s FOLDER --ms DELAY\n", argv[0]);
        return 2;
    }
    delay_ms = atol(argv[3]);
    root_bytes = strlen(argv[1]) + (argv[1][strlen(argv[1]) - 1] != '/');
    if (nftw(argv[1], add_file, 32, 0)) die(argv[1]);
    qsort(objects, n_objects, sizeof(*objects), compare_keys);
    make_listing();
    int port;
    const int listening = listen_anywhere(&port);
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listening)))
        die("thread");
    printf("%d\n", port);
    fflush(stdout);
    for (char byte; read(STDIN_FILENO, &byte, 1) > 0;) continue;
    return 0;
}
