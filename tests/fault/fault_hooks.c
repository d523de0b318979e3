#define _GNU_SOURCE
#include "fault_hooks.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
#if FM_HAVE_URING
#include <liburing.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define N_HOOKS (FAULT_RING_CLOSE + 1)

static fault_board *board;
static _Atomic long counts[N_HOOKS];
static _Atomic long n_blocks, n_bytes;

void fault_hooks_follow(fault_board *followed) {
    board = followed;
    for (int i = 0; i < N_HOOKS; i++) atomic_store(&counts[i], 0);
}

const long *fault_hooks_counts(void) {
    static long copy[N_HOOKS];
    for (int i = 0; i < N_HOOKS; i++) copy[i] = atomic_load(&counts[i]);
    return copy;
}

fault_memory fault_hooks_memory(void) {
    return (fault_memory){atomic_load(&n_blocks), atomic_load(&n_bytes)};
}

/* Counts a call. Returns the error that it must fail with, or 0. */
static int failure_of(fault_hook hook) {
    if (!board || !atomic_load(&board->armed)) return 0;
    atomic_fetch_add(&counts[hook], 1);
    if (!board->kind || board->kind->hook != hook) return 0;
    return fault_board_strikes(board) ? board->failure : 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *count_block(void *block) {
    if (!block) return NULL;
    atomic_fetch_add(&n_blocks, 1);
    atomic_fetch_add(&n_bytes, (long)malloc_usable_size(block));
    return block;
}

static void forget_block(void *block) {
    if (!block) return;
    atomic_fetch_sub(&n_blocks, 1);
    atomic_fetch_sub(&n_bytes, (long)malloc_usable_size(block));
}

static bool refuses(fault_hook hook) {
    const int failure = failure_of(hook);
    if (failure) errno = failure;
    return failure;
}

#if FAULT_SANITIZED

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *block, size_t n) {
    (void)n;
    count_block((void *)(uintptr_t)block);
}

static void on_free(const volatile void *block) { forget_block((void *)(uintptr_t)block); }

__attribute__((constructor)) static void install(void) {
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}

EXPORT void *aligned_alloc(size_t alignment, size_t n) {
    void *block = NULL;
    if (refuses(FAULT_ALIGNED_ALLOC) || posix_memalign(&block, alignment, n)) return NULL;
    return block;
}

#else

/* glibc's own, under the names that it exports for this purpose. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *block);

EXPORT void *malloc(size_t n) {
    return refuses(FAULT_MALLOC) ? NULL : count_block(__libc_malloc(n));
}

EXPORT void *calloc(size_t n, size_t size) {
    return refuses(FAULT_CALLOC) ? NULL : count_block(__libc_calloc(n, size));
}

EXPORT void *realloc(void *block, size_t n) {
    if (refuses(FAULT_REALLOC)) return NULL;
    const long n_before = block ? (long)malloc_usable_size(block) : 0;
    void *const moved = __libc_realloc(block, n);
    if (!moved && n) return NULL;
    if (block) atomic_fetch_sub(&n_blocks, 1);
    atomic_fetch_sub(&n_bytes, n_before);
    return count_block(moved);
}

EXPORT void *aligned_alloc(size_t alignment, size_t n) {
    return refuses(FAULT_ALIGNED_ALLOC) ? NULL : count_block(__libc_memalign(alignment, n));
}

EXPORT int posix_memalign(void **block, size_t alignment, size_t n) {
    if (refuses(FAULT_POSIX_MEMALIGN)) return ENOMEM;
    void *const taken = count_block(__libc_memalign(alignment, n));
    if (taken) *block = taken;
    return taken ? 0 : ENOMEM;
}

EXPORT void free(void *block) {
    forget_block(block);
    __libc_free(block);
}

#endif

/* ---- threads and files ----------------------------------------------------------------------- */

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*body)(void *),
                          void *argument);
int __real_pthread_attr_init(pthread_attr_t *attributes);
int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
int __real_pthread_condattr_init(pthread_condattr_t *attributes);
int __real_close(int file);
ssize_t __real_pread(int file, void *out, size_t n, off_t offset);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*body)(void *),
                          void *argument);
int __wrap_pthread_attr_init(pthread_attr_t *attributes);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
int __wrap_pthread_condattr_init(pthread_condattr_t *attributes);
int __wrap_close(int file);
ssize_t __wrap_pread(int file, void *out, size_t n, off_t offset);

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*body)(void *),
                          void *argument) {
    const int failure = failure_of(FAULT_THREAD_CREATE);
    return failure ? failure : __real_pthread_create(id, attributes, body, argument);
}

