/*
 * slowfs: a read-only view of a directory in which every open and every read is delayed, as on
 * high-latency storage. Requests are served concurrently, so delays do not add up.
 *
 *     slowfs --source DIR --mountpoint MP [--open-ms N] [--read-ms N] [--stuck TEXT]
 *            [--counts FILE] [--control DIR]
 *
 * Runs in the foreground until unmounted, SIGINT or SIGTERM. Reads of files whose name contains
 * TEXT do not return before that. Names and attributes are cached by the kernel; file contents are
 * read anew after each open. On SIGUSR1 and at the end FILE gets the counts as JSON:
 *
 *     {"n_opens": 3, "n_reads": 3, "opens": {"/a.jpg": 2, "/b.jpg": 1}}
 *
 * "n_reads" are requests as the kernel sends them, of up to 128 KiB by default.
 *
 * With --control, files in DIR say what happens to the requests for a file NAME (without folders),
 * while slowfs runs: open.NAME, read.NAME and close.NAME.
 *
 *     (empty)  such requests are held until the control file is removed
 *     "5"      they fail with errno 5
 *     "5 2"    the next 2 of them fail with errno 5, and those after them are held
 *
 * DIR/held.open.NAME and so on appears when the first request is held, and stays. Put control files
 * in place by rename(): slowfs may read them at any time.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <fuse_lowlevel.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* libfuse serves at most 10 requests at a time by default, the kernel 12 in the background. */
#define MOST_REQUESTS 1024
#define N_BUCKETS 16384

/* How often a file was opened. */
typedef struct tally {
    struct tally *next;
    unsigned long n_opens;
    char path[];
} tally;

typedef struct slowfs {
    const char *source, *mountpoint, *stuck, *counts, *control;
    long open_ms, read_ms;
    int source_dir;
    struct fuse *fuse;
    pthread_mutex_t lock; /* guards the counts, and control files that this process writes */
    unsigned long n_opens, n_reads;
    tally *buckets[N_BUCKETS];
} slowfs;

static slowfs *self(void) { return fuse_get_context()->private_data; }

