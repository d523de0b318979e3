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

static fm_ring *open_ring(uint32_t n_slots, const fm_allocator *allocator) {
    static const fm_allocator own = {0};
    fm_ring *ring = NULL;
    assert_int_equal(
        fm_ring_open(&ring, n_slots, 1000, 64, allocator ? allocator : &own, NULL, NULL), FM_OK);
    return ring;
}

static fm_slot *acquire(fm_ring *ring) {
    fm_ring_lock(ring);
    fm_slot *const slot = fm_ring_acquire(ring);
    fm_ring_unlock(ring);
    return slot;
}

static fm_loan *lend(fm_ring *ring, fm_slot *slot) {
    fm_ring_lock(ring);
    fm_loan *const loan = fm_ring_lend(ring, slot);
    fm_ring_unlock(ring);
    return loan;
}

static void slots_are_aligned_and_distinct(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(5, NULL);
    const uint8_t *previous = NULL;
    for (int i = 0; i < 5; i++) {
        fm_slot *const slot = acquire(ring);
        assert_non_null(slot);
        assert_int_equal((uintptr_t)slot->memory % 64, 0);
        assert_ptr_not_equal(slot->memory, previous);
        memset(slot->memory, i, ring->slot_bytes);
        previous = slot->memory;
    }
    assert_null(acquire(ring));
    assert_true(ring->wanted);
    fm_ring_close(ring);
}

static void at_most_two_are_lent(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(4, NULL);
    fm_loan *const first = lend(ring, acquire(ring));
    assert_true(fm_ring_may_lend(ring));
    fm_loan *const second = lend(ring, acquire(ring));
    assert_false(fm_ring_may_lend(ring));
    fm_loan_release(first);
    assert_true(fm_ring_may_lend(ring));
    /* Giving back twice does nothing. */
    fm_loan_release(first);
    assert_int_equal(ring->n_lent, 1);
    fm_loan_release(second);
    fm_ring_close(ring);
}

static void memory_outlives_the_ring_until_the_last_loan(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_slot *const slot = acquire(ring);
    memset(slot->memory, 7, 1000);
    fm_loan *const loan = lend(ring, slot);
    uint8_t *const memory = fm_loan_memory(loan, ring);
    fm_ring_close(ring);
    for (int i = 0; i < 1000; i++) assert_int_equal(memory[i], 7);
    fm_loan_release(loan);
}

static void copies_are_independent(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_slot *const slot = acquire(ring);
    memset(slot->memory, 1, ring->slot_bytes);
    fm_loan *const copy = fm_ring_copy(ring, slot, 1000);
    memset(slot->memory, 2, ring->slot_bytes);
    const uint8_t *const memory = fm_loan_memory(copy, ring);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(memory[999], 1);
    assert_int_equal(memory[ring->label_offset], 1);
    fm_ring_close(ring);
    assert_int_equal(memory[0], 1);
    fm_loan_release(copy);
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
    fm_slot *const slot = acquire(ring);
    void *const before = slot->memory;
    void *memory = NULL, *handle = NULL;
    assert_int_equal(fm_ring_hand_over(ring, slot, &memory, &handle), FM_OK);
    assert_ptr_equal(memory, before);
    assert_int_equal((uintptr_t)handle, 1001);
    assert_ptr_not_equal(slot->memory, before);
    /* Out of memory: the slot keeps what it has. */
    void *const kept = slot->memory;
    assert_int_equal(fm_ring_hand_over(ring, slot, &memory, &handle), FM_ERR_NOMEM);
    assert_ptr_equal(slot->memory, kept);
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

static void a_forked_child_does_not_return_loans(void **state) {
    (void)state;
    fm_ring *const ring = open_ring(3, NULL);
    fm_loan *const loan = lend(ring, acquire(ring));
    fm_ring_lock(ring); /* as another thread may hold it at the fork */
    const pid_t child = fork();
    if (child == 0) {
        fm_loan_release(loan);
        _exit(ring->n_lent == 1 ? 0 : 1);
    }
    fm_ring_unlock(ring);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fm_loan_release(loan);
    fm_ring_close(ring);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_aligned_and_distinct),
        cmocka_unit_test(at_most_two_are_lent),
        cmocka_unit_test(memory_outlives_the_ring_until_the_last_loan),
        cmocka_unit_test(copies_are_independent),
        cmocka_unit_test(handover_gives_memory_away_and_takes_fresh),
        cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
        cmocka_unit_test(a_forked_child_does_not_return_loans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
