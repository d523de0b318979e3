#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ring/ring.h"

static fm_ring *open_ring(uint32_t n_buffers, const fm_allocator *allocator) {
    static const fm_allocator own = {0};
    fm_ring *ring = NULL;
    assert_int_equal(
        fm_ring_open(&ring, n_buffers, 1000, 64, allocator ? allocator : &own, NULL, NULL), FM_OK);
    return ring;
}

static fm_buffer *acquire(fm_ring *ring) {
    fm_ring_lock(ring);
    fm_buffer *const buffer = fm_ring_acquire(ring);
    fm_ring_unlock(ring);
    return buffer;
}

static fm_buffer *acquire_ready(fm_ring *ring) {
    fm_ring_lock(ring);
    fm_buffer *const buffer = fm_ring_acquire(ring);
    fm_buffer_set_ready(buffer);
    fm_ring_unlock(ring);
    return buffer;
}

static fm_buffer *borrow(fm_ring *ring) {
    fm_buffer *const buffer = acquire_ready(ring);
    fm_ring_lock(ring);
    fm_buffer_lend(buffer);
    fm_ring_unlock(ring);
    return buffer;
}

static void buffers_are_aligned_and_distinct(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(5, NULL);
    const uint8_t *previous = NULL;
    for (int i = 0; i < 5; i++) {
        fm_buffer *const buffer = acquire(ring);
        assert_non_null(buffer);
        assert_int_equal((uintptr_t)buffer->memory % 64, 0);
        assert_ptr_not_equal(buffer->memory, previous);
        memset(buffer->memory, i, ring->buffer_bytes);
        previous = buffer->memory;
    }
    assert_null(acquire(ring));
    assert_true(ring->wanted);
    fm_ring_close(ring);
}

static void at_most_two_are_borrowed(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(4, NULL);
    fm_buffer *const first = borrow(ring);
    assert_true(fm_ring_may_lend(ring));
    fm_buffer *const second = borrow(ring);
    assert_false(fm_ring_may_lend(ring));
    fm_buffer_release(first);
    assert_true(fm_ring_may_lend(ring));
    /* Giving back twice does nothing. */
    fm_buffer_release(first);
    assert_int_equal(ring->n_borrowed, 1);
    fm_buffer_release(second);
    fm_ring_close(ring);
}

static void memory_outlives_the_ring_until_the_last_release(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_buffer *const borrowed = borrow(ring);
    uint8_t *const memory = borrowed->memory;
    memset(memory, 7, 1000);
    fm_ring_close(ring);
    for (int i = 0; i < 1000; i++) assert_int_equal(memory[i], 7);
    fm_buffer_release(borrowed);
}

static void copies_are_independent(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_buffer *const buffer = acquire_ready(ring);
    memset(buffer->memory, 1, ring->buffer_bytes);
    fm_buffer *const copy = fm_buffer_clone(buffer, 1000);
    memset(buffer->memory, 2, ring->buffer_bytes);
    const uint8_t *const memory = copy->memory;
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(memory[999], 1);
    assert_int_equal(memory[ring->label_offset], 1);
    fm_ring_close(ring);
    assert_int_equal(memory[0], 1);
    fm_buffer_release(copy);
}

typedef struct book {
    int n_live, n_total, fail_at;
} book;

static void *book_alloc(void *user, size_t bytes, void **handle) {
    book *const b = user;
    if (b->n_total == b->fail_at) return NULL;
    b->n_total++;
    b->n_live++;
    *handle = (void *)(uintptr_t)(1000 + b->n_total);
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void book_free(void *user, void *memory, void *handle) {
    assert_true((uintptr_t)handle > 1000);
    ((book *)user)->n_live--;
    free(memory);
}

static void handover_gives_memory_away_and_takes_fresh(void **state) {
    (void)state;
    book b = {.fail_at = 4};
    const fm_allocator allocator = {&b, book_alloc, book_free, true};
    fm_ring *const ring = open_ring(3, &allocator);
    fm_buffer *const buffer = acquire_ready(ring);
    void *const before = buffer->memory;
    void *memory = NULL, *handle = NULL;
    assert_int_equal(fm_buffer_hand_over(buffer, &memory, &handle), FM_OK);
    assert_ptr_equal(memory, before);
    assert_int_equal((uintptr_t)handle, 1001);
    assert_ptr_not_equal(buffer->memory, before);
    /* Out of memory: the buffer keeps what it has. */
    void *const kept = buffer->memory;
    assert_int_equal(fm_buffer_hand_over(buffer, &memory, &handle), FM_ERR_NOMEM);
    assert_ptr_equal(buffer->memory, kept);
    fm_ring_close(ring);
    assert_int_equal(b.n_live, 1);
    book_free(&b, before, (void *)(uintptr_t)1001);
}

static void a_failed_allocation_leaves_nothing_behind(void **state) {
    (void)state;
    for (int fail_at = 0; fail_at < 3; fail_at++) {
        book b = {.fail_at = fail_at};
        const fm_allocator allocator = {&b, book_alloc, book_free, false};
        fm_ring *ring = NULL;
        fm_error error;
        assert_int_equal(fm_ring_open(&ring, 3, 1000, 64, &allocator, NULL, &error), FM_ERR_NOMEM);
        assert_null(ring);
        assert_int_equal(b.n_live, 0);
    }
}

static void a_forked_child_releases_nothing(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_buffer *const borrowed = borrow(ring);
    fm_ring_lock(ring); /* as another thread may hold it at the fork */
    const pid_t child = fork();
    if (child == 0) {
        fm_buffer_release(borrowed);
        _exit(ring->n_borrowed == 1 ? 0 : 1);
    }
    fm_ring_unlock(ring);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fm_buffer_release(borrowed);
    fm_ring_close(ring);
}

static void each_way_of_a_buffer(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_buffer *const dropped = acquire(ring), *const copied = acquire_ready(ring);
    fm_ring_lock(ring);
    assert_int_equal(dropped->state, FM_BUFFER_FILLING);
    assert_int_equal(copied->state, FM_BUFFER_READY);
    fm_buffer_begin_copy(copied);
    assert_int_equal(copied->state, FM_BUFFER_COPYING);
    fm_buffer_recycle(dropped);
    fm_buffer_recycle(copied);
    assert_int_equal(dropped->state, FM_BUFFER_FREE);
    assert_int_equal(copied->state, FM_BUFFER_FREE);
    fm_ring_unlock(ring);
    fm_ring_close(ring);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_aligned_and_distinct),
        cmocka_unit_test(at_most_two_are_borrowed),
        cmocka_unit_test(memory_outlives_the_ring_until_the_last_release),
        cmocka_unit_test(copies_are_independent),
        cmocka_unit_test(each_way_of_a_buffer),
        cmocka_unit_test(handover_gives_memory_away_and_takes_fresh),
        cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
        cmocka_unit_test(a_forked_child_releases_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
