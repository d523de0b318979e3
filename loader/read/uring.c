#define _GNU_SOURCE
#include "read/uring.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* Entries of the longest chain, and one to close the slot's previous file. */
#define ENTRIES_PER_FILE 4
/* For the wake-up's read and the cancellation. */
#define MORE_ENTRIES 8
/* Entries are free again after each submission, so that more would only waste memory, which is
 * scarce where RLIMIT_MEMLOCK is the usual 64 KiB for all processes of a user. */
#define MAX_ENTRIES 256
#define MIN_DEPTH 4
#define PROBE_LIMIT_S 2
/* Operations that the kernel is asked about; their numbers have 8 bits. */
#define N_PROBED 256

/*
 * liburing maps and unmaps a ring by its own system calls, which ThreadSanitizer does not see. It
 * would take two rings that follow each other at one address for shared memory.
 */
#if defined(__SANITIZE_THREAD__)
void AnnotateHappensBefore(const char *file, int line, const volatile void *address);
void AnnotateHappensAfter(const char *file, int line, const volatile void *address);
static const char ring_memory;
#define RING_UNMAPPED() AnnotateHappensBefore(__FILE__, __LINE__, &ring_memory)
#define RING_MAPPED() AnnotateHappensAfter(__FILE__, __LINE__, &ring_memory)
#else
#define RING_UNMAPPED() ((void)0)
#define RING_MAPPED() ((void)0)
#endif

/* Which of the probe's operations a completion belongs to. */
enum { DATA_OPEN, DATA_READ };

struct fm_uring {
    fm_reader *reader;
    struct io_uring ring;
    bool is_open;
    uint64_t probed; /* buffer of the probe's read */
};

static void pause_ms(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

/* ---- queueing -------------------------------------------------------------------------------- */

/* A full queue is normal: submitting empties it. */
void fm_uring_reserve(fm_uring *ring, unsigned n) {
    while (io_uring_sq_space_left(&ring->ring) < n)
        if (io_uring_submit(&ring->ring) < 0) pause_ms();
}

static struct io_uring_sqe *next_entry(fm_uring *ring) {
    fm_uring_reserve(ring, 1);
    return io_uring_get_sqe(&ring->ring);
}

void fm_uring_queue_open_in_slot(fm_uring *ring, const char *path, uint32_t slot, int flags,
                                 uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_openat_direct(entry, AT_FDCWD, path, O_RDONLY | O_NOCTTY | flags, 0, slot);
    io_uring_sqe_set_flags(entry, IOSQE_ASYNC | IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS);
    io_uring_sqe_set_data64(entry, data);
}

void fm_uring_queue_refuse_fifo(fm_uring *ring, uint32_t slot, uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_fadvise(entry, (int)slot, 0, 0, POSIX_FADV_NORMAL);
    io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE | IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS);
    io_uring_sqe_set_data64(entry, data);
}

void fm_uring_queue_close_slot(fm_uring *ring, uint32_t slot) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_close_direct(entry, slot);
    io_uring_sqe_set_flags(entry, IOSQE_CQE_SKIP_SUCCESS);
    io_uring_sqe_set_data64(entry, 0);
}

void fm_uring_queue_open(fm_uring *ring, const char *path, int flags, uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_openat(entry, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags, 0);
    io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    io_uring_sqe_set_data64(entry, data);
}

void fm_uring_queue_close(fm_uring *ring, int file, uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_close(entry, file);
    io_uring_sqe_set_data64(entry, data);
}

void fm_uring_queue_read(fm_uring *ring, int file, unsigned flags, void *buffer, unsigned n_bytes,
                         uint64_t offset, uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_read(entry, file, buffer, n_bytes, offset);
    io_uring_sqe_set_flags(entry, (flags & FM_URING_SLOT ? IOSQE_FIXED_FILE : 0u) |
                                      (flags & FM_URING_ON_HELPER ? IOSQE_ASYNC : 0u));
    io_uring_sqe_set_data64(entry, data);
}

void fm_uring_queue_cancel_all(fm_uring *ring, uint64_t data) {
    struct io_uring_sqe *const entry = next_entry(ring);
    io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
    io_uring_sqe_set_data64(entry, data);
}

/* ---- submitting and reaping ------------------------------------------------------------------ */