int __wrap_pthread_attr_init(pthread_attr_t *attributes) {
    const int failure = failure_of(FAULT_THREAD_ATTR);
    return failure ? failure : __real_pthread_attr_init(attributes);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes) {
    const int failure = failure_of(FAULT_MUTEX_INIT);
    return failure ? failure : __real_pthread_mutex_init(mutex, attributes);
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes) {
    const int failure = failure_of(FAULT_COND_INIT);
    return failure ? failure : __real_pthread_cond_init(cond, attributes);
}

int __wrap_pthread_condattr_init(pthread_condattr_t *attributes) {
    const int failure = failure_of(FAULT_COND_ATTR);
    return failure ? failure : __real_pthread_condattr_init(attributes);
}

int __wrap_close(int file) {
    const int failure = failure_of(FAULT_CLOSE);
    const int result = __real_close(file);
    if (!failure) return result;
    errno = failure;
    return -1;
}

ssize_t __wrap_pread(int file, void *out, size_t n, off_t offset) {
    return __real_pread(file, out, failure_of(FAULT_PREAD) && n > 1 ? n / 2 : n, offset);
}

/* ---- io_uring -------------------------------------------------------------------------------- */

#if FM_HAVE_URING

int __real_io_uring_submit(struct io_uring *ring);
int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
int __real_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **found,
                                            unsigned n, struct __kernel_timespec *limit,
                                            sigset_t *mask);
int __real_io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **found,
                                     struct __kernel_timespec *limit);
unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **found,
                                        unsigned n);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **found,
                                            unsigned n, struct __kernel_timespec *limit,
                                            sigset_t *mask);
int __wrap_io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **found,
                                     struct __kernel_timespec *limit);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **found,
                                        unsigned n);

/* The request that fails: its completion's result is replaced. The ring's thread's alone. */
static uint64_t failing_data;
static int failing_with;

/*
 * Chooses the request that fails as it is submitted. An open, and a close that is refused, must not
 * happen: the kernel gets arguments that it refuses, and the completion another error.
 */
static void choose(struct io_uring_sqe *entry) {
    static const char nowhere[] = "/nonexistent/file";
    int failure = 0;
    switch (entry->opcode) {
    case IORING_OP_OPENAT:
        if ((failure = failure_of(FAULT_RING_OPEN))) entry->addr = (uint64_t)(uintptr_t)nowhere;
        break;
    case IORING_OP_FADVISE:
        if ((failure = failure_of(FAULT_RING_ADVISE))) entry->fadvise_advice = 99;
        break;
    case IORING_OP_READ:
        failure = failure_of(FAULT_RING_READ);
        break;
    case IORING_OP_CLOSE:
        failure = failure_of(FAULT_RING_CLOSE);
        if (failure == ECANCELED) entry->fd = -1;
        break;
    }
    if (!failure) return;
    failing_data = entry->user_data;
    failing_with = failure;
}

static void see_submissions(struct io_uring *ring) {
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++)
        choose(&ring->sq.sqes[i & *ring->sq.kring_mask]);
}

static void change_completion(struct io_uring_cqe *completion) {
    if (!failing_with || completion->user_data != failing_data) return;
    if (failing_with != FAULT_SHORT)
        completion->res = -failing_with;
    else if (completion->res > 1)
        completion->res /= 2;
    failing_with = 0;
}

int __wrap_io_uring_submit(struct io_uring *ring) {
    see_submissions(ring);
    return __real_io_uring_submit(ring);
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n) {
    see_submissions(ring);
    return __real_io_uring_submit_and_wait(ring, n);
}

int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **found,
                                            unsigned n, struct __kernel_timespec *limit,
                                            sigset_t *mask) {
    see_submissions(ring);
    const int result = __real_io_uring_submit_and_wait_timeout(ring, found, n, limit, mask);
    if (result >= 0 && *found) change_completion(*found);
    return result;
}

int __wrap_io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **found,
                                     struct __kernel_timespec *limit) {
    const int result = __real_io_uring_wait_cqe_timeout(ring, found, limit);
    if (result >= 0 && *found) change_completion(*found);
    return result;
}

unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **found,
                                        unsigned n) {
    const unsigned n_found = __real_io_uring_peek_batch_cqe(ring, found, n);
    for (unsigned i = 0; i < n_found; i++) change_completion(found[i]);
    return n_found;
}

#endif