static void wait_ms(long ms) {
    if (ms <= 0) return;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static tally **bucket_of(slowfs *fs, const char *path) {
    unsigned hash = 5381;
    for (const char *c = path; *c; c++) hash = hash * 33 + (unsigned char)*c;
    return &fs->buckets[hash % N_BUCKETS];
}

static void count_open(slowfs *fs, const char *path) {
    pthread_mutex_lock(&fs->lock);
    fs->n_opens++;
    tally **const bucket = bucket_of(fs, path);
    tally *found = *bucket;
    while (found && strcmp(found->path, path)) found = found->next;
    if (!found && (found = calloc(1, sizeof(*found) + strlen(path) + 1))) {
        strcpy(found->path, path);
        found->next = *bucket;
        *bucket = found;
    }
    if (found) found->n_opens++;
    pthread_mutex_unlock(&fs->lock);
}

static void write_string(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 32)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

/* In one piece: whoever sees the file sees all of it. */
static void write_counts(slowfs *fs) {
    if (!fs->counts) return;
    char fresh[4096];
    if (snprintf(fresh, sizeof(fresh), "%s.new", fs->counts) >= (int)sizeof(fresh)) return;
    FILE *const out = fopen(fresh, "w");
    if (!out) {
        perror(fresh);
        return;
    }
    pthread_mutex_lock(&fs->lock);
    fprintf(out, "{\"n_opens\": %lu, \"n_reads\": %lu, \"opens\": {", fs->n_opens, fs->n_reads);
    const char *separator = "";
    for (int i = 0; i < N_BUCKETS; i++) {
        for (const tally *t = fs->buckets[i]; t; t = t->next) {
            fputs(separator, out);
            write_string(out, t->path);
            fprintf(out, ": %lu", t->n_opens);
            separator = ", ";
        }
    }
    pthread_mutex_unlock(&fs->lock);
    fputs("}}\n", out);
    if (fclose(out) || rename(fresh, fs->counts)) perror(fs->counts);
}

/* Waits for SIGUSR1, which all threads block. */
static void *count_main(void *argument) {
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    for (int signal_number; !sigwait(&asked, &signal_number);) write_counts(argument);
    return NULL;
}

/* ---- requests that the test controls --------------------------------------------------------- */

#define CONTROL_POLL_MS 2

typedef enum verdict { VERDICT_GO, VERDICT_FAIL, VERDICT_HOLD } verdict;

/* Locked. What the control file of that name says; with a count it is one less now. */
static verdict consult(const char *control, int *failure) {
    FILE *const file = fopen(control, "r");
    if (!file) return VERDICT_GO;
    unsigned left = 0;
    const int n_values = fscanf(file, "%d %u", failure, &left);
    fclose(file);
    if (n_values == 1) return VERDICT_FAIL;
    if (n_values != 2 || left == 0) return VERDICT_HOLD;
    FILE *const rewritten = fopen(control, "w");
    if (!rewritten) return VERDICT_GO;
    fprintf(rewritten, "%d %u", *failure, left - 1);
    fclose(rewritten);
    return VERDICT_FAIL;
}

/* Waits until the request may continue. Returns 0, or a negative errno with which it fails. */
static int control_request(slowfs *fs, const char *request, const char *path) {
    if (!fs->control || !path) return 0;
    const char *const name = strrchr(path, '/') + 1;
    char control[4096], held[4096];
    snprintf(control, sizeof(control), "%s/%s.%s", fs->control, request, name);
    snprintf(held, sizeof(held), "%s/held.%s.%s", fs->control, request, name);
    bool is_held = false;
    for (;;) {
        int failure = 0;
        pthread_mutex_lock(&fs->lock);
        const verdict found = consult(control, &failure);
        if (found == VERDICT_HOLD && !is_held) {
            const int file = open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
            if (file >= 0) close(file);
            is_held = true;
        }
        pthread_mutex_unlock(&fs->lock);
        if (found == VERDICT_GO) return 0;
        if (found == VERDICT_FAIL) return -failure;
        if (fuse_session_exited(fuse_get_session(fs->fuse))) return -EIO;
        wait_ms(CONTROL_POLL_MS);
    }
}

/* ---- the file system ------------------------------------------------------------------------- */

/* Relative to source_dir; "." for the root. */
static const char *below(const char *path) { return path[1] ? path + 1 : "."; }

static void *slowfs_init(struct fuse_conn_info *connection, struct fuse_config *config) {
    connection->max_background = MOST_REQUESTS;
    connection->congestion_threshold = MOST_REQUESTS;
    config->entry_timeout = config->attr_timeout = 3600;
    config->use_ino = 1;
    return self();
}

static int slowfs_getattr(const char *path, struct stat *out, struct fuse_file_info *file) {
    (void)file;
    return fstatat(self()->source_dir, below(path), out, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

static int slowfs_readlink(const char *path, char *out, size_t bytes) {
    const ssize_t n = readlinkat(self()->source_dir, below(path), out, bytes - 1);
    if (n < 0) return -errno;
    out[n] = 0;
    return 0;
}

static int slowfs_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
                          struct fuse_file_info *file, enum fuse_readdir_flags flags) {
    (void)offset;
    (void)file;
    (void)flags;
    const int handle = openat(self()->source_dir, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return -errno;
    DIR *const dir = fdopendir(handle);
    if (!dir) {
        close(handle);
        return -ENOMEM;
    }
    for (const struct dirent *entry; (entry = readdir(dir));) {
        const struct stat known = {.st_ino = entry->d_ino, .st_mode = DTTOIF(entry->d_type)};
        if (fill(buffer, entry->d_name, &known, 0, 0)) break;
    }
    closedir(dir);
    return 0;
}

static int slowfs_open(const char *path, struct fuse_file_info *file) {
    slowfs *const fs = self();
    count_open(fs, path);
    wait_ms(fs->open_ms);
    const int failure = control_request(fs, "open", path);
    if (failure) return failure;
    if ((file->flags & O_ACCMODE) != O_RDONLY) return -EROFS;
    const int handle = openat(fs->source_dir, below(path), O_RDONLY | O_CLOEXEC);
    if (handle < 0) return -errno;
    file->fh = (uint64_t)handle;
    return 0;
}

static int slowfs_read(const char *path, char *out, size_t bytes, off_t offset,
                       struct fuse_file_info *file) {
    slowfs *const fs = self();
    pthread_mutex_lock(&fs->lock);
    fs->n_reads++;
    pthread_mutex_unlock(&fs->lock);
    const char *const name = path ? strrchr(path, '/') : NULL;
    if (fs->stuck && name && strstr(name, fs->stuck)) {
        /* Interrupts are ignored: so does a server that is gone. */
        struct fuse_session *const session = fuse_get_session(fs->fuse);
        while (!fuse_session_exited(session)) wait_ms(20);
        return -EIO;
    }
    wait_ms(fs->read_ms);
    const int failure = control_request(fs, "read", path);
    if (failure) return failure;
    const ssize_t n = pread((int)file->fh, out, bytes, offset);
    return n < 0 ? -errno : (int)n;
}

/* close() waits for its end. */
static int slowfs_flush(const char *path, struct fuse_file_info *file) {
    (void)file;
    return control_request(self(), "close", path);
}

static int slowfs_release(const char *path, struct fuse_file_info *file) {
    (void)path;
    close((int)file->fh);
    return 0;
}

static struct fuse_operations operations = {.init = slowfs_init,
                                            .getattr = slowfs_getattr,
                                            .readlink = slowfs_readlink,
                                            .readdir = slowfs_readdir,
                                            .open = slowfs_open,
                                            .read = slowfs_read,
                                            .release = slowfs_release};

/* ---- main ------------------------------------------------------------------------------------ */

static bool parse(slowfs *fs, int argc, char **argv) {
    static const struct option options[] = {
        {"source", required_argument, NULL, 's'},  {"mountpoint", required_argument, NULL, 'm'},
        {"open-ms", required_argument, NULL, 'o'}, {"read-ms", required_argument, NULL, 'r'},
        {"stuck", required_argument, NULL, 'k'},   {"counts", required_argument, NULL, 'c'},
        {"control", required_argument, NULL, 'C'}, {0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's':
            fs->source = optarg;
            break;
        case 'm':
            fs->mountpoint = optarg;
            break;
        case 'o':
            fs->open_ms = atol(optarg);
            break;
        case 'r':
            fs->read_ms = atol(optarg);
            break;
        case 'k':
            fs->stuck = optarg;
            break;
        case 'c':
            fs->counts = optarg;
            break;
        case 'C':
            fs->control = optarg;
            break;
        default:
            return false;
        }
    }
    return fs->source && fs->mountpoint && optind == argc;
}

/* Serves until the end; the exit status. */
static int serve(slowfs *fs) {
    struct fuse_loop_config *const config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, 0);
    fuse_loop_cfg_set_max_threads(config, MOST_REQUESTS);
    fuse_loop_cfg_set_idle_threads(config, MOST_REQUESTS);
    struct fuse_session *const session = fuse_get_session(fs->fuse);
    int status = 1;
    if (fuse_set_signal_handlers(session) == 0) {
        status = fuse_loop_mt(fs->fuse, config) < 0;
        fuse_remove_signal_handlers(session);
    }
    fuse_loop_cfg_destroy(config);
    return status;
}

int main(int argc, char **argv) {
    static slowfs fs = {.lock = PTHREAD_MUTEX_INITIALIZER};
    if (!parse(&fs, argc, argv)) {
        fprintf(stderr, "usage: slowfs --source DIR --mountpoint MP [--open-ms N] [--read-ms N] "
                        "[--stuck TEXT] [--counts FILE] [--control DIR]\n");
        return 2;
    }
    fs.source_dir = open(fs.source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fs.source_dir < 0) {
        perror(fs.source);
        return 1;
    }
    /* Without it the kernel asks only once, and closes cost no request. */
    if (fs.control) operations.flush = slowfs_flush;
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &asked, NULL);
    char *arguments[] = {argv[0], "-o", "ro,fsname=slowfs,subtype=slowfs", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
    fs.fuse = fuse_new(&args, &operations, sizeof(operations), &fs);
    if (!fs.fuse) return 1;
    int status = 1;
    if (fuse_mount(fs.fuse, fs.mountpoint) == 0) {
        pthread_t counter;
        if (pthread_create(&counter, NULL, count_main, &fs) == 0) pthread_detach(counter);
        status = serve(&fs);
        fuse_unmount(fs.fuse);
    }
    fuse_destroy(fs.fuse);
    write_counts(&fs);
    return status;
}
