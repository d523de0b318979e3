#define _GNU_SOURCE
#include "read/disk_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/mem.h"

#define STATE "state"
#define TMP "tmp"
#define MAGIC "fmcache1"
#define N_FOLDERS 256u
#define BLOCK_BYTES 4096u
/* Names of entries have so many digits behind their folder. */
#define N_DIGITS (2 * FM_DIGEST_BYTES - 2)
/* A file of tmp/ that was not written to for so long was left behind by a process that is gone. */
#define STALE_S 3600
/* Enough entries to find among them some that were used longest ago; all, if there are fewer. */
#define N_SAMPLED 8192u
/* With lru, this share of the limit is made free at once, as a search reads many entries. */
#define SLACK_SHARE 64

/* Locks on bytes of the state file, which end with the process. */
enum {
    COUNTING, /* exclusive, while the counters are changed */
    IN_USE    /* shared, while the folder is open; exclusive while the files are counted */
};

typedef struct state_file {
    char magic[8];
    fm_disk_counts counts;
    char boot[40];     /* the system's boot, whose crash may lose what was written since */
    uint64_t checksum; /* of all before it */
} state_file;

/* ---- the state file -------------------------------------------------------------------------- */

static int lock_byte(const fm_disk_folder *folder, int byte, short type, bool waits) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    while (fcntl(folder->state, waits ? F_OFD_SETLKW : F_OFD_SETLK, &lock))
        if (errno != EINTR) return errno;
    return 0;
}

static uint64_t checksum_of(const state_file *state) {
    return fm_checksum(state, offsetof(state_file, checksum));
}

static bool is_valid(const state_file *state) {
    return !memcmp(state->magic, MAGIC, sizeof(state->magic)) &&
           state->checksum == checksum_of(state);
}

static int write_state(const fm_disk_folder *folder, state_file *state) {
    state->checksum = checksum_of(state);
    const ssize_t n = pwrite(folder->state, state, sizeof(*state), 0);
    return n == (ssize_t)sizeof(*state) ? 0 : n < 0 ? errno : EIO;
}

/* Returns the number of bytes, or a negative errno; zeroes what is missing. */
static int read_state(const fm_disk_folder *folder, state_file *out) {
    memset(out, 0, sizeof(*out));
    const ssize_t n = pread(folder->state, out, sizeof(*out), 0);
    return n < 0 ? -errno : (int)n;
}

/* Begins to change the counters: 0, and then end_change() must be called; or an errno. */
static int begin_change(fm_disk_folder *folder, state_file *out) {
    pthread_mutex_lock(&folder->lock);
    int error = lock_byte(folder, COUNTING, F_WRLCK, true);
    if (!error) {
        const int n = read_state(folder, out);
        error = n < 0 ? -n : is_valid(out) ? 0 : EIO;
        if (error) lock_byte(folder, COUNTING, F_UNLCK, false);
    }
    if (error) pthread_mutex_unlock(&folder->lock);
    return error;
}

static void note_seen(fm_disk_folder *folder, const fm_disk_counts *counts) {
    atomic_store_explicit(&folder->seen_bytes, counts->used_bytes, memory_order_relaxed);
    atomic_store_explicit(&folder->seen_entries, counts->n_entries, memory_order_relaxed);
}

static int end_change(fm_disk_folder *folder, state_file *changed) {
    if (changed) note_seen(folder, &changed->counts);
    const int error = changed ? write_state(folder, changed) : 0;
    lock_byte(folder, COUNTING, F_UNLCK, false);
    pthread_mutex_unlock(&folder->lock);
    return error;
}

bool fm_disk_folder_counts(fm_disk_folder *folder, fm_disk_counts *out) {
    state_file state;
    *out = (fm_disk_counts){0};
    if (begin_change(folder, &state)) return false;
    *out = state.counts;
    end_change(folder, NULL);
    return true;
}

static void subtract(uint64_t *from, uint64_t n) { *from -= n < *from ? n : *from; }

/* Ends a change that was announced by n_busy. */
static void end_busy(fm_disk_folder *folder, uint64_t less_bytes, uint64_t less_entries) {
    state_file state;
    if (begin_change(folder, &state)) return;
    subtract(&state.counts.n_busy, 1);
    subtract(&state.counts.used_bytes, less_bytes);
    subtract(&state.counts.n_entries, less_entries);
    end_change(folder, &state);
}