void fm_uring_submit_and_wait(fm_uring *ring) {
    const int result = io_uring_submit_and_wait(&ring->ring, 1);
    /* Short of memory: completions may still come, after which entries go through. */
    if (result < 0 && result != -EINTR && result != -EBUSY) pause_ms();
}

unsigned fm_uring_reap(fm_uring *ring, fm_uring_completion *out, unsigned n) {
    struct io_uring_cqe *found[FM_URING_REAP_BATCH];
    n = io_uring_peek_batch_cqe(&ring->ring, found, n);
    for (unsigned i = 0; i < n; i++)
        out[i] = (fm_uring_completion){.data = found[i]->user_data, .result = found[i]->res};
    io_uring_cq_advance(&ring->ring, n);
    return n;
}

/* ---- setup ----------------------------------------------------------------------------------- */

/* 0 or a negative errno. */
static int try_ring(fm_uring *ring, uint32_t depth) {
    /* For the newest kernels first: Linux 6.1, 5.19, any. */
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
    unsigned n_entries = depth * ENTRIES_PER_FILE + MORE_ENTRIES;
    if (n_entries > MAX_ENTRIES) n_entries = MAX_ENTRIES;
    int result = -EINVAL;
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags) && result == -EINVAL; i++) {
        struct io_uring_params params = {.flags = flags[i] | IORING_SETUP_CQSIZE,
                                         .cq_entries = 2 * depth + n_entries};
        result = io_uring_queue_init_params(n_entries, &ring->ring, &params);
    }
    return result;
}

/* Lowers the depth where memory is short: from Linux 6.13 on, without CAP_IPC_LOCK, the ring's
 * memory counts as locked memory. */
static int init_ring(fm_uring *ring, fm_error *error) {
    fm_reader *const reader = ring->reader;
    const uint32_t asked = reader->n_ops;
    int result;
    while ((result = try_ring(ring, reader->n_ops)) == -ENOMEM && reader->n_ops > MIN_DEPTH)
        reader->n_ops /= 2;
    if (result < 0)
        return fm_error_set_errno(error, FM_ERR_UNAVAILABLE, -result,
                                  "io_uring is not available (io_uring_setup)");
    if (reader->n_ops < asked)
        fm_reader_note(reader,
                       "depth lowered from %u to %u: no memory for a larger ring "
                       "(RLIMIT_MEMLOCK)",
                       asked, reader->n_ops);
    RING_MAPPED();
    ring->is_open = true;
    io_uring_ring_dontfork(&ring->ring);
    io_uring_register_ring_fd(&ring->ring); /* saves a look-up; optional */
    return FM_OK;
}

static int check_kernel(fm_uring *ring, fm_error *error) {
    static const int needed[] = {IORING_OP_OPENAT, IORING_OP_READ, IORING_OP_CLOSE,
                                 IORING_OP_FADVISE, IORING_OP_ASYNC_CANCEL};
    /* LINKED_FILE: a read finds the file that the open before it in the chain puts into the slot.
     */
    const unsigned features = IORING_FEAT_LINKED_FILE | IORING_FEAT_CQE_SKIP |
                              IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_NODROP;
    if ((ring->ring.features & features) != features)
        return fm_error_set(error, FM_ERR_UNAVAILABLE,
                            "io_uring is not usable: it needs Linux 5.19 or newer");
    /* Not io_uring_get_probe_ring(), which does not say why it fails. */
    union {
        struct io_uring_probe probe;
        uint8_t bytes[sizeof(struct io_uring_probe) + N_PROBED * sizeof(struct io_uring_probe_op)];
    } known = {.bytes = {0}};
    const int result = io_uring_register_probe(&ring->ring, &known.probe, N_PROBED);
    if (result < 0)
        return fm_error_set_errno(error, FM_ERR_UNAVAILABLE, -result,
                                  "io_uring is not usable (IORING_REGISTER_PROBE)");
    bool complete = true;
    for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++)
        complete = complete && io_uring_opcode_supported(&known.probe, needed[i]);
    if (complete) return FM_OK;
    return fm_error_set(error, FM_ERR_UNAVAILABLE,
                        "io_uring is not usable: the kernel lacks operations that reading needs");
}

/* Registers the file slots and sets the number of helper threads; lowers the depth where limits
 * require it. */
