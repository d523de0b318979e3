#define _GNU_SOURCE
#include "fault_kinds.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#define CALL(title) .name = #title, .call = SYS_##title
#define HOOK(title, value) .name = title, .call = -1, .hook = value

/*
 * The errors are those that the manual pages name for correct calls and, for files, those that
 * network file systems return. Errors that only a wrong call gives (EBADF, EFAULT) are left out.
 *
 * write: to an eventfd, which only a signal can make fail, and of thread names.
 * futex: only waits, and only errors that the kernel may return at any time. glibc ends the process
 * on any other error, and a wake-up does not fail.
 */
const fault_kind fault_kinds[] = {
    {CALL(openat), .failures = {EMFILE, ENFILE, ENOMEM, EACCES, EIO, EINTR, EAGAIN, ENOENT}},
    {CALL(read), .failures = {EIO, EINTR, ENOMEM, ESTALE}},
    {CALL(pread64), .failures = {EIO, EINTR, EAGAIN, ENOMEM, ESTALE, ECANCELED}},
    {CALL(write), .failures = {EINTR}},
    {CALL(lseek), .failures = {EIO, EINVAL}},
    {CALL(newfstatat), .failures = {ENOMEM, EACCES, EIO, ESTALE}},
    {CALL(getdents64), .failures = {EIO, ENOMEM, ESTALE}},
    {CALL(fcntl), .failures = {EINTR, EINVAL}},
    {CALL(mmap), .failures = {ENOMEM, EAGAIN, EPERM}},
    {CALL(mremap), .failures = {ENOMEM, EAGAIN}},
    {CALL(mprotect), .failures = {ENOMEM, EACCES}},
    {CALL(madvise), .failures = {ENOMEM, EAGAIN, EINVAL}},
    {CALL(clone), .failures = {EAGAIN, ENOMEM, EPERM}},
    {CALL(clone3), .failures = {EAGAIN, ENOMEM, ENOSYS, EPERM}},
    {CALL(futex), .failures = {EINTR, EAGAIN}},
    {CALL(clock_nanosleep), .failures = {EINTR}},
    {CALL(sched_getaffinity), .failures = {EINVAL, ESRCH, EPERM}},
    {CALL(sched_setaffinity), .failures = {EINVAL, ESRCH, EPERM}},
    {CALL(prlimit64), .failures = {EPERM, EINVAL}},
    {CALL(getrusage), .failures = {EINVAL}},
    {CALL(sysinfo), .failures = {EFAULT}},
    {CALL(prctl), .failures = {EINVAL, EPERM}},
    {CALL(eventfd2), .failures = {EMFILE, ENFILE, ENOMEM, ENODEV}},
    {CALL(io_uring_setup), .failures = {EPERM, ENOSYS, ENOMEM, EMFILE, ENFILE, EINVAL}},
    {CALL(io_uring_enter), .failures = {EINTR, EAGAIN, EBUSY, ENOMEM, EPERM}},
    {CALL(io_uring_register), .failures = {ENOMEM, EMFILE, EINVAL, EPERM, EBUSY}},
    {HOOK("malloc", FAULT_MALLOC), .failures = {ENOMEM}},
    {HOOK("calloc", FAULT_CALLOC), .failures = {ENOMEM}},
    {HOOK("realloc", FAULT_REALLOC), .failures = {ENOMEM}},
    {HOOK("aligned_alloc", FAULT_ALIGNED_ALLOC), .failures = {ENOMEM}},
    {HOOK("posix_memalign", FAULT_POSIX_MEMALIGN), .failures = {ENOMEM}},
    {HOOK("pthread_create", FAULT_THREAD_CREATE), .failures = {EAGAIN, EPERM}},
    {HOOK("pthread_attr_init", FAULT_THREAD_ATTR), .failures = {ENOMEM}},
    {HOOK("pthread_mutex_init", FAULT_MUTEX_INIT), .failures = {ENOMEM, EAGAIN}},
    {HOOK("pthread_cond_init", FAULT_COND_INIT), .failures = {ENOMEM, EAGAIN}},
    {HOOK("pthread_condattr_init", FAULT_COND_ATTR), .failures = {ENOMEM}},
    /* Linux has released the descriptor by then. */
    {HOOK("close", FAULT_CLOSE), .failures = {EIO, EINTR, EDQUOT}},
    {HOOK("pread", FAULT_PREAD), .failures = {FAULT_SHORT}},
    {HOOK("io_uring: open", FAULT_RING_OPEN),
     .failures = {EMFILE, ENFILE, ENOMEM, EIO, EINTR, EAGAIN, ECANCELED, ENOENT}},
    {HOOK("io_uring: fadvise", FAULT_RING_ADVISE), .failures = {EIO, ENOMEM, ECANCELED}},
    {HOOK("io_uring: read", FAULT_RING_READ),
     .failures = {EIO, EINTR, EAGAIN, ENOMEM, ECANCELED, FAULT_SHORT}},
    {HOOK("io_uring: close", FAULT_RING_CLOSE), .failures = {EIO, EINTR, ECANCELED}},
};
const size_t fault_n_kinds = sizeof(fault_kinds) / sizeof(*fault_kinds);

const fault_kind *fault_kind_of_name(const char *name) {
    for (size_t i = 0; i < fault_n_kinds; i++)
        if (!strcmp(fault_kinds[i].name, name)) return &fault_kinds[i];
    return NULL;
}

const fault_kind *fault_kind_of_call(long call) {
    for (size_t i = 0; i < fault_n_kinds; i++)
        if (fault_kinds[i].call == call) return &fault_kinds[i];
    return NULL;
}

bool fault_kind_is_usable(const fault_kind *kind) {
    static const long calls[] = {SYS_pread64,        SYS_lseek,          SYS_newfstatat,
                                 SYS_getdents64,     SYS_eventfd2,       SYS_clock_nanosleep,
                                 SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register};
    if (!FAULT_SANITIZED || kind->hook) return true;
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
        if (kind->call == calls[i]) return true;
    return false;
}

const char *fault_reason_to_spare(long call) {
    switch (call) {
    case SYS_close:
        return "it releases the descriptor even where it fails: the hook of close() does both";
    case SYS_munmap:
        return "nobody can release memory that the kernel does not take back";
    case SYS_brk:
        return "it has no error: glibc compares the break that it returns";
    case SYS_exit:
    case SYS_exit_group:
    case SYS_gettid:
    case SYS_getpid:
    case SYS_sched_yield:
    case SYS_clock_gettime:
    case SYS_getrandom:
    case SYS_rt_sigreturn:
        return "it does not fail";
    case SYS_rt_sigprocmask:
    case SYS_rseq:
    case SYS_set_robust_list:
        return "it fails on wrong arguments only";
    default:
        return NULL;
    }
}

const char *fault_failure_name(int failure) {
    const char *const name = failure == FAULT_SHORT ? "short" : strerrorname_np(failure);
    return name ? name : "unknown";
}

bool fault_board_strikes(fault_board *board) {
    const long number = atomic_fetch_add(&board->n_seen, 1) + 1;
    if (!board->nth || number < board->nth || (number > board->nth && !board->lasting))
        return false;
    atomic_store(&board->hit, true);
    return true;
}