static int begin_busy(fm_disk_folder *folder) {
    state_file state;
    const int error = begin_change(folder, &state);
    if (error) return error;
    state.counts.n_busy++;
    return end_change(folder, &state);
}

/* ---- names ----------------------------------------------------------------------------------- */

void fm_disk_folder_name(const uint8_t digest[FM_DIGEST_BYTES], char out[FM_DISK_NAME_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    char *at = out;
    for (int i = 0; i < FM_DIGEST_BYTES; i++) {
        *at++ = digits[digest[i] >> 4];
        *at++ = digits[digest[i] & 15];
        if (i == 0) *at++ = '/';
    }
    *at = 0;
}

uint64_t fm_disk_folder_file_bytes(uint64_t n_bytes) {
    return (n_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

/* A new name in tmp/, which no other process has. */
static bool temporary_name(char out[FM_DISK_NAME_BYTES]) {
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) return false;
    snprintf(out, FM_DISK_NAME_BYTES, TMP "/%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return true;
}

/* ---- all files ------------------------------------------------------------------------------- */

static bool is_entry(const char *name) {
    return strlen(name) == N_DIGITS && strspn(name, "0123456789abcdef") == N_DIGITS;
}

/* Opens a folder in the folder; NULL: errno is set. */
static DIR *open_inner(const fm_disk_folder *folder, const char *name) {
    const int file = openat(folder->dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return NULL;
    DIR *const dir = fdopendir(file);
    if (!dir) close(file);
    return dir;
}

static int each_in(fm_disk_folder *folder, uint32_t number,
                   int (*visit)(void *user, const char *name), void *user) {
    char inner[12], name[FM_DISK_NAME_BYTES];
    snprintf(inner, sizeof(inner), "%02x", number % N_FOLDERS);
    DIR *const dir = open_inner(folder, inner);
    int result = 0;
    for (const struct dirent *one; dir && result >= 0 && (one = readdir(dir));) {
        if (!is_entry(one->d_name)) continue;
        snprintf(name, sizeof(name), "%.2s/%.62s", inner, one->d_name);
        result = visit(user, name);
        if (result > 0) fm_disk_folder_remove(folder, name, false);
    }
    if (dir) closedir(dir);
    return result < 0 ? result : 0;
}

int fm_disk_folder_each(fm_disk_folder *folder, int (*visit)(void *user, const char *name),
                        void *user) {
    int result = 0;
    for (uint32_t i = 0; i < N_FOLDERS && result >= 0; i++)
        result = each_in(folder, i, visit, user);
    return result;
}

typedef struct counting {
    const fm_disk_folder *folder;
    uint64_t n_bytes, n_files;
} counting;

static int count_file(void *user, const char *name) {
    counting *const self = user;
    struct stat found;
    if (fstatat(self->folder->dir, name, &found, AT_SYMLINK_NOFOLLOW)) return 0;
    self->n_bytes += fm_disk_folder_file_bytes((uint64_t)found.st_size);
    self->n_files++;
    return 0;
}

/* Removes what dead processes have left in tmp/: all, or only what is old. */
static void clean(const fm_disk_folder *folder, bool all) {
    const int64_t now_s = (int64_t)(fm_clock_of(CLOCK_REALTIME) / 1000000000u);
    DIR *const dir = open_inner(folder, TMP);
    if (!dir) return;
    for (const struct dirent *one; (one = readdir(dir));) {
        struct stat found;
        if (one->d_name[0] == '.' || fstatat(dirfd(dir), one->d_name, &found, AT_SYMLINK_NOFOLLOW))
            continue;
        if (all || found.st_mtime < now_s - STALE_S) unlinkat(dirfd(dir), one->d_name, 0);
    }
    closedir(dir);
}

/* ---- open ------------------------------------------------------------------------------------ */

/* "": not known. */
static void read_boot(char *out, size_t n_bytes) {
    memset(out, 0, n_bytes);
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (read(file, out, n_bytes - 1) < 0) *out = 0;
    close(file);
}

/* Makes the counters right. No other process has the folder open. */
static int repair(fm_disk_folder *folder, state_file *state) {
    char boot[sizeof(state->boot)];
    read_boot(boot, sizeof(boot));
    clean(folder, true);
    if (is_valid(state) && !state->counts.n_busy && !memcmp(boot, state->boot, sizeof(boot)))
        return 0;
    counting found = {.folder = folder};
    fm_disk_folder_each(folder, count_file, &found);
    if (!is_valid(state)) *state = (state_file){.magic = MAGIC};
    state->counts.used_bytes = found.n_bytes;
    state->counts.n_entries = found.n_files;
    state->counts.n_busy = 0;
    memcpy(state->boot, boot, sizeof(boot));
    return write_state(folder, state);
}

static int no_cache(const char *path, fm_error *error) {
    return fm_error_set(error, FM_ERR_ARGUMENT, "%.300s is no disk cache of feedmill", path);
}

static int failed(const char *path, const char *what, int error_number, fm_error *error) {
    return fm_error_set_errno(error, FM_ERR_READ, error_number, "disk cache %.300s: %s", path,
                              what);
}

/* Takes part in the folder's use, as the first one after it has checked the counters. */
static int join(fm_disk_folder *folder, const char *path, fm_error *error) {
    const int busy = lock_byte(folder, IN_USE, F_WRLCK, false);
    if (busy && busy != EAGAIN && busy != EACCES)
        return failed(path, "can't lock the file " STATE, busy, error);
    if (busy) {
        /* Waits while another process counts. */
        const int code = lock_byte(folder, IN_USE, F_RDLCK, true);
        return code ? failed(path, "can't lock the file " STATE, code, error) : FM_OK;
    }
    state_file state;
    const int n = read_state(folder, &state);
    if (n < 0) return failed(path, "can't read the file " STATE, -n, error);
    if (n > 0 && memcmp(state.magic, MAGIC, sizeof(state.magic))) return no_cache(path, error);
    int code = repair(folder, &state);
    if (code) return failed(path, "can't write the file " STATE, code, error);
    code = lock_byte(folder, IN_USE, F_RDLCK, true);
    return code ? failed(path, "can't lock the file " STATE, code, error) : FM_OK;
}

/* Whether the folder has no files of others: a path given by mistake must not be filled. */
static bool is_unused(const fm_disk_folder *folder) {
    DIR *const dir = open_inner(folder, ".");
    bool is_empty = dir != NULL, has_state = false;
    for (const struct dirent *one; dir && (one = readdir(dir));) {
        has_state = has_state || !strcmp(one->d_name, STATE); /* another process was faster */
        is_empty = is_empty && (one->d_name[0] == '.' || !strcmp(one->d_name, "lost+found"));
    }
    if (dir) closedir(dir);
    return is_empty || has_state;
}

static int open_state(fm_disk_folder *folder, const char *path, bool creates, fm_error *error) {
    folder->state = openat(folder->dir, STATE, O_RDWR | O_CLOEXEC);
    if (folder->state < 0 && errno == ENOENT) {
        if (!creates) return no_cache(path, error);
        if (!is_unused(folder))
            return fm_error_set(error, FM_ERR_ARGUMENT,
                                "%.300s has other files, and is no disk cache of feedmill; give a "
                                "new or an empty folder",
                                path);
        folder->state = openat(folder->dir, STATE, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    }
    if (folder->state < 0) return failed(path, "can't open the file " STATE, errno, error);
    if (mkdirat(folder->dir, TMP, 0777) && errno != EEXIST)
        return failed(path, "can't create the folder " TMP, errno, error);
    return FM_OK;
}

static int set_limit(fm_disk_folder *folder, const char *path, fm_error *error) {
    state_file state;
    int code = begin_change(folder, &state);
    if (!code) {
        state.counts.limit_bytes = folder->limit_bytes;
        state.counts.lru = folder->lru;
        code = end_change(folder, &state);
    }
    return code ? failed(path, "can't write the file " STATE, code, error) : FM_OK;
}

static int open_dir(fm_disk_folder *folder, const char *path, bool creates, fm_error *error) {
    if (!path || path[0] != '/')
        return fm_error_set(error, FM_ERR_ARGUMENT,
                            "the path of a disk cache must be absolute: \"%.300s\" is not",
                            path ? path : "");
    /* Only the folder itself: where a disk is not mounted, its place must not be filled. */
    if (creates && mkdir(path, 0700) && errno != EEXIST)
        return failed(path, "can't create the folder", errno, error);
    folder->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->dir < 0) return failed(path, "can't open the folder", errno, error);
    return FM_OK;
}

int fm_disk_folder_open(fm_disk_folder *folder, const char *path, uint64_t limit_bytes, bool lru,
                        fm_error *error) {
    *folder = (fm_disk_folder){.dir = -1, .state = -1, .lru = lru, .limit_bytes = limit_bytes};
    if (pthread_mutex_init(&folder->lock, NULL))
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    if (pthread_mutex_init(&folder->evicting, NULL)) {
        pthread_mutex_destroy(&folder->lock);
        return fm_error_set(error, FM_ERR_THREAD, "can't create a mutex");
    }
    int status = open_dir(folder, path, limit_bytes > 0, error);
    if (!status) status = open_state(folder, path, limit_bytes > 0, error);
    if (!status) status = join(folder, path, error);
    if (!status && limit_bytes) status = set_limit(folder, path, error);
    if (status)
        fm_disk_folder_close(folder);
    else
        clean(folder, false);
    return status;
}

void fm_disk_folder_close(fm_disk_folder *folder) {
    if (folder->state >= 0) close(folder->state);
    if (folder->dir >= 0) close(folder->dir);
    pthread_mutex_destroy(&folder->evicting);
    pthread_mutex_destroy(&folder->lock);
    folder->dir = folder->state = -1;
}

/* ---- with lru: making room ------------------------------------------------------------------- */

typedef struct candidate {
    int64_t used_ns;
    uint64_t n_bytes;
    char name[FM_DISK_NAME_BYTES];
} candidate;

typedef struct candidates {
    fm_disk_folder *folder;
    candidate *list;
    size_t n, capacity;
} candidates;

static int add_candidate(void *user, const char *name) {
    candidates *const self = user;
    struct stat found;
    if (fstatat(self->folder->dir, name, &found, AT_SYMLINK_NOFOLLOW)) return 0;
    if (self->n == self->capacity) {
        const size_t capacity = self->capacity ? 2 * self->capacity : 256;
        candidate *const list = fm_mem_alloc(NULL, capacity, sizeof(*list));
        if (!list) return -ENOMEM;
        if (self->n) memcpy(list, self->list, self->n * sizeof(*list));
        fm_mem_free(self->list);
        self->list = list;
        self->capacity = capacity;
    }
    candidate *const one = &self->list[self->n++];
    one->used_ns = (int64_t)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec;
    one->n_bytes = fm_disk_folder_file_bytes((uint64_t)found.st_size);
    snprintf(one->name, sizeof(one->name), "%s", name);
    return 0;
}

static int compare_candidates(const void *a, const void *b) {
    const candidate *const x = a, *const y = b;
    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

/* Which folders to search next: *first, and their number; 0: there is nothing to remove. */
static uint32_t choose_folders(fm_disk_folder *folder, uint32_t *first) {
    state_file state;
    if (begin_change(folder, &state)) return 0;
    const uint64_t n_entries = state.counts.n_entries;
    uint64_t n = n_entries ? N_FOLDERS * (uint64_t)N_SAMPLED / n_entries : 0;
    if (n_entries && n == 0) n = 1;
    if (n > N_FOLDERS) n = N_FOLDERS;
    *first = state.counts.next_folder;
    state.counts.next_folder = (uint32_t)((*first + n) % N_FOLDERS);
    return end_change(folder, &state) ? 0 : (uint32_t)n;
}

/* Removes the entries of some folders that were used longest ago: enough to free n_bytes, and, if
 * there are other folders, at most an eighth. Returns the bytes freed. */
static uint64_t evict_from(fm_disk_folder *folder, uint32_t first, uint32_t n_folders,
                           uint64_t n_bytes) {
    candidates found = {.folder = folder};
    for (uint32_t i = 0; i < n_folders; i++)
        if (each_in(folder, first + i, add_candidate, &found) < 0) break;
    if (found.n) qsort(found.list, found.n, sizeof(*found.list), compare_candidates);
    const size_t n_most = n_folders == N_FOLDERS ? found.n : (found.n + 7) / 8;
    uint64_t n_freed = 0;
    for (size_t i = 0; i < n_most && n_freed < n_bytes; i++) {
        fm_disk_folder_remove(folder, found.list[i].name, false);
        n_freed += found.list[i].n_bytes;
    }
    fm_mem_free(found.list);
    return n_freed;
}

static void make_room(fm_disk_folder *folder, uint64_t n_bytes) {
    for (uint32_t n_searched = 0; n_searched < N_FOLDERS;) {
        uint32_t first = 0;
        const uint32_t n_folders = choose_folders(folder, &first);
        if (n_folders == 0) return;
        const uint64_t n_freed = evict_from(folder, first, n_folders, n_bytes);
        if (n_freed >= n_bytes) return;
        n_bytes -= n_freed;
        n_searched += n_folders;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Reserves, or sets *missing to the bytes that are missing: ENOSPC. */
static int try_reserve(fm_disk_folder *folder, uint64_t n_bytes, uint64_t *missing) {
    state_file state;
    *missing = 0;
    const int error = begin_change(folder, &state);
    if (error) return error;
    const uint64_t used_bytes = state.counts.used_bytes;
    if (used_bytes + n_bytes > folder->limit_bytes) {
        *missing = used_bytes + n_bytes - folder->limit_bytes;
        end_change(folder, NULL);
        return ENOSPC;
    }
    state.counts.used_bytes += n_bytes;
    state.counts.n_entries++;
    state.counts.n_busy++;
    return end_change(folder, &state);
}

int fm_disk_folder_reserve(fm_disk_folder *folder, uint64_t n_bytes) {
    n_bytes = fm_disk_folder_file_bytes(n_bytes);
    if (n_bytes > folder->limit_bytes) return ENOSPC;
    uint64_t missing = 0;
    int error = try_reserve(folder, n_bytes, &missing);
    if (!missing || !folder->lru) return error;
    pthread_mutex_lock(&folder->evicting);
    error = try_reserve(folder, n_bytes, &missing);
    if (missing) {
        make_room(folder, missing + folder->limit_bytes / SLACK_SHARE);
        error = try_reserve(folder, n_bytes, &missing);
    }
    pthread_mutex_unlock(&folder->evicting);
    return error;
}

void fm_disk_folder_settle(fm_disk_folder *folder, uint64_t n_bytes, bool is_stored) {
    end_busy(folder, is_stored ? 0 : fm_disk_folder_file_bytes(n_bytes), is_stored ? 0 : 1);
}

int fm_disk_folder_create(fm_disk_folder *folder, char name[FM_DISK_NAME_BYTES]) {
    if (!temporary_name(name)) return -EIO;
    const int file =
        openat(folder->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    return file < 0 ? -errno : file;
}

int fm_disk_folder_publish(fm_disk_folder *folder, const char *temporary, const char *name) {
    int error = linkat(folder->dir, temporary, folder->dir, name, 0) ? errno : 0;
    if (error == ENOENT) {
        char inner[4];
        snprintf(inner, sizeof(inner), "%.2s", name);
        mkdirat(folder->dir, inner, 0777);
        error = linkat(folder->dir, temporary, folder->dir, name, 0) ? errno : 0;
    }
    unlinkat(folder->dir, temporary, 0);
    return error;
}

void fm_disk_folder_remove(fm_disk_folder *folder, const char *name, bool is_damaged) {
    char temporary[FM_DISK_NAME_BYTES];
    struct stat found = {0};
    if (!temporary_name(temporary) || begin_busy(folder)) return;
    if (is_damaged) begin_busy(folder); /* never ended: see repair() */
    /* Only one of those who remove it at the same time succeeds here. */
    const bool is_ours = !renameat(folder->dir, name, folder->dir, temporary);
    if (is_ours && fstatat(folder->dir, temporary, &found, AT_SYMLINK_NOFOLLOW)) found.st_size = 0;
    if (is_ours) unlinkat(folder->dir, temporary, 0);
    end_busy(folder, is_ours ? fm_disk_folder_file_bytes((uint64_t)found.st_size) : 0, is_ours);
}