static int register_limits(fm_uring *ring, fm_error *error) {
    fm_reader *const reader = ring->reader;
    const uint32_t asked = reader->n_ops;
    int refused = 0, result;
    while ((result = io_uring_register_files_sparse(&ring->ring, reader->n_ops)) < 0 &&
           (result == -EMFILE || result == -ENOMEM) && reader->n_ops > MIN_DEPTH) {
        refused = -result;
        reader->n_ops /= 2;
    }
    if (result < 0)
        return fm_error_set_errno(error, FM_ERR_UNAVAILABLE, -result,
                                  "io_uring is not usable (IORING_REGISTER_FILES)");
    if (refused)
        fm_reader_note(reader,
                       "depth lowered from %u to %u: a file table of that size was "
                       "refused (%s)",
                       asked, reader->n_ops, refused == EMFILE ? "RLIMIT_NOFILE" : "no memory");
    unsigned n_helpers[2] = {reader->n_ops, reader->n_ops};
    result = io_uring_register_iowq_max_workers(&ring->ring, n_helpers);
    if (result < 0) {
        const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
        const uint32_t most = n_cpus > 0 ? (uint32_t)n_cpus * 4 : 4;
        if (reader->n_ops > most) reader->n_ops = most;
        fm_reader_note(reader,
                       "depth %u, as the number of io_uring's helper threads can't be set (%s)",
                       reader->n_ops, strerrordesc_np(-result));
    }
    return FM_OK;
}

/* Submits and waits for one completion: 0 or a negative errno. Waits on after a signal, after which
 * liburing may return without a completion. */
static int submit_and_wait_for_one(fm_uring *ring, struct io_uring_cqe **completion) {
    const uint64_t deadline_ns = fm_clock_ns() + PROBE_LIMIT_S * (uint64_t)1000000000;
    struct __kernel_timespec limit = {.tv_sec = PROBE_LIMIT_S};
    int result;
    do {
        *completion = NULL;
        result = io_uring_submit_and_wait_timeout(&ring->ring, completion, 1, &limit, NULL);
    } while (!*completion && (result >= 0 || result == -EINTR) && fm_clock_ns() < deadline_ns);
    if (*completion) return 0;
    return result < 0 ? result : -ETIME;
}

/* Reads one byte of `path` through the ring. The number of bytes, or a negative errno. */
static int probe_path(fm_uring *ring, const char *path) {
    /* One completion: the open's if it fails, else the read's. */
    fm_uring_queue_open_in_slot(ring, path, 0, 0, DATA_OPEN);
    fm_uring_queue_read(ring, 0, FM_URING_SLOT, &ring->probed, 1, 0, DATA_READ);
    struct io_uring_cqe *completion;
    int result = submit_and_wait_for_one(ring, &completion);
    if (result < 0) return result;
    result = completion->res;
    const bool opened = completion->user_data == DATA_READ;
    io_uring_cqe_seen(&ring->ring, completion);
    /* Not an empty slot: that fails, and the next probe would take the failure for its own. */
    if (opened) fm_uring_queue_close_slot(ring, 0);
    if (opened) io_uring_submit(&ring->ring);
    return result;
}

/* A seccomp filter may allow creating the ring and forbid its operations. */
static int probe_read(fm_uring *ring, fm_error *error) {
    int result = probe_path(ring, "/proc/self/exe");
    if (result == -ENOENT || result == -EACCES) result = probe_path(ring, "/dev/null");
    if (result >= 0) return FM_OK;
    return fm_error_set_errno(error, FM_ERR_UNAVAILABLE, -result,
                              "io_uring is not usable (reading a file through it failed)");
}

int fm_uring_open(fm_uring **out, fm_reader *reader, fm_error *error) {
    fm_uring *const ring = fm_mem_zalloc(reader->config.counter, 1, sizeof(*ring));
    *out = ring;
    if (!ring) return fm_error_set(error, FM_ERR_NOMEM, "out of memory for an io_uring");
    ring->reader = reader;
    int status = init_ring(ring, error);
    if (!status) status = check_kernel(ring, error);
    if (!status) status = register_limits(ring, error);
    if (!status) status = probe_read(ring, error);
    if (status) fm_uring_close(out);
    return status;
}

void fm_uring_close(fm_uring **pointer) {
    if (!pointer || !*pointer) return;
    fm_uring *const ring = *pointer;
    *pointer = NULL;
    if (ring->is_open) {
        RING_UNMAPPED();
        io_uring_queue_exit(&ring->ring);
    }
    fm_mem_free(ring);
}
