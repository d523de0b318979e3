// To be preloaded (LD_PRELOAD): allocations that are called from chosen shared libraries can be
// made to fail, in turn. malloc() and its kin return NULL, operator new throws std::bad_alloc.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <link.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

// glibc's own, under the names that it exports for this purpose.
extern "C" void *__libc_malloc(std::size_t n);
extern "C" void *__libc_calloc(std::size_t n, std::size_t size);
extern "C" void *__libc_realloc(void *block, std::size_t n);
extern "C" void *__libc_memalign(std::size_t alignment, std::size_t n);
extern "C" void __libc_free(void *block);

namespace {

constexpr int MOST_RANGES = 64;

struct range {
    std::uintptr_t begin, end;
};

// Set while nothing is counted, read by all threads.
range ranges[MOST_RANGES];
int n_ranges;
std::atomic<bool> counting;
std::atomic<long> n_calls, fails_at;

int add_ranges(dl_phdr_info *library, std::size_t, void *names) {
    const char *const path = *library->dlpi_name ? library->dlpi_name : "the executable";
    bool wanted = false;
    for (const char *name = static_cast<const char *>(names); *name; name += std::strlen(name) + 1)
        wanted = wanted || std::strstr(path, name);
    for (int i = 0; wanted && i < library->dlpi_phnum && n_ranges < MOST_RANGES; i++) {
        const auto &part = library->dlpi_phdr[i];
        if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
        const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
        ranges[n_ranges++] = {begin, begin + part.p_memsz};
    }
    return 0;
}

bool is_in_range(const void *caller) {
    const auto at = reinterpret_cast<std::uintptr_t>(caller);
    for (int i = 0; i < n_ranges; i++)
        if (at >= ranges[i].begin && at < ranges[i].end) return true;
    return false;
}

bool fails(const void *caller) {
    if (!counting.load(std::memory_order_acquire) || !is_in_range(caller)) return false;
    if (n_calls.fetch_add(1) + 1 != fails_at.load()) return false;
    errno = ENOMEM;
    return true;
}

void *take(const void *caller, std::size_t n, std::size_t alignment = 0) {
    if (fails(caller)) return nullptr;
    return alignment ? __libc_memalign(alignment, n) : __libc_malloc(n ? n : 1);
}

void *take_or_throw(const void *caller, std::size_t n, std::size_t alignment = 0) {
    void *const block = take(caller, n, alignment);
    if (!block) throw std::bad_alloc();
    return block;
}

} // namespace

// From now on allocations are counted that are called from libraries whose path has one of the
// names in it (each ends with a 0 byte, the list with another; the program itself is "the
// executable"). The nth of them, from 1, fails.
EXPORT void fail_allocations_begin(const char *names, long nth) {
    n_ranges = 0;
    dl_iterate_phdr(add_ranges, const_cast<char *>(names));
    n_calls = 0;
    fails_at = nth;
    counting.store(true, std::memory_order_release);
}

// Ends counting. How many there were; fewer than nth: none has failed.
EXPORT long fail_allocations_end() {
    counting = false;
    return n_calls;
}

EXPORT void *malloc(std::size_t n) { return fails(CALLER) ? nullptr : __libc_malloc(n); }
EXPORT void *calloc(std::size_t n, std::size_t size) {
    return fails(CALLER) ? nullptr : __libc_calloc(n, size);
}
EXPORT void *realloc(void *block, std::size_t n) {
    return fails(CALLER) ? nullptr : __libc_realloc(block, n);
}
EXPORT void *aligned_alloc(std::size_t alignment, std::size_t n) {
    return take(CALLER, n, alignment);
}
EXPORT int posix_memalign(void **block, std::size_t alignment, std::size_t n) {
    void *const taken = take(CALLER, n, alignment);
    if (taken) *block = taken;
    return taken ? 0 : ENOMEM;
}
EXPORT void free(void *block) { __libc_free(block); }

#define EXPORT_CPP __attribute__((visibility("default")))
EXPORT_CPP void *operator new(std::size_t n) { return take_or_throw(CALLER, n); }
EXPORT_CPP void *operator new[](std::size_t n) { return take_or_throw(CALLER, n); }
EXPORT_CPP void *operator new(std::size_t n, const std::nothrow_t &) noexcept {
    return take(CALLER, n);
}
EXPORT_CPP void *operator new[](std::size_t n, const std::nothrow_t &) noexcept {
    return take(CALLER, n);
}
EXPORT_CPP void *operator new(std::size_t n, std::align_val_t alignment) {
    return take_or_throw(CALLER, n, static_cast<std::size_t>(alignment));
}
EXPORT_CPP void *operator new[](std::size_t n, std::align_val_t alignment) {
    return take_or_throw(CALLER, n, static_cast<std::size_t>(alignment));
}
EXPORT_CPP void operator delete(void *block) noexcept { __libc_free(block); }
EXPORT_CPP void operator delete[](void *block) noexcept { __libc_free(block); }
EXPORT_CPP void operator delete(void *block, std::size_t) noexcept { __libc_free(block); }
EXPORT_CPP void operator delete[](void *block, std::size_t) noexcept { __libc_free(block); }
EXPORT_CPP void operator delete(void *block, std::align_val_t) noexcept { __libc_free(block); }
EXPORT_CPP void operator delete[](void *block, std::align_val_t) noexcept { __libc_free(block); }
EXPORT_CPP void operator delete(void *block, std::size_t, std::align_val_t) noexcept {
    __libc_free(block);
}
EXPORT_CPP void operator delete[](void *block, std::size_t, std::align_val_t) noexcept {
    __libc_free(block);
}
