#define _GNU_SOURCE
#include "read/disk_entry.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/checksum.h"

#define MAGIC "fmentry1"

static uint64_t checksum_of(const fm_disk_header *header) {
    return fm_checksum(header, offsetof(fm_disk_header, checksum));
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Drops the n bytes that were written from the begin of the parts. */
static void advance(struct iovec *parts, int n_parts, size_t n) {
    for (int i = 0; i < n_parts; i++) {
        const size_t taken = n < parts[i].iov_len ? n : parts[i].iov_len;
        parts[i].iov_base = (char *)parts[i].iov_base + taken;
        parts[i].iov_len -= taken;
        n -= taken;
    }
}

int fm_disk_entry_write(int file, const fm_disk_header *header, const uint8_t *bytes,
                        const char *name) {
    fm_disk_header whole = *header; /* lookups read the other one meanwhile */
    memcpy(whole.magic, MAGIC, sizeof(whole.magic));
    whole.bytes_checksum = fm_checksum(bytes, whole.n_bytes);
    whole.name_checksum = fm_checksum(name, whole.name_bytes);
    whole.checksum = checksum_of(&whole);
    struct iovec parts[] = {{&whole, sizeof(whole)},
                            {(void *)(uintptr_t)bytes, whole.n_bytes},
                            {(void *)(uintptr_t)name, whole.name_bytes}};
    for (uint64_t left = fm_disk_entry_bytes(header); left > 0;) {
        const ssize_t n = writev(file, parts, 3);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        advance(parts, 3, (size_t)n);
        left -= (uint64_t)n;
    }
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_header(const fm_disk_header *header) {
    return !memcmp(header->magic, MAGIC, sizeof(header->magic)) &&
           header->checksum == checksum_of(header) && !header->etag[sizeof(header->etag) - 1];
}

/* Reads n bytes at an offset; less only at the file's end. -1: errno is set. */
static int64_t read_all(int file, uint8_t *bytes, uint64_t n, uint64_t offset) {
    uint64_t n_read = 0;
    while (n_read < n) {
        const ssize_t got = pread(file, bytes + n_read, n - n_read, (off_t)(offset + n_read));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        n_read += (uint64_t)got;
    }
    return (int64_t)n_read;
}

/* Reads the header, and as much behind it as there is room for. */
static int64_t read_begin(int file, fm_disk_header *header, const fm_disk_memory *memory) {
    const struct iovec parts[] = {{header, sizeof(*header)}, {memory->bytes, memory->capacity}};
    ssize_t n;
    do n = preadv(file, parts, memory->capacity ? 2 : 1, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

fm_disk_found fm_disk_entry_read(int file, const uint8_t key[FM_DIGEST_BYTES],
                                 fm_disk_header *header, fm_disk_memory *memory) {
    const int64_t n = read_begin(file, header, memory);
    if (n < 0) return FM_DISK_MISS;
    if (n < (int64_t)sizeof(*header) || !is_header(header) ||
        memcmp(header->key, key, FM_DIGEST_BYTES))
        return FM_DISK_DAMAGED;
    if (header->n_bytes > memory->most_bytes) return FM_DISK_MISS;
    if (header->n_bytes > memory->capacity &&
        (!memory->grow || !memory->grow(memory, header->n_bytes)))
        return FM_DISK_MISS;
    uint64_t n_read = (uint64_t)n - sizeof(*header);
    if (n_read < header->n_bytes) {
        const int64_t more = read_all(file, memory->bytes + n_read, header->n_bytes - n_read,
                                      sizeof(*header) + n_read);
        if (more < 0) return FM_DISK_MISS;
        n_read += (uint64_t)more;
    }
    const bool is_whole = n_read >= header->n_bytes &&
                          fm_checksum(memory->bytes, header->n_bytes) == header->bytes_checksum;
    return is_whole ? FM_DISK_HIT : FM_DISK_DAMAGED;
}

/* Checks the object's bytes, in a buffer of their own. */
static fm_disk_found verify(int file, const fm_disk_header *header) {
    uint8_t *const bytes = fm_mem_alloc(NULL, header->n_bytes, 1);
    if (!bytes) return FM_DISK_MISS;
    const int64_t n = read_all(file, bytes, header->n_bytes, sizeof(*header));
    const bool is_whole = n == (int64_t)header->n_bytes &&
                          fm_checksum(bytes, header->n_bytes) == header->bytes_checksum;
    fm_mem_free(bytes);
    return n < 0 ? FM_DISK_MISS : is_whole ? FM_DISK_HIT : FM_DISK_DAMAGED;
}

fm_disk_found fm_disk_entry_describe(int file, fm_disk_header *header, char *name,
                                     size_t name_capacity, bool verifies) {
    struct stat found;
    *name = 0;
    if (fstat(file, &found)) return FM_DISK_MISS;
    const int64_t n = read_all(file, (uint8_t *)header, sizeof(*header), 0);
    if (n < 0) return FM_DISK_MISS;
    if (n < (int64_t)sizeof(*header) || !is_header(header) ||
        fm_disk_entry_bytes(header) != (uint64_t)found.st_size ||
        header->name_bytes >= name_capacity)
        return FM_DISK_DAMAGED;
    const int64_t n_name =
        read_all(file, (uint8_t *)name, header->name_bytes, sizeof(*header) + header->n_bytes);
    name[n_name < 0 ? 0 : n_name] = 0;
    if (n_name < 0) return FM_DISK_MISS;
    if (fm_checksum(name, (size_t)n_name) != header->name_checksum) return FM_DISK_DAMAGED;
    return verifies ? verify(file, header) : FM_DISK_HIT;
}
