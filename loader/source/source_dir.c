/*
 * An image folder as a source: fm_folder of feedmill/source.h. Classes, files and their order equal
 * those of torchvision's ImageFolder (torchvision/datasets/folder.py: find_classes, make_dataset);
 * Python sorts str in the order of strcmp() on UTF-8. A folder without sub-folders is one class.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/mem.h"

/* Limit of nested folders. Links are followed, as in torchvision; the kernel ends a loop of links
 * after 40. */
#define MAX_DEPTH 100

typedef struct file_entry {
    char *path;
    int64_t label;
} file_entry;

typedef struct string_list {
    char **items;
    size_t n, capacity;
} string_list;

struct fm_folder {
    file_entry *files;
    size_t n_files, capacity;
    size_t n_classes;
};

static bool grow(void **items, size_t n, size_t *capacity, size_t item_bytes) {
    if (n < *capacity) return true;
    const size_t more = *capacity ? *capacity * 2 : 64;
    void *const grown = fm_mem_alloc(NULL, more, item_bytes);
    if (!grown) return false;
    if (n) memcpy(grown, *items, n * item_bytes);
    fm_mem_free(*items);
    *items = grown;
    *capacity = more;
    return true;
}

static bool list_add(string_list *list, char *text) {
    if (!text || !grow((void **)&list->items, list->n, &list->capacity, sizeof(char *))) {
        fm_mem_free(text);
        return false;
    }
    list->items[list->n++] = text;
    return true;
}

static void list_fini(string_list *list) {
    for (size_t i = 0; i < list->n; i++) fm_mem_free(list->items[i]);
    fm_mem_free(list->items);
    *list = (string_list){0};
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_sort(string_list *list) {
    if (list->n) qsort(list->items, list->n, sizeof(char *), compare);
}

static char *join(const char *directory, const char *name) {
    const size_t head = strlen(directory), tail = strlen(name);
    char *const path = fm_mem_alloc(NULL, head + tail + 2, 1);
    if (!path) return NULL;
    memcpy(path, directory, head);
    path[head] = '/';
    memcpy(path + head + 1, name, tail + 1);
    return path;
}

/*
 * Sets *is_directory if a directory's entry is a directory or a link to one. A broken link is not.
 * Other failures are errors: treating a directory as a file would silently omit its images.
 */
static int check_directory(const char *path, const struct dirent *entry, bool *is_directory,
                           fm_error *error) {
    *is_directory = entry->d_type == DT_DIR;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return FM_OK;
    struct stat status;
    if (stat(path, &status) == 0) {
        *is_directory = S_ISDIR(status.st_mode);
        return FM_OK;
    }
    if (errno == ENOENT || errno == ELOOP) return FM_OK;
    return fm_error_set_errno(error, FM_ERR_READ, errno, "can't stat %s", path);
}

static bool is_image_name(const char *name) {
    static const char *const extensions[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                             ".pgm", ".tif",  ".tiff", ".webp"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(extensions) / sizeof(*extensions); i++) {
        const size_t tail = strlen(extensions[i]);
        if (length >= tail && strcasecmp(name + length - tail, extensions[i]) == 0) return true;
    }
    return false;
}

/* Adds an entry's path to `directories` or `files`, unless that is NULL. */
static int add_entry(const char *directory, const struct dirent *entry, string_list *directories,
                     string_list *files, fm_error *error) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) return FM_OK;
    char *const path = join(directory, entry->d_name);
    if (!path) return fm_error_set(error, FM_ERR_NOMEM, "no memory to list %s", directory);
    bool is_directory;
    const int status = check_directory(path, entry, &is_directory, error);
    string_list *const list = is_directory                   ? directories
                              : is_image_name(entry->d_name) ? files
                                                             : NULL;
    if (status || !list) {
        fm_mem_free(path);
        return status;
    }
    if (list_add(list, path)) return FM_OK;
    return fm_error_set(error, FM_ERR_NOMEM, "no memory to list %s", directory);
}

/* Lists the sub-directories and image files of a directory. Either list may be NULL. */
static int scan(const char *directory, string_list *directories, string_list *files,
                fm_error *error) {
    DIR *const stream = opendir(directory);
    if (!stream)
        return fm_error_set_errno(error, FM_ERR_READ, errno, "can't list the folder %s", directory);
    int status = FM_OK, failure = 0;
    while (!status) {
        errno = 0; /* readdir() returns NULL both at the end and after a failure */
        const struct dirent *const entry = readdir(stream);
        failure = errno;
        if (!entry) break;
        status = add_entry(directory, entry, directories, files, error);
    }
    closedir(stream);
    if (status || !failure) return status;
    return fm_error_set_errno(error, FM_ERR_READ, failure, "can't list the folder %s", directory);
}

