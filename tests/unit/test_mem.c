/* Pages of fm_mem_map_huge(): aligned, zeroed, writable from end to end, and all given back. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"

#define MIB ((size_t)1 << 20)

/* Whether the page at this address is mapped. */
static bool is_mapped(const uint8_t *address) {
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;
    return mincore((void *)((uintptr_t)address / page_bytes * page_bytes), 1, &resident) == 0;
}

static void blocks_are_whole(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 4096, 4097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 9 * MIB + 12345};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t n = sizes[i];
        fm_mem_counter counter = {0};
        uint8_t *const block = fm_mem_map_huge(&counter, n);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % (2 * MIB), 0);
        assert_int_equal(counter.n_blocks, 1);
        assert_true(counter.n_bytes >= n && counter.n_bytes < n + 2 * MIB);
        for (size_t k = 0; k < n; k++)
            if (block[k]) fail_msg("byte %zu of %zu is not zero", k, n);
        memset(block, 0xa5, n);
        fm_mem_unmap(block, n);
        assert_false(is_mapped(block));
        if (n) assert_false(is_mapped(block + n - 1));
    }
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    fm_mem_counter counter = {0};
    assert_null(fm_mem_map_huge(&counter, SIZE_MAX));
    assert_null(fm_mem_map_huge(&counter, SIZE_MAX - 3 * MIB));
    assert_null(fm_mem_map(&counter, SIZE_MAX));
    assert_int_equal(counter.n_blocks, 0);
    fm_mem_unmap(NULL, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_whole),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
