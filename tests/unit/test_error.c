#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/mem.h"

static void every_status_has_a_text_of_its_own(void **state) {
    (void)state;
    static const int values[] = {
#define FM_X(name, value, text) value,
        FM_STATUS_LIST(FM_X)
#undef FM_X
    };
    const size_t n = sizeof(values) / sizeof(*values);
    for (size_t i = 0; i < n; i++) {
        assert_string_not_equal(fm_status_text(values[i]), "unknown status");
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(fm_status_text(values[i]), fm_status_text(values[j]));
    }
    assert_string_equal(fm_status_text(-1000), "unknown status");
}

static void long_messages_are_cut_and_terminated(void **state) {
    (void)state;
    fm_error error;
    char text[4000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    assert_int_equal(fm_error_set_errno(&error, FM_ERR_READ, ENOENT, "%s", text), FM_ERR_READ);
    assert_int_equal(strlen(error.message), sizeof(error.message) - 1);
    assert_int_equal(error.sys_errno, ENOENT);
    assert_int_equal(error.index, -1);
    assert_int_equal(fm_error_set(NULL, FM_ERR_NOMEM, "nobody asked"), FM_ERR_NOMEM);
}

static void memory_is_aligned_counted_and_overflow_checked(void **state) {
    (void)state;
    fm_mem_counter counter = {0};
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        uint8_t *const block = fm_mem_zalloc(&counter, bytes, 1);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % FM_MEM_ALIGN, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(block[i], 0);
        fm_mem_free(block);
    }
    assert_int_equal(counter.n_blocks, 43);
    assert_null(fm_mem_alloc(&counter, SIZE_MAX / 2, 3));
    assert_null(fm_mem_alloc(&counter, SIZE_MAX - 8, 1));
    assert_int_equal(counter.n_blocks, 43);
    fm_mem_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text_of_its_own),
        cmocka_unit_test(long_messages_are_cut_and_terminated),
        cmocka_unit_test(memory_is_aligned_counted_and_overflow_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