/* Adds `directory` and all directories below it to `out`. */
static int walk(const char *directory, int depth, string_list *out, fm_error *error) {
    if (depth > MAX_DEPTH)
        return fm_error_set(error, FM_ERR_LIMIT, "folders nest deeper than %d at %s", MAX_DEPTH,
                            directory);
    if (!list_add(out, fm_mem_strdup(NULL, directory)))
        return fm_error_set(error, FM_ERR_NOMEM, "no memory to list %s", directory);
    string_list below = {0};
    int status = scan(directory, &below, NULL, error);
    for (size_t i = 0; !status && i < below.n; i++)
        status = walk(below.items[i], depth + 1, out, error);
    list_fini(&below);
    return status;
}

/* Adds the image files of one directory, sorted. */
static int add_files(fm_folder *folder, const char *directory, int64_t label, fm_error *error) {
    string_list files = {0};
    int status = scan(directory, NULL, &files, error);
    list_sort(&files);
    for (size_t i = 0; !status && i < files.n; i++) {
        if (!grow((void **)&folder->files, folder->n_files, &folder->capacity,
                  sizeof(file_entry))) {
            status = fm_error_set(error, FM_ERR_NOMEM, "no memory for the list of files in %s",
                                  directory);
            break;
        }
        folder->files[folder->n_files++] = (file_entry){files.items[i], label};
        files.items[i] = NULL;
    }
    list_fini(&files);
    return status;
}

static int add_class(fm_folder *folder, const char *directory, int64_t label, fm_error *error) {
    string_list directories = {0};
    int status = walk(directory, 0, &directories, error);
    list_sort(&directories);
    for (size_t i = 0; !status && i < directories.n; i++)
        status = add_files(folder, directories.items[i], label, error);
    list_fini(&directories);
    return status;
}

int fm_folder_open(fm_folder **out, const char *dir, fm_error *error) {
    fm_error_clear(error);
    if (!out || !dir) return fm_error_set(error, FM_ERR_ARGUMENT, "out or dir is NULL");
    *out = NULL;
    fm_folder *folder = fm_mem_zalloc(NULL, 1, sizeof(*folder));
    if (!folder) return fm_error_set(error, FM_ERR_NOMEM, "no memory to list %s", dir);
    string_list classes = {0};
    int status = scan(dir, &classes, NULL, error);
    list_sort(&classes);
    folder->n_classes = classes.n ? classes.n : 1;
    if (!status && classes.n == 0) status = add_files(folder, dir, 0, error);
    for (size_t i = 0; !status && i < classes.n; i++)
        status = add_class(folder, classes.items[i], (int64_t)i, error);
    list_fini(&classes);
    if (!status && folder->n_files == 0)
        status = fm_error_set(error, FM_ERR_ARGUMENT,
                              "no image files (.jpg, .jpeg, .png, ...) in "
                              "%s or its class folders",
                              dir);
    if (status) {
        fm_folder_close(&folder);
        return status;
    }
    *out = folder;
    return FM_OK;
}

static int locate(void *user, int64_t index, fm_sample *out) {
    const fm_folder *const folder = user;
    if (index < 0 || (size_t)index >= folder->n_files) return FM_ERR_ARGUMENT;
    const file_entry *const file = &folder->files[index];
    *out = (fm_sample){.index = index, .label = file->label, .path = file->path};
    return FM_OK;
}

fm_source fm_folder_source(const fm_folder *folder) {
    if (!folder) return (fm_source){0};
    return (fm_source){(void *)(uintptr_t)folder, folder->n_files, locate};
}

size_t fm_folder_n_classes(const fm_folder *folder) { return folder ? folder->n_classes : 0; }

void fm_folder_close(fm_folder **pointer) {
    if (!pointer || !*pointer) return;
    fm_folder *const folder = *pointer;
    *pointer = NULL;
    for (size_t i = 0; i < folder->n_files; i++) fm_mem_free(folder->files[i].path);
    fm_mem_free(folder->files);
    fm_mem_free(folder);
}
