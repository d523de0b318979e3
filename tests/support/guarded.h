/* Memory that ends at an inaccessible page: an access beyond its end crashes, also in libraries
 * that no sanitizer instruments. */
#ifndef FM_TEST_GUARDED_H
#define FM_TEST_GUARDED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct test_guarded {
    uint8_t *bytes; /* [n], writable */
    size_t n;       /* may be lowered; the mapping stays */
    void *pages;    /* the whole mapping */
    size_t pages_bytes;
} test_guarded;

/* A copy of n bytes; zeros where bytes is NULL. */
static inline test_guarded test_guarded_open(const void *bytes, size_t n) {
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used_bytes = (n + page_bytes - 1) / page_bytes * page_bytes;
    test_guarded guarded = {.n = n, .pages_bytes = used_bytes + page_bytes};
    guarded.pages =
        mmap(NULL, guarded.pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(guarded.pages != MAP_FAILED);
    uint8_t *const guard = (uint8_t *)guarded.pages + used_bytes;
    assert_int_equal(mprotect(guard, page_bytes, PROT_NONE), 0);
    guarded.bytes = guard - n;
    if (bytes && n) memcpy(guarded.bytes, bytes, n);
    return guarded;
}

/* Makes the memory unreadable. */
static inline void test_guarded_forbid(const test_guarded *guarded) {
    assert_int_equal(mprotect(guarded->pages, guarded->pages_bytes, PROT_NONE), 0);
}

static inline void test_guarded_close(const test_guarded *guarded) {
    assert_int_equal(munmap(guarded->pages, guarded->pages_bytes), 0);
}

#endif
