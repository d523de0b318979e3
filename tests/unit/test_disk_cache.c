/* disk_cache.h: what is stored and found, damage, killed processes, full disks, and the bound. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/mem.h"
#include "read/disk_cache.h"

#define MIB ((uint64_t)1 << 20)
#define MAX_BYTES 200000

/* ---- helpers --------------------------------------------------------------------------------- */

static char folder[256];

static int set_up(void **state) {
    (void)state;
    uint8_t digest[FM_DIGEST_BYTES];
    if (!fm_digest_sha256("", 0, digest)) skip(); /* built without OpenSSL */
    snprintf(folder, sizeof(folder), "/tmp/fm_disk_cache_XXXXXX");
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

static fm_disk_cache_config config_of(uint64_t limit_bytes, bool lru) {
    fm_disk_cache_config config;
    fm_disk_cache_config_init(&config);
    config.path = folder;
    config.limit_bytes = limit_bytes;
    config.lru = lru;
    return config;
}

static fm_disk_cache *open_cache(uint64_t limit_bytes, bool lru) {
    fm_disk_cache *cache;
    fm_error error;
    const fm_disk_cache_config config = config_of(limit_bytes, lru);
    if (fm_disk_cache_open(&cache, &config, &error)) fail_msg("%s", error.message);
    return cache;
}

static uint8_t byte_of(uint32_t seed, size_t i) { return (uint8_t)(seed * 31 + i * 7 + i / 251); }

static fm_disk_header header_of(uint32_t seed, size_t n_bytes) {
    char name[64];
    snprintf(name, sizeof(name), "s3://bucket/%u.jpg", seed);
    const fm_disk_key key = {name, 0, 0, ""};
    fm_disk_header header = {.n_bytes = n_bytes, .object_bytes = n_bytes, .etag = "\"1\""};
    assert_true(fm_disk_key_digest(&key, header.key));
    return header;
}

static void put(fm_disk_cache *cache, uint32_t seed, size_t n_bytes) {
    static uint8_t bytes[MAX_BYTES];
    char name[64];
    snprintf(name, sizeof(name), "s3://bucket/%u.jpg", seed);
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = byte_of(seed, i);
    const fm_disk_header header = header_of(seed, n_bytes);
    fm_disk_cache_put(cache, name, &header, bytes, false);
}

/* Whether the cache has an entry, which must be right. */
static bool has(fm_disk_cache *cache, uint32_t seed) {
    static uint8_t bytes[MAX_BYTES];
    fm_disk_header header, wanted = header_of(seed, 0);
    fm_disk_memory memory = {.bytes = bytes, .capacity = MAX_BYTES, .most_bytes = MAX_BYTES};
    if (!fm_disk_cache_read(cache, wanted.key, &header, &memory)) return false;
    assert_string_equal(header.etag, "\"1\"");
    for (size_t i = 0; i < header.n_bytes; i++) assert_int_equal(bytes[i], byte_of(seed, i));
    return true;
}

static void path_of(uint32_t seed, char out[512]) {
    char name[FM_DISK_NAME_BYTES];
    fm_disk_folder_name(header_of(seed, 0).key, name);
    snprintf(out, 512, "%s/%s", folder, name);
}

static void set_age(uint32_t seed, int64_t age_s) {
    char path[512];
    path_of(seed, path);
    const time_t then = time(NULL) - (time_t)age_s;
    const struct timespec times[2] = {{.tv_sec = then}, {.tv_sec = then}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

typedef struct sums {
    uint64_t n, n_damaged, file_bytes;
    bool removes;
} sums;

static int add(void *user, const fm_disk_cache_entry *entry) {
    sums *const self = user;
    self->n++;
    self->n_damaged += entry->is_damaged;
    self->file_bytes += entry->file_bytes;
    if (!entry->is_damaged) assert_memory_equal(entry->name, "s3://bucket/", 12);
    return self->removes;
}

/* The folder's entries, counted; its counters must agree. */
static sums walk(bool verify, bool removes) {
    sums found = {.removes = removes};
    fm_disk_cache_usage usage;
    fm_error error;
    if (fm_disk_cache_walk(folder, verify, add, &found, &usage, &error))
        fail_msg("%s", error.message);
    assert_int_equal(usage.n_entries, found.n);
    assert_int_equal(usage.used_bytes, found.file_bytes);
    return found;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void checksums_are_known(void **state) {
    (void)state;
    assert_true(fm_checksum("", 0) == 0xEF46DB3751D8E999u);
    assert_true(fm_checksum("a", 1) == 0xD24EC4F1A98C6E5Bu);
    assert_true(fm_checksum("abc", 3) == 0x44BC2CF5AD770999u);
    static const char text[] = "Nobody inspects the spammish repetition";
    assert_true(fm_checksum(text, sizeof(text) - 1) == 0xFBCEA83C8A378BF1u);
}

static void entries_are_found_at_once_and_later(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 100000, MAX_BYTES};
    fm_disk_cache *cache = open_cache(64 * MIB, false);
    assert_false(has(cache, 0));
    for (uint32_t i = 0; i < 5; i++) {
        put(cache, i, sizes[i]);
        assert_true(has(cache, i)); /* written or not */
    }
    fm_disk_cache_close(&cache);
    assert_null(cache);
    cache = open_cache(64 * MIB, false);
    for (uint32_t i = 0; i < 5; i++) assert_true(has(cache, i));
    assert_false(has(cache, 5));
    fm_disk_cache_close(&cache);
    assert_int_equal(walk(true, false).n, 5);
    walk(false, true);
    assert_int_equal(walk(true, false).n, 0);
}

static void keys_differ(void **state) {
    (void)state;
    static const fm_disk_key keys[] = {
        {"s3://a/b", 0, 0, ""},  {"s3://a/b", 0, 1, ""}, {"s3://a/b", 1, 1, ""},
        {"s3://a/b", 0, 0, "x"}, {"s3://a/c", 0, 0, ""}, {"s3://a/b", 1, 0, ""},
    };
    uint8_t digests[6][FM_DIGEST_BYTES];
    for (int i = 0; i < 6; i++) {
        assert_true(fm_disk_key_digest(&keys[i], digests[i]));
        for (int k = 0; k < i; k++) assert_memory_not_equal(digests[i], digests[k], 32);
    }
}

static void flip_byte(const char *path, off_t at) {
    const int file = open(path, O_RDWR);
    uint8_t byte;
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

/* Each byte of the header and of the object, and each length, is checked. */
static void damage_is_noticed(void **state) {
    (void)state;
    const size_t n_bytes = 300, n_checked = sizeof(fm_disk_header) + n_bytes;
    fm_disk_cache *cache = open_cache(64 * MIB, false);
    char path[512];
    path_of(1, path);
    for (size_t i = 0; i < 2 * n_checked; i += 3) {
        put(cache, 1, n_bytes);
        fm_disk_cache_close(&cache);
        if (i < n_checked)
            flip_byte(path, (off_t)i);
        else
            assert_int_equal(truncate(path, (off_t)(i - n_checked)), 0);
        cache = open_cache(64 * MIB, false);
        assert_false(has(cache, 1));
        fm_disk_cache_usage usage;
        fm_disk_cache_usage_get(cache, &usage);
        assert_int_equal(usage.n_damaged, 1);
        assert_int_equal(access(path, F_OK), -1);
    }
    /* The name at the end is what a walk shows only. */
    put(cache, 1, n_bytes);
    fm_disk_cache_close(&cache);
    flip_byte(path, (off_t)n_checked + 2);
    assert_int_equal(walk(false, false).n_damaged, 1);
}

/* Without `verify` a walk reads no object. */
static void walks_verify(void **state) {
    (void)state;
    fm_disk_cache *cache = open_cache(64 * MIB, false);
    for (uint32_t i = 0; i < 4; i++) put(cache, i, 1000);
    fm_disk_cache_close(&cache);
    char path[512];
    path_of(2, path);
    flip_byte(path, sizeof(fm_disk_header) + 500);
    assert_int_equal(walk(false, false).n_damaged, 0);
    assert_int_equal(walk(true, false).n_damaged, 1);
}

static void first_come_stops_at_the_limit(void **state) {
    (void)state;
    fm_disk_cache *cache = open_cache(10 * 8192, false);
    for (uint32_t i = 0; i < 30; i++) put(cache, i, 5000);
    put(cache, 30, MAX_BYTES); /* larger than the limit */
    fm_disk_cache_close(&cache);
    const sums found = walk(true, false);
    assert_int_equal(found.n, 10);
    assert_int_equal(found.file_bytes, 10 * 8192);
}

static void lru_removes_what_was_used_longest_ago(void **state) {
    (void)state;
    fm_disk_cache *cache = open_cache(10 * 8192, true);
    for (uint32_t i = 0; i < 10; i++) put(cache, i, 5000);
    fm_disk_cache_close(&cache);
    for (uint32_t i = 0; i < 10; i++) set_age(i, 100000 - 1000 * (int64_t)i);
    cache = open_cache(10 * 8192, true);
    assert_true(has(cache, 0)); /* now it is the one used last */
    put(cache, 100, 5000);
    put(cache, 101, 5000);
    fm_disk_cache_close(&cache);
    assert_int_equal(walk(true, false).n, 10);
    cache = open_cache(10 * 8192, true);
    assert_true(has(cache, 0) && has(cache, 100) && has(cache, 101));
    assert_false(has(cache, 1) || has(cache, 2));
    for (uint32_t i = 3; i < 10; i++) assert_true(has(cache, i));
    fm_disk_cache_close(&cache);
}

/* In a child process: stores entries until it is killed, or `n` of them. */
static pid_t start_writer(uint32_t first, uint32_t n, uint64_t limit_bytes, bool lru) {
    const pid_t child = fork();
    if (child) return child;
    fm_disk_cache *cache = open_cache(limit_bytes, lru);
    for (uint32_t i = 0; i < n; i++) {
        put(cache, first + i, 1000 + (first + i) * 97 % 60000);
        if (i % 16 == 15) usleep(500);
    }
    fm_disk_cache_close(&cache);
    _exit(0);
}

static void processes_share_the_bound(void **state) {
    (void)state;
    for (int lru = 0; lru < 2; lru++) {
        pid_t children[3];
        for (uint32_t i = 0; i < 3; i++) children[i] = start_writer(500 * i, 400, MIB, lru);
        int status;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(waitpid(children[i], &status, 0), children[i]);
            assert_int_equal(status, 0);
        }
        const sums found = walk(true, false);
        assert_true(found.file_bytes <= MIB && found.n > 5);
        assert_int_equal(found.n_damaged, 0);
    }
}

/* Each child is killed when it has stored some entries, while it writes others. */
static void killed_writers_leave_no_torn_entry(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        const uint32_t first = 1000 * round;
        const pid_t child = start_writer(first, 100000, 1024 * MIB, false);
        char path[512];
        path_of(first + round % 7, path);
        const uint64_t until_ns = fm_clock_ns() + 300000000000u;
        while (access(path, F_OK) && fm_clock_ns() < until_ns) usleep(100);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        /* Opened alone, so that it counts; and with another one that has the folder open. */
        fm_disk_cache *cache = open_cache(1024 * MIB, false);
        fm_disk_cache *other = open_cache(1024 * MIB, false);
        uint32_t n_found = 0;
        for (uint32_t i = 0; i < 300; i++) n_found += has(cache, first + i); /* checks the bytes */
        assert_true(n_found > 0);
        fm_disk_cache_usage usage;
        fm_disk_cache_usage_get(cache, &usage);
        assert_int_equal(usage.n_damaged, 0);
        fm_disk_cache_close(&other);
        fm_disk_cache_close(&cache);
    }
    /* Nobody uses the folder: what the dead have left is removed, and the counters are right. */
    assert_int_equal(walk(true, false).n_damaged, 0);
    char path[512];
    snprintf(path, sizeof(path), "%s/tmp", folder);
    DIR *const dir = opendir(path);
    for (const struct dirent *one; (one = readdir(dir));) assert_int_equal(one->d_name[0], '.');
    closedir(dir);
}

static void full_disks_are_counted(void **state) {
    (void)state;
    if (mount("none", folder, "tmpfs", 0, "size=1m")) {
        fprintf(stderr, "skipped: can't mount a tmpfs: %s\n", strerror(errno));
        skip();
    }
    fm_disk_cache *cache = open_cache(64 * MIB, false);
    for (uint32_t i = 0; i < 40; i++) put(cache, i, 60000);
    fm_disk_cache_close(&cache);
    cache = open_cache(64 * MIB, false);
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < 40; i++) n_found += has(cache, i);
    assert_true(n_found > 5 && n_found < 18);
    put(cache, 100, 150000);
    put(cache, 101, 150000);
    const uint64_t until_ns = fm_clock_ns() + 300000000000u;
    fm_disk_cache_usage usage;
    do {
        usleep(1000);
        fm_disk_cache_usage_get(cache, &usage);
    } while (usage.n_failed < 2 && fm_clock_ns() < until_ns);
    assert_int_equal(usage.n_failed, 2);
    assert_false(has(cache, 100));
    fm_disk_cache_close(&cache);
    assert_int_equal(walk(true, false).n, n_found);
    assert_int_equal(umount(folder), 0);
}

static void expect_refusal(const char *path, const char *text) {
    fm_disk_cache *cache;
    fm_error error;
    fm_disk_cache_config config = config_of(MIB, false);
    config.path = path;
    assert_true(fm_disk_cache_open(&cache, &config, &error) < 0);
    assert_null(cache);
    if (!strstr(error.message, text)) fail_msg("%s", error.message);
}

static void other_folders_are_refused(void **state) {
    (void)state;
    char path[512];
    expect_refusal("cache", "absolute");
    snprintf(path, sizeof(path), "%s/none/cache", folder);
    expect_refusal(path, "No such file");
    snprintf(path, sizeof(path), "%s/file", folder);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    expect_refusal(path, "Not a directory");
    expect_refusal(folder, "has other files");
    fm_error error;
    sums found = {0};
    const int status = fm_disk_cache_walk(folder, false, add, &found, NULL, &error);
    assert_int_equal(status, FM_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "no disk cache"));
}

/* A child must not wait for the parent's threads or locks. */
static void forked_children_leave_it_alone(void **state) {
    (void)state;
    fm_disk_cache *cache = open_cache(MIB, false);
    put(cache, 1, 1000);
    const pid_t child = fork();
    if (child == 0) {
        fm_disk_cache_usage usage;
        fm_disk_cache_usage_get(cache, &usage);
        fm_disk_cache_close(&cache);
        _exit(usage.limit_bytes == 0 && !cache ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(has(cache, 1));
    fm_disk_cache_close(&cache);
}

#define TEST(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(checksums_are_known),
        TEST(entries_are_found_at_once_and_later),
        TEST(keys_differ),
        TEST(damage_is_noticed),
        TEST(walks_verify),
        TEST(first_come_stops_at_the_limit),
        TEST(lru_removes_what_was_used_longest_ago),
        TEST(processes_share_the_bound),
        TEST(killed_writers_leave_no_torn_entry),
        TEST(full_disks_are_counted),
        TEST(other_folders_are_refused),
        TEST(forked_children_leave_it_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
